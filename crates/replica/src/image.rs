//! The books of one replica: which chunks its store holds, and how much.

use std::collections::BTreeSet;

use millpond_types::ChunkId;
use millpond_types::cluster::ChainVersion;

use super::quota::{Counted, Quotas};
use super::store::Flipped;

/// Memory of a replica for every chunk that it holds: a place in an ordered set, two thirds of which are full.
pub const BYTES_PER_CHUNK: u64 = 28;

/// What a target's disk holds: found when the node started, and kept by what is stored since.
#[derive(Debug, Default)]
pub(super) struct Image {
    pub(super) saved: ChainVersion,
    pub(super) committed: BTreeSet<ChunkId>,
    pub(super) tombstones: BTreeSet<ChunkId>,
    pub(super) staged: BTreeSet<ChunkId>,
    /// Of those committed: the bytes were lost when they came. Exact.
    pub(super) lost: BTreeSet<ChunkId>,
    pub(super) used_bytes: u64,
    /// Its values by namespace.
    pub(super) counted: Counted,
}

impl Image {
    /// Counts a version that was made the committed one.
    pub(super) fn flipped(&mut self, quotas: &Quotas, chunk: ChunkId, flipped: Flipped) {
        let Flipped { tombstone, lost, len, group, replaced } = flipped;
        self.committed.insert(chunk);
        self.used_bytes = (self.used_bytes + u64::from(len)).saturating_sub(replaced.len.into());
        self.counted.changed(quotas, replaced.group, replaced.len, 0);
        self.counted.changed(quotas, group, 0, len);
        for (set, has) in [(&mut self.lost, lost), (&mut self.tombstones, tombstone)] {
            if has {
                set.insert(chunk);
            } else {
                set.remove(&chunk);
            }
        }
    }
}
