#!/usr/bin/env bash
# Sets up vLLM as the demo does, then runs these tests with the given arguments.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$here/../../../demo/setup.sh"
ensure_environment
exec "$PYTHON_VLLM" -m pytest -q -W ignore::DeprecationWarning -p no:cacheprovider \
    --rootdir "$here" --confcutdir "$here" "$here" "$@"
