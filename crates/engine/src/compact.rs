//! Compaction: live slabs of half-empty segments move together, so that whole segments
//! become free and may change their class.

use std::collections::HashSet;

use millpond_env::Disk;
use millpond_types::ChunkId;

use crate::engine::{Inner, Reserved};
use crate::error::EngineError;
use crate::format::record::{ChunkRecord, Location};
use crate::index::{Guard, SHARDS};
use crate::log::{Apply, Pending};
use crate::read::matches;

/// Chunks moved per commit.
const BATCH: usize = 64;

impl<D: Disk> Inner<D> {
    /// Empties up to `count` half-empty segments; returns how many chunks moved.
    ///
    /// There is no map from slab to chunk, which would cost memory for every chunk: one walk
    /// over the index finds the chunks of all chosen segments.
    pub(crate) async fn compact_once(&self, count: usize) -> Result<u64, EngineError> {
        let victims = self.space.lock().start_draining(count);
        if victims.is_empty() {
            return Ok(0);
        }
        let moved = self.empty_segments(&victims.iter().copied().collect()).await;
        let mut space = self.space.lock();
        for segment in &victims {
            space.set_draining(*segment, false);
        }
        drop(space);
        if let Ok(moved) = moved {
            self.metrics.compacted.add(moved);
        }
        moved
    }

    async fn empty_segments(&self, victims: &HashSet<u32>) -> Result<u64, EngineError> {
        let mut moved = 0;
        for at in 0..SHARDS {
            let ids: Vec<ChunkId> = {
                let shard = self.index.shard_at(at);
                let live = (0..shard.slots()).filter_map(|slot| shard.live(slot));
                live.filter(|e| victims.contains(&e.location().segment)).map(|e| e.id).collect()
            };
            for batch in ids.chunks(BATCH) {
                moved += self.move_chunks(batch, victims).await?;
            }
        }
        Ok(moved)
    }

    async fn move_chunks(
        &self,
        ids: &[ChunkId],
        victims: &HashSet<u32>,
    ) -> Result<u64, EngineError> {
        let mut pending = Vec::new();
        for id in ids {
            // Somebody changes it: it moves by itself, or the next round takes it.
            let Some(guard) = self.index.try_lock(*id) else { continue };
            let Some(record) = self.index.record(*id) else { continue };
            if self.is_dirty(*id) || !victims.contains(&record.location.segment) {
                continue;
            }
            if let Some(location) = self.copy_chunk(&record).await? {
                pending.push(moved(record, location, guard));
            }
        }
        let count = pending.len() as u64;
        self.commit(pending).await?;
        Ok(count)
    }

    /// Copies a chunk to another slab; `None` when it is bad or there is no room.
    async fn copy_chunk(&self, record: &ChunkRecord) -> Result<Option<Location>, EngineError> {
        let Some(at) = self.space.lock().alloc(u64::from(record.len)) else { return Ok(None) };
        let mut slab = Reserved::new(self, at);
        let bytes = self.read_raw(record.location, 0, record.len as usize).await?;
        if !matches(&bytes, &record.pieces, record.crc) {
            // A reader decides about it; moving it would hide nothing.
            self.report_damage(record.id, record.version, record.location);
            return Ok(None);
        }
        self.write_slab(&mut slab, bytes).await?;
        Ok(Some(slab.keep()))
    }
}

fn moved(record: ChunkRecord, location: Location, guard: Guard) -> Pending {
    let record = ChunkRecord { location, ..record };
    Pending::put(record, Apply::Update { drop_hot: false }, Some(guard))
}
