//! One disk of the node: its engine, and the conversion of its errors for clients.

use std::sync::Arc;

use millpond_engine::{EngineError, ErrorKind, Superblock};
use millpond_types::Uuid128;
use millpond_types::wire::{Failure, Status};

use crate::{DamagedChunks, Engine, SoleMark};

/// One disk of the node.
#[derive(Debug)]
pub struct NodeDisk {
    /// Its location, for logs and metrics.
    pub name: String,
    /// Its identity, made when it was formatted.
    pub id: Uuid128,
    /// Bytes that it was formatted with.
    pub capacity: u64,
    /// Its chunk store.
    pub engine: Engine,
    /// Chunks that the engine found damaged.
    pub damaged: DamagedChunks,
    /// This process has formatted it.
    pub is_new: bool,
    /// Whether an earlier process can have granted leases for replicas on it.
    pub sole: Arc<SoleMark>,
}

impl NodeDisk {
    /// Wraps an open engine.
    #[must_use]
    pub fn new(name: String, found: &Superblock, engine: Engine, damaged: DamagedChunks) -> Self {
        let (id, capacity) = (found.disk_id, found.capacity);
        let sole = Arc::new(SoleMark::none());
        Self { name, id, capacity, engine, damaged, is_new: false, sole }
    }

    /// The failure of a whole request for an engine error.
    pub fn failure(&self, error: &EngineError) -> Failure {
        let status = match error.kind() {
            ErrorKind::NoSpace => Status::NoSpace,
            ErrorKind::Busy => Status::Busy,
            ErrorKind::ReadOnly => Status::ReadOnly,
            ErrorKind::Invalid => Status::BadRequest,
            ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Format => {
                tracing::error!(disk = self.name, %error, "a disk operation failed");
                Status::Internal
            }
        };
        Failure::new(status, format!("{}: {error}", self.name))
    }
}
