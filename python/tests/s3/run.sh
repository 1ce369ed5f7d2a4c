#!/usr/bin/env bash
# Real S3 clients against an endpoint: boto3, aws cli, s3cmd, s5cmd and rclone.
#   bash python/tests/s3/run.sh seaweedfs                       starts SeaweedFS, to prove the tests
#   bash python/tests/s3/run.sh millpond target/debug/millpond  starts a Millpond server
#   AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=... bash python/tests/s3/run.sh http://HOST:PORT
# BACKED=write-back, write-through or transient: the buckets of the Millpond server have SeaweedFS
# as their backend; after each test it must have the objects that clients see. Further arguments go
# to pytest. Clients come from PyPI into .venv-s3, pinned; rclone is built with Go into
# target/tools, once (NO_RCLONE=1 skips it).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
here=python/tests/s3
venv=.venv-s3

server=("--s3-server" "${1:?seaweedfs, millpond PROGRAM or a URL}")
case $1 in
  seaweedfs) server+=("--s3-program" "$(bash bench/s3/seaweedfs.sh)") ;;
  millpond) server+=("--s3-program" "${2:?the program}"); shift ;;
esac
shift
if [[ -n ${BACKED:-} ]]; then
  server+=("--backed" "$BACKED" "--weed" "$(bash bench/s3/seaweedfs.sh)")
fi

bash "$here/environment.sh"

rclone=none
if [[ -z ${NO_RCLONE:-} ]]; then
  version=$(sed -n 's,.*rclone/rclone v,,p' "$here/rclone/go.mod" | head -1)
  rclone=$(realpath -m "${CARGO_TARGET_DIR:-target}/tools/rclone-$version")
  if [[ ! -x $rclone || $rclone -ot $here/rclone/main.go ]]; then
    command -v go >/dev/null || { echo "s3 clients: go is missing, or set NO_RCLONE=1" >&2; exit 1; }
    echo "building rclone $version with the backends s3 and local: about a minute, once" >&2
    (cd "$here/rclone" && go build -trimpath -ldflags='-s -w' -o "$rclone" .)
  fi
else
  echo "NO_RCLONE=1: rclone is skipped"
fi

exec "$venv/bin/python" -B -m pytest -p no:cacheprovider "$here" "${server[@]}" --rclone "$rclone" "$@"
