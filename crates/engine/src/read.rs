//! Reading: from memory without waiting, else from the disk, verified by piece.

use std::ops::Range;

use millpond_env::{Disk, SharedBuf};
use millpond_types::limits::{PAGE_BYTES, PIECE_BYTES};
use millpond_types::{ChunkId, Crc32c};

use crate::engine::{ChunkData, Engine, Inner, timed};
use crate::error::EngineError;
use crate::format::record::Location;
use crate::index::{ChunkInfo, Shard};
use crate::pieces;

/// A slab that is not reused while this lives.
pub(crate) struct SlabReader<'a, D: Disk> {
    inner: &'a Inner<D>,
    pub(crate) location: Location,
}

impl<'a, D: Disk> SlabReader<'a, D> {
    /// The caller holds the shard's lock, so the location is still the chunk's.
    pub(crate) fn enter(inner: &'a Inner<D>, location: Location) -> Self {
        if !location.is_nowhere() {
            inner.readers.enter(location);
        }
        Self { inner, location }
    }
}

impl<D: Disk> Drop for SlabReader<'_, D> {
    fn drop(&mut self) {
        if !self.location.is_nowhere() && self.inner.readers.leave(self.location) {
            self.inner.space.lock().free(self.location);
        }
    }
}

/// Result of a lookup for a read.
pub(crate) enum Found<'a, D: Disk> {
    Memory(ChunkData),
    /// Info, slot, piece checksums and the slab.
    Disk(ChunkInfo, u32, Vec<u32>, SlabReader<'a, D>),
}

impl<D: Disk> Inner<D> {
    /// Finds a live chunk; counts the access when `count` is set.
    pub(crate) fn find(&self, id: ChunkId, count: bool) -> Option<Found<'_, D>> {
        let mut shard = self.index.shard(id);
        let slot = live_slot(self, &shard, id)?;
        let info = shard.info(slot);
        if count {
            shard.touch(slot);
        }
        if info.in_memory
            && let Some(hot) = shard.hot.get_mut(&slot)
        {
            if count {
                hot.touch();
            }
            return Some(Found::Memory(ChunkData { info, bytes: hot.bytes.get() }));
        }
        let pieces = shard.pieces(slot);
        let reader = SlabReader::enter(self, shard.entry(slot).location());
        Some(Found::Disk(info, slot, pieces, reader))
    }

    /// Reads `range` of a chunk's slab, widened to whole pieces, and verifies it.
    async fn read_slab(
        &self,
        info: &ChunkInfo,
        sums: &[u32],
        at: Location,
        range: Range<usize>,
    ) -> Result<SharedBuf, EngineError> {
        let whole = sums.is_empty();
        let len = info.len as usize;
        let first = if whole { 0 } else { range.start / PIECE_BYTES };
        let start = first * PIECE_BYTES;
        let end = if whole { len } else { range.end.next_multiple_of(PIECE_BYTES).min(len) };
        let bytes = self.read_chunk(info.id, at, start..end).await?;
        if !pieces::verify(&bytes, first, sums, info.crc) {
            return Err(EngineError::Corrupt(info.id));
        }
        Ok(bytes.slice(range.start - start..range.end - start))
    }

    /// Reads bytes of a slab from a page-aligned offset, unverified.
    pub(crate) async fn read_raw(
        &self,
        at: Location,
        start: usize,
        len: usize,
    ) -> Result<SharedBuf, EngineError> {
        let (offset, _) = self.slab(at)?;
        let offset = offset + start as u64;
        let mut buf = self.pool_buf(len.max(1))?;
        buf.set_len(len);
        if len == 0 {
            return Ok(buf.freeze());
        }
        let (buf, result) =
            timed(&self.clock, &self.metrics.disk_read, self.disk.read(offset, buf)).await;
        result.map_err(|e| {
            self.metrics.io_errors.inc();
            EngineError::io("read", offset, len, e)
        })?;
        Ok(buf.freeze())
    }

    /// Reads a range of a chunk's slab as [`Inner::read_raw`] does. One bad place counts as damage
    /// of its chunk, like a checksum mismatch: `Corrupt`, so that the chunk is repaired and the
    /// disk stays in use.
    pub(crate) async fn read_chunk(
        &self,
        id: ChunkId,
        at: Location,
        range: Range<usize>,
    ) -> Result<SharedBuf, EngineError> {
        if at.is_nowhere() && !range.is_empty() {
            return Err(EngineError::Corrupt(id));
        }
        let first = self.read_raw(at, range.start, range.len()).await;
        if !first.as_ref().is_err_and(EngineError::is_unreadable) {
            return first;
        }
        // A transient error passes, a bad place stays.
        match self.read_raw(at, range.start, range.len()).await {
            Err(error) if error.is_unreadable() => {
                self.blame_place(error).await?;
                Err(EngineError::Corrupt(id))
            }
            again => again,
        }
    }

    /// Returns when a read failed for its place alone: the disk can still read its superblock.
    ///
    /// # Errors
    /// `failed`, the error of the read, when the whole disk fails; `Busy`.
    pub(crate) async fn blame_place(&self, failed: EngineError) -> Result<(), EngineError> {
        let mut page = self.pool_buf(PAGE_BYTES)?;
        page.set_len(PAGE_BYTES);
        let (_, read) = self.disk.read(0, page).await;
        if read.is_err() {
            return Err(failed);
        }
        tracing::error!(error = %failed, "this range of the disk cannot be read, other ranges can");
        Ok(())
    }

    /// Keeps the bytes read in memory, if the chunk is still the same.
    fn keep_in_memory(&self, info: &ChunkInfo, slot: u32, at: Location, bytes: &SharedBuf) {
        let mut shard = self.index.shard(info.id);
        let Some(e) = shard.live(slot) else { return };
        let same = e.id == info.id && e.version() == info.version && e.location() == at;
        if same && !e.hot() && !bytes.is_empty() {
            shard.set_hot(slot, bytes.clone(), false);
        }
    }

    /// Drops a chunk whose bytes are bad, if it may be dropped; `Corrupt` otherwise.
    pub(crate) fn drop_corrupt(&self, info: &ChunkInfo, at: Location) -> Result<(), EngineError> {
        self.report_damage(info.id, info.version, at);
        let repaired_by_others = self.options.on_damaged.is_some() || !self.options.own_removal;
        if !info.evictable || repaired_by_others {
            return Err(EngineError::Corrupt(info.id));
        }
        self.remove_lazily(info.id, info.version);
        Ok(())
    }

    /// Counts a chunk whose bytes are bad, and reports it if it is still the same chunk.
    pub(crate) fn report_damage(&self, id: ChunkId, version: u64, at: Location) {
        self.metrics.corruptions.inc();
        tracing::error!(chunk = %id, ?at, "stored bytes cannot be read or do not match their checksum");
        let Some(tell) = &self.options.on_damaged else { return };
        let still = {
            let shard = self.index.shard(id);
            let entry = shard.find(id).map(|slot| *shard.entry(slot));
            entry.is_some_and(|e| e.version() == version && e.location() == at)
        };
        if still {
            tell(id);
        }
    }

    /// Removes a chunk now and lets a later batch log it; skipped while it is being changed.
    pub(crate) fn remove_lazily(&self, id: ChunkId, version: u64) -> bool {
        if self.log.check_room().is_err() {
            return false;
        }
        let Some(guard) = self.index.try_lock(id) else { return false };
        let removed = self.remove_now(id, Some(version), guard).unwrap_or(false);
        if removed {
            self.wake_background.notify_one();
        }
        removed
    }
}

/// The slot of a chunk that has not expired.
fn live_slot<D: Disk>(inner: &Inner<D>, shard: &Shard, id: ChunkId) -> Option<u32> {
    let slot = shard.find(id)?;
    (!inner.is_over(shard.entry(slot))).then_some(slot)
}

impl<D: Disk> Engine<D> {
    /// The whole chunk from memory, without waiting; `None` when it is not there.
    #[must_use]
    pub fn read_cached(&self, id: ChunkId) -> Option<ChunkData> {
        let inner = &self.0;
        let mut shard = inner.index.shard(id);
        let slot = live_slot(inner, &shard, id)?;
        if !shard.entry(slot).hot() {
            return None;
        }
        shard.touch(slot);
        let info = shard.info(slot);
        let hot = shard.hot.get_mut(&slot)?;
        hot.touch();
        let bytes = hot.bytes.get();
        drop(shard);
        inner.metrics.dram_hits.inc();
        inner.metrics.read_bytes.add(bytes.len() as u64);
        Some(ChunkData { info, bytes })
    }

    /// The whole chunk, from memory or from the disk; `None` when absent or expired.
    ///
    /// Bytes from the disk are verified and stay in memory. Dropping the future is harmless.
    ///
    /// # Errors
    /// `Io` (the whole disk), `Busy` (no buffer), `Corrupt` (only for chunks that may not be
    /// evicted, or that other replicas repair: `EngineOptions::on_damaged`; they stay and can be
    /// replaced).
    pub async fn read(&self, id: ChunkId) -> Result<Option<ChunkData>, EngineError> {
        self.read_part(id, None).await
    }

    /// A range of the chunk, cut off at its end.
    ///
    /// Verifies the 64 KiB pieces it touches, and does not keep them in memory.
    ///
    /// # Errors
    /// As for [`Engine::read`].
    pub async fn read_range(
        &self,
        id: ChunkId,
        range: Range<u64>,
    ) -> Result<Option<ChunkData>, EngineError> {
        self.read_part(id, Some(range)).await
    }

    async fn read_part(
        &self,
        id: ChunkId,
        range: Option<Range<u64>>,
    ) -> Result<Option<ChunkData>, EngineError> {
        let inner = &self.0;
        let Some(found) = inner.find(id, true) else {
            inner.metrics.misses.inc();
            return Ok(None);
        };
        let clip = |len: usize| {
            let all = 0..len as u64;
            let r = range.clone().unwrap_or(all);
            let end = usize::try_from(r.end).unwrap_or(usize::MAX).min(len);
            usize::try_from(r.start).unwrap_or(usize::MAX).min(end)..end
        };
        let data = match found {
            Found::Memory(data) => {
                inner.metrics.dram_hits.inc();
                let part = clip(data.bytes.len());
                let bytes = if range.is_some() { data.bytes.slice(part) } else { data.bytes };
                ChunkData { info: data.info, bytes }
            }
            Found::Disk(info, slot, sums, reader) => {
                let part = clip(info.len as usize);
                inner.request_fits(part.len())?;
                let all = part == (0..info.len as usize);
                match inner.read_slab(&info, &sums, reader.location, part).await {
                    Ok(bytes) => {
                        inner.metrics.disk_hits.inc();
                        if all {
                            inner.keep_in_memory(&info, slot, reader.location, &bytes);
                        }
                        ChunkData { info, bytes }
                    }
                    Err(EngineError::Corrupt(_)) => {
                        inner.drop_corrupt(&info, reader.location)?;
                        return Ok(None);
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        inner.metrics.read_bytes.add(data.bytes.len() as u64);
        Ok(Some(data))
    }

    /// Reads a chunk from the disk and checks it, whether or not it is in memory.
    ///
    /// `Some(true)` when it is sound, `Some(false)` when not, `None` when it is absent or not on
    /// the disk yet. A bad one that may be evicted is dropped.
    ///
    /// # Errors
    /// `Io`, `Busy`; `Corrupt` for a bad chunk that may not be evicted or that other replicas
    /// repair.
    pub async fn verify(&self, id: ChunkId) -> Result<Option<bool>, EngineError> {
        let inner = &self.0;
        let found = {
            let shard = inner.index.shard(id);
            let slot = shard.find(id);
            slot.filter(|s| !shard.hot.get(s).is_some_and(|h| h.dirty)).map(|slot| {
                let reader = SlabReader::enter(inner, shard.entry(slot).location());
                (shard.info(slot), shard.pieces(slot), reader)
            })
        };
        let Some((info, sums, reader)) = found else { return Ok(None) };
        let range = 0..info.len as usize;
        match inner.read_slab(&info, &sums, reader.location, range).await {
            Ok(_) => Ok(Some(true)),
            Err(EngineError::Corrupt(_)) => {
                inner.drop_corrupt(&info, reader.location)?;
                Ok(Some(false))
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether bytes match the checksums of a record; used by recovery and compaction.
pub(crate) fn matches(bytes: &[u8], sums: &[u32], crc: Crc32c) -> bool {
    pieces::verify(bytes, 0, sums, crc)
}
