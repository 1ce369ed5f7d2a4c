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


def test_a_buffer_that_is_too_small_is_told(space: millpond.Namespace, client) -> None:
    space.put([b"a", b"c"], [b"x" * 10, b"y" * 20])
    into = [bytearray(10), bytearray(5), bytearray(19)]
    with pytest.raises(millpond.BufferTooSmall, match=r"into\[2\].*20 bytes.*buffer 19") as raised:
        space.get([b"a", b"none", b"c"], into)
    assert raised.value.sizes == [10, -1, -1]
    assert into[0] == b"x" * 10
    assert isinstance(raised.value, millpond.InvalidArgument)
    # A value of another writer does not stop an engine.
    assert client.fail_open(space.name).get([b"c"], [bytearray(19)]) == [-1]
    piped = millpond.pipeline("Cache|Millpond", namespace=space)
    for _ in range(2):
        with pytest.raises(millpond.BufferTooSmall):
            piped.get([b"c"], [bytearray(1)])
        assert piped.get([b"c"], [bytearray(20)]) == [20]


def test_buffers_of_objects_are_refused(space: millpond.Namespace, tmp_path) -> None:
    objects = np.array([{"a": 1}, [2], None], dtype=object)
    parts = np.zeros(3, dtype=[("number", "i4"), ("thing", object)])
    plain = (ctypes.py_object * 2)()
    folder = millpond.pipeline("Cache|Posix", folder=tmp_path)
    for store in (space, folder):
        for values in (objects, parts, plain, memoryview(objects), objects[:0]):
            with pytest.raises(BufferError, match="buffer of Python objects"):
                store.put([b"objects"], [values])
            with pytest.raises(BufferError, match="buffer of Python objects"):
                store.get([b"objects"], [values])
        with pytest.raises(TypeError):
            store.put([b"objects"], [[objects]])
        assert store.contains([b"objects"]) == [False]
    # Items without a NumPy format, and field names with an O, are ordinary bytes.
    dates = np.array(["2026-01-01", "2026-01-02"], dtype="M8[D]")
    fields = np.array([(1, 2.0)], dtype=[("O", "i4"), (":O", "f8")])
    for index, values in enumerate((dates, fields, np.float64(3), np.zeros((2, 3, 4), "c16"))):
        key = b"plain%d" % index
        assert space.put([key], [values]) == ["stored"]
        assert space.get_bytes(key) == values.tobytes()


def test_a_closed_client_raises_what_the_documentation_says(shared_server) -> None:
    client = millpond.Client(shared_server.address)
    space = client.namespace("closed")
    client.close()
    for call in (client.namespaces, client.server_info, lambda: space.get_bytes(b"k")):
        with pytest.raises(millpond.Unreachable, match="closed: open a new one"):
            call()
    with pytest.raises(millpond.Unreachable, match="closed"):
        client.namespace("other")
    with pytest.raises(millpond.Unreachable, match="closed"):
        _ = client.transport

    async def use() -> None:
        other = millpond.AsyncClient(shared_server.address)
        opened = await other.namespace("closed")
        await other.close()
        with pytest.raises(millpond.Unreachable, match="closed: open a new one"):
            await opened.get_bytes(b"k")

    asyncio.run(use())


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
    # Removed chunks count until their tombstones are collected.
    until = time.monotonic() + 10
    while space.stats()["keys"] != 2:
        assert time.monotonic() < until
        time.sleep(0.01)


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


def test_options_of_a_namespace_change_in_place(client: millpond.Client) -> None:
    name = f"options-{client.transport}"
    space = client.namespace(name, ttl_s=60)
    space.put([b"kept"], [b"value"])
    changed = client.set_namespace(name, quota_bytes=1 << 30, priority=2)
    assert (changed.quota_bytes, changed.priority, changed.ttl_s) == (1 << 30, 2, 60)
    assert space.get_bytes(b"kept") == b"value"
    assert client.set_namespace(name, quota_bytes="1.5GiB").quota_bytes == 3 << 29
    assert client.set_namespace(name, quota_bytes=0).quota_bytes == 0
    with pytest.raises(millpond.InvalidArgument, match="quota_bytes: 'much' is not a size"):
        client.set_namespace(name, quota_bytes="much")
    with pytest.raises(millpond.InvalidArgument, match="quota_bytes, ttl_s, priority"):
        client.set_namespace(name)
    with pytest.raises(millpond.InvalidArgument, match="priority"):
        client.set_namespace(name, priority=3)  # type: ignore[arg-type]
    with pytest.raises(millpond.NoNamespace):
        client.set_namespace("never-made", ttl_s=1)


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
