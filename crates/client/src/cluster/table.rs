//! The client's copy of the cluster's routing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::{Condvar, Mutex};
use millpond_types::cluster::{News, Routing, RoutingUpdate, RoutingVersion, UpdateError};

/// The newest known routing. Calls keep the copy with which they began a round.
#[derive(Debug, Default)]
pub(crate) struct Table {
    news: Mutex<Arc<News>>,
    version: AtomicU64,
    newer: Condvar,
}

impl Table {
    /// The present copy.
    pub(crate) fn get(&self) -> Arc<Routing> {
        Arc::clone(&self.news.lock().routing)
    }

    /// The present copy with its history.
    pub(crate) fn news(&self) -> Arc<News> {
        Arc::clone(&self.news.lock())
    }

    pub(crate) fn version(&self) -> RoutingVersion {
        RoutingVersion(self.version.load(Ordering::Acquire))
    }

    /// Applies an update to the copy; older news change nothing.
    ///
    /// # Errors
    /// [`UpdateError`]: the news are of another cluster, or versions are missing.
    pub(crate) fn apply(&self, update: RoutingUpdate) -> Result<(), UpdateError> {
        let mut news = self.news.lock();
        let mut routing = Routing::clone(&news.routing);
        if routing.apply(update)? {
            self.version.store(routing.version.0, Ordering::Release);
            *news = Arc::new(news.after(&Arc::new(routing)));
            self.newer.notify_all();
        }
        Ok(())
    }

    /// Waits for a copy newer than `than`, for `at_most` at most.
    pub(crate) fn wait(&self, than: RoutingVersion, at_most: Duration) {
        let mut news = self.news.lock();
        if news.routing.version <= than {
            self.newer.wait_for(&mut news, at_most);
        }
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::Uuid128;
    use millpond_types::cluster::RoutingDiff;

    use super::*;

    fn full(version: u64) -> RoutingUpdate {
        let (cluster, version) = (Uuid128([7; 16]), RoutingVersion(version));
        RoutingUpdate::Full(Box::new(Routing { cluster, version, ..Routing::default() }))
    }

    #[test]
    fn news_are_taken_in_order_only() {
        let table = Table::default();
        table.apply(full(5)).unwrap();
        let before = table.get();
        table.apply(full(4)).unwrap();
        assert_eq!(table.version(), RoutingVersion(5));
        let (from, to) = (RoutingVersion(7), RoutingVersion(8));
        let diff = |from| {
            RoutingUpdate::Diff(
                Uuid128([7; 16]),
                RoutingDiff { from, to, ..RoutingDiff::default() },
            )
        };
        assert!(matches!(table.apply(diff(from)), Err(UpdateError::Gap { .. })));
        table.apply(diff(RoutingVersion(5))).unwrap();
        assert_eq!((table.version(), before.version), (RoutingVersion(8), RoutingVersion(5)));
        table.wait(RoutingVersion(7), Duration::from_mins(1));
    }
}
