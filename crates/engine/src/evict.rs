//! Eviction, expiry and leases.

use millpond_env::Disk;
use millpond_types::ChunkId;

use crate::engine::Inner;
use crate::error::EngineError;
use crate::format::record::Record;
use crate::index::{Guard, SHARDS};
use crate::log::{Apply, Pending};

/// Deletes in one commit of the background.
const BATCH: usize = 512;

/// A chunk that was taken out of its queue and locked.
struct Victim {
    id: ChunkId,
    guard: Guard,
    bytes: u64,
}

impl<D: Disk> Inner<D> {
    /// Chooses chunks worth `bytes`, lowest priority first, round the shards.
    fn choose(&self, bytes: u64, count: usize) -> Vec<Victim> {
        let now = self.clock.now();
        let (mut victims, mut sum) = (Vec::new(), 0);
        for priority in 0..4 {
            let mut idle_shards = 0;
            while idle_shards < SHARDS && sum < bytes && victims.len() < count {
                let at = self.evict_at.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % SHARDS;
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
            if let Ok(slot) = shard.evict_step(priority, now)? {
                let e = *shard.entry(slot);
                drop(shard);
                let guard = self.index.try_lock(e.id);
                let mut shard = self.index.shard_at(at);
                let same = shard.find(e.id) == Some(slot);
                return match guard {
                    Some(guard) if same => {
                        let bytes = u64::from(e.len().max(1)).next_multiple_of(4096);
                        Some(Victim { id: e.id, guard, bytes })
                    }
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

    /// Evicts chunks worth `bytes` and returns how many bytes became free.
    ///
    /// Their slabs are reused only after the deletes are durable: else a crash could bring a
    /// deleted chunk back over somebody else's bytes.
    pub(crate) async fn evict(&self, bytes: u64) -> Result<u64, EngineError> {
        let victims = self.choose(bytes, BATCH);
        let mut freed = 0;
        let mut batch = Vec::with_capacity(victims.len());
        for victim in victims {
            let removed = {
                let mut shard = self.index.shard(victim.id);
                shard.find(victim.id).map(|slot| shard.remove(slot))
            };
            let Some(removed) = removed else { continue };
            freed += victim.bytes;
            let apply = Apply::Release(self.give_up(removed));
            let record = Record::Delete(victim.id);
            batch.push(Pending { record, apply, guard: Some(victim.guard) });
        }
        self.metrics.evictions.add(batch.len() as u64);
        self.commit(batch).await?;
        Ok(freed)
    }

    /// Makes room on the request path, when the disk is full.
    ///
    /// A slab of the wanted class may need a whole segment, so this evicts more than asked
    /// for, and lets compaction join what became free.
    pub(crate) async fn make_room(&self, len: u64) -> Result<u64, EngineError> {
        // Deletes that nobody waits for may hold slabs back.
        self.drive().await?;
        let freed = self.evict((len * 2).max(1 << 20)).await?;
        self.compact_once(4).await?;
        self.wake_background.notify_one();
        Ok(freed)
    }

    /// Writes what waits in the log without a waiter.
    pub(crate) async fn drive(&self) -> Result<(), EngineError> {
        match self.log.lead_if_idle() {
            Some((ticket, token)) => self.lead(token, ticket).await,
            None => Ok(()),
        }
    }

    /// Evicts from the high to the low watermark.
    pub(crate) async fn evict_to_low(&self) -> Result<(), EngineError> {
        let (used, usable) = {
            let space = self.space.lock();
            (space.used_bytes(), space.usable_bytes())
        };
        if used <= usable / 1000 * u64::from(self.options.high_watermark) {
            return Ok(());
        }
        let mut over = used - usable / 1000 * u64::from(self.options.low_watermark);
        while over > 0 {
            let freed = self.evict(over).await?;
            if freed == 0 {
                break;
            }
            over = over.saturating_sub(freed);
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
