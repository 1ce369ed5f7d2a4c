//! Compaction: live slabs of half-empty segments move together, so that whole segments
//! become free and may change their class. When hardly a segment is left, fuller ones too.

use std::collections::HashSet;

use millpond_env::Disk;
use millpond_types::ChunkId;

use crate::engine::{Inner, Reserved};
use crate::error::EngineError;
use crate::format::record::{ChunkRecord, Location};
use crate::index::{Guard, SHARDS};
use crate::log::{Apply, Pending};
use crate::read::matches;
use crate::tasks::join_all;

/// Chunks moved at the same time and by one commit, and bytes of them when they are large.
const BATCH: usize = 64;
const BATCH_BYTES: u64 = 8 << 20;
/// Free segments below which full segments are emptied too: each costs the move of nearly as much.
const PRESSED_BELOW: usize = 4;

/// Segments being emptied; they are filled again when this ends, however it ends.
struct Draining<'a, D: Disk> {
    inner: &'a Inner<D>,
    segments: HashSet<u32>,
}

impl<D: Disk> Drop for Draining<'_, D> {
    fn drop(&mut self) {
        let mut space = self.inner.space.lock();
        for segment in &self.segments {
            space.set_draining(*segment, false);
        }
    }
}

impl<D: Disk> Inner<D> {
    /// Empties up to `count` half-empty segments, or one that is fuller when hardly any is left;
    /// returns how many chunks moved.
    ///
    /// There is no map from slab to chunk, which would cost memory for every chunk: one walk
    /// over the index finds the chunks of all chosen segments.
    ///
    /// One runs at a time: whoever comes meanwhile waits for it instead.
    pub(crate) async fn compact_once(&self, count: usize) -> Result<u64, EngineError> {
        let Ok(_only) = self.compacting.try_lock() else {
            drop(self.compacting.lock().await);
            return Ok(0);
        };
        let victims = {
            let mut space = self.space.lock();
            let pressed = space.free_segments() < PRESSED_BELOW;
            space.start_draining(count, pressed)
        };
        if victims.is_empty() {
            return Ok(0);
        }
        let draining = Draining { inner: self, segments: victims.into_iter().collect() };
        let moved = self.empty_segments(&draining.segments).await?;
        self.metrics.compacted.add(moved);
        Ok(moved)
    }

    async fn empty_segments(&self, victims: &HashSet<u32>) -> Result<u64, EngineError> {
        let mut moved = 0;
        for at in 0..SHARDS {
            let ids: Vec<ChunkId> = {
                let shard = self.index.shard_at(at);
                let live = (0..shard.slots()).filter_map(|slot| shard.live(slot));
                live.filter(|e| victims.contains(&e.location().segment)).map(|e| e.id).collect()
            };
            let mut rest = &ids[..];
            while !rest.is_empty() {
                let batch = self.batch(rest);
                rest = &rest[batch.len()..];
                moved += self.move_chunks(batch, victims).await?;
            }
        }
        Ok(moved)
    }

    /// The first of these chunks, as many as are moved together.
    fn batch<'i>(&self, ids: &'i [ChunkId]) -> &'i [ChunkId] {
        let mut bytes = 0;
        let fits = |id: &&ChunkId| {
            bytes += self.index.record(**id).map_or(0, |record| u64::from(record.len));
            bytes <= BATCH_BYTES
        };
        let count = ids.iter().take(BATCH).take_while(fits).count();
        &ids[..count.max(1)]
    }

    async fn move_chunks(
        &self,
        ids: &[ChunkId],
        victims: &HashSet<u32>,
    ) -> Result<u64, EngineError> {
        let mut copies = Vec::with_capacity(ids.len());
        for id in ids {
            // Somebody changes it: it moves by itself, or the next round takes it.
            let Some(guard) = self.index.try_lock(*id) else { continue };
            let Some(record) = self.index.record(*id) else { continue };
            if self.is_dirty(*id) || !victims.contains(&record.location.segment) {
                continue;
            }
            copies.push(async move {
                let location = self.copy_chunk(&record).await?;
                Ok(location.map(|location| moved(record, location, guard)))
            });
        }
        let done: Result<Vec<_>, EngineError> = join_all(copies).await.into_iter().collect();
        let pending: Vec<Pending> = done?.into_iter().flatten().collect();
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
