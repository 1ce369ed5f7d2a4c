#!/usr/bin/env bash
# Measures the outage of a cluster of three nodes with two replicas, under load on every chain, when
# one of its processes is killed, stopped or frozen, or when the primary of three managers is
# killed.
#   bash bench/failover/run.sh [OUTDIR] [ROUNDS]
# Writes text, JSON and a chart per kind to OUTDIR (default .bench/failover). Starts its cluster
# under millpond dev in a temporary folder and removes it. Needs an etcd for the last kind, and root
# for a node that is cut off; it skips and reports kinds without these.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

out="${1:-.bench/failover}"
rounds="${2:-20}"
target="${CARGO_TARGET_DIR:-target}"
profile="${PROFILE:-release}"
mkdir -p "$out"

bash crates/store/protoc.sh
if [[ $profile == release ]]; then
  cargo build --release --locked -p millpond-cli --bin millpond
else
  cargo build --locked -p millpond-cli --bin millpond
fi
millpond="$target/$profile/millpond"

folder="$(mktemp -d)"
cluster="$folder/cluster"
trap '"$millpond" dev --dir "$cluster" down --purge >/dev/null 2>&1; rm -rf "$folder"' EXIT

up=(--nodes 3 --replicas 2 --size 4GiB)
kinds=(kill stop freeze)
if built="$(bash crates/store/tests/etcd/build.sh 2>/dev/null)" || command -v etcd >/dev/null; then
  [[ -z ${built:-} ]] || export MILLPOND_ETCD="${MILLPOND_ETCD:-$built}"
  up+=(--managers 3 --store etcd)
  kinds+=(manager)
else
  echo "failover: no etcd: the death of a primary manager is left out"
fi
if ip netns add "mpfo$$" 2>/dev/null && ip netns del "mpfo$$"; then
  up+=(--netns)
  kinds+=(cut)
else
  echo "failover: no network namespaces here: a node that is cut off is left out"
fi

echo "failover: $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-), $(nproc) cores, kernel $(uname -r)," \
  "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), millpond dev up ${up[*]}"
"$millpond" dev --dir "$cluster" up "${up[@]}" >/dev/null
for kind in "${kinds[@]}"; do
  "$millpond" bench failover --dir "$cluster" --kind "$kind" --rounds "$rounds" \
    --json "$out/$kind.json" --chart "$out/$kind.svg" | tee "$out/$kind.txt"
done
