//! Promotion: the bytes stored under one id become those of another.
//!
//! Memory shows a promotion at once; its log record is durable with the next flush. Until then the
//! chunk keeps its guard, so that no later change of it is logged earlier, and its old slab stays.
//! The old name may be used again at once: the record that removes it precedes all later ones.
//!
//! A chunk that is only in memory moves there, and is written behind under its new name: the log
//! never contains the old one. A later chunk under the old name must not be durable before that;
//! otherwise a crash would show a later version beside one that was replaced twice. So [`Promoted`]
//! records which chunk each old name waits for. The versions waited for only decrease, so no cycle
//! of waiters forms.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use millpond_env::Disk;
use millpond_types::ChunkId;
use millpond_types::limits::ATTRS_BYTES_MAX;
use parking_lot::Mutex;

use crate::engine::{Engine, Freed, Inner};
use crate::error::EngineError;
use crate::format::record::{ChunkRecord, Location, Record};
use crate::index::{Guard, Hot, IdHasher, Pair, Queue};
use crate::log::{Apply, Pending};

/// Promotions by old name: the new name and the version of the content in memory.
#[derive(Debug, Default)]
pub(crate) struct Promoted {
    /// Number of entries; an engine without any skips the lookup.
    count: AtomicUsize,
    to: Mutex<HashMap<ChunkId, (ChunkId, u64), IdHasher>>,
}

impl Promoted {
    fn add(&self, from: ChunkId, to: ChunkId, version: u64) {
        let mut all = self.to.lock();
        all.insert(from, (to, version));
        self.count.store(all.len(), Ordering::Release);
    }

    fn get(&self, from: ChunkId) -> Option<(ChunkId, u64)> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.to.lock().get(&from).copied()
    }

    /// Notes that the chunk of this version is on the disk or gone.
    pub(crate) fn done(&self, from: Option<(ChunkId, u64)>) {
        let Some((from, version)) = from else { return };
        let mut all = self.to.lock();
        if all.get(&from).is_some_and(|(_, of)| *of == version) {
            all.remove(&from);
        }
        self.count.store(all.len(), Ordering::Release);
    }
}

/// Result of [`Inner::promote_now`].
enum Outcome {
    Absent,
    Done,
    /// This chunk must reach the disk first: it is dirty and replaces a durable version of the same
    /// id, or it is patched and will be replaced by a chunk that is only in memory.
    Flush(ChunkId),
}

/// State that moves from one name to the other beside the record.
struct Moved {
    hot: Option<Hot>,
    lease: Option<millpond_types::Tick>,
    frequency: u32,
    /// Whether the chunk that had the name was read repeatedly.
    known: bool,
}

impl<D: Disk> Engine<D> {
    /// Makes the content of `from` the content of `to`, with these attributes, and removes `from`.
    /// False when `from` is absent.
    ///
    /// Group, priority, expiry and the copy in memory move along; `to` stays pinned and leased if
    /// it was. Every later call sees the change at once. It is durable with the next flush, a few
    /// milliseconds later at the latest while the background runs, and before any later change of
    /// either chunk: after a crash the disk shows both names as before or both as after. Content
    /// that was only in memory is written behind as `to`. Dropping the future leaves the promotion
    /// undecided.
    ///
    /// # Errors
    /// `Busy`, `ReadOnly`, `Invalid` (too many attributes, one id for both); `NoSpace` and `Io`
    /// when something must be written first.
    pub async fn promote(
        &self,
        from: ChunkId,
        to: ChunkId,
        attrs: &[u8],
    ) -> Result<bool, EngineError> {
        let inner = &self.0;
        if attrs.len() > ATTRS_BYTES_MAX || from == to {
            return Err(EngineError::Invalid(format!(
                "promotion of {from} to {to} with {} bytes of attributes: use two different ids, \
                 and at most 256 bytes",
                attrs.len()
            )));
        }
        loop {
            inner.room_for_lazy().await?;
            let guards = inner.lock_both(from, to).await?;
            match inner.promote_now((from, to), attrs, guards)? {
                Outcome::Absent => return Ok(false),
                Outcome::Done => break,
                Outcome::Flush(id) => inner.flush_one(id).await?,
            }
        }
        inner.metrics.promotions.inc();
        Ok(true)
    }
}

impl<D: Disk> Inner<D> {
    /// Waits until the log accepts a record that memory shows already.
    pub(crate) async fn room_for_lazy(&self) -> Result<(), EngineError> {
        match self.log.check_room() {
            Err(EngineError::Busy(_)) => self.barrier().await,
            other => other,
        }
    }

    /// Guards of two chunks. Nothing else waits for a guard while it holds one, and promotions and
    /// patches take both in the order of their ids.
    pub(crate) async fn lock_both(
        &self,
        from: ChunkId,
        to: ChunkId,
    ) -> Result<(Guard, Guard), EngineError> {
        if from < to {
            let from = self.lock(from).await?;
            return Ok((from, self.lock(to).await?));
        }
        let to = self.lock(to).await?;
        Ok((self.lock(from).await?, to))
    }

    /// The chunk that must be on the disk before a change of `id` is.
    pub(crate) fn waits_for(&self, id: ChunkId) -> Option<ChunkId> {
        let (to, version) = self.promoted.get(id)?;
        let shard = self.index.shard(to);
        let slot = shard.find(to)?;
        let dirty = shard.hot.get(&slot).is_some_and(|h| h.dirty);
        (dirty && shard.entry(slot).version() == version).then_some(to)
    }

    /// Waits for the right to change a chunk durably: the content promoted from it is then on the
    /// disk.
    pub(crate) async fn lock_durably(&self, id: ChunkId) -> Result<Guard, EngineError> {
        loop {
            while let Some(first) = self.waits_for(id) {
                Box::pin(self.flush_one(first)).await?;
            }
            let guard = self.lock(id).await?;
            if self.waits_for(id).is_none() {
                return Ok(guard);
            }
        }
    }

    fn promote_now(
        &self,
        (from, to): (ChunkId, ChunkId),
        attrs: &[u8],
        (from_guard, to_guard): (Guard, Guard),
    ) -> Result<Outcome, EngineError> {
        let queueing = self.queueing.read();
        let mut pair = self.index.pair(from, to);
        let Some(slot) = pair.from.find(from) else { return Ok(Outcome::Absent) };
        let hot = pair.from.hot.get(&slot).filter(|h| h.dirty);
        let patched = hot.is_some_and(|h| h.patched().is_some());
        let dirty = hot.filter(|_| !patched).map(|h| h.previous().is_some());
        if dirty == Some(true) {
            return Ok(Outcome::Flush(from));
        }
        if dirty.is_some() && Self::has_patches(&mut pair, to) {
            return Ok(Outcome::Flush(to));
        }
        let mut record = pair.from.record(slot);
        let mut moved = self.take_from(&mut pair, slot, &record);
        record.id = to;
        record.version = self.next_version();
        record.attrs = attrs.into();
        let freed = if dirty.is_some() {
            let (previous, freed) = self.replace_unlogged(&mut pair, &mut record, &mut moved);
            if let Some(hot) = &mut moved.hot {
                let unlogged = hot.unlogged_mut();
                unlogged.previous = previous;
                unlogged.promoted_from = Some((from, record.version));
            }
            self.promoted.add(from, to, record.version);
            Freed { slabs: freed, below: None }
        } else {
            self.replace_logged(&mut pair, &mut record, &mut moved)
        };
        self.put_to(&mut pair, &record, moved);
        drop(pair);
        if dirty.is_some() {
            drop((queueing, from_guard, to_guard));
            self.release_all(freed);
            self.dirty_queue.lock().push_back(to);
            self.wake_background.notify_one();
            return Ok(Outcome::Done);
        }
        let apply = Apply::Release(freed);
        // A patched chunk needs no slab that the record names, so its next change does not wait for
        // the record.
        let (record, held, dropped) = if patched {
            (Record::RenamePatched { from, to: record }, None, Some(to_guard))
        } else {
            (Record::Rename { from, to: record }, Some(to_guard), None)
        };
        self.log.enqueue_lazily(Pending { record, apply, guard: held })?;
        drop((queueing, from_guard, dropped));
        self.wake_lazy.notify_one();
        Ok(Outcome::Done)
    }

    fn has_patches(pair: &mut Pair<'_>, id: ChunkId) -> bool {
        let shard = pair.to();
        let hot = shard.find(id).and_then(|slot| shard.hot.get(&slot));
        hot.is_some_and(|hot| hot.patched().is_some())
    }

    /// Removes the chunk from its old name.
    fn take_from(&self, pair: &mut Pair<'_>, slot: u32, record: &ChunkRecord) -> Moved {
        let lease = pair.from.leases.get(&slot).copied();
        let frequency = pair.from.entry(slot).frequency();
        let removed = pair.from.remove(slot);
        if removed.leased {
            self.leased.sub(u64::from(record.len));
        }
        if let Some(hot) = &removed.hot {
            self.promoted.done(hot.promoted_from());
        }
        Moved { hot: removed.hot, lease, frequency, known: false }
    }

    /// Passes pin, lease and reads of the replaced chunk on to the new one; returns the replaced
    /// chunk's slot.
    fn inherit(pair: &mut Pair<'_>, record: &mut ChunkRecord, moved: &mut Moved) -> Option<u32> {
        let shard = pair.to();
        let slot = shard.find(record.id)?;
        let old = *shard.entry(slot);
        record.pinned |= old.pinned();
        moved.known = old.queue() == Queue::Main;
        moved.frequency = moved.frequency.max(old.frequency());
        moved.lease = moved.lease.max(shard.leases.get(&slot).copied());
        Some(slot)
    }

    /// Takes the old content out; all of it is freed once the record is durable.
    fn replace_logged(
        &self,
        pair: &mut Pair<'_>,
        record: &mut ChunkRecord,
        moved: &mut Moved,
    ) -> Freed {
        let slot = Self::inherit(pair, record, moved);
        slot.map(|slot| self.give_up(pair.to().remove(slot))).unwrap_or_default()
    }

    /// Takes the old content out, to be replaced by a chunk that is only in memory. Returns the
    /// log's state of the name, and slabs unknown to the log.
    fn replace_unlogged(
        &self,
        pair: &mut Pair<'_>,
        record: &mut ChunkRecord,
        moved: &mut Moved,
    ) -> (Option<Box<ChunkRecord>>, Vec<Location>) {
        let Some(slot) = Self::inherit(pair, record, moved) else { return (None, Vec::new()) };
        self.take_for_dirty(pair.to(), slot)
    }

    fn put_to(&self, pair: &mut Pair<'_>, record: &ChunkRecord, moved: Moved) {
        let shard = pair.to();
        let slot = shard.insert_known(record, moved.known);
        shard.entry_mut(slot).set_frequency(moved.frequency);
        if let Some(until) = moved.lease {
            shard.leases.insert(slot, until);
            self.leased.add(u64::from(record.len));
        }
        let Some(old) = moved.hot else { return };
        self.note_patched(record.id, old.patched());
        let Hot { bytes, reads, dirty, unlogged, .. } = old;
        // The previous version is replaced: a part is copied into its memory.
        shard.set_hot(slot, bytes.settled(), dirty);
        if let Some(hot) = shard.hot.get_mut(&slot) {
            (hot.reads, hot.unlogged) = (reads, unlogged);
        }
    }
}
