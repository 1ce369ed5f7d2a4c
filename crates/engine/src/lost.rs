//! Chunks whose bytes are lost: the engine knows what there was, and has none of it.
//!
//! A replica is told so of a chunk that no other one could send (docs/rfcs/0025-lost-chunks.md). Such a chunk has a
//! record as any other, with the length and checksum that its bytes had, and no slab. Reads of it say `Corrupt`, as
//! of one that was damaged here; so it is listed, repaired, replaced and removed as that is.

use millpond_env::Disk;
use millpond_types::limits::ATTRS_BYTES_MAX;
use millpond_types::{ChunkId, Crc32c, GroupId};

use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::format::record::{ChunkRecord, Location, piece_count};
use crate::log::{Apply, Pending};

/// What is known of a chunk whose bytes are lost.
#[derive(Clone, Copy, Debug)]
pub struct LostChunk<'a> {
    /// How many bytes it had; not 0, since of nothing nothing can be lost.
    pub len: u32,
    /// The checksum they had.
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
    /// Stores that a chunk's bytes are lost, whatever was there.
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
                "lost chunk of {len} bytes with {} bytes of attributes and priority {priority}: 1 to {}, at \
                 most 256, 0 to 3",
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
            // The format has as many as the length says; nobody compares anything with them.
            pieces: vec![0; piece_count(len)].into(),
        })
    }
}
