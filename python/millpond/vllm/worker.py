"""The worker's side of the connector: moves blocks between cache and store.

Loads and saves run in batches on a few threads. The engine's step only queues
jobs and collects results.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from millpond.vllm.config import ConnectorConfig
from millpond.vllm.fence import Fence
from millpond.vllm.keys import KeySpace
from millpond.vllm.lookup import Group
from millpond.vllm.meta import GroupBlocks, LoadJob, SaveJob, StepMeta, WorkerHello, WorkerMeta
from millpond.vllm.mover import Mover
from millpond.vllm.session import StoreDown, StoreSession
from millpond.vllm.stats import MillpondStats
from millpond.vllm.transfer import TransferPool

if TYPE_CHECKING:
    from collections.abc import Iterator

_IDLE_WAIT_S = 0.002
"""Wait of a step without computation for a transfer. Without it the engine
would spin and take the processor from the threads that it waits for."""
_DISTRUST_STEPS = 3
"""Number of steps without saves after a failed synchronous load. The step itself,
and one that was scheduled before its result, may have computed with the blocks
that did not load."""


@dataclass
class _Load:
    """A request's load in progress."""

    job: LoadJob
    batches_left: int
    started: float = field(default_factory=time.monotonic)
    failed_ids: set[int] = field(default_factory=set)

    def leading(self) -> int:
        """Counts the blocks before the first failed one; the engine computes from there."""
        ids = [block_id for group in self.job.groups for block_id in group.block_ids]
        return next((i for i, block_id in enumerate(ids) if block_id in self.failed_ids), len(ids))


@dataclass
class _Save:
    """A save job in progress."""

    job: SaveJob
    batches_left: int
    queued: float = field(default_factory=time.monotonic)
    failed: bool = False


class WorkerSide:
    """Moves blocks for one rank.

    Args:
        config: connector options.
        mover: moves blocks of this rank's cache.
        fence: knows which saves are void.
        hello: this rank's index and layout.
        groups: the cache groups that the store keeps.
        whole_requests: report failed loads as whole requests instead of
            single blocks, as engines with several cache groups require.
        log: for programming errors only; outages go to the scheduler's side.
    """

    def __init__(
        self,
        config: ConnectorConfig,
        mover: Mover,
        fence: Fence,
        *,
        hello: WorkerHello,
        groups: Sequence[Group],
        whole_requests: bool,
        log: logging.Logger,
    ) -> None:
        """See the class."""
        self._config = config
        self._mover = mover
        self._fence = fence
        self._hello = hello
        self._groups = {group.index: group for group in groups}
        self._whole_requests = whole_requests
        self._log = log
        self.session = StoreSession(
            config,
            deadline_ms=max(config.load_deadline_ms, config.save_deadline_ms),
            connections=config.connections,
            log=None,
        )
        self._pool = TransferPool(config.io_threads)
        self._changed = threading.Condition()
        self._loads: dict[str, _Load] = {}
        self._saves: dict[int, _Save] = {}
        self._loaded: set[str] = set()
        self._failed_requests: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._report = WorkerMeta()
        self._stats = MillpondStats()
        self._distrust_steps = 0
        self._saves_begun = 0

    # -- loads --------------------------------------------------------------

    def start_loads(self, meta: StepMeta) -> None:
        """Starts this step's loads; synchronous ones are done on return."""
        if meta.target is not None and not self.session.started:
            self.session.start_in_background(meta.target)
        waiting = []
        for job in meta.loads:
            batches = list(self._batches(job.groups))
            load = _Load(job, len(batches))
            with self._changed:
                self._loads[job.request_id] = load
                if not batches:
                    self._finish_load(load)
            mark = self._mover.ready_mark()
            for batch in batches:
                if not self._pool.load(partial(self._load, load, batch, meta.epoch, mark)):
                    self._end_load_batch(load, batch, list(range(len(batch.blocks))))
            if not job.asynchronous:
                waiting.append(job.request_id)
        if waiting:
            # The threads keep the deadline; returning before they are done
            # would let the forward pass read half-written blocks.
            with self._changed:
                self._changed.wait_for(lambda: not self._loads.keys() & waiting)

    def _load(self, load: _Load, batch: GroupBlocks, epoch: bytes, mark: Any) -> None:
        """Reads one batch of blocks; runs on a transfer thread."""
        misses = list(range(len(batch.blocks)))
        try:
            left_ms = self._left_ms(load.started, self._config.load_deadline_ms)
            if left_ms > 0:
                call = self._call(batch, epoch, left_ms)
                sizes = self.session.call(
                    lambda ns: self._mover.load(ns, batch.group, batch.block_ids, mark, call),
                    try_now=True,
                )
                want = self._mover.block_bytes(batch.group)
                misses = [i for i, size in enumerate(sizes) if size != want]
        except StoreDown:
            pass
        except Exception:
            self._log.exception("Millpond: a load failed; the blocks are recomputed.")
        self._end_load_batch(load, batch, misses)

    def _end_load_batch(self, load: _Load, batch: GroupBlocks, misses: list[int]) -> None:
        with self._changed:
            load.failed_ids.update(batch.block_ids[i] for i in misses)
            loaded = len(batch.blocks) - len(misses)
            self._stats.add("load_blocks", loaded)
            self._stats.add("load_bytes", loaded * self._mover.block_bytes(batch.group))
            self._stats.add("load_failed_blocks", len(misses))
            load.batches_left -= 1
            if load.batches_left == 0:
                self._finish_load(load)

    def _finish_load(self, load: _Load) -> None:
        """Records a load after its last batch; the lock is held."""
        job = load.job
        del self._loads[job.request_id]
        self._report.loads_done[job.load_id] = 1
        if load.failed_ids:
            self._report.loads_failed.add(job.request_id)
            self._report.loads_cut[job.load_id] = 0 if self._whole_requests else load.leading()
            if self._whole_requests:
                self._failed_requests.add(job.request_id)
            else:
                self._failed_blocks |= load.failed_ids
            if not job.asynchronous:
                self._distrust_steps = _DISTRUST_STEPS
        if job.asynchronous:
            self._loaded.add(job.request_id)
        self._stats.observe("load_seconds", time.monotonic() - load.started)
        self._changed.notify_all()

    # -- saves --------------------------------------------------------------

    def void_saves(self, meta: StepMeta) -> None:
        """Stops reading for saves of blocks that this step may overwrite."""
        self._fence.void_here(meta.saves_from)

    def start_saves(self, meta: StepMeta) -> None:
        """Starts this step's saves; the scheduler keeps their blocks."""
        distrust = self._distrust_steps > 0
        self._distrust_steps -= distrust
        if not meta.saves:
            return
        mark = self._mover.ready_mark()
        for job in meta.saves:
            batches = list(self._batches([self._own(group) for group in job.groups]))
            save = _Save(job, len(batches))
            with self._changed:
                self._saves[job.job_id] = save
                self._saves_begun = job.job_id + 1
                if not batches:
                    self._finish_save(save)
            for batch in batches:
                if distrust or not self._pool.save(
                    partial(self._save, save, batch, meta.epoch, mark)
                ):
                    self._end_save_batch(save, batch, [])

    def _save(self, save: _Save, batch: GroupBlocks, epoch: bytes, mark: Any) -> None:
        """Writes one batch of blocks; runs on a transfer thread."""
        answers: list[str] = []

        def left_ms() -> int:
            return self._left_ms(save.queued, self._config.save_deadline_ms)

        def put(namespace: Any) -> list[str]:
            call = self._call(batch, epoch, max(1, left_ms()))
            copying = partial(self._fence.copying, save.job.job_id)
            return self._mover.save(namespace, batch.group, batch.block_ids, mark, call, copying)

        try:
            if left_ms() > 0:
                # The scheduler's side plans saves only while the store answers.
                answers = self.session.call(put, try_now=True, wait_s=left_ms() / 1000)
        except StoreDown:
            pass
        except Exception:
            self._log.exception("Millpond: a save failed; its blocks are not stored.")
        self._end_save_batch(save, batch, answers)

    def _end_save_batch(self, save: _Save, batch: GroupBlocks, answers: list[str]) -> None:
        stored, present = answers.count("stored"), answers.count("exists")
        dropped = len(batch.blocks) - stored - present
        with self._changed:
            self._stats.add("save_blocks", stored)
            self._stats.add("save_present_blocks", present)
            self._stats.add("save_bytes", stored * self._mover.block_bytes(batch.group))
            self._stats.add("save_dropped_blocks", dropped)
            save.failed = save.failed or dropped > 0
            save.batches_left -= 1
            if save.batches_left == 0:
                self._finish_save(save)

    def _finish_save(self, save: _Save) -> None:
        """Records a save after its last batch; the lock is held."""
        job_id = save.job.job_id
        del self._saves[job_id]
        self._fence.done(self._hello.part, min(self._saves, default=self._saves_begun))
        self._report.saves_done[job_id] = 1
        if save.failed:
            self._report.saves_failed.add(job_id)
        self._stats.observe("save_seconds", time.monotonic() - save.queued)
        self._changed.notify_all()

    def _own(self, blocks: GroupBlocks) -> GroupBlocks:
        """Returns the blocks that this rank saves; ranks with equal blocks share the work."""
        copies = self._groups[blocks.group].copies
        if copies == 1:
            return blocks
        mine = [
            (block, place)
            for block, place in zip(blocks.blocks, blocks.block_ids)
            if block % copies == self._hello.part % copies
        ]
        return replace(blocks, blocks=[b for b, _ in mine], block_ids=[i for _, i in mine])

    # -- both ---------------------------------------------------------------

    def _batches(self, groups: list[GroupBlocks]) -> Iterator[GroupBlocks]:
        size = self._config.batch_blocks
        for group in groups:
            for at in range(0, len(group.blocks), size):
                yield GroupBlocks(
                    group.group,
                    group.blocks[at : at + size],
                    group.block_ids[at : at + size],
                    group.hashes,
                    group.hashes_from,
                )

    def _call(self, batch: GroupBlocks, epoch: bytes, deadline_ms: int) -> Mapping[str, Any]:
        group = self._groups[batch.group]
        space = KeySpace(batch.group, group.parts, epoch)
        part = self._hello.part // group.copies
        keys, leaders = space.part_keys(batch.hashes, batch.hashes_from, batch.blocks, part)
        return {"keys": keys, "leaders": leaders, "deadline_ms": deadline_ms}

    @staticmethod
    def _left_ms(since: float, deadline_ms: int) -> int:
        return deadline_ms - int((time.monotonic() - since) * 1000)

    # -- reports ------------------------------------------------------------

    def take_loaded(self, idle: bool) -> tuple[set[str], set[str]]:
        """Returns the requests with finished asynchronous loads, and the failed ones.

        Args:
            idle: the step computes nothing; wait a moment for a transfer.
        """
        with self._changed:
            if idle and (self._loads or self._saves):
                self._changed.wait_for(
                    lambda: self._loaded or self._report.saves_done, timeout=_IDLE_WAIT_S
                )
            loaded, self._loaded = self._loaded, set()
            failed, self._failed_requests = self._failed_requests, set()
        return loaded, failed

    def take_failed_blocks(self) -> set[int]:
        """Returns the blocks that did not load since the last call."""
        with self._changed:
            failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_report(self) -> WorkerMeta | None:
        """Returns this rank's report for the scheduler's side, or None if it is empty."""
        with self._changed:
            report, self._report = self._report, WorkerMeta()
        report.outages = self.session.take_news()
        if not self.session.started:
            # On another host or below another connector, this is the only path to the scheduler.
            report.hellos = {self._hello.part: self._hello.layout}
        return report if report != WorkerMeta() else None

    def take_stats(self) -> MillpondStats | None:
        """Returns and resets the counters; None when nothing happened."""
        with self._changed:
            stats, self._stats = self._stats, MillpondStats()
        return None if stats.is_empty() else stats

    def close(self) -> None:
        """Finishes queued saves within ``shutdown_ms`` and disconnects."""
        if not self._pool.close(self._config.shutdown_ms / 1000):
            self._log.warning("Millpond: some saves were not finished at shutdown.")
        self.session.close()
