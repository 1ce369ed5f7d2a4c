#!/usr/bin/env bash
# Runs xfstests on mounts of Millpond, in each mode, and prints the tests that passed, failed and
# did not run (docs/xfstests.md).
#   bash crates/cli/tests/xfstests/run.sh XFSTESTS PROGRAM
# XFSTESTS is a built copy of the suite (`make` in it), PROGRAM the program `millpond`. The script
# fails if a test fails that is not in known.txt. In the environment:
#   MODES="close-to-open strict"   modes of the mounts
#   OPTIONS=acl,idmap              more options of the mounts
#   TESTS="generic/001 …"          these tests instead of the group generic/quick
#   OUT=FOLDER                     logs and results; default target/xfstests
#   LIMIT_S=900                    time limit of one test in seconds; a longer test fails
#   SIZE=8GiB                      data file of each of the two servers, in TMPDIR
# Everything runs in new namespaces (mounts, network, processes). They end with this script, with
# every mount, server and test in them. The machine's users, its /sbin and its mounts do not change.
set -euo pipefail
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")

fail() {
  echo "xfstests: $*" >&2
  exit 1
}

# Checks the requirements of the tests and this script.
check_machine() {
  [ "$(id -u)" = 0 ] || fail "the suite needs root"
  [ -e /dev/fuse ] || fail "/dev/fuse is missing: modprobe fuse"
  grep -qw overlay /proc/filesystems || modprobe overlay || fail "the kernel has no overlayfs, by which /sbin gets a mount helper"
  for command in unshare ip xfs_io attr getfacl bc perl; do
    command -v "$command" >/dev/null || fail "'$command' is missing: docs/xfstests.md has the packages"
  done
  [ -x "$xfstests/check" ] || fail "$xfstests is not a copy of xfstests: it has no 'check'"
  [ -x "$xfstests/src/lstat64" ] || fail "$xfstests is not built: run make in it"
  [ -x "$program" ] || fail "$program is not a program"
}

outside() {
  xfstests=$(realpath "${1:?the folder of xfstests}")
  program=$(realpath "${2:?the program millpond}")
  check_machine
  out=$(realpath -m "${OUT:-${CARGO_TARGET_DIR:-$here/../../../../target}/xfstests}")
  mkdir -p "$out"
  work=$(mktemp -d "${TMPDIR:-/tmp}/millpond-xfstests.XXXXXX")
  inside_pid=
  finish() {
    code=$?
    set +e
    trap '' INT TERM
    # The namespaces end with their first process.
    [ -z "$inside_pid" ] || { kill -KILL "$inside_pid" && wait "$inside_pid"; } 2>/dev/null
    rm -rf --one-file-system "$work"
    exit "$code"
  }
  trap finish EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  chmod 755 "$work"
  cp "$here/known.txt" "$work/"
  export MILLPOND_XFSTESTS_WORK=$work
  unshare --mount --net --pid --fork --kill-child --mount-proc \
    bash "${BASH_SOURCE[0]}" "$xfstests" "$program" "$out" </dev/null &
  inside_pid=$!
  code=0
  wait "$inside_pid" || code=$?
  inside_pid=
  exit "$code"
}

# --- inside the namespaces ---

# Folders and programs at the same places on every machine, below /mnt.
furnish() {
  local xfstests=$1 program=$2 out=$3 work=$MILLPOND_XFSTESTS_WORK
  ip link set lo up
  mkdir -p "$work"/{xfstests,results,test,scratch,tmp,bin,sbin,run}
  chmod 1777 "$work/tmp"
  touch "$work/millpond"
  mount --bind "$xfstests" "$work/xfstests"
  mount --bind "$out" "$work/results"
  mount --bind "$program" "$work/millpond"
  mount --rbind "$work" /mnt
  mount --bind /mnt/tmp /tmp

  # mount(8) searches /sbin for the helper of a type. The helper adds mode and options, because some
  # tests mount with options of their own. A mount waits five seconds for the cluster, and a busy
  # machine may take longer.
  cat >/mnt/sbin/mount.fuse.millpond <<'HELPER'
#!/bin/bash
millpond() { (exec -a mount.millpond /mnt/millpond "$@"); }
for try in 1 2 3; do
  message=$(millpond "$@" -o "mode=$(cat /mnt/mode),$(cat /mnt/options),run_dir=/mnt/run,log_file=/mnt/results/mount.log" 2>&1 >/dev/null)
  code=$?
  [[ $message == *'does not answer within'* ]] || break
done
[ -z "$message" ] || echo "$message" >&2
exit $code
HELPER
  # The suite expects the type `fuse` for FUSE file systems.
  cat >/mnt/bin/df <<'DF'
#!/bin/bash
set -o pipefail
/usr/bin/df "$@" | sed 's/ fuse\.millpond / fuse /'
DF
  chmod 755 /mnt/sbin/* /mnt/bin/*
  mount -t overlay overlay -o lowerdir=/mnt/sbin:/usr/sbin /usr/sbin

  # The users of the tests, in this namespace only.
  cp /etc/passwd /etc/group /mnt/
  local id=60101 name
  for name in fsgqa 123456-fsgqa fsgqa2; do
    echo "$name:*:$id:$id::/tmp:/bin/bash" >>/mnt/passwd
    echo "$name:*:$id:" >>/mnt/group
    id=$((id + 1))
  done
  mount --bind /mnt/passwd /etc/passwd
  mount --bind /mnt/group /etc/group
}

# serve NAME PORT: starts a server and waits until it answers.
serve() {
  local log=/mnt/results/server-$1.log pid
  /mnt/millpond server --data "/mnt/data-$1:${SIZE:-8GiB}" --memory 512MiB --listen "127.0.0.1:$2" --http "" --s3 "" >"$log" 2>&1 &
  pid=$!
  until grep -q '^READY' "$log"; do
    kill -0 "$pid" 2>/dev/null || { cat "$log" >&2; fail "the server does not start"; }
    sleep 0.1
  done
}

# tree PID: the process and all its descendants.
tree() {
  local child
  echo "$1"
  for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do tree "$child"; done
}

# Ends tests that run longer than the limit. A test is a bash that runs `./tests/generic/NNN`.
watch_time() {
  local limit=${LIMIT_S:-900} test= since=0 pid found name
  while sleep 5; do
    found=$(pgrep -o -f '^(/bin/|/usr/bin/)?bash (\./|/mnt/xfstests/)tests/generic/' || true)
    if [ "$found" != "$test" ]; then
      test=$found since=$SECONDS
    elif [ -n "$test" ] && [ $((SECONDS - since)) -gt "$limit" ]; then
      name=$(tr '\0' ' ' <"/proc/$test/cmdline" | sed 's,.*tests/,,; s, .*,,') || continue
      echo "$name" >>/mnt/results/"$(cat /mnt/mode)"/over-time
      # The test itself last and gently: its trap unmounts its mounts.
      for pid in $(tree "$test" | tail -n +2); do kill -KILL "$pid" 2>/dev/null || true; done
      kill -TERM "$test" 2>/dev/null || true
      sleep 5
      for pid in $(tree "$test" | tail -n +2); do kill -KILL "$pid" 2>/dev/null || true; done
    fi
  done
}

# known MODE WHAT: lines `TEST REASON` of known.txt that hold in this mode.
known() {
  awk -v mode="$1" -v what="$2" '!/^#/ && NF && $2 == what && ($3 == "all" || $3 == mode) {
    reason = $0; sub(/^[^ ]+ +[^ ]+ +[^ ]+ +/, "", reason); print $1, reason }' /mnt/known.txt
}

# tests WORD: the tests in the last line of check.log that begins with WORD, sorted.
tests() {
  sed -n "s/^$1: //p" "$results/check.log" | tail -1 | tr ' ' '\n' | grep . | sort || true
}

# The lists of one run, as files: ran, failed, not-run, passed.
list_results() {
  results=/mnt/results/$1
  touch "$results/check.log"
  tests 'Not run' >"$results/not-run"
  tests 'Failures' >"$results/failed"
  tests 'Ran' | comm -23 - "$results/not-run" >"$results/ran"
  comm -23 "$results/ran" "$results/failed" >"$results/passed"
  known "$1" fails | cut -d' ' -f1 | sort >"$results/expected"
  comm -23 "$results/failed" "$results/expected" >"$results/unexpected"
  comm -12 "$results/failed" "$results/expected" >"$results/as-expected"
  comm -12 "$results/passed" "$results/expected" >"$results/passes-now"
}

# Prints the result of one run; fails if a test failed that is not known to fail.
summarize() {
  local mode=$1 test count reason
  list_results "$mode"
  echo
  echo "== $mode: $(wc -l <"$results/passed") passed, $(wc -l <"$results/unexpected") failed," \
    "$(wc -l <"$results/as-expected") failed as known.txt says, $(wc -l <"$results/not-run") not run by the suite," \
    "$(known "$mode" skips | wc -l) left out by known.txt"
  while read -r test; do
    echo "not run  $test  $(cat "$results/$test.notrun" 2>/dev/null || echo 'no reason given')"
  done <"$results/not-run" | sed -E 's/ +/ /g' >"$results/reasons"
  cut -d' ' -f4- "$results/reasons" | sort | uniq -c | sort -rn | while read -r count reason; do
    printf '  not run %4d  %s\n' "$count" "$reason"
  done
  known "$mode" skips | sed 's/^/  left out  /'
  known "$mode" fails | grep -F -w -f "$results/as-expected" | sed 's/^/  failed as known  /' || true
  sed 's/^/  passed, though known.txt says that it fails: /' "$results/passes-now"
  while read -r test; do
    echo "  FAILED $test$(grep -qx "$test" "$results/over-time" 2>/dev/null && echo ', which took too long'): $out/$mode/$test.out.bad, .full"
  done <"$results/unexpected"
  if grep -q '^Interrupted' "$results/check.log" || ! grep -q '^Ran: ' "$results/check.log"; then
    echo "  the suite did not reach its end: $out/$mode.log"
    return 1
  fi
  [ ! -s "$results/unexpected" ]
}

run_mode() {
  local mode=$1
  echo "$mode" >/mnt/mode
  echo "${OPTIONS:-}" >/mnt/options
  rm -rf "/mnt/results/$mode"
  mkdir -p "/mnt/results/$mode"
  cat >/mnt/local.config <<CONFIG
export FSTYP=fuse FUSE_SUBTYP=.millpond
export TEST_DEV=127.0.0.1:7440 TEST_DIR=/mnt/test
export SCRATCH_DEV=127.0.0.1:7450 SCRATCH_MNT=/mnt/scratch
export RESULT_BASE=/mnt/results/$mode
CONFIG
  known "$mode" skips | cut -d' ' -f1 >/mnt/excluded
  local chosen=(-g generic/quick)
  [ -z "${TESTS:-}" ] || read -ra chosen <<<"$TESTS"
  echo "== $mode"
  (cd /mnt/xfstests && HOST_OPTIONS=/mnt/local.config ./check -E /mnt/excluded "${chosen[@]}") 2>&1 | tee "/mnt/results/$mode.log" || true
}

inside() {
  out=$3
  trap 'exit 143' TERM
  furnish "$@"
  export PATH=/mnt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/tmp HOME=/tmp LC_ALL=C
  unset MILLPOND_ADDRESS MILLPOND_SERVER MILLPOND_TOKEN MILLPOND_RUN_DIR
  cd /mnt
  serve test 7440
  serve scratch 7450
  watch_time &
  local mode code=0
  for mode in ${MODES:-close-to-open strict}; do run_mode "$mode"; done
  for mode in ${MODES:-close-to-open strict}; do summarize "$mode" || code=1; done
  exit "$code"
}

if [ -n "${MILLPOND_XFSTESTS_WORK:-}" ]; then
  inside "$@"
else
  outside "$@"
fi
