"""The prefix of a prompt that the store holds, for one or several cache groups.

A model with one kind of attention has one group of layers, and one
``match_prefix`` answers the lookup. A hybrid model has several groups: full
attention needs every block of the prefix, a sliding window only the last few. So
the lookup asks the store for the present blocks and applies vLLM's own rule for
each kind of group to them, to find the longest usable prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from millpond.vllm.keys import KeySpace


@dataclass(frozen=True)
class Group:
    """One KV cache group that the store keeps.

    Attributes:
        index: its index among the engine's groups.
        block_tokens: tokens per block.
        scale: hashes per block; the last one names the block.
        spec: vLLM's description of the group.
        full: whether every block of a prefix is needed.
        drop_last: whether speculative decoding must compute the last block again.
        parts: number of different parts of a block that the ranks hold.
        copies: number of ranks that hold each part; more than one if every tensor
            parallel rank has all heads of a layer.
    """

    index: int
    block_tokens: int
    scale: int
    spec: Any
    full: bool
    drop_last: bool
    parts: int = 1
    copies: int = 1

    def hashes(self, request_hashes: Sequence[bytes], start: int, end: int) -> list[bytes]:
        """Returns the hashes of this group's blocks ``start`` to ``end``."""
        scale = self.scale
        return [bytes(request_hashes[(i + 1) * scale - 1]) for i in range(start, end)]


@dataclass(frozen=True)
class Hit:
    """The result of a lookup.

    Attributes:
        tokens: length of the prefix that can be loaded.
        present: per group index, the number of leading blocks in the store; a
            save need not write these.
    """

    tokens: int
    present: dict[int, int]


class _KnownBlocks:
    """Replaces vLLM's block pool in vLLM's hit rules."""

    def __init__(self, hash_tokens: int, known: set[tuple[int, bytes]]) -> None:
        from vllm.v1.core.kv_cache_utils import KVCacheBlock

        self.hash_block_size = hash_tokens
        self.null_block = KVCacheBlock(block_id=0)
        self._present = KVCacheBlock(block_id=1)
        self._known = known

    def get_cached_block(self, block_hash: bytes, group_ids: list[int]) -> list[Any] | None:
        """Returns a block per group when all of them have this hash."""
        if all((group, bytes(block_hash)) in self._known for group in group_ids):
            return [self._present] * len(group_ids)
        return None


class PrefixLookup:
    """Asks the store for the longest prefix of a prompt.

    Args:
        groups: the groups that the store keeps.
        hash_tokens: tokens per block hash.
        align_tokens: hits end at multiples of this number.
        lease_ms: time for which found blocks are kept from eviction.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        *,
        hash_tokens: int,
        align_tokens: int,
        lease_ms: int,
    ) -> None:
        """See the class."""
        self._groups = list(groups)
        self._hash_tokens = hash_tokens
        self._align = align_tokens
        self._lease_ms = lease_ms

    def find(
        self, namespace: Any, hashes: Sequence[bytes], tokens: int, tokens_max: int, epoch: bytes
    ) -> Hit:
        """Returns the longest prefix that can be loaded, and leases it.

        Args:
            namespace: the namespace to search.
            hashes: the request's block hashes.
            tokens: tokens of the prompt that are looked up.
            tokens_max: longest prefix that may be loaded.
            epoch: generation of the keys.
        """
        if len(self._groups) == 1:
            return self._find_single(namespace, hashes, tokens, tokens_max, epoch)
        return self._find_hybrid(namespace, hashes, tokens, tokens_max, epoch)

    def _keys(self, group: Group, epoch: bytes) -> KeySpace:
        return KeySpace(group.index, group.parts, epoch)

    def _find_single(
        self, namespace: Any, hashes: Sequence[bytes], tokens: int, tokens_max: int, epoch: bytes
    ) -> Hit:
        group = self._groups[0]
        blocks = min(tokens // group.block_tokens, len(hashes) // group.scale)
        space = self._keys(group, epoch)
        flat = space.flat(group.hashes(hashes, 0, blocks))
        leaders = space.flat_leaders(flat)
        found = namespace.match_prefix(flat, lease_ms=self._lease_ms, leaders=leaders)
        present = found // group.parts
        usable = min(present, tokens_max // group.block_tokens)
        if group.drop_last:
            usable -= 1
        return Hit(max(0, usable) * group.block_tokens, {group.index: present})

    def _find_hybrid(
        self, namespace: Any, hashes: Sequence[bytes], tokens: int, tokens_max: int, epoch: bytes
    ) -> Hit:
        known, present = self._presence(namespace, hashes, tokens, epoch)
        length, wanted = self._longest(hashes, tokens_max, known)
        if length and not self._lease(namespace, hashes, wanted, epoch):
            # A block was evicted between the two requests; do not ask again.
            length = 0
        return Hit(length, present)

    def _presence(
        self, namespace: Any, hashes: Sequence[bytes], tokens: int, epoch: bytes
    ) -> tuple[set[tuple[int, bytes]], dict[int, int]]:
        """Asks which blocks of every group exist, in one round trip."""
        keys: list[bytes] = []
        leaders: list[bytes] = []
        spans: list[tuple[Group, list[bytes]]] = []
        for group in self._groups:
            blocks = min(tokens // group.block_tokens, len(hashes) // group.scale)
            names = group.hashes(hashes, 0, blocks)
            space = self._keys(group, epoch)
            flat = space.flat(names)
            keys += flat
            leaders += space.flat_leaders(flat)
            spans.append((group, names))
        answers = namespace.contains(keys, leaders=leaders)
        known: set[tuple[int, bytes]] = set()
        present: dict[int, int] = {}
        at = 0
        for group, names in spans:
            run, broken = 0, False
            for name in names:
                here = all(answers[at : at + group.parts])
                at += group.parts
                if here:
                    known.add((group.index, name))
                broken = broken or not here
                run += not broken
            present[group.index] = run
        return known, present

    def _longest(
        self, hashes: Sequence[bytes], tokens_max: int, known: set[tuple[int, bytes]]
    ) -> tuple[int, dict[int, list[int]]]:
        """Applies each group's rule until all agree on one length.

        Returns the length in tokens and, per group index, the blocks to load.
        """
        from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

        pool = _KnownBlocks(self._hash_tokens, known)
        ordered = sorted(self._groups, key=lambda group: not group.full)
        length = tokens_max // self._align * self._align
        first_pass = True
        while length:
            start = length
            wanted: dict[int, list[int]] = {}
            for group in ordered:
                manager = KVCacheSpecRegistry.get_manager_class(group.spec)
                (blocks,), length = manager.find_longest_cache_hit(
                    block_hashes=list(hashes),
                    max_length=length,
                    kv_cache_group_ids=[group.index],
                    block_pool=pool,
                    kv_cache_spec=group.spec,
                    # Once is enough: later passes only shorten the prefix.
                    drop_eagle_block=group.drop_last and first_pass,
                    alignment_tokens=self._align,
                )
                wanted[group.index] = [
                    i for i, block in enumerate(blocks) if block is not pool.null_block
                ]
            if length == start:
                return length, wanted
            first_pass = False
        return 0, {}

    def _lease(
        self, namespace: Any, hashes: Sequence[bytes], wanted: dict[int, list[int]], epoch: bytes
    ) -> bool:
        """Leases the blocks to load; false if one of them is gone."""
        keys: list[bytes] = []
        leaders: list[bytes] = []
        for group in self._groups:
            blocks = wanted[group.index]
            if not blocks:
                continue
            space = self._keys(group, epoch)
            names = group.hashes(hashes, 0, blocks[-1] + 1)
            for part in range(group.parts):
                part_keys, part_leaders = space.part_keys(names, 0, blocks, part)
                keys += part_keys
                leaders += part_leaders
        found: int = namespace.match_prefix(keys, lease_ms=self._lease_ms, leaders=leaders)
        return found == len(keys)
