//! Reading, writing, paging and bounds.

use std::collections::BTreeMap;
use std::ops::Bound;

use millpond_env::Rng;
use millpond_store::{KeyRange, Page, RangeOptions, StoreError, StoreErrorKind, Version};
use millpond_types::limits::{
    STORE_KEY_BYTES_MAX, STORE_TXN_BYTES_MAX, STORE_TXN_CONFLICTS_MAX, STORE_TXN_WRITES_MAX,
    STORE_VALUE_BYTES_MAX,
};

use crate::conformance::{Fixture, delete, get, kind, now, put};

pub(crate) async fn what_is_written_is_read(f: Fixture) {
    put(&f.store, &[("a", "1"), ("b", ""), ("c", "3")]).await;
    assert_eq!(now(&f.other, "a").await.as_deref(), Some("1"));
    assert_eq!(now(&f.other, "b").await.as_deref(), Some(""), "empty is not absent");
    assert_eq!(now(&f.other, "d").await, None);
    put(&f.other, &[("a", "2")]).await;
    delete(&f.other, &["c", "never"]).await;
    assert_eq!(now(&f.store, "a").await.as_deref(), Some("2"));
    assert_eq!(now(&f.store, "c").await, None);
    let odd = [1_u8, 0, 0xff, 0, b'/', 0xfe];
    let txn = f.store.begin();
    txn.put(&odd, vec![0, 0xff]).unwrap();
    txn.commit().await.unwrap();
    assert_eq!(f.other.begin().get(&odd).await.unwrap(), Some(vec![0, 0xff]));
}

pub(crate) async fn own_writes_are_seen(f: Fixture) {
    put(&f.store, &[("d/1", "old"), ("d/2", "old"), ("d/3", "old")]).await;
    let txn = f.store.begin();
    txn.put(b"d/0", "new").unwrap();
    txn.delete(b"d/2").unwrap();
    txn.put(b"d/3", "new").unwrap();
    assert_eq!(get(&txn, "d/0").await.as_deref(), Some("new"));
    assert_eq!(get(&txn, "d/2").await, None);
    let found = txn.range_all(&KeyRange::prefix(b"d/"), RangeOptions::limit(1)).await.unwrap();
    let text: Vec<_> = found.iter().map(|(_, value)| String::from_utf8_lossy(value)).collect();
    assert_eq!(text, ["new", "old", "new"]);
    txn.put(b"d/2", "again").unwrap();
    assert_eq!(get(&txn, "d/2").await.as_deref(), Some("again"));
    txn.commit().await.unwrap();
    assert_eq!(now(&f.other, "d/2").await.as_deref(), Some("again"));
}

pub(crate) async fn nothing_is_written_without_commit(f: Fixture) {
    let txn = f.store.begin();
    txn.put(b"a", "1").unwrap();
    drop(txn);
    assert_eq!(now(&f.store, "a").await, None);
    let failed: Result<(), StoreError> = f
        .store
        .transact(|txn| async move {
            txn.put(b"a", "1")?;
            Err(StoreError::Expired)
        })
        .await;
    assert_eq!(kind(failed), Some(StoreErrorKind::Expired));
    assert_eq!(now(&f.store, "a").await, None);
}

pub(crate) async fn pages_in_order(f: Fixture) {
    let keys: Vec<String> = (0..250).map(|n| format!("k/{n:03}")).collect();
    for part in keys.chunks(100) {
        let pairs: Vec<_> = part.iter().map(|key| (key.as_str(), "v")).collect();
        put(&f.store, &pairs).await;
    }
    put(&f.store, &[("j", "v"), ("k", "v"), ("k0", "v")]).await;
    let range = KeyRange::prefix(b"k/");
    for (limit, reverse) in [(1000, false), (7, false), (7, true), (250, true), (0, false)] {
        let txn = f.other.begin();
        let mut found = Vec::new();
        let mut rest = Some(range.clone());
        let options = RangeOptions { limit, reverse, snapshot: true };
        while let Some(range) = rest {
            let page = txn.range(&range, options).await.unwrap();
            assert!(page.entries.len() <= limit.max(1));
            found.extend(page.entries.into_iter().map(|(key, _)| String::from_utf8(key).unwrap()));
            rest = page.rest;
        }
        if reverse {
            found.reverse();
        }
        assert_eq!(found, keys, "limit {limit}, reverse {reverse}");
    }
    let empty = KeyRange::new(*b"z", *b"a");
    assert_eq!(
        f.store.begin().range(&empty, RangeOptions::default()).await.unwrap(),
        Page::default()
    );
}

pub(crate) async fn an_ended_transaction_refuses(f: Fixture) {
    put(&f.store, &[("a", "1")]).await;
    let txn = f.store.begin();
    let same = txn.clone();
    txn.get(b"a").await.unwrap();
    same.put(b"b", "1").unwrap();
    txn.commit().await.unwrap();
    assert_eq!(now(&f.store, "b").await.as_deref(), Some("1"));
    let ended = Some(StoreErrorKind::Unavailable);
    assert_eq!(kind(same.get(b"a").await), ended);
    assert_eq!(kind(same.put(b"c", "1")), ended);
    assert_eq!(kind(same.commit().await), ended);
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn random_key(rng: &mut Rng) -> Vec<u8> {
    let mut key = vec![b'a' + u8::try_from(rng.below(3)).unwrap()];
    (0..rng.below(3)).for_each(|_| key.push([0, 0xff, b'x'][rng.index(3)]));
    key
}

/// One transaction of random steps on both; the model changes only if it will be committed.
async fn random_transaction(f: &Fixture, rng: &mut Rng, model: &mut Model) {
    let txn = f.store.begin();
    let mut draft = model.clone();
    for _ in 0..rng.below(12) {
        let key = random_key(rng);
        match rng.below(5) {
            0 | 1 => {
                let value = vec![0; rng.index(4)];
                txn.put(&key, value.clone()).unwrap();
                draft.insert(key, value);
            }
            2 => {
                txn.delete(&key).unwrap();
                draft.remove(&key);
            }
            3 => assert_eq!(txn.get(&key).await.unwrap(), draft.get(&key).cloned()),
            _ => {
                let (reverse, limit) = (rng.chance(1, 2), 1 + rng.index(5));
                let range = KeyRange::new(key, random_key(rng));
                let options = RangeOptions { limit, reverse, snapshot: rng.chance(1, 2) };
                let found = txn.range_all(&range, options).await.unwrap();
                assert_eq!(found, model_range(&draft, &range, reverse), "{range:?} {options:?}");
            }
        }
    }
    if rng.chance(3, 4) {
        txn.commit().await.unwrap();
        *model = draft;
    }
}

fn model_range(model: &Model, range: &KeyRange, reverse: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
    if range.is_empty() {
        return Vec::new();
    }
    let bounds = (Bound::Included(range.start.clone()), Bound::Excluded(range.end.clone()));
    let found = model.range::<Vec<u8>, _>(bounds).map(|(k, v)| (k.clone(), v.clone()));
    if reverse { found.rev().collect() } else { found.collect() }
}

pub(crate) async fn random_operations_agree_with_a_model(f: Fixture) {
    let mut rng = Rng::new(11);
    let mut model = Model::new();
    for _ in 0..120 {
        random_transaction(&f, &mut rng, &mut model).await;
    }
    let all = f.other.begin().range_all(&KeyRange::all(), RangeOptions::default()).await.unwrap();
    assert_eq!(all, model.into_iter().collect::<Vec<_>>());
}

fn assert_named<T: std::fmt::Debug>(result: Result<T, StoreError>, what: &str, bound: usize) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::TooLarge);
    let text = error.to_string();
    assert!(text.contains(what) && text.contains(&bound.to_string()), "{text}");
}

pub(crate) async fn bounds_are_named(f: Fixture) {
    let txn = f.store.begin();
    let long = vec![b'k'; STORE_KEY_BYTES_MAX + 1];
    assert_named(txn.put(&long, ""), "bytes of a key", STORE_KEY_BYTES_MAX);
    assert_named(txn.get(&long).await, "bytes of a key", STORE_KEY_BYTES_MAX);
    let large = vec![0; STORE_VALUE_BYTES_MAX + 1];
    assert_named(txn.put(b"k", large), "bytes of a value", STORE_VALUE_BYTES_MAX);
    for n in 0..STORE_TXN_WRITES_MAX {
        txn.put(format!("k{n}").as_bytes(), "").unwrap();
    }
    assert_named(txn.put(b"more", ""), "writes of a transaction", STORE_TXN_WRITES_MAX);
    txn.put(b"k0", "again").expect("a key counts once");
    assert_named(txn.delete(b"k0"), "writes of a transaction", STORE_TXN_WRITES_MAX);

    let txn = f.store.begin();
    for n in 0..STORE_TXN_CONFLICTS_MAX {
        txn.get(format!("k{n}").as_bytes()).await.unwrap();
    }
    assert_named(txn.get(b"more").await, "conflicts of a transaction", STORE_TXN_CONFLICTS_MAX);
    txn.get_snapshot(b"more").await.expect("without a conflict there is no bound");

    let txn = f.store.begin();
    txn.put(b"1", vec![0; STORE_VALUE_BYTES_MAX]).unwrap();
    let rest = STORE_TXN_BYTES_MAX - STORE_VALUE_BYTES_MAX - 2;
    assert_named(txn.put(b"2", vec![0; rest + 1]), "bytes of a transaction", STORE_TXN_BYTES_MAX);
}

pub(crate) async fn the_largest_transactions_pass(f: Fixture) {
    // As many writes and conflicts as allowed, by points and by ranges, then as many bytes.
    let txn = f.store.begin();
    for n in 0..STORE_TXN_CONFLICTS_MAX / 2 - 1 {
        txn.range(&KeyRange::prefix(format!("r{n}/").as_bytes()), RangeOptions::default())
            .await
            .unwrap();
    }
    let keys: Vec<String> = (0..STORE_TXN_WRITES_MAX / 2).map(|n| format!("k{n}")).collect();
    txn.get(b"a").await.unwrap();
    txn.get(b"b").await.unwrap();
    for key in &keys {
        txn.delete(key.as_bytes()).unwrap();
    }
    txn.commit().await.unwrap();

    let txn = f.store.begin();
    for n in 0..STORE_TXN_WRITES_MAX {
        let key = format!("k{n}");
        txn.get(key.as_bytes()).await.unwrap();
        txn.put(key.as_bytes(), "1").unwrap();
    }
    txn.commit().await.unwrap();

    let txn = f.store.begin();
    txn.put(b"1", vec![1; STORE_VALUE_BYTES_MAX]).unwrap();
    txn.put(b"2", vec![2; STORE_TXN_BYTES_MAX - STORE_VALUE_BYTES_MAX - 2]).unwrap();
    txn.commit().await.unwrap();

    // Pages of large values, more than fit into one answer of etcd.
    for n in 0..40 {
        let txn = f.store.begin();
        txn.put(format!("large/{n:02}").as_bytes(), vec![n; STORE_VALUE_BYTES_MAX]).unwrap();
        txn.commit().await.unwrap();
    }
    let txn = f.store.begin();
    let found = txn.range_all(&KeyRange::prefix(b"large/"), RangeOptions::default()).await.unwrap();
    assert_eq!(found.len(), 40);
    assert!(found.iter().zip(0..).all(|((_, value), n)| value[0] == n));
}

pub(crate) async fn reserved_keys_are_refused(f: Fixture) {
    let txn = f.store.begin();
    for key in [&b""[..], b"\xff", b"\xffr"] {
        assert_eq!(kind(txn.put(key, "1")), Some(StoreErrorKind::TooLarge));
        assert_eq!(kind(txn.delete(key)), Some(StoreErrorKind::TooLarge));
        assert_eq!(kind(txn.get(key).await), Some(StoreErrorKind::TooLarge));
    }
    let range = KeyRange::new(*b"a", *b"\xff\xff");
    assert!(txn.range(&range, RangeOptions::default()).await.is_err());
    assert!(f.store.watch(range, Version(0)).await.is_err());
}

pub(crate) async fn versions_grow(f: Fixture) {
    let before = f.store.begin().version().await.unwrap();
    let first = put(&f.store, &[("a", "1")]).await;
    let second = put(&f.other, &[("a", "2")]).await;
    assert!(before < first && first < second);
    let txn = f.store.begin();
    assert!(txn.version().await.unwrap() >= second, "what was acknowledged is seen");
    get(&txn, "a").await;
    let at = txn.version().await.unwrap();
    let third = put(&f.other, &[("a", "3")]).await;
    assert_eq!(txn.version().await.unwrap(), at, "a transaction stays at its version");
    assert!(txn.commit().await.unwrap() < third);
}

pub(crate) async fn transactions_run_in_tasks(f: Fixture) {
    // Compiling is half of the test: the futures move between threads.
    let tasks: Vec<_> = (0..4)
        .map(|n: u8| {
            let store = f.store.clone();
            tokio::spawn(async move {
                store
                    .transact(|txn| async move {
                        txn.get(b"shared").await?;
                        txn.put(&[b't', n], vec![n])?;
                        Ok::<_, StoreError>(n)
                    })
                    .await
            })
        })
        .collect();
    for (n, task) in (0_u8..).zip(tasks) {
        assert_eq!(task.await.unwrap().unwrap(), n);
        assert_eq!(f.other.begin().get(&[b't', n]).await.unwrap(), Some(vec![n]));
    }
}
