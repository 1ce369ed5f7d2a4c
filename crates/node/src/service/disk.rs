//! One disk of the node: its engine, and how its errors look to clients.

use std::sync::Arc;

use millpond_types::wire::{ItemStatus, Status};
use millpond_types::{BlockKey, ChunkId, GroupId, Uuid128};

use millpond_engine::{ChunkData, ChunkInfo, EngineError, ErrorKind, Superblock};
use parking_lot::Mutex;

use super::Engine;
use super::outage::Outage;
use super::{Failure, Metrics};

/// Damaged chunks of a replica's disk that wait to be repaired from another replica.
#[derive(Clone, Debug, Default)]
pub struct DamagedChunks(Arc<Mutex<Vec<ChunkId>>>);

/// More than this are found again by the next scrub.
const DAMAGED_MAX: usize = 4096;

impl DamagedChunks {
    /// Notes one.
    pub fn push(&self, id: ChunkId) {
        let mut waiting = self.0.lock();
        if waiting.len() < DAMAGED_MAX && !waiting.contains(&id) {
            waiting.push(id);
        }
    }

    /// Takes all.
    #[must_use]
    pub fn take(&self) -> Vec<ChunkId> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// One disk of the node.
#[derive(Debug)]
pub struct NodeDisk {
    /// Where it is, for logs and metrics.
    pub name: String,
    /// Its identity, made when it was formatted.
    pub id: Uuid128,
    /// Bytes that it was formatted with.
    pub capacity: u64,
    /// Its chunk store.
    pub engine: Engine,
    /// What the engine found damaged, on a node of a cluster.
    pub damaged: DamagedChunks,
    reads: Outage,
    writes: Outage,
}

impl NodeDisk {
    /// Wraps an open engine.
    #[must_use]
    pub fn new(name: String, found: &Superblock, engine: Engine, damaged: DamagedChunks) -> Self {
        Self {
            name,
            id: found.disk_id,
            capacity: found.capacity,
            engine,
            damaged,
            reads: Outage::new("reading"),
            writes: Outage::new("writing"),
        }
    }

    /// What is known of the block `key`, whose full bytes are stored with it and compared here.
    #[must_use]
    pub fn lookup(&self, id: ChunkId, key: &BlockKey) -> Option<ChunkInfo> {
        self.engine.lookup_matching(id, key.as_bytes())
    }

    /// Reads a value; a failed read or check is a miss, counted and logged once per outage.
    ///
    /// # Errors
    /// `Busy` when no memory is free.
    pub async fn read(
        &self,
        id: ChunkId,
        metrics: &Metrics,
    ) -> Result<Option<ChunkData>, ItemStatus> {
        match self.engine.read(id).await {
            Ok(data) => {
                self.reads.worked(&self.name);
                Ok(data)
            }
            Err(error) if error.kind() == ErrorKind::Busy => Err(ItemStatus::Busy),
            Err(error) => {
                if error.kind() == ErrorKind::Corrupt {
                    metrics.corrupt.inc();
                }
                self.reads.failed(&self.name, &error);
                Ok(None)
            }
        }
    }

    /// How a failed write looks to the client; logged once per outage.
    pub fn write_failed(&self, error: &EngineError) -> ItemStatus {
        let status = item_status(error);
        if status == ItemStatus::ReadOnly {
            self.writes.failed(&self.name, error);
        }
        status
    }

    /// Ends an outage of writes.
    pub fn write_worked(&self) {
        self.writes.worked(&self.name);
    }

    /// Removes every chunk of a namespace.
    ///
    /// # Errors
    /// [`Failure`] as the engine says.
    pub async fn remove_group(&self, group: GroupId) -> Result<(), Failure> {
        let removed = self.engine.remove_group(group).await;
        removed.map(drop).map_err(|error| self.failure(&error))
    }

    /// How an engine error looks as the outcome of a whole request.
    pub fn failure(&self, error: &EngineError) -> Failure {
        let status = match error.kind() {
            ErrorKind::NoSpace => Status::NoSpace,
            ErrorKind::Busy => Status::Busy,
            ErrorKind::ReadOnly => Status::ReadOnly,
            ErrorKind::Invalid => Status::BadRequest,
            ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Format => {
                self.writes.failed(&self.name, error);
                Status::Internal
            }
        };
        Failure::new(status, format!("{}: {error}", self.name))
    }
}

fn item_status(error: &EngineError) -> ItemStatus {
    match error.kind() {
        ErrorKind::NoSpace => ItemStatus::NoSpace,
        ErrorKind::Busy => ItemStatus::Busy,
        ErrorKind::Corrupt | ErrorKind::Invalid => ItemStatus::Corrupt,
        ErrorKind::ReadOnly | ErrorKind::Io | ErrorKind::Format => ItemStatus::ReadOnly,
    }
}
