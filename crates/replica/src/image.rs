//! The image of one replica: the chunks in its store, and their sizes.

use std::collections::BTreeSet;

use millpond_types::ChunkId;
use millpond_types::cluster::ChainVersion;

use super::quota::{Counted, Quotas};
use super::store::Flipped;

/// Memory of a replica per chunk: a place in an ordered set, two thirds of which are full.
pub const BYTES_PER_CHUNK: u64 = 28;

/// Contents of a target's disk: found when the node started, and updated with every change.
#[derive(Debug, Default)]
pub(super) struct Image {
    pub(super) saved: ChainVersion,
    pub(super) committed: BTreeSet<ChunkId>,
    pub(super) tombstones: BTreeSet<ChunkId>,
    pub(super) staged: BTreeSet<ChunkId>,
    /// Committed chunks with bytes that were lost when they came. Exact.
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
