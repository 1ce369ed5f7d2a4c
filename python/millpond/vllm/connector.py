"""`MillpondConnector`: vLLM's interface to the KV store.

vLLM makes one connector in its scheduler and one per worker. This class only
routes the calls; `scheduler.py` plans, `worker.py` moves bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.logger import init_logger

from millpond.vllm.config import ConfigError, ConnectorConfig
from millpond.vllm.events import EventLog
from millpond.vllm.fence import Fence
from millpond.vllm.identity import describe_engine, layout_digest, namespace_name
from millpond.vllm.lookup import Group
from millpond.vllm.meta import StepMeta, WorkerHello, WorkerMeta
from millpond.vllm.mover import make_mover
from millpond.vllm.scheduler import SchedulerSide
from millpond.vllm.session import Target
from millpond.vllm.stats import MillpondPromMetrics, MillpondStats
from millpond.vllm.transfer import savers
from millpond.vllm.worker import WorkerSide

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

# vLLM shows the records of loggers below its own.
logger = init_logger("vllm.millpond")


class MillpondConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Loads KV blocks from Millpond and saves them there.

    The cache never stops the engine: the engine recomputes blocks that do not
    arrive in time, and the connector drops and counts blocks that it cannot
    write in time.

    Raises:
        ConfigError: an option is unknown or out of range, the model cannot be
            cached, or the store rejects the namespace.
    """

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        """See the class."""
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self._config = ConnectorConfig.parse(transfer.kv_connector_extra_config)
        # vLLM's default fails the request; a cache must not.
        transfer.kv_load_failure_policy = "recompute"
        outer = _outer_transfer()
        if outer is not None and outer.kv_load_failure_policy != "recompute":
            # The engine only reads the policy of the outermost connector.
            outer.kv_load_failure_policy = "recompute"
            logger.info(
                "Millpond: the engine recomputes blocks that do not load: "
                "kv_load_failure_policy of %s is set to `recompute`",
                outer.kv_connector,
            )
        parallel = vllm_config.parallel_config
        self._ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        self._groups = _kept_groups(vllm_config, kv_cache_config)
        options = json.dumps(transfer.kv_connector_extra_config, sort_keys=True, default=str)
        self._fence = Fence(f"{transfer.engine_id}:{options}", self._ranks)
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._events: EventLog | None = None
        self._hello: WorkerHello | None = None
        self._layouts: dict[int, bytes] = {}
        self._late: threading.Thread | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = self._make_scheduler(vllm_config, kv_cache_config)

    def _make_scheduler(
        self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig
    ) -> SchedulerSide:
        from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

        align_tokens, hash_tokens = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
        events = vllm_config.kv_events_config
        if events is not None and events.enable_kv_cache_events:
            self._events = EventLog(self._groups)
        transfer = vllm_config.kv_transfer_config
        return SchedulerSide(
            self._config,
            self._groups,
            ranks=self._ranks,
            hash_tokens=hash_tokens,
            align_tokens=align_tokens,
            fence=self._fence,
            events=self._events,
            log=logger,
            may_load=self._config.load and transfer.is_kv_consumer,
            may_save=self._config.save and transfer.is_kv_producer,
        )

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a cache does not promise delivery; a lost save is a later miss."""
        return False

    # -- worker -------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Records where this rank's KV blocks are stored.

        Raises:
            ConfigError: the caches cannot be cut into blocks.
        """
        kept = {group.index for group in self._groups}
        names = [
            list(group.layer_names) if index in kept else None
            for index, group in enumerate(self._kv_cache_config.kv_cache_groups)
        ]
        try:
            mover, digest = make_mover(
                kv_caches,
                names,
                self._kv_cache_config.num_blocks,
                batch_blocks=self._config.batch_blocks,
                staging_bytes=self._config.staging_mib << 20,
                savers=savers(self._config.io_threads),
            )
        except ValueError as error:
            raise ConfigError(f"Millpond cannot cache this model: {error}") from error
        layout = hashlib.sha256(digest.encode()).digest()
        self._hello = WorkerHello(_rank_part(self._vllm_config), layout)
        self._fence.hello(self._hello.part, layout)
        self._worker = WorkerSide(
            self._config,
            mover,
            self._fence,
            hello=self._hello,
            groups=self._groups,
            whole_requests=len(self._kv_cache_config.kv_cache_groups) > 1,
            log=logger,
        )

    def get_handshake_metadata(self) -> WorkerHello | None:
        """Returns this rank's layout, for the scheduler's side.

        None if this connector is below another one: a `MultiConnector` passes the metadata of
        its first child to all children, and other connectors cannot handle this type.
        """
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

        below = has_kv_transfer_group() and get_kv_transfer_group() is not self
        return None if below else self._hello

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Ends saves of blocks that this step may overwrite; called before it computes."""
        if self._worker is not None and isinstance(kv_connector_metadata, StepMeta):
            self._worker.void_saves(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Starts this step's loads."""
        if self._worker is not None:
            self._worker.void_saves(self._meta())
            self._worker.start_loads(self._meta())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Does nothing: synchronous loads are done before the forward pass."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Does nothing: all layers of a block are one value, saved after the step."""

    def wait_for_save(self) -> None:
        """Starts this step's saves; their blocks stay referenced until done."""
        if self._worker is not None:
            self._worker.start_saves(self._meta())

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Returns the requests with finished loads."""
        if self._worker is None:
            return KVConnectorTransferResults()
        loaded, failed = self._worker.take_loaded(self._meta().idle)
        return KVConnectorTransferResults(finished_recving=loaded, failed_recving=failed)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Earlier form of `get_transfer_results`."""
        return None, self.get_transfer_results(finished_req_ids).finished_recving

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Returns blocks that must be recomputed."""
        return self._worker.take_failed_blocks() if self._worker is not None else set()

    def build_connector_worker_meta(self) -> WorkerMeta | None:
        """Returns this rank's report to the scheduler's side."""
        return self._worker.take_report() if self._worker is not None else None

    def _meta(self) -> StepMeta:
        meta = self._get_connector_metadata()
        assert isinstance(meta, StepMeta), "the scheduler's side is this connector too"
        return meta

    # -- scheduler ----------------------------------------------------------

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Any]) -> None:
        """Collects the ranks' layouts, names the namespace and connects.

        Metadata of other connectors is ignored. Ranks without metadata here and in the page
        of this host send their layout with their first step.

        Raises:
            ConfigError: the store rejects the namespace.
        """
        self._layouts.update(self._fence.hellos())
        for hello in metadata.values():
            if isinstance(hello, WorkerHello):
                self._layouts[hello.part] = hello.layout
        # Every worker of this host has the page open at this point.
        self._fence.hide()
        if len(self._layouts) == self._ranks:
            self._connect()

    def _connect(self) -> None:
        """Derives the namespace and opens it."""
        described = describe_engine(self._vllm_config, self._kv_cache_config, self._config.model_id)
        described["ranks"] = [
            [part, digest.hex()] for part, digest in sorted(self._layouts.items())
        ]
        layout = layout_digest(described)
        name = self._config.namespace or namespace_name(
            str(self._vllm_config.model_config.model), layout
        )
        logger.info("Millpond at %s, namespace %s", self._config.address, name)
        self._planner().start(Target(name, layout))

    def _connect_late(self) -> None:
        """Connects while the engine runs; weights may take minutes to hash."""
        try:
            self._connect()
        except ConfigError:
            logger.exception("Millpond: the engine continues without the cache.")

    def _learn(self, hellos: dict[int, bytes]) -> None:
        """Takes layouts that arrived with a step."""
        self._layouts.update(hellos)
        if self._late is None and len(self._layouts) == self._ranks:
            if self._planner().target is not None:
                return
            self._late = threading.Thread(
                target=self._connect_late, name="millpond-connect", daemon=True
            )
            self._late.start()

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Takes the block pool; saves pin their source blocks in it."""
        if self._scheduler is not None:
            self._scheduler.bind_pool(gpu_block_pool)

    def on_new_request(self, request: Any) -> None:
        """Starts to track a request."""
        self._planner().on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Returns the number of further tokens in the store, and whether they load
        between steps."""
        planner = self._planner()
        gain = planner.matched_tokens(request, num_computed_tokens)
        return gain, gain > 0 and planner.load_async

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Plans the load of a match that has its blocks."""
        self._planner().after_alloc(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepMeta:
        """Returns this step's jobs."""
        return self._planner().build_meta(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        """Takes the ranks' reports."""
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, WorkerMeta):
            self._learn(report.hellos)
            self._planner().on_worker_report(report)

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Forgets a request; nothing delays its blocks."""
        self._planner().finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Forgets a request; nothing delays its blocks."""
        return self.request_finished(request, [])

    def has_pending_push_work(self) -> bool:
        """Keeps the engine stepping while saves hold blocks."""
        return self._planner().has_pending_saves()

    def take_events(self) -> Iterable[Any]:
        """Returns events of blocks that reached the store."""
        return self._events.take() if self._events is not None else ()

    def reset_cache(self) -> bool | None:
        """Makes all blocks stored so far unreachable for this engine."""
        return self._planner().reset()

    def _planner(self) -> SchedulerSide:
        assert self._scheduler is not None, "called on the scheduler's side only"
        return self._scheduler

    # -- either -------------------------------------------------------------

    def get_kv_connector_stats(self) -> MillpondStats | None:
        """Returns the counters since the last call."""
        side = self._scheduler or self._worker
        return side.take_stats() if side is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> MillpondStats:
        """Rebuilds statistics from their data."""
        return MillpondStats(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> MillpondPromMetrics:
        """Registers the Prometheus metrics ``vllm:millpond_*``."""
        return MillpondPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Finishes queued saves within ``shutdown_ms`` and disconnects."""
        for side in (self._worker, self._scheduler):
            if side is not None:
                side.close()


def _outer_transfer() -> Any:
    """Returns the transfer configuration of the connector that creates this one, if any."""
    frame = sys._getframe(1)
    while frame is not None:
        maker = frame.f_locals.get("self")
        if isinstance(maker, KVConnectorBase_V1) and not isinstance(maker, MillpondConnector):
            return getattr(maker, "_vllm_config", None) and maker._vllm_config.kv_transfer_config
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _register() -> None:
    """Registers the connector's name: a `MultiConnector` finds statistics by it."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    # A reload of this module finds the name registered.
    with contextlib.suppress(ValueError):
        KVConnectorFactory.register_connector(
            "MillpondConnector", "millpond.vllm.connector", "MillpondConnector"
        )


_register()


def _rank_part(vllm_config: Any) -> int:
    """Returns this rank's index among the ranks that hold parts of a block."""
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    tensor_ranks: int = vllm_config.parallel_config.tensor_parallel_size
    part: int = get_pp_group().rank_in_group * tensor_ranks + get_tp_group().rank_in_group
    return part


def _kept_groups(vllm_config: Any, kv_cache_config: Any) -> list[Group]:
    """Returns the cache groups that the store keeps.

    Raises:
        ConfigError: the model or its parallel layout cannot be cached.
    """
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise ConfigError(f"the Millpond connector does not support {name} > 1")
    speculative = vllm_config.speculative_config
    eagle = speculative is not None and speculative.use_eagle_block_drop()
    _, hash_tokens = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    kept = []
    for index in kv_cache_config.prefix_cacheable_group_ids:
        whole = kv_cache_config.kv_cache_groups[index].kv_cache_spec
        spec = _plain_spec(whole)
        copies = parallel.tensor_parallel_size if _has_latents(whole) else 1
        if isinstance(spec, MambaSpec):
            raise ConfigError(
                f"KV cache group {index} holds recurrent (Mamba) state, which the Millpond "
                "connector does not store yet; see docs/compatibility.md"
            )
        kept.append(
            Group(
                index=index,
                block_tokens=spec.block_size,
                scale=spec.block_size // hash_tokens,
                spec=spec,
                full=isinstance(spec, FullAttentionSpec),
                drop_last=eagle,
                parts=ranks // copies,
                copies=copies,
            )
        )
    if not kept:
        raise ConfigError("the model has no KV cache that depends on the prefix alone")
    return kept


def _has_latents(spec: Any) -> bool:
    """Whether the layers cache latents (MLA), which every tensor parallel rank has in full."""
    from vllm.v1.kv_cache_interface import (
        MLAAttentionSpec,
        SlidingWindowMLASpec,
        UniformTypeKVCacheSpecs,
    )

    latent = (MLAAttentionSpec, SlidingWindowMLASpec)
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return all(isinstance(layer, latent) for layer in spec.kv_cache_specs.values())
    return isinstance(spec, latent)


def _plain_spec(spec: Any) -> Any:
    """Returns the description of one layer of a group; its layers share a block size."""
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    if isinstance(spec, UniformTypeKVCacheSpecs):
        return next(iter(spec.kv_cache_specs.values()))
    return spec
