//! Appending in place past the committed length.
//!
//! The last page is rewritten together with its committed bytes, so those bytes survive whichever
//! sectors reach the disk. The new length takes effect only with the log record. A crash before it
//! leaves the old length and its checksums, which never covered the new bytes.

use millpond_env::{Disk, SharedBuf};
use millpond_types::ChunkId;
use millpond_types::limits::PAGE_BYTES;

use crate::engine::{Engine, Inner, Reserved, timed};
use crate::error::EngineError;
use crate::format::record::ChunkRecord;
use crate::index::Guard;
use crate::log::{Apply, Pending};
use crate::pieces;

impl<D: Disk> Engine<D> {
    /// Appends `bytes` to a chunk of length `at` and returns its new version; `None` when
    /// the chunk is absent.
    ///
    /// Durable once `Ok` returns. Dropping the future leaves the append undecided.
    ///
    /// # Errors
    /// `Invalid` when the chunk's length is not `at` or would pass the largest; `NoSpace`,
    /// `Busy`, `Io`, `ReadOnly`, `Corrupt`.
    pub async fn append(
        &self,
        id: ChunkId,
        at: u64,
        bytes: SharedBuf,
    ) -> Result<Option<u64>, EngineError> {
        let inner = &self.0;
        inner.keep_log_short().await?;
        let guard = inner.lock_clean(id).await?;
        let Some(old) = inner.index.record(id) else { return Ok(None) };
        if u64::from(old.len) != at {
            return Err(EngineError::Invalid(format!(
                "append at {at}, but the chunk has {} bytes: read its length again",
                old.len
            )));
        }
        let len = at + bytes.len() as u64;
        if len > inner.segment_bytes {
            return Err(EngineError::Invalid(format!(
                "chunk would have {len} bytes: at most {} fit on this disk",
                inner.segment_bytes
            )));
        }
        if bytes.is_empty() {
            return Ok(Some(old.version));
        }
        if old.is_lost() {
            return Err(EngineError::Corrupt(id));
        }
        let (sums, crc) = pieces::append(old.len, &old.pieces, old.crc, &bytes);
        let record = ChunkRecord {
            version: inner.next_version(),
            len: u32::try_from(len).unwrap_or(u32::MAX),
            crc,
            pieces: sums,
            ..old.clone()
        };
        let version = record.version;
        let (_, slab_bytes) = inner.slab(old.location)?;
        if len <= slab_bytes {
            inner.append_in_place(&old, record, &bytes, guard).await?;
        } else {
            inner.append_elsewhere(&old, record, &bytes, guard).await?;
        }
        Ok(Some(version))
    }
}

impl<D: Disk> Inner<D> {
    async fn append_in_place(
        &self,
        old: &ChunkRecord,
        record: ChunkRecord,
        bytes: &[u8],
        guard: Guard,
    ) -> Result<(), EngineError> {
        let start = old.len as usize / PAGE_BYTES * PAGE_BYTES;
        let kept = old.len as usize - start;
        let mut buf = self.pool_buf(kept + bytes.len())?;
        if kept > 0 {
            let page = self.read_raw(old.location, start, kept).await?;
            buf.as_full_mut()[..kept].copy_from_slice(&page);
        }
        let end = kept + bytes.len();
        buf.as_full_mut()[kept..end].copy_from_slice(bytes);
        buf.as_full_mut()[end..].fill(0);
        buf.set_len(end);
        let (offset, _) = self.slab(old.location)?;
        let offset = offset + start as u64;
        let write = self.disk.write(offset, buf.freeze());
        let done = timed(&self.clock, &self.metrics.disk_write, write).await;
        done.map_err(|e| EngineError::io("write", offset, end, e))?;
        let apply = Apply::Update { drop_hot: true };
        self.commit(vec![Pending::put(record, apply, Some(guard))]).await
    }

    /// The slab is too small: the whole chunk moves to a larger one.
    async fn append_elsewhere(
        &self,
        old: &ChunkRecord,
        mut record: ChunkRecord,
        bytes: &[u8],
        guard: Guard,
    ) -> Result<(), EngineError> {
        let mut slab: Reserved<'_, D> = self.reserve(u64::from(record.len)).await?;
        let kept = old.len as usize;
        let before = self.read_raw(old.location, 0, kept).await?;
        if !crate::read::matches(&before, &old.pieces, old.crc) {
            self.report_damage(old.id, old.version, old.location);
            return Err(EngineError::Corrupt(old.id));
        }
        let end = kept + bytes.len();
        let mut buf = self.pool_buf(end)?;
        let all = buf.as_full_mut();
        all[..kept].copy_from_slice(&before);
        all[kept..end].copy_from_slice(bytes);
        all[end..].fill(0);
        buf.set_len(end);
        self.write_slab(&mut slab, buf.freeze()).await?;
        record.location = slab.location;
        let apply = Apply::Update { drop_hot: true };
        self.commit_with(vec![Pending::put(record, apply, Some(guard))], vec![slab]).await
    }
}
