"""KV events: report to listeners (routers) which blocks the store received.

The events cover blocks that this engine wrote. They do not cover later
evictions in the store, nor blocks that other engines wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millpond.vllm.lookup import Group
from millpond.vllm.meta import SaveJob

if TYPE_CHECKING:
    from vllm.v1.request import Request

_EVENTS_MAX = 65_536
"""Events kept until the engine takes them, which it does every step."""


class EventLog:
    """Collects ``BlockStored`` events of finished saves."""

    def __init__(self, groups: Sequence[Group]) -> None:
        """See the class."""
        self._groups = {group.index: group for group in groups}
        self._events: list[Any] = []

    def saved(self, job: SaveJob, request: Request, *, failed: bool) -> None:
        """Records a save that all ranks finished; a failed save gives no event."""
        from vllm.distributed.kv_events import MEDIUM_STORAGE, BlockStored
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

        if failed:
            return
        for blocks in job.groups:
            size = self._groups[blocks.group].block_tokens
            for block in blocks.blocks:
                at = block - blocks.hashes_from
                parent = blocks.hashes[at - 1] if at > 0 else None
                if len(self._events) >= _EVENTS_MAX:
                    return
                self._events.append(
                    BlockStored(
                        block_hashes=[maybe_convert_block_hash(blocks.hashes[at])],
                        parent_block_hash=None
                        if parent is None
                        else maybe_convert_block_hash(parent),
                        token_ids=list(request.all_token_ids[block * size : (block + 1) * size]),
                        block_size=size,
                        lora_id=None,
                        medium=MEDIUM_STORAGE,
                        lora_name=_lora_name(request),
                        group_idx=blocks.group,
                    )
                )

    def take(self) -> list[Any]:
        """Returns the events since the last call."""
        events, self._events = self._events, []
        return events


def _lora_name(request: Request) -> str | None:
    lora = getattr(request, "lora_request", None)
    return None if lora is None else str(lora.lora_name)
