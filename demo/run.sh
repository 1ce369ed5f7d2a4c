#!/usr/bin/env bash
# Runs the demo: sets up its environment, then runs demo/demo.py with the given arguments.
#   QUICK=1    short texts and few questions: less than two minutes after the set-up
#   KEEP=1     keep the store, and print its folder
#   LMCACHE=1  include the row for LMCache in the quick demo too
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
ensure_environment
ensure_weights
quick=()
[ -z "${QUICK:-}" ] || [ "${QUICK}" = 0 ] || quick=(--quick)
if [ "${#quick[@]}" = 0 ] || [ -n "${LMCACHE:-}" ]; then
    ensure_lmcache
fi
exec "$PYTHON_VLLM" "$ROOT/demo/demo.py" "${quick[@]}" "$@"
