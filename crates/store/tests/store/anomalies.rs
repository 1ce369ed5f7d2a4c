//! Every anomaly that serializability forbids, made on purpose with two transactions. The second
//! commit of each pair must be refused.

use millpond_store::{KeyRange, RangeOptions, StoreErrorKind, Transaction};

use crate::conformance::{Fixture, delete, get, kind, now, put};

const CONFLICT: Option<StoreErrorKind> = Some(StoreErrorKind::Conflict);

fn prefix(text: &str) -> KeyRange {
    KeyRange::prefix(text.as_bytes())
}

async fn names(txn: &Transaction, prefix: &str) -> Vec<String> {
    let range = KeyRange::prefix(prefix.as_bytes());
    let found = txn.range_all(&range, RangeOptions::default()).await.unwrap();
    found.into_iter().map(|(key, _)| String::from_utf8(key).unwrap()).collect()
}

pub(crate) async fn lost_update(f: Fixture) {
    put(&f.store, &[("a", "0")]).await;
    let (one, two) = (f.store.begin(), f.other.begin());
    assert_eq!(get(&one, "a").await, get(&two, "a").await);
    one.put(b"a", "1").unwrap();
    two.put(b"a", "2").unwrap();
    one.commit().await.unwrap();
    assert_eq!(kind(two.commit().await), CONFLICT);
    assert_eq!(now(&f.store, "a").await.as_deref(), Some("1"));
}

pub(crate) async fn write_skew(f: Fixture) {
    put(&f.store, &[("a", "1"), ("b", "1")]).await;
    let (one, two) = (f.store.begin(), f.other.begin());
    for txn in [&one, &two] {
        assert!(get(txn, "a").await.is_some() && get(txn, "b").await.is_some());
    }
    one.put(b"a", "0").unwrap();
    two.put(b"b", "0").unwrap();
    one.commit().await.unwrap();
    assert_eq!(kind(two.commit().await), CONFLICT);
}

pub(crate) async fn write_skew_by_range(f: Fixture) {
    // Two bookings of one room: each looks for others and finds none.
    let (one, two) = (f.store.begin(), f.other.begin());
    assert!(names(&one, "room/").await.is_empty());
    assert!(names(&two, "room/").await.is_empty());
    one.put(b"room/9h", "one").unwrap();
    two.put(b"room/10h", "two").unwrap();
    one.commit().await.unwrap();
    assert_eq!(kind(two.commit().await), CONFLICT);
}

/// A transaction that has read `d/` with its three keys.
async fn range_read(f: &Fixture) -> Transaction {
    put(&f.store, &[("d/b", "1"), ("d/m", "1"), ("d/x", "1")]).await;
    let txn = f.store.begin();
    assert_eq!(names(&txn, "d/").await, ["d/b", "d/m", "d/x"]);
    txn.put(b"count", "3").unwrap();
    txn
}

pub(crate) async fn phantom_by_insert(f: Fixture) {
    for key in ["d/a", "d/c", "d/zz"] {
        let txn = range_read(&f).await;
        put(&f.other, &[(key, "1")]).await;
        assert_eq!(kind(txn.commit().await), CONFLICT, "{key}");
        delete(&f.store, &[key]).await;
    }
}

pub(crate) async fn phantom_by_delete(f: Fixture) {
    for keys in [&["d/b"][..], &["d/m"], &["d/x"], &["d/b", "d/m", "d/x"]] {
        let txn = range_read(&f).await;
        delete(&f.other, keys).await;
        assert_eq!(kind(txn.commit().await), CONFLICT, "{keys:?}");
    }
    delete(&f.other, &["d/a"]).await;
    let txn = range_read(&f).await;
    assert_eq!(kind(txn.commit().await), None, "what was deleted before is no conflict");
}

pub(crate) async fn phantom_by_delete_and_insert_of_another(f: Fixture) {
    let txn = range_read(&f).await;
    // The number of keys stays: counting them would miss the change.
    let swap = f.other.begin();
    swap.delete(b"d/m").unwrap();
    swap.put(b"d/n", "1").unwrap();
    swap.commit().await.unwrap();
    assert_eq!(kind(txn.commit().await), CONFLICT);
}

pub(crate) async fn phantom_by_update(f: Fixture) {
    let txn = range_read(&f).await;
    put(&f.other, &[("d/m", "2")]).await;
    assert_eq!(kind(txn.commit().await), CONFLICT);
    let txn = range_read(&f).await;
    put(&f.other, &[("c", "1"), ("d", "1"), ("e", "1")]).await;
    delete(&f.other, &["c", "d", "e"]).await;
    assert_eq!(kind(txn.commit().await), None, "outside of the range is no conflict");
}

pub(crate) async fn absent_key_appears(f: Fixture) {
    let txn = f.store.begin();
    assert_eq!(get(&txn, "new").await, None);
    put(&f.other, &[("new", "theirs")]).await;
    txn.put(b"new", "ours").unwrap();
    assert_eq!(kind(txn.commit().await), CONFLICT);
    assert_eq!(now(&f.store, "new").await.as_deref(), Some("theirs"));
}

pub(crate) async fn deleted_and_made_again(f: Fixture) {
    put(&f.store, &[("a", "1")]).await;
    let txn = f.store.begin();
    get(&txn, "a").await;
    delete(&f.other, &["a"]).await;
    let late = f.store.begin();
    assert_eq!(get(&late, "a").await, None);
    put(&f.other, &[("a", "1")]).await;
    for txn in [txn, late] {
        txn.put(b"seen", "1").unwrap();
        assert_eq!(kind(txn.commit().await), CONFLICT, "an equal value is another one");
    }
}

pub(crate) async fn reader_sees_one_state(f: Fixture) {
    put(&f.store, &[("a", "1"), ("b", "1"), ("d/1", "1")]).await;
    let txn = f.store.begin();
    assert_eq!(get(&txn, "a").await.as_deref(), Some("1"));
    put(&f.other, &[("a", "2"), ("b", "2"), ("d/2", "1")]).await;
    delete(&f.other, &["d/1"]).await;
    assert_eq!(get(&txn, "a").await.as_deref(), Some("1"), "reads can be repeated");
    assert_eq!(get(&txn, "b").await.as_deref(), Some("1"), "all reads see one state");
    let keys: [&[u8]; 3] = [b"b", b"a", b"none"];
    let many = txn.get_many(&keys).await.unwrap();
    assert_eq!(many, [Some(b"1".to_vec()), Some(b"1".to_vec()), None]);
    assert_eq!(names(&txn, "d/").await, ["d/1"]);
    txn.commit().await.expect("a transaction that only reads always commits");
}

pub(crate) async fn dirty_read(f: Fixture) {
    let writer = f.store.begin();
    writer.put(b"a", "1").unwrap();
    assert_eq!(get(&writer, "a").await.as_deref(), Some("1"));
    let reader = f.other.begin();
    assert_eq!(get(&reader, "a").await, None, "what is not committed is seen by nobody");
    writer.commit().await.unwrap();
    assert_eq!(get(&reader, "a").await, None);
    assert_eq!(now(&f.other, "a").await.as_deref(), Some("1"), "what is committed, by everybody");
}

pub(crate) async fn read_only_anomaly(f: Fixture) {
    // Fekete, O'Neil and O'Neil, "A Read-Only Transaction Anomaly Under Snapshot Isolation",
    // SIGMOD Record 2004: a withdrawal, a deposit, and a report between them.
    put(&f.store, &[("checking", "0"), ("savings", "0")]).await;
    let withdrawal = f.store.begin();
    get(&withdrawal, "checking").await;
    get(&withdrawal, "savings").await;
    let deposit = f.other.begin();
    get(&deposit, "savings").await;
    deposit.put(b"savings", "20").unwrap();
    deposit.commit().await.unwrap();
    let report = f.other.begin();
    assert_eq!(get(&report, "checking").await.as_deref(), Some("0"));
    assert_eq!(get(&report, "savings").await.as_deref(), Some("20"));
    report.commit().await.unwrap();
    withdrawal.put(b"checking", "-11").unwrap();
    assert_eq!(kind(withdrawal.commit().await), CONFLICT);
}

/// Reads one page of two of `d/a` to `d/e`, changes `key`, and returns whether that was a conflict.
async fn page_while(f: &Fixture, reverse: bool, key: &str, remove: bool) -> bool {
    put(&f.store, &["d/a", "d/b", "d/c", "d/d", "d/e"].map(|key| (key, "1"))).await;
    let txn = f.store.begin();
    let options = RangeOptions { limit: 2, reverse, snapshot: false };
    let page = txn.range(&prefix("d/"), options).await.unwrap();
    assert!(page.entries.len() == 2 && page.rest.is_some());
    if remove {
        delete(&f.other, &[key]).await;
    } else {
        put(&f.other, &[(key, "2")]).await;
    }
    txn.put(b"out", "1").unwrap();
    let conflict = kind(txn.commit().await);
    delete(&f.other, &[key]).await;
    assert!(conflict.is_none() || conflict == CONFLICT);
    conflict.is_some()
}

pub(crate) async fn page_ends_where_it_was_read(f: Fixture) {
    for remove in [false, true] {
        assert!(page_while(&f, false, "d/a", remove).await);
        assert!(page_while(&f, false, "d/b", remove).await);
        assert!(!page_while(&f, false, "d/c", remove).await);
        assert!(!page_while(&f, false, "d/e", remove).await);
    }
    assert!(page_while(&f, false, "d/a0", false).await);
    assert!(!page_while(&f, false, "d/b0", false).await);
}

pub(crate) async fn reverse_page_ends_where_it_was_read(f: Fixture) {
    for remove in [false, true] {
        assert!(page_while(&f, true, "d/e", remove).await);
        assert!(page_while(&f, true, "d/d", remove).await);
        assert!(!page_while(&f, true, "d/c", remove).await);
        assert!(!page_while(&f, true, "d/a", remove).await);
    }
    assert!(page_while(&f, true, "d/d0", false).await);
    assert!(!page_while(&f, true, "d/c0", false).await);
}

pub(crate) async fn what_does_not_conflict(f: Fixture) {
    put(&f.store, &[("a", "1"), ("d/1", "1")]).await;
    // Blind writes, snapshot reads, and reads of own writes.
    let txn = f.store.begin();
    let options = RangeOptions { snapshot: true, ..RangeOptions::default() };
    assert_eq!(txn.get_snapshot(b"a").await.unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(txn.range(&prefix("d/"), options).await.unwrap().entries.len(), 1);
    txn.put(b"own", "ours").unwrap();
    assert_eq!(get(&txn, "own").await.as_deref(), Some("ours"));
    txn.put(b"a", "ours").unwrap();
    put(&f.other, &[("a", "2"), ("d/2", "1"), ("own", "theirs")]).await;
    delete(&f.other, &["d/1"]).await;
    txn.commit().await.unwrap();
    assert_eq!(now(&f.store, "a").await.as_deref(), Some("ours"));
    assert_eq!(now(&f.store, "own").await.as_deref(), Some("ours"));
}

pub(crate) async fn conflict_without_reading(f: Fixture) {
    put(&f.store, &[("d/1", "1")]).await;
    for change in [true, false] {
        let txn = f.store.begin();
        txn.add_conflict(&prefix("d/")).await.unwrap();
        if change {
            delete(&f.other, &["d/1"]).await;
        }
        txn.put(b"a", "1").unwrap();
        assert_eq!(kind(txn.commit().await), change.then_some(StoreErrorKind::Conflict));
    }
}

pub(crate) async fn conflict_leaves_nothing(f: Fixture) {
    put(&f.store, &[("a", "0"), ("gone", "1")]).await;
    let txn = f.store.begin();
    get(&txn, "a").await;
    for n in 0..20 {
        txn.put(format!("w/{n}").as_bytes(), "1").unwrap();
    }
    txn.delete(b"gone").unwrap();
    put(&f.other, &[("a", "1")]).await;
    assert_eq!(kind(txn.commit().await), CONFLICT);
    assert!(names(&f.store.begin(), "w/").await.is_empty());
    assert!(now(&f.store, "gone").await.is_some());
}
