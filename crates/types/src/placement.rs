//! From key to chunk id and slot. The same on every build: golden values below.

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

use crate::ids::{BlockKey, ChunkId, GroupId, SlotId};

/// The chunk that holds the block `key` of namespace `group`: XXH3-128 of the key, seeded
/// with the namespace. The full key is stored with the chunk and compared on every read.
#[must_use]
pub fn chunk_id(group: GroupId, key: &BlockKey) -> ChunkId {
    ChunkId(xxh3_128_with_seed(key.as_bytes(), u64::from(group.0)))
}

/// The slot of a block: the top 16 bits of the XXH3-64 of its leader, seeded with the namespace.
#[must_use]
pub fn slot(group: GroupId, leader: &BlockKey) -> SlotId {
    let hash = xxh3_64_with_seed(leader.as_bytes(), u64::from(group.0)) >> 48;
    SlotId(u16::try_from(hash).unwrap_or(u16::MAX))
}

/// Index of the leader of the block at `index` in its prompt, for runs of `run_blocks`.
#[must_use]
pub fn leader_index(index: usize, run_blocks: u16) -> usize {
    index - index % usize::from(run_blocks.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_values_never_change() {
        let key = BlockKey::new(b"millpond").unwrap();
        assert_eq!(chunk_id(GroupId(1), &key), ChunkId(CHUNK_GOLDEN));
        assert_eq!(slot(GroupId(1), &key), SlotId(SLOT_GOLDEN));
        assert_ne!(chunk_id(GroupId(2), &key), chunk_id(GroupId(1), &key));
    }

    const CHUNK_GOLDEN: u128 = 0x7f60_611c_c158_92d2_c895_a1ed_5dc7_5f9d;
    const SLOT_GOLDEN: u16 = 50_149;

    #[test]
    fn leaders_start_their_run() {
        assert_eq!(leader_index(0, 16), 0);
        assert_eq!(leader_index(15, 16), 0);
        assert_eq!(leader_index(16, 16), 16);
        assert_eq!(leader_index(5, 0), 5);
    }
}
