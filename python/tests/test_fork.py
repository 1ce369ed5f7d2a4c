"""A forked child works, and neither uses, breaks nor waits for anything of its parent."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import random
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import millpond
import pytest
from conftest import Server
from millpond import errors, files
from test_files import until_it_takes_files

FORKS = 150
KEYS = [b"k%02d" % n for n in range(64)]
SIZE = 4096
LIMIT_S = 120.0


def value_of(key: bytes, size: int = SIZE) -> bytes:
    return random.Random(key).randbytes(size)


class Child:
    """A forked process that runs ``find``; a child that hangs fails the test."""

    def __init__(self, find: Callable[[], Any]) -> None:
        self.results, into = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                found = (True, find())
            except BaseException as error:
                found = (False, f"{type(error).__name__}: {error}")
            os.write(into, pickle.dumps(found))
            os._exit(0)
        os.close(into)

    def result(self) -> Any:
        ready, _, _ = select.select([self.results], [], [], LIMIT_S)
        if not ready:
            os.kill(self.pid, signal.SIGKILL)
        parts = []
        while part := os.read(self.results, 1 << 16):
            parts.append(part)
        os.close(self.results)
        _, status = os.waitpid(self.pid, 0)
        assert ready, "the child hangs"
        assert status == 0, f"the child died of {status}"
        works, found = pickle.loads(b"".join(parts))
        assert works, found
        return found


def wrong_ones(space: millpond.Store, keys: list[bytes]) -> list[bytes]:
    """The keys with an answer that is not their value."""
    wrong = []
    for key in keys:
        room = bytearray(SIZE)
        if space.get([key], [room]) != [SIZE] or room != value_of(key):
            wrong.append(key)
    return wrong


@pytest.fixture(scope="session")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "tls.crt", folder / "tls.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-keyout", str(key), "-out", str(cert), "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run(command, check=True, capture_output=True)
    running = Server(folder, "--tls-cert", str(cert), "--tls-key", str(key))
    running.start()
    yield running, cert
    running.close()


@pytest.fixture(params=["tcp", "unix", "shm", "tls"])
def client(request: pytest.FixtureRequest) -> Iterator[millpond.Client]:
    options: dict[str, Any] = {"transport": request.param}
    if request.param == "tls":
        server, ca = request.getfixturevalue("tls_server")
        options = {"transport": "tcp", "tls_ca": ca}
    else:
        server = request.getfixturevalue("shared_server")
    # With one connection every call of the child would take the parent's connection.
    with millpond.Client(server.address, connections=1, **options) as opened:
        assert opened.transport == request.param
        yield opened


@pytest.fixture
def space(client: millpond.Client) -> millpond.Namespace:
    filled = client.namespace("forks")
    filled.put(KEYS, [value_of(key) for key in KEYS])
    return filled


def test_parent_and_child_read_their_own_values(space: millpond.Namespace) -> None:
    for turn in range(FORKS):
        space.get([KEYS[0]], [bytearray(SIZE)])
        rng = random.Random(turn)
        ours, theirs = rng.sample(KEYS, 32), rng.sample(KEYS, 32)
        child = Child(lambda keys=theirs: wrong_ones(space, keys))
        assert wrong_ones(space, ours) == []
        assert child.result() == []
    assert wrong_ones(space, KEYS) == []


def test_a_child_of_a_child_works_too(space: millpond.Namespace) -> None:
    def forks_again() -> list[bytes]:
        # One child of this child before it uses the client, and one after.
        wrong = Child(lambda: wrong_ones(space, KEYS)).result()
        wrong += wrong_ones(space, KEYS)
        grandchild = Child(lambda: wrong_ones(space, KEYS))
        return wrong + wrong_ones(space, KEYS) + grandchild.result()

    for _ in range(10):
        child = Child(forks_again)
        assert wrong_ones(space, KEYS) == []
        assert child.result() == []


def test_threads_of_the_parent_are_in_calls(client: millpond.Client) -> None:
    space = client.namespace("forks")
    space.put(KEYS, [value_of(key) for key in KEYS])
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            wrong.extend(wrong_ones(space, KEYS[:8]))

    def read_side_by_side() -> list[bytes]:
        found: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: found.extend(wrong_ones(space, KEYS))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    # More threads than connections: some hold locks, others wait for them or are in calls.
    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(40):
            assert Child(read_side_by_side).result() == []
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def metric(server: Server, name: str) -> int:
    line = next(x for x in server.metrics().splitlines() if x.split(" ")[0] == name)
    return int(line.rsplit(" ", 1)[1])


@pytest.mark.parametrize("transport", ["tcp", "unix", "shm"])
def test_the_parent_keeps_its_connection_and_ends_it_alone(server, transport: str) -> None:
    client = millpond.Client(server.address, transport=transport, connections=1)
    space = client.namespace("forks")
    space.put(KEYS, [value_of(key) for key in KEYS])
    before = metric(server, "millpond_connections")
    made = metric(server, "millpond_connections_total")

    def uses_and_drops() -> list[bytes]:
        nonlocal client, space
        wrong = wrong_ones(space, KEYS)
        client.close()
        del client, space
        return wrong

    for _ in range(5):
        assert Child(uses_and_drops).result() == []
        assert Child(lambda: client.close()).result() is None
    ours = metric(server, "millpond_connections_total") - made
    assert wrong_ones(space, KEYS) == []
    again = metric(server, "millpond_connections_total") - made
    assert again == ours, "the parent connected again"

    # A living child that does not use the client keeps none of its connections open.
    until, release = os.pipe()
    child = Child(lambda: os.close(release) or os.read(until, 1))
    assert metric(server, "millpond_connections") >= before > 0
    client.close()
    deadline = time.monotonic() + 30
    while metric(server, "millpond_connections") > before - 1:
        assert time.monotonic() < deadline, "the child keeps the parent's connection open"
        time.sleep(0.05)
    os.close(release)
    os.close(until)
    child.result()


_inherited: millpond.Namespace | None = None


def _begin(client: millpond.Client) -> None:
    global _inherited  # noqa: PLW0603
    _inherited = client.namespace("forks")


def _read(key: bytes) -> bool:
    assert _inherited is not None
    return wrong_ones(_inherited, [key]) == []


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes_just_work(shared_server, method: str) -> None:
    with millpond.Client(shared_server.address) as client:
        _begin(client)
        assert _inherited is not None
        _inherited.put(KEYS, [value_of(key) for key in KEYS])
        context = multiprocessing.get_context(method)
        # A forked pool inherits the client; the other pools receive it.
        given = {} if method == "fork" else {"initializer": _begin, "initargs": (client,)}
        with context.Pool(3, **given) as pool:
            assert all(pool.map(_read, KEYS * 4, chunksize=8))
            assert all(_read(key) for key in KEYS)


def test_a_client_of_a_cluster(cluster) -> None:
    with millpond.Client(cluster.address, deadline_ms=20_000) as client:
        space = client.namespace("forks")
        assert space.put(KEYS, [value_of(key) for key in KEYS])
        stored = [key for key in KEYS if space.contains([key]) == [True]]
        assert stored == KEYS
        for turn in range(30):

            def writes(turn: int = turn) -> list[bytes]:
                own = [b"c%d-%d" % (turn, n) for n in range(8)]
                said = space.put(own, [value_of(key) for key in own])
                assert said == ["stored"] * 8, said
                return wrong_ones(space, KEYS + own)

            child = Child(writes)
            own = [b"p%d-%d" % (turn, n) for n in range(8)]
            assert space.put(own, [value_of(key) for key in own]) == ["stored"] * 8
            assert wrong_ones(space, KEYS + own) == []
            assert child.result() == []


def test_a_store_that_fails_open_and_pipelines(shared_server, tmp_path: Path) -> None:
    with millpond.Client(shared_server.address) as client:
        opened = client.fail_open("forks", writes=2)
        space = client.namespace("forks")
        space.put(KEYS, [value_of(key) for key in KEYS])
        stages = [
            opened,
            millpond.pipeline("Cache|Millpond", namespace=space, cache_bytes=1 << 20),
            millpond.pipeline("Cache|Posix", folder=tmp_path, cache_bytes=1 << 20),
        ]
        stop = threading.Event()

        def use(store: millpond.Store) -> None:
            n = 0
            while not stop.is_set():
                store.put([b"t%d" % n], [bytes(SIZE)])
                store.get([b"t%d" % n], [bytearray(SIZE)])
                n += 1

        # Always as many puts in flight as possible.
        threads = [threading.Thread(target=use, args=(store,)) for store in stages * 2]
        for thread in threads:
            thread.start()

        def writes(turn: int) -> list[bytes]:
            wrong = []
            for store in stages:
                own = [b"c%d-%d" % (turn, n) for n in range(4)]
                for key in own:
                    said = store.put([key], [value_of(key)])
                    assert said in (["stored"], ["exists"]), said
                wrong += wrong_ones(store, own)
            return wrong

        try:
            for turn in range(20):
                assert Child(lambda turn=turn: writes(turn)).result() == []
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@pytest.fixture(params=["tcp", "shm"])
def volume(request: pytest.FixtureRequest, cluster) -> Iterator[files.Volume]:
    options = {"transport": request.param, "deadline_ms": 20_000}
    with files.Volume(cluster.address, name="parent", **options) as opened:
        until_it_takes_files(opened)
        opened.makedirs("/forks", exist_ok=True)
        yield opened


def test_files_are_open_in_the_child_too(volume: files.Volume) -> None:
    body = value_of(b"file", 300_000)
    with volume.open("/forks/f", "w+") as file:
        file.pwrite(body, 0)
        volume.unlink("/forks/f")

        def uses() -> tuple[bool, bool]:
            same = file.pread(0, 1 << 20) == body
            with volume.open("/forks/child", "w+") as own:
                own.pwrite(b"of the child", 0)
                [length] = own.submit_read([(0, bytearray(12))]).wait(60)
            file.close()
            volume.close()
            return same, length == 12

        for _ in range(5):
            child = Child(uses)
            assert file.pread(0, 1 << 20) == body
            assert child.result() == (True, True)
        # The child ended its own session only: the file without a name still exists.
        time.sleep(0.5)
        assert file.pread(0, 1 << 20) == body
        assert volume.stat("/forks/child").st_size == 12


def test_threads_of_a_volume_are_busy(volume: files.Volume) -> None:
    body = value_of(b"busy", 1 << 20)
    with volume.open("/forks/busy", "w+") as file:
        file.pwrite(body, 0)
        stop = threading.Event()

        def use() -> None:
            while not stop.is_set():
                batches = [file.submit_read([(0, bytearray(1 << 20))]) for _ in range(8)]
                assert [batch.wait() for batch in batches] == [[1 << 20]] * 8
                assert volume.stat("/forks/busy").st_size == 1 << 20

        threads = [threading.Thread(target=use) for _ in range(3)]
        for thread in threads:
            thread.start()

        def reads() -> bool:
            room = bytearray(1 << 20)
            file.submit_read([(0, room)]).wait(60)
            return room == body and volume.stat("/forks/busy").st_size == 1 << 20

        try:
            for _ in range(20):
                assert Child(reads).result() is True
        finally:
            stop.set()
            for thread in threads:
                thread.join()


def test_a_batch_of_the_parent_says_so(volume: files.Volume) -> None:
    with volume.open("/forks/batch", "w+") as file:
        file.pwrite(b"x" * 4096, 0)
        batch = file.submit_read([(0, bytearray(4096))])

        def asks() -> list[str]:
            said = []
            for call in (batch.wait, batch.done):
                with pytest.raises(errors.InvalidArgument) as raised:
                    call()
                said.append(str(raised.value))
            return said

        for text in Child(asks).result():
            assert "before the fork" in text and "submit it again" in text
        assert batch.wait(60) == [4096]


def test_registered_memory_becomes_the_childs_own(cluster) -> None:
    with files.Volume(cluster.address, transport="shm", deadline_ms=20_000) as volume:
        until_it_takes_files(volume)
        volume.makedirs("/forks", exist_ok=True)
        region = volume.register(1 << 20)
        assert region.shared
        body = value_of(b"region", 1 << 20)
        region.memory[:] = body

        def spoils() -> tuple[bool, bool, bool]:
            same, shared = bytes(region.memory) == body, region.shared
            region.memory[:] = bytes(1 << 20)
            with volume.open("/forks/zeros", "w+") as file:
                file.pwrite(region.memory, 0)
                zeros = file.pread(0, 1 << 20) == bytes(1 << 20)
            return same, shared, zeros

        with volume.open("/forks/region", "w+") as file:
            child = Child(spoils)
            file.pwrite(region.memory, 0)
            assert child.result() == (True, False, True)
            assert region.shared
            assert bytes(region.memory) == body
            file.pwrite(region.memory, 0)
            assert file.pread(0, 1 << 20) == body


def _stat_in_child(volume: files.Volume) -> int:
    return volume.stat("/ready").st_size


def test_a_volume_is_sent_to_a_process_that_is_started(cluster) -> None:
    with files.Volume(cluster.address, deadline_ms=20_000) as volume:
        until_it_takes_files(volume)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(_stat_in_child, (volume,)) == 3
        with volume.open("/ready") as file, pytest.raises(TypeError, match="pickle"):
            pickle.dumps(file)


def test_asyncio_in_a_child(shared_server) -> None:
    client = millpond.AsyncClient(shared_server.address, connections=2)

    async def use() -> list[bytes]:
        space = await client.namespace("forks")
        await space.put(KEYS, [value_of(key) for key in KEYS])
        got = await asyncio.gather(*(space.get_bytes(key) for key in KEYS))
        return [key for key, value in zip(KEYS, got) if value != value_of(key)]

    assert asyncio.run(use()) == []
    for _ in range(5):
        assert Child(lambda: asyncio.run(use())).result() == []
    assert asyncio.run(use()) == []
    asyncio.run(client.close())
    with pytest.raises(errors.Unreachable, match="closed"):
        asyncio.run(client.namespaces())


def test_a_closed_client_is_closed_in_the_child(shared_server) -> None:
    client = millpond.Client(shared_server.address)
    space = client.namespace("forks")
    client.close()

    def asks() -> bool:
        with pytest.raises(errors.Unreachable, match="closed"):
            space.contains([b"k"])
        return True

    assert Child(asks).result()
    assert asks()


def test_a_data_loader_just_works(shared_server) -> None:
    torch = pytest.importorskip("torch")

    with millpond.Client(shared_server.address) as client:
        space = client.namespace("forks")
        space.put(KEYS, [value_of(key) for key in KEYS])

        class Blocks(torch.utils.data.Dataset):
            def __len__(self) -> int:
                return len(KEYS)

            def __getitem__(self, index: int) -> int:
                return int(wrong_ones(space, [KEYS[index]]) == [])

        loader = torch.utils.data.DataLoader(Blocks(), batch_size=8, num_workers=3)
        for _ in range(3):
            assert sum(int(batch.sum()) for batch in loader) == len(KEYS)
            assert wrong_ones(space, KEYS) == []
