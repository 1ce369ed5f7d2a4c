//! Write-behind: chunks acknowledged from memory go to the disk in large batches.

use std::collections::VecDeque;
use std::ops::Range;

use futures_util::future::join_all;
use millpond_env::{Disk, SharedBuf};
use millpond_types::ChunkId;
use millpond_types::limits::PAGE_BYTES;

use crate::engine::{Inner, timed};
use crate::error::EngineError;
use crate::format::record::{ChunkRecord, Location};
use crate::index::{Guard, Shard, weight};
use crate::log::{Apply, Pending};

/// Chunks and bytes of one batch: some milliseconds of disk time.
const BATCH_CHUNKS: usize = 1024;
const BATCH_BYTES: u64 = 16 << 20;
/// Neighbours up to this size are copied together into one write of at most `RUN_BYTES`:
/// copying 64 KiB costs less than submitting one more operation.
const GATHER_BYTES: u64 = 64 << 10;
const RUN_BYTES: u64 = 1 << 20;
/// Disk writes in flight of one batch.
const WRITES: usize = 32;

/// A dirty chunk on its way to the disk.
pub(crate) struct Item {
    pub(crate) record: ChunkRecord,
    bytes: SharedBuf,
    offset: u64,
    guard: Guard,
}

/// Dirty chunks of one commit.
#[derive(Default)]
struct Batch {
    items: Vec<Item>,
    bytes: u64,
}

impl Batch {
    fn add(&mut self, item: Option<Item>) {
        self.bytes += item.as_ref().map_or(0, |i| u64::from(i.record.len));
        self.items.extend(item);
    }

    fn is_full(&self) -> bool {
        self.items.len() >= BATCH_CHUNKS || self.bytes >= BATCH_BYTES
    }
}

/// Ids taken out of the queue of dirty chunks.
///
/// On drop, after an error or when the caller is cancelled, the remaining ids return to the queue;
/// otherwise nothing would ever write those chunks.
struct Taken<'a, D: Disk> {
    inner: &'a Inner<D>,
    ids: VecDeque<ChunkId>,
}

impl<'a, D: Disk> Taken<'a, D> {
    const fn new(inner: &'a Inner<D>) -> Self {
        Self { inner, ids: VecDeque::new() }
    }
}

impl<D: Disk> Drop for Taken<'_, D> {
    fn drop(&mut self) {
        if !self.ids.is_empty() {
            self.inner.dirty_queue.lock().append(&mut self.ids);
        }
    }
}

impl<D: Disk> Inner<D> {
    /// Publishes a chunk that is only in memory, in a slab reserved for it.
    pub(crate) fn install_dirty(&self, record: ChunkRecord, bytes: SharedBuf, at: Location) {
        let record = ChunkRecord { location: at, ..record };
        let id = record.id;
        let freed = {
            let mut shard = self.index.shard(id);
            let found = shard.find(id).map(|slot| self.take_for_dirty(&mut shard, slot));
            let (previous, freed) = found.unwrap_or_default();
            let slot = shard.insert(&record);
            shard.set_hot(slot, bytes, true);
            if let Some(hot) = shard.hot.get_mut(&slot).filter(|_| previous.is_some()) {
                hot.unlogged_mut().previous = previous;
            }
            freed
        };
        self.dirty.add(weight(record.len));
        for at in freed {
            self.release(at);
        }
        self.dirty_queue.lock().push_back(id);
        self.wake_background.notify_one();
    }

    /// Takes a chunk out, to be replaced by one that is only in memory. Returns the state that the
    /// log has for its id, and slabs unknown to the log.
    pub(crate) fn take_for_dirty(
        &self,
        shard: &mut Shard,
        slot: u32,
    ) -> (Option<Box<ChunkRecord>>, Vec<Location>) {
        let old = shard.record(slot);
        let removed = shard.remove(slot);
        let patched = removed.hot.as_ref().is_some_and(|hot| hot.patched().is_some());
        assert!(!patched, "the log needs more than one record of a patched chunk");
        if removed.leased {
            self.leased.sub(u64::from(removed.len));
        }
        match removed.hot.filter(|h| h.dirty) {
            // It was never on the disk: its slab is free, and the log's state stays.
            Some(mut hot) => {
                self.dirty.sub(weight(removed.len));
                let unlogged = hot.take_unlogged();
                self.promoted.done(unlogged.promoted_from);
                (unlogged.previous, vec![removed.location])
            }
            None => (Some(Box::new(old)), Vec::new()),
        }
    }

    pub(crate) fn is_dirty(&self, id: ChunkId) -> bool {
        let shard = self.index.shard(id);
        shard.find(id).is_some_and(|slot| shard.hot.get(&slot).is_some_and(|h| h.dirty))
    }

    /// Writes one chunk to the disk.
    pub(crate) async fn flush_one(&self, id: ChunkId) -> Result<(), EngineError> {
        let guard = self.lock_durably(id).await?;
        let Some(item) = self.dirty_item(id, guard)? else { return Ok(()) };
        self.flush_items(vec![item]).await
    }

    /// Writes all chunks that are dirty now to the disk, including those already being written.
    ///
    /// # Errors
    /// As for a durable write; the chunks stay in memory and are tried again.
    pub(crate) async fn flush_dirty(&self) -> Result<(), EngineError> {
        let _alone = self.flushing.lock().await;
        let mut taken = Taken::new(self);
        std::mem::swap(&mut taken.ids, &mut *self.dirty_queue.lock());
        let mut ids: Vec<ChunkId> = taken.ids.iter().copied().collect();
        loop {
            let before = ids.len();
            ids = self.flush_free(ids).await?;
            if ids.is_empty() {
                break;
            }
            if ids.len() == before {
                // Other tasks are changing them. Waiting while holding guards of others could
                // deadlock.
                for id in ids {
                    self.flush_one(id).await?;
                }
                break;
            }
        }
        taken.ids.clear();
        Ok(())
    }

    /// Writes those of the chunks to the disk that depend on no other chunk. Returns the others,
    /// whose dependency may be on the disk by then.
    async fn flush_free(&self, ids: Vec<ChunkId>) -> Result<Vec<ChunkId>, EngineError> {
        let (mut batch, mut others) = (Batch::default(), Vec::new());
        for id in ids {
            let guard = if self.waits_for(id).is_none() { self.index.try_lock(id) } else { None };
            match guard {
                // Checked again: it may have been promoted in between.
                Some(guard) if self.waits_for(id).is_none() => {
                    batch.add(self.dirty_item(id, guard)?);
                }
                _ => others.push(id),
            }
            if batch.is_full() {
                self.flush_items(std::mem::take(&mut batch).items).await?;
            }
        }
        self.flush_items(batch.items).await?;
        Ok(others)
    }

    /// Writes one batch of dirty chunks to the disk; false when there are none.
    ///
    /// # Errors
    /// As for a durable write; the chunks stay in memory and are tried again.
    pub(crate) async fn flush_batch(&self) -> Result<bool, EngineError> {
        let _alone = self.flushing.lock().await;
        let (mut taken, mut skipped) = (Taken::new(self), Taken::new(self));
        let mut batch = Batch::default();
        while !batch.is_full() && skipped.ids.len() <= BATCH_CHUNKS {
            let Some(id) = self.dirty_queue.lock().pop_front() else { break };
            match self.index.try_lock(id) {
                Some(guard) if self.waits_for(id).is_none() => {
                    taken.ids.push_back(id);
                    batch.add(self.dirty_item(id, guard)?);
                }
                _ => skipped.ids.push_back(id),
            }
        }
        let skipped_some = !skipped.ids.is_empty();
        drop(skipped);
        if batch.items.is_empty() {
            taken.ids.clear();
            if skipped_some {
                // The tasks that change them may wait in the log without a leader.
                self.drive().await?;
                crate::tasks::yield_once().await;
            }
            return Ok(skipped_some);
        }
        self.flush_items(batch.items).await?;
        taken.ids.clear();
        Ok(true)
    }

    fn dirty_item(&self, id: ChunkId, guard: Guard) -> Result<Option<Item>, EngineError> {
        let found = {
            let mut shard = self.index.shard(id);
            shard.find(id).and_then(|slot| {
                let hot = shard.hot.get_mut(&slot).filter(|h| h.dirty)?;
                let bytes = hot.bytes.get();
                Some((shard.record(slot), bytes))
            })
        };
        let Some((record, bytes)) = found else { return Ok(None) };
        let (offset, _) = self.slab(record.location)?;
        Ok(Some(Item { record, bytes, offset, guard }))
    }

    async fn flush_items(&self, mut items: Vec<Item>) -> Result<(), EngineError> {
        if items.is_empty() {
            return Ok(());
        }
        items.sort_unstable_by_key(|i| (!i.bytes.is_empty(), i.offset));
        let writes = self.plan(&items);
        // Ranges that could not be written, and the last error.
        let (mut bad, mut failed) = (Vec::new(), None);
        let mut left = writes.into_iter();
        loop {
            let group: Vec<_> = left.by_ref().take(WRITES).collect();
            if group.is_empty() {
                break;
            }
            let all = group.into_iter().map(|(offset, bytes)| async move {
                let len = bytes.len();
                let write = self.disk.write(offset, bytes);
                let done = timed(&self.clock, &self.metrics.disk_write, write).await;
                done.map_err(|e| {
                    (offset..offset + len as u64, EngineError::io("write", offset, len, e))
                })
            });
            for (range, error) in join_all(all).await.into_iter().filter_map(Result::err) {
                bad.push(range);
                failed = Some(error);
            }
        }
        if let Some(error) = failed {
            self.metrics.io_errors.inc();
            return self.give_up_dirty(items, &bad, error);
        }
        let pending = items
            .into_iter()
            .map(|i| {
                let version = i.record.version;
                Pending::put(i.record, Apply::Clean(version), Some(i.guard))
            })
            .collect();
        // On an error they are not in the log and thus still dirty: the next round tries again.
        self.commit(pending).await
    }

    /// Handles chunks that cannot be written.
    ///
    /// Evictable ones are dropped and counted if the engine may remove chunks; others stay in
    /// memory, readable, and are tried again. A patched chunk with a slab in one of the `bad`
    /// ranges gets another slab.
    fn give_up_dirty(
        &self,
        items: Vec<Item>,
        bad: &[Range<u64>],
        error: EngineError,
    ) -> Result<(), EngineError> {
        for item in items {
            if self.is_patched(item.record.id) && bad.iter().any(|r| r.contains(&item.offset)) {
                self.fold_elsewhere(&item);
            }
            if !item.record.evictable || !self.options.own_removal {
                continue;
            }
            drop(item.guard);
            if self.remove_lazily(item.record.id, item.record.version) {
                self.metrics.dropped_writes.inc();
            }
        }
        Err(error)
    }

    /// Writes for these chunks, sorted by offset; small neighbours are gathered.
    fn plan(&self, items: &[Item]) -> Vec<(u64, SharedBuf)> {
        let padded = |i: &Item| (i.bytes.len() as u64).next_multiple_of(PAGE_BYTES as u64);
        let mut writes = Vec::new();
        // Empty chunks come first: they have no slab.
        let mut at = items.partition_point(|i| i.bytes.is_empty());
        while at < items.len() {
            let first = &items[at];
            let mut end = at + 1;
            let mut run = padded(first);
            while let Some(next) = items.get(end)
                && next.offset == first.offset + run
                && padded(next) <= GATHER_BYTES
                && run + padded(next) <= RUN_BYTES
            {
                run += padded(next);
                end += 1;
            }
            if let Some(bytes) = self.gather(&items[at..end], run) {
                writes.push((first.offset, bytes));
            } else {
                writes.extend(items[at..end].iter().map(|i| (i.offset, i.bytes.clone())));
            }
            at = end;
        }
        writes
    }

    fn gather(&self, run: &[Item], bytes: u64) -> Option<SharedBuf> {
        if run.len() < 2 {
            return None;
        }
        let mut buf = self.pool.try_alloc(usize::try_from(bytes).ok()?)?;
        let all = buf.as_full_mut();
        let start = run.first()?.offset;
        for item in run {
            let at = usize::try_from(item.offset - start).ok()?;
            let padded = item.bytes.padded();
            all[at..at + padded.len()].copy_from_slice(padded);
        }
        Some(buf.freeze())
    }
}
