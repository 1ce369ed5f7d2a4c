//! The engine in memory.

use std::sync::Arc;

use millpond_store::{MemoryBackend, Store};

use crate::conformance::{Fixture, run_all};
use crate::histories;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conforms() {
    run_all(|_| {
        let store = Store::new(Arc::new(MemoryBackend::default()));
        std::future::ready(Fixture { other: store.clone(), store })
    })
    .await;
}

/// An engine with commits that ignore a part of the read set: the checker must notice.
mod mutants {
    use std::time::Duration;

    use millpond_store::{
        Backend, BoxFuture, ChangeStream, Commit, KeyRange, MemoryBackend, RangeRead, RawPage,
        ReadSet, Session, StoreError, Version,
    };

    #[derive(Clone, Copy, Debug)]
    pub(super) enum Blind {
        Keys,
        Ranges,
    }

    #[derive(Debug)]
    pub(super) struct Mutant(pub(super) MemoryBackend, pub(super) Blind);

    struct MutantSession(Box<dyn Session>, Blind);

    impl Backend for Mutant {
        fn begin(&self) -> Box<dyn Session> {
            Box::new(MutantSession(self.0.begin(), self.1))
        }
        fn watch(
            &self,
            range: KeyRange,
            after: Version,
        ) -> BoxFuture<'_, Result<Box<dyn ChangeStream>, StoreError>> {
            self.0.watch(range, after)
        }
        fn pause(&self, at_most: Duration) -> BoxFuture<'_, ()> {
            self.0.pause(at_most)
        }
    }

    impl Session for MutantSession {
        fn version(&mut self) -> BoxFuture<'_, Result<Version, StoreError>> {
            self.0.version()
        }
        fn get<'a>(
            &'a mut self,
            keys: &'a [Vec<u8>],
        ) -> BoxFuture<'a, Result<Vec<Option<Vec<u8>>>, StoreError>> {
            // Yields like a network call, so that transactions overlap.
            Box::pin(async {
                tokio::task::yield_now().await;
                self.0.get(keys).await
            })
        }
        fn range<'a>(
            &'a mut self,
            read: &'a RangeRead,
        ) -> BoxFuture<'a, Result<RawPage, StoreError>> {
            Box::pin(async {
                tokio::task::yield_now().await;
                self.0.range(read).await
            })
        }
        fn commit(
            self: Box<Self>,
            commit: Commit,
        ) -> BoxFuture<'static, Result<Version, StoreError>> {
            let mut reads = ReadSet::default();
            match self.1 {
                Blind::Keys => commit.reads.ranges().for_each(|(start, end)| {
                    reads.add_range(&KeyRange::new(start, end));
                }),
                Blind::Ranges => commit.reads.keys().for_each(|key| reads.add_key(key)),
            }
            self.0.commit(Commit { reads, writes: commit.writes })
        }
    }
}

#[tokio::test]
async fn the_checker_notices_a_blind_engine() {
    for blind in [mutants::Blind::Keys, mutants::Blind::Ranges] {
        let store = Store::new(Arc::new(mutants::Mutant(MemoryBackend::default(), blind)));
        let stores = [store.clone(), store];
        let run = tokio::spawn(histories::run(stores, 8, 60, 3)).await;
        assert!(run.is_err(), "an engine blind for {blind:?} passed");
    }
}
