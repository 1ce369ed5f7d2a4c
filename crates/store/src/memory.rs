//! The simplest implementation of the contract: everything in memory, one commit at a time.
//!
//! Deterministic, without clock, threads or randomness: the simulator wraps it with faults, and
//! unit tests of managers use it. Nothing survives the process.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use millpond_types::limits::{STORE_CONFLICT_BYTES_MAX, STORE_WATCH_BYTES_MAX};
use parking_lot::Mutex;

use crate::backend::{
    Backend, BoxFuture, Change, ChangeBatch, ChangeStream, Commit, RangeRead, RawPage, Session,
};
use crate::history::History;
use crate::{KeyRange, Resolver, StoreError, Version};

/// A store in memory. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryBackend {
    state: Arc<Mutex<State>>,
    history: Arc<History>,
}

type Values = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Debug)]
struct State {
    version: Version,
    /// Shared with the transactions that read it; a change during a read copies it.
    values: Arc<Values>,
    resolver: Resolver,
}

impl Default for MemoryBackend {
    fn default() -> Self {
        let resolver = Resolver::new(Version(0), STORE_CONFLICT_BYTES_MAX);
        let state = State { version: Version(0), values: Arc::default(), resolver };
        Self {
            state: Arc::new(Mutex::new(state)),
            history: History::new(Version(0), STORE_WATCH_BYTES_MAX),
        }
    }
}

impl Backend for MemoryBackend {
    fn begin(&self) -> Box<dyn Session> {
        Box::new(MemorySession { backend: self.clone(), snapshot: None })
    }

    fn watch(
        &self,
        range: KeyRange,
        after: Version,
    ) -> BoxFuture<'_, Result<Box<dyn ChangeStream>, StoreError>> {
        let watcher: Box<dyn ChangeStream> = Box::new(self.history.watch(range, after));
        Box::pin(std::future::ready(Ok(watcher)))
    }

    /// Lets the executor run another task once: there is no time here.
    fn pause(&self, _at_most: Duration) -> BoxFuture<'_, ()> {
        let mut yielded = false;
        Box::pin(std::future::poll_fn(move |context| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        }))
    }
}

struct MemorySession {
    backend: MemoryBackend,
    snapshot: Option<(Version, Arc<Values>)>,
}

impl MemorySession {
    fn snapshot(&mut self) -> &(Version, Arc<Values>) {
        let state = &self.backend.state;
        self.snapshot.get_or_insert_with(|| {
            let state = state.lock();
            (state.version, Arc::clone(&state.values))
        })
    }
}

impl Session for MemorySession {
    fn version(&mut self) -> BoxFuture<'_, Result<Version, StoreError>> {
        let version = self.snapshot().0;
        Box::pin(std::future::ready(Ok(version)))
    }

    fn get<'a>(
        &'a mut self,
        keys: &'a [Vec<u8>],
    ) -> BoxFuture<'a, Result<Vec<Option<Vec<u8>>>, StoreError>> {
        let values = &self.snapshot().1;
        let found = keys.iter().map(|key| values.get(key).cloned()).collect();
        Box::pin(std::future::ready(Ok(found)))
    }

    fn range<'a>(&'a mut self, read: &'a RangeRead) -> BoxFuture<'a, Result<RawPage, StoreError>> {
        let bounds = (
            Bound::Included(read.range.start.as_slice()),
            Bound::Excluded(read.range.end.as_slice()),
        );
        let values = self.snapshot().1.range::<[u8], _>(bounds);
        let mut found: Box<dyn Iterator<Item = _>> =
            if read.reverse { Box::new(values.rev()) } else { Box::new(values) };
        let entries =
            found.by_ref().take(read.limit).map(|(k, v)| (k.clone(), v.clone())).collect();
        let page = RawPage { entries, more: found.next().is_some() };
        Box::pin(std::future::ready(Ok(page)))
    }

    fn commit(self: Box<Self>, commit: Commit) -> BoxFuture<'static, Result<Version, StoreError>> {
        // Drops the values first, or this very transaction would make the commit copy them.
        let at = self.snapshot.map(|(version, _)| version);
        Box::pin(std::future::ready(self.backend.apply(at, commit)))
    }
}

impl MemoryBackend {
    fn apply(&self, at: Option<Version>, commit: Commit) -> Result<Version, StoreError> {
        let mut state = self.state.lock();
        let at = at.unwrap_or(state.version);
        state.resolver.check(&commit.reads, at)?;
        let version = Version(state.version.0 + 1);
        state.version = version;
        state.resolver.record(version, commit.writes.keys());
        let values = Arc::make_mut(&mut state.values);
        let mut changes = Vec::with_capacity(commit.writes.len());
        for (key, value) in commit.writes {
            match &value {
                Some(value) => values.insert(key.clone(), value.clone()),
                None => values.remove(&key),
            };
            changes.push(Change { key, value });
        }
        self.history.publish(vec![ChangeBatch { version, changes }]);
        Ok(version)
    }
}
