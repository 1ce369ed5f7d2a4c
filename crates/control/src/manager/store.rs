//! The transactional store of a manager, with a thread of its own: reads of the embedded engine
//! block, and etcd's client needs tokio. Its timers and spawned tasks run there; only
//! `ManagerRole::here` and its variants poll work on the caller's thread.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_cluster::manager::{StoreReply, StoreRequest};
use millpond_env::{ThreadHandle, thread};
#[cfg(feature = "etcd")]
use millpond_store::StoreAccess;
use millpond_store::{
    BoxFuture, EmbeddedBackend, EmbeddedOptions, KeyRange, RangeOptions, Store, StoreChoice,
    StoreError, TransactError,
};
use millpond_types::Uuid128;
use millpond_types::cluster::{ClusterRecord, keys};
use millpond_types::wire::Record as _;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

/// Deadline of one request: three tries fit in the manager's lease of 5 s.
const REQUEST_MAX: Duration = Duration::from_millis(1500);
/// Interval of reads of the cluster's identity until the store has one.
const FOUNDED_LOOK: Duration = Duration::from_millis(100);

/// Time limit at the end for work that cannot be cancelled, such as a name lookup without an
/// answer.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// The store and its thread. Clones share both.
#[derive(Clone)]
pub(super) struct StoreThread {
    handle: Handle,
    store: Store,
    failing: Arc<AtomicBool>,
}

/// Ends the thread when dropped.
pub(super) struct StoreOwner {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<ThreadHandle<()>>,
}

impl Drop for StoreOwner {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Opens the store and starts its thread.
///
/// # Errors
/// [`StoreError`] when it cannot be opened.
pub(super) fn start(
    choice: StoreChoice,
    folder: PathBuf,
) -> Result<(StoreThread, StoreOwner), StoreError> {
    let failed = |error: std::io::Error| StoreError::Unavailable(Box::new(error));
    let (stop, stopped) = oneshot::channel::<()>();
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = thread("millpond-store", move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => {
                let _ = sender.send(Err(failed(error)));
                return;
            }
        };
        let opened = runtime.block_on(async { open(choice, folder) });
        let _ = sender.send(opened.map(|store| (runtime.handle().clone(), store)));
        let _ = runtime.block_on(stopped);
        // Running work is dropped: its callers do not learn the outcome. A pending name lookup
        // (etcd) must not delay the end.
        runtime.shutdown_timeout(END_PATIENCE);
    })
    .map_err(failed)?;
    let closed = || StoreError::Unavailable("its thread ended".into());
    let (handle, store) = receiver.recv().map_err(|_| closed())??;
    let owner = StoreOwner { stop: Some(stop), thread: Some(thread) };
    Ok((StoreThread { handle, store, failing: Arc::default() }, owner))
}

fn open(choice: StoreChoice, folder: PathBuf) -> Result<Store, StoreError> {
    match choice {
        StoreChoice::Embedded => {
            let backend = EmbeddedBackend::open(&EmbeddedOptions::new(folder))?;
            Ok(Store::new(Arc::new(backend)))
        }
        #[cfg(feature = "etcd")]
        StoreChoice::Etcd { endpoints, prefix, access } => {
            let (tls, user) = credentials(&access)?;
            let options = millpond_store::EtcdOptions {
                prefix,
                tls,
                user,
                timeout: Duration::from_secs(1),
                ..millpond_store::EtcdOptions::new(endpoints)
            };
            Ok(Store::new(Arc::new(millpond_store::EtcdBackend::new(&options)?)))
        }
        #[cfg(not(feature = "etcd"))]
        StoreChoice::Etcd { .. } => Err(StoreError::Config {
            field: "cluster.store",
            fix: "this build has no etcd".to_owned(),
        }),
    }
}

/// Certificates, and user and password.
#[cfg(feature = "etcd")]
type Credentials = (Option<millpond_store::EtcdTls>, Option<(String, String)>);

/// Reads the credentials for etcd's members from their files.
#[cfg(feature = "etcd")]
fn credentials(access: &StoreAccess) -> Result<Credentials, StoreError> {
    let read = |field, path: &str| {
        let fix = |error| format!("cannot read {path}: {error}");
        std::fs::read_to_string(path).map_err(|error| StoreError::Config { field, fix: fix(error) })
    };
    let ca = access.ca.as_deref().map(|path| read("cluster.store_ca", path)).transpose()?;
    let identity = access.identity.as_ref().map(|(cert, key)| {
        Ok::<_, StoreError>((read("cluster.store_cert", cert)?, read("cluster.store_key", key)?))
    });
    let identity = identity.transpose()?;
    let tls = ca.map(|ca| millpond_store::EtcdTls { ca, identity, domain: access.name.clone() });
    let user = access.user.as_ref().map(|(name, path)| {
        let text = read("cluster.store_password_file", path)?;
        let word = text.split_whitespace().next().unwrap_or_default().to_owned();
        Ok::<_, StoreError>((name.clone(), word))
    });
    Ok((tls, user.transpose()?))
}

/// Reason why a request was not carried out.
#[derive(Debug)]
enum Failed {
    /// A check did not hold.
    Check,
    /// The store's own error.
    Store(StoreError),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl TransactError for Failed {
    fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Check => None,
            Self::Store(error) => Some(error),
        }
    }
}

impl StoreThread {
    /// The store, for work on [`StoreThread::handle`].
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Runs work on the store's thread.
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Carries out a request of the manager and calls `answered` with the outcome; the last resort
    /// is `Failed`.
    pub(super) fn carry_out<F>(&self, request: StoreRequest, answered: F)
    where
        F: FnOnce(StoreReply) -> BoxFuture<'static, ()> + Send + 'static,
    {
        let this = self.clone();
        self.handle.spawn(async move {
            let work = execute(&this.store, request);
            let reply = match tokio::time::timeout(REQUEST_MAX, work).await {
                Ok(Ok(reply)) => {
                    this.worked();
                    reply
                }
                Ok(Err(error)) => {
                    this.failed(&error);
                    StoreReply::Failed
                }
                Err(_) => {
                    this.failed(&"no answer in time");
                    StoreReply::Failed
                }
            };
            answered(reply).await;
        });
    }

    /// Logs one line when the store starts to fail; `worked` logs one when it recovers.
    pub(super) fn failed(&self, error: &dyn std::fmt::Display) {
        if !self.failing.swap(true, Ordering::Relaxed) {
            tracing::error!("the store of the cluster: {error}");
        }
    }

    pub(super) fn worked(&self) {
        if self.failing.load(Ordering::Relaxed) && self.failing.swap(false, Ordering::Relaxed) {
            tracing::info!("the store of the cluster works again");
        }
    }

    /// Watches for the cluster's identity until a primary has founded the cluster.
    pub(super) fn watch_founding(&self) -> watch::Receiver<Option<Uuid128>> {
        let (sender, receiver) = watch::channel(None);
        let this = self.clone();
        self.handle.spawn(async move {
            while !sender.is_closed() {
                let txn = this.store.begin();
                let read = tokio::time::timeout(REQUEST_MAX, txn.get(keys::CLUSTER));
                let found = match read.await {
                    Ok(Ok(found)) => found,
                    Ok(Err(error)) => {
                        this.failed(&error);
                        None
                    }
                    Err(_) => {
                        this.failed(&"no answer in time");
                        None
                    }
                };
                match found.as_deref().map(ClusterRecord::open) {
                    Some(Ok(record)) => {
                        sender.send_replace(Some(record.cluster));
                        return;
                    }
                    Some(Err(error)) => this.failed(&error),
                    None => {}
                }
                tokio::time::sleep(FOUNDED_LOOK).await;
            }
        });
        receiver
    }
}

/// Runs one request as a serializable transaction, again after conflicts with others.
async fn execute(store: &Store, request: StoreRequest) -> Result<StoreReply, StoreError> {
    match request {
        StoreRequest::Get { keys } => {
            let names: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let names = &names;
            let read = store.transact(|txn| async move { txn.get_many(names).await });
            Ok(StoreReply::Values(read.await?))
        }
        StoreRequest::Scan { prefix, after, limit } => scan(store, &prefix, &after, limit).await,
        StoreRequest::Commit { checks, writes } => {
            let (checks, writes) = (&checks, &writes);
            let done = store.transact(|txn| async move {
                let names: Vec<&[u8]> = checks.iter().map(|(key, _)| key.as_slice()).collect();
                let found = txn.get_many(&names).await?;
                if !found.iter().eq(checks.iter().map(|(_, value)| value)) {
                    return Err(Failed::Check);
                }
                for (key, value) in writes {
                    match value {
                        Some(value) => txn.put(key, value.as_slice())?,
                        None => txn.delete(key)?,
                    }
                }
                Ok(())
            });
            match done.await {
                Ok(()) => Ok(StoreReply::Committed),
                Err(Failed::Check) => Ok(StoreReply::Conflict),
                Err(Failed::Store(error)) => Err(error),
            }
        }
    }
}

/// Reads one page of a prefix. It may be shorter than requested, but is empty only at the end.
async fn scan(
    store: &Store,
    prefix: &[u8],
    after: &[u8],
    limit: usize,
) -> Result<StoreReply, StoreError> {
    let mut whole = KeyRange::prefix(prefix);
    if !after.is_empty() {
        whole.start = [after, &[0]].concat();
    }
    let range = &whole;
    let read = store.transact(|txn| async move {
        let options = RangeOptions { snapshot: true, ..RangeOptions::limit(limit) };
        let mut page = txn.range(range, options).await?;
        while page.entries.is_empty()
            && let Some(rest) = page.rest.take()
        {
            page = txn.range(&rest, options).await?;
        }
        Ok::<_, StoreError>(page)
    });
    let page = read.await?;
    Ok(StoreReply::Page { more: page.rest.is_some(), entries: page.entries })
}

#[cfg(test)]
mod tests;
