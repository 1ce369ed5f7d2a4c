//! From key to chunk id and slot, and from a chunk of a file to its id. The same on every build: golden values below.

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

use crate::ids::{BlockKey, ChunkId, FileChunk, GroupId, SlotId};
use crate::limits::KEY_BYTES_MAX;

/// The chunk that holds the block `key` of namespace `group`: XXH3-128 of the namespace (u32, little
/// endian) and the key. The full key is stored with the chunk and compared on every read.
///
/// The namespace is not the seed: XXH3 adds the seed to a constant that the key is combined with by
/// exclusive or, so for short keys two namespaces and two keys that differ alike give one hash.
#[must_use]
pub fn chunk_id(group: GroupId, key: &BlockKey) -> ChunkId {
    let key = key.as_bytes();
    let mut bytes = [0; size_of::<u32>() + KEY_BYTES_MAX];
    let (name, rest) = bytes.split_at_mut(size_of::<u32>());
    name.copy_from_slice(&group.0.to_le_bytes());
    rest[..key.len()].copy_from_slice(key);
    ChunkId(xxh3_128(&bytes[..size_of::<u32>() + key.len()]))
}

/// The chunk of a file: XXH3-128 of [`GroupId::FILES`] (u32), the data id (u64) and the chunk's index
/// (u32), little endian. No block's hash is of the same bytes, since no namespace has that number.
#[must_use]
pub fn file_chunk_id(chunk: FileChunk) -> ChunkId {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&GroupId::FILES.0.to_le_bytes());
    bytes[4..12].copy_from_slice(&chunk.data.0.to_le_bytes());
    bytes[12..].copy_from_slice(&chunk.index.to_le_bytes());
    ChunkId(xxh3_128(&bytes))
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
    use crate::ids::DataId;

    #[test]
    fn golden_values_never_change() {
        let key = BlockKey::new(b"millpond").unwrap();
        assert_eq!(chunk_id(GroupId(1), &key), ChunkId(CHUNK_GOLDEN));
        assert_eq!(slot(GroupId(1), &key), SlotId(SLOT_GOLDEN));
        assert_ne!(chunk_id(GroupId(2), &key), chunk_id(GroupId(1), &key));
        let file = FileChunk { data: DataId(1 << 40 | 7), index: 3 };
        assert_eq!(file.chunk_id(), ChunkId(FILE_GOLDEN));
    }

    #[test]
    fn chunks_of_files_that_resemble_each_other_do_not_collide() {
        // Data ids count up, some from far away; so do indexes. Halves of a hash are used by
        // themselves too (shards, queues), and must not repeat more than chance has it.
        let starts = [0u64, 1 << 32, 1 << 48, u64::MAX - 999];
        let data = starts.iter().flat_map(|start| (0..1000).map(move |n| start + n));
        let chunks = data.flat_map(|data| {
            (0..40).map(move |index| FileChunk { data: DataId(data), index }.chunk_id())
        });
        let ids: std::collections::HashSet<ChunkId> = chunks.collect();
        assert_eq!(ids.len(), 160_000);
        for shift in [0, 64] {
            let halves = ids.iter().map(|id| id.0 >> shift & u128::from(u64::MAX));
            let halves: std::collections::HashSet<u128> = halves.collect();
            assert_eq!(halves.len(), 160_000, "bits from {shift}");
        }
    }

    #[test]
    fn namespaces_and_keys_that_resemble_each_other_do_not_collide() {
        // These two did, while the namespace was the seed.
        let key = |n: u32| BlockKey::new(n.to_string().as_bytes()).unwrap();
        assert_ne!(chunk_id(GroupId(1), &key(27_650)), chunk_id(GroupId(2), &key(17_650)));
        let all =
            (1..=8).flat_map(|group| (0..40_000).map(move |n| chunk_id(GroupId(group), &key(n))));
        let ids: std::collections::HashSet<ChunkId> = all.collect();
        assert_eq!(ids.len(), 8 * 40_000);
    }

    const CHUNK_GOLDEN: u128 = 0xd94c_e713_b564_7dd1_68b0_c43c_e481_a3de;
    const FILE_GOLDEN: u128 = 0xf286_ad77_99a6_36fc_b6af_a6d1_2ba0_22b7;
    const SLOT_GOLDEN: u16 = 50_149;

    #[test]
    fn leaders_start_their_run() {
        assert_eq!(leader_index(0, 16), 0);
        assert_eq!(leader_index(15, 16), 0);
        assert_eq!(leader_index(16, 16), 16);
        assert_eq!(leader_index(5, 0), 5);
    }
}
