"""The places of the bytes of a KV block in the registered KV cache tensors.

vLLM's attention backends lay their caches out in different ways: the block
dimension first or second, heads before or after tokens, all layers in one
allocation or each in its own, a cache block split in several kernel blocks.
This module assumes no layout. It finds the block dimension and merges every
other dimension by its stride into contiguous runs. A block is the list of these
runs over all layers of its group: one value, stored and loaded as opaque bytes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

import torch

Segment = tuple[int, int]
"""Address and length in bytes."""

LayerCache = Union[torch.Tensor, Sequence[torch.Tensor]]


@dataclass(frozen=True)
class BlockRuns:
    """The contiguous runs of one tensor's blocks.

    Attributes:
        base: address of block 0, or its offset for tests.
        block_stride: bytes from one block to the next.
        offsets: start of each run, in bytes from the block's start.
        run_bytes: length of each run.
        shape: shape of one block; describes the layout.
        order: dimensions from the outermost to the innermost in memory.
        dtype: element type.
    """

    base: int
    block_stride: int
    offsets: tuple[int, ...]
    run_bytes: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: str

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in this tensor."""
        return self.run_bytes * len(self.offsets)


class LayoutError(ValueError):
    """A KV cache tensor has no dimension that counts blocks."""


def block_runs(name: str, tensor: torch.Tensor, num_blocks: int) -> BlockRuns:
    """Finds the contiguous runs that make up one block of ``tensor``.

    Raises:
        LayoutError: no dimension is a multiple of ``num_blocks``.
    """
    view = block_first(name, tensor, num_blocks)
    size = view.element_size()
    dims = [
        (stride * size, extent, index)
        for index, (extent, stride) in enumerate(zip(view.shape[1:], view.stride()[1:]))
    ]
    # From the innermost dimension outwards: while the next dimension starts
    # at the end of this one, both belong to the same run.
    order = sorted(dims, key=lambda dim: (dim[0], -dim[1]))
    run = size
    outer: list[tuple[int, int]] = []
    for stride, extent, _ in order:
        if extent == 1:
            continue
        if not outer and stride == run:
            run = stride * extent
        else:
            outer.append((stride, extent))
    steps = [[stride * i for i in range(extent)] for stride, extent in reversed(outer)]
    offsets = tuple(sum(parts) for parts in itertools.product(*steps))
    return BlockRuns(
        base=tensor.data_ptr(),
        block_stride=view.stride(0) * size,
        offsets=offsets,
        run_bytes=run,
        shape=tuple(view.shape[1:]),
        order=tuple(index for _, _, index in reversed(order)),
        dtype=str(tensor.dtype),
    )


def block_first(name: str, tensor: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """Views the tensor as ``[num_blocks, ...]``."""
    for dim, extent in enumerate(tensor.shape):
        # A leading pair of key and value planes is not the block dimension,
        # even if the engine happens to have two blocks.
        if extent % num_blocks or (dim == 0 and extent == 2 and tensor.dim() > 4):
            continue
        if extent == num_blocks:
            return tensor.movedim(dim, 0)
        # A cache block that spans several blocks of the attention kernel.
        return tensor.unflatten(dim, (num_blocks, extent // num_blocks)).movedim(dim, 0)
    raise LayoutError(
        f"KV cache of layer {name} has shape {tuple(tensor.shape)}: no dimension counts "
        f"{num_blocks} blocks"
    )


class GroupLayout:
    """The blocks of one KV cache group: all its layers as one value."""

    def __init__(self, runs: Sequence[BlockRuns]) -> None:
        """See the class."""
        self.runs = list(runs)
        self.block_bytes = sum(run.block_bytes for run in runs)
        self._pieces: list[tuple[int, int, int]] = []
        for run in runs:
            for offset in run.offsets:
                self._add_piece(run.base + offset, run.block_stride, run.run_bytes)

    def _add_piece(self, base: int, stride: int, length: int) -> None:
        """Appends a run, joining it to the last one when they touch.

        A cache with the block dimension outermost keeps all layers of a block
        together; it then moves as one segment.
        """
        if self._pieces:
            last_base, last_stride, last_length = self._pieces[-1]
            if last_stride == stride and last_base + last_length == base:
                self._pieces[-1] = (last_base, stride, last_length + length)
                return
        self._pieces.append((base, stride, length))

    def segments(self, block_id: int) -> list[Segment]:
        """Returns address and length of every run of a block, in value order."""
        return [(base + block_id * stride, length) for base, stride, length in self._pieces]

    def describe(self) -> list[object]:
        """Returns the properties that a peer must share to understand the values."""
        return [[run.dtype, list(run.shape), list(run.order), run.run_bytes] for run in self.runs]


class KVLayout:
    """The layouts of all groups of one rank.

    Args:
        caches: layer name to its tensor, or its list of tensors.
        groups: layer names of each group that the store keeps; None for a
            group it does not keep.
        num_blocks: blocks in the KV cache.

    Raises:
        LayoutError: a tensor cannot be cut into blocks.
    """

    def __init__(
        self,
        caches: Mapping[str, LayerCache],
        groups: Sequence[Iterable[str] | None],
        num_blocks: int,
    ) -> None:
        """See the class."""
        self.groups: list[GroupLayout | None] = []
        self.device = torch.device("cpu")
        for names in groups:
            if names is None:
                self.groups.append(None)
                continue
            self.groups.append(self._group(caches, names, num_blocks))

    def _group(
        self, caches: Mapping[str, LayerCache], names: Iterable[str], num_blocks: int
    ) -> GroupLayout:
        runs: list[BlockRuns] = []
        seen: set[tuple[int, tuple[int, ...]]] = set()
        for name in names:
            if name not in caches:
                # A layer that shares the cache of another layer has no tensor.
                continue
            cache = caches[name]
            for tensor in [cache] if isinstance(cache, torch.Tensor) else cache:
                self.device = tensor.device
                place = (tensor.data_ptr(), tuple(tensor.stride()))
                if place not in seen:
                    seen.add(place)
                    runs.append(block_runs(name, tensor, num_blocks))
        return GroupLayout(runs)

    def group(self, index: int) -> GroupLayout:
        """Returns the layout of a group that the store keeps."""
        layout = self.groups[index]
        assert layout is not None, f"group {index} is not kept in the store"
        return layout

    def digest(self) -> str:
        """Returns a fingerprint of how this rank lays out its blocks."""
        described = [None if group is None else group.describe() for group in self.groups]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()
