//! Watches: every change once, in order, whole.

use std::collections::BTreeMap;
use std::time::Duration;

use millpond_env::Rng;
use millpond_store::{
    ChangeBatch, ChangeStream, Follow, Followed, KeyRange, RangeOptions, Store, StoreError, Version,
};
use millpond_types::limits::STORE_VALUE_BYTES_MAX;
use tokio::time::timeout;

use crate::conformance::{Fixture, delete, put};

/// A timeout that only a missing change reaches.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn next(watch: &mut Box<dyn ChangeStream>) -> ChangeBatch {
    timeout(PATIENCE, watch.next()).await.expect("a change is missing").unwrap()
}

/// A batch as text: `key=value`, or `-key` for a deletion.
fn text(batch: &ChangeBatch) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let change = |change: &millpond_store::Change| match &change.value {
        Some(value) => format!("{}={}", text(&change.key), text(value)),
        None => format!("-{}", text(&change.key)),
    };
    let mut all: Vec<String> = batch.changes.iter().map(change).collect();
    all.sort();
    all
}

pub(crate) async fn changes_come_in_order(f: Fixture) {
    let start = put(&f.store, &[("w/0", "before")]).await;
    let mut watch = f.other.watch(KeyRange::prefix(b"w/"), start).await.unwrap();
    let mut versions = vec![start];
    for n in 1..20 {
        versions.push(put(&f.store, &[("w/a", &n.to_string())]).await);
    }
    versions.push(delete(&f.store, &["w/a"]).await);
    for (n, version) in (1..20).zip(&versions[1..]) {
        let batch = next(&mut watch).await;
        assert_eq!(batch.version, *version);
        assert_eq!(text(&batch), [format!("w/a={n}")]);
    }
    let batch = next(&mut watch).await;
    assert_eq!((batch.version, text(&batch)), (versions[20], vec!["-w/a".to_owned()]));
}

pub(crate) async fn a_transaction_comes_whole(f: Fixture) {
    let start = put(&f.store, &[("w/gone", "1")]).await;
    let mut watch = f.store.watch(KeyRange::prefix(b"w/"), start).await.unwrap();
    let txn = f.other.begin();
    for n in 0..50 {
        txn.put(format!("w/{n:02}").as_bytes(), "1").unwrap();
    }
    txn.delete(b"w/gone").unwrap();
    let version = txn.commit().await.unwrap();
    let batch = next(&mut watch).await;
    assert_eq!((batch.version, batch.changes.len()), (version, 51));
    assert_eq!(text(&batch)[0], "-w/gone");
}

pub(crate) async fn large_transactions_come_whole(f: Fixture) {
    let start = put(&f.store, &[("a", "1")]).await;
    let mut versions = Vec::new();
    for n in 0..6 {
        let txn = f.store.begin();
        for key in 0..16 {
            txn.put(format!("w/{key}").as_bytes(), vec![n; 60_000]).unwrap();
        }
        versions.push(txn.commit().await.unwrap());
    }
    // A late watch gets more than etcd puts into one message, cut anywhere.
    let mut watch = f.other.watch(KeyRange::prefix(b"w/"), start).await.unwrap();
    for version in versions {
        let batch = next(&mut watch).await;
        assert_eq!((batch.version, batch.changes.len()), (version, 16));
    }
}

pub(crate) async fn a_watch_goes_on_where_it_was(f: Fixture) {
    let range = KeyRange::prefix(b"w/");
    let start = put(&f.store, &[("w/0", "0")]).await;
    let mut after = start;
    for n in 0..10 {
        put(&f.store, &[("w/0", &n.to_string())]).await;
        // A new watch each time, from the version of the last change that was seen.
        let mut watch = f.other.watch(range.clone(), after).await.unwrap();
        let batch = next(&mut watch).await;
        assert_eq!(text(&batch), [format!("w/0={n}")]);
        assert!(timeout(Duration::from_millis(20), watch.next()).await.is_err(), "nothing more");
        after = batch.version;
    }
    let mut all = f.other.watch(range, start).await.unwrap();
    for n in 0..10 {
        assert_eq!(text(&next(&mut all).await), [format!("w/0={n}")]);
    }
}

pub(crate) async fn a_watch_sees_its_range_only(f: Fixture) {
    let start = put(&f.store, &[("a", "1")]).await;
    let mut watch = f.store.watch(KeyRange::new(*b"b", *b"d"), start).await.unwrap();
    put(&f.store, &[("a", "2"), ("b", "2"), ("d", "2")]).await;
    put(&f.store, &[("a", "3"), ("d", "3")]).await;
    delete(&f.store, &["a"]).await;
    put(&f.store, &[("c", "4"), ("cc", "4")]).await;
    assert_eq!(text(&next(&mut watch).await), ["b=2"]);
    assert_eq!(text(&next(&mut watch).await), ["c=4", "cc=4"]);
}

/// A copy of a range, kept by following it.
pub(crate) struct Copy {
    follow: Follow,
    pub(crate) state: BTreeMap<Vec<u8>, Vec<u8>>,
    version: Version,
    /// How many times the whole state came.
    pub(crate) states: u32,
}

impl Copy {
    pub(crate) fn new(store: &Store, range: &KeyRange) -> Self {
        let follow = store.follow(range.clone());
        Self { follow, state: BTreeMap::new(), version: Version(0), states: 0 }
    }

    pub(crate) async fn step(&mut self) -> Result<(), StoreError> {
        match timeout(PATIENCE, self.follow.next()).await.expect("a change is missing")? {
            Followed::State { version, entries } => {
                assert!(version >= self.version, "states do not go back");
                self.version = version;
                self.state = entries.into_iter().collect();
                self.states += 1;
            }
            Followed::Changes(batch) => {
                assert!(batch.version > self.version, "changes come in order");
                self.version = batch.version;
                for change in batch.changes {
                    match change.value {
                        Some(value) => self.state.insert(change.key, value),
                        None => self.state.remove(&change.key),
                    };
                }
            }
        }
        Ok(())
    }

    /// Follows until there is a key `end`.
    pub(crate) async fn until(&mut self, end: &[u8]) -> Result<(), StoreError> {
        while !self.state.contains_key(end) {
            self.step().await?;
        }
        Ok(())
    }
}

pub(crate) async fn a_follower_that_was_away_catches_up(f: Fixture) {
    let range = KeyRange::prefix(b"w/");
    put(&f.store, &[("w/old", "1"), ("w/gone", "1")]).await;
    let mut copy = Copy::new(&f.other, &range);
    copy.step().await.unwrap();
    assert_eq!(copy.state.len(), 2);
    delete(&f.store, &["w/gone"]).await;
    // More than the embedded engine keeps for watchers: the state comes again.
    for n in 0..40 {
        let txn = f.store.begin();
        txn.put(format!("w/{n:02}").as_bytes(), vec![n; STORE_VALUE_BYTES_MAX]).unwrap();
        txn.commit().await.unwrap();
    }
    put(&f.store, &[("w/end", "")]).await;
    copy.until(b"w/end").await.unwrap();
    assert_eq!(copy.state.len(), 42, "without what was deleted meanwhile");
}

pub(crate) async fn no_change_is_missed(f: Fixture) {
    let range = KeyRange::prefix(b"w/");
    let followers: Vec<_> = (0..4)
        .map(|n| {
            let (store, range) = (f.other.clone(), range.clone());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(30 * n)).await;
                let mut copy = Copy::new(&store, &range);
                copy.until(b"w/end").await.unwrap();
                copy.state
            })
        })
        .collect();
    let writers: Vec<_> = (0..3)
        .map(|seed| {
            let store = f.store.clone();
            tokio::spawn(async move {
                let mut rng = Rng::new(seed);
                for n in 0..60_u32 {
                    let txn = store.begin();
                    let key = [b"w/", &rng.below(8).to_le_bytes()[..1]].concat();
                    if rng.chance(1, 3) {
                        txn.delete(&key).unwrap();
                    } else {
                        txn.put(&key, n.to_le_bytes()).unwrap();
                    }
                    txn.commit().await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    put(&f.store, &[("w/end", "")]).await;
    let txn = f.store.begin();
    let found = txn.range_all(&range, RangeOptions::default()).await.unwrap();
    let found: BTreeMap<_, _> = found.into_iter().collect();
    for follower in followers {
        assert_eq!(follower.await.unwrap(), found);
    }
    assert!(f.store.begin().version().await.unwrap() > Version(0));
}
