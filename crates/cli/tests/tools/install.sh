#!/usr/bin/env bash
# Installs the tools of the mount's tests: pjdfstest and fsx from crates.io, pinned, into
# target/tools (or the given folder), and prints that folder. Quick if they are installed already.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-${CARGO_TARGET_DIR:-$here/../../../../target}/tools}
mkdir -p "$out"
exec 9>"$out/lock"
flock 9
for tool in pjdfstest@0.2.2 fsx@0.3.2; do
  name=${tool%@*} version=${tool#*@}
  if [ -x "$out/bin/$name" ] && [ "$(cat "$out/$name.version" 2>/dev/null)" = "$version" ]; then
    continue
  fi
  echo "building $name $version: about a minute, once" >&2
  # A separate target folder: flags and lock files of this workspace do not apply. Without
  # optimization: the tools mostly wait for the mount.
  CARGO_TARGET_DIR="$out/build" cargo install --quiet --locked --debug --root "$out" --version "$version" "$name" >&2
  echo "$version" >"$out/$name.version"
done
rm -rf "$out/build"
echo "$out"
