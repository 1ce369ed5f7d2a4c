//! Options of an engine, with safe defaults.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use millpond_types::{ByteSize, ChunkId, Uuid128};

use crate::error::EngineError;
use crate::format::superblock::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

/// Smallest allowed `checkpoint_log_bytes`.
pub(crate) const CHECKPOINT_LOG_BYTES_MIN: u64 = 64 << 10;

/// Options for formatting a disk.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Identity of the disk.
    pub disk_id: Uuid128,
    /// Identity of the owning cluster.
    pub cluster_id: Uuid128,
    /// Bytes of a segment: a power of two, 64 KiB to 64 MiB. No chunk is larger.
    pub segment_bytes: ByteSize,
    /// Random number mixed into log checksums.
    pub log_salt: u64,
    /// Time of the formatting, for `inspect`.
    pub created_unix_ms: u64,
}

impl FormatOptions {
    /// Options for a disk of this identity with 64 MiB segments.
    #[must_use]
    pub fn new(disk_id: Uuid128, cluster_id: Uuid128) -> Self {
        let salt = u64::from_le_bytes(*disk_id.0.first_chunk().unwrap_or(&[0; 8]));
        Self {
            disk_id,
            cluster_id,
            segment_bytes: ByteSize(SEGMENT_BYTES_MAX),
            log_salt: salt,
            created_unix_ms: 0,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), EngineError> {
        let n = self.segment_bytes.0;
        if n.is_power_of_two() && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&n) {
            return Ok(());
        }
        Err(EngineError::Invalid(format!(
            "segment_bytes is {n}: set a power of two from 64 KiB to 64 MiB"
        )))
    }
}

/// Callback for a chunk whose bytes on the disk are bad. It runs on the thread that found the
/// damage, without any lock; every read and every round of the scrubber that meets the chunk calls
/// it again.
pub type OnDamaged = Arc<dyn Fn(ChunkId) + Send + Sync>;

/// Options for running a disk.
#[derive(Clone)]
pub struct EngineOptions {
    /// Only open a disk of this cluster.
    pub cluster_id: Option<Uuid128>,
    /// Eviction starts above this share of the space, in per mille.
    pub high_watermark: u32,
    /// Eviction stops below this share of the space, in per mille.
    pub low_watermark: u32,
    /// Limit of the index's memory. The engine evicts chunks from nine tenths of it on. It refuses
    /// no write: the caller checks [`crate::EngineStats`] before it writes data that may not be
    /// evicted.
    pub index_bytes_max: ByteSize,
    /// Memory that the engine's owner needs for every chunk; it counts as index memory.
    pub owner_bytes_per_chunk: u64,
    /// Limit of bytes acknowledged from memory and not yet on the disk, in whole pages of 4 KiB;
    /// above it, writes wait.
    pub dirty_bytes_max: ByteSize,
    /// Share of the space that may be leased, in per mille.
    pub lease_share: u32,
    /// A checkpoint is written after this many bytes of log, or after a sixteenth of the disk.
    pub checkpoint_log_bytes: ByteSize,
    /// Everything is read and checked once in this time.
    pub scrub_period: Duration,
    /// Scrubbing reads at most this many bytes per second.
    pub scrub_bytes_per_second: ByteSize,
    /// Share of the pool that the DRAM tier leaves free for requests, in per mille.
    pub pool_headroom: u32,
    /// Whether the engine itself removes chunks: to make room, on expiry, or because they cannot be
    /// written behind. Off for a replica, where the head of the chain decides: a full disk then
    /// answers `NoSpace`, and expired chunks stay visible.
    pub own_removal: bool,
    /// Set for a replica: a damaged chunk stays, even an evictable one, until it is repaired.
    pub on_damaged: Option<OnDamaged>,
    /// Verify data of the last log batch on restart. Off only to show that tests notice.
    #[doc(hidden)]
    pub verify_last_batch: bool,
}

impl fmt::Debug for EngineOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineOptions")
            .field("cluster_id", &self.cluster_id)
            .field("high_watermark", &self.high_watermark)
            .field("low_watermark", &self.low_watermark)
            .field("index_bytes_max", &self.index_bytes_max)
            .field("owner_bytes_per_chunk", &self.owner_bytes_per_chunk)
            .field("dirty_bytes_max", &self.dirty_bytes_max)
            .field("lease_share", &self.lease_share)
            .field("checkpoint_log_bytes", &self.checkpoint_log_bytes)
            .field("scrub_period", &self.scrub_period)
            .field("scrub_bytes_per_second", &self.scrub_bytes_per_second)
            .field("pool_headroom", &self.pool_headroom)
            .field("own_removal", &self.own_removal)
            .field("on_damaged", &self.on_damaged.is_some())
            .field("verify_last_batch", &self.verify_last_batch)
            .finish()
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            cluster_id: None,
            high_watermark: 950,
            low_watermark: 900,
            index_bytes_max: ByteSize(u64::MAX),
            owner_bytes_per_chunk: 0,
            dirty_bytes_max: ByteSize::mib(256),
            lease_share: 500,
            checkpoint_log_bytes: ByteSize::mib(256),
            scrub_period: Duration::from_hours(7 * 24),
            scrub_bytes_per_second: ByteSize::mib(64),
            pool_headroom: 100,
            own_removal: true,
            on_damaged: None,
            verify_last_batch: true,
        }
    }
}

impl EngineOptions {
    /// Checks the bounds of every field.
    ///
    /// # Errors
    /// `Invalid` naming the field and its bounds.
    pub fn validate(&self) -> Result<(), EngineError> {
        let bad = |text: &str| Err(EngineError::Invalid(text.to_owned()));
        if self.high_watermark > 990 || self.low_watermark >= self.high_watermark {
            return bad("high_watermark must be at most 990 per mille and above low_watermark");
        }
        if self.lease_share > 900 {
            return bad(
                "lease_share must be at most 900 per mille, otherwise nothing can be evicted",
            );
        }
        if self.pool_headroom > 500 {
            return bad("pool_headroom must be at most 500 per mille");
        }
        if self.checkpoint_log_bytes.0 < CHECKPOINT_LOG_BYTES_MIN {
            return bad("checkpoint_log_bytes must be at least 64 KiB");
        }
        if self.scrub_bytes_per_second.0 == 0 {
            return bad("scrub_bytes_per_second must be at least 1");
        }
        Ok(())
    }
}
