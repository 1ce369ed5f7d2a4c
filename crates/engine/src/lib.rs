//! The chunk store of one disk.
//!
//! Reading order: `format` (bytes on the disk), `index` (chunks in memory), `space` (slabs and
//! segments), `log` and `commit` (group commit), `recover` and `layers` (format, open), `read`,
//! `write`, `append`, `patch`, `promote`, `behind` (write-behind), `evict`, `quota`, `compact`,
//! `checkpoint`, `scrub`, `background`, and `check` (read-only inspection).
//!
//! Invariants:
//! - A chunk's committed state changes only under its guard, when its log record is durable.
//!   Deletions and promotions change it at once, and hold the guard until the record is durable.
//! - A slab is reused only after the commit that freed it, and after its last reader.
//! - One flush covers log and data, so a restart verifies the data of the last batch.
//! - No read from the disk returns bytes whose checksum was not compared.
//! - After a failed log write or flush the engine refuses every write.
//!
//! Absent on purpose: keys, namespaces, replication; threads of its own.

mod append;
mod background;
mod behind;
mod check;
mod checkpoint;
mod commit;
mod compact;
mod content;
mod engine;
mod error;
mod evict;
mod fold;
mod format;
mod index;
mod layers;
mod log;
mod lost;
mod metrics;
mod options;
mod patch;
mod pieces;
mod prepare;
mod promote;
mod quota;
mod read;
mod recover;
mod room;
mod shares;
mod space;
mod tasks;
mod write;

pub use check::{Inspection, check, inspect};
pub use engine::{ChunkData, Cursor, Engine, SmallBytes};
pub use error::{EngineError, ErrorKind, FormatError};
pub use format::record::{ChunkRecord, Location, PatchRecord, Record};
pub use format::superblock::{FORMAT_VERSION, LogPosition, Superblock};
pub use index::{ChunkInfo, Usage};
pub use lost::LostChunk;
pub use metrics::{EngineMetrics, EngineStats};
pub use millpond_types::Ack;
pub use options::{EngineOptions, FormatOptions, OnDamaged};
pub use patch::PatchRequest;
pub use space::ClassUsage;
pub use write::{WriteMode, WriteOutcome, WriteRequest};

/// Decoders of bytes from the disk, for fuzzing.
pub mod decode {
    pub use crate::format::batch::decode as log_batch;
    pub use crate::format::checkpoint::decode as checkpoint_block;
}
