//! Folding: patched chunks are written whole, the oldest first, and a checkpoint waits for it.
//!
//! **A checkpoint becomes valid only once no patch is in force that was queued before the end of
//! its stream.** Replaying such a patch needs the base as it was then, and neither the stream nor
//! the log after its beginning is sure to have that. So the patched chunk must be folded, replaced
//! or removed by a record that is *durable*; a replay then ends with the right state whatever it
//! makes of the patch itself.
//!
//! Memory does not show when that is so: it shows a chunk as renamed or gone before the log does,
//! and does not show the result of a patch in the log's queue. So every patch has a [`Mark`]. It is
//! made before the patch is queued and follows the chunk from name to name. It then follows the
//! record that ends the patch (of the fold, the replacement or the removal) until that record is
//! durable.

use std::collections::BTreeMap;
use std::sync::Arc;

use millpond_env::Disk;
use millpond_types::ChunkId;
use parking_lot::Mutex;

use crate::behind::Item;
use crate::engine::Inner;
use crate::error::EngineError;
use crate::format::record::ChunkRecord;
use crate::index::SHARDS;
use crate::tasks::yield_once;

/// Patches in force: the number of chunks, in memory and in the log's queue, by the version that
/// the first patch over their base made.
#[derive(Debug, Default)]
pub(crate) struct Unfolded {
    marks: Mutex<BTreeMap<u64, usize>>,
    /// Bytes of chunks in memory with a patch that is being written to the log.
    on_their_way: Mutex<u64>,
}

/// One chunk's entry among the unfolded, until this is dropped.
#[derive(Debug)]
pub(crate) struct Mark {
    of: Arc<Unfolded>,
    first: u64,
}

/// Bytes of a chunk with a patch that is being written to the log, until this is dropped.
#[derive(Debug)]
pub(crate) struct OnItsWay {
    of: Arc<Unfolded>,
    bytes: u64,
}

impl Unfolded {
    pub(crate) fn mark(self: &Arc<Self>, first: u64) -> Mark {
        *self.marks.lock().entry(first).or_default() += 1;
        Mark { of: Arc::clone(self), first }
    }

    fn oldest(&self) -> Option<u64> {
        self.marks.lock().first_key_value().map(|(first, _)| *first)
    }

    /// Takes `bytes` of the `room` for chunks that are being written to the log.
    pub(crate) fn send(self: &Arc<Self>, bytes: u64, room: u64) -> Option<OnItsWay> {
        let mut all = self.on_their_way.lock();
        if *all + bytes > room {
            return None;
        }
        *all += bytes;
        Some(OnItsWay { of: Arc::clone(self), bytes })
    }
}

impl Clone for Mark {
    fn clone(&self) -> Self {
        self.of.mark(self.first)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut marks = self.of.marks.lock();
        let Some(count) = marks.get_mut(&self.first) else { return };
        *count -= 1;
        if *count == 0 {
            marks.remove(&self.first);
        }
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        *self.of.on_their_way.lock() -= self.bytes;
    }
}

impl<D: Disk> Inner<D> {
    /// Whether a chunk's bytes are in the log alone.
    pub(crate) fn is_patched(&self, id: ChunkId) -> bool {
        let shard = self.index.shard(id);
        let hot = shard.find(id).and_then(|slot| shard.hot.get(&slot));
        hot.is_some_and(|hot| hot.patched().is_some())
    }

    /// When many chunks are patched, asks for the oldest two to be folded at each new patch.
    pub(crate) fn fold_when_pressed(&self) {
        if self.dirty.get() >= self.dirty_max() / 2 {
            self.fold_soon(2);
        }
    }

    /// Asks the background to fold the `count` chunks that were patched first.
    pub(crate) fn fold_soon(&self, count: usize) {
        let oldest: Vec<ChunkId> = {
            let mut queue = self.patched_queue.lock();
            let count = count.min(queue.len());
            queue.drain(..count).collect()
        };
        if !oldest.is_empty() {
            self.dirty_queue.lock().extend(oldest);
            self.wake_background.notify_one();
        }
    }

    /// Returns once no patch queued before this call is in force.
    pub(crate) async fn fold_all(&self) -> Result<(), EngineError> {
        let bound = self.next_version();
        while self.unfolded.oldest().is_some_and(|first| first < bound) {
            // After this, all queued patches and the records that end them are in memory and on the
            // disk.
            self.barrier().await?;
            let ids = self.patched_before(bound);
            if ids.is_empty() {
                // Another task is about to queue the rest.
                yield_once().await;
                continue;
            }
            self.dirty_queue.lock().extend(ids);
            self.flush_dirty().await?;
        }
        self.forget_folded();
        // A failed log drops its queue, including marks: their absence then proves nothing.
        self.log.check()
    }

    /// Removes chunks that are not patched any more from the queue. A promotion locks shards before
    /// the queue, so nothing may wait for a shard while it holds the queue's lock.
    fn forget_folded(&self) {
        let mut all = std::mem::take(&mut *self.patched_queue.lock());
        all.retain(|id| self.is_patched(*id));
        let mut queue = self.patched_queue.lock();
        // Chunks queued in the meantime are younger.
        all.append(&mut queue);
        *queue = all;
    }

    /// Folds patched chunks when no other slab for `len` bytes is left: a patched chunk holds two.
    /// The caller must hold no guard.
    pub(crate) async fn fold_for_room(&self, len: u64) -> Result<(), EngineError> {
        if self.unfolded.oldest().is_none() {
            return Ok(());
        }
        let found = {
            let mut space = self.space.lock();
            let at = space.alloc(len);
            at.inspect(|at| space.free(*at))
        };
        if found.is_some() { Ok(()) } else { self.fold_all().await }
    }

    /// Patched chunks that memory shows. One that is promoted at the same time may be missed.
    fn patched_before(&self, bound: u64) -> Vec<ChunkId> {
        let mut ids = Vec::new();
        for at in 0..SHARDS {
            let shard = self.index.shard_at(at);
            for (slot, hot) in &shard.hot {
                if hot.patched().is_some_and(|base| base.mark.is_before(bound)) {
                    ids.push(shard.entry(*slot).id);
                }
            }
        }
        ids
    }

    /// Chooses another slab for a patched chunk whose slab cannot be written. Otherwise one bad
    /// place would keep every checkpoint from becoming valid, until the log had filled the whole
    /// disk.
    pub(crate) fn fold_elsewhere(&self, item: &Item) {
        let Some(at) = self.space.lock().alloc(u64::from(item.record.len)) else { return };
        let id = item.record.id;
        let mut shard = self.index.shard(id);
        if let Some(slot) = shard.find(id) {
            shard.update(slot, &ChunkRecord { location: at, ..item.record.clone() });
        }
        drop(shard);
        self.quarantine.lock().push((self.clock.now(), item.record.location));
    }
}

impl Mark {
    fn is_before(&self, bound: u64) -> bool {
        self.first < bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_patch_counts_until_its_last_mark_goes() {
        let all = Arc::<Unfolded>::default();
        assert_eq!(all.oldest(), None);
        let (seven, five) = (all.mark(7), all.mark(5));
        let again = five.clone();
        assert_eq!(all.oldest(), Some(5));
        assert!(five.is_before(6) && !five.is_before(5));
        drop(five);
        assert_eq!(all.oldest(), Some(5));
        drop(again);
        assert_eq!(all.oldest(), Some(7));
        drop(seven);
        assert_eq!(all.oldest(), None);
    }

    #[test]
    fn bytes_on_their_way_stay_within_the_room() {
        let all = Arc::<Unfolded>::default();
        let one = all.send(60, 100).unwrap();
        assert!(all.send(41, 100).is_none());
        drop(one);
        assert!(all.send(100, 100).is_some());
        assert_eq!(*all.on_their_way.lock(), 0);
    }
}
