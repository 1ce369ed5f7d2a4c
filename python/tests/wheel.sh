#!/usr/bin/env bash
# Builds the wheel for the tests, unless it is newer than its sources, and prints its path. The
# build has the profile and the features of the Rust tests, so it reuses their compiled crates and
# compiles only a part of the crates of `pip install .`. PROFILE=wheel builds the same as that
# command.
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=.venv
profile=${PROFILE:-dev}
folder=$(realpath -m "${CARGO_TARGET_DIR:-target}")/wheels/$profile

built=$(find "$folder" -name 'millpond-*.whl' -print -quit 2>/dev/null || true)
if [ -z "$built" ] || [ -n "$(find crates python Cargo.toml Cargo.lock pyproject.toml -newer "$built" -type f \
  -not -path '*/tests/*' -not -name '*.pyc' -print -quit)" ]; then
  args="--profile $profile"
  if [ "$profile" = dev ]; then
    bash crates/store/protoc.sh >&2
    args+=" --strip --features millpond-node/etcd"
  fi
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  rm -rf "$folder" "$folder.new"
  mkdir -p "$folder.new"
  "$venv/bin/python" -m pip --disable-pip-version-check -q wheel --no-deps -w "$folder.new" -C build-args="$args" . >&2
  mv "$folder.new" "$folder"
  built=$(find "$folder" -name 'millpond-*.whl' -print -quit)
fi
echo "$built"
