//! The store of one machine: fjall on a local disk behind one committer thread.
//!
//! Transactions read a published snapshot: the state after the last sync. The committer takes
//! what waits, finds conflicts with [`crate::Resolver`], writes all that is left as one batch, syncs
//! once, publishes the next snapshot and answers. Therefore nobody ever reads what a power cut could
//! take back, and a batch is in the journal whole or not at all.

mod ahead;
mod committer;
mod hot;
mod journal;
mod session;
mod tables;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fjall::Database;
use millpond_env::{Rng, ThreadHandle, thread};
use millpond_types::ByteSize;
use millpond_types::limits::{
    STORE_COMMIT_QUEUE_MAX, STORE_CONFLICT_BYTES_MAX, STORE_WATCH_BYTES_MAX,
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::mpsc;

use crate::backend::{Backend, BoxFuture, ChangeStream, Session};
use crate::history::History;
use crate::{KeyRange, Resolver, StoreError, Version};
use committer::{Committer, Request};
use hot::Hot;
use journal::Journals;
use session::EmbeddedSession;
use tables::Tables;

/// Where the embedded store is and how much memory it may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// Its folder; made when it is not there. One process at a time has it open.
    pub path: PathBuf,
    /// Memory for blocks read from disk.
    pub cache: ByteSize,
}

impl EmbeddedOptions {
    /// The defaults, in `path`: 64 MiB of cache.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), cache: ByteSize(64 << 20) }
    }

    /// Refuses settings that cannot work.
    ///
    /// # Errors
    /// `Config`.
    pub fn validate(&self) -> Result<(), StoreError> {
        let wrong = |field, fix: &str| Err(StoreError::Config { field, fix: fix.to_owned() });
        if self.path.as_os_str().is_empty() {
            return wrong("store.path", "name a folder");
        }
        if self.cache.0 < 1 << 20 {
            return wrong("store.cache", "give it at least 1 MiB");
        }
        Ok(())
    }
}

/// Bytes of journals after which fjall writes its memory tables out: bounds what a start reads, and
/// the memory it reads it into.
const JOURNAL_BYTES_MAX: u64 = 128 << 20;

/// A durable state of the store.
pub(crate) struct Published {
    version: Version,
    snapshot: fjall::Snapshot,
}

impl Published {
    fn get(&self, shared: &Shared, key: &[u8]) -> fjall::Result<Option<Vec<u8>>> {
        if let Some(value) = shared.hot.get(key, self.version) {
            return Ok(Some(value));
        }
        let found = shared.tables.get(&self.snapshot, key)?;
        Ok(found.map(|value| {
            shared.hot.note(key, &value, self.version);
            value.to_vec()
        }))
    }
}

pub(crate) struct Shared {
    path: PathBuf,
    database: Database,
    tables: Tables,
    published: RwLock<Arc<Published>>,
    hot: Hot,
    history: Arc<History>,
}

/// The embedded engine, used inside a tokio runtime (its pauses are tokio's). Dropping the last clone waits until everything queued is committed and
/// the folder is free again, unless transactions still hold it.
#[derive(Clone)]
pub struct EmbeddedBackend(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    queue: Option<mpsc::Sender<Request>>,
    committer: Option<ThreadHandle<()>>,
    rng: Mutex<Rng>,
}

impl fmt::Debug for EmbeddedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedBackend").field("path", &self.0.shared.path).finish_non_exhaustive()
    }
}

impl EmbeddedBackend {
    /// Opens the store, or makes it. Blocks for disk reads: everything committed since the last
    /// flush of fjall's memory tables (128 MiB at most) is read from the journals.
    ///
    /// # Errors
    /// `InUse` when another process has it open, `Config`, `Damaged`.
    pub fn open(options: &EmbeddedOptions) -> Result<Self, StoreError> {
        options.validate()?;
        let database = open_database(options)?;
        let (tables, version) = Tables::open(&database)?;
        let history = History::new(version, STORE_WATCH_BYTES_MAX);
        let published = Arc::new(Published { version, snapshot: database.snapshot() });
        let shared = Arc::new(Shared {
            path: options.path.clone(),
            database,
            tables,
            published: RwLock::new(published),
            hot: Hot::new(version),
            history,
        });
        let resolver = Resolver::new(version, STORE_CONFLICT_BYTES_MAX);
        let committer = Committer::new(Arc::clone(&shared), resolver, version);
        let (queue, requests) = mpsc::channel(STORE_COMMIT_QUEUE_MAX);
        let committer = thread("store-commit", move || committer.run(requests))
            .map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        let rng = Rng::from_os().map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        let (queue, committer) = (Some(queue), Some(committer));
        Ok(Self(Arc::new(Handle { shared, queue, committer, rng: Mutex::new(rng) })))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.queue.take();
        if let Some(committer) = self.committer.take()
            && committer.join().is_err()
        {
            tracing::error!(path = %self.shared.path.display(), "the store's committer panicked");
        }
    }
}

fn open_database(options: &EmbeddedOptions) -> Result<Database, StoreError> {
    let io_error = |error: std::io::Error| StoreError::Damaged(Box::new(error));
    let journals = Journals::read(&options.path).map_err(io_error)?;
    let mut opened = open_fjall(options);
    // Only a batch that was being written when the power went can be torn, and it is the last.
    // fjall refuses it where its checksum does not match; nobody was told that it was committed.
    if let Err(StoreError::Damaged(error)) = &opened
        && journals.drop_last_batch().map_err(io_error)?
    {
        tracing::warn!(path = %options.path.display(), error,
            "the store's journal is damaged: trying without its last batch");
        opened = open_fjall(options);
        if opened.is_err() {
            journals.restore().map_err(io_error)?;
        }
    }
    let database = opened?;
    if let Some(losses) = journals.losses() {
        drop(database);
        journals.restore().map_err(io_error)?;
        return Err(StoreError::Damaged(losses.into()));
    }
    Ok(database)
}

fn open_fjall(options: &EmbeddedOptions) -> Result<Database, StoreError> {
    let builder = Database::builder(&options.path).cache_size(options.cache.0);
    let builder = builder.max_journaling_size(JOURNAL_BYTES_MAX);
    // fjall asserts that the lengths in an entry agree, before it has looked at the checksum.
    match std::panic::catch_unwind(AssertUnwindSafe(|| builder.open())) {
        Ok(Ok(database)) => Ok(database),
        Ok(Err(fjall::Error::Locked)) => {
            Err(StoreError::InUse { path: options.path.display().to_string() })
        }
        Ok(Err(error)) => Err(damaged(error)),
        Err(_) => Err(StoreError::Damaged("its journal breaks fjall's own rules".into())),
    }
}

fn damaged(error: fjall::Error) -> StoreError {
    StoreError::Damaged(Box::new(error))
}

impl Backend for EmbeddedBackend {
    fn begin(&self) -> Box<dyn Session> {
        let queue = self.0.queue.as_ref().map(mpsc::Sender::downgrade);
        Box::new(EmbeddedSession::new(Arc::clone(&self.0.shared), queue))
    }

    fn watch(
        &self,
        range: KeyRange,
        after: Version,
    ) -> BoxFuture<'_, Result<Box<dyn ChangeStream>, StoreError>> {
        let watcher: Box<dyn ChangeStream> = Box::new(self.0.shared.history.watch(range, after));
        Box::pin(std::future::ready(Ok(watcher)))
    }

    fn pause(&self, at_most: Duration) -> BoxFuture<'_, ()> {
        let most = u64::try_from(at_most.as_micros()).unwrap_or(u64::MAX).max(1);
        let micros = self.0.rng.lock().below(most);
        Box::pin(tokio::time::sleep(Duration::from_micros(micros)))
    }
}

impl Shared {
    fn current(&self) -> Arc<Published> {
        Arc::clone(&self.published.read())
    }

    fn path(&self) -> &Path {
        &self.path
    }
}
