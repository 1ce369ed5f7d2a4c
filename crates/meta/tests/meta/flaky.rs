//! A store that loses answers: successful and failed commits look alike.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::Rng;
use millpond_store::{
    Backend, BoxFuture, ChangeStream, Commit, KeyRange, MemoryBackend, RangeRead, RawPage, Session,
    Store, StoreError, Version,
};

/// In so many commits, one is lost before it is made, one after, and one conflicts for no reason.
const ONE_IN: u64 = 6;

/// The store in memory with a network that fails.
#[derive(Debug)]
pub(crate) struct Flaky {
    inner: MemoryBackend,
    seed: u64,
    commits: AtomicU64,
}

struct FlakySession {
    inner: Box<dyn Session>,
    fate: Rng,
}

impl Flaky {
    pub(crate) fn store(seed: u64) -> Store {
        let inner = MemoryBackend::default();
        Store::new(Arc::new(Self { inner, seed, commits: AtomicU64::new(0) }))
    }
}

impl Backend for Flaky {
    fn begin(&self) -> Box<dyn Session> {
        let number = self.commits.fetch_add(1, Ordering::Relaxed);
        let fate = Rng::with_stream(self.seed, number);
        Box::new(FlakySession { inner: self.inner.begin(), fate })
    }

    fn watch(
        &self,
        range: KeyRange,
        after: Version,
    ) -> BoxFuture<'_, Result<Box<dyn ChangeStream>, StoreError>> {
        self.inner.watch(range, after)
    }

    fn pause(&self, _at_most: Duration) -> BoxFuture<'_, ()> {
        Box::pin(tokio::task::yield_now())
    }
}

impl Session for FlakySession {
    fn version(&mut self) -> BoxFuture<'_, Result<Version, StoreError>> {
        self.inner.version()
    }

    fn get<'a>(
        &'a mut self,
        keys: &'a [Vec<u8>],
    ) -> BoxFuture<'a, Result<Vec<Option<Vec<u8>>>, StoreError>> {
        self.inner.get(keys)
    }

    fn range<'a>(&'a mut self, read: &'a RangeRead) -> BoxFuture<'a, Result<RawPage, StoreError>> {
        self.inner.range(read)
    }

    fn commit(
        mut self: Box<Self>,
        commit: Commit,
    ) -> BoxFuture<'static, Result<Version, StoreError>> {
        Box::pin(async move {
            let lost = || Err(StoreError::Unknown("the answer was lost".into()));
            match self.fate.below(ONE_IN) {
                0 => lost(),
                1 => {
                    self.inner.commit(commit).await?;
                    lost()
                }
                2 => Err(StoreError::Conflict),
                _ => self.inner.commit(commit).await,
            }
        })
    }
}
