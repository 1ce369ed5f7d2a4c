//! Chunks whose bytes are lost: the engine knows that they existed, and holds none of them.
//!
//! A replica records a chunk as lost when no other one could send it
//! (docs/rfcs/0025-lost-chunks.md). A lost chunk has an ordinary record, with the length and
//! checksum that its bytes had, and no slab. Reads of it return `Corrupt`, like reads of a chunk
//! damaged here; so it is listed, repaired, replaced and removed in the same way.

use millpond_env::Disk;
use millpond_types::limits::ATTRS_BYTES_MAX;
use millpond_types::{ChunkId, Crc32c, GroupId};

use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::format::record::{ChunkRecord, Location, piece_count};
use crate::log::{Apply, Pending};

/// Description of a chunk whose bytes are lost.
#[derive(Clone, Copy, Debug)]
pub struct LostChunk<'a> {
    /// Length that it had; not 0, since an empty chunk has no bytes to lose.
    pub len: u32,
    /// Checksum that its bytes had.
    pub crc: Crc32c,
    /// Opaque bytes to keep beside it, at most 256.
    pub attrs: &'a [u8],
    /// Owner.
    pub group: GroupId,
    /// Eviction class, 0 (first) to 3.
    pub priority: u8,
    /// Whether it may be evicted.
    pub evictable: bool,
}

impl<D: Disk> Engine<D> {
    /// Records that a chunk's bytes are lost, and replaces any present version.
    ///
    /// Durable once `Ok` returns. Dropping the future leaves it undecided.
    ///
    /// # Errors
    /// `Busy`, `ReadOnly`, `NoSpace` (the log), `Io`, `Invalid` (bounds).
    pub async fn write_lost(&self, id: ChunkId, lost: LostChunk<'_>) -> Result<(), EngineError> {
        let inner = &self.0;
        inner.keep_log_short().await?;
        let mut record = inner.lost_record(id, &lost)?;
        let guard = inner.lock_durably(id).await?;
        record.version = inner.next_version();
        inner.commit(vec![Pending::put(record, Apply::Install(None), Some(guard))]).await?;
        inner.metrics.writes.inc();
        Ok(())
    }
}

impl<D: Disk> Inner<D> {
    fn lost_record(&self, id: ChunkId, lost: &LostChunk<'_>) -> Result<ChunkRecord, EngineError> {
        let LostChunk { len, crc, attrs, group, priority, evictable } = *lost;
        let fits = len > 0 && u64::from(len) <= self.segment_bytes;
        if !fits || attrs.len() > ATTRS_BYTES_MAX || priority > 3 {
            return Err(EngineError::Invalid(format!(
                "lost chunk of {len} bytes with {} bytes of attributes and priority {priority}: \
                 allowed are 1 to {} bytes, 256 bytes of attributes, and priorities 0 to 3",
                attrs.len(),
                self.segment_bytes
            )));
        }
        Ok(ChunkRecord {
            id,
            version: 0,
            len,
            crc,
            group,
            expires: 0,
            location: Location::NOWHERE,
            priority,
            evictable,
            pinned: false,
            attrs: attrs.into(),
            // The format requires as many as the length implies; nothing is ever compared with
            // them.
            pieces: vec![0; piece_count(len)].into(),
        })
    }
}
