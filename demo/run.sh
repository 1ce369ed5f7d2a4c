#!/usr/bin/env bash
# Runs the demo: sets up what it needs, then demo/demo.py with the arguments given.
# QUICK=1 takes the small model.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
ensure_environment
quick=()
[ -z "${QUICK:-}" ] || [ "${QUICK}" = 0 ] || quick=(--quick)
exec "$PYTHON_VLLM" "$ROOT/demo/demo.py" "${quick[@]}" "$@"
