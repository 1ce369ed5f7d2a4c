//! The store of one machine: fjall on a local disk with one committer thread.
//!
//! Transactions read a published snapshot: the state after the last sync. The committer takes the
//! waiting transactions, finds conflicts with [`crate::Resolver`], writes the accepted ones as one
//! batch, syncs once, publishes the next snapshot and answers. Therefore no transaction reads data
//! that a power cut could take back, and a batch is in the journal whole or not at all.

mod ahead;
mod check;
mod committer;
mod damage;
#[cfg(test)]
mod damage_tests;
mod hot;
mod journal;
mod keeper;
mod kept;
mod seal;
mod session;
mod tables;
mod trees;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fjall::Database;
use millpond_env::files::{FileLock, make_folder};
use millpond_env::{Rng, ThreadHandle, thread};
use millpond_types::ByteSize;
use millpond_types::limits::{
    STORE_COMMIT_QUEUE_MAX, STORE_CONFLICT_BYTES_MAX, STORE_WATCH_BYTES_MAX,
};
use parking_lot::{Condvar, Mutex, RwLock};
use tokio::sync::mpsc;

use crate::backend::{Backend, BoxFuture, ChangeStream, Session};
use crate::history::History;
use crate::{KeyRange, Resolver, StoreError, Version};
use check::Checked;
use committer::{Committer, Request, Sealed};
use damage::Damage;
use hot::Hot;
use journal::Link;
use keeper::Keeper;
use session::EmbeddedSession;
use tables::Tables;

/// Place and memory of the embedded store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// Its folder; made if it does not exist. One process at a time has it open.
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
            return wrong("store.path", "give a folder");
        }
        if self.cache.0 < 1 << 20 {
            return wrong("store.cache", "give it at least 1 MiB");
        }
        Ok(())
    }
}

/// Bytes of journals after which fjall flushes its memory tables: bounds the bytes that a start
/// reads, and the memory that it reads them into.
const JOURNAL_BYTES_MAX: u64 = 128 << 20;

/// Pause between two pieces of a table that is compared in the background: at most 100 MiB a
/// second.
const VERIFY_PAUSE: Duration = Duration::from_millis(10);

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

/// The embedded engine, for use inside a tokio runtime (its pauses are tokio's). Dropping the last
/// clone waits until everything queued is committed and the folder is free again, unless
/// transactions still hold it.
#[derive(Clone)]
pub struct EmbeddedBackend(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    queue: Option<mpsc::Sender<Request>>,
    committer: Option<ThreadHandle<()>>,
    /// Compares tables that the start left out.
    verifier: Option<ThreadHandle<()>>,
    closing: Arc<Closing>,
    rng: Mutex<Rng>,
}

impl fmt::Debug for EmbeddedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddedBackend").field("path", &self.0.shared.path).finish_non_exhaustive()
    }
}

impl EmbeddedBackend {
    /// Opens the store, or makes it. Blocks for disk reads: everything committed since the last
    /// flush of fjall's memory tables (128 MiB at most) is read from the journals, and tables are
    /// compared with their checksums (256 MiB at most; the rest in the background).
    ///
    /// It starts with everything that was acknowledged, or not at all, whichever file is missing,
    /// cut or damaged.
    ///
    /// # Errors
    /// `InUse` when another process has it open, `Config`, `Damaged` with the file and advice.
    pub fn open(options: &EmbeddedOptions) -> Result<Self, StoreError> {
        options.validate()?;
        let (database, mut checked) = open_database(options)?;
        let (tables, version) = Tables::open(&database, checked.is_used)?;
        let last = last_batch(&checked, &tables, version, &options.path)?;
        let keeper = Keeper::begin(&options.path, last, tables.numbers());
        let keeper = keeper.map_err(|error| StoreError::Damaged(Box::new(error)))?;
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
        let committer = Committer::new(Arc::clone(&shared), resolver, Sealed { last, keeper });
        let (queue, requests) = mpsc::channel(STORE_COMMIT_QUEUE_MAX);
        let committer = thread("store-commit", move || committer.run(requests))
            .map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        let rng = Rng::from_os().map_err(|error| StoreError::Unavailable(Box::new(error)))?;
        let (queue, committer) = (Some(queue), Some(committer));
        let closing = Arc::new(Closing::default());
        let verifier = verify(std::mem::take(&mut checked.later), &closing)?;
        let rng = Mutex::new(rng);
        Ok(Self(Arc::new(Handle { shared, queue, committer, verifier, closing, rng })))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.closing.close();
        self.queue.take();
        for thread in [self.committer.take(), self.verifier.take()].into_iter().flatten() {
            if thread.join().is_err() {
                tracing::error!(path = %self.shared.path.display(), "a thread of the store panicked");
            }
        }
    }
}

/// Whether the store is being closed.
#[derive(Default)]
struct Closing {
    is_closing: Mutex<bool>,
    closed: Condvar,
}

impl Closing {
    fn close(&self) {
        *self.is_closing.lock() = true;
        self.closed.notify_all();
    }

    /// Waits a moment. Returns whether the store is being closed.
    fn pause(&self) -> bool {
        let mut is_closing = self.is_closing.lock();
        if !*is_closing {
            self.closed.wait_for(&mut is_closing, VERIFY_PAUSE);
        }
        *is_closing
    }
}

/// Returns the batch that the next one follows.
fn last_batch(
    checked: &Checked,
    tables: &Tables,
    version: Version,
    path: &Path,
) -> Result<Link, StoreError> {
    let sealed = checked.seal.map_or(0, |seal| seal.version);
    if version.0 < sealed {
        let text = format!("ends with commit {}, but commit {sealed} was acknowledged", version.0);
        return Err(Damage::new(path, text).told(path));
    }
    // A record in a table may have lost its sequence number: fjall forgets those of old values.
    let known = checked.last.filter(|last| last.version == version.0);
    match known {
        Some(last) => Ok(last),
        None => Ok(Link { version: version.0, sequence: tables.sequence().map_err(damaged)? }),
    }
}

/// Compares tables slowly, to leave the disk to other work.
fn verify(
    tables: Vec<trees::Table>,
    closing: &Arc<Closing>,
) -> Result<Option<ThreadHandle<()>>, StoreError> {
    if tables.is_empty() {
        return Ok(None);
    }
    let closing = Arc::clone(closing);
    let run = move || {
        for table in tables {
            let verified = table.verify(|| closing.pause());
            // A table that is gone was merged into others.
            if let Err(damage) = verified
                && table.is_there()
            {
                tracing::error!(%damage,
                    "a table of the store is damaged: reads of that part of it fail; put the \
                     folder back from a copy (docs/store.md, \"Copies and damage\")");
            }
        }
    };
    let started = thread("store-verify", run);
    started.map(Some).map_err(|error| StoreError::Unavailable(Box::new(error)))
}

fn open_database(options: &EmbeddedOptions) -> Result<(Database, Checked), StoreError> {
    let path = &options.path;
    let io_error =
        |error: std::io::Error| Damage::new(path, format!("cannot be used: {error}")).told(path);
    make_folder(path).map_err(io_error)?;
    // fjall's own lock: no other process writes while the folder is checked and repaired.
    let lock = FileLock::take(&path.join("lock")).map_err(io_error)?;
    let lock = lock.ok_or_else(|| StoreError::InUse { path: path.display().to_string() })?;
    let checked = check::check(path)?;
    drop(lock);
    Ok((open_fjall(options)?, checked))
}

fn open_fjall(options: &EmbeddedOptions) -> Result<Database, StoreError> {
    let path = &options.path;
    let builder = Database::builder(path).cache_size(options.cache.0);
    let builder = builder.max_journaling_size(JOURNAL_BYTES_MAX);
    // fjall has assertions about the files of a store.
    match std::panic::catch_unwind(AssertUnwindSafe(|| builder.open())) {
        Ok(Ok(database)) => Ok(database),
        Ok(Err(fjall::Error::Locked)) => {
            Err(StoreError::InUse { path: path.display().to_string() })
        }
        Ok(Err(error)) => Err(Damage::new(path, format!("cannot be opened: {error}")).told(path)),
        Err(_) => Err(Damage::new(path, "violates fjall's own rules").told(path)),
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
