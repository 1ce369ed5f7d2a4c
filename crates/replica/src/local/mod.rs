//! The KV service of one node: its namespaces and disks, and the way of requests to its chains.
//!
//! It knows nothing of sockets.

mod disk;
mod get;
mod metrics;
mod namespaces;
mod put;
mod stats;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use millpond_env::BufferPool;
use millpond_types::Uuid128;
use millpond_types::wire::{Failure, Status};

use crate::Host;
pub use disk::NodeDisk;
pub use metrics::{Metrics, NamespaceMetrics, StageMetrics, VerbMetrics};
pub use namespaces::{Namespace, Namespaces};
pub use put::{PutItemPlan, PutWrite};

/// Answer of a process without disks to a request for data on disks.
pub const NO_DISKS: &str =
    "this process has no disks (--no-storage): ask a node that the routing lists";

/// The KV service of one node.
#[derive(Debug)]
pub struct Service {
    /// The disks, in the order of the configuration.
    pub disks: Vec<NodeDisk>,
    /// Buffers for values in memory.
    pub pool: BufferPool,
    /// The namespaces.
    pub namespaces: Namespaces,
    /// The counters.
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

    /// Allocates a buffer of the pool, dropping values that are only cached if need be.
    ///
    /// # Errors
    /// If all memory is in use.
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

    /// Sets the chain replicas on its disks.
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

    /// Writes all data that is only in memory to the disks, and closes them.
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
