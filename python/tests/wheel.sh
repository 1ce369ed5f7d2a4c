#!/usr/bin/env bash
# Builds the wheel that is tested, unless it is newer than its sources, and prints its path.
# It is built with the profile and the features that the tests of Rust have, and so from what these have compiled: of all that
# `pip install .` would compile only a part is compiled here. PROFILE=wheel builds what that builds.
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
