//! Compaction: live slabs of half-empty segments move together, so that whole segments become free
//! and may change their class. When hardly any segment is free, fuller ones are emptied too.

use std::collections::HashSet;

use futures_util::future::{join, join_all};
use millpond_env::Disk;
use millpond_types::ChunkId;

use crate::engine::{Inner, Reserved};
use crate::error::EngineError;
use crate::format::record::ChunkRecord;
use crate::index::{Guard, SHARDS};
use crate::log::{Apply, Pending};
use crate::read::matches;
use crate::tasks::yield_once;

/// Most chunks moved at the same time and by one commit, and the limit of their bytes.
const BATCH: usize = 256;
const BATCH_BYTES: u64 = 4 << 20;
/// Number of free segments below which full segments are emptied too; each costs the move of nearly
/// a whole segment.
const PRESSED_BELOW: usize = 4;

/// Segments being emptied; when this is dropped, they may be filled again.
struct Draining<'a, D: Disk> {
    inner: &'a Inner<D>,
    segments: HashSet<u32>,
}

/// A chunk that cannot change while this lives, and the slab with its copy. Dropping it frees the
/// slab.
struct Copied<'a, D: Disk> {
    record: ChunkRecord,
    slab: Reserved<'a, D>,
    guard: Guard,
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
    /// Empties up to `count` half-empty segments, or a fuller one when hardly any is free; returns
    /// the number of chunks moved.
    ///
    /// There is no map from slab to chunk, which would cost memory for every chunk: one walk over
    /// the index finds the chunks of all chosen segments.
    ///
    /// One compaction runs at a time; a second caller waits for it instead.
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

    /// Empties the segments; the log's flush of one batch overlaps the copies of the next.
    async fn empty_segments(&self, victims: &HashSet<u32>) -> Result<u64, EngineError> {
        let (mut moved, mut ids) = (0, Vec::new());
        let mut copied = Vec::new();
        for at in 0..SHARDS {
            {
                let shard = self.index.shard_at(at);
                let live = (0..shard.slots()).filter_map(|slot| shard.live(slot));
                ids.extend(live.filter(|e| victims.contains(&e.location().segment)).map(|e| e.id));
            }
            // A shard has few of a segment's chunks: they are gathered until a batch is full.
            let last = at + 1 == SHARDS;
            while ids.len() >= BATCH || last && !ids.is_empty() {
                let batch: Vec<ChunkId> = ids.drain(..self.batch(&ids)).collect();
                moved += copied.len() as u64;
                let (next, written) =
                    join(self.copy_chunks(&batch, victims), self.settle(copied)).await;
                written?;
                copied = next?;
            }
            yield_once().await;
        }
        moved += copied.len() as u64;
        self.settle(copied).await?;
        Ok(moved)
    }

    /// Number of these chunks to move together, at least one.
    fn batch(&self, ids: &[ChunkId]) -> usize {
        let mut bytes = 0;
        let fits = |id: &&ChunkId| {
            bytes += self.index.record(**id).map_or(0, |record| u64::from(record.len));
            bytes <= BATCH_BYTES
        };
        ids.iter().take(BATCH).take_while(fits).count().max(1)
    }

    /// Copies chunks to other slabs; a copy belongs to its chunk once it is committed.
    async fn copy_chunks(
        &self,
        ids: &[ChunkId],
        victims: &HashSet<u32>,
    ) -> Result<Vec<Copied<'_, D>>, EngineError> {
        let mut copies = Vec::with_capacity(ids.len());
        for id in ids {
            // It is being changed: either the change moves it, or the next round does.
            let Some(guard) = self.index.try_lock(*id) else { continue };
            let Some(record) = self.index.record(*id) else { continue };
            if self.is_dirty(*id) || !victims.contains(&record.location.segment) {
                continue;
            }
            copies.push(async move {
                let slab = self.copy_chunk(&record).await?;
                Ok(slab.map(|slab| Copied { record, slab, guard }))
            });
        }
        let done: Result<Vec<_>, EngineError> = join_all(copies).await.into_iter().collect();
        Ok(done?.into_iter().flatten().collect())
    }

    /// Commits the copies as the places of their chunks.
    async fn settle(&self, copied: Vec<Copied<'_, D>>) -> Result<(), EngineError> {
        let (mut moved, mut slabs) = (Vec::with_capacity(copied.len()), Vec::new());
        for Copied { record, slab, guard } in copied {
            let record = ChunkRecord { location: slab.location, ..record };
            moved.push(Pending::put(record, Apply::Update { drop_hot: false }, Some(guard)));
            slabs.push(slab);
        }
        self.commit_with(moved, slabs).await
    }

    /// Copies a chunk to another slab; `None` when it is bad or there is no room.
    async fn copy_chunk(
        &self,
        record: &ChunkRecord,
    ) -> Result<Option<Reserved<'_, D>>, EngineError> {
        let Some(at) = self.space.lock().alloc(u64::from(record.len)) else { return Ok(None) };
        let mut slab = Reserved::new(self, at);
        let read = self.read_chunk(record.id, record.location, 0..record.len as usize).await;
        let bytes = match read {
            // Memory is short: the next round takes it.
            Err(EngineError::Busy(_)) => return Ok(None),
            Err(EngineError::Corrupt(_)) => None,
            read => Some(read?).filter(|bytes| matches(bytes, &record.pieces, record.crc)),
        };
        let Some(bytes) = bytes else {
            // A reader decides about it; moving it would hide nothing.
            self.report_damage(record.id, record.version, record.location);
            return Ok(None);
        };
        self.write_slab(&mut slab, bytes).await?;
        Ok(Some(slab))
    }
}
