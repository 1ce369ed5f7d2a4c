//! Eviction, expiry and leases.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use millpond_env::Disk;
use millpond_types::ChunkId;
use millpond_types::limits::PAGE_BYTES;

use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::format::record::Record;
use crate::index::{Entry, Guard, SHARDS, Turn, weight};
use crate::log::{Apply, Pending};

/// Deletes in one commit of the background.
const BATCH: usize = 512;

/// Fill of the index's memory where eviction of chunks starts and where it stops, in per mille.
const INDEX_HIGH: u32 = 900;
const INDEX_LOW: u32 = 850;

/// Amount of `used` above the lower of two watermarks, in per mille of `all`, once the higher one
/// is passed.
fn over(used: u64, all: u64, (low, high): (u32, u32)) -> Option<u64> {
    let share = |per_mille: u32| all / 1000 * u64::from(per_mille);
    (used > share(high)).then(|| used - share(low))
}

/// A chunk that was taken out of its queue and locked.
struct Victim {
    id: ChunkId,
    guard: Guard,
    bytes: u64,
}

/// Chunks that one call of [`Engine::coldest`] visits per priority, and per turn of a shard.
/// Together about a millisecond; the next call continues behind them.
const LOOKS_MAX: usize = 4096;
const LOOKS_TURN: usize = 64;

/// Result of a call of [`Engine::coldest`] so far.
#[derive(Default)]
struct Coldest {
    ids: Vec<ChunkId>,
    known: HashSet<ChunkId>,
    bytes: u64,
}

impl<D: Disk> Engine<D> {
    /// Bytes to remove to reach the low watermarks, once a high one is passed: that of the space,
    /// or that of the index, converted to bytes by the mean chunk size.
    #[must_use]
    pub fn over_watermark(&self) -> Option<u64> {
        self.0.over_watermark()
    }

    /// Lists chunks worth about `bytes` that should be evicted next, lowest priority first, without
    /// removing them: evictable, not recently read, and not leased, pinned, being changed or only
    /// in memory.
    ///
    /// `wanted` is called last, with the chunk's attributes and the bytes it takes on the disk;
    /// exactly the chunks that it accepts are returned, in this order. It runs under the engine's
    /// lock, so it must not call the engine. A returned chunk moves to the end of its queue (one of
    /// 64 by id), so a chunk that the caller could not remove comes again after all others of that
    /// queue. Visits a bounded number of chunks, so the result may be smaller than requested; call
    /// again.
    #[must_use]
    pub fn coldest(
        &self,
        bytes: u64,
        mut wanted: impl FnMut(ChunkId, &[u8], u64) -> bool,
    ) -> Vec<ChunkId> {
        let mut found = Coldest::default();
        for priority in 0..4 {
            self.0.coldest_in(priority, bytes, &mut found, &mut wanted);
        }
        found.ids
    }
}

impl<D: Disk> Inner<D> {
    fn coldest_in(
        &self,
        priority: usize,
        bytes: u64,
        found: &mut Coldest,
        wanted: &mut dyn FnMut(ChunkId, &[u8], u64) -> bool,
    ) {
        let now = self.clock.now();
        let (mut looks, mut idle) = (0, 0);
        while idle < SHARDS && looks < LOOKS_MAX && found.bytes < bytes {
            let at = self.evict_at.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let mut shard = self.index.shard_at(at);
            idle += 1;
            for look in 0..(shard.queued(priority) * 4).min(LOOKS_TURN) {
                looks += 1;
                let turn = Turn::of_look(look, LOOKS_TURN / 2);
                let Coldest { known, .. } = found;
                let mut new = |e: &Entry, attrs: &[u8]| {
                    !known.contains(&e.id) && wanted(e.id, attrs, weight(e.len()))
                };
                match shard.evict_step((priority, turn), now, &mut new) {
                    None => break,
                    Some(Err(())) => {}
                    Some(Ok(slot)) => {
                        shard.requeue(slot);
                        let e = shard.entry(slot);
                        found.bytes += weight(e.len());
                        found.ids.push(e.id);
                        found.known.insert(e.id);
                        idle = 0;
                        break;
                    }
                }
            }
        }
    }

    /// Chooses chunks worth `bytes`, lowest priority first, round-robin over the shards.
    fn choose(&self, bytes: u64, count: usize) -> Vec<Victim> {
        let now = self.clock.now();
        let (mut victims, mut sum) = (Vec::new(), 0);
        for priority in 0..4 {
            let mut idle_shards = 0;
            while idle_shards < SHARDS && sum < bytes && victims.len() < count {
                let at = self.evict_at.fetch_add(1, Ordering::Relaxed) % SHARDS;
                match self.choose_in(at, priority, now) {
                    Some(victim) => {
                        sum += victim.bytes;
                        idle_shards = 0;
                        victims.push(victim);
                    }
                    None => idle_shards += 1,
                }
            }
        }
        victims
    }

    fn choose_in(&self, at: usize, priority: usize, now: millpond_types::Tick) -> Option<Victim> {
        let mut shard = self.index.shard_at(at);
        // Four turns use up any count of reads; beyond that only protected chunks are left.
        let mut budget = (shard.queued(priority) * 4).min(4096);
        while budget > 0 {
            budget -= 1;
            if let Ok(slot) = shard.evict_step((priority, Turn::Policy), now, &mut |_, _| true)? {
                let e = *shard.entry(slot);
                drop(shard);
                let guard = self.index.try_lock(e.id);
                let mut shard = self.index.shard_at(at);
                let same = shard.find(e.id) == Some(slot);
                return match guard {
                    Some(guard) if same => Some(Victim { id: e.id, guard, bytes: weight(e.len()) }),
                    guard => {
                        if same {
                            shard.requeue(slot);
                        }
                        drop(shard);
                        drop(guard);
                        None
                    }
                };
            }
        }
        None
    }

    /// Evicts chunks worth `bytes` and returns the number of bytes freed.
    ///
    /// Their slabs are reused only after the deletes are durable: otherwise a crash could bring a
    /// deleted chunk back over another chunk's bytes.
    pub(crate) async fn evict(&self, bytes: u64) -> Result<u64, EngineError> {
        self.evict_some(bytes, BATCH).await
    }

    /// Like [`Self::evict`], for at most `count` chunks.
    async fn evict_some(&self, bytes: u64, count: usize) -> Result<u64, EngineError> {
        let victims = self.choose(bytes, count);
        let mut freed = 0;
        for victim in victims {
            if self.remove_now(victim.id, None, victim.guard)? {
                freed += victim.bytes;
                self.metrics.evictions.inc();
            }
        }
        if freed > 0 {
            self.barrier().await?;
        }
        Ok(freed)
    }

    /// Removes a chunk of this version from memory and queues the record of the removal in one
    /// step. A checkpoint whose stream lacks the chunk thus finds the record in the queue, and
    /// makes it durable before it becomes valid.
    pub(crate) fn remove_now(
        &self,
        id: ChunkId,
        version: Option<u64>,
        guard: Guard,
    ) -> Result<bool, EngineError> {
        let _queueing = self.queueing.read();
        let removed = {
            let mut shard = self.index.shard(id);
            let slot = shard.find(id);
            let slot = slot.filter(|s| version.is_none_or(|v| shard.entry(*s).version() == v));
            slot.map(|slot| shard.remove(slot))
        };
        let Some(removed) = removed else { return Ok(false) };
        let apply = Apply::Release(self.give_up(removed));
        let pending = Pending { record: Record::Delete(id), apply, guard: Some(guard) };
        // When the log is closed the slab stays taken, which is right: the chunk's record is still
        // in force.
        self.log.enqueue_lazily(pending)?;
        Ok(true)
    }

    /// Makes room on the request path, when the disk is full.
    ///
    /// A slab of the wanted class may need a whole segment, so this evicts more than requested, and
    /// lets compaction merge the freed slabs.
    pub(crate) async fn make_room(&self, len: u64) -> Result<u64, EngineError> {
        // Deletes without a waiter may still hold slabs.
        self.drive().await?;
        let wanted = (len * 2).max(1 << 20);
        let freed = if self.options.own_removal { self.evict(wanted).await? } else { 0 };
        self.compact_once(4).await?;
        self.wake_background.notify_one();
        Ok(freed)
    }

    /// Writes records that are in the log's queue without a waiter.
    pub(crate) async fn drive(&self) -> Result<(), EngineError> {
        match self.log.lead_if_idle() {
            Some((ticket, token)) => self.lead(token, ticket).await,
            None => Ok(()),
        }
    }

    /// Bytes above the low watermarks, once a high one is passed.
    fn over_watermark(&self) -> Option<u64> {
        let of_index = self.over_index().map(|chunks| {
            let (used, stored) = (self.space.lock().used_bytes(), self.index.len().max(1));
            chunks * (used / stored).max(PAGE_BYTES as u64)
        });
        self.over_space().max(of_index)
    }

    fn over_space(&self) -> Option<u64> {
        let (used, usable) = {
            let space = self.space.lock();
            (space.used_bytes(), space.room_bytes())
        };
        over(used, usable, (self.options.low_watermark, self.options.high_watermark))
    }

    /// Number of chunks above the low watermark of the index, once the high one is passed.
    fn over_index(&self) -> Option<u64> {
        let live = self.live();
        let each = live.bytes.div_ceil((live.chunks - live.bare).max(1)).max(1);
        let over = over(live.bytes, self.options.index_bytes_max.0, (INDEX_LOW, INDEX_HIGH))?;
        Some(over.div_ceil(each))
    }

    /// Evicts from the high to the low watermark.
    pub(crate) async fn evict_to_low(&self) -> Result<(), EngineError> {
        if !self.options.own_removal {
            return Ok(());
        }
        let mut over = self.over_space().unwrap_or(0);
        while over > 0 {
            let freed = self.evict(over).await?;
            if freed == 0 {
                break;
            }
            over = over.saturating_sub(freed);
        }
        let mut many = self.over_index().unwrap_or(0);
        while many > 0 {
            let count = many.min(BATCH as u64);
            if self.evict_some(u64::MAX, usize::try_from(count).unwrap_or(BATCH)).await? == 0 {
                break;
            }
            many -= count;
        }
        Ok(())
    }

    /// Removes expired chunks and ended leases of one shard.
    pub(crate) fn expire_shard(&self, at: usize) {
        let (now, seconds) = (self.clock.now(), self.now_seconds());
        let expired: Vec<(ChunkId, u64)> = {
            let mut shard = self.index.shard_at(at);
            let ended: Vec<u32> =
                shard.leases.iter().filter(|(_, t)| **t <= now).map(|(s, _)| *s).collect();
            for slot in ended {
                shard.leases.remove(&slot);
                self.leased.sub(u64::from(shard.entry(slot).len()));
            }
            if !self.options.own_removal {
                return;
            }
            let live = (0..shard.slots()).filter_map(|slot| shard.live(slot));
            live.filter(|e| e.expired(seconds)).map(|e| (e.id, e.version())).take(4096).collect()
        };
        for (id, version) in expired {
            if self.remove_lazily(id, version) {
                self.metrics.expirations.inc();
            }
        }
    }
}
