#!/usr/bin/env bash
# Builds the etcd of the store's tests into the given folder (default target/etcd), and prints its
# path. Quick if it is built already. Needs Go; the version is pinned in go.mod, the checksums in
# go.sum.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-${CARGO_TARGET_DIR:-$here/../../../../target}/etcd}
mkdir -p "$out"
exec 9>"$out/lock"
flock 9
sum=$(cat "$here/go.mod" "$here/go.sum" "$here/main.go" | sha256sum | cut -d' ' -f1)
if [ -x "$out/etcd" ] && [ "$(cat "$out/sum" 2>/dev/null)" = "$sum" ]; then
  echo "$out/etcd"
  exit 0
fi
if ! command -v go >/dev/null; then
  echo "etcd's tests need Go to build etcd (https://go.dev), or MILLPOND_ETCD=path to an etcd 3.5;" \
       "NO_ETCD=1 skips them" >&2
  exit 1
fi
echo "building etcd $(sed -n 's/^require go.etcd.io.* //p' "$here/go.mod"): about a minute, once" >&2
(cd "$here" && go build -mod=readonly -buildvcs=false -trimpath -ldflags='-s -w' -o "$out/etcd.new" .)
mv "$out/etcd.new" "$out/etcd"
echo "$sum" >"$out/sum"
echo "$out/etcd"
