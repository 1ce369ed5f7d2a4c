//! Counters and histograms of one engine.

use millpond_types::metrics::{Counter, Histogram};

/// Plain atomics, updated on the data path and rendered by the node.
#[derive(Debug, Default)]
pub struct EngineMetrics {
    /// Reads answered from DRAM.
    pub dram_hits: Counter,
    /// Reads answered from the disk.
    pub disk_hits: Counter,
    /// Reads of absent chunks.
    pub misses: Counter,
    /// Chunks written.
    pub writes: Counter,
    /// Bytes written by callers.
    pub written_bytes: Counter,
    /// Bytes read by callers.
    pub read_bytes: Counter,
    /// Log flushes.
    pub commits: Counter,
    /// Records in them.
    pub commit_records: Counter,
    /// Small writes that went to the log alone: patches.
    pub patches: Counter,
    /// Bytes of patches.
    pub patch_bytes: Counter,
    /// Patched chunks that were written to a slab of their own.
    pub folds: Counter,
    /// Chunks that got the bytes of another one by promotion.
    pub promotions: Counter,
    /// Chunks evicted to make room.
    pub evictions: Counter,
    /// Chunks removed because they had expired.
    pub expirations: Counter,
    /// Chunks with stored bytes that did not match their checksum.
    pub corruptions: Counter,
    /// Chunks moved by compaction.
    pub compacted: Counter,
    /// Bytes checked by the scrubber.
    pub scrubbed_bytes: Counter,
    /// Checkpoints written.
    pub checkpoints: Counter,
    /// Disk errors of data reads and writes.
    pub io_errors: Counter,
    /// Chunks dropped because they could not be written behind.
    pub dropped_writes: Counter,
    /// Time to wait for the right to change a chunk.
    pub queue: Histogram,
    /// Time of a data read from the disk.
    pub disk_read: Histogram,
    /// Time of a data write to the disk.
    pub disk_write: Histogram,
    /// Time from queueing a record to its commit.
    pub commit_wait: Histogram,
    /// Time of one log write and flush.
    pub log_flush: Histogram,
}

/// A snapshot of an engine's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Chunks in the index.
    pub chunks: u64,
    /// Approximate index memory of the chunks in bytes, without empty chunks of the system group.
    pub index_bytes: u64,
    /// Limit of `index_bytes`: `EngineOptions::index_bytes_max`.
    pub index_bytes_max: u64,
    /// Bytes of the disk that chunks may use.
    pub usable_bytes: u64,
    /// Bytes of slabs in use.
    pub used_bytes: u64,
    /// Usable bytes without the segments that log and checkpoints hold now; the watermarks compare
    /// `used_bytes` with it.
    pub room_bytes: u64,
    /// Bytes of one segment.
    pub segment_bytes: u64,
    /// Segments that are free.
    pub free_segments: u64,
    /// Segments that compaction can free.
    pub compactable_segments: u64,
    /// Bytes acknowledged from memory and not yet on the disk.
    pub dirty_bytes: u64,
    /// Bytes under a lease.
    pub leased_bytes: u64,
    /// Bytes of log since the last checkpoint.
    pub log_bytes: u64,
    /// Whether writes are refused since the log failed.
    pub read_only: bool,
}
