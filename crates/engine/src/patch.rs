//! Patches: a small write over a part of a chunk goes to the log alone (docs/rfcs/0015-patches.md).
//!
//! The log record carries the bytes and so makes the write durable, as in a redo log (Mohan et al.,
//! "ARIES", TODS 1992) and in the deferred writes of Ceph's `BlueStore`. The whole chunk stays in
//! memory and is written to a slab of its own later, like a chunk acknowledged from memory. Then it
//! is *folded*, and its patches are no longer in force. A restart reads the slab below the patches
//! and folds at once (`layers`).
//!
//! - The slab below, the *base*, stays unchanged while patches over it are in force (`shares`).
//! - A checkpoint becomes valid only once all earlier patches are folded (`fold`).
//! - A patch is queued under the guard of its base, so a replay finds the base as it was then.

use std::sync::Arc;

use millpond_env::Disk;
use millpond_types::limits::ATTRS_BYTES_MAX;
use millpond_types::{ChunkId, Crc32c};

use crate::content::Content;
use crate::engine::{Engine, Freed, Inner};
use crate::error::EngineError;
use crate::fold::{Mark, OnItsWay};
use crate::format::record::{ChunkRecord, PATCH_BYTES_MAX, PatchRecord, Record};
use crate::index::{ChunkInfo, Guard, weight};
use crate::log::{Apply, Pending};
use crate::pieces;

/// Most patches over one base; a restart reads and applies that many.
const PATCHES_MAX: u32 = 64;
/// Attempts to make a patch, as its base may change in the meantime.
const ATTEMPTS: usize = 3;

/// New bytes over a part of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct PatchRequest<'a> {
    /// The base; it stays as it is.
    pub base: ChunkId,
    /// Offset of the new bytes; zeros fill any gap between the end of the base and here.
    pub offset: u32,
    /// The bytes, at most [`Engine::PATCH_BYTES_MAX`].
    pub bytes: &'a [u8],
    /// Their checksum, as the client computed it; compared here.
    pub crc: Crc32c,
    /// Opaque bytes to keep beside the new chunk, at most 256.
    pub attrs: &'a [u8],
}

/// The base of a patched chunk.
#[derive(Clone, Debug)]
pub(crate) struct Base {
    /// Record of the chunk below the patches, with its place.
    pub(crate) record: ChunkRecord,
    /// Number of patches, and the sum of their bytes.
    patches: u32,
    bytes: u64,
    /// Entry of the patches among those in force, under the version that the first of them made.
    pub(crate) mark: Mark,
}

/// A patch on its way to the log, beside its record.
#[derive(Debug)]
pub(crate) struct Patching {
    content: Content,
    pub(crate) base: Base,
    _room: OnItsWay,
}

/// A chunk with one part replaced, on its way to the log.
struct Made {
    record: ChunkRecord,
    content: Content,
    part: Arc<[u8]>,
    base_version: u64,
    room: OnItsWay,
}

impl<D: Disk> Engine<D> {
    /// Most bytes of a patch.
    pub const PATCH_BYTES_MAX: usize = PATCH_BYTES_MAX;

    /// Stores a copy of `base` with one part replaced under the id `to`, replacing any chunk there.
    ///
    /// This takes one log write, however long the chunk is. Returns the stored chunk, which is
    /// durable then. Returns `None` without any effect when it cannot be a patch: the base is
    /// absent, empty, evictable or not durable; the patch is too long; or too many bytes are
    /// patched already. The caller then writes the whole chunk. Dropping the future leaves the
    /// write undecided.
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
                "patch of {base} as {to} with {} bytes of attributes: use two different ids, and \
                 at most 256 bytes",
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
            if let Some(info) = inner.log_patch(made, &request).await? {
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

    /// Builds the chunk with its part replaced, and takes room for it in memory.
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
        let start = request.offset as usize;
        let len = old.bytes.len().max(start + request.bytes.len());
        let room = inner.patched_max().saturating_sub(inner.dirty.get());
        let Some(room) = inner.unfolded.send(len as u64, room) else { return Ok(None) };
        let buf = inner.pool_buf(len)?;
        let before = (&*old.bytes, &*below.pieces, below.crc);
        let (pieces, crc) = pieces::patched(before, (start, request.bytes));
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
        let part = Arc::<[u8]>::from(request.bytes);
        let content = Content::patched(old.bytes, buf, (start, Arc::clone(&part)));
        Ok(Some(Made { record, content, part, base_version: old.info.version, room }))
    }
}

impl<D: Disk> Inner<D> {
    /// Bytes in memory that patched chunks may fill: they leave room for writes acknowledged from
    /// memory.
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
        let durable = hot.is_none_or(|hot| hot.patched().is_some_and(few));
        durable && entry.len() > 0 && entry.expires == 0 && !entry.evictable()
    }

    /// Base of a patch that makes `version` of a chunk; `None` when the chunk is not at
    /// `base_version` any more.
    fn base_of(&self, id: ChunkId, base_version: u64, version: u64) -> Option<Base> {
        let shard = self.index.shard(id);
        let slot = shard.find(id).filter(|slot| shard.entry(*slot).version() == base_version)?;
        if let Some(hot) = shard.hot.get(&slot).filter(|hot| hot.dirty) {
            return hot.patched().cloned();
        }
        let mark = self.unfolded.mark(version);
        Some(Base { record: shard.record(slot), patches: 0, bytes: 0, mark })
    }

    /// Guards to change `to` durably and to keep `base` unchanged.
    async fn lock_for_patch(
        &self,
        base: ChunkId,
        to: ChunkId,
    ) -> Result<(Guard, Guard), EngineError> {
        loop {
            while let Some(first) = self.waits_for(to) {
                self.flush_one(first).await?;
            }
            let guards = self.lock_both(base, to).await?;
            if self.waits_for(to).is_none() {
                return Ok(guards);
            }
        }
    }

    /// Queues the record of a patch and waits for it; `None` when the base has changed.
    async fn log_patch(
        &self,
        made: Made,
        request: &PatchRequest<'_>,
    ) -> Result<Option<ChunkInfo>, EngineError> {
        let Made { mut record, content, part, base_version, room } = made;
        self.fold_for_room(u64::from(record.len)).await?;
        let slab = self.reserve(u64::from(record.len)).await?;
        let (base_guard, guard) = self.lock_for_patch(request.base, record.id).await?;
        record.location = slab.location;
        record.version = self.next_version();
        let Some(mut base) = self.base_of(request.base, base_version, record.version) else {
            return Ok(None);
        };
        base.patches += 1;
        base.bytes += request.bytes.len() as u64;
        let at = base.record.location;
        let info = info_of(&record);
        let patch = PatchRecord {
            base: request.base,
            base_version,
            offset: request.offset,
            bytes: part,
            to: record,
        };
        let patching = Patching { content, base, _room: room };
        let apply = Apply::Patched(Box::new(patching));
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

    /// Puts a patched chunk into memory once its record is durable; returns the old state to free.
    pub(crate) fn install_patched(&self, patch: &PatchRecord, patching: Patching) -> Freed {
        let (c, Patching { content, base, _room }) = (&patch.to, patching);
        self.dirty.add(weight(c.len));
        let mut shard = self.index.shard(c.id);
        let old = shard.find(c.id).map(|slot| shard.remove(slot));
        let slot = shard.insert(c);
        shard.set_hot(slot, content, true);
        if let Some(hot) = shard.hot.get_mut(&slot) {
            hot.unlogged_mut().patched = Some(Box::new(base));
        }
        drop(shard);
        old.map(|r| self.give_up(r)).unwrap_or_default()
    }

    /// Queues a chunk that got its first patch for folding; patches may come by promotion.
    pub(crate) fn note_patched(&self, id: ChunkId, base: Option<&Base>) {
        if base.is_some_and(|base| base.patches == 1) {
            self.patched_queue.lock().push_back(id);
        }
    }
}

/// Information on a chunk that was just patched.
fn info_of(c: &ChunkRecord) -> ChunkInfo {
    ChunkInfo {
        id: c.id,
        version: c.version,
        len: c.len,
        crc: c.crc,
        group: c.group,
        expires: None,
        priority: c.priority,
        evictable: false,
        pinned: false,
        in_memory: true,
        lost: false,
    }
}
