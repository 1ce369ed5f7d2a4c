//! Mapping from a key to its chunk id and slot, and from a chunk of a file to its id. It is the
//! same in every build: the tests below have golden values.

use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128};

use crate::ids::{BlockKey, ChunkId, ClusterSecret, FileChunk, GroupId, SlotId};
use crate::limits::KEY_BYTES_MAX;

/// The bit of a chunk id that selects its space: set for chunks of files, clear for KV blocks. It
/// is the lowest bit, so that sorted ids stay spread over their whole range: the progress of a
/// slot's move is measured by the id.
const FILE_SPACE: u128 = 1;

/// Makes the ids of a cluster's chunks (RFC 0028).
///
/// An id is SipHash-2-4-128 (Aumasson and Bernstein, 2012) of the chunk's name under the cluster's
/// secret, with the lowest bit set for a chunk of a file and clear for a KV block. Two names with
/// the same id cannot be computed without the secret, and cannot exist across the two spaces. The
/// number of a namespace is never used twice, so a namespace that is created again has other ids.
///
/// A cluster founded before protocol 12 has no secret: its ids stay XXH3-128 of the same bytes in
/// one space. There, as everywhere, a chunk's stored owner is compared before the chunk is
/// answered, changed or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkIds {
    secret: Option<ClusterSecret>,
}

impl ChunkIds {
    /// Ids of a cluster without a secret.
    pub const UNKEYED: Self = Self { secret: None };

    /// Ids under a cluster's secret; [`Self::UNKEYED`] when it has none.
    #[must_use]
    pub const fn new(secret: Option<ClusterSecret>) -> Self {
        Self { secret }
    }

    /// The chunk of the block `key` of namespace `group`: the hash of the namespace (u32, little
    /// endian) and the key.
    ///
    /// The namespace is not the seed. XXH3 adds the seed to a constant and combines the sum with
    /// the key by exclusive or. So for short keys, two namespaces and two keys with the same
    /// difference give one hash.
    #[must_use]
    pub fn block(&self, group: GroupId, key: &BlockKey) -> ChunkId {
        let key = key.as_bytes();
        let mut bytes = [0; size_of::<u32>() + KEY_BYTES_MAX];
        let (name, rest) = bytes.split_at_mut(size_of::<u32>());
        name.copy_from_slice(&group.0.to_le_bytes());
        rest[..key.len()].copy_from_slice(key);
        self.id(&bytes[..size_of::<u32>() + key.len()], 0)
    }

    /// The chunk of a file: the hash of [`GroupId::FILES`] (u32), the data id (u64) and the chunk's
    /// index (u32), little endian.
    #[must_use]
    pub fn file(&self, chunk: FileChunk) -> ChunkId {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&GroupId::FILES.0.to_le_bytes());
        bytes[4..12].copy_from_slice(&chunk.data.0.to_le_bytes());
        bytes[12..].copy_from_slice(&chunk.index.to_le_bytes());
        self.id(&bytes, FILE_SPACE)
    }

    fn id(&self, name: &[u8], space: u128) -> ChunkId {
        let Some(ClusterSecret(secret)) = &self.secret else { return ChunkId(xxh3_128(name)) };
        let mut hasher = SipHasher24::new_with_key(secret);
        hasher.write(name);
        ChunkId(hasher.finish128().as_u128() & !FILE_SPACE | space)
    }
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

    const KEYED: ChunkIds = ChunkIds::new(Some(ClusterSecret(*b"a cluster secret")));

    #[test]
    fn golden_values_never_change() {
        let key = BlockKey::new(b"millpond").unwrap();
        let file = FileChunk { data: DataId(1 << 40 | 7), index: 3 };
        let golden = [
            (ChunkIds::UNKEYED, CHUNK_GOLDEN, FILE_GOLDEN),
            (KEYED, KEYED_GOLDEN, KEYED_FILE_GOLDEN),
        ];
        for (ids, block, of_file) in golden {
            assert_eq!(ids.block(GroupId(1), &key), ChunkId(block));
            assert_ne!(ids.block(GroupId(2), &key), ids.block(GroupId(1), &key));
            assert_eq!(ids.file(file), ChunkId(of_file));
        }
        assert_eq!(slot(GroupId(1), &key), SlotId(SLOT_GOLDEN));
    }

    #[test]
    fn ids_need_the_secret_and_blocks_and_files_share_none() {
        let other = ChunkIds::new(Some(ClusterSecret([7; 16])));
        let one = ChunkIds::new(Some(ClusterSecret([6; 16])));
        for n in 0..1000u32 {
            let key = BlockKey::new(&n.to_le_bytes()).unwrap();
            let file = FileChunk { data: DataId(n.into()), index: n };
            assert_ne!(one.block(GroupId(1), &key), other.block(GroupId(1), &key));
            assert_ne!(one.file(file), other.file(file));
            assert!(one.block(GroupId(1), &key).0 & FILE_SPACE == 0);
            assert!(one.file(file).0 & FILE_SPACE != 0);
        }
        assert_eq!(format!("{one:?}").matches('6').count(), 0, "the secret is not printed");
    }

    #[test]
    fn chunks_of_files_that_resemble_each_other_do_not_collide() {
        // Data ids count up, some from distant starts; indexes count up too. Halves of a hash are
        // also used alone (shards, queues), and must not collide more often than by chance.
        let starts = [0u64, 1 << 32, 1 << 48, u64::MAX - 999];
        let data = starts.iter().flat_map(|start| (0..1000).map(move |n| start + n));
        let chunks = data.flat_map(|data| {
            (0..40).map(move |index| KEYED.file(FileChunk { data: DataId(data), index }))
        });
        let ids: std::collections::HashSet<ChunkId> = chunks.collect();
        assert_eq!(ids.len(), 160_000);
        for shift in [1, 64] {
            let halves = ids.iter().map(|id| id.0 >> shift & u128::from(u64::MAX));
            let halves: std::collections::HashSet<u128> = halves.collect();
            assert_eq!(halves.len(), 160_000, "bits from {shift}");
        }
    }

    #[test]
    fn namespaces_and_keys_that_resemble_each_other_do_not_collide() {
        // These two collided while the namespace was the seed.
        let key = |n: u32| BlockKey::new(n.to_string().as_bytes()).unwrap();
        let ids = ChunkIds::UNKEYED;
        assert_ne!(ids.block(GroupId(1), &key(27_650)), ids.block(GroupId(2), &key(17_650)));
        let all =
            (1..=8).flat_map(|group| (0..40_000).map(move |n| ids.block(GroupId(group), &key(n))));
        let ids: std::collections::HashSet<ChunkId> = all.collect();
        assert_eq!(ids.len(), 8 * 40_000);
    }

    const CHUNK_GOLDEN: u128 = 0xd94c_e713_b564_7dd1_68b0_c43c_e481_a3de;
    const FILE_GOLDEN: u128 = 0xf286_ad77_99a6_36fc_b6af_a6d1_2ba0_22b7;
    const KEYED_GOLDEN: u128 = 0xce91_278b_0600_5534_ee36_f1cf_a98b_5d2e;
    const KEYED_FILE_GOLDEN: u128 = 0xb538_a6fd_fcb9_6fae_3bd9_f760_6691_7625;
    const SLOT_GOLDEN: u16 = 50_149;

    #[test]
    fn leaders_start_their_run() {
        assert_eq!(leader_index(0, 16), 0);
        assert_eq!(leader_index(15, 16), 0);
        assert_eq!(leader_index(16, 16), 16);
        assert_eq!(leader_index(5, 0), 5);
    }
}
