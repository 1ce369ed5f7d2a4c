"""`MillpondSecondaryTier`: Millpond below vLLM's tiered CPU offload.

vLLM moves KV blocks from the device to a primary tier in host memory. This tier
keeps chunks of that memory in the store and loads them again. It runs in the
scheduler, so it never waits: lookups, loads and stores run on threads, and the
scheduler polls for their results.

Its options are those of the connector that apply to a tier. They belong in the
tier's configuration, beside ``type`` and ``module_path``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Callable, ClassVar

import numpy as np
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadKey,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
)
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobId, JobResult, SecondaryTierManager, TransferJob

from millpond.vllm.config import ConfigError, ConnectorConfig
from millpond.vllm.identity import cpu_isa, describe_options, layout_digest, namespace_name
from millpond.vllm.session import StoreDown, StoreSession, Target
from millpond.vllm.transfer import TransferPool, read_sizes

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingSpec
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector

logger = init_logger("vllm.millpond")


def _served(name: str, model_id: str) -> dict[str, Any]:
    """Describes the served model and the options that decide its results.

    vLLM passes a tier only the model's name. The rest comes from vLLM's current
    configuration, if one is set.

    Raises:
        ConfigError: the weights cannot be identified.
    """
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    if config is not None and str(config.model_config.model) == name:
        return describe_options(config, model_id)
    if not model_id:
        raise ConfigError(
            "model_id: vLLM does not pass the revision, the quantization and the overrides of "
            f"{name!r} to a tier; give a name that is unique for these weights and options"
        )
    return {"weights": model_id}


class _Lookups(AsyncLookupManager):  # type: ignore[misc]
    """Asks the store on its own thread, one batch per step."""

    def __init__(
        self,
        tier_type: str,
        session: StoreSession,
        names: Callable[[Iterable[OffloadKey]], list[bytes]],
    ) -> None:
        self._session = session
        self._names = names
        super().__init__(tier_type=tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        """Returns per key whether the store has it; false without an answer."""
        try:
            names = self._names(keys)
            return self._session.call(lambda ns: ns.contains(names))
        except StoreDown:
            return [False] * len(keys)

    def forget(self) -> None:
        """Forgets every answer, also those in flight: they belong to another generation of keys."""
        self._lookup_state.clear()
        self._req_keys.clear()
        self._lookup_batch.clear()


class MillpondSecondaryTier(SecondaryTierManager):  # type: ignore[misc]
    """Keeps chunks of vLLM's host memory tier in Millpond.

    vLLM calls `drain_jobs` when the engine resets its cache, and only then. After that
    call keys are of a new, random generation, and only requests that began later store.

    A lookup without an answer is a miss, a failed load makes vLLM recompute, and a
    late store is dropped.

    Raises:
        ConfigError: an option is unknown or out of range, or the store
            rejects the namespace.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        *,
        backpressure_detector: BackpressureDetector | None = None,
        locality: str | None = None,
        enable_kv_events: bool = False,
        **options: Any,
    ) -> None:
        """See the class."""
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self._config = ConnectorConfig.parse(options)
        self.locality = Locality(locality) if locality is not None else None
        # The array keeps the memory alive while threads may use it.
        self._memory = np.asarray(primary_kv_view)
        self._base = int(self._memory.__array_interface__["data"][0])
        self._lock = threading.Lock()
        self._pending = 0
        self._epoch = b""
        # Requests that may store since the last reset; None before the first reset.
        self._requests: set[str] | None = None
        self._idle = threading.Condition(self._lock)
        self._done: list[JobResult] = []
        self._unusable: dict[JobId, list[OffloadKey]] = {}
        self._events: list[OffloadingEvent] | None = None
        if enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events:
            self._events = []
        self._session = StoreSession(
            self._config,
            deadline_ms=self._config.lookup_deadline_ms,
            connections=self._config.connections,
            log=logger,
        )
        self._session.start(self._target(offloading_spec))
        self._pool = TransferPool(self._config.io_threads)
        self._lookups = _Lookups(tier_type, self._session, self._names)

    def _target(self, spec: OffloadingSpec) -> Target:
        """Derives the namespace from all values that decide a chunk's bytes."""
        import vllm

        config = spec.config
        described = {
            "tier": 3,
            "engine": f"vllm {vllm.__version__}",
            "model": _served(config.model.name, self._config.model_id),
            "dtype": config.model.dtype,
            "tokens_per_hash": config.cache.tokens_per_hash,
            "blocks_per_chunk": config.cache.blocks_per_chunk,
            "groups": [
                [group.group_id, group.tokens_per_block, list(group.layer_names)]
                for group in config.groups
            ],
            "parallel": [
                config.parallel.tp_size,
                config.parallel.pp_size,
                config.parallel.pcp_size,
                config.parallel.dcp_size,
            ],
            "layout": [config.kv_cache_layout, config.canonical_layout, config.replicated_layout],
            "chunk_bytes": self.block_size_bytes,
            "isa": cpu_isa(),
        }
        layout = layout_digest(described)
        return Target(self._config.namespace or namespace_name(config.model.name, layout), layout)

    # -- lookups ------------------------------------------------------------

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Asks for newly computed chunks only: known ones are stored already."""
        if self._requests is not None:
            self._requests.add(req_context.req_id)
        return RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Returns the answer for a chunk, RETRY until the store answers."""
        if not self._config.load or not self._session.up:
            return LookupResult.MISS
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Sends this step's lookups."""
        self._lookups.flush()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Forgets the lookups of a request."""
        self._lookups.cleanup(req_context.req_id)
        if self._requests is not None:
            self._requests.discard(req_context.req_id)

    # -- transfers ----------------------------------------------------------

    def _names(self, keys: Iterable[OffloadKey]) -> list[bytes]:
        """Returns the keys in the store, of the present generation."""
        epoch = self._epoch
        return [bytes(key) + epoch for key in keys]

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Queues chunks to be written; vLLM keeps them in place until done."""
        request = job_metadata.req_context.req_id
        if self._requests is not None and request not in self._requests:
            # Its earlier chunks are of the old weights, and vLLM offloads them again.
            with self._lock:
                self._pending += 1
            self._finish(job_metadata, [False] * len(list(job_metadata.keys)), 0.0)
            return
        self._submit(job_metadata, self._pool.save, self._store)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Queues chunks to be read into their places."""
        self._submit(job_metadata, self._pool.load, self._load)

    def _submit(
        self,
        job: TransferJob,
        enqueue: Callable[[Callable[[], None]], bool],
        work: Callable[[list[bytes], list[list[tuple[int, int]]], int], list[bool]],
    ) -> None:
        keys = self._names(job.keys)
        size = self.block_size_bytes
        places = [[(self._base + int(chunk) * size, size)] for chunk in job.chunk_ids]
        queued = time.monotonic()
        with self._lock:
            self._pending += 1

        def run() -> None:
            good = [False] * len(keys)
            try:
                limit = (
                    self._config.load_deadline_ms
                    if job.is_promotion
                    else self._config.save_deadline_ms
                )
                left_ms = limit - int((time.monotonic() - queued) * 1000)
                if left_ms > 0:
                    good = work(keys, places, left_ms)
            except StoreDown:
                pass
            except Exception:
                logger.exception("Millpond: a transfer failed.")
            self._finish(job, good, time.monotonic() - queued)

        if not enqueue(run):
            self._finish(job, [False] * len(keys), 0.0)

    def _store(
        self, keys: list[bytes], places: list[list[tuple[int, int]]], left_ms: int
    ) -> list[bool]:
        if not self._config.save:
            return [False] * len(keys)
        answers = self._session.call(
            lambda ns: ns.put(keys=keys, values=places, deadline_ms=left_ms)
        )
        return [answer in ("stored", "exists") for answer in answers]

    def _load(
        self, keys: list[bytes], places: list[list[tuple[int, int]]], left_ms: int
    ) -> list[bool]:
        call = {"keys": keys, "deadline_ms": left_ms}
        sizes = self._session.call(lambda ns: read_sizes(ns, places, call))
        return [size == self.block_size_bytes for size in sizes]

    def _finish(self, job: TransferJob, good: list[bool], seconds: float) -> None:
        keys = list(job.keys)
        kept = [key for key, ok in zip(keys, good) if ok]
        result = JobResult(
            job_id=job.job_id,
            success=all(good),
            successful_keys=tuple(kept) if job.is_promotion and not all(good) else None,
            transfer_time=seconds,
            transfer_bytes=len(kept) * self.block_size_bytes,
        )
        with self._lock:
            self._done.append(result)
            self._failed_loads(job, keys, good)
            if kept and not job.is_promotion and self._events is not None:
                self._events.append(
                    OffloadingEvent(
                        keys=kept, medium=self.medium, removed=False, locality=self.locality
                    )
                )
            self._pending -= 1
            self._idle.notify_all()

    def _failed_loads(self, job: TransferJob, keys: list[OffloadKey], good: list[bool]) -> None:
        """Remembers chunks that must not be tried again; the lock is held."""
        if job.is_promotion:
            failed = [key for key, ok in zip(keys, good) if not ok]
            if failed:
                self._unusable[job.job_id] = failed

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Returns the jobs that ended since the last call."""
        with self._lock:
            done, self._done = self._done, []
            failed = [key for job in done for key in self._unusable.pop(job.job_id, ())]
        # On the scheduler's thread, which owns the lookups. Without this step a
        # chunk that does not load would be found and tried forever.
        self._lookups.mark_miss(failed)
        return done

    def has_pending_work(self) -> bool:
        """Returns whether jobs are still in flight."""
        with self._lock:
            return self._pending > 0

    def drain_jobs(self) -> None:
        """Waits until no transfer uses the primary tier's memory, then begins a new generation.

        Every transfer ends by its deadline, so this call ends too. vLLM empties the primary
        tier right after this call, because the weights may have changed.
        """
        with self._idle:
            self._idle.wait_for(lambda: self._pending == 0)
        self._epoch = os.urandom(8)
        self._requests = set()
        self._lookups.forget()

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Returns events of chunks that were stored."""
        with self._lock:
            if not self._events:
                return ()
            events, self._events = self._events, []
            return events

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Does nothing: reading a chunk marks it as used in the store."""

    def shutdown(self) -> None:
        """Finishes queued transfers within ``shutdown_ms`` and disconnects."""
        self._lookups.shutdown()
        if not self._pool.close(self._config.shutdown_ms / 1000):
            logger.warning("Millpond: some transfers were not finished at shutdown.")
        self._session.close()
