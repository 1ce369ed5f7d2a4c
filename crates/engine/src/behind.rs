//! Write-behind: chunks acknowledged from memory go to the disk in large batches.

use millpond_env::{Disk, SharedBuf};
use millpond_types::ChunkId;
use millpond_types::limits::PAGE_BYTES;

use crate::engine::{Inner, timed};
use crate::error::EngineError;
use crate::format::record::{ChunkRecord, Location};
use crate::index::Guard;
use crate::log::{Apply, Pending};
use crate::tasks::join_all;

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
struct Item {
    record: ChunkRecord,
    bytes: SharedBuf,
    offset: u64,
    guard: Guard,
}

impl<D: Disk> Inner<D> {
    /// Publishes a chunk that is only in memory, in a slab reserved for it.
    pub(crate) fn install_dirty(&self, record: ChunkRecord, bytes: SharedBuf, at: Location) {
        let record = ChunkRecord { location: at, ..record };
        let id = record.id;
        let mut released = None;
        {
            let mut shard = self.index.shard(id);
            let mut previous = None;
            if let Some(slot) = shard.find(id) {
                let old = shard.record(slot);
                let mut removed = shard.remove(slot);
                match removed.hot.as_mut().filter(|h| h.dirty) {
                    // Never on the disk: its slab is free, what the log says stays.
                    Some(hot) => {
                        previous = hot.previous.take();
                        released = Some(removed.location);
                        self.dirty.sub(u64::from(removed.len));
                    }
                    None => previous = Some(Box::new(old)),
                }
                if removed.leased {
                    self.leased.sub(u64::from(removed.len));
                }
            }
            let slot = shard.insert(&record);
            shard.set_hot(slot, bytes, true);
            if let Some(hot) = shard.hot.get_mut(&slot) {
                hot.previous = previous;
            }
        }
        self.dirty.add(u64::from(record.len));
        if let Some(at) = released {
            self.release(at);
        }
        self.dirty_queue.lock().push_back(id);
        self.wake_background.notify_one();
    }

    pub(crate) fn is_dirty(&self, id: ChunkId) -> bool {
        let shard = self.index.shard(id);
        shard.find(id).is_some_and(|slot| shard.hot.get(&slot).is_some_and(|h| h.dirty))
    }

    /// Brings one chunk to the disk.
    pub(crate) async fn flush_one(&self, id: ChunkId) -> Result<(), EngineError> {
        let guard = self.lock(id).await?;
        let Some(item) = self.dirty_item(id, guard)? else { return Ok(()) };
        self.flush_items(vec![item]).await
    }

    /// Brings one batch of dirty chunks to the disk; false when there are none.
    ///
    /// # Errors
    /// As for a durable write; the chunks stay in memory and are tried again.
    pub(crate) async fn flush_batch(&self) -> Result<bool, EngineError> {
        let mut items = Vec::new();
        let mut bytes = 0;
        let mut skipped = Vec::new();
        while items.len() < BATCH_CHUNKS && bytes < BATCH_BYTES {
            let Some(id) = self.dirty_queue.lock().pop_front() else { break };
            let Some(guard) = self.index.try_lock(id) else {
                skipped.push(id);
                if skipped.len() > BATCH_CHUNKS {
                    break;
                }
                continue;
            };
            if let Some(item) = self.dirty_item(id, guard)? {
                bytes += u64::from(item.record.len);
                items.push(item);
            }
        }
        let skipped_some = !skipped.is_empty();
        self.dirty_queue.lock().extend(skipped);
        if items.is_empty() {
            if skipped_some {
                // Who changes them may wait in the log with nobody to lead.
                self.drive().await?;
                crate::tasks::yield_once().await;
            }
            return Ok(skipped_some);
        }
        self.flush_items(items).await?;
        Ok(true)
    }

    fn dirty_item(&self, id: ChunkId, guard: Guard) -> Result<Option<Item>, EngineError> {
        let found = {
            let shard = self.index.shard(id);
            shard.find(id).and_then(|slot| {
                let hot = shard.hot.get(&slot).filter(|h| h.dirty)?;
                Some((shard.record(slot), hot.bytes.clone()))
            })
        };
        let Some((record, bytes)) = found else { return Ok(None) };
        let (offset, _) = self.slab(record.location)?;
        Ok(Some(Item { record, bytes, offset, guard }))
    }

    async fn flush_items(&self, mut items: Vec<Item>) -> Result<(), EngineError> {
        items.sort_unstable_by_key(|i| i.offset);
        let writes = self.plan(&items);
        let mut failed = None;
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
                done.map_err(|e| EngineError::io("write", offset, len, e))
            });
            failed = join_all(all.collect()).await.into_iter().find_map(Result::err).or(failed);
        }
        if let Some(error) = failed {
            self.metrics.io_errors.inc();
            return self.give_up_dirty(items, error);
        }
        let ids: Vec<ChunkId> = items.iter().map(|i| i.record.id).collect();
        let pending = items
            .into_iter()
            .map(|i| {
                let version = i.record.version;
                Pending::put(i.record, Apply::Clean(version), Some(i.guard))
            })
            .collect();
        let done = self.commit(pending).await;
        if done.is_err() {
            // Not in the log, so still dirty: the next round tries again.
            self.dirty_queue.lock().extend(ids);
        }
        done
    }

    /// Chunks that cannot be written: evictable ones are dropped and counted, others stay in
    /// memory, readable, and are tried again.
    fn give_up_dirty(&self, items: Vec<Item>, error: EngineError) -> Result<(), EngineError> {
        for item in items {
            if !item.record.evictable {
                self.dirty_queue.lock().push_back(item.record.id);
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
        let mut at = 0;
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
                let filled = items[at..end].iter().filter(|i| !i.bytes.is_empty());
                writes.extend(filled.map(|i| (i.offset, i.bytes.clone())));
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
