#!/usr/bin/env bash
# Builds the packages for PyPI into dist/ (or the given folder): the source distribution and, from
# its unpacked tree, the wheel for this machine's processor. So the source distribution is known to
# build. zig links against the glibc of manylinux_2_28, independent of this machine's version, and
# maturin rejects a wheel that needs a later one. Publishes nothing.
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
# Unpacked files are older than the last build; new times make cargo compile them.
tar xzmf "$out"/millpond-*.tar.gz -C "$work/source" --strip-components 1

MILLPOND_COMMIT=$(git rev-parse HEAD 2>/dev/null || true)
export MILLPOND_COMMIT
# The program of `make install` has the store on etcd, so the wheel's program has it too.
(cd "$work/source" && CARGO_TARGET_DIR="$work/build" maturin build --profile wheel --features millpond-node/etcd \
  --zig --compatibility manylinux_2_28 --out "$out")

twine check --strict "$out"/*

python3 -m venv "$work/try"
"$work/try/bin/python" -m pip --disable-pip-version-check -q install --no-index "$out"/millpond-*.whl
bash python/tests/installed.sh "$work/try/bin"
echo "built and tried:"
(cd "$out" && ls -l | awk 'NR > 1 { printf "  %s  %.1f MB\n", $9, $5 / 1e6 }')
