"""One class per store: puts and gets of a batch of equal-sized values by its Python client."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from echo_server import GET, HEAD, KEY_BYTES, PUT, read_into
from procs import NotStarted, free_port, server

HERE = Path(__file__).resolve().parent
Array = Any


class Backend(Protocol):
    """A store that keeps values under keys."""

    name: str

    def put(self, keys: Sequence[str], values: Sequence[Array]) -> None:
        """Stores the values; raises if one was not stored."""

    def get(self, keys: Sequence[str], into: Sequence[Array]) -> None:
        """Reads the values into the arrays; raises if one is missing."""

    def drop(self, keys: Sequence[str]) -> None:
        """Removes values to make room."""


class Wrong(Exception):
    """A store did not do the requested work."""


def expect(done: bool, what: str) -> None:
    """Raises :class:`Wrong` unless the condition holds."""
    if not done:
        raise Wrong(what)


class Memcpy:
    """The machine's memory: a copy from a pool as large as the working set."""

    name = "memcpy"

    def __init__(self) -> None:
        self._values: dict[str, Array] = {}

    def put(self, keys: Sequence[str], values: Sequence[Array]) -> None:
        for key, value in zip(keys, values):
            self._values[key] = value.copy()

    def get(self, keys: Sequence[str], into: Sequence[Array]) -> None:
        for key, room in zip(keys, into):
            np.copyto(room, self._values[key])

    def drop(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._values.pop(key, None)


class Echo:
    """A bare socket: the floor of a Python client."""

    name = "echo"

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answer = memoryview(bytearray(16))

    def _ask(self, op: int, size: int, count: int) -> bytes:
        return HEAD.pack(op, size, count).ljust(KEY_BYTES * count, b"k")

    def put(self, keys: Sequence[str], values: Sequence[Array]) -> None:
        parts = [self._ask(PUT, values[0].nbytes, len(keys)), *(v.data for v in values)]
        sent = self._socket.sendmsg(parts)
        for part in parts:
            view = memoryview(part).cast("B")
            if sent < len(view):
                self._socket.sendall(view[sent:])
                sent = 0
            else:
                sent -= len(view)
        read_into(self._socket, self._answer)

    def get(self, keys: Sequence[str], into: Sequence[Array]) -> None:
        self._socket.sendall(self._ask(GET, into[0].nbytes, len(keys)))
        for room in into:
            read_into(self._socket, room.data)

    def drop(self, keys: Sequence[str]) -> None:
        pass


class Redis:
    """redis-py with hiredis; batches are pipelines without a transaction."""

    name = "redis"

    def __init__(self, port: int) -> None:
        import redis

        self._redis = redis.Redis(host="127.0.0.1", port=port)
        self._redis.ping()

    def put(self, keys: Sequence[str], values: Sequence[Array]) -> None:
        if len(keys) == 1:
            expect(bool(self._redis.set(keys[0], values[0].data)), "redis set")
            return
        pipe = self._redis.pipeline(transaction=False)
        for key, value in zip(keys, values):
            pipe.set(key, value.data)
        expect(all(pipe.execute()), "redis set")

    def get(self, keys: Sequence[str], into: Sequence[Array]) -> None:
        if len(keys) == 1:
            answers = [self._redis.get(keys[0])]
        else:
            pipe = self._redis.pipeline(transaction=False)
            for key in keys:
                pipe.get(key)
            answers = pipe.execute()
        # Its client only returns new bytes objects: they are copied to the caller's memory.
        for room, answer in zip(into, answers):
            expect(answer is not None and len(answer) == room.nbytes, "redis get")
            room.data[:] = answer

    def drop(self, keys: Sequence[str]) -> None:
        self._redis.unlink(*keys)


class Mooncake:
    """Mooncake store over TCP, values in another process, buffers registered."""

    name = "mooncake"

    def __init__(self, master_port: int) -> None:
        from mooncake.store import MooncakeDistributedStore

        self._store = MooncakeDistributedStore()
        code = self._store.setup(
            f"127.0.0.1:{free_port()}",
            "P2PHANDSHAKE",
            0,
            64 << 20,
            "tcp",
            "",
            f"127.0.0.1:{master_port}",
        )
        expect(code == 0, f"mooncake setup: {code}")
        self._known: set[tuple[int, int]] = set()

    def register(self, block: Array) -> None:
        """Registers a block of memory with values at the transfer engine."""
        place = (block.ctypes.data, block.nbytes)
        if place not in self._known:
            expect(self._store.register_buffer(*place) == 0, "mooncake register_buffer")
            self._known.add(place)

    def put(self, keys: Sequence[str], values: Sequence[Array]) -> None:
        pointers = [v.ctypes.data for v in values]
        sizes = [v.nbytes for v in values]
        if len(keys) == 1:
            expect(self._store.put_from(keys[0], pointers[0], sizes[0]) == 0, "mooncake put")
            return
        answers = self._store.batch_put_from(list(keys), pointers, sizes)
        expect(all(a == 0 for a in answers), "mooncake put")

    def get(self, keys: Sequence[str], into: Sequence[Array]) -> None:
        pointers = [v.ctypes.data for v in into]
        sizes = [v.nbytes for v in into]
        if len(keys) == 1:
            answers = [self._store.get_into(keys[0], pointers[0], sizes[0])]
        else:
            answers = self._store.batch_get_into(list(keys), pointers, sizes)
        expect(list(answers) == sizes, f"mooncake get: {answers[:3]}")

    def drop(self, keys: Sequence[str]) -> None:
        self._store.batch_remove(list(keys), True)

    def close(self) -> None:
        self._store.close()


class Millpond:
    """Millpond over TCP or over shared memory."""

    def __init__(self, port: int, transport: str) -> None:
        import millpond

        self.name = f"millpond {transport}"
        self._client = millpond.Client(
            f"127.0.0.1:{port}", transport=transport, deadline_ms=20_000, connections=1
        )
        self._namespace = self._client.namespace(f"bench-{transport}", ack="memory")

    def put(self, keys: Sequence[str], values: Sequence[Array]) -> None:
        answers = self._namespace.put([k.encode() for k in keys], values)
        expect(all(a == "stored" for a in answers), f"millpond put: {answers[:3]}")

    def get(self, keys: Sequence[str], into: Sequence[Array]) -> None:
        sizes = self._namespace.get([k.encode() for k in keys], into)
        # Buffers are arrays, or lists of (address, length).
        want = [sum(n for _, n in r) if isinstance(r, list) else r.nbytes for r in into]
        good = list(sizes) == want
        expect(good, f"millpond get: {sizes[:3]}")

    def drop(self, keys: Sequence[str]) -> None:
        self._namespace.delete([k.encode() for k in keys])

    def close(self) -> None:
        self._client.close()


@contextlib.contextmanager
def echo(logs: Path) -> Iterator[list[Backend]]:
    """The echo server and its client."""
    port = free_port()
    command = [sys.executable, str(HERE / "echo_server.py"), str(port)]
    with server(command, port, logs / "echo.log"):
        yield [Echo(port)]


@contextlib.contextmanager
def redis(logs: Path) -> Iterator[list[Backend]]:
    """A Redis server without persistence, and its client."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    command += ["--appendonly", "no", "--dir", str(logs), "--daemonize", "no"]
    with server(command, port, logs / "redis.log"):
        yield [Redis(port)]


@contextlib.contextmanager
def mooncake(logs: Path) -> Iterator[list[Backend]]:
    """A Mooncake master, a process that lends 2 GB, and the client."""
    try:
        import mooncake.store
    except ImportError as error:
        raise NotStarted(f"mooncake is not installed: {error}") from error
    tools = Path(mooncake.store.__file__).parent
    master, metrics, client = free_port(), free_port(), free_port()
    quiet = dict(os.environ, GLOG_minloglevel="2", MC_LOG_LEVEL="ERROR")
    os.environ.update(GLOG_minloglevel="2", MC_LOG_LEVEL="ERROR")
    master_command = [
        str(tools / "mooncake_master"),
        f"--rpc_port={master}",
        "--rpc_address=127.0.0.1",
        "--metrics_host=127.0.0.1",
        f"--metrics_port={metrics}",
    ]
    client_command = [
        str(tools / "mooncake_client"),
        "--host=127.0.0.1",
        f"--port={client}",
        "--metadata_server=P2PHANDSHAKE",
        f"--master_server_address=127.0.0.1:{master}",
        "--global_segment_size=2GB",
        "--local_buffer_size=0",
        "--protocol=tcp",
    ]
    with (
        server(master_command, master, logs / "mooncake-master.log", env=quiet),
        server(client_command, client, logs / "mooncake-client.log", env=quiet),
    ):
        store = Mooncake(master)
        try:
            yield [store]
        finally:
            store.close()


@contextlib.contextmanager
def millpond_server(binary: Path, data: Path, logs: Path, *options: str) -> Iterator[int]:
    """A Millpond server of its own; yields its port."""
    port, http = free_port(), free_port()
    command = [str(binary), "server", "--data", str(data), *options]
    command += ["--listen", f"127.0.0.1:{port}", "--http", f"127.0.0.1:{http}"]
    with server(command, port, logs / f"millpond-{port}.log", wait_s=60):
        yield port


@contextlib.contextmanager
def millpond(binary: Path, data: Path, logs: Path) -> Iterator[list[Backend]]:
    """A Millpond server, and its client over both transports."""
    with millpond_server(binary, data, logs, "--memory", "2GiB", "--size", "8GiB") as port:
        clients = [Millpond(port, "tcp"), Millpond(port, "shm")]
        try:
            yield clients
        finally:
            for client in clients:
                client.close()
