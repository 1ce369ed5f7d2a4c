#!/usr/bin/env bash
# Tests an installed package, given the folder with its `python` and `millpond`: the command has all
# features of the binary, and Python reads a value that the shell stored.
set -euo pipefail
bin=$(realpath "$1")
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$folder"' EXIT
cd "$folder"

"$bin/millpond" --version
"$bin/millpond" man --out man
[ -s man/millpond-kv-put.1 ]
# No server has that address: only the reason of the failure matters.
said=$(timeout 5 "$bin/millpond" server --manager --data records --listen 127.0.0.1:0 --http "" --s3 "" \
  --store etcd://127.0.0.1:1 2>&1 || true)
if [[ $said == *"this build has no etcd"* ]]; then echo "$said"; exit 1; fi

export MILLPOND_ADDRESS="unix:$folder/socket"
"$bin/millpond" server --data data --size 1GiB --memory 256MiB --listen "" --http "" --socket "$folder/socket" >log 2>&1 &
server=$!
for _ in $(seq 300); do
  grep -q '^READY$' log && break
  kill -0 "$server" || { cat log; exit 1; }
  sleep 0.1
done
"$bin/millpond" kv put greeting hello
"$bin/python" - <<'PYTHON'
import os
import millpond

with millpond.Client(os.environ["MILLPOND_ADDRESS"]) as client:
    assert client.namespace("default").get_bytes(b"greeting") == b"hello"
print(f"millpond {millpond.__version__}: import, server and command work")
PYTHON
