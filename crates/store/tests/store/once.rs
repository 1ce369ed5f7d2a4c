//! The loops that repeat transactions: after conflicts, and exactly once after lost answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use millpond_store::{
    Backend, BoxFuture, ChangeStream, Commit, KeyRange, MemoryBackend, RangeOptions, RangeRead,
    RawPage, RequestId, Session, Store, StoreError, StoreErrorKind, Version,
};
use millpond_types::limits::STORE_ATTEMPTS_MAX;

use crate::conformance::{Fixture, kind, now, put};

async fn increment(store: &Store, key: &str) -> Result<u64, StoreError> {
    store
        .transact(|txn| async move {
            let old = txn.get(key.as_bytes()).await?;
            let new = old.map_or(0, |old| String::from_utf8(old).unwrap().parse().unwrap()) + 1;
            txn.put(key.as_bytes(), new.to_string())?;
            Ok(new)
        })
        .await
}

pub(crate) async fn increments_are_never_lost(f: Fixture) {
    let tasks: Vec<_> = (0..4)
        .map(|task| {
            let store = if task % 2 == 0 { f.store.clone() } else { f.other.clone() };
            tokio::spawn(async move {
                let mut done = 0;
                while done < 25 {
                    match increment(&store, "count").await {
                        Ok(_) => done += 1,
                        // So many conflicts in a row are bad luck, not a fault.
                        Err(error) => assert_eq!(error.kind(), StoreErrorKind::Conflict),
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(now(&f.store, "count").await.as_deref(), Some("100"));
}

pub(crate) async fn attempts_are_bounded(f: Fixture) {
    let mut attempts = 0;
    let result: Result<(), StoreError> = f
        .store
        .transact(|txn| {
            attempts += 1;
            let other = &f.other;
            async move {
                txn.get(b"a").await?;
                put(other, &[("a", "theirs")]).await;
                txn.put(b"a", "ours")
            }
        })
        .await;
    assert_eq!(kind(result), Some(StoreErrorKind::Conflict));
    assert_eq!(attempts, STORE_ATTEMPTS_MAX);
}

pub(crate) async fn a_request_happens_once(f: Fixture) {
    let request = RequestId { epoch: 5, id: 77 };
    let mut runs = 0;
    for repeated in [false, true, true] {
        let reply = f
            .store
            .transact_once(request, |txn| {
                runs += 1;
                async move {
                    txn.put(format!("made/{runs}").as_bytes(), "")?;
                    Ok::<_, StoreError>(vec![runs])
                }
            })
            .await
            .unwrap();
        assert_eq!((reply.bytes, reply.repeated), (vec![1], repeated));
    }
    let txn = f.other.begin();
    let made = txn.range(&KeyRange::prefix(b"made/"), RangeOptions::default()).await.unwrap();
    assert_eq!(made.entries.len(), 1);
    let other = RequestId { epoch: 5, id: 78 };
    let reply =
        f.other.transact_once(other, |_| async { Ok::<_, StoreError>(vec![]) }).await.unwrap();
    assert!(!reply.repeated, "another id is another request");
}

pub(crate) async fn own_errors_are_not_recorded(f: Fixture) {
    let request = RequestId { epoch: 5, id: 1 };
    let failed = f.store.transact_once(request, |txn| async move {
        txn.put(b"a", "1")?;
        Err::<Vec<u8>, _>(StoreError::BadKey)
    });
    assert_eq!(kind(failed.await), Some(StoreErrorKind::TooLarge));
    let reply = f.store.transact_once(request, |_| async { Ok::<_, StoreError>(vec![9]) }).await;
    assert_eq!(reply.unwrap().bytes, [9]);
    assert_eq!(now(&f.store, "a").await, None);
}

pub(crate) async fn forgotten_requests_are_refused(f: Fixture) {
    let id = |epoch| RequestId { epoch, id: u128::from(epoch) << 64 };
    for epoch in 0..70 {
        f.store.transact_once(id(epoch), |_| async { Ok::<_, StoreError>(vec![]) }).await.unwrap();
    }
    assert!(f.other.has_requests_since(69).await.unwrap());
    assert!(!f.other.has_requests_since(70).await.unwrap());
    assert!(f.other.is_done(id(3)).await.unwrap() && !f.other.is_done(id(70)).await.unwrap());
    f.other.forget_requests(65).await.unwrap();
    assert!(!f.other.is_done(id(64)).await.unwrap() && f.other.is_done(id(65)).await.unwrap());
    f.store.forget_requests(30).await.expect("a floor never falls");
    let again = |epoch| f.store.transact_once(id(epoch), |_| async { Ok(vec![]) });
    for epoch in [0, 29, 30, 64] {
        assert_eq!(kind(again(epoch).await), Some(StoreErrorKind::Expired), "{epoch}");
    }
    assert!(again(65).await.unwrap().repeated);
    assert!(!again(70).await.unwrap().repeated);
}

/// Loses the answers of some commits: after they were done, or before.
#[derive(Debug)]
struct Lossy {
    inner: MemoryBackend,
    commits: Arc<AtomicU32>,
}

struct LossySession {
    inner: Box<dyn Session>,
    commits: Arc<AtomicU32>,
}

impl Backend for Lossy {
    fn begin(&self) -> Box<dyn Session> {
        Box::new(LossySession { inner: self.inner.begin(), commits: Arc::clone(&self.commits) })
    }
    fn watch(
        &self,
        range: KeyRange,
        after: Version,
    ) -> BoxFuture<'_, Result<Box<dyn ChangeStream>, StoreError>> {
        self.inner.watch(range, after)
    }
    fn pause(&self, at_most: Duration) -> BoxFuture<'_, ()> {
        self.inner.pause(at_most)
    }
}

impl Session for LossySession {
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
    fn commit(self: Box<Self>, commit: Commit) -> BoxFuture<'static, Result<Version, StoreError>> {
        let number = self.commits.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let lost = || StoreError::Unknown("the answer was lost".into());
            match number % 3 {
                0 => Err(lost()),
                1 => self.inner.commit(commit).await.and(Err(lost())),
                _ => self.inner.commit(commit).await,
            }
        })
    }
}

fn lossy() -> Store {
    Store::new(Arc::new(Lossy { inner: MemoryBackend::default(), commits: Arc::default() }))
}

#[tokio::test]
async fn lost_answers_do_not_do_it_twice() {
    let store = lossy();
    for id in 0..50 {
        store
            .transact_once(RequestId { epoch: 1, id }, |txn| async move {
                let old = txn.get(b"count").await?.map_or(0, |old| old[0]);
                txn.put(b"count", vec![old + 1])?;
                Ok::<_, StoreError>(vec![old + 1])
            })
            .await
            .unwrap();
    }
    assert_eq!(store.begin().get(b"count").await.unwrap(), Some(vec![50]));
}

#[tokio::test]
async fn a_lost_answer_is_the_callers_without_a_request_id() {
    let store = lossy();
    let mut runs = 0;
    let result: Result<(), StoreError> = store
        .transact(|txn| {
            runs += 1;
            async move { txn.put(b"a", "1") }
        })
        .await;
    assert_eq!(kind(result), Some(StoreErrorKind::Unknown));
    assert_eq!(runs, 1, "it is not repeated behind the caller's back");
}
