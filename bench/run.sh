#!/usr/bin/env bash
# Runs every benchmark and writes JSON, text and a chart to OUTDIR (default .bench).
#   bash bench/run.sh [OUTDIR] [options of bench/main.py]
#   bash bench/run.sh .bench --only peers --rounds 5
# Sets up its dependencies: fio and redis-server with apt if permitted, a Python environment in
# .venv-bench, release binaries and the wheel. It skips and reports parts without dependencies.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out="${1:-.bench}"
shift || true
venv=.venv-bench
target="${CARGO_TARGET_DIR:-target}"

for tool in fio redis-server; do
  command -v "$tool" >/dev/null && continue
  if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
    echo "bench: installing $tool"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$tool" >/dev/null 2>&1 ||
      { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$tool"; } >/dev/null 2>&1 ||
      echo "bench: $tool cannot be installed: its rows are skipped"
  else
    echo "bench: $tool is missing and this user may not install it: its rows are skipped"
  fi
done

bash crates/store/protoc.sh
cargo build --release --locked -p millpond-cli --bin millpond
cargo build --release --locked -p millpond-engine --example engine_bench --example restart

[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check -q)
"${pip[@]}" install -r bench/requirements.txt
"${pip[@]}" install -r bench/requirements-mooncake.txt 2>/dev/null ||
  echo "bench: Mooncake has no package for this machine: its column is skipped"
"${pip[@]}" install --force-reinstall --no-deps .

exec "$venv/bin/python" -B bench/main.py --out "$out" --bin "$target/release" "$@"
