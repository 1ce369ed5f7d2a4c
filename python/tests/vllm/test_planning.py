"""The scheduler's side against an in-memory store: plans of loads and saves."""

from __future__ import annotations

import logging
import threading
import uuid
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakeClient, FakeNamespace, unreachable
from millpond.vllm.config import ConnectorConfig
from millpond.vllm.events import EventLog
from millpond.vllm.fence import Fence
from millpond.vllm.keys import KeySpace
from millpond.vllm.lookup import Group
from millpond.vllm.meta import WorkerMeta
from millpond.vllm.scheduler import SchedulerSide
from millpond.vllm.session import StoreSession, Target

BLOCK = 16


@dataclass
class Request:
    """The fields of vLLM's request that the connector reads."""

    request_id: str
    num_tokens: int
    first: int = 1
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    skip_reading_prefix_cache: bool = False
    lora_request: Any = None
    block_hashes: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.num_prompt_tokens or self.num_tokens
        self.block_hashes = [
            (self.first + i).to_bytes(32, "little") for i in range(self.num_tokens // BLOCK)
        ]

    @property
    def all_token_ids(self) -> list[int]:
        return list(range(self.num_tokens))


class Pool:
    """Counts references as vLLM's block pool does."""

    def __init__(self, blocks: int) -> None:
        self.num_gpu_blocks = blocks
        self.blocks = [SimpleNamespace(block_id=i, refs=0) for i in range(blocks)]
        self.blocks[0].refs = 1

    def touch(self, blocks: list[Any]) -> None:
        for block in blocks:
            block.refs += 1

    def free_blocks(self, blocks: Any) -> None:
        for block in blocks:
            block.refs -= 1

    @property
    def pinned(self) -> set[int]:
        return {block.block_id for block in self.blocks[1:] if block.refs}

    def get_num_free_blocks(self) -> int:
        return sum(block.refs == 0 for block in self.blocks)

    def reset_prefix_cache(self) -> bool:
        return not self.pinned


class Planner:
    """A scheduler's side with one full-attention group and no engine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, parts: int = 1, **options: Any) -> None:
        self.namespace = FakeNamespace()
        self.client = FakeClient(self.namespace)
        made = StoreSession.__init__

        def init(session: StoreSession, *args: Any, **kwargs: Any) -> None:
            made(session, *args, **kwargs, client_factory=lambda *a, **k: self.client)

        monkeypatch.setattr(StoreSession, "__init__", init)
        groups = [Group(0, BLOCK, 1, spec=None, full=True, drop_last=False, parts=parts)]
        self.events = EventLog(groups)
        engine = str(uuid.uuid4())
        self.fence = Fence(engine, parts)
        # The fence of a worker.
        self.rank = Fence(engine, parts)
        self.side = SchedulerSide(
            ConnectorConfig.parse({"retry_ms": 10_000, **options}),
            groups,
            ranks=parts,
            hash_tokens=BLOCK,
            align_tokens=BLOCK,
            fence=self.fence,
            events=self.events,
            log=logging.getLogger("test"),
            may_load=True,
            may_save=True,
        )
        self.pool = Pool(100)
        self.side.bind_pool(self.pool)  # type: ignore[arg-type]
        self.side.start(Target("ns", b""))
        self.parts = parts

    def store(self, request: Request, blocks: int) -> None:
        """Puts the first blocks of a request into the store."""
        flat = KeySpace(0, self.parts).flat(request.block_hashes[:blocks])
        leaders = [flat[i - i % 16] for i in range(len(flat))]
        self.namespace.put(flat, [[]] * len(flat), leaders=leaders)

    def step(self, request: Request | None, scheduled: int = 0, table: Any = ()) -> Any:
        """Runs one engine step for one request."""
        ids = {request.request_id: scheduled} if request is not None and scheduled else {}
        state = SimpleNamespace(get_block_ids=lambda _: (list(table),))
        meta = self.side.build_meta(
            SimpleNamespace(  # type: ignore[arg-type]
                num_scheduled_tokens=ids,
                total_num_scheduled_tokens=scheduled,
                kv_connector_block_state=state,
            )
        )
        if request is not None:
            request.num_computed_tokens += scheduled
        return meta


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Planner(monkeypatch)
    yield made
    made.side.close()


def test_the_last_token_is_never_loaded(planner: Planner) -> None:
    request = Request("a", 4 * BLOCK)
    planner.store(request, 4)
    assert planner.side.matched_tokens(request, 0) == 3 * BLOCK
    longer = Request("b", 4 * BLOCK + 1)
    assert planner.side.matched_tokens(longer, 0) == 4 * BLOCK


def test_a_request_is_looked_up_once(planner: Planner) -> None:
    request = Request("a", 10 * BLOCK)
    planner.store(request, 5)
    for _ in range(5):
        assert planner.side.matched_tokens(request, 0) == 5 * BLOCK
    assert planner.namespace.calls.count("match_prefix") == 1
    assert len(planner.namespace.leased) == 5


def test_local_hits_are_not_loaded_again(planner: Planner) -> None:
    request = Request("a", 10 * BLOCK)
    planner.store(request, 8)
    assert planner.side.matched_tokens(request, 3 * BLOCK) == 5 * BLOCK
    table = list(range(20, 30))
    planner.side.after_alloc(request, [table], 5 * BLOCK)
    (load,) = planner.step(None).loads
    assert load.groups[0].blocks == [3, 4, 5, 6, 7]
    assert load.groups[0].block_ids == [23, 24, 25, 26, 27]
    assert planner.side.matched_tokens(request, 8 * BLOCK) == 0


def test_a_match_without_room_starts_no_load(planner: Planner) -> None:
    request = Request("a", 10 * BLOCK)
    planner.store(request, 8)
    assert planner.side.matched_tokens(request, 0) == 8 * BLOCK
    assert planner.step(None).loads == []
    # The engine found room for the prompt but chose not to load.
    planner.side.after_alloc(request, [[1] * 10], 0)
    assert planner.step(None).loads == []


def test_chunked_prefill_saves_each_full_block_once(planner: Planner) -> None:
    request = Request("a", 10 * BLOCK)
    planner.store(request, 2)
    planner.side.on_new_request(request)  # type: ignore[arg-type]
    planner.side.matched_tokens(request, 0)
    request.num_computed_tokens = 2 * BLOCK
    table = list(range(20, 30))
    saved = []
    for scheduled in (40, 40, 48):
        for job in planner.step(request, scheduled, table).saves:
            saved += job.groups[0].blocks
    assert saved == [2, 3, 4, 5, 6, 7, 8, 9]


def test_blocks_stay_referenced_until_every_rank_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner = Planner(monkeypatch, parts=2)
    request = Request("a", 3 * BLOCK)
    planner.side.on_new_request(request)  # type: ignore[arg-type]
    (job,) = planner.step(request, 3 * BLOCK, [7, 8, 9]).saves
    planner.side.finished(request)  # type: ignore[arg-type]
    assert planner.pool.pinned == {7, 8, 9}
    planner.side.on_worker_report(WorkerMeta(saves_done={job.job_id: 1}))
    assert planner.pool.pinned == {7, 8, 9}
    assert planner.side.has_pending_saves()
    planner.side.on_worker_report(WorkerMeta(saves_done={job.job_id: 1}))
    assert planner.pool.pinned == set()
    assert not planner.side.has_pending_saves()
    planner.side.close()


def test_reports_of_ranks_add_up() -> None:
    one = WorkerMeta({1: 1, 2: 1}, {2}, {"a"}, ["x"], loads_done={1: 1, 2: 1}, loads_cut={1: 3})
    two = WorkerMeta({1: 1}, set(), {"b"}, [], loads_done={1: 1}, loads_cut={1: 2, 2: 5})
    assert one.aggregate(two) == WorkerMeta(
        *({1: 2, 2: 1}, {2}, {"a", "b"}, ["x"]), loads_done={1: 2, 2: 1}, loads_cut={1: 2, 2: 5}
    )


def test_two_requests_do_not_write_the_same_block_at_once(planner: Planner) -> None:
    first, second = Request("a", 3 * BLOCK), Request("b", 4 * BLOCK)
    for request in (first, second):
        planner.side.on_new_request(request)  # type: ignore[arg-type]
    assert planner.step(first, 3 * BLOCK, [1, 2, 3]).saves[0].groups[0].blocks == [0, 1, 2]
    assert planner.step(second, 4 * BLOCK, [4, 5, 6, 7]).saves[0].groups[0].blocks == [3]


def test_a_full_queue_drops_saves_and_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(monkeypatch, save_pool_fraction=0.05)
    request = Request("a", 6 * BLOCK)
    planner.side.on_new_request(request)  # type: ignore[arg-type]
    assert planner.step(request, 6 * BLOCK, list(range(1, 7))).saves == []
    assert planner.pool.pinned == set()
    stats = planner.side.take_stats()
    assert stats is not None
    assert stats.data["save_dropped_blocks"] == 6
    planner.side.close()


def test_skipped_blocks_of_a_sliding_window_are_left_out(planner: Planner) -> None:
    request = Request("a", 4 * BLOCK)
    planner.side.on_new_request(request)  # type: ignore[arg-type]
    (job,) = planner.step(request, 4 * BLOCK, [0, 0, 8, 9]).saves
    assert job.groups[0].blocks == [2, 3]


def test_drafted_tokens_are_not_saved(planner: Planner) -> None:
    request = Request("a", 2 * BLOCK - 1)
    planner.side.on_new_request(request)  # type: ignore[arg-type]
    # Three drafts are scheduled after the last known token.
    (job,) = planner.step(request, 2 * BLOCK + 2, [5, 6]).saves
    assert job.groups[0].blocks == [0]


def test_generated_blocks_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner(monkeypatch, save_generated=False)
    request = Request("a", 5 * BLOCK, num_prompt_tokens=3 * BLOCK)
    planner.side.on_new_request(request)  # type: ignore[arg-type]
    (job,) = planner.step(request, 5 * BLOCK, [1, 2, 3, 4, 5]).saves
    assert job.groups[0].blocks == [0, 1, 2]
    planner.side.close()


def test_a_failed_load_is_recomputed_not_repeated(planner: Planner) -> None:
    request = Request("a", 10 * BLOCK)
    planner.store(request, 8)
    assert planner.side.matched_tokens(request, 0) == 8 * BLOCK
    planner.side.on_worker_report(WorkerMeta(loads_failed={"a"}))
    assert planner.side.matched_tokens(request, 0) == 0


def hit_blocks(planner: Planner) -> int:
    stats = planner.side.take_stats()
    return 0 if stats is None else stats.data.get("hit_blocks", 0)


def test_only_blocks_that_were_loaded_from_the_store_count_as_hits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planner = Planner(monkeypatch, parts=2)
    request = Request("a", 10 * BLOCK)
    planner.store(request, 8)
    table = [list(range(20, 30))]
    # Found, but the engine has all of it itself, or another connector serves it.
    assert planner.side.matched_tokens(request, 8 * BLOCK) == 0
    assert planner.side.matched_tokens(request, 0) == 8 * BLOCK
    planner.side.after_alloc(request, [[]], 0)  # type: ignore[list-item]
    planner.step(None)
    assert hit_blocks(planner) == 0
    # The engine has three blocks; the others count once, when every rank has its part.
    planner.side.matched_tokens(request, 3 * BLOCK)
    planner.side.after_alloc(request, table, 5 * BLOCK)
    planner.step(None)
    planner.side.on_worker_report(WorkerMeta(loads_done={0: 1}))
    assert hit_blocks(planner) == 0
    planner.side.on_worker_report(WorkerMeta(loads_done={0: 1}))
    assert hit_blocks(planner) == 5
    # One rank could not load the third block: the engine computes it and all later ones.
    planner.side.matched_tokens(request, 0)
    planner.side.after_alloc(request, table, 8 * BLOCK)
    planner.step(None)
    planner.side.on_worker_report(WorkerMeta(loads_done={1: 1}, loads_cut={1: 2}))
    planner.side.on_worker_report(WorkerMeta(loads_done={1: 1}))
    assert hit_blocks(planner) == 2
    planner.side.close()


def test_a_dead_store_means_no_match_no_save_no_error(planner: Planner) -> None:
    request = Request("a", 10 * BLOCK)
    planner.store(request, 8)
    planner.namespace.failure = planner.client.down = unreachable()
    assert planner.side.matched_tokens(request, 0) == 0
    assert planner.step(request, 10 * BLOCK, list(range(1, 11))).saves == []


def test_a_rank_that_lost_the_store_stops_lookups(planner: Planner) -> None:
    planner.client.down = unreachable()
    planner.side.on_worker_report(WorkerMeta(outages=["rank 3: gone"]))
    assert planner.side.matched_tokens(Request("a", 10 * BLOCK), 0) == 0
    assert "match_prefix" not in planner.namespace.calls


def test_a_preempted_request_asks_again(planner: Planner) -> None:
    request = Request("a", 10 * BLOCK)
    planner.store(request, 3)
    assert planner.side.matched_tokens(request, 0) == 3 * BLOCK
    planner.store(request, 6)
    request.num_preemptions = 1
    assert planner.side.matched_tokens(request, 0) == 6 * BLOCK


def test_reset_makes_everything_before_unreachable(planner: Planner) -> None:
    request = Request("a", 10 * BLOCK)
    planner.store(request, 8)
    assert planner.side.reset()
    assert planner.side.matched_tokens(request, 0) == 0
    assert len(planner.step(None).epoch) == 8


def test_what_old_weights_computed_is_never_saved_under_a_new_generation(
    planner: Planner,
) -> None:
    request = Request("a", 6 * BLOCK)
    planner.side.on_new_request(request)  # type: ignore[arg-type]
    table = list(range(1, 7))
    (old,) = planner.step(request, 2 * BLOCK, table).saves
    planner.side.on_worker_report(WorkerMeta(saves_done={old.job_id: 1}))
    assert planner.side.reset()
    # Neither the old blocks nor the blocks computed on top of them.
    for _ in range(2):
        assert planner.step(request, 2 * BLOCK, table).saves == []
    # After preemption it begins again and belongs to the new generation as a whole.
    request.num_preemptions, request.num_computed_tokens = 1, 0
    (job,) = planner.step(request, 6 * BLOCK, table).saves
    assert job.groups[0].blocks == list(range(6))


def test_finished_saves_become_events_with_their_parents(
    planner: Planner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")
    request = Request("a", 3 * BLOCK)
    planner.side.on_new_request(request)  # type: ignore[arg-type]
    (job,) = planner.step(request, 3 * BLOCK, [7, 8, 9]).saves
    assert planner.events.take() == []
    planner.side.finished(request)  # type: ignore[arg-type]
    planner.side.on_worker_report(WorkerMeta(saves_done={job.job_id: 1}))
    events = planner.events.take()
    hashes = request.block_hashes
    assert [event.block_hashes for event in events] == [[h] for h in hashes]
    assert [event.parent_block_hash for event in events] == [None, hashes[0], hashes[1]]
    assert events[1].token_ids == list(range(16, 32))
    assert events[1].medium == "STORAGE"


def test_a_failed_save_is_no_event(planner: Planner) -> None:
    request = Request("a", 3 * BLOCK)
    planner.side.on_new_request(request)  # type: ignore[arg-type]
    (job,) = planner.step(request, 3 * BLOCK, [7, 8, 9]).saves
    planner.side.on_worker_report(WorkerMeta(saves_done={job.job_id: 1}, saves_failed={job.job_id}))
    assert planner.events.take() == []


def saved(planner: Planner, request: Request, table: list[int]) -> Any:
    """A save of a whole request that no rank has reported yet."""
    planner.side.on_new_request(request)  # type: ignore[arg-type]
    (job,) = planner.step(request, request.num_tokens, table).saves
    planner.side.finished(request)  # type: ignore[arg-type]
    return job


def test_saves_never_keep_an_idle_engine_from_emptying_its_cache(planner: Planner) -> None:
    job = saved(planner, Request("a", 3 * BLOCK), [7, 8, 9])
    # No rank ever reports: the store hangs.
    assert planner.pool.reset_prefix_cache()
    assert planner.pool.pinned == set()
    assert not planner.side.has_pending_saves()
    # Workers on other hosts learn of it before they compute in these blocks again.
    assert planner.step(None).saves_from == job.job_id + 1
    with planner.rank.copying(job.job_id) as wanted:
        assert not wanted
    # The report may still come.
    planner.side.on_worker_report(WorkerMeta(saves_done={job.job_id: 1}, saves_failed={job.job_id}))
    assert planner.pool.pinned == set()
    # The next request that computes an unsaved block saves it.
    again = saved(planner, Request("b", 3 * BLOCK), [4, 5, 6])
    assert again.groups[0].blocks == [0, 1, 2]
    with planner.rank.copying(again.job_id) as wanted:
        assert wanted


def test_a_store_that_works_gets_what_was_saved_before_a_reset(planner: Planner) -> None:
    job = saved(planner, Request("a", 3 * BLOCK), [7, 8, 9])
    planner.rank.hello(0, bytes(32))
    copying = planner.rank.copying(job.job_id)
    assert copying.__enter__()

    def end() -> None:
        copying.__exit__(None, None, None)
        planner.rank.done(0, job.job_id + 1)

    ends = threading.Timer(0.05, end)
    ends.start()
    assert planner.pool.reset_prefix_cache()
    assert planner.rank.all_done(job.job_id + 1)
    ends.join()
    planner.side.on_worker_report(WorkerMeta(saves_done={job.job_id: 1}))
    assert len(planner.events.take()) == 3


def test_a_reset_waits_for_a_copy_that_is_under_way(planner: Planner) -> None:
    job = saved(planner, Request("a", 3 * BLOCK), [7, 8, 9])
    order: list[str] = []
    inside, go_on = threading.Event(), threading.Event()

    def copy() -> None:
        with planner.rank.copying(job.job_id):
            inside.set()
            go_on.wait(5)
            order.append("copied")

    thread = threading.Thread(target=copy)
    thread.start()
    assert inside.wait(5)
    release = threading.Timer(0.3, go_on.set)
    release.start()
    assert planner.pool.reset_prefix_cache()
    order.append("reset")
    thread.join()
    release.join()
    assert order == ["copied", "reset"]


def test_blocks_of_running_requests_fail_a_reset_and_void_nothing(planner: Planner) -> None:
    job = saved(planner, Request("a", 3 * BLOCK), [7, 8, 9])
    planner.pool.touch([planner.pool.blocks[20]])
    assert not planner.pool.reset_prefix_cache()
    assert planner.pool.pinned == {7, 8, 9, 20}
    with planner.rank.copying(job.job_id) as wanted:
        assert wanted


def test_what_the_engine_could_not_forget_is_never_saved_under_a_new_generation(
    planner: Planner,
) -> None:
    planner.pool.touch([planner.pool.blocks[20]])
    assert not planner.pool.reset_prefix_cache()
    assert planner.side.reset()
    # Its first blocks are from the engine's own cache and of the old weights.
    hit = Request("a", 6 * BLOCK)
    planner.side.on_new_request(hit)  # type: ignore[arg-type]
    planner.side.matched_tokens(hit, 2 * BLOCK)
    hit.num_computed_tokens = 2 * BLOCK
    assert planner.step(hit, 4 * BLOCK, list(range(1, 7))).saves == []
    computed = Request("b", 3 * BLOCK, first=100)
    planner.side.matched_tokens(computed, 0)
    assert len(planner.step(computed, 3 * BLOCK, [7, 8, 9]).saves) == 1
    # The cache is empty: all later blocks are of the new weights.
    planner.pool.free_blocks([planner.pool.blocks[20]])
    assert planner.pool.reset_prefix_cache()
    again = Request("c", 6 * BLOCK, first=200)
    planner.side.matched_tokens(again, 2 * BLOCK)
    again.num_computed_tokens = 2 * BLOCK
    assert len(planner.step(again, 4 * BLOCK, list(range(1, 7))).saves) == 1


def test_a_save_of_the_old_generation_hinders_none_of_the_new_one(planner: Planner) -> None:
    saved(planner, Request("a", 3 * BLOCK), [7, 8, 9])
    planner.pool.touch([planner.pool.blocks[20]])
    assert not planner.pool.reset_prefix_cache()
    assert planner.side.reset()
    assert saved(planner, Request("b", 3 * BLOCK), [4, 5, 6]).groups[0].blocks == [0, 1, 2]


def test_a_request_that_loads_during_a_reset_saves_nothing(planner: Planner) -> None:
    request = Request("a", 6 * BLOCK)
    planner.store(request, 3)
    assert planner.side.matched_tokens(request, 0) == 3 * BLOCK
    planner.side.after_alloc(request, [list(range(1, 7))], 3 * BLOCK)
    assert planner.side.reset()
    assert planner.step(request, 6 * BLOCK, list(range(1, 7))).saves == []
