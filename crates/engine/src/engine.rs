//! The engine's shared state and its small synchronous operations.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use millpond_env::{Buf, BufferPool, Clock, Disk, SharedBuf};
use millpond_types::metrics::Gauge;
use millpond_types::{ChunkId, GroupId, Tick};
use parking_lot::{Mutex, RwLock};

use crate::error::EngineError;
use crate::fold::Unfolded;
use crate::format::record::Location;
use crate::format::superblock::{DATA_START, Superblock};
use crate::index::{
    ChunkInfo, Entry, HOT_BYTES_PER_CHUNK, INDEX_BYTES_PER_CHUNK, Index, Live, Removed, SHARDS,
    Unlogged, Usage, weight,
};
use crate::log::Log;
use crate::metrics::{EngineMetrics, EngineStats};
use crate::options::EngineOptions;
use crate::patch::Base;
use crate::promote::Promoted;
use crate::shares::Shares;
use crate::space::{ClassUsage, Readers, Space};

/// How long a cancelled write may still reach the disk; its slab stays unused for that time.
const QUARANTINE: Duration = Duration::from_mins(1);

/// Share of the pool that is reserved for making room: the log, write-behind, checkpoints,
/// compaction, deletes. If requests could take it, memory full of values waiting for room would
/// keep room from being made.
const RESERVE_SHARE: usize = 16;
/// Two batches of compaction, a block of a checkpoint and the log's buffers, several times.
const RESERVE_MAX: usize = 32 << 20;
/// Share of the index's memory, one in this many, beyond which chunks leave memory. Chunks still in
/// memory beyond it evict no others.
pub(crate) const HOT_SHARE: u64 = 4;
/// Memory of an empty chunk with the attributes that chains give it.
const BARE_BYTES: u64 = INDEX_BYTES_PER_CHUNK as u64 + 56;
/// A search for memory to reclaim that found none is repeated only after this many times its
/// duration. With every chunk in memory dirty it takes milliseconds, and each of thousands of
/// requests would repeat it.
const BARREN_TIMES: u32 = 4;

/// A chunk store on one disk. Clones are the same engine; every core may use it.
pub struct Engine<D: Disk>(pub(crate) Arc<Inner<D>>);

impl<D: Disk> Clone for Engine<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D: Disk> std::fmt::Debug for Engine<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Opaque bytes stored with a chunk.
pub type SmallBytes = Box<[u8]>;

/// Info and bytes of a chunk.
#[derive(Clone, Debug)]
pub struct ChunkData {
    /// Description of the chunk.
    pub info: ChunkInfo,
    /// Its bytes, or the requested part of them.
    pub bytes: SharedBuf,
}

/// Position of a scan; the default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(pub u64);

pub(crate) struct Inner<D> {
    pub(crate) disk: D,
    pub(crate) pool: BufferPool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: EngineOptions,
    pub(crate) segment_bytes: u64,
    pub(crate) salt: u64,
    pub(crate) index: Arc<Index>,
    pub(crate) space: Mutex<Space>,
    pub(crate) readers: Readers,
    /// Slabs below patches.
    pub(crate) shares: Shares,
    /// Patches that are not durably folded, replaced or removed.
    pub(crate) unfolded: Arc<Unfolded>,
    pub(crate) log: Arc<Log>,
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) versions: AtomicU64,
    /// Bytes in memory that the disk does not have, in whole pages: a value of one byte counts as
    /// one page.
    pub(crate) dirty: Gauge,
    pub(crate) dirty_queue: Mutex<VecDeque<ChunkId>>,
    /// Chunks with newest bytes in the log alone, in the order of their first patch.
    pub(crate) patched_queue: Mutex<VecDeque<ChunkId>>,
    /// Held while chunks taken from `dirty_queue` are being written.
    pub(crate) flushing: tokio::sync::Mutex<()>,
    /// Chunks promoted while they were only in memory.
    pub(crate) promoted: Promoted,
    /// Shared from a promotion or removal in memory until its record is queued.
    pub(crate) queueing: RwLock<()>,
    pub(crate) leased: Gauge,
    pub(crate) reclaim_at: AtomicUsize,
    /// Time until which nothing in memory can be dropped, according to the last search.
    pub(crate) barren_until: AtomicU64,
    pub(crate) evict_at: AtomicUsize,
    pub(crate) quarantine: Mutex<Vec<(Tick, Location)>>,
    pub(crate) checkpointing: tokio::sync::Mutex<()>,
    pub(crate) taking_room: tokio::sync::Mutex<()>,
    pub(crate) compacting: tokio::sync::Mutex<()>,
    pub(crate) wake_background: tokio::sync::Notify,
    pub(crate) wake_lazy: tokio::sync::Notify,
    pub(crate) metrics: EngineMetrics,
}

impl<D: Disk> Inner<D> {
    pub(crate) const fn segment_offset(&self, segment: u32) -> u64 {
        DATA_START + segment as u64 * self.segment_bytes
    }

    /// Byte offset and length of a slab that the index names; both are 0 for no slab.
    pub(crate) fn slab(&self, at: Location) -> Result<(u64, u64), EngineError> {
        if at.is_nowhere() {
            return Ok((0, 0));
        }
        let bad = crate::FormatError::Index { segment: at.segment, slab: at.slab };
        self.space.lock().slab(at).ok_or(EngineError::Format(bad))
    }

    pub(crate) fn now_seconds(&self) -> u32 {
        u32::try_from(self.clock.unix_ms() / 1000).unwrap_or(u32::MAX)
    }

    /// Whether a chunk is expired and this engine removes chunks by itself.
    pub(crate) fn is_over(&self, e: &Entry) -> bool {
        e.expires != 0 && self.options.own_removal && e.expired(self.now_seconds())
    }

    /// Number of chunks and the approximate memory that they take beside their bytes. Marks that an
    /// owner keeps for removed chunks do not count: they would evict ever more chunks while they
    /// stay.
    pub(crate) fn live(&self) -> Live {
        let live = self.index.live();
        let owner = self.options.owner_bytes_per_chunk;
        let hot =
            (live.hot * HOT_BYTES_PER_CHUNK as u64).min(self.options.index_bytes_max.0 / HOT_SHARE);
        let bytes = live.bytes + live.chunks * owner + hot;
        Live { bytes: bytes.saturating_sub(live.bare * (BARE_BYTES + owner)), ..live }
    }

    pub(crate) fn next_version(&self) -> u64 {
        self.versions.fetch_add(1, Ordering::Relaxed)
    }

    /// Frees a slab once its last reader is done.
    pub(crate) fn release(&self, at: Location) {
        if at.is_nowhere() {
            return;
        }
        if !self.shares.leave(at) && self.readers.retire(at) {
            self.space.lock().free(at);
        }
    }

    /// Frees everything a chunk held.
    pub(crate) fn release_all(&self, Freed { slabs, below }: Freed) {
        for at in slabs {
            self.release(at);
        }
        drop(below);
    }

    /// Takes a removed chunk off the books and returns the slabs to free.
    pub(crate) fn give_up(&self, removed: Removed) -> Freed {
        if removed.leased {
            self.leased.sub(u64::from(removed.len));
        }
        let (mut slabs, mut below) = (vec![removed.location], None);
        if let Some(mut hot) = removed.hot.filter(|hot| hot.dirty) {
            let Unlogged { previous, patched, promoted_from } = hot.take_unlogged();
            self.dirty.sub(weight(removed.len));
            self.promoted.done(promoted_from);
            slabs.extend(previous.map(|p| p.location));
            slabs.extend(patched.as_ref().map(|base| base.record.location));
            below = patched;
        }
        Freed { slabs, below }
    }

    /// A buffer for work that makes room, taken from all free memory; drops clean chunks from
    /// memory when the pool is short. Requests use [`Inner::request_buf`].
    pub(crate) fn pool_buf(&self, len: usize) -> Result<Buf, EngineError> {
        self.buf_leaving(len, 0)
    }

    /// A buffer for a request; it leaves the reserve untouched.
    pub(crate) fn request_buf(&self, len: usize) -> Result<Buf, EngineError> {
        self.buf_leaving(len, self.reserve_bytes())
    }

    /// Whether a request may take `len` bytes of the pool now.
    pub(crate) fn request_fits(&self, len: usize) -> Result<(), EngineError> {
        let wanted = self.pool.used() + len + self.reserve_bytes();
        let over = wanted.saturating_sub(self.pool.capacity());
        if over == 0 || self.reclaim(over.max(64 << 10)) >= over {
            return Ok(());
        }
        Err(EngineError::Busy("no memory buffer is free"))
    }

    fn reserve_bytes(&self) -> usize {
        (self.pool.capacity() / RESERVE_SHARE).min(RESERVE_MAX)
    }

    fn buf_leaving(&self, len: usize, left: usize) -> Result<Buf, EngineError> {
        if let Some(buf) = self.pool.try_alloc_leaving(len, left) {
            return Ok(buf);
        }
        // Freed pages must also be contiguous; larger buffers need more attempts.
        for _ in 0..64 {
            if self.reclaim(len.max(64 << 10)) == 0 {
                break;
            }
            if let Some(buf) = self.pool.try_alloc_leaving(len, left) {
                return Ok(buf);
            }
        }
        Err(EngineError::Busy("no memory buffer is free"))
    }

    /// Drops clean chunks from memory until `bytes` are freed; returns the number of bytes freed.
    /// After a search without success it does nothing for a while.
    pub(crate) fn reclaim(&self, bytes: usize) -> usize {
        let started = self.clock.now();
        if started.0 < self.barren_until.load(Ordering::Relaxed) {
            return 0;
        }
        let freed = self.drop_clean(bytes);
        if freed == 0 {
            let now = self.clock.now();
            let until = now.plus(now.since(started) * BARREN_TIMES);
            self.barren_until.store(until.0, Ordering::Relaxed);
        }
        freed
    }

    /// Notes that something in memory may be dropped that could not be before.
    pub(crate) fn note_clean(&self) {
        self.barren_until.store(0, Ordering::Relaxed);
    }

    fn drop_clean(&self, bytes: usize) -> usize {
        let mut freed = 0;
        for _ in 0..SHARDS {
            let at = self.reclaim_at.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let mut shard = self.index.shard_at(at);
            // Every chunk may be looked at four times before its count is used up.
            let mut budget = (shard.hot_len() * 4).min(4096);
            let mut from_shard = 0;
            while freed < bytes && from_shard < bytes.div_ceil(8) && budget > 0 {
                let Some(n) = shard.reclaim_step() else { break };
                freed += usize::try_from(n).unwrap_or(0);
                from_shard += usize::try_from(n).unwrap_or(0);
                budget -= 1;
            }
            if freed >= bytes {
                break;
            }
        }
        freed
    }

    /// Frees slabs of abandoned writes once those writes must be over.
    pub(crate) fn drain_quarantine(&self) {
        let now = self.clock.now();
        let done: Vec<Location> = {
            let mut q = self.quarantine.lock();
            let (done, keep) = q.drain(..).partition(|(t, _)| now.since(*t) >= QUARANTINE);
            *q = keep;
            done.into_iter().map(|(_, at): (Tick, Location)| at).collect()
        };
        for at in done {
            self.release(at);
        }
    }
}

/// Slabs of a chunk that is gone. They are freed once the record of its removal is durable.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    pub(crate) slabs: Vec<Location>,
    /// The base of its patches, which stay in force until then.
    pub(crate) below: Option<Box<Base>>,
}

/// A slab that no index entry names yet.
pub(crate) struct Reserved<'a, D: Disk> {
    inner: &'a Inner<D>,
    pub(crate) location: Location,
    armed: bool,
    pub(crate) writing: bool,
}

impl<'a, D: Disk> Reserved<'a, D> {
    pub(crate) const fn new(inner: &'a Inner<D>, location: Location) -> Self {
        Self { inner, location, armed: true, writing: false }
    }

    /// The log record takes the slab over.
    pub(crate) fn keep(mut self) -> Location {
        self.armed = false;
        self.location
    }
}

impl<D: Disk> Drop for Reserved<'_, D> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        if self.writing {
            let now = self.inner.clock.now();
            self.inner.quarantine.lock().push((now, self.location));
        } else {
            self.inner.release(self.location);
        }
    }
}

impl<D: Disk> Engine<D> {
    /// Information on a chunk; `None` when it is absent or expired.
    #[must_use]
    pub fn lookup(&self, id: ChunkId) -> Option<ChunkInfo> {
        let shard = self.0.index.shard(id);
        let slot = shard.find(id)?;
        (!self.0.is_over(shard.entry(slot))).then(|| shard.info(slot))
    }

    /// Like [`Engine::lookup`], but only for a chunk whose attributes `wanted` accepts. `wanted`
    /// runs under the engine's lock, so it must not call the engine.
    #[must_use]
    pub fn lookup_where(
        &self,
        id: ChunkId,
        wanted: impl FnOnce(&[u8]) -> bool,
    ) -> Option<ChunkInfo> {
        let shard = self.0.index.shard(id);
        let slot = shard.find(id).filter(|slot| wanted(shard.attrs(*slot)))?;
        (!self.0.is_over(shard.entry(slot))).then(|| shard.info(slot))
    }

    /// The opaque attributes of a chunk.
    #[must_use]
    pub fn attrs(&self, id: ChunkId) -> Option<SmallBytes> {
        let shard = self.0.index.shard(id);
        shard.find(id).map(|slot| shard.attrs(slot).into())
    }

    /// Information on a live chunk with exactly the attributes `attrs`; `None` otherwise.
    #[must_use]
    pub fn lookup_matching(&self, id: ChunkId, attrs: &[u8]) -> Option<ChunkInfo> {
        let shard = self.0.index.shard(id);
        let slot = shard.find(id).filter(|slot| shard.attrs(*slot) == attrs)?;
        (!self.0.is_over(shard.entry(slot))).then(|| shard.info(slot))
    }

    /// Counts an access for eviction; false when the chunk is absent.
    #[must_use]
    pub fn touch(&self, id: ChunkId) -> bool {
        let mut shard = self.0.index.shard(id);
        let Some(slot) = shard.find(id) else { return false };
        shard.touch(slot);
        true
    }

    /// Promises not to evict the chunk before `until`; the later of two leases counts.
    ///
    /// False when the chunk is absent or the share of leased bytes is used up. A lease is
    /// kept in memory and ends by itself.
    #[must_use]
    pub fn lease(&self, id: ChunkId, until: Tick) -> bool {
        let inner = &self.0;
        let mut shard = inner.index.shard(id);
        let Some(slot) = shard.find(id) else { return false };
        if let Some(old) = shard.leases.get_mut(&slot) {
            *old = until.max(*old);
            return true;
        }
        let len = u64::from(shard.entry(slot).len());
        let cap = self.usable_bytes() / 1000 * u64::from(inner.options.lease_share);
        if inner.leased.get() + len > cap {
            return false;
        }
        inner.leased.add(len);
        shard.leases.insert(slot, until);
        true
    }

    /// End of the chunk's lease, if it has one.
    #[must_use]
    pub fn leased_until(&self, id: ChunkId) -> Option<Tick> {
        let shard = self.0.index.shard(id);
        let until = *shard.leases.get(&shard.find(id)?)?;
        (until > self.0.clock.now()).then_some(until)
    }

    fn usable_bytes(&self) -> u64 {
        let segments = (self.0.disk.capacity() - DATA_START) / self.0.segment_bytes;
        segments * self.0.segment_bytes
    }

    /// Lists chunks with their attributes, of one group or all, in no particular order.
    ///
    /// Visits a bounded number of slots per call, so a page may be short or empty; the listing ends
    /// when no cursor comes back. Chunks written during the listing may be missed.
    #[must_use]
    pub fn scan(
        &self,
        group: Option<GroupId>,
        cursor: Cursor,
        limit: usize,
    ) -> (Vec<(ChunkInfo, SmallBytes)>, Option<Cursor>) {
        const SLOTS_PER_CALL: u32 = 65_536;
        let mut found = Vec::new();
        let mut shard_at = usize::try_from(cursor.0 >> 32).unwrap_or(SHARDS);
        let mut slot = u32::try_from(cursor.0 & 0xffff_ffff).unwrap_or(0);
        let mut budget = SLOTS_PER_CALL;
        while shard_at < SHARDS {
            let shard = self.0.index.shard_at(shard_at);
            while slot < shard.slots() {
                if budget == 0 || found.len() >= limit {
                    return (found, Some(Cursor((shard_at as u64) << 32 | u64::from(slot))));
                }
                budget -= 1;
                if let Some(e) = shard.live(slot)
                    && group.is_none_or(|g| g == e.group)
                    && !self.0.is_over(e)
                {
                    found.push((shard.info(slot), shard.attrs(slot).into()));
                }
                slot += 1;
            }
            (shard_at, slot) = (shard_at + 1, 0);
        }
        (found, None)
    }

    /// Ids of a group, expired ones included.
    pub(crate) fn group_ids(
        &self,
        group: GroupId,
        cursor: Cursor,
        limit: usize,
    ) -> (Vec<ChunkId>, Option<Cursor>) {
        let mut found = Vec::new();
        let start = usize::try_from(cursor.0).unwrap_or(SHARDS);
        for shard_at in start..SHARDS {
            let shard = self.0.index.shard_at(shard_at);
            if shard.usage.contains_key(&group) {
                let live = (0..shard.slots()).filter_map(|slot| shard.live(slot));
                let left = limit - found.len();
                found.extend(live.filter(|e| e.group == group).map(|e| e.id).take(left));
            }
            if found.len() >= limit {
                // Continue with this shard: the caller will have removed the ids returned here.
                return (found, Some(Cursor(shard_at as u64)));
            }
        }
        (found, None)
    }

    /// Chunks and bytes of a group.
    #[must_use]
    pub fn group_usage(&self, group: GroupId) -> Usage {
        self.0.index.usage(group)
    }

    /// A snapshot of the engine's state.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        let inner = &self.0;
        let Live { chunks, bytes: index_bytes, .. } = inner.live();
        let (log_bytes, read_only) = {
            let log = inner.log.0.lock();
            (log.bytes, log.failed.is_some())
        };
        let space = inner.space.lock();
        EngineStats {
            chunks,
            index_bytes,
            index_bytes_max: inner.options.index_bytes_max.0,
            usable_bytes: space.usable_bytes(),
            used_bytes: space.used_bytes(),
            room_bytes: space.room_bytes(),
            segment_bytes: inner.segment_bytes,
            free_segments: space.free_segments() as u64,
            compactable_segments: space.compactable_segments() as u64,
            dirty_bytes: inner.dirty.get(),
            leased_bytes: inner.leased.get(),
            log_bytes,
            read_only,
        }
    }

    /// Approximate memory of the index in bytes, including the traces of removed chunks. Visits
    /// every shard.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        self.0.index.memory_bytes() + self.0.index.len() * self.0.options.owner_bytes_per_chunk
    }

    /// Segments and slabs by class.
    #[must_use]
    pub fn class_usage(&self) -> Vec<ClassUsage> {
        self.0.space.lock().class_usage()
    }

    /// Counters and histograms.
    #[must_use]
    pub fn metrics(&self) -> &EngineMetrics {
        &self.0.metrics
    }

    /// Identity and layout of the disk.
    #[must_use]
    pub fn superblock(&self) -> Superblock {
        self.0.superblock.lock().clone()
    }

    /// A pool buffer for a request; drops clean chunks from memory when the pool is short. It
    /// leaves the reserve for making room.
    ///
    /// # Errors
    /// `Busy` when nothing can be dropped.
    pub fn alloc(&self, len: usize) -> Result<Buf, EngineError> {
        self.0.request_buf(len)
    }

    /// A pool buffer for work that makes room, deletes for instance: like [`Engine::alloc`], but
    /// may use the reserve.
    ///
    /// # Errors
    /// `Busy` when nothing can be dropped.
    pub fn alloc_reserved(&self, len: usize) -> Result<Buf, EngineError> {
        self.0.pool_buf(len)
    }

    /// Drops clean chunks from memory until `bytes` are freed; returns the number of bytes freed.
    #[must_use]
    pub fn reclaim(&self, bytes: usize) -> usize {
        self.0.reclaim(bytes)
    }

    /// The longest chunk this disk can hold.
    #[must_use]
    pub fn chunk_bytes_max(&self) -> u64 {
        self.0.segment_bytes
    }
}

/// Times a disk operation into a histogram.
pub(crate) async fn timed<T>(
    clock: &Arc<dyn Clock>,
    histogram: &millpond_types::metrics::Histogram,
    operation: impl Future<Output = T>,
) -> T {
    let started = clock.now();
    let output = operation.await;
    histogram.observe(clock.now().since(started));
    output
}
