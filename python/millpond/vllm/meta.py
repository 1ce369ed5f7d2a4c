"""Messages between the scheduler's side and the worker's side of the connector.

Plain data that can be pickled: with several ranks the two sides are different
processes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from millpond.vllm.session import Target


@dataclass
class GroupBlocks:
    """Blocks of one KV cache group to move for one request.

    Attributes:
        group: index of the KV cache group.
        blocks: block indices in the prompt, rising.
        block_ids: place of each block in the KV cache.
        hashes: hashes of consecutive blocks, reaching back to the first
            leader needed.
        hashes_from: block index of ``hashes[0]``.
    """

    group: int
    blocks: list[int]
    block_ids: list[int]
    hashes: list[bytes]
    hashes_from: int


@dataclass
class LoadJob:
    """Blocks to read for one request before it may run."""

    request_id: str
    groups: list[GroupBlocks]
    asynchronous: bool
    load_id: int = 0


@dataclass
class SaveJob:
    """Blocks that this step completes, to be written; pinned until reported or given back."""

    job_id: int
    request_id: str
    groups: list[GroupBlocks]


@dataclass
class StepMeta(KVConnectorMetadata):  # type: ignore[misc]
    """Scheduler to workers, once per step.

    Attributes:
        target: namespace to use.
        epoch: key suffix of the current cache generation.
        saves_from: saves with lower numbers are void: their blocks were given away, and
            this step may compute other blocks in their places.
        loads: reads to start.
        saves: writes to start when the forward pass is done.
        idle: the step computes nothing, so a worker may wait a little for
            transfers instead of returning at once.
    """

    target: Target | None = None
    epoch: bytes = b""
    saves_from: int = 0
    loads: list[LoadJob] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    idle: bool = False


@dataclass
class WorkerHello(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    """Workers to scheduler, once at start: how a rank lays out its blocks.

    Attributes:
        part: the rank's index.
        layout: 32-byte digest of its layout.
    """

    part: int
    layout: bytes


@dataclass
class WorkerMeta(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """Workers to scheduler, each step.

    Attributes:
        saves_done: job id to the number of ranks done with it.
        saves_failed: jobs that some rank did not store completely.
        loads_failed: requests that some rank could not load completely.
        loads_done: load id to the number of ranks done with it.
        loads_cut: loads that some rank could not load completely, and the number of leading
            blocks that every rank loaded.
        outages: reasons of outages that began on some rank.
        hellos: layouts of ranks that do not know the namespace yet.
    """

    saves_done: dict[int, int] = field(default_factory=dict)
    saves_failed: set[int] = field(default_factory=set)
    loads_failed: set[str] = field(default_factory=set)
    outages: list[str] = field(default_factory=list)
    hellos: dict[int, bytes] = field(default_factory=dict)
    loads_done: dict[int, int] = field(default_factory=dict)
    loads_cut: dict[int, int] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerMeta:
        """Merges the reports of two ranks."""
        assert isinstance(other, WorkerMeta), "ranks run the same connector"
        saved, loaded = Counter(self.saves_done), Counter(self.loads_done)
        saved.update(other.saves_done)
        loaded.update(other.loads_done)
        cut = dict(self.loads_cut)
        for load_id, blocks in other.loads_cut.items():
            cut[load_id] = min(blocks, cut.get(load_id, blocks))
        return WorkerMeta(
            saves_done=dict(saved),
            saves_failed=self.saves_failed | other.saves_failed,
            loads_failed=self.loads_failed | other.loads_failed,
            outages=self.outages + other.outages,
            hellos={**self.hellos, **other.hellos},
            loads_done=dict(loaded),
            loads_cut=cut,
        )
