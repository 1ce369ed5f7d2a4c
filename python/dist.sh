#!/usr/bin/env bash
# Builds what can be published on PyPI into dist/ (or the folder given): the source distribution and, from the tree that this unpacks
# to, the wheel for this machine's processor. So the source distribution is known to build. zig links against the glibc of manylinux_2_28,
# whatever this machine has, and maturin refuses a wheel that needs more. Publishes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
out=$(realpath -m "${1:-dist}")
work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/dist
venv=$root/.venv-dist

bash crates/store/protoc.sh
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip --disable-pip-version-check -q install -r python/dist.txt
export PATH="$venv/bin:$PATH"

rm -rf "$out" "$work/source" "$work/try"
mkdir -p "$out" "$work/source"
maturin sdist --out "$out"
# Files of archives are older than what was compiled last: they count from now.
tar xzmf "$out"/millpond-*.tar.gz -C "$work/source" --strip-components 1

MILLPOND_COMMIT=$(git rev-parse HEAD 2>/dev/null || true)
export MILLPOND_COMMIT
# The store on etcd is in the program of `make install`, so it is in the wheel's.
(cd "$work/source" && CARGO_TARGET_DIR="$work/build" maturin build --profile wheel --features millpond-node/etcd \
  --zig --compatibility manylinux_2_28 --out "$out")

twine check --strict "$out"/*

python3 -m venv "$work/try"
"$work/try/bin/python" -m pip --disable-pip-version-check -q install --no-index "$out"/millpond-*.whl
bash python/tests/installed.sh "$work/try/bin"
echo "built and tried:"
(cd "$out" && ls -l | awk 'NR > 1 { printf "  %s  %.1f MB\n", $9, $5 / 1e6 }')
