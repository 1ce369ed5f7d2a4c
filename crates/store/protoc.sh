#!/usr/bin/env bash
# Provides protoc and protobuf's well-known types for the build of etcd-client: installs them with
# apt if permitted, and otherwise prints instructions.
set -euo pipefail

works() {
  local folder
  folder=$(mktemp -d)
  printf 'syntax = "proto3";\nimport "google/protobuf/descriptor.proto";\n' >"$folder/a.proto"
  "${PROTOC:-protoc}" -I "$folder" -o /dev/null "$folder/a.proto" >/dev/null 2>&1
  local rc=$?
  rm -r "$folder"
  return $rc
}

if works; then exit 0; fi
if [[ $EUID -eq 0 ]] && command -v apt-get >/dev/null; then
  echo "installing protoc, which the build of etcd-client needs" >&2
  export DEBIAN_FRONTEND=noninteractive
  packages=(protobuf-compiler libprotobuf-dev)
  apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}"; } >/dev/null
fi
if ! works; then
  echo "the store's etcd engine needs protoc with protobuf's well-known types to build:" \
       "apt-get install protobuf-compiler libprotobuf-dev, or set PROTOC" >&2
  exit 1
fi
