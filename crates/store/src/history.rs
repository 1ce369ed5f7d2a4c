//! Recent changes, kept in memory for the watchers of one process.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::backend::{BoxFuture, Change, ChangeBatch, ChangeStream};
use crate::error::Closed;
use crate::{KeyRange, StoreError, Version};

/// A bounded list of what every transaction changed, and the means to wait for the next.
#[derive(Debug)]
pub(crate) struct History {
    inner: Mutex<Inner>,
    newest: watch::Sender<Version>,
}

#[derive(Debug)]
struct Inner {
    batches: VecDeque<Arc<ChangeBatch>>,
    bytes: usize,
    bytes_max: usize,
    /// Every change behind this version is in `batches`.
    base: Version,
    closed: bool,
}

fn bytes_of(batch: &ChangeBatch) -> usize {
    // 64: what a change costs besides its bytes, roughly.
    let change = |c: &Change| 64 + c.key.len() + c.value.as_ref().map_or(0, Vec::len);
    batch.changes.iter().map(change).sum()
}

impl History {
    pub(crate) fn new(now: Version, bytes_max: usize) -> Arc<Self> {
        let inner =
            Inner { batches: VecDeque::new(), bytes: 0, bytes_max, base: now, closed: false };
        Arc::new(Self { inner: Mutex::new(inner), newest: watch::Sender::new(now) })
    }

    /// Adds what transactions changed, in the order of their versions, and wakes the watchers.
    pub(crate) fn publish(&self, batches: Vec<ChangeBatch>) {
        let Some(newest) = batches.last().map(|batch| batch.version) else { return };
        let mut inner = self.inner.lock();
        for batch in batches {
            inner.bytes += bytes_of(&batch);
            inner.batches.push_back(Arc::new(batch));
        }
        while inner.bytes > inner.bytes_max {
            let Some(oldest) = inner.batches.pop_front() else { break };
            inner.bytes -= bytes_of(&oldest);
            inner.base = oldest.version;
        }
        drop(inner);
        self.newest.send_replace(newest);
    }

    /// Ends all watches with `Unavailable` once they have seen everything.
    pub(crate) fn close(&self) {
        self.inner.lock().closed = true;
        self.newest.send_modify(|_| {});
    }

    pub(crate) fn watch(self: &Arc<Self>, range: KeyRange, after: Version) -> Watcher {
        Watcher { newest: self.newest.subscribe(), history: Arc::clone(self), range, after }
    }
}

/// A place in the history.
#[derive(Debug)]
pub(crate) struct Watcher {
    history: Arc<History>,
    newest: watch::Receiver<Version>,
    range: KeyRange,
    after: Version,
}

impl Watcher {
    fn poll(&mut self) -> Result<Option<ChangeBatch>, StoreError> {
        let inner = self.history.inner.lock();
        if self.after < inner.base {
            return Err(StoreError::Compacted(inner.base.0));
        }
        let from = inner.batches.partition_point(|batch| batch.version <= self.after);
        for batch in inner.batches.range(from..) {
            self.after = batch.version;
            let changes = batch.changes.iter().filter(|change| self.range.contains(&change.key));
            let changes: Vec<Change> = changes.cloned().collect();
            if !changes.is_empty() {
                return Ok(Some(ChangeBatch { version: batch.version, changes }));
            }
        }
        if inner.closed { Err(StoreError::Unavailable(Box::new(Closed))) } else { Ok(None) }
    }
}

impl ChangeStream for Watcher {
    fn next(&mut self) -> BoxFuture<'_, Result<ChangeBatch, StoreError>> {
        Box::pin(async {
            loop {
                self.newest.mark_unchanged();
                if let Some(batch) = self.poll()? {
                    return Ok(batch);
                }
                if self.newest.changed().await.is_err() {
                    return Err(StoreError::Unavailable(Box::new(Closed)));
                }
            }
        })
    }
}
