//! Recent changes, kept in memory for the watchers of one process.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backend::{BoxFuture, Change, ChangeBatch, ChangeStream};
use crate::error::Closed;
use crate::{KeyRange, StoreError, Version};

/// A bounded list of the changes of every transaction, and the means to wait for the next.
///
/// A watcher is woken by changes of its range only: waking a thread costs more than everything else
/// here, and most transactions concern one watcher of many.
#[derive(Debug)]
pub(crate) struct History {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    batches: VecDeque<Arc<ChangeBatch>>,
    bytes: usize,
    bytes_max: usize,
    /// `batches` has every change after this version.
    base: Version,
    /// The version of the last transaction.
    newest: Version,
    watchers: HashMap<u64, Place>,
    next_watcher: u64,
    closed: bool,
}

/// The position of a watcher.
#[derive(Debug)]
struct Place {
    range: KeyRange,
    /// The watcher has seen everything up to this version, or has no changes there.
    after: Version,
    wake: Arc<Notify>,
}

fn bytes_of(batch: &ChangeBatch) -> usize {
    // 64: roughly the cost of a change besides its bytes.
    let change = |c: &Change| 64 + c.key.len() + c.value.as_ref().map_or(0, Vec::len);
    batch.changes.iter().map(change).sum()
}

impl History {
    pub(crate) fn new(now: Version, bytes_max: usize) -> Arc<Self> {
        let inner = Inner {
            batches: VecDeque::new(),
            bytes: 0,
            bytes_max,
            base: now,
            newest: now,
            watchers: HashMap::new(),
            next_watcher: 0,
            closed: false,
        };
        Arc::new(Self { inner: Mutex::new(inner) })
    }

    /// Adds the changes of transactions, in the order of their versions, and wakes their watchers.
    pub(crate) fn publish(&self, batches: Vec<ChangeBatch>) {
        let mut inner = self.inner.lock();
        let mut woken = Vec::new();
        for batch in batches {
            woken.extend(inner.pass(&batch));
            inner.bytes += bytes_of(&batch);
            inner.newest = batch.version;
            inner.batches.push_back(Arc::new(batch));
        }
        while inner.bytes > inner.bytes_max {
            let Some(oldest) = inner.batches.pop_front() else { break };
            inner.bytes -= bytes_of(&oldest);
            inner.base = oldest.version;
        }
        drop(inner);
        for wake in woken {
            wake.notify_one();
        }
    }

    /// Ends all watches with `Unavailable` once they have seen everything.
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        for place in inner.watchers.values() {
            place.wake.notify_one();
        }
    }

    pub(crate) fn watch(self: &Arc<Self>, range: KeyRange, after: Version) -> Watcher {
        let wake = Arc::new(Notify::new());
        let mut inner = self.inner.lock();
        let id = inner.next_watcher;
        inner.next_watcher += 1;
        inner.watchers.insert(id, Place { range, after, wake: Arc::clone(&wake) });
        drop(inner);
        Watcher { history: Arc::clone(self), id, wake }
    }
}

impl Inner {
    /// Returns the watchers to wake for a transaction; all others that were up to date move past
    /// it.
    fn pass(&mut self, batch: &ChangeBatch) -> Vec<Arc<Notify>> {
        let newest = self.newest;
        let concerned = self.watchers.values_mut().filter_map(|place| {
            if batch.changes.iter().any(|change| place.range.contains(&change.key)) {
                return Some(Arc::clone(&place.wake));
            }
            if place.after == newest {
                place.after = batch.version;
            }
            None
        });
        concerned.collect()
    }

    /// Returns the next transaction that concerns a watcher, if there is one.
    fn poll(&mut self, id: u64) -> Result<Option<ChangeBatch>, StoreError> {
        let Self { batches, base, watchers, closed, newest, .. } = self;
        let place = watchers.get_mut(&id).expect("a watcher has a place until it is dropped");
        if place.after < *base {
            return Err(StoreError::Compacted(base.0));
        }
        let from = batches.partition_point(|batch| batch.version <= place.after);
        for batch in batches.range(from..) {
            place.after = batch.version;
            let changes = batch.changes.iter().filter(|change| place.range.contains(&change.key));
            let changes: Vec<Change> = changes.cloned().collect();
            if !changes.is_empty() {
                return Ok(Some(ChangeBatch { version: batch.version, changes }));
            }
        }
        place.after = place.after.max(*newest);
        if *closed { Err(StoreError::Unavailable(Box::new(Closed))) } else { Ok(None) }
    }
}

/// A handle to a position in the history.
#[derive(Debug)]
pub(crate) struct Watcher {
    history: Arc<History>,
    id: u64,
    wake: Arc<Notify>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.history.inner.lock().watchers.remove(&self.id);
    }
}

impl ChangeStream for Watcher {
    fn next(&mut self) -> BoxFuture<'_, Result<ChangeBatch, StoreError>> {
        Box::pin(async {
            loop {
                if let Some(batch) = self.history.inner.lock().poll(self.id)? {
                    return Ok(batch);
                }
                // `Notify` stores a wake-up that comes before this.
                self.wake.notified().await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreErrorKind;

    fn change(version: u64, key: &str) -> Vec<ChangeBatch> {
        let change = Change { key: key.as_bytes().to_vec(), value: Some(vec![0; 100]) };
        vec![ChangeBatch { version: Version(version), changes: vec![change] }]
    }

    async fn next(watcher: &mut Watcher) -> Result<u64, StoreErrorKind> {
        watcher.next().await.map(|batch| batch.version.0).map_err(|error| error.kind())
    }

    #[tokio::test]
    async fn who_has_nothing_to_see_is_not_woken_and_loses_nothing() {
        let history = History::new(Version(0), 1000);
        let mut idle = history.watch(KeyRange::prefix(b"a"), Version(0));
        let mut behind = history.watch(KeyRange::prefix(b"b"), Version(0));
        let woken = Arc::clone(&idle.wake);
        for version in 1..=50 {
            history.publish(change(version, "b"));
        }
        // More than is kept: a watcher that had to read it would lose it.
        assert_eq!(next(&mut behind).await, Err(StoreErrorKind::Compacted));
        let soon = tokio::time::timeout(std::time::Duration::ZERO, woken.notified());
        assert!(soon.await.is_err(), "nothing was for it");
        history.publish(change(51, "a"));
        history.publish(change(52, "b"));
        history.publish(change(53, "a"));
        assert_eq!((next(&mut idle).await, next(&mut idle).await), (Ok(51), Ok(53)));
        assert_eq!(history.inner.lock().watchers.len(), 2);
        history.close();
        assert_eq!(next(&mut idle).await, Err(StoreErrorKind::Unavailable));
        drop((idle, behind));
        assert!(history.inner.lock().watchers.is_empty());
    }

    #[tokio::test]
    async fn a_change_before_the_wait_is_not_missed() {
        let history = History::new(Version(7), 1000);
        let mut watcher = history.watch(KeyRange::all(), Version(7));
        let waits = tokio::spawn(async move { next(&mut watcher).await });
        tokio::task::yield_now().await;
        history.publish(change(8, "k"));
        assert_eq!(waits.await.unwrap(), Ok(8));
    }
}
