//! The nodes of a cluster: connections to each, and its health.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use millpond_env::RealClock;
use millpond_env::{Mutex, MutexGuard, RwLock};
use millpond_types::cluster::{NodeId, Routing};

use super::health::Health;
use crate::address::Address;
use crate::options::ClientOptions;
use crate::pool::{Peer, Pool};

/// Longest silence of a node before others are asked: detection may take a third of the time that a
/// failure may cost (DESIGN section 1).
pub(crate) const PATIENCE: Duration = Duration::from_millis(500);

/// One node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) pool: Arc<Pool>,
    /// Number of unanswered reads of this client.
    reading: AtomicU32,
    health: Mutex<Health>,
}

impl Node {
    pub(crate) fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock()
    }

    /// Records that the node failed or was too slow: reads avoid it for a while.
    pub(crate) fn failed(&self) {
        self.health().failed(RealClock::tick());
    }

    pub(crate) fn is_avoided(&self) -> bool {
        self.health().is_avoided(RealClock::tick())
    }

    pub(crate) fn reading(&self, more: bool) {
        if more {
            self.reading.fetch_add(1, Ordering::Relaxed);
        } else {
            self.reading.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Rank for reads, lower is better: healthy nodes first, then few reads in progress, then this
    /// host; `dice` decides ties.
    pub(crate) fn rank(&self, dice: u64) -> u64 {
        let avoided = u64::from(self.is_avoided()) << 63;
        let reading = u64::from(self.reading.load(Ordering::Relaxed)) << 17;
        avoided | reading | u64::from(!self.pool.is_local()) << 16 | dice & 0xffff
    }
}

/// All nodes that this client has contacted.
#[derive(Debug)]
pub(crate) struct Nodes {
    options: Arc<ClientOptions>,
    tls: Option<Arc<rustls::ClientConfig>>,
    known: RwLock<HashMap<NodeId, Arc<Node>>>,
}

impl Nodes {
    pub(crate) fn new(options: Arc<ClientOptions>, tls: Option<Arc<rustls::ClientConfig>>) -> Self {
        Self { options, tls, known: RwLock::default() }
    }

    /// The node, if the routing has it; with new addresses when it moved.
    pub(crate) fn get(&self, id: NodeId, routing: &Routing) -> Option<Arc<Node>> {
        let info = routing.nodes.get(&id)?;
        let addresses: Vec<Address> = match &self.options.own_place {
            Some(own) if own.node == id => vec![own.address.clone()],
            _ => info.addresses.iter().filter_map(|address| address.parse().ok()).collect(),
        };
        if let Some(node) = self.known.read().get(&id)
            && node.pool.addresses() == addresses
        {
            return Some(Arc::clone(node));
        }
        if addresses.is_empty() {
            return None;
        }
        let peer = Peer { addresses, node: Some(id.0), patience: Some(PATIENCE) };
        let pool = Pool::new(Arc::clone(&self.options), self.tls.clone(), peer);
        let node = Node { id, pool, reading: AtomicU32::new(0), health: Mutex::default() };
        let node = Arc::new(node);
        let mut nodes = self.known.write();
        if let Some(before) = nodes.insert(id, Arc::clone(&node)) {
            before.pool.close_idle();
        }
        nodes.retain(|id, node| {
            let stays = routing.nodes.contains_key(id);
            if !stays {
                node.pool.close_idle();
            }
            stays
        });
        Some(node)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Node>> {
        self.known.read().values().cloned().collect()
    }
}
