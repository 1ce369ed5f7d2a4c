//! The KV service of one node: its namespaces and disks, and how requests come to its chains (`replica`).
//!
//! It knows nothing of sockets.

mod disk;
mod get;
mod metrics;
mod namespaces;
mod put;
mod stats;
mod table;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millpond_env::{BufferPool, RealClock};
use millpond_types::wire::{ErrorReply, Status};
use millpond_types::{Tick, Uuid128};

use crate::replica::Host;
pub use disk::{DamagedChunks, NodeDisk};

/// The chunk store of one disk.
pub type Engine = millpond_engine::Engine<millpond_env::FileDisk>;

pub use get::GetOutcome;
pub use metrics::{Metrics, NamespaceMetrics, StageMetrics, VerbMetrics};
pub use namespaces::{Namespace, Namespaces, checked_layout};
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

/// What a process without disks answers to who asks it for what is on disks.
pub const NO_DISKS: &str =
    "this process has no disks (--no-storage): ask a node that the routing lists";

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
    stopping: AtomicBool,
    /// The chain replicas, in a process with disks.
    host: OnceLock<Arc<Host>>,
}

impl Service {
    /// A service over open disks.
    #[must_use]
    pub fn new(disks: Vec<NodeDisk>, pool: BufferPool, metrics: Arc<Metrics>) -> Self {
        Self {
            disks,
            pool,
            namespaces: Namespaces::default(),
            metrics,
            stopping: AtomicBool::new(false),
            host: OnceLock::new(),
        }
    }

    /// A buffer of the pool, at the expense of what is only cached in memory.
    ///
    /// # Errors
    /// When everything in memory is in use.
    pub fn alloc(&self, len: usize) -> Result<millpond_env::Buf, Failure> {
        let busy = |error: &dyn std::fmt::Display| Failure::new(Status::Busy, error.to_string());
        let mut failed = busy(&"no memory buffer is free");
        for disk in &self.disks {
            match disk.engine.alloc(len) {
                Ok(buf) => return Ok(buf),
                Err(error) => failed = busy(&error),
            }
        }
        let plain = self.disks.is_empty().then(|| self.pool.try_alloc(len)).flatten();
        plain.ok_or(failed)
    }

    /// Takes the chain replicas on its disks.
    pub fn join(&self, host: Arc<Host>) {
        let _set_once = self.host.set(host);
    }

    /// The chain replicas, in a process with disks.
    pub fn host(&self) -> Option<&Arc<Host>> {
        self.host.get()
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
}

/// Time left until `deadline`; `None` when it has passed.
#[must_use]
pub fn time_left(deadline: Tick) -> Option<Duration> {
    let now = RealClock::tick();
    (now < deadline).then(|| deadline.since(now))
}
