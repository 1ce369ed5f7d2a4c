"""Movers of the bytes of blocks between the KV cache and the store.

A save first copies blocks to a staging buffer, so that it reads the cache only for
the time of a memory copy and not for the time of a store write: the engine can
take its blocks back at any time. Device memory is gathered on the device and copied
in one transfer per layer. Loads into device memory also go through a buffer; in
host memory the store's client writes into the cache itself.
"""

from __future__ import annotations

import ctypes
import queue
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Callable, Protocol

import torch

from millpond.vllm.layout import KVLayout, LayerCache, LayoutError, Segment, block_first
from millpond.vllm.transfer import read_sizes

Copying = Callable[[], AbstractContextManager[bool]]
"""Surrounds a copy out of the cache; yields False if nothing is left to copy."""


class Mover(Protocol):
    """Moves batches of blocks of one rank; thread safe."""

    name: str

    def ready_mark(self) -> Any:
        """Marks the current point of the engine's work on the device."""

    def block_bytes(self, group: int) -> int:
        """Returns the size of one value of a group."""

    def save(
        self,
        namespace: Any,
        group: int,
        ids: Sequence[int],
        mark: Any,
        call: Mapping[str, Any],
        copying: Copying,
    ) -> list[str]:
        """Copies blocks and writes them; returns the store's answer per written block."""

    def load(
        self, namespace: Any, group: int, ids: Sequence[int], mark: Any, call: Mapping[str, Any]
    ) -> list[int]:
        """Reads blocks; returns bytes per block, negative for a miss."""


class HostMover:
    """Moves blocks in host memory.

    Args:
        layout: places of the blocks.
        batch_blocks: most blocks per call.
        staging_bytes: size of all staging buffers together; each has room for a block at least.
        savers: threads that save at the same time.
    """

    name = "host"

    def __init__(
        self,
        layout: KVLayout,
        *,
        batch_blocks: int = 16,
        staging_bytes: int = 256 << 20,
        savers: int = 1,
    ) -> None:
        """See the class."""
        self._layout = layout
        block_bytes = max(group.block_bytes for group in layout.groups if group is not None)
        self._blocks = max(1, min(batch_blocks, staging_bytes // savers // block_bytes))
        self._free: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
        for _ in range(savers):
            self._free.put(torch.empty(self._blocks * block_bytes, dtype=torch.uint8))

    def ready_mark(self) -> None:
        """Host memory needs no ordering: the step's work is done."""

    def block_bytes(self, group: int) -> int:
        """Returns the size of one value of a group."""
        return self._layout.group(group).block_bytes

    def _segments(self, group: int, ids: Sequence[int]) -> list[list[Segment]]:
        layout = self._layout.group(group)
        return [layout.segments(block_id) for block_id in ids]

    def save(
        self,
        namespace: Any,
        group: int,
        ids: Sequence[int],
        mark: Any,
        call: Mapping[str, Any],
        copying: Copying,
    ) -> list[str]:
        """Copies blocks and writes them."""
        answers: list[str] = []
        for at in range(0, len(ids), self._blocks):
            part = slice(at, at + self._blocks)
            staging = self._free.get()
            try:
                with copying() as wanted:
                    if not wanted:
                        break
                    values = self._copy(group, ids[part], staging.data_ptr())
                answers += namespace.put(
                    values=values,
                    **{**call, "keys": call["keys"][part], "leaders": call["leaders"][part]},
                )
            finally:
                self._free.put(staging)
        return answers

    def _copy(self, group: int, ids: Sequence[int], to: int) -> list[list[Segment]]:
        """Copies blocks one after the other to an address, and returns their places."""
        size = self.block_bytes(group)
        for at, segments in enumerate(self._segments(group, ids)):
            place = to + at * size
            for address, length in segments:
                # Releases the interpreter's lock.
                ctypes.memmove(place, address, length)
                place += length
        return [[(to + at * size, size)] for at in range(len(ids))]

    def load(
        self, namespace: Any, group: int, ids: Sequence[int], mark: Any, call: Mapping[str, Any]
    ) -> list[int]:
        """Reads blocks straight into the cache."""
        return read_sizes(namespace, self._segments(group, ids), call)


class StagedMover:
    """Moves blocks in device memory, through pinned host memory.

    Args:
        caches: layer name to its tensor or tensors.
        groups: layer names of each kept group, None for others.
        num_blocks: blocks in the KV cache.
        batch_blocks: most blocks per call.
        staging_bytes: size of all staging buffers together.

    Raises:
        LayoutError: a tensor cannot be cut into blocks, or one batch does not
            fit in the staging memory.
    """

    name = "staged"

    def __init__(
        self,
        caches: Mapping[str, LayerCache],
        groups: Sequence[Iterable[str] | None],
        num_blocks: int,
        *,
        batch_blocks: int,
        staging_bytes: int,
    ) -> None:
        """See the class."""
        self._views: list[list[torch.Tensor]] = [
            [] if names is None else _views(caches, names, num_blocks) for names in groups
        ]
        self._sizes = [[_bytes_per_block(view) for view in views] for views in self._views]
        batch_bytes = batch_blocks * max(sum(sizes) for sizes in self._sizes)
        buffers = staging_bytes // batch_bytes
        if buffers < 1:
            raise LayoutError(
                f"a batch of {batch_blocks} blocks takes {batch_bytes} bytes, more than "
                "staging_mib; raise staging_mib or lower batch_blocks"
            )
        self._device = next(view.device for views in self._views for view in views)
        cuda = self._device.type == "cuda"
        self._stream = torch.cuda.Stream(self._device) if cuda else None
        self._free: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
        for _ in range(min(buffers, 8)):
            self._free.put(torch.empty(batch_bytes, dtype=torch.uint8, pin_memory=cuda))

    def ready_mark(self) -> Any:
        """Records an event after the engine's work so far."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def block_bytes(self, group: int) -> int:
        """Returns the size of one value of a group."""
        return sum(self._sizes[group])

    def save(
        self,
        namespace: Any,
        group: int,
        ids: Sequence[int],
        mark: Any,
        call: Mapping[str, Any],
        copying: Copying,
    ) -> list[str]:
        """Gathers blocks on the device, copies them out and writes them."""
        staging = self._free.get()
        try:
            with copying() as wanted:
                if not wanted:
                    return []
                with self._on_stream(mark):
                    index = torch.tensor(ids, device=self._device)
                    parts = self._parts(group, len(ids), staging)
                    for view, part in zip(self._views[group], parts):
                        rows = view.index_select(0, index).reshape(len(ids), -1)
                        part.copy_(rows.view(torch.uint8), non_blocking=True)
                self._wait()
            answers: list[str] = namespace.put(
                values=self._segments(group, len(ids), staging), **call
            )
            return answers
        finally:
            self._free.put(staging)

    def load(
        self, namespace: Any, group: int, ids: Sequence[int], mark: Any, call: Mapping[str, Any]
    ) -> list[int]:
        """Reads blocks and copies the blocks that arrived to the device."""
        staging = self._free.get()
        try:
            sizes = read_sizes(namespace, self._segments(group, len(ids), staging), call)
            good = [i for i, size in enumerate(sizes) if size == self.block_bytes(group)]
            with self._on_stream(mark):
                rows = torch.tensor(good, dtype=torch.long)
                index = torch.tensor([ids[i] for i in good], dtype=torch.long, device=self._device)
                for view, part in zip(self._views[group], self._parts(group, len(ids), staging)):
                    fresh = part[rows].to(self._device).view(view.dtype)
                    view[index] = fresh.reshape(len(good), *view.shape[1:])
            self._wait()
            return sizes
        finally:
            self._free.put(staging)

    def _parts(self, group: int, count: int, staging: torch.Tensor) -> list[torch.Tensor]:
        """Cuts the staging buffer into one ``[count, bytes]`` table per tensor."""
        parts, at = [], 0
        for size in self._sizes[group]:
            parts.append(staging[at : at + count * size].view(count, size))
            at += count * size
        return parts

    def _segments(self, group: int, count: int, staging: torch.Tensor) -> list[list[Segment]]:
        parts = self._parts(group, count, staging)
        return [
            [(part.data_ptr() + i * part.shape[1], part.shape[1]) for part in parts]
            for i in range(count)
        ]

    def _on_stream(self, mark: Any) -> Any:
        if self._stream is None:
            return torch.no_grad()
        if mark is not None:
            self._stream.wait_event(mark)
        return torch.cuda.stream(self._stream)

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


def _views(
    caches: Mapping[str, LayerCache], names: Iterable[str], num_blocks: int
) -> list[torch.Tensor]:
    views: list[torch.Tensor] = []
    for name in names:
        cache = caches.get(name, ())
        for tensor in [cache] if isinstance(cache, torch.Tensor) else cache:
            view = block_first(name, tensor, num_blocks)
            if all(_place(view) != _place(other) for other in views):
                views.append(view)
    return views


def _place(view: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    return view.data_ptr(), tuple(view.stride())


def _bytes_per_block(view: torch.Tensor) -> int:
    count: int = view[0].numel() * view.element_size()
    return count


def make_mover(
    caches: Mapping[str, LayerCache],
    groups: Sequence[Iterable[str] | None],
    num_blocks: int,
    *,
    batch_blocks: int,
    staging_bytes: int,
    savers: int,
) -> tuple[Mover, str]:
    """Returns the mover for these caches and a fingerprint of its layout.

    Raises:
        LayoutError: the caches cannot be cut into blocks.
    """
    layout = KVLayout(caches, groups, num_blocks)
    mover: Mover
    if layout.device.type == "cpu":
        mover = HostMover(
            layout, batch_blocks=batch_blocks, staging_bytes=staging_bytes, savers=savers
        )
    else:
        mover = StagedMover(
            caches, groups, num_blocks, batch_blocks=batch_blocks, staging_bytes=staging_bytes
        )
    return mover, f"{mover.name}:{layout.digest()}"
