#!/usr/bin/env bash
# Builds the wheel (wheel.sh), installs it into .venv, then lints, type-checks and tests the Python
# package. The vLLM suite and the S3 clients have their own environments and runners:
# python/tests/vllm/run.sh, s3/run.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=.venv

if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv"
fi
wheel=$(bash python/tests/wheel.sh)
pip=("$venv/bin/python" -m pip --disable-pip-version-check -q)
"${pip[@]}" install -r python/tests/requirements.txt
"${pip[@]}" install --force-reinstall --no-deps "$wheel"

"$venv/bin/ruff" check python demo bench
"$venv/bin/ruff" format --check python demo bench
"$venv/bin/mypy" python/millpond
"$venv/bin/python" -B bench/plot.py --check
"$venv/bin/python" -m pytest python/tests --ignore python/tests/vllm --ignore python/tests/s3 "$@"
