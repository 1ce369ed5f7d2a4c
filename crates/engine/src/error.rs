//! Errors of the engine, one variant per reaction of the caller.

use std::io;
use std::sync::Arc;

use millpond_types::ChunkId;

/// Errors of Linux for a place that a device cannot read: `EIO`, `ENODATA` (bad medium), `EILSEQ`
/// (protection mismatch). Other errors concern the machine, not the place.
const UNREADABLE: [i32; 3] = [5, 61, 84];

/// An engine error; every message names the field or place and the fix.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// No slab is free and nothing may be evicted.
    #[error(
        "no space: the disk is full and no chunk can be evicted; delete some chunks or add a disk"
    )]
    NoSpace,
    /// A bound was reached; try again a little later.
    #[error("busy: {0}; retry in a few milliseconds")]
    Busy(&'static str),
    /// Stored bytes do not match their checksum, or their place is unreadable while the rest of the
    /// disk is readable.
    #[error("chunk {0} is corrupt on disk: restore it from another copy or delete it")]
    Corrupt(ChunkId),
    /// The request contradicts a bound or the bytes it carries.
    #[error("{0}")]
    Invalid(String),
    /// The disk failed a read or a data write; nothing else is affected.
    #[error("disk {op} of {len} bytes at offset {offset} failed: {source}; check the kernel log")]
    Io {
        /// The failed operation.
        op: &'static str,
        /// Byte offset on the disk.
        offset: u64,
        /// Requested bytes.
        len: u64,
        /// Error of the operating system.
        #[source]
        source: Arc<io::Error>,
    },
    /// A log write or flush failed, so later ones prove nothing; reads still work.
    #[error(
        "the engine is read-only because its log could not be written ({0}); fix the disk, then \
         restart"
    )]
    ReadOnly(Arc<str>),
    /// The bytes on the disk are not a usable engine.
    #[error(transparent)]
    Format(#[from] FormatError),
}

/// Why a disk cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Neither superblock carries the magic bytes.
    #[error("not a Millpond disk: no superblock found; format it first, or check the path")]
    NotMillpond,
    /// Both superblocks fail their checksum.
    #[error(
        "both superblocks are damaged (at offset 0 and 4096); restore the disk from its replicas"
    )]
    SuperblockDamaged,
    /// Written by a later release.
    #[error(
        "disk format {found} is newer than {known}, the newest this release reads; upgrade millpond"
    )]
    Newer {
        /// Version on the disk.
        found: u32,
        /// Newest version known here.
        known: u32,
    },
    /// The disk belongs to another cluster.
    #[error(
        "disk belongs to cluster {found}, not {expected}; use another folder or fix `cluster_id`"
    )]
    OtherCluster {
        /// Cluster on the disk.
        found: String,
        /// Cluster expected.
        expected: String,
    },
    /// The file is shorter than when it was formatted.
    #[error(
        "disk is truncated: formatted with {expected} bytes, but has {found}; restore the file's \
         length"
    )]
    Truncated {
        /// Capacity in the superblock.
        expected: u64,
        /// Capacity now.
        found: u64,
    },
    /// A field of the superblock makes no sense.
    #[error("superblock field `{0}` is out of range; run `millpond engine check`")]
    Field(&'static str),
    /// A checkpoint block is unreadable.
    #[error("checkpoint is damaged at offset {0}; restore the disk from its replicas")]
    Checkpoint(u64),
    /// A log batch in the middle of the log is unreadable.
    #[error(
        "log is damaged at offset {0}: later batches exist; restore the disk from its replicas"
    )]
    Log(u64),
    /// Two chunks claim one slab, or a chunk lies outside its segment.
    #[error("index is inconsistent at segment {segment} slab {slab}; run `millpond engine check`")]
    Index {
        /// Segment number.
        segment: u32,
        /// Slab within the segment.
        slab: u16,
    },
    /// Too small to hold anything.
    #[error("disk of {0} bytes is too small: at least {1} bytes are needed")]
    TooSmall(u64, u64),
}

/// Kinds of [`EngineError`], for mapping to a protocol status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Full.
    NoSpace,
    /// Overloaded.
    Busy,
    /// Checksum mismatch.
    Corrupt,
    /// Bad request.
    Invalid,
    /// Disk error.
    Io,
    /// Writes are refused until a restart.
    ReadOnly,
    /// The disk cannot be opened.
    Format,
}

impl EngineError {
    /// The kind, for mapping to a protocol status.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSpace => ErrorKind::NoSpace,
            Self::Busy(_) => ErrorKind::Busy,
            Self::Corrupt(_) => ErrorKind::Corrupt,
            Self::Invalid(_) => ErrorKind::Invalid,
            Self::Io { .. } => ErrorKind::Io,
            Self::ReadOnly(_) => ErrorKind::ReadOnly,
            Self::Format(_) => ErrorKind::Format,
        }
    }

    /// Whether a place of the disk could not be read. Reads of a dead disk fail the same way.
    pub(crate) fn is_unreadable(&self) -> bool {
        let Self::Io { op: "read", source, .. } = self else { return false };
        source.raw_os_error().is_some_and(|number| UNREADABLE.contains(&number))
    }

    pub(crate) fn io(op: &'static str, offset: u64, len: usize, source: io::Error) -> Self {
        Self::Io { op, offset, len: len as u64, source: Arc::new(source) }
    }
}
