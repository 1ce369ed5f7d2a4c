"""Keys of KV blocks in the store, and the leaders that decide their placement.

A value is one block of one KV cache group on one rank. Its key is

    block hash | group index (u16, little endian) | part index (u16) | epoch

The part is the rank's index in the pipeline and tensor parallel grid, or in the
pipeline alone if every tensor parallel rank holds the same bytes. The epoch is
empty until the engine resets its cache; then it is 8 random bytes, so that values
from before the reset are never found again.

The keys of a prompt form one flat list per group, parts interleaved:
``[block0 part0, block0 part1, block1 part0, ...]``. The store places every
run of `RUN_KEYS` keys of that list on one chain, named by the run's first
key, the leader. A block is found only with the leader it was stored with, so
every call of the connector, for whole prompts and single blocks, names the
leaders itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RUN_KEYS = 16
"""Keys per placement run. Engines that share a store must agree on it, so it is fixed."""

_KEY_BYTES_MAX = 128


@dataclass(frozen=True)
class KeySpace:
    """Builds keys for one KV cache group.

    Attributes:
        group: index of the KV cache group.
        parts: ranks that each hold a part of every block.
        epoch: suffix that separates generations of cached data.
    """

    group: int
    parts: int
    epoch: bytes = b""

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if not 0 <= self.group < 1 << 16:
            raise ValueError(f"group index {self.group} does not fit in 16 bits")
        if not 1 <= self.parts < 1 << 16:
            raise ValueError(f"part count {self.parts} does not fit in 16 bits")

    def key(self, block_hash: bytes, part: int) -> bytes:
        """Returns the key of one part of a block.

        Raises:
            ValueError: the hash is empty, or the key is over 128 bytes.
        """
        if not block_hash:
            raise ValueError("an empty block hash names no block")
        key = b"".join(
            (
                block_hash,
                self.group.to_bytes(2, "little"),
                part.to_bytes(2, "little"),
                self.epoch,
            )
        )
        if len(key) > _KEY_BYTES_MAX:
            raise ValueError(f"key of {len(key)} bytes is over {_KEY_BYTES_MAX}")
        return key

    def flat(self, hashes: Sequence[bytes]) -> list[bytes]:
        """Returns the flat key list of a prompt's first ``len(hashes)`` blocks."""
        return [self.key(h, part) for h in hashes for part in range(self.parts)]

    def flat_leaders(self, flat: Sequence[bytes]) -> list[bytes]:
        """Returns the leader of every key of a flat list that starts at block 0."""
        return [flat[i - i % RUN_KEYS] for i in range(len(flat))]

    def lead_block(self, block: int) -> int:
        """Returns the first of the blocks whose hashes decide the place of ``block``."""
        flat_index = block * self.parts
        return (flat_index - flat_index % RUN_KEYS) // self.parts

    def part_keys(
        self,
        hashes: Sequence[bytes],
        hashes_from: int,
        blocks: Sequence[int],
        part: int,
    ) -> tuple[list[bytes], list[bytes]]:
        """Returns the keys and leaders of one part of the given blocks.

        Args:
            hashes: hashes of consecutive blocks, reaching back at least to
                `lead_block` of every wanted block.
            hashes_from: block index of ``hashes[0]``.
            blocks: block indices in the prompt.
            part: the part wanted.
        """
        keys = []
        leaders = []
        for block in blocks:
            keys.append(self.key(hashes[block - hashes_from], part))
            flat_index = block * self.parts + part
            lead = flat_index - flat_index % RUN_KEYS
            lead_block, lead_part = divmod(lead, self.parts)
            assert lead_block >= hashes_from, "hashes do not reach back to the leader"
            leaders.append(self.key(hashes[lead_block - hashes_from], lead_part))
        return keys, leaders
