//! The cluster's namespaces, in the store: one transaction per change, by any manager.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_store::{
    Followed, KeyRange, Store, StoreError, StoreErrorKind, TransactError, Transaction,
};
use millpond_types::cluster::{
    ClusterRecord, DroppedRecord, NamespaceHead, NamespaceRecord, keys, namespace_keys,
};
use millpond_types::limits::NAMESPACES_MAX;
use millpond_types::namespace::name_is_valid;
use millpond_types::wire::{
    Failure, NamespaceOpen, NamespaceSet, NamespaceTableReply, Record, Status,
};
use millpond_types::{GroupId, NamespaceInfo};
use tokio::sync::watch;

use super::layout::checked_layout;
use super::store::StoreThread;
use super::table::NamespaceTable;

/// Pause before a failing store is asked again.
const RETRY: Duration = Duration::from_millis(200);

/// Reason why a change was not made.
#[derive(Debug)]
enum Failed {
    /// To be returned to the caller.
    Refused(Failure),
    /// The store's own error.
    Store(StoreError),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Self {
        Self::Refused(failure)
    }
}

impl TransactError for Failed {
    fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Refused(_) => None,
            Self::Store(error) => Some(error),
        }
    }
}

impl Failed {
    fn into_failure(self) -> Failure {
        match self {
            Self::Refused(failure) => failure,
            Self::Store(error) => {
                let busy = matches!(
                    error.kind(),
                    StoreErrorKind::Conflict
                        | StoreErrorKind::Unavailable
                        | StoreErrorKind::Unknown
                );
                let status = if busy { Status::Busy } else { Status::Internal };
                Failure::new(status, format!("the store of the cluster: {error}"))
            }
        }
    }
}

fn read<R: Record>(value: Option<Vec<u8>>, what: &str) -> Result<Option<R>, Failed> {
    let Some(bytes) = value else { return Ok(None) };
    let opened = R::open(&bytes).map_err(|error| {
        let text = format!("the store of the cluster: the record of {what} is unreadable: {error}");
        Failure::new(Status::Internal, text)
    });
    Ok(Some(opened?))
}

async fn head(txn: &Transaction) -> Result<NamespaceHead, Failed> {
    let found = read(txn.get(namespace_keys::HEAD).await?, "namespaces")?;
    Ok(found.unwrap_or(NamespaceHead { next: 1, ..NamespaceHead::default() }))
}

/// Opens a namespace, creating it if asked to.
pub(super) async fn open(store: &Store, open: &NamespaceOpen) -> Result<NamespaceInfo, Failure> {
    if !name_is_valid(&open.name) {
        return Err(Failure::bad(format!(
            "namespace name '{}': use 1 to 100 of letters, digits and ._-/:@",
            open.name.escape_debug()
        )));
    }
    loop {
        let done = store.transact(|txn| async move { create(&txn, open).await }).await;
        match done {
            Ok(info) => return Ok(info),
            // The outcome is unknown: another try finds the namespace or creates it.
            Err(Failed::Store(StoreError::Unknown(_))) => tokio::time::sleep(RETRY).await,
            Err(failed) => return Err(failed.into_failure()),
        }
    }
}

async fn create(txn: &Transaction, open: &NamespaceOpen) -> Result<NamespaceInfo, Failed> {
    let key = namespace_keys::name(&open.name);
    if let Some(NamespaceRecord(info)) = read(txn.get(&key).await?, &open.name)? {
        return Ok(checked_layout(&info, &open.options.layout)?);
    }
    if !open.create {
        return Err(absent(&open.name).into());
    }
    let cluster: ClusterRecord =
        read(txn.get(keys::CLUSTER).await?, "the cluster")?.unwrap_or_default();
    check_options(open, cluster.replicas)?;
    let mut head = head(txn).await?;
    if head.count as usize >= NAMESPACES_MAX {
        let text = format!(
            "there are already {NAMESPACES_MAX} namespaces: drop one with `millpond kv ns drop \
             NAME`"
        );
        return Err(Failure::bad(text).into());
    }
    let info = NamespaceInfo {
        id: GroupId(head.next),
        name: open.name.clone(),
        options: open.options.clone(),
    };
    head.version += 1;
    head.count += 1;
    head.next = head
        .next
        .checked_add(1)
        .ok_or_else(|| Failure::bad("namespace ids are used up".to_owned()))?;
    txn.put(&key, NamespaceRecord(info.clone()).seal())?;
    txn.put(namespace_keys::HEAD, head.seal())?;
    Ok(info)
}

fn check_options(open: &NamespaceOpen, replicas: u8) -> Result<(), Failure> {
    let options = &open.options;
    if replicas == 0 {
        let text = "the cluster has no chains yet: wait for its nodes, or make the chains with \
                    `millpond admin form`";
        return Err(Failure { retry_after_ms: 500, ..Failure::new(Status::Busy, text.to_owned()) });
    }
    if options.replicas > replicas {
        return Err(Failure::bad(format!(
            "replicas: {} were requested, but the chains of this cluster have {replicas}: use 1 to \
             {replicas}",
            options.replicas
        )));
    }
    Ok(())
}

fn absent(name: &str) -> Failure {
    let text = format!(
        "namespace '{0}' does not exist: create it with `millpond kv ns create {0}` (in Python, \
         Client.namespace does it)",
        name.escape_debug()
    );
    Failure::new(Status::NoNamespace, text)
}

/// Changes options of a namespace.
pub(super) async fn set(store: &Store, set: &NamespaceSet) -> Result<NamespaceInfo, Failure> {
    loop {
        match store.transact(|txn| async move { change(&txn, set).await }).await {
            Ok(info) => return Ok(info),
            // Setting the same options again changes nothing.
            Err(Failed::Store(StoreError::Unknown(_))) => tokio::time::sleep(RETRY).await,
            Err(failed) => return Err(failed.into_failure()),
        }
    }
}

async fn change(txn: &Transaction, set: &NamespaceSet) -> Result<NamespaceInfo, Failed> {
    let key = namespace_keys::name(&set.name);
    let found = if name_is_valid(&set.name) { txn.get(&key).await? } else { None };
    let Some(NamespaceRecord(mut info)) = read(found, &set.name)? else {
        return Err(absent(&set.name).into());
    };
    set.apply(&mut info.options);
    let mut head = head(txn).await?;
    head.version += 1;
    txn.put(&key, NamespaceRecord(info.clone()).seal())?;
    txn.put(namespace_keys::HEAD, head.seal())?;
    Ok(info)
}

/// Namespaces taken over per transaction.
const ADOPTED_AT_ONCE: usize = 128;

/// Takes over namespaces with their ids, which no other namespace will get. Existing names are
/// kept.
pub(super) async fn adopt(store: &Store, table: &NamespaceTable) -> Result<(), Failure> {
    for some in table.namespaces.chunks(ADOPTED_AT_ONCE) {
        loop {
            match store.transact(|txn| async move { add(&txn, some, table.next_id).await }).await {
                Ok(()) => break,
                Err(Failed::Store(StoreError::Unknown(_))) => tokio::time::sleep(RETRY).await,
                Err(failed) => return Err(failed.into_failure()),
            }
        }
    }
    Ok(())
}

async fn add(txn: &Transaction, namespaces: &[NamespaceInfo], next: u32) -> Result<(), Failed> {
    let mut head = head(txn).await?;
    for info in namespaces {
        let key = namespace_keys::name(&info.name);
        if txn.get(&key).await?.is_none() {
            txn.put(&key, NamespaceRecord(info.clone()).seal())?;
            head.count += 1;
        }
    }
    head.version += 1;
    head.next = head.next.max(next);
    txn.put(namespace_keys::HEAD, head.seal())?;
    Ok(())
}

/// Drops a namespace. Nodes remove its blocks once they learn of it.
pub(super) async fn drop(store: &Store, name: &str) -> Result<(), Failure> {
    let mut unknown = false;
    loop {
        match store.transact(|txn| async move { remove(&txn, name).await }).await {
            Ok(()) => return Ok(()),
            Err(Failed::Store(StoreError::Unknown(_))) => {
                unknown = true;
                tokio::time::sleep(RETRY).await;
            }
            Err(Failed::Refused(failure)) if unknown && failure.status == Status::NoNamespace => {
                return Ok(());
            }
            Err(failed) => return Err(failed.into_failure()),
        }
    }
}

async fn remove(txn: &Transaction, name: &str) -> Result<(), Failed> {
    let key = namespace_keys::name(name);
    let found = if name_is_valid(name) { txn.get(&key).await? } else { None };
    let Some(NamespaceRecord(info)) = read(found, name)? else { return Err(absent(name).into()) };
    let mut head = head(txn).await?;
    head.version += 1;
    head.count = head.count.saturating_sub(1);
    txn.delete(&key)?;
    txn.put(&namespace_keys::dropped(head.dropped), DroppedRecord(info.id).seal())?;
    head.dropped += 1;
    txn.put(namespace_keys::HEAD, head.seal())?;
    Ok(())
}

/// The namespace table, kept up to date.
type Table = watch::Receiver<Arc<NamespaceTableReply>>;

/// Follows the table through every change by any manager. The flag is set once the table has been
/// read.
pub(super) fn follow(thread: &StoreThread) -> (Table, Arc<AtomicBool>) {
    let (sender, receiver) = watch::channel(Arc::<NamespaceTableReply>::default());
    let (this, known) = (thread.clone(), Arc::new(AtomicBool::new(false)));
    let is_known = Arc::clone(&known);
    thread.handle().spawn(async move {
        let mut follow = this.store().follow(KeyRange::prefix(namespace_keys::PREFIX));
        let mut entries = BTreeMap::new();
        while !sender.is_closed() {
            let next = tokio::select! {
                next = follow.next() => next,
                () = sender.closed() => return,
            };
            match next {
                Ok(Followed::State { entries: all, .. }) => {
                    entries = all.into_iter().collect();
                }
                Ok(Followed::Changes(batch)) => {
                    for change in batch.changes {
                        match change.value {
                            Some(value) => entries.insert(change.key, value),
                            None => entries.remove(&change.key),
                        };
                    }
                }
                Err(error) => {
                    this.failed(&error);
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
            this.worked();
            match table(&entries) {
                Ok(table) => {
                    sender.send_if_modified(|current| {
                        let newer = table.version > current.version;
                        if newer {
                            *current = Arc::new(table);
                        }
                        newer
                    });
                    is_known.store(true, Ordering::Release);
                }
                // The last known table stays in force.
                Err(failed) => this.failed(&failed.into_failure()),
            }
        }
    });
    (receiver, known)
}

fn table(entries: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<NamespaceTableReply, Failed> {
    let mut table = NamespaceTableReply::default();
    for (key, value) in entries {
        let (shown, value) = (key.escape_ascii().to_string(), Some(value.clone()));
        if key == namespace_keys::HEAD {
            let head: Option<NamespaceHead> = read(value, &shown)?;
            table.version = head.unwrap_or_default().version;
        } else if key.starts_with(namespace_keys::NAME) {
            table.namespaces.extend(read(value, &shown)?.map(|NamespaceRecord(info)| info));
        } else if key.starts_with(namespace_keys::DROPPED) {
            table.dropping.extend(read(value, &shown)?.map(|DroppedRecord(group)| group));
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond_store::{MemoryBackend, Store};
    use millpond_types::{ByteSize, NamespaceOptions};

    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    fn wish(name: &str, replicas: u8) -> NamespaceOpen {
        let options = NamespaceOptions { replicas, ..NamespaceOptions::default() };
        NamespaceOpen { name: name.to_owned(), create: true, options }
    }

    async fn formed(store: &Store, replicas: u8) {
        let record = ClusterRecord { replicas, ..ClusterRecord::default() };
        let txn = store.begin();
        txn.put(keys::CLUSTER, record.seal()).unwrap();
        txn.commit().await.unwrap();
    }

    async fn whole(store: &Store) -> NamespaceTableReply {
        let txn = store.begin();
        let range = KeyRange::prefix(namespace_keys::PREFIX);
        let page = txn.range(&range, millpond_store::RangeOptions::default()).await.unwrap();
        table(&page.entries.into_iter().collect()).unwrap()
    }

    #[test]
    fn namespaces_are_made_found_and_dropped_and_numbers_are_never_used_twice() {
        run(async {
            let store = Store::new(Arc::new(MemoryBackend::default()));
            let early = open(&store, &wish("a", 1)).await.unwrap_err();
            assert_eq!(early.status, Status::Busy, "no chains yet: {early}");
            formed(&store, 2).await;
            let a = open(&store, &wish("a", 2)).await.unwrap();
            assert_eq!(open(&store, &wish("a", 1)).await.unwrap(), a, "it exists");
            let b = open(&store, &wish("b", 1)).await.unwrap();
            assert_ne!(a.id, b.id);
            drop(&store, "a").await.unwrap();
            assert_eq!(drop(&store, "a").await.unwrap_err().status, Status::NoNamespace);
            let again = open(&store, &wish("a", 1)).await.unwrap();
            assert!(again.id > b.id);
            let table = whole(&store).await;
            assert_eq!(table.version, 4);
            assert_eq!(table.namespaces, [again, b]);
            assert_eq!(table.dropping, [a.id]);
        });
    }

    #[test]
    fn options_change_in_place_and_the_others_stay() {
        run(async {
            let store = Store::new(Arc::new(MemoryBackend::default()));
            formed(&store, 1).await;
            let made = open(&store, &wish("a", 1)).await.unwrap();
            let quota = NamespaceSet {
                name: "a".to_owned(),
                quota: Some(ByteSize(1 << 30)),
                ..NamespaceSet::default()
            };
            let first = set(&store, &quota).await.unwrap();
            let expires = NamespaceSet { quota: None, ttl_seconds: Some(60), ..quota.clone() };
            let second = set(&store, &expires).await.unwrap();
            let options = NamespaceOptions {
                quota: ByteSize(1 << 30),
                ttl_seconds: 60,
                ..made.options.clone()
            };
            assert_eq!(first.options.ttl_seconds, 0);
            assert_eq!(second, NamespaceInfo { options, ..made });
            let table = whole(&store).await;
            assert_eq!((table.version, table.namespaces), (3, vec![second]));
            let absent = NamespaceSet { name: "b".to_owned(), ..quota };
            assert_eq!(set(&store, &absent).await.unwrap_err().status, Status::NoNamespace);
        });
    }

    #[test]
    fn what_a_cluster_cannot_keep_is_refused_by_name() {
        run(async {
            let store = Store::new(Arc::new(MemoryBackend::default()));
            formed(&store, 2).await;
            let too_many = open(&store, &wish("a", 3)).await.unwrap_err();
            assert!(too_many.message.contains("have 2"), "{too_many}");
            let mut look = wish("a", 1);
            look.create = false;
            assert_eq!(open(&store, &look).await.unwrap_err().status, Status::NoNamespace);
            assert!(open(&store, &wish("no name", 1)).await.is_err());
            look.create = true;
            look.options.layout.0 = [1; 32];
            open(&store, &look).await.unwrap();
            look.options.layout.0 = [2; 32];
            assert_eq!(open(&store, &look).await.unwrap_err().status, Status::LayoutMismatch);
        });
    }
}
