"""The compared servers: SeaweedFS, Millpond, and plain files."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from procs import NotStarted, free_port, server

ACCESS_KEY, SECRET_KEY = "millpond", "millpond-secret"
# The backend's bucket for the bucket of a write-back server.
BEHIND = ["--backend", "slow", "--backend-bucket", "bench", "--prefix", "behind/"]
# Longest time until a server serves objects.
START_S = 60
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Side:
    """A running server."""

    name: str
    endpoint: str
    pid: int
    # Address of a Millpond server, for its commands.
    address: str = ""

    def cpu_s(self) -> float:
        """CPU seconds of the server and its child processes."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        ticks = 0
        for pid in (self.pid, *children):
            # The name of the program, in parentheses, may have spaces.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / TICKS_PER_S


def quiet_port() -> int:
    """A free port, below the system's range for outgoing connections.

    SeaweedFS takes eight consecutive ports and ends if one of them is in use.
    """
    while True:
        port = random.randrange(12_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def keys() -> dict[str, str]:
    """The environment of S3 clients."""
    return {**os.environ, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


def _shell(weed: str, master: str, filer: str, line: str) -> str:
    command = [weed, "shell", f"-master={master}", f"-filer={filer}"]
    done = subprocess.run(
        command, input=line + "\n", capture_output=True, text=True, check=False, timeout=START_S
    )
    return done.stdout


def _sync_before_answers(weed: str, master: str, filer: str) -> None:
    """Makes volume servers call fsync before a PUT is answered.

    The S3 gateway follows the rule of a path. The filer's own store (leveldb) does not have this
    option: a power failure may still lose names and places of objects.
    """
    line = "fs.configure -locationPrefix=/buckets/ -fsync -apply"
    deadline = time.monotonic() + START_S
    while '"fsync":  true' not in _shell(weed, master, filer, line):
        if time.monotonic() > deadline:
            raise NotStarted("SeaweedFS does not take its rule for fsync")
        time.sleep(0.5)


@contextlib.contextmanager
def seaweedfs(weed: str, folder: Path, *, durable: bool) -> Iterator[Side]:
    """SeaweedFS in one process on loopback; with `durable` it syncs before it answers."""
    name = "seaweedfs, fsync" if durable else "seaweedfs"
    folder = folder / name.replace(", ", "-")
    folder.mkdir(parents=True)
    identity = {
        "name": "bench",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    ports = {part: quiet_port() for part in ("master", "volume", "filer", "s3")}
    command = [weed, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}"]
    command += ["-master.telemetry=false", "-filer", "-s3", f"-s3.config={config}"]
    command += [
        "-s3.iam=false",
        "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
    ]
    command += ["-master.volumeSizeLimitMB=1024", "-volume.max=100"]
    for part, port in ports.items():
        command += [f"-{part}.port={port}", f"-{part}.port.grpc={quiet_port()}"]
    master, filer = f"127.0.0.1:{ports['master']}", f"127.0.0.1:{ports['filer']}"
    # It reads configuration from its working folder.
    command = ["env", "-C", str(folder), *command]
    with server(command, ports["s3"], folder / "weed.log", wait_s=START_S) as child:
        # The name includes the gRPC port if it is not 10,000 above.
        grpc = {part[1:].split(".")[0]: part.split("=")[1] for part in command if ".grpc=" in part}
        if durable:
            _sync_before_answers(weed, f"{master}.{grpc['master']}", f"{filer}.{grpc['filer']}")
        yield Side(name, f"http://127.0.0.1:{ports['s3']}", child.pid)


@contextlib.contextmanager
def millpond(program: str, folder: Path, size: str) -> Iterator[Side]:
    """A Millpond server with every role."""
    folder = folder / "millpond"
    folder.mkdir(parents=True)
    port, http, s3 = free_port(), free_port(), free_port()
    command = [program, "server", "--manager", "--form-nodes", "1", "--replicas", "1"]
    command += ["--data", str(folder), "--size", size, "--listen", f"127.0.0.1:{port}"]
    command += ["--http", f"127.0.0.1:{http}", "--s3", f"127.0.0.1:{s3}"]
    env = {
        **os.environ,
        "MILLPOND_S3_ACCESS_KEY": ACCESS_KEY,
        "MILLPOND_S3_SECRET_KEY": SECRET_KEY,
    }
    with server(command, s3, folder / "millpond.log", wait_s=START_S, env=env) as child:
        yield Side("millpond", f"http://127.0.0.1:{s3}", child.pid, f"127.0.0.1:{port}")


@contextlib.contextmanager
def write_back(program: str, folder: Path, size: str, behind: Side) -> Iterator[Side]:
    """A Millpond server with write-back of its bucket `bench` to that of another store."""
    with millpond(program, folder / "write-back", size) as side:
        env = {
            **os.environ,
            "MILLPOND_ADDRESS": side.address,
            "MILLPOND_S3_BACKEND_SECRET": SECRET_KEY,
        }
        to = ["--endpoint", behind.endpoint, "--access-key", ACCESS_KEY]
        for words in (["backend", "add", "slow", *to], ["bucket", "add", "bench", *BEHIND]):
            subprocess.run([program, "s3", *words], check=True, env=env, timeout=START_S)
        yield replace(side, name="millpond, write-back")


# One worker per core, and `sendfile` from the page cache. It does not verify signatures, hash or
# sync anything.
NGINX = """
daemon off;
worker_processes auto;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  sendfile on;
  tcp_nodelay on;
  keepalive_requests 1000000000;
  open_file_cache max=10000;
  client_max_body_size 0;
  client_body_buffer_size 1m;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    root {folder}/files;
    location = /bench {{ return 200; }}
    location / {{ dav_methods PUT; create_full_put_path on; }}
  }}
}}
"""


@contextlib.contextmanager
def plain_files(program: str, folder: Path) -> Iterator[Side]:
    """nginx with plain files: an upper limit for S3 servers with this generator."""
    folder = folder / "nginx"
    (folder / "files").mkdir(parents=True)
    port = free_port()
    config = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(user + NGINX.format(folder=folder, port=port))
    command = [program, "-p", str(folder), "-c", str(config)]
    with server(command, port, folder / "nginx.log", wait_s=START_S) as child:
        yield Side("plain files", f"http://127.0.0.1:{port}", child.pid)


@contextlib.contextmanager
def delayed(load: str, side: Side, milliseconds: int) -> Iterator[Side]:
    """The same server behind a proxy that delays every request."""
    port = free_port()
    faults = json.dumps({"latency_ms": [milliseconds, milliseconds]})
    target = side.endpoint.removeprefix("http://")
    command = [load, "proxy", "--listen", f"127.0.0.1:{port}", "--to", target, "--faults", faults]
    with server(command, port, Path(os.devnull)):
        yield Side(f"{side.name}, direct", f"http://127.0.0.1:{port}", side.pid)
