#!/usr/bin/env bash
# Runs the demo: sets up what it needs, then demo/demo.py with the arguments given.
#   QUICK=1    short texts and few questions: less than two minutes after the set-up
#   KEEP=1     leave the store, and say where it is
#   LMCACHE=1  a row for LMCache in the quick demo too
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
