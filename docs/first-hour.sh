#!/usr/bin/env bash
# Goes through README.md from top to bottom, as a new user does in the first hour: it takes the code
# blocks unchanged and runs them one after the other in one folder. The first failure ends it.
#   bash docs/first-hour.sh [FOLDER]      with the `millpond`, `python3` and `aws` of PATH
# It omits `make demo`, `make test` and `make install`, which CI runs separately, and `vllm serve`
# (python/tests/vllm). The default ports must be free; root gets a separate network namespace.
# NO_FUSE=1 skips the mount.
set -euo pipefail
readme=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../README.md")
if [ "$(id -u)" = 0 ] && [ -z "${MILLPOND_FIRST_HOUR:-}" ]; then
  exec env MILLPOND_FIRST_HOUR=1 unshare --net --mount bash "${BASH_SOURCE[0]}" "$@"
fi
if [ -n "${MILLPOND_FIRST_HOUR:-}" ]; then
  ip link set lo up
  # Root needs no sudo.
  sudo() { [ "$1" != -E ] || shift; "$@"; }
  export -f sudo
fi
for program in millpond python3 aws curl git; do
  command -v "$program" >/dev/null || { echo "first hour: '$program' is not in PATH" >&2; exit 1; }
done

folder=${1:-$(mktemp -d "${TMPDIR:-/tmp}/first-hour.XXXXXX")}
mkdir -p "$folder"
folder=$(realpath "$folder")
server=
finish() {
  code=$?
  set +e
  [ -z "$server" ] || { kill "$server"; wait "$server"; }
  cd "$folder" || exit 1
  mountpoint -q pond && millpond umount pond
  [ ! -d .millpond-dev ] || millpond dev down --purge
  cd /
  if [ "$code" = 0 ]; then rm -rf "$folder"; else echo "first hour: failed; its files are in $folder" >&2; fi
  exit "$code"
} 2>/dev/null
trap finish EXIT

# block LANGUAGE TEXT: the first block of README in this language that contains this text.
block() {
  awk -v open="\`\`\`$1" -v wanted="$2" '
    !inside && $0 == open { inside = 1; text = ""; next }
    inside && /^```$/ { inside = 0; if (index(text, wanted)) { printf "%s", text; found = 1; exit } }
    inside { text = text $0 "\n" }
    END { if (!found) { print "README.md has no block with: " wanted > "/dev/stderr"; exit 1 } }' "$readme"
}

step() {
  echo "== $1"
}

# run TEXT: runs the shell block of README that contains this text.
run() {
  local commands
  commands=$(block sh "$1")
  bash -eu -c "$commands"
}

# Starts a server and waits until it reports that it is ready.
serve() {
  "$@" > server.log 2>&1 &
  server=$!
  until grep -q READY server.log; do
    kill -0 "$server" 2>/dev/null || { cat server.log >&2; exit 1; }
    sleep 0.1
  done
}

stop() {
  kill "$server"
  wait "$server"
  server=
}

cd "$folder"
unset MILLPOND_ADDRESS MILLPOND_SERVER MILLPOND_TOKEN AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY

step "a server that needs no configuration"
serve millpond server
step "Python"
python3 -c "$(block python "blocks.put(")"
step "the shell"
run "millpond kv put greeting hello
millpond kv get"
step "S3"
run "millpond s3 keys add me"
stop
millpond engine inspect ./millpond-data > inspected.txt
step "a cluster on one machine"
run "millpond dev kill n2"
if [ -z "${NO_FUSE:-}" ]; then
  step "files"
  git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first
  run "git clone . pond/repo"
  step "files without the mount"
  (eval "$(millpond dev env)" && python3 -c "$(block python "files.Volume(")")
  millpond dev down --purge
fi
echo "first hour: README.md holds"
