"""The package against a real server, over every transport."""

from __future__ import annotations

import asyncio
import ctypes
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import millpond
import numpy as np
import pytest

TRANSPORTS = ["tcp", "unix", "shm"]


@pytest.fixture(params=TRANSPORTS)
def client(request: pytest.FixtureRequest, shared_server) -> Iterator[millpond.Client]:
    with millpond.Client(shared_server.address, transport=request.param) as opened:
        yield opened


@pytest.fixture
def space(client: millpond.Client, request: pytest.FixtureRequest) -> millpond.Namespace:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return client.namespace(name)


def value_of(key: bytes, size: int) -> bytes:
    return random.Random(key).randbytes(size)


def test_auto_picks_shared_memory_on_the_same_host(shared_server) -> None:
    with millpond.Client(shared_server.address) as client:
        assert client.transport == "shm"


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 65_537, 1 << 20, (5 << 20) + 3])
def test_values_come_back(space: millpond.Namespace, size: int) -> None:
    keys = [b"k%d" % i for i in range(5)]
    values = [value_of(key, size) for key in keys]
    assert space.put(keys, values) == ["stored"] * 5
    assert space.put(keys[:1], [b"other"]) == ["exists"]
    into = [bytearray(size) for _ in keys]
    assert space.get(keys, into) == [size] * 5
    assert [bytes(b) for b in into] == values
    assert space.get_bytes(b"k1") == values[1]
    assert space.get_bytes(b"absent") is None
    assert space.contains([*keys, b"absent"]) == [True] * 5 + [False]


def test_a_batch_mixes_hits_and_misses(space: millpond.Namespace) -> None:
    space.put([b"a", b"c"], [b"x" * 10, b"y" * 20])
    into = [bytearray(32) for _ in range(4)]
    assert space.get([b"a", b"b", b"c", b"d"], into) == [10, -1, 20, -1]
    assert into[2][:20] == b"y" * 20
    assert space.get([b"c"], [bytearray(19)]) == [-1], "a value longer than its room is a miss"


def test_numpy_and_raw_segments(space: millpond.Namespace) -> None:
    source = np.arange(100_000, dtype=np.float32)
    assert space.put([b"n"], [source]) == ["stored"]
    room = np.zeros_like(source)
    assert space.get([b"n"], [room]) == [source.nbytes]
    assert np.array_equal(room, source)

    parts = [ctypes.create_string_buffer(n) for n in (1, 70_000, 329_999)]
    segments = [(ctypes.addressof(part), len(part)) for part in parts]
    assert space.get([b"n"], [segments]) == [400_000]
    assert b"".join(bytes(part) for part in parts) == source.tobytes()
    assert space.put([b"s"], [segments]) == ["stored"]
    assert space.get_bytes(b"s") == source.tobytes()


def test_memory_that_cannot_be_used_is_refused(space: millpond.Namespace) -> None:
    with pytest.raises(BufferError, match="writable"):
        space.get([b"a"], [b"read only"])
    with pytest.raises(BufferError, match="contiguous"):
        space.put([b"a"], [np.zeros((10, 10))[:, ::2]])
    with pytest.raises(ValueError, match="keys"):
        space.put([b"a", b"b"], [b"one"])
    with pytest.raises((BufferError, TypeError)):
        space.put([b"a"], [42])


def test_limits_are_named(space: millpond.Namespace) -> None:
    with pytest.raises(millpond.InvalidArgument, match="128"):
        space.contains([b"x" * 129])
    with pytest.raises(millpond.InvalidArgument, match="empty"):
        space.contains([b""])
    huge = np.empty((64 << 20) + 1, np.uint8)
    with pytest.raises(millpond.InvalidArgument, match="64 MiB"):
        space.put([b"huge"], [huge])


def test_prefixes_are_counted_and_leased(space: millpond.Namespace) -> None:
    keys = [b"block-%d" % i for i in range(40)]
    leaders = [keys[i - i % 16] for i in range(40)]
    space.put(keys[:30], [b"v"] * 30, leaders="runs")
    assert space.match_prefix(keys, lease_ms=1000, leaders="runs") == 30
    assert space.match_prefix(keys[1:], leaders=leaders[1:]) == 29
    assert space.contains(keys, leaders="runs") == [True] * 30 + [False] * 10
    into = [bytearray(1) for _ in keys]
    assert space.get(keys, into, leaders=leaders) == [1] * 30 + [-1] * 10
    assert space.get(keys, into, leaders="runs") == [1] * 30 + [-1] * 10
    assert space.delete([keys[3]], leaders=[leaders[3]]) == [True]
    assert space.match_prefix(keys, leaders="runs") == 3


def test_leaders_mean_the_same_in_every_verb(space: millpond.Namespace) -> None:
    keys = [b"own-%d" % i for i in range(20)]
    assert space.put(keys, [b"v"] * 20) == ["stored"] * 20
    assert space.match_prefix(keys) == 20, "own leaders, as the put had"
    assert space.contains(keys, deadline_ms=5000) == [True] * 20
    verbs = [space.contains, space.match_prefix, space.touch, space.pin, space.unpin, space.delete]
    for verb in verbs:
        with pytest.raises(ValueError, match="runs"):
            verb(keys, leaders="run")  # type: ignore[operator]
        with pytest.raises(ValueError, match="20 keys"):
            verb(keys, leaders=keys[:3])  # type: ignore[operator]
    with pytest.raises(ValueError, match="runs"):
        space.put(keys, [b"v"] * 20, leaders="own")  # type: ignore[arg-type]


def test_pins_touches_listing_and_stats(space: millpond.Namespace) -> None:
    space.put([b"p/1", b"p/2", b"q"], [b"1", b"22", b"333"])
    assert space.pin([b"p/1", b"absent"]) == [True, False]
    assert space.touch([b"p/2", b"absent"]) == [True, False]
    listed = {info.key: info for info in space.list(b"p/")}
    assert set(listed) == {b"p/1", b"p/2"}
    assert listed[b"p/1"].pinned
    assert listed[b"p/2"].size == 2
    assert space.unpin([b"p/1"]) == [True]
    assert space.delete([b"q", b"absent"]) == [True, False]
    assert space.stats()["keys"] == 2


def test_another_layout_is_refused_by_name(client: millpond.Client) -> None:
    name = f"layout-{client.transport}"
    client.namespace(name, layout={"model": "a", "block": 16})
    client.namespace(name, layout={"block": 16, "model": "a"})
    with pytest.raises(millpond.LayoutMismatch, match=name):
        client.namespace(name, layout={"model": "b", "block": 16})
    with pytest.raises(millpond.NoNamespace):
        client.namespace("never-made", create=False)
    assert name in {info.name for info in client.namespaces()}
    client.drop_namespace(name)
    assert name not in {info.name for info in client.namespaces()}


def test_threads_share_a_client(space: millpond.Namespace) -> None:
    def work(worker: int) -> None:
        for i in range(30):
            key = b"t%d-%d" % (worker, i)
            value = value_of(key, 20_000)
            assert space.put([key], [value]) == ["stored"]
            assert space.get_bytes(key) == value

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_random_operations_match_a_model(space: millpond.Namespace) -> None:
    rng = random.Random(11)
    model: dict[bytes, bytes] = {}
    for _ in range(400):
        keys = [b"m%d" % rng.randrange(60) for _ in range(rng.randrange(1, 6))]
        keys = list(dict.fromkeys(keys))
        action = rng.randrange(4)
        if action == 0:
            values = [rng.randbytes(rng.choice([0, 10, 5000, 70_000])) for _ in keys]
            for key, value, status in zip(keys, values, space.put(keys, values)):
                assert status == ("exists" if key in model else "stored")
                model.setdefault(key, value)
        elif action == 1:
            into = [bytearray(70_000) for _ in keys]
            for key, room, got in zip(keys, into, space.get(keys, into)):
                assert (bytes(room[:got]) if got >= 0 else None) == model.get(key)
        elif action == 2:
            assert space.delete(keys) == [key in model for key in keys]
            for key in keys:
                model.pop(key, None)
        else:
            assert space.contains(keys) == [key in model for key in keys]
    assert {info.key for info in space.list()} == set(model)


def test_asyncio_runs_calls_side_by_side(shared_server) -> None:
    async def scenario() -> None:
        async with millpond.AsyncClient(shared_server.address) as client:
            space = await client.namespace("asyncio")
            keys = [b"a%d" % i for i in range(50)]
            stored = await asyncio.gather(*(space.put([k], [value_of(k, 9000)]) for k in keys))
            assert stored == [["stored"]] * 50
            values = await asyncio.gather(*(space.get_bytes(k) for k in keys))
            assert values == [value_of(k, 9000) for k in keys]
            assert {info.key async for info in space.list()} == set(keys)
            task = asyncio.ensure_future(space.get_bytes(keys[0]))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await space.contains(keys[:1]) == [True]

    asyncio.run(scenario())


def test_a_dead_server_fails_fast_and_comes_back(server) -> None:
    with millpond.Client(server.address, deadline_ms=2000) as client:
        space = client.namespace("life", ack="disk")
        assert space.put([b"k"], [b"durable"]) == ["stored"]
        server.kill()
        with pytest.raises(millpond.Unreachable):
            space.get_bytes(b"k")
        start = time.monotonic()
        with pytest.raises(millpond.Unreachable):
            space.get_bytes(b"k")
        assert time.monotonic() - start < 1.0
        server.start()
        deadline = time.monotonic() + 20
        while True:
            try:
                assert space.get_bytes(b"k") == b"durable"
                break
            except millpond.Unreachable:
                assert time.monotonic() < deadline
                time.sleep(0.05)


def test_nothing_listens_there() -> None:
    with (
        millpond.Client("127.0.0.1:1") as client,
        pytest.raises(millpond.Unreachable, match="millpond server"),
    ):
        client.namespaces()
    with pytest.raises(millpond.InvalidArgument, match="address"):
        millpond.Client("not an address:x")
    with pytest.raises(millpond.InvalidArgument, match="transport"):
        millpond.Client(transport="pigeon")  # type: ignore[arg-type]


def test_digests_do_not_depend_on_order() -> None:
    assert millpond.layout_digest({"a": 1, "b": 2}) == millpond.layout_digest({"b": 2, "a": 1})
    assert millpond.layout_digest(None) == bytes(32)
    assert millpond.layout_digest(bytes(range(32))) == bytes(range(32))
    with pytest.raises(millpond.InvalidArgument, match="32 bytes"):
        millpond.layout_digest(b"short")
