#!/usr/bin/env bash
# Makes .venv-s3 with the S3 clients from PyPI, unless it has exactly these.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
wanted=python/tests/s3/requirements.txt
venv=.venv-s3

if [[ ! -x $venv/bin/pytest || $venv/requirements.txt -ot $wanted ]]; then
  [[ -x $venv/bin/python ]] || python3 -m venv "$venv"
  "$venv/bin/python" -m pip --disable-pip-version-check -q install -r "$wanted"
  cp "$wanted" "$venv/requirements.txt"
fi
