//! Numbers of new inodes, data ids and sessions: taken from the store some thousand at a time.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_store::{Store, StoreError, StoreErrorKind};
use millpond_types::meta::{CounterRecord, keys};
use millpond_types::wire::Record;
use parking_lot::Mutex;

use crate::error::Failed;
use crate::view::opened;

/// Numbers taken at a time: one transaction for so many new files. Numbers left over when a meta
/// ends are never used.
const TAKEN: u64 = 4096;
/// The first number: the root has 1, and small ones stay free for future use.
const FIRST: u64 = 1024;

/// The numbers that this process may give out.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    left: Mutex<Range<u64>>,
    /// Held by the task that takes more. When every task took numbers for itself, all but one
    /// conflicted, and with hundreds at once the last of them paused for a second.
    taking: tokio::sync::Mutex<()>,
    /// All numbers below have been taken by some process.
    taken: AtomicU64,
}

impl Ids {
    /// Returns a number that no other caller or process gets.
    pub(crate) async fn next(&self, store: &Store) -> Result<u64, Failed> {
        loop {
            if let Some(id) = self.left.lock().next() {
                return Ok(id);
            }
            let taking = self.taking.lock().await;
            if self.left.lock().is_empty() {
                let taken = self.take_more(store, TAKEN).await?;
                *self.left.lock() = taken;
            }
            drop(taking);
        }
    }

    /// Takes `count` numbers for a caller.
    pub(crate) async fn take(&self, store: &Store, count: u64) -> Result<Range<u64>, Failed> {
        let _taking = self.taking.lock().await;
        self.take_more(store, count).await
    }

    async fn take_more(&self, store: &Store, count: u64) -> Result<Range<u64>, Failed> {
        let taken = take(store, count).await?;
        self.taken.fetch_max(taken.end, Ordering::AcqRel);
        Ok(taken)
    }

    /// Whether a number has been taken, so that no other process will get it.
    pub(crate) async fn is_taken(&self, store: &Store, id: u64) -> Result<bool, Failed> {
        if id >= self.taken.load(Ordering::Acquire) {
            let next = FIRST + given_out(store).await?;
            self.taken.fetch_max(next, Ordering::AcqRel);
            return Ok((FIRST..next).contains(&id));
        }
        Ok(id >= FIRST)
    }
}

async fn take(store: &Store, count: u64) -> Result<Range<u64>, Failed> {
    loop {
        let taken = store.transact(|txn| async move {
            let next = match txn.get(keys::IDS).await? {
                Some(bytes) => opened::<CounterRecord>(keys::IDS, &bytes)?.next,
                None => FIRST,
            };
            txn.put(keys::IDS, CounterRecord { next: next + count }.seal())?;
            Ok::<_, Failed>(next..next + count)
        });
        match taken.await {
            // Taken or not: the next attempt takes others.
            Err(Failed::Broken(crate::VolumeError::Store(error)))
                if error.kind() == StoreErrorKind::Unknown =>
            {
                tracing::debug!("cannot take inode numbers: {error}");
            }
            taken => return taken,
        }
    }
}

/// Returns an upper bound of the numbers given out so far.
pub(crate) async fn given_out(store: &Store) -> Result<u64, Failed> {
    let found = store.begin().get(keys::IDS).await.map_err(|error: StoreError| error)?;
    Ok(match found {
        Some(bytes) => opened::<CounterRecord>(keys::IDS, &bytes)?.next - FIRST,
        None => 0,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use millpond_store::{EmbeddedBackend, EmbeddedOptions};
    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn many_that_find_none_left_take_once() {
        const ASKERS: u64 = 300;
        let folder = tempfile::tempdir().unwrap();
        let backend = EmbeddedBackend::open(&EmbeddedOptions::new(folder.path())).unwrap();
        let (store, ids) = (Store::new(Arc::new(backend)), Arc::new(Ids::default()));
        let mut askers = JoinSet::new();
        for _ in 0..ASKERS {
            let (store, ids) = (store.clone(), Arc::clone(&ids));
            askers.spawn(async move { ids.next(&store).await.map_err(|_| ()) });
        }
        let given = askers.join_all().await.into_iter().collect::<Result<BTreeSet<_>, _>>();
        assert_eq!(given.unwrap(), (FIRST..FIRST + ASKERS).collect());
        assert_eq!(store.begin().version().await.unwrap().0, 1, "one transaction");
    }
}
