"""A store that fails open, with servers that stop, hang, come back or reject it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import millpond
import pytest

if TYPE_CHECKING:
    from conftest import Server

TRANSPORTS = ["tcp", "unix", "shm"]
DEADLINE_MS = 200
PATIENCE_S = 60.0
"""Longest time of any step on a busy machine."""


def until_up(store: millpond.FailOpen, key: bytes, value: bytes) -> None:
    """Waits until the store answers again."""
    end = time.monotonic() + PATIENCE_S
    while store.get_bytes(key) != value:
        assert time.monotonic() < end, store.last_error
        time.sleep(0.02)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_server_that_hangs_costs_a_few_deadlines(server: Server, transport: str) -> None:
    with millpond.Client(server.address, transport=transport) as client:
        store = client.fail_open("hang", deadline_ms=DEADLINE_MS)
        value = b"v" * 100_000
        assert store.put([b"k"], [value]) == ["stored"]
        assert store.get_bytes(b"k") == value
        assert store.stats() == {"reads_failed": 0, "writes_dropped": 0, "outages": 0}

        server.freeze()
        started = time.monotonic()
        for _ in range(100):
            assert store.get([b"k", b"l"], [bytearray(len(value)) for _ in range(2)]) == [-1, -1]
            assert store.match_prefix([b"k"], lease_ms=1000) == 0
            assert store.contains([b"k"]) == [False]
            assert store.touch([b"k"]) == [False]
            assert store.get_bytes(b"k") is None
            assert store.put([b"n"], [value]) == ["late"]
        # Of 600 calls: two deadlines, then ever rarer tries.
        assert time.monotonic() - started < 100 * DEADLINE_MS / 1000
        assert not store.up
        assert store.last_error
        stats = store.stats()
        assert stats == {"reads_failed": 600, "writes_dropped": 100, "outages": 1}

        server.thaw()
        until_up(store, b"k", value)
        assert store.up
        assert store.put([b"n"], [value]) in (["stored"], ["exists"])
        assert store.stats()["outages"] == 1


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_server_that_dies_is_used_again_when_it_is_back(server: Server, transport: str) -> None:
    with millpond.Client(server.address, transport=transport) as client:
        store = client.fail_open("life", ack="disk", deadline_ms=1000)
        assert store.put([b"k"], [b"durable"]) == ["stored"]
        server.kill()
        for _ in range(10):
            assert store.get_bytes(b"k") is None
            assert store.put([b"n"], [b"x"]) == ["late"]
        assert store.stats() == {"reads_failed": 10, "writes_dropped": 10, "outages": 1}
        server.start()
        until_up(store, b"k", b"durable")


def test_the_server_may_come_after_the_store(server: Server) -> None:
    server.stop()
    with millpond.Client(server.address) as client:
        store = client.fail_open("later", retry_ms=200)
        assert store.get_bytes(b"k") is None
        assert "later" in repr(store)
        server.start()
        end = time.monotonic() + PATIENCE_S
        while store.put([b"k"], [b"v"]) not in (["stored"], ["exists"]):
            assert time.monotonic() < end, store.last_error
            time.sleep(0.02)
        assert store.get_bytes(b"k") == b"v"
        assert {info.name for info in client.namespaces()} == {"later"}


def test_a_namespace_that_is_dropped_is_made_anew(server: Server) -> None:
    with millpond.Client(server.address) as client:
        store, namespace = client.fail_open("x"), client.namespace("x")
        assert store.put([b"k"], [b"value"]) == ["stored"]
        for put in [store.put, namespace.put]:
            client.drop_namespace("x")
            assert put([b"k"], [b"value"]) == ["stored"]
            assert store.get_bytes(b"k") == b"value"


def test_a_refusal_is_seen(server: Server) -> None:
    with millpond.Client(server.address) as client:
        client.namespace("taken", layout={"model": "a"})
        with pytest.raises(millpond.LayoutMismatch):
            client.fail_open("taken", layout={"model": "b"})
        with pytest.raises(millpond.NoNamespace):
            client.fail_open("never-made", create=False)
        with pytest.raises(millpond.InvalidArgument, match="namespace"):
            client.fail_open("not a name")
        with pytest.raises(millpond.InvalidArgument, match="deadline_ms"):
            client.fail_open("zero", deadline_ms=0)
        store = client.fail_open("mine")
        with pytest.raises(millpond.InvalidArgument, match="128"):
            store.contains([b"x" * 129])
        with pytest.raises(ValueError, match="keys"):
            store.put([b"a", b"b"], [b"one"])


def test_back_pressure_drops_writes_and_not_reads(server: Server) -> None:
    with millpond.Client(server.address) as client:
        # One block fits, and it may not be evicted.
        store = client.fail_open("tight", quota_bytes=1000, evict=False)
        assert store.put([b"a", b"b"], [b"x" * 900, b"y" * 900]) == ["stored", "quota"]
        assert store.get_bytes(b"a") == b"x" * 900
        assert store.stats() == {"reads_failed": 0, "writes_dropped": 1, "outages": 0}


def test_asyncio_goes_on_beside_a_server_that_hangs(server: Server) -> None:
    async def scenario() -> None:
        async with millpond.AsyncClient(server.address) as client:
            store = await client.fail_open("async", deadline_ms=DEADLINE_MS)
            assert await store.put([b"k"], [b"v"]) == ["stored"]
            server.freeze()
            got = await asyncio.gather(*(store.get_bytes(b"k") for _ in range(200)))
            assert got == [None] * 200
            assert not store.up
            assert store.last_error
            assert store.name == "async"
            assert (await store.stats())["reads_failed"] == 200
            server.thaw()
            end = time.monotonic() + PATIENCE_S
            while await store.get_bytes(b"k") != b"v":
                assert time.monotonic() < end
                await asyncio.sleep(0.02)

    asyncio.run(scenario())
