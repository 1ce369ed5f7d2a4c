//! Patches: a small write over a part of a chunk goes to the log alone (docs/rfcs/0015-patches.md).
//!
//! The log record carries the bytes and so makes the write durable, as in a redo log (Mohan et al., "ARIES", TODS
//! 1992) and in the deferred writes of Ceph's `BlueStore`. The whole chunk stays in memory and is written
//! to a slab of its own later, as what is acknowledged from memory is: then it is *folded*, and its
//! patches count no more. A restart reads the slab below the patches and folds at once (`layers`).
//!
//! - The slab below, the *base*, stays as it is while patches over it count (`shares`).
//! - A checkpoint counts only once what was patched before is folded.
//! - A patch is queued under the guard of the chunk that it is made of, so a replay finds that chunk as
//!   it was then.

use millpond_env::{Disk, SharedBuf};
use millpond_types::limits::ATTRS_BYTES_MAX;
use millpond_types::{ChunkId, Crc32c};

use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::format::record::{ChunkRecord, Location, PATCH_BYTES_MAX, PatchRecord, Record};
use crate::index::{ChunkInfo, Guard, SHARDS};
use crate::log::{Apply, Pending};
use crate::pieces;

/// Patches over one base; a restart reads and applies that many.
const PATCHES_MAX: u32 = 64;
/// How often a patch is made anew because its chunk changed meanwhile.
const ATTEMPTS: usize = 3;

/// New bytes over a part of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct PatchRequest<'a> {
    /// The chunk that they lie over; it stays as it is.
    pub base: ChunkId,
    /// Where they begin; zeros lie between the end of the base and here.
    pub offset: u32,
    /// The bytes, at most [`Engine::PATCH_BYTES_MAX`].
    pub bytes: &'a [u8],
    /// Their checksum, as the client computed it; compared here.
    pub crc: Crc32c,
    /// Opaque bytes to keep beside the new chunk, at most 256.
    pub attrs: &'a [u8],
}

/// What lies below the patches of a chunk.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    /// Whose bytes they lie over, and where.
    pub(crate) record: ChunkRecord,
    /// How many there are, and their bytes.
    patches: u32,
    bytes: u64,
    /// Version that the first of them made.
    first: u64,
}

/// A chunk with a part replaced, on its way to the log.
struct Made {
    record: ChunkRecord,
    bytes: SharedBuf,
    base_version: u64,
}

impl<D: Disk> Engine<D> {
    /// Most bytes of a patch.
    pub const PATCH_BYTES_MAX: usize = PATCH_BYTES_MAX;

    /// Stores what `base` is with a part replaced under the id `to`, whatever was there: one log write,
    /// however long the chunk is.
    ///
    /// Returns what is stored then, durably. Nothing, and nothing is done, when it cannot be a patch:
    /// the base is absent, empty, may be evicted or is not durable; the patch is too long; too much is
    /// patched already. The caller writes the whole chunk then. Dropping the future leaves the write
    /// undecided.
    ///
    /// # Errors
    /// `NoSpace`, `Busy`, `Io`, `ReadOnly`, `Corrupt` (the base), `Invalid` (checksum, attributes).
    pub async fn write_patch(
        &self,
        to: ChunkId,
        request: PatchRequest<'_>,
    ) -> Result<Option<ChunkInfo>, EngineError> {
        let inner = &self.0;
        inner.keep_log_short().await?;
        let PatchRequest { base, offset, bytes, crc, attrs } = request;
        if attrs.len() > ATTRS_BYTES_MAX || base == to {
            return Err(EngineError::Invalid(format!(
                "patch of {base} as {to} with {} bytes of attributes: at most 256, and two ids",
                attrs.len()
            )));
        }
        if Crc32c::of(bytes) != crc {
            let text = "bytes do not match their checksum: send them again";
            return Err(EngineError::Invalid(text.to_owned()));
        }
        let end = u64::from(offset) + bytes.len() as u64;
        if bytes.len() > PATCH_BYTES_MAX || end > inner.segment_bytes || bytes.is_empty() {
            return Ok(None);
        }
        for _ in 0..ATTEMPTS {
            if !inner.may_patch(base) {
                return Ok(None);
            }
            let Some(made) = self.make_patched(to, &request).await? else { return Ok(None) };
            let guard = inner.lock_durably(to).await?;
            if let Some(info) = inner.log_patch(made, &request, guard).await? {
                inner.metrics.patches.inc();
                inner.metrics.patch_bytes.add(bytes.len() as u64);
                inner.metrics.writes.inc();
                inner.metrics.written_bytes.add(bytes.len() as u64);
                inner.fold_when_pressed();
                return Ok(Some(info));
            }
        }
        Ok(None)
    }

    /// The chunk with its part replaced, in memory.
    async fn make_patched(
        &self,
        to: ChunkId,
        request: &PatchRequest<'_>,
    ) -> Result<Option<Made>, EngineError> {
        let inner = &self.0;
        let Some(old) = self.read(request.base).await? else { return Ok(None) };
        let Some(below) = inner.index.record(request.base) else { return Ok(None) };
        if below.version != old.info.version {
            return Ok(None);
        }
        let kept = old.bytes.len();
        let start = request.offset as usize;
        let end = start + request.bytes.len();
        let len = kept.max(end);
        if inner.dirty.get() + len as u64 > inner.patched_max() {
            return Ok(None);
        }
        let mut buf = inner.pool_buf(len)?;
        let all = buf.as_full_mut();
        all[..kept].copy_from_slice(&old.bytes);
        all[kept..].fill(0);
        all[start..end].copy_from_slice(request.bytes);
        buf.set_len(len);
        let bytes = buf.freeze();
        let before = (below.len, &*below.pieces, below.crc);
        let (pieces, crc) = pieces::patched(before, &bytes, start..end);
        let record = ChunkRecord {
            id: to,
            version: 0,
            len: u32::try_from(len).unwrap_or(u32::MAX),
            crc,
            pinned: false,
            attrs: request.attrs.into(),
            pieces,
            ..below
        };
        Ok(Some(Made { record, bytes, base_version: old.info.version }))
    }
}

impl<D: Disk> Inner<D> {
    /// Bytes in memory that patches may fill: they leave room for writes acknowledged from there.
    fn patched_max(&self) -> u64 {
        self.dirty_max() / 4 * 3
    }

    fn may_patch(&self, id: ChunkId) -> bool {
        let shard = self.index.shard(id);
        let Some(slot) = shard.find(id) else { return false };
        let entry = shard.entry(slot);
        let hot = shard.hot.get(&slot).filter(|hot| hot.dirty);
        let few = |base: &Base| {
            base.patches < PATCHES_MAX && base.bytes < u64::from(entry.len().max(1 << 16))
        };
        let durable = hot.is_none_or(|hot| hot.patched.as_ref().is_some_and(|base| few(base)));
        durable && entry.len() > 0 && entry.expires == 0 && !entry.evictable()
    }

    /// What the next patch of a chunk lies over; none when the chunk is not this version any more.
    fn base_of(&self, id: ChunkId, version: u64) -> Option<Base> {
        let shard = self.index.shard(id);
        let slot = shard.find(id).filter(|slot| shard.entry(*slot).version() == version)?;
        match shard.hot.get(&slot).filter(|hot| hot.dirty) {
            Some(hot) => hot.patched.as_deref().cloned(),
            None => {
                Some(Base { record: shard.record(slot), patches: 0, bytes: 0, first: u64::MAX })
            }
        }
    }

    /// Whether a chunk's bytes are in the log alone.
    pub(crate) fn is_patched(&self, id: ChunkId) -> bool {
        let shard = self.index.shard(id);
        shard
            .find(id)
            .and_then(|slot| shard.hot.get(&slot))
            .is_some_and(|hot| hot.patched.is_some())
    }

    /// Queues the record of a patch and waits for it; nothing when the base has changed.
    async fn log_patch(
        &self,
        made: Made,
        request: &PatchRequest<'_>,
        guard: Guard,
    ) -> Result<Option<ChunkInfo>, EngineError> {
        let Made { mut record, bytes, base_version } = made;
        let slab = self.reserve(u64::from(record.len)).await?;
        let base_guard = match self.index.try_lock(request.base) {
            Some(guard) => guard,
            None => self.lock(request.base).await?,
        };
        let Some(mut base) = self.base_of(request.base, base_version) else { return Ok(None) };
        record.location = slab.location;
        record.version = self.next_version();
        base.patches += 1;
        base.bytes += request.bytes.len() as u64;
        base.first = base.first.min(record.version);
        let at = base.record.location;
        let info = ChunkInfo {
            id: record.id,
            version: record.version,
            len: record.len,
            crc: record.crc,
            group: record.group,
            expires: None,
            priority: record.priority,
            evictable: false,
            pinned: false,
            in_memory: true,
        };
        let patch = PatchRecord {
            base: request.base,
            base_version,
            offset: request.offset,
            bytes: request.bytes.into(),
            to: record,
        };
        let apply = Apply::Patched(bytes, Box::new(base));
        let record = Record::Patch(Box::new(patch));
        let started = self.clock.now();
        self.shares.add(at);
        let queued = self.log.enqueue(vec![Pending { record, apply, guard: Some(guard) }]);
        let (ticket, wait) = queued.inspect_err(|_| self.release(at))?;
        slab.keep();
        drop(base_guard);
        self.decided(ticket, wait).await?;
        self.metrics.commit_wait.observe(self.clock.now().since(started));
        Ok(Some(info))
    }

    /// The record of a patch is durable: its chunk is in memory, and what it was is given back.
    pub(crate) fn install_patched(
        &self,
        c: &ChunkRecord,
        bytes: SharedBuf,
        base: Box<Base>,
    ) -> Vec<Location> {
        let mut shard = self.index.shard(c.id);
        let old = shard.find(c.id).map(|slot| shard.remove(slot));
        let slot = shard.insert(c);
        shard.set_hot(slot, bytes, true);
        if let Some(hot) = shard.hot.get_mut(&slot) {
            hot.patched = Some(base);
        }
        drop(shard);
        self.dirty.add(u64::from(c.len));
        old.map(|r| self.give_up(r)).unwrap_or_default()
    }

    /// A chunk got patches that another one had: when there were none, it is to be folded one day.
    pub(crate) fn note_patched(&self, id: ChunkId, base: Option<&Base>) {
        if base.is_some_and(|base| base.patches == 1) {
            self.patched_queue.lock().push_back(id);
        }
    }

    /// Has the chunks folded that were patched first, when much is patched: two for each new patch.
    fn fold_when_pressed(&self) {
        if self.dirty.get() < self.dirty_max() / 2 {
            return;
        }
        let mut queue = self.patched_queue.lock();
        let oldest = queue.len().min(2);
        let oldest: Vec<ChunkId> = queue.drain(..oldest).collect();
        drop(queue);
        self.dirty_queue.lock().extend(oldest);
        self.wake_background.notify_one();
    }

    /// Folds every chunk that was patched before this call.
    pub(crate) async fn fold_all(&self) -> Result<(), EngineError> {
        let bound = self.next_version();
        // Those that are in the log's queue are in memory after it.
        self.barrier().await?;
        loop {
            let ids = self.patched_before(bound);
            if ids.is_empty() {
                self.patched_queue.lock().retain(|id| self.is_patched(*id));
                return Ok(());
            }
            self.dirty_queue.lock().extend(ids);
            self.flush_dirty().await?;
        }
    }

    fn patched_before(&self, bound: u64) -> Vec<ChunkId> {
        // A promotion moves a chunk from one shard to another: none is under way meanwhile.
        let _none = self.queueing.write();
        let mut ids = Vec::new();
        for at in 0..SHARDS {
            let shard = self.index.shard_at(at);
            for (slot, hot) in &shard.hot {
                if hot.patched.as_ref().is_some_and(|base| base.first < bound) {
                    ids.push(shard.entry(*slot).id);
                }
            }
        }
        ids
    }
}
