#!/usr/bin/env bash
# Runs every fuzz target for SECONDS (60) each, one per CPU at a time, and fails on a crash.
#   bash fuzz/run.sh [SECONDS] [TARGET...]
# Needs a nightly toolchain (rustup installs it if missing) and a C++ compiler; the script installs
# cargo-fuzz if missing. After a crash, its input is in fuzz/artifacts/TARGET/, and the output has
# the command that replays it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

seconds="${1:-60}"
shift || true
jobs="${FUZZ_JOBS:-$(nproc)}"
toolchain="${FUZZ_TOOLCHAIN:-nightly}"

if ! cargo "+$toolchain" --version >/dev/null 2>&1; then
  command -v rustup >/dev/null || { echo "fuzz: needs rustup to install the $toolchain toolchain" >&2; exit 1; }
  rustup toolchain install "$toolchain" --profile minimal
fi
command -v c++ >/dev/null || { echo "fuzz: needs a C++ compiler (apt-get install g++)" >&2; exit 1; }
if ! cargo fuzz --version >/dev/null 2>&1; then
  cargo "+$toolchain" install cargo-fuzz --version '^0.13' --locked
fi

unset CARGO_TARGET_DIR
host="$(rustc "+$toolchain" -vV | sed -n 's/^host: //p')"
cargo "+$toolchain" fuzz build --fuzz-dir . --target "$host"

targets=("$@")
if [[ ${#targets[@]} -eq 0 ]]; then
  mapfile -t targets < <(cargo "+$toolchain" fuzz list --fuzz-dir .)
fi
echo "fuzz: ${#targets[@]} targets, $seconds s each, $jobs at a time"

logs="$(mktemp -d)"
pids=()
trap 'trap - INT TERM; kill "${pids[@]}" 2>/dev/null || true; rm -rf "$logs"; exit 130' INT TERM
trap 'rm -rf "$logs"' EXIT

fuzz_one() {
  local target="$1" log="$logs/$1.log"
  mkdir -p "corpus/$target" "artifacts/$target"
  if "target/$host/release/$target" "corpus/$target" "seeds/$target" \
      -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=2048 \
      -artifact_prefix="artifacts/$target/" -print_final_stats=1 >"$log" 2>&1; then
    printf 'ok    %-26s %12s executions, corpus %s\n' "$target" \
      "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" "$(find "corpus/$target" -type f | wc -l)"
  else
    printf 'CRASH %-26s\n' "$target"
    tail -n 40 "$log"
    echo "replay: (cd fuzz && target/$host/release/$target artifacts/$target/<file>)"
    touch "$logs/failed"
  fi
}

for target in "${targets[@]}"; do
  while [[ $(jobs -rp | wc -l) -ge $jobs ]]; do wait -n || true; done
  fuzz_one "$target" &
  pids+=($!)
done
wait
if [[ -e "$logs/failed" ]]; then
  echo "fuzz: a target crashed" >&2
  exit 1
fi
echo "fuzz: no crash"
