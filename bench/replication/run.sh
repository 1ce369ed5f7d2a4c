#!/usr/bin/env bash
# Measures the cost of replication: puts and gets of one server, and of clusters with one to three
# replicas, on one disk and in one run; and the latency of readers while a new node fills.
#   bash bench/replication/run.sh [OUTDIR] [options of bench/replication/main.py]
# Writes text and JSON to OUTDIR (default .bench/replication). Needs only this repository and 20 GB
# of disk: clusters run under millpond dev in a temporary folder and are removed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

out="${1:-.bench/replication}"
shift || true
bash crates/store/protoc.sh
cargo build --release --locked -p millpond-cli --bin millpond
exec python3 -B bench/replication/main.py --out "$out" \
  --millpond "${CARGO_TARGET_DIR:-target}/release/millpond" "$@"
