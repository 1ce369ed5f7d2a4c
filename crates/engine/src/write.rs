//! Writing: copy-on-write into a fresh slab, then one log record.

use millpond_env::{Disk, SharedBuf};
use millpond_types::limits::{ATTRS_BYTES_MAX, PAGE_BYTES};
use millpond_types::{Ack, ChunkId, Crc32c, GroupId, UnixSeconds};

use crate::engine::{Engine, Inner, Reserved, timed};
use crate::error::EngineError;
use crate::format::record::{ChunkRecord, Location};
use crate::index::{Guard, weight};
use crate::log::{Apply, Pending};
use crate::pieces;

/// Behavior when the chunk exists already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteMode {
    /// Leave it and answer `Exists`.
    #[default]
    IfAbsent,
    /// Replace it.
    Replace,
}

/// A chunk to write.
#[derive(Clone, Debug)]
pub struct WriteRequest<'a> {
    /// The bytes, in a buffer of the engine's pool; they become the copy in memory.
    pub bytes: SharedBuf,
    /// Their checksum, as the client computed it; compared here.
    pub crc: Crc32c,
    /// Opaque bytes to keep beside the chunk, at most 256.
    pub attrs: &'a [u8],
    /// Owner.
    pub group: GroupId,
    /// Eviction class, 0 (first) to 3.
    pub priority: u8,
    /// When the chunk expires.
    pub expires: Option<UnixSeconds>,
    /// Whether it may be evicted.
    pub evictable: bool,
    /// Behavior when the chunk exists already.
    pub mode: WriteMode,
    /// When to answer.
    pub ack: Ack,
}

/// Outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// Stored under this version.
    Stored(u64),
    /// The chunk existed already.
    Exists,
}

/// When a deletion is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// Before the caller gets its answer.
    Answered,
    /// After a flush that begins at once.
    Soon,
    /// With the next flush.
    Lazily,
}

impl<D: Disk> Engine<D> {
    /// Writes a chunk.
    ///
    /// With [`Ack::Disk`] it survives power loss once `Ok` returns; with [`Ack::Memory`] it is
    /// written behind. Dropping the future leaves the write undecided.
    ///
    /// # Errors
    /// `NoSpace`, `Busy`, `Io`, `ReadOnly`, `Invalid` (bounds, checksum).
    pub async fn write(
        &self,
        id: ChunkId,
        request: WriteRequest<'_>,
    ) -> Result<WriteOutcome, EngineError> {
        let inner = &self.0;
        inner.keep_log_short().await?;
        if request.mode == WriteMode::IfAbsent && self.lookup(id).is_some() {
            return self.exists(id, request.ack).await;
        }
        let mut record = inner.new_record(id, &request)?;
        inner.fold_for_room(u64::from(record.len)).await?;
        let started = inner.clock.now();
        let guard = match request.ack {
            Ack::Memory => inner.lock(id).await?,
            Ack::Disk => inner.lock_durably(id).await?,
        };
        inner.metrics.queue.observe(inner.clock.now().since(started));
        if request.mode == WriteMode::IfAbsent && self.lookup(id).is_some() {
            drop(guard);
            return self.exists(id, request.ack).await;
        }
        let slab = inner.reserve(u64::from(record.len)).await?;
        record.location = slab.location;
        record.version = inner.next_version();
        let version = record.version;
        let len = u64::from(record.len);
        let bytes = inner.own_pages(request.bytes)?;
        let room = inner.dirty.get() + weight(record.len) <= inner.dirty_max();
        // With the memory share full, a memory write waits for the disk like any other: its caller
        // sees the disk's pace instead of an error. A write that must not be durable yet passes: it
        // replaces as much memory as it takes.
        let room = room || inner.waits_for(id).is_some();
        // The log's state of a patched chunk is more than one record, so it is not kept beside the
        // new chunk.
        let room = room && !inner.is_patched(id);
        if request.ack == Ack::Memory && room {
            inner.install_dirty(record, bytes, slab.keep());
            drop(guard);
        } else {
            inner.write_through(record, bytes, slab, guard).await?;
        }
        inner.metrics.writes.inc();
        inner.metrics.written_bytes.add(len);
        Ok(WriteOutcome::Stored(version))
    }

    /// Answers `Exists`; for a durable write only once the existing chunk is durable too.
    async fn exists(&self, id: ChunkId, ack: Ack) -> Result<WriteOutcome, EngineError> {
        if ack == Ack::Disk && self.0.is_dirty(id) {
            self.0.flush_one(id).await?;
        }
        Ok(WriteOutcome::Exists)
    }

    /// Pins or unpins a chunk durably; a pinned chunk is not evicted. False when absent.
    ///
    /// # Errors
    /// `Busy`, `ReadOnly`, `NoSpace`.
    pub async fn set_pinned(&self, id: ChunkId, pinned: bool) -> Result<bool, EngineError> {
        let inner = &self.0;
        let guard = inner.lock_clean(id).await?;
        let Some(mut record) = inner.index.record(id) else { return Ok(false) };
        if record.pinned == pinned {
            return Ok(true);
        }
        record.pinned = pinned;
        let apply = Apply::Update { drop_hot: false };
        inner.commit(vec![Pending::put(record, apply, Some(guard))]).await?;
        Ok(true)
    }

    /// Deletes chunks and returns how many were there.
    ///
    /// With [`Ack::Disk`] they stay gone after power loss; with [`Ack::Memory`] a crash soon
    /// after may bring them back.
    ///
    /// # Errors
    /// `Busy`, `ReadOnly`.
    pub async fn delete(&self, ids: &[ChunkId], ack: Ack) -> Result<usize, EngineError> {
        let when = if ack == Ack::Disk { When::Answered } else { When::Soon };
        self.0.delete(ids, when).await
    }

    /// Deletes chunks lazily and returns how many were there.
    ///
    /// Every later call sees it at once. Durable with the next flush, in the order of promotions
    /// and lazy deletions, and before any later change of the same chunk.
    ///
    /// # Errors
    /// `Busy`, `ReadOnly`.
    pub async fn delete_lazy(&self, ids: &[ChunkId]) -> Result<usize, EngineError> {
        self.0.delete(ids, When::Lazily).await
    }

    /// Deletes every chunk of a group durably; returns how many there were.
    ///
    /// # Errors
    /// `Busy`, `ReadOnly`.
    pub async fn remove_group(&self, group: GroupId) -> Result<u64, EngineError> {
        let mut removed = 0;
        let mut cursor = crate::engine::Cursor::default();
        loop {
            let (found, next) = self.group_ids(group, cursor, 1024);
            removed += self.delete(&found, Ack::Disk).await? as u64;
            let Some(next) = next else {
                self.0.index.groups.forget(group);
                return Ok(removed);
            };
            cursor = next;
        }
    }
}

impl<D: Disk> Inner<D> {
    async fn delete(&self, ids: &[ChunkId], when: When) -> Result<usize, EngineError> {
        self.log.check()?;
        let mut count = 0;
        for id in ids {
            if self.index.location(*id).is_none() {
                continue;
            }
            self.room_for_lazy().await?;
            // The guards taken before are in the log's queue, which advances without this task: two
            // deletes of the same ids in different order do not deadlock.
            let guard = self.lock(*id).await?;
            count += usize::from(self.remove_now(*id, None, guard)?);
        }
        match when {
            _ if count == 0 => {}
            When::Answered => self.barrier().await?,
            When::Soon => self.wake_background.notify_one(),
            When::Lazily => self.wake_lazy.notify_one(),
        }
        Ok(count)
    }

    fn new_record(
        &self,
        id: ChunkId,
        request: &WriteRequest<'_>,
    ) -> Result<ChunkRecord, EngineError> {
        let len = request.bytes.len();
        let invalid = |text: String| Err(EngineError::Invalid(text));
        if len as u64 > self.segment_bytes {
            return invalid(format!(
                "chunk has {len} bytes: at most {} fit on this disk; store it in parts",
                self.segment_bytes
            ));
        }
        if request.attrs.len() > ATTRS_BYTES_MAX {
            return invalid(format!("attributes have {} bytes: at most 256", request.attrs.len()));
        }
        if request.priority > 3 {
            return invalid(format!("priority is {}: set 0 to 3", request.priority));
        }
        let (pieces, crc) = pieces::checksums(&request.bytes);
        if crc != request.crc {
            return invalid("bytes do not match their checksum: send them again".to_owned());
        }
        Ok(ChunkRecord {
            id,
            version: 0,
            len: u32::try_from(len).unwrap_or(u32::MAX),
            crc,
            group: request.group,
            expires: request.expires.map_or(0, |e| e.0),
            location: Location { segment: 0, slab: 0, class: 0 },
            priority: request.priority,
            evictable: request.evictable,
            pinned: false,
            attrs: request.attrs.into(),
            pieces,
        })
    }

    /// Bytes that begin on a page and do not keep a much larger buffer in memory.
    fn own_pages(&self, bytes: SharedBuf) -> Result<SharedBuf, EngineError> {
        if bytes.pool_offset().is_multiple_of(PAGE_BYTES as u64) {
            return Ok(bytes);
        }
        let mut buf = self.pool_buf(bytes.len())?;
        buf.set_len(bytes.len());
        buf.copy_from_slice(&bytes);
        Ok(buf.freeze())
    }

    /// Waits for the right to change a chunk.
    ///
    /// Its holder may wait in the log without a leader; this call then leads.
    pub(crate) async fn lock(&self, id: ChunkId) -> Result<Guard, EngineError> {
        if let Some(guard) = self.index.try_lock(id) {
            return Ok(guard);
        }
        self.drive().await?;
        self.index.lock(id).await
    }

    /// Waits for the right to change a chunk that is on the disk.
    pub(crate) async fn lock_clean(&self, id: ChunkId) -> Result<Guard, EngineError> {
        loop {
            let guard = self.lock_durably(id).await?;
            if !self.is_dirty(id) {
                return Ok(guard);
            }
            drop(guard);
            self.flush_one(id).await?;
        }
    }

    pub(crate) fn dirty_max(&self) -> u64 {
        // A quarter of the pool at most: dirty bytes cannot be reclaimed.
        self.options.dirty_bytes_max.0.min(self.pool.capacity() as u64 / 4)
    }

    /// Writes a checkpoint when the background is late or absent: the log must not fill the disk.
    /// The caller must hold no guard, as a checkpoint may need it.
    pub(crate) async fn keep_log_short(&self) -> Result<(), EngineError> {
        self.log.check()?;
        if self.log.0.lock().bytes > 4 * self.options.checkpoint_log_bytes.0 {
            self.checkpoint().await?;
        }
        Ok(())
    }

    /// Takes a slab, evicting when the disk is full.
    pub(crate) async fn reserve(&self, len: u64) -> Result<Reserved<'_, D>, EngineError> {
        for _ in 0..4 {
            self.take_room(|space| space.lacks_room(len)).await?;
            if let Some(at) = self.space.lock().alloc(len) {
                return Ok(Reserved::new(self, at));
            }
            if self.make_room(len).await? == 0 {
                break;
            }
        }
        let at = self.space.lock().alloc(len).ok_or(EngineError::NoSpace)?;
        Ok(Reserved::new(self, at))
    }

    /// Writes bytes to a slab; a failed slab is not used again until a restart.
    pub(crate) async fn write_slab(
        &self,
        slab: &mut Reserved<'_, D>,
        bytes: SharedBuf,
    ) -> Result<(), EngineError> {
        let len = bytes.len();
        if len == 0 {
            return Ok(());
        }
        let (offset, _) = self.slab(slab.location)?;
        slab.writing = true;
        let done = timed(&self.clock, &self.metrics.disk_write, self.disk.write(offset, bytes));
        match done.await {
            Ok(()) => {
                slab.writing = false;
                Ok(())
            }
            Err(error) => {
                self.metrics.io_errors.inc();
                if error.kind() == std::io::ErrorKind::StorageFull {
                    return Err(EngineError::NoSpace);
                }
                Err(EngineError::io("write", offset, len, error))
            }
        }
    }

    async fn write_through(
        &self,
        record: ChunkRecord,
        bytes: SharedBuf,
        mut slab: Reserved<'_, D>,
        guard: Guard,
    ) -> Result<(), EngineError> {
        self.write_slab(&mut slab, bytes.clone()).await?;
        let keep = (!bytes.is_empty()).then_some(bytes);
        let pending = Pending::put(record, Apply::Install(keep), Some(guard));
        self.commit_with(vec![pending], vec![slab]).await
    }
}
