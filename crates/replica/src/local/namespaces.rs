//! The cluster's namespaces in memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_types::wire::NamespaceTableReply;
use millpond_types::{GroupId, NamespaceInfo};
use parking_lot::RwLock;

use super::Service;
use super::metrics::NamespaceMetrics;

/// A namespace and its counters.
#[derive(Debug)]
pub struct Namespace {
    /// As stored.
    pub info: NamespaceInfo,
    /// Counters since the server started.
    pub metrics: Arc<NamespaceMetrics>,
}

/// All namespaces.
#[derive(Debug)]
pub struct Namespaces {
    state: RwLock<State>,
    /// Grows with every change, so that connections know when to drop their cached lookups.
    generation: AtomicU64,
}

impl Default for Namespaces {
    fn default() -> Self {
        Self { state: RwLock::default(), generation: AtomicU64::new(1) }
    }
}

#[derive(Debug, Default)]
struct State {
    by_id: HashMap<GroupId, Arc<Namespace>>,
    by_name: HashMap<String, Arc<Namespace>>,
}

impl State {
    fn replace(&mut self, namespaces: &[NamespaceInfo]) {
        let before = std::mem::take(&mut self.by_id);
        self.by_name.clear();
        for info in namespaces {
            let namespace = match before.get(&info.id) {
                Some(known) if known.info == *info => Arc::clone(known),
                known => Arc::new(Namespace {
                    info: info.clone(),
                    metrics: known.map(|known| Arc::clone(&known.metrics)).unwrap_or_default(),
                }),
            };
            self.by_name.insert(info.name.clone(), Arc::clone(&namespace));
            self.by_id.insert(info.id, namespace);
        }
    }
}

impl Namespaces {
    /// The namespace with that id.
    #[must_use]
    pub fn by_id(&self, id: GroupId) -> Option<Arc<Namespace>> {
        self.state.read().by_id.get(&id).cloned()
    }

    /// The namespace with that name.
    #[must_use]
    pub fn by_name(&self, name: &str) -> Option<Arc<Namespace>> {
        self.state.read().by_name.get(name).cloned()
    }

    /// All of them, by name.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Namespace>> {
        let mut all: Vec<_> = self.state.read().by_id.values().cloned().collect();
        all.sort_by(|a, b| a.info.name.cmp(&b.info.name));
        all
    }

    /// Grows with every change.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn publish(&self, namespaces: &[NamespaceInfo]) {
        self.state.write().replace(namespaces);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

impl Service {
    /// Takes the namespaces of the cluster.
    pub fn adopt_namespaces(&self, reply: &NamespaceTableReply) {
        self.namespaces.publish(&reply.namespaces);
    }
}
