"""Pipelines over a real server and over a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import millpond
import numpy as np
import pytest

if TYPE_CHECKING:
    from conftest import Server


def check_store(store: millpond.Pipeline) -> None:
    keys = [b"a", b"b", b"c"]
    values = [np.full(5000, n, np.uint8) for n in range(2)]
    assert store.put(keys[:2], values) == ["stored", "stored"]
    for _ in range(2):
        into = [bytearray(5000) for _ in keys]
        assert store.get(keys, into) == [5000, 5000, -1]
        assert [bytes(room) for room in into[:2]] == [value.tobytes() for value in values]
    assert store.contains(keys) == [True, True, False]
    assert store.match_prefix(keys, lease_ms=10) == 2
    assert store.put(keys[:1], [b"other"]) == ["exists"]
    assert store.delete(keys) == [True, True, False]
    assert store.get(keys[:1], [bytearray(5000)]) == [-1]
    assert store.stats()


@pytest.mark.parametrize("text", ["Millpond", "Cache|Millpond"])
def test_before_a_server(server: Server, text: str) -> None:
    with millpond.Client(server.address) as client:
        namespace = client.namespace(f"pipeline-{len(text)}")
        check_store(millpond.pipeline(text, namespace=namespace, cache_bytes=1 << 20))


@pytest.mark.parametrize("text", ["Posix", "Cache|Posix"])
def test_before_a_folder(tmp_path: Path, text: str) -> None:
    layout = {"model": "m"}
    store = millpond.pipeline(text, folder=tmp_path, cache_bytes=1 << 20, layout=layout)
    check_store(store)
    store.put([b"k"], [b"value"])
    again = millpond.pipeline(text, folder=tmp_path, layout=layout)
    assert again.contains([b"k"]) == [True]
    other = millpond.pipeline(text, folder=tmp_path, layout={"model": "n"})
    assert other.contains([b"k"]) == [False]


def test_refusals_name_the_fix(tmp_path: Path) -> None:
    with pytest.raises(millpond.InvalidArgument, match=r"Cache\|Posix"):
        millpond.pipeline("Cash|Posix", folder=tmp_path)
    with pytest.raises(millpond.InvalidArgument, match="namespace"):
        millpond.pipeline("Cache|Millpond")
    store = millpond.pipeline("Posix", folder=tmp_path)
    room = bytearray(10)
    with pytest.raises(ValueError, match="overlap"):
        store.get([b"a", b"b"], [memoryview(room)[:6], memoryview(room)[4:]])


def test_alloc_gives_writable_pages(server: Server) -> None:
    with millpond.Client(server.address) as client:
        room = client.alloc(5000)
        namespace = client.namespace("alloc")
        namespace.put([b"k"], [b"x" * 5000])
        assert namespace.get([b"k"], [room]) == [5000]
        assert bytes(room) == b"x" * 5000
