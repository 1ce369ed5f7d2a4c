//! The namespaces in memory, and how they are opened, listed and dropped.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_types::limits::NAMESPACES_MAX;
use millpond_types::namespace::name_is_valid;
use millpond_types::wire::{NamespaceOpen, NamespaceTableReply, Status};
use millpond_types::{GroupId, LayoutDigest, NamespaceInfo};
use parking_lot::RwLock;

use super::metrics::NamespaceMetrics;
use super::table::NamespaceTable;
use super::{Failure, Service, evicts_own};

/// A namespace and its counters.
#[derive(Debug)]
pub struct Namespace {
    /// As stored.
    pub info: NamespaceInfo,
    /// Since the server started.
    pub metrics: NamespaceMetrics,
}

/// All namespaces.
#[derive(Debug)]
pub struct Namespaces {
    state: RwLock<State>,
    /// Grows with every change, so that connections know when to forget what they looked up.
    generation: AtomicU64,
    /// Held while the table is changed and stored.
    change: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    table: NamespaceTable,
    by_id: HashMap<GroupId, Arc<Namespace>>,
    by_name: HashMap<String, Arc<Namespace>>,
}

impl State {
    fn replace(&mut self, table: NamespaceTable) {
        let before = std::mem::take(&mut self.by_id);
        self.by_name.clear();
        for info in &table.namespaces {
            let namespace = match before.get(&info.id) {
                Some(known) if known.info == *info => Arc::clone(known),
                _ => {
                    Arc::new(Namespace { info: info.clone(), metrics: NamespaceMetrics::default() })
                }
            };
            self.by_name.insert(info.name.clone(), Arc::clone(&namespace));
            self.by_id.insert(info.id, namespace);
        }
        self.table = table;
    }
}

impl Namespaces {
    /// The namespaces of a stored table.
    #[must_use]
    pub fn new(table: NamespaceTable) -> Self {
        let mut state = State::default();
        state.replace(table);
        Self {
            state: RwLock::new(state),
            generation: AtomicU64::new(1),
            change: tokio::sync::Mutex::new(()),
        }
    }

    /// The namespace of that number.
    #[must_use]
    pub fn by_id(&self, id: GroupId) -> Option<Arc<Namespace>> {
        self.state.read().by_id.get(&id).cloned()
    }

    /// The namespace of that name.
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

    fn table(&self) -> NamespaceTable {
        self.state.read().table.clone()
    }

    fn publish(&self, table: NamespaceTable) {
        self.state.write().replace(table);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

impl Service {
    /// Opens a namespace, creating it durably if asked to.
    ///
    /// # Errors
    /// [`Failure`] that names the field and the fix.
    pub async fn open_namespace(&self, open: &NamespaceOpen) -> Result<NamespaceInfo, Failure> {
        if !name_is_valid(&open.name) {
            return Err(Failure::bad(format!(
                "namespace name '{}': use 1 to 100 of letters, digits and ._-/:@",
                open.name.escape_debug()
            )));
        }
        if let Some(known) = self.namespaces.by_name(&open.name) {
            return checked_layout(&known.info, &open.options.layout);
        }
        if !open.create {
            return Err(Failure::new(
                Status::NoNamespace,
                format!(
                    "namespace '{}' does not exist: create it with `millpond kv ns create {}`, or open it \
                     with create set",
                    open.name, open.name
                ),
            ));
        }
        if open.options.replicas != 1 {
            return Err(Failure::bad(format!(
                "replicas: {} were asked for and this cluster has one node: use 1",
                open.options.replicas
            )));
        }
        let _change = self.namespaces.change.lock().await;
        if let Some(known) = self.namespaces.by_name(&open.name) {
            return checked_layout(&known.info, &open.options.layout);
        }
        let mut table = self.namespaces.table();
        if table.namespaces.len() >= NAMESPACES_MAX {
            return Err(Failure::bad(format!(
                "there are {NAMESPACES_MAX} namespaces already: drop one with `millpond kv ns drop NAME`"
            )));
        }
        let info = NamespaceInfo {
            id: GroupId(table.next_id),
            name: open.name.clone(),
            options: open.options.clone(),
        };
        table.version += 1;
        table.next_id = table
            .next_id
            .checked_add(1)
            .ok_or_else(|| Failure::bad("namespace ids are used up".to_owned()))?;
        table.namespaces.push(info.clone());
        self.store_table(&table).await?;
        if evicts_own(&info) {
            for disk in &self.disks {
                disk.engine.track_groups(&[info.id]);
            }
        }
        self.namespaces.publish(table);
        tracing::info!(namespace = %info.name, id = info.id.0, "namespace created");
        Ok(info)
    }

    /// Drops a namespace and its blocks. Durable when it returns.
    ///
    /// # Errors
    /// [`Failure`] when there is none of that name or the disks refuse.
    pub async fn drop_namespace(&self, name: &str) -> Result<(), Failure> {
        let _change = self.namespaces.change.lock().await;
        let mut table = self.namespaces.table();
        let Some(at) = table.namespaces.iter().position(|info| info.name == name) else {
            return Err(Failure::new(
                Status::NoNamespace,
                format!("namespace '{}' does not exist", name.escape_debug()),
            ));
        };
        let info = table.namespaces.remove(at);
        table.version += 1;
        table.dropping.push(info.id);
        self.store_table(&table).await?;
        self.namespaces.publish(table);
        self.remove_dropped().await?;
        tracing::info!(namespace = %info.name, id = info.id.0, "namespace dropped");
        Ok(())
    }

    /// Takes the namespaces of the cluster in place of those of this server.
    pub fn adopt_namespaces(&self, reply: &NamespaceTableReply) {
        let newest = reply.namespaces.iter().map(|info| info.id.0).max().unwrap_or(0);
        self.namespaces.publish(NamespaceTable {
            version: reply.version,
            next_id: newest.saturating_add(1),
            namespaces: reply.namespaces.clone(),
            dropping: Vec::new(),
        });
    }

    /// Removes the blocks of dropped namespaces, also of those that a crash left half removed.
    ///
    /// # Errors
    /// [`Failure`] when a disk refuses; the next drop or restart goes on.
    pub async fn finish_drops(&self) -> Result<(), Failure> {
        let _change = self.namespaces.change.lock().await;
        self.remove_dropped().await
    }

    async fn remove_dropped(&self) -> Result<(), Failure> {
        let mut table = self.namespaces.table();
        if table.dropping.is_empty() {
            return Ok(());
        }
        for id in std::mem::take(&mut table.dropping) {
            for disk in &self.disks {
                disk.remove_group(id).await?;
            }
        }
        table.version += 1;
        self.store_table(&table).await?;
        self.namespaces.publish(table);
        Ok(())
    }
}

/// The namespace, if this client may use it: its layout is the one that it was made with.
///
/// # Errors
/// `LayoutMismatch` naming both.
pub fn checked_layout(
    info: &NamespaceInfo,
    wanted: &LayoutDigest,
) -> Result<NamespaceInfo, Failure> {
    let held = &info.options.layout;
    if held == wanted || held.is_unset() || wanted.is_unset() {
        return Ok(info.clone());
    }
    Err(Failure::new(
        Status::LayoutMismatch,
        format!(
            "namespace '{}' holds blocks of layout {} and this client's layout is {}: the model, \
             dtype, block size or parallel layout differ; use another namespace name, or drop this \
             one with `millpond kv ns drop {}`",
            info.name,
            hex(held),
            hex(wanted),
            info.name
        ),
    ))
}

fn hex(digest: &LayoutDigest) -> String {
    digest.0.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
