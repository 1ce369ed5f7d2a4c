"""The worker's side: moving blocks, failing open, reporting."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from fakes import FakeClient, FakeNamespace, unreachable
from millpond.vllm.config import ConnectorConfig
from millpond.vllm.fence import Fence
from millpond.vllm.layout import KVLayout
from millpond.vllm.lookup import Group
from millpond.vllm.meta import GroupBlocks, LoadJob, SaveJob, StepMeta, WorkerHello
from millpond.vllm.mover import HostMover
from millpond.vllm.session import StoreSession, Target
from millpond.vllm.worker import WorkerSide

BLOCKS = 64
SESSION_INIT = StoreSession.__init__
HASHES = [bytes([i]) * 32 for i in range(1, 60)]


class Rank:
    """A worker's side over a small cache and an in-memory store."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        namespace: FakeNamespace | None = None,
        part: int = 0,
        copies: int = 1,
        **options: Any,
    ) -> None:
        self.namespace = namespace or FakeNamespace()
        self.client = FakeClient(self.namespace)

        def init(session: StoreSession, *args: Any, **kwargs: Any) -> None:
            SESSION_INIT(session, *args, **kwargs, client_factory=lambda *a, **k: self.client)

        monkeypatch.setattr(StoreSession, "__init__", init)
        self.cache = torch.arange(BLOCKS * 8, dtype=torch.int64).reshape(BLOCKS, 8).clone()
        engine = str(uuid.uuid4())
        # The fence of the scheduler's side.
        self.fence = Fence(engine, part + 1)
        self.side = WorkerSide(
            ConnectorConfig.parse({"batch_blocks": 4, "retry_ms": 10_000, **options}),
            HostMover(KVLayout({"l": self.cache}, [["l"]], BLOCKS), batch_blocks=4),
            Fence(engine, part + 1),
            hello=WorkerHello(part, bytes(32)),
            groups=[Group(0, 16, 1, None, full=True, drop_last=False, copies=copies)],
            whole_requests=False,
            log=logging.getLogger("test"),
        )

    def meta(self, loads: Any = (), saves: Any = ()) -> StepMeta:
        return StepMeta(Target("ns", b""), b"", loads=list(loads), saves=list(saves), idle=True)

    def run(self, meta: StepMeta) -> None:
        self.side.start_loads(meta)
        self.side.start_saves(meta)

    def until_loaded(self, name: str) -> set[str]:
        end = time.monotonic() + 10
        while True:
            loaded, _ = self.side.take_loaded(idle=True)
            if name in loaded:
                return loaded
            assert time.monotonic() < end

    def report(self, condition: Callable[[Any], bool]) -> Any:
        end = time.monotonic() + 10
        while True:
            report = self.side.take_report()
            if report is not None and condition(report):
                return report
            assert time.monotonic() < end
            self.side.take_loaded(idle=True)


def moved(ids: list[int], first: int = 0) -> GroupBlocks:
    start = first - first % 16
    blocks = list(range(first, first + len(ids)))
    return GroupBlocks(0, blocks, ids, HASHES[start : first + len(ids)], start)


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    made = Rank(monkeypatch)
    yield made
    made.side.close()


def test_what_is_saved_is_loaded_elsewhere(rank: Rank) -> None:
    ids = list(range(30, 52))
    rank.run(rank.meta(saves=[SaveJob(5, "a", [moved(ids)])]))
    report = rank.report(lambda r: 5 in r.saves_done)
    assert report.saves_done == {5: 1}
    assert not report.saves_failed
    places = list(range(1, 23))
    rank.run(rank.meta(loads=[LoadJob("b", [moved(places)], asynchronous=True)]))
    rank.until_loaded("b")
    assert torch.equal(rank.cache[1:23], rank.cache[30:52])
    assert rank.side.take_failed_blocks() == set()
    stats = rank.side.take_stats()
    assert stats is not None
    assert stats.data["save_blocks"] == stats.data["load_blocks"] == 22
    assert stats.data["load_bytes"] == 22 * 64


def test_missing_blocks_are_reported_and_the_request_still_ends(rank: Rank) -> None:
    rank.run(rank.meta(saves=[SaveJob(1, "a", [moved([40, 41, 42])])]))
    rank.report(lambda r: 1 in r.saves_done)
    load = LoadJob("b", [moved([1, 2, 3, 4, 5])], asynchronous=True, load_id=7)
    rank.run(rank.meta(loads=[load]))
    rank.until_loaded("b")
    assert rank.side.take_failed_blocks() == {4, 5}
    report = rank.report(lambda r: r.loads_failed)
    assert report.loads_failed == {"b"}
    assert (report.loads_done, report.loads_cut) == ({7: 1}, {7: 3})


def test_a_dead_store_fails_loads_and_drops_saves_at_once(rank: Rank) -> None:
    rank.run(rank.meta())
    rank.namespace.failure = rank.client.down = unreachable()
    started = time.monotonic()
    rank.run(
        rank.meta(
            loads=[LoadJob("b", [moved([1, 2])], asynchronous=True)],
            saves=[SaveJob(1, "a", [moved([3, 4])])],
        )
    )
    rank.until_loaded("b")
    assert rank.side.take_failed_blocks() == {1, 2}
    report = rank.report(lambda r: r.saves_done)
    assert report.saves_failed == {1}
    assert time.monotonic() - started < 2


def test_a_store_that_is_back_is_written_to_before_the_probe_finds_it(rank: Rank) -> None:
    rank.run(rank.meta())
    rank.namespace.failure = rank.client.down = unreachable()
    rank.run(rank.meta(saves=[SaveJob(1, "a", [moved([3, 4])])]))
    assert rank.report(lambda r: r.saves_done).saves_failed == {1}
    rank.namespace.failure = rank.client.down = None
    rank.run(rank.meta(saves=[SaveJob(2, "a", [moved([3, 4])])]))
    assert not rank.report(lambda r: r.saves_done).saves_failed


def test_a_load_without_blocks_still_ends(rank: Rank) -> None:
    rank.run(rank.meta(loads=[LoadJob("b", [], asynchronous=True)]))
    rank.until_loaded("b")


def test_late_saves_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch, save_deadline_ms=30, io_threads=1)
    rank.run(rank.meta())
    gate = threading.Event()
    rank.namespace.before = lambda verb: gate.wait(5) if verb == "put" else None
    rank.run(rank.meta(saves=[SaveJob(1, "a", [moved(list(range(30, 50)))])]))
    time.sleep(0.1)
    gate.set()
    report = rank.report(lambda r: 1 in r.saves_done)
    assert report.saves_failed == {1}
    stats = rank.side.take_stats()
    # The batch in flight ends; later batches are too late.
    assert stats is not None
    assert stats.data["save_dropped_blocks"] == 16
    rank.side.close()


def test_synchronous_loads_are_done_on_return(rank: Rank) -> None:
    rank.run(rank.meta(saves=[SaveJob(1, "a", [moved([40, 41])])]))
    rank.report(lambda r: 1 in r.saves_done)
    rank.side.start_loads(rank.meta(loads=[LoadJob("b", [moved([1, 2])], asynchronous=False)]))
    assert torch.equal(rank.cache[1:3], rank.cache[40:42])
    assert rank.side.take_loaded(idle=False) == (set(), set())


def test_nothing_is_saved_that_may_rest_on_a_failed_load(rank: Rank) -> None:
    rank.run(rank.meta())
    meta = rank.meta(
        loads=[LoadJob("b", [moved([1, 2])], asynchronous=False)],
        saves=[SaveJob(1, "b", [moved([3, 4], first=2)])],
    )
    rank.run(meta)
    assert rank.side.take_failed_blocks() == {1, 2}
    assert rank.report(lambda r: 1 in r.saves_done).saves_failed == {1}
    assert rank.namespace.values == {}


def test_bytes_of_a_block_that_was_given_away_are_never_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether the page of the host or a step marks the save as void."""
    rank = Rank(monkeypatch, io_threads=1)
    rank.run(rank.meta())
    gate, inside = threading.Event(), threading.Event()

    def hang(verb: str) -> None:
        if verb == "put":
            inside.set()
            gate.wait(5)

    rank.namespace.before = hang
    was = {i: bytes(rank.cache[i].numpy().tobytes()) for i in range(BLOCKS)}
    rank.run(rank.meta(saves=[SaveJob(0, "a", [moved(list(range(30, 42)))])]))
    assert inside.wait(5)
    # The store hangs with a copied batch; two others wait after it.
    rank.fence.void(1)
    rank.cache[30:42] = -1
    rank.run(rank.meta(saves=[SaveJob(1, "b", [moved(list(range(42, 50)), first=16)])]))
    step = rank.meta()
    step.saves_from = 2
    rank.side.void_saves(step)
    rank.cache[42:50] = -1
    gate.set()
    failed: set[int] = set()
    rank.report(lambda r: failed.update(r.saves_failed) or len(failed) == 2)
    assert sorted(rank.namespace.values.values()) == sorted(was[i] for i in range(30, 34))
    assert rank.fence.all_done(2) is False
    rank.fence.hello(0, bytes(32))
    assert rank.fence.all_done(2)
    rank.side.close()


@pytest.mark.parametrize("copies", [2, 3])
def test_ranks_that_hold_the_same_store_it_once_and_load_it_all(
    monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    namespace = FakeNamespace()
    ranks = [
        Rank(monkeypatch, namespace=namespace, part=part, copies=copies) for part in range(copies)
    ]
    ids = list(range(30, 52))
    for number, rank in enumerate(ranks):
        rank.run(rank.meta(saves=[SaveJob(number, "a", [moved(ids)])]))
        assert rank.report(lambda r: r.saves_done).saves_failed == set()
    stored = [rank.side.take_stats() for rank in ranks]
    assert sum(stats.data["save_blocks"] for stats in stored if stats is not None) == 22
    assert all("save_present_blocks" not in stats.data for stats in stored if stats is not None)
    assert len(namespace.values) == 22
    # A job of which a rank saves no block ends too.
    few = SaveJob(9, "a", [moved([60], first=23)])
    for rank in ranks:
        rank.run(rank.meta(saves=[few]))
        assert rank.report(lambda r: 9 in r.saves_done).saves_failed == set()
    places = list(range(1, 23))
    for rank in ranks:
        rank.run(rank.meta(loads=[LoadJob("b", [moved(places)], asynchronous=True)]))
        rank.until_loaded("b")
        assert rank.side.take_failed_blocks() == set()
        assert torch.equal(rank.cache[1:23], rank.cache[30:52])
        rank.side.close()


def test_closing_finishes_what_is_queued(rank: Rank) -> None:
    rank.run(rank.meta(saves=[SaveJob(1, "a", [moved(list(range(20, 50)))])]))
    rank.side.close()
    assert len(rank.namespace.values) == 30
