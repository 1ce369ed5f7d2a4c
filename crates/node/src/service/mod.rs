//! The KV service of one node: namespaces, keys and values over the engines of its disks.
//!
//! It knows nothing of sockets. Every verb is an async method that runs to completion on the core
//! that calls it; whatever is in memory is answered without waiting.

mod disk;
mod get;
mod keys;
mod metrics;
mod namespaces;
mod outage;
mod placement;
mod put;
mod stats;
mod table;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millpond_env::{BufferPool, RealClock};
use millpond_types::wire::{ErrorReply, Status};
use millpond_types::{
    Ack, BlockKey, ChunkId, Crc32c, GroupId, NamespaceInfo, Tick, Uuid128, placement as hash,
};

use crate::replica::Host;
pub use disk::{DamagedChunks, NodeDisk};
pub use millpond_engine::{ChunkInfo, WriteMode, WriteRequest};

/// The chunk store of one disk.
pub type Engine = millpond_engine::Engine<millpond_env::FileDisk>;

pub use get::GetOutcome;
pub use metrics::{Metrics, NamespaceMetrics, StageMetrics, VerbMetrics};
pub use namespaces::{Namespace, Namespaces, checked_layout};
pub use placement::Placement;
pub use put::{PutItemPlan, PutWrite};
pub use table::{NamespaceTable, TABLE_CHUNK};

/// Why a whole request failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What the reply says.
    pub status: Status,
    /// When to try again, in ms; 0 when that would not help.
    pub retry_after_ms: u32,
    /// What is wrong and what to do about it.
    pub message: String,
}

impl Failure {
    /// A failure that a retry would not help.
    #[must_use]
    pub fn new(status: Status, message: String) -> Self {
        let retry_after_ms = if status == Status::Busy { RETRY_AFTER_MS } else { 0 };
        Self { status, retry_after_ms, message }
    }

    /// The request is malformed.
    #[must_use]
    pub fn bad(message: String) -> Self {
        Self::new(Status::BadRequest, message)
    }

    /// The reply's meta.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        ErrorReply { retry_after_ms: self.retry_after_ms, message: self.message.clone() }.encode()
    }
}

impl From<millpond_types::wire::WireError> for Failure {
    fn from(error: millpond_types::wire::WireError) -> Self {
        Self::bad(error.to_string())
    }
}

/// When a client that met a full queue should try again: a few disk writes later.
pub const RETRY_AFTER_MS: u32 = 20;

/// The KV service of one node.
#[derive(Debug)]
pub struct Service {
    /// The disks, in the order of the configuration.
    pub disks: Vec<NodeDisk>,
    /// Where values live in memory.
    pub pool: BufferPool,
    /// The namespaces.
    pub namespaces: Namespaces,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    placement: Placement,
    stopping: AtomicBool,
    /// The chain replicas, on a node of a cluster.
    host: OnceLock<Arc<Host>>,
}

/// Where a block lives or will live.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its chunk.
    pub id: ChunkId,
    /// Index of its disk.
    pub disk: usize,
}

impl Service {
    /// A service over open disks, with the newest namespace table that any of them holds.
    ///
    /// # Errors
    /// [`Failure`] when a table exists and cannot be read: without it no block could be found.
    pub async fn open(
        disks: Vec<NodeDisk>,
        pool: BufferPool,
        metrics: Arc<Metrics>,
    ) -> Result<Self, Failure> {
        let mut table = NamespaceTable::default();
        for disk in &disks {
            let data = disk.engine.read(TABLE_CHUNK).await.map_err(|error| disk.failure(&error))?;
            let Some(data) = data else { continue };
            let found = NamespaceTable::decode(&data.bytes).map_err(|error| {
                Failure::new(Status::Internal, format!("{}: namespace table: {error}", disk.name))
            })?;
            if found.version > table.version {
                table = found;
            }
        }
        let own: Vec<GroupId> =
            table.namespaces.iter().filter(|ns| evicts_own(ns)).map(|ns| ns.id).collect();
        for disk in &disks {
            disk.engine.track_groups(&own);
        }
        let weights: Vec<(Uuid128, u64)> = disks.iter().map(|d| (d.id, d.capacity)).collect();
        Ok(Self {
            placement: Placement::new(&weights),
            disks,
            pool,
            namespaces: Namespaces::new(table),
            metrics,
            stopping: AtomicBool::new(false),
            host: OnceLock::new(),
        })
    }

    /// A buffer of the pool, at the expense of what is only cached in memory.
    ///
    /// # Errors
    /// When everything in memory is in use.
    pub fn alloc(&self, len: usize) -> Result<millpond_env::Buf, Failure> {
        let busy = |error: &dyn std::fmt::Display| Failure::new(Status::Busy, error.to_string());
        match self.disks.first() {
            Some(disk) => disk.engine.alloc(len).map_err(|error| busy(&error)),
            None => self.pool.try_alloc(len).ok_or_else(|| busy(&"no memory buffer is free")),
        }
    }

    /// Makes this the service of a cluster's node: blocks live in chains from now on.
    pub fn join(&self, host: Arc<Host>) {
        let _set_once = self.host.set(host);
    }

    /// The chain replicas, on a node of a cluster.
    pub fn host(&self) -> Option<&Arc<Host>> {
        self.host.get()
    }

    /// Where a new block `key` with `leader` is placed.
    #[must_use]
    pub fn place(&self, group: GroupId, key: &BlockKey, leader: &BlockKey) -> Place {
        let one = self.disks.len() == 1;
        let disk = if one { 0 } else { self.placement.disk(hash::slot(group, leader)) };
        Place { id: hash::chunk_id(group, key), disk }
    }

    /// Where the block `key` is: on the disk its leader names, or on another one when disks were
    /// added or it was stored with another leader. Memory is all this looks at.
    #[must_use]
    pub fn find(
        &self,
        group: GroupId,
        key: &BlockKey,
        leader: &BlockKey,
    ) -> Option<(Place, ChunkInfo)> {
        let place = self.place(group, key, leader);
        // Keys may be equal in two namespaces; their chunks' ids should differ, their groups do.
        let here = |disk: &NodeDisk| disk.lookup(place.id, key).filter(|info| info.group == group);
        if let Some(info) = self.disks.get(place.disk).and_then(here) {
            return Some((place, info));
        }
        let others = self.disks.iter().enumerate().filter(|(index, _)| *index != place.disk);
        let mut others = others.filter_map(|(disk, other)| {
            let info = here(other)?;
            Some((Place { id: place.id, disk }, info))
        });
        others.next()
    }

    /// Identity of this node: that of its first disk.
    #[must_use]
    pub fn node_id(&self) -> Uuid128 {
        self.disks.first().map_or(Uuid128::NIL, |disk| disk.id)
    }

    /// Refuses new work from now on.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Whether new work is refused.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Writes everything that is only in memory to the disks, and closes them.
    ///
    /// # Errors
    /// [`Failure`] of the first disk that refuses; the others are closed all the same.
    pub async fn flush_and_close(&self) -> Result<(), Failure> {
        let mut result = Ok(());
        for disk in &self.disks {
            if let Err(error) = disk.engine.shutdown().await {
                result = result.and(Err(disk.failure(&error)));
            }
        }
        result
    }

    /// Stores the namespace table on every disk.
    async fn store_table(&self, table: &NamespaceTable) -> Result<(), Failure> {
        let bytes = table.encode();
        for disk in &self.disks {
            let Some(buf) = self.pool.try_copy(&bytes) else {
                let text = "the buffer pool is full: retry, or raise server.memory";
                return Err(Failure::new(Status::Busy, text.to_owned()));
            };
            let request = WriteRequest {
                bytes: buf.freeze(),
                crc: Crc32c::of(&bytes),
                attrs: &[],
                group: GroupId::SYSTEM,
                priority: millpond_types::Priority::High as u8,
                expires: None,
                evictable: false,
                mode: WriteMode::Replace,
                ack: Ack::Disk,
            };
            let written = disk.engine.write(TABLE_CHUNK, request).await;
            written.map_err(|error| disk.failure(&error))?;
        }
        Ok(())
    }
}

/// Whether a namespace at its quota evicts its own blocks.
fn evicts_own(namespace: &NamespaceInfo) -> bool {
    namespace.options.quota.0 > 0 && namespace.options.evict
}

/// Time left until `deadline`; `None` when it has passed.
#[must_use]
pub fn time_left(deadline: Tick) -> Option<Duration> {
    let now = RealClock::tick();
    (now < deadline).then(|| deadline.since(now))
}
