"""The scheduler's side of the connector: it plans loads and saves.

It asks the store once per request for the stored prefix of the prompt, turns the
engine's block tables into load and save jobs, and keeps the source blocks of every
save from reuse until all ranks are done with it.

A save reads the KV cache after its step, in the background. By then the request may
be finished, aborted or preempted, and its blocks may belong to another request. So
each source block gets a reference of its own in the engine's block pool, which the
ranks' reports release. A delay of the request's own free is not enough: a preempted
request, or a sliding window that moves on, frees blocks without asking the connector.

An engine that empties its cache needs every block back. So the pool's own reset
first gives a working store a moment to take the waiting saves. It then makes the
other saves void (`fence.py`) and gives their blocks back.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable

from millpond.vllm.config import ConnectorConfig
from millpond.vllm.events import EventLog
from millpond.vllm.fence import Fence
from millpond.vllm.keys import KeySpace
from millpond.vllm.lookup import Group, Hit, PrefixLookup
from millpond.vllm.meta import GroupBlocks, LoadJob, SaveJob, StepMeta, WorkerMeta
from millpond.vllm.session import StoreDown, StoreSession, Target
from millpond.vllm.stats import MillpondStats

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

_RESET_WAIT_S = 0.2
"""Longest wait of a cache reset for a store that works; saves take milliseconds."""
_RESET_LOOK_S = 0.001
_NULL_BLOCK_ID = 0
"""The engine's placeholder for a missing block of a table; never saved or loaded."""


@dataclass
class _Tracked:
    """The state of one request.

    Attributes:
        request: the engine's request; its hashes grow with its tokens.
        hit: the store's answer, or None when the store must be asked (again).
        asked_at: time of the lookup, in monotonic seconds.
        asked_as: the request's number of preemptions at the lookup. A preempted
            request comes back like a new one, and the store may hold more of it then.
        next_block: per group, the first block that no save covers yet.
        give_up_loads: a load failed; recompute instead of trying again.
        load: prefix to load, as local tokens and total tokens.
        loaded_as: the request's number of preemptions at the start of a load.
        stale_until: the number of preemptions from which its blocks may be saved.
            Until then the request has tokens that the old weights computed, from
            before a reset or from the engine's own cache, and blocks computed on top
            of these belong to neither generation.
    """

    request: Request
    hit: Hit | None = None
    asked_at: float = 0.0
    asked_as: int = 0
    next_block: dict[int, int] = field(default_factory=dict)
    give_up_loads: bool = False
    load: tuple[int, int] | None = None
    loaded_as: int = -1
    stale_until: int = 0


@dataclass
class _Loading:
    """A load that some rank is still working on.

    Attributes:
        blocks: number of leading blocks that every rank that reported has; all until a failure.
        ranks_left: ranks that have not reported yet.
    """

    blocks: int
    ranks_left: int


@dataclass
class _Pinned:
    """A save that some rank is still working on.

    Attributes:
        job: the save.
        request: the request that the blocks belong to.
        block_ids: blocks that the save holds; empty after they were given back.
        names: blocks that no other request may save at the same time.
        ranks_left: ranks that have not reported yet.
        failed: whether some rank stored less than everything.
    """

    job: SaveJob
    request: Request
    block_ids: list[int]
    names: list[tuple[bytes, int, bytes]]
    ranks_left: int
    failed: bool = False


class SchedulerSide:
    """Plans loads and saves; runs in the engine's scheduler.

    Args:
        config: connector options.
        groups: the cache groups that the store keeps.
        ranks: number of ranks.
        hash_tokens: tokens per block hash.
        align_tokens: hits end at multiples of this number.
        fence: makes saves void in the workers of this host.
        events: collects KV events; None without listeners.
        log: logger for outages.
        may_load: whether this engine may read from the store.
        may_save: whether it may write to it.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        groups: Sequence[Group],
        *,
        ranks: int,
        hash_tokens: int,
        align_tokens: int,
        fence: Fence,
        events: EventLog | None,
        log: logging.Logger,
        may_load: bool,
        may_save: bool,
    ) -> None:
        """See the class."""
        self._config = config
        self._groups = list(groups)
        self._ranks = ranks
        self._fence = fence
        self._events = events
        self._log = log
        self._may_load = may_load
        self._may_save = may_save
        self._lookup = PrefixLookup(
            groups,
            hash_tokens=hash_tokens,
            align_tokens=align_tokens,
            lease_ms=config.lease_ms,
        )
        # Block-level failures can be reported for one group only, and only
        # asynchronous loads can fail as a whole request.
        self.load_async = config.load_async or len(self._groups) > 1
        self.session = StoreSession(
            config, deadline_ms=config.lookup_deadline_ms, connections=1, log=log
        )
        self.target: Target | None = None
        self.epoch = b""
        self.stats = MillpondStats()
        self._pool: BlockPool | None = None
        self._pin_max = 0
        self._tracked: dict[str, _Tracked] = {}
        self._starting: dict[str, LoadJob] = {}
        self._loading: dict[int, _Loading] = {}
        self._next_load_id = 0
        self._saving: set[tuple[bytes, int, bytes]] = set()
        self._pinned: dict[int, _Pinned] = {}
        self._pinned_blocks = 0
        self._next_job_id = 0
        self._saves_from = 0
        self._emptied = False
        self._local_stale = False

    # -- start --------------------------------------------------------------

    def start(self, target: Target) -> None:
        """Names the namespace and connects.

        Raises:
            ConfigError: the store rejects the configuration.
        """
        self.target = target
        self.session.start(target)

    def bind_pool(self, pool: BlockPool) -> None:
        """Takes the engine's block pool; saves pin their source blocks in it.

        The engine empties the pool before it resets the connector, and this fails while
        a block is held. So the pool's reset gives back the blocks of saves first.
        """
        self._pool = pool
        self._pin_max = int(pool.num_gpu_blocks * self._config.save_pool_fraction)
        empty: Callable[[], bool] = pool.reset_prefix_cache

        def reset_prefix_cache() -> bool:
            self._give_back(pool)
            self._emptied = empty()
            if self._emptied:
                self._local_stale = False
            return self._emptied

        pool.reset_prefix_cache = reset_prefix_cache

    def _give_back(self, pool: BlockPool) -> None:
        """Ends saves that hold blocks, unless other holders would make the reset fail anyway."""
        held = {i for pinned in self._pinned.values() for i in pinned.block_ids}
        used = pool.num_gpu_blocks - pool.get_num_free_blocks()
        # The null block counts as used.
        if not held or used - 1 > len(held):
            return
        end = time.monotonic() + (_RESET_WAIT_S if self.session.up else 0.0)
        while not self._fence.all_done(self._next_job_id) and time.monotonic() < end:
            time.sleep(_RESET_LOOK_S)
        self._saves_from = self._next_job_id
        self._fence.void(self._saves_from)
        for pinned in self._pinned.values():
            self._release(pinned)

    # -- requests -----------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        """Starts to track a request."""
        self._tracked[request.request_id] = _Tracked(request)

    def matched_tokens(self, request: Request, local_tokens: int) -> int:
        """Returns the number of tokens beyond ``local_tokens`` that can be loaded.

        Asks the store once per request and caches the answer for half of its
        lease. A lookup without an answer in time is a miss.
        """
        tracked = self._track(request)
        tracked.load = None
        if self._local_stale and local_tokens > 0:
            tracked.stale_until = request.num_preemptions + 1
        if request.skip_reading_prefix_cache or not self.session.started:
            return 0
        hit = self._hit(tracked)
        if hit is None or not self._may_load or tracked.give_up_loads:
            return 0
        gain = hit.tokens - local_tokens
        smallest = self._config.min_load_blocks * self._groups[0].block_tokens
        if gain < smallest:
            return 0
        tracked.load = (local_tokens, hit.tokens)
        return gain

    def after_alloc(self, request: Request, block_ids: Sequence[Sequence[int]], gain: int) -> None:
        """Turns a match into a load job after the engine allocated its blocks."""
        tracked = self._track(request)
        load, tracked.load = tracked.load, None
        if load is None or gain == 0:
            return
        local, total = load
        assert local + gain == total, "the engine allocated another length than was matched"
        job = LoadJob(request.request_id, [], self.load_async, self._next_load_id)
        for group in self._groups:
            table = block_ids[group.index]
            first = local // group.block_tokens
            last = min(total // group.block_tokens, len(table))
            blocks = [i for i in range(first, last) if table[i] != _NULL_BLOCK_ID]
            if blocks:
                job.groups.append(self._group_blocks(tracked.request, group, blocks, table))
        self._starting[request.request_id] = job
        self._loading[job.load_id] = _Loading(gain // self._groups[0].block_tokens, self._ranks)
        self._next_load_id += 1
        tracked.loaded_as = request.num_preemptions

    def finished(self, request: Request) -> None:
        """Forgets a request; its saves continue under their own references."""
        self._tracked.pop(request.request_id, None)

    def _track(self, request: Request) -> _Tracked:
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            tracked = self._tracked[request.request_id] = _Tracked(request)
        return tracked

    def _hit(self, tracked: _Tracked) -> Hit | None:
        """Returns the store's answer for a request; asks the store if necessary."""
        request = tracked.request
        shortest = min(group.block_tokens for group in self._groups)
        if request.num_tokens < shortest or not self.session.up:
            return None
        now = time.monotonic()
        fresh_s = self._config.lease_ms / 2000 if self._config.lease_ms else float("inf")
        known = tracked.hit is not None and tracked.asked_as == request.num_preemptions
        if known and now - tracked.asked_at < fresh_s:
            return tracked.hit
        hashes, tokens = request.block_hashes, request.num_tokens
        self.stats.add("lookups")
        self.stats.add("lookup_blocks", tokens // self._groups[0].block_tokens)
        try:
            hit = self.session.call(
                lambda ns: self._lookup.find(ns, hashes, tokens, tokens - 1, self.epoch)
            )
        except StoreDown:
            self.stats.add("lookup_failures")
            return None
        self.stats.observe("lookup_seconds", time.monotonic() - now)
        tracked.hit, tracked.asked_at, tracked.asked_as = hit, now, request.num_preemptions
        tracked.next_block = dict(hit.present)
        return hit

    def _group_blocks(
        self, request: Request, group: Group, blocks: list[int], table: Sequence[int]
    ) -> GroupBlocks:
        """Collects the data from which a worker names and places the given blocks."""
        lead = KeySpace(group.index, group.parts).lead_block(blocks[0])
        # One more, because an event names the preceding block.
        start = max(0, min(lead, blocks[0] - 1))
        return GroupBlocks(
            group=group.index,
            blocks=blocks,
            block_ids=[table[i] for i in blocks],
            hashes=group.hashes(request.block_hashes, start, blocks[-1] + 1),
            hashes_from=start,
        )

    # -- steps --------------------------------------------------------------

    def build_meta(self, output: SchedulerOutput) -> StepMeta:
        """Returns this step's jobs for the workers."""
        meta = StepMeta(
            target=self.target,
            epoch=self.epoch,
            saves_from=self._saves_from,
            loads=list(self._starting.values()),
            idle=output.total_num_scheduled_tokens == 0,
        )
        self._emptied = self._emptied and meta.idle
        self._starting.clear()
        if self._may_save and self._pool is not None and self.session.up:
            for request_id, scheduled in output.num_scheduled_tokens.items():
                self._plan_save(meta, output, request_id, scheduled)
        return meta

    def _plan_save(
        self, meta: StepMeta, output: SchedulerOutput, request_id: str, scheduled: int
    ) -> None:
        """Adds a save job for the blocks that this step completes."""
        tracked = self._tracked.get(request_id)
        state = output.kv_connector_block_state
        if tracked is None or state is None:
            return
        request = tracked.request
        if request.num_preemptions < tracked.stale_until:
            return
        # The engine's count does not include this step. Only known tokens have
        # hashes, so drafts that may be rejected are left out.
        done = min(request.num_computed_tokens + scheduled, request.num_tokens)
        if not self._config.save_generated:
            done = min(done, request.num_prompt_tokens)
        tables: tuple[list[int], ...] | None = None
        job = SaveJob(self._next_job_id, request_id, [])
        for group in self._groups:
            first = tracked.next_block.get(group.index, 0)
            last = min(done // group.block_tokens, len(request.block_hashes) // group.scale)
            if first >= last:
                continue
            if tables is None:
                tables = state.get_block_ids(request_id)
                if tables is None:
                    return
            tracked.next_block[group.index] = last
            table = tables[group.index]
            blocks = [
                i
                for i in range(first, min(last, len(table)))
                if table[i] != _NULL_BLOCK_ID and not self._is_saving(request, group, i)
            ]
            if blocks:
                job.groups.append(self._group_blocks(request, group, blocks, table))
        if job.groups and self._pin(job, request):
            meta.saves.append(job)

    def _is_saving(self, request: Request, group: Group, block: int) -> bool:
        """Whether another request is writing the same block right now."""
        (name,) = group.hashes(request.block_hashes, block, block + 1)
        return (self.epoch, group.index, name) in self._saving

    def _pin(self, job: SaveJob, request: Request) -> bool:
        """Takes a reference on every source block, or drops the job."""
        assert self._pool is not None, "the engine binds its pool before the first step"
        block_ids = list(dict.fromkeys(i for group in job.groups for i in group.block_ids))
        if self._pinned_blocks + len(block_ids) > self._pin_max:
            self.stats.add("save_dropped_blocks", sum(len(g.blocks) for g in job.groups))
            return False
        self._pool.touch([self._pool.blocks[i] for i in block_ids])
        names = [
            (self.epoch, group.group, group.hashes[block - group.hashes_from])
            for group in job.groups
            for block in group.blocks
        ]
        self._pinned[job.job_id] = _Pinned(job, request, block_ids, names, self._ranks)
        self._pinned_blocks += len(block_ids)
        self._next_job_id += 1
        self._saving.update(names)
        return True

    # -- reports ------------------------------------------------------------

    def on_worker_report(self, report: WorkerMeta) -> None:
        """Releases finished saves and records failures and outages."""
        for reason in report.outages:
            self.session.trip(reason)
        self._count_hits(report)
        for request_id in report.loads_failed:
            tracked = self._tracked.get(request_id)
            if tracked is not None:
                tracked.give_up_loads = True
                tracked.hit = None
                tracked.next_block = {}
        for job_id, ranks in report.saves_done.items():
            pinned = self._pinned[job_id]
            pinned.failed = pinned.failed or job_id in report.saves_failed
            pinned.ranks_left -= ranks
            assert pinned.ranks_left >= 0, "a save was reported by too many ranks"
            if pinned.ranks_left == 0:
                self._unpin(job_id)

    def _count_hits(self, report: WorkerMeta) -> None:
        """Counts the blocks of loads that all ranks are done with.

        A lookup may find more: the engine may hold a part itself, load from another
        connector or not load at all, and it computes blocks that do not load.
        """
        for load_id, ranks in report.loads_done.items():
            loading = self._loading[load_id]
            loading.blocks = min(loading.blocks, report.loads_cut.get(load_id, loading.blocks))
            loading.ranks_left -= ranks
            assert loading.ranks_left >= 0, "a load was reported by too many ranks"
            if loading.ranks_left == 0:
                self.stats.add("hit_blocks", self._loading.pop(load_id).blocks)

    def _unpin(self, job_id: int) -> None:
        pinned = self._pinned.pop(job_id)
        self._release(pinned)
        if self._events is not None:
            self._events.saved(pinned.job, pinned.request, failed=pinned.failed)

    def _release(self, pinned: _Pinned) -> None:
        """Gives back the blocks of a save, once."""
        assert self._pool is not None, "only bound pools have pinned blocks"
        block_ids, pinned.block_ids = pinned.block_ids, []
        self._pinned_blocks -= len(block_ids)
        # Last block first, so that a shared prefix is evicted last.
        self._pool.free_blocks(self._pool.blocks[i] for i in reversed(block_ids))
        self._saving.difference_update(pinned.names)
        pinned.names = []

    def has_pending_saves(self) -> bool:
        """Whether the engine must keep stepping to get the blocks of saves back."""
        return self._pinned_blocks > 0

    # -- the rest -----------------------------------------------------------

    def take_stats(self) -> MillpondStats | None:
        """Returns and resets the counters; None when nothing happened."""
        self.stats.add("outages", len(self.session.take_news()))
        if self.stats.is_empty():
            return None
        stats, self.stats = self.stats, MillpondStats()
        return stats

    def reset(self) -> bool:
        """Starts a new generation of keys: lookups do not find older values.

        Called when the engine's weights changed. The generation is random, so no
        other engine has it; eviction removes the old values.
        """
        self.epoch = os.urandom(8)
        # An engine that could not empty its own cache keeps using it.
        self._local_stale = not self._emptied
        for tracked in self._tracked.values():
            tracked.hit = None
            tracked.next_block = {}
            request = tracked.request
            if request.num_computed_tokens > 0 or tracked.loaded_as == request.num_preemptions:
                tracked.stale_until = request.num_preemptions + 1
        return True

    def close(self) -> None:
        """Closes the connection to the store."""
        self._fence.hide()
        self.session.close()
