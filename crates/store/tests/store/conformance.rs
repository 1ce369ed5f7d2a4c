//! The cases that every engine must pass, and how to run them.

use std::future::Future;
use std::pin::Pin;

use millpond_store::{Store, StoreError, StoreErrorKind, Transaction, Version};

use crate::{anomalies, basics, histories, once, watches};

/// An empty store, and a second handle to it as another client would have.
#[derive(Clone)]
pub(crate) struct Fixture {
    pub(crate) store: Store,
    pub(crate) other: Store,
}

pub(crate) type Case = fn(Fixture) -> Pin<Box<dyn Future<Output = ()> + Send>>;

macro_rules! cases {
    ($($module:ident :: $name:ident),* $(,)?) => {
        vec![$((
            concat!(stringify!($module), "::", stringify!($name)),
            (|fixture| Box::pin($module::$name(fixture))) as Case,
        )),*]
    };
}

pub(crate) fn cases() -> Vec<(&'static str, Case)> {
    cases![
        basics::what_is_written_is_read,
        basics::own_writes_are_seen,
        basics::nothing_is_written_without_commit,
        basics::an_ended_transaction_refuses,
        basics::pages_in_order,
        basics::random_operations_agree_with_a_model,
        basics::bounds_are_named,
        basics::the_largest_transactions_pass,
        basics::reserved_keys_are_refused,
        basics::versions_grow,
        basics::transactions_run_in_tasks,
        anomalies::lost_update,
        anomalies::write_skew,
        anomalies::write_skew_by_range,
        anomalies::phantom_by_insert,
        anomalies::phantom_by_delete,
        anomalies::phantom_by_delete_and_insert_of_another,
        anomalies::phantom_by_update,
        anomalies::absent_key_appears,
        anomalies::deleted_and_made_again,
        anomalies::reader_sees_one_state,
        anomalies::dirty_read,
        anomalies::read_only_anomaly,
        anomalies::page_ends_where_it_was_read,
        anomalies::reverse_page_ends_where_it_was_read,
        anomalies::what_does_not_conflict,
        anomalies::conflict_without_reading,
        anomalies::conflict_leaves_nothing,
        once::increments_are_never_lost,
        once::attempts_are_bounded,
        once::a_request_happens_once,
        once::own_errors_are_not_recorded,
        once::forgotten_requests_are_refused,
        watches::changes_come_in_order,
        watches::a_transaction_comes_whole,
        watches::large_transactions_come_whole,
        watches::a_watch_goes_on_where_it_was,
        watches::a_watch_sees_its_range_only,
        watches::no_change_is_missed,
        watches::a_follower_that_was_away_catches_up,
        self_test::random_histories,
    ]
}

mod self_test {
    use super::{Fixture, histories};

    pub(crate) async fn random_histories(fixture: Fixture) {
        let stores = [fixture.store.clone(), fixture.other.clone()];
        let summary = histories::run(stores, 8, 60, 7).await;
        assert!(summary.committed > 100, "{summary:?}");
        assert!(summary.aborted > 0, "without conflicts nothing was tested: {summary:?}");
        assert_eq!(summary.unknown, 0, "{summary:?}");
    }
}

/// Runs all cases, each on a fresh store, and reports the failed ones.
pub(crate) async fn run_all<F, Fut>(fixture: F)
where
    F: Fn(&'static str) -> Fut,
    Fut: Future<Output = Fixture>,
{
    let mut failed = Vec::new();
    let cases = cases();
    let count = cases.len();
    for (name, case) in cases {
        let fixture = fixture(name).await;
        match tokio::spawn(case(fixture)).await {
            Ok(()) => println!("{name}: ok"),
            Err(_) => failed.push(name),
        }
    }
    assert!(failed.is_empty(), "{} of {count} cases failed: {failed:?}", failed.len());
}

/// The kind of error of a result.
pub(crate) fn kind<T>(result: Result<T, StoreError>) -> Option<StoreErrorKind> {
    result.err().map(|error| error.kind())
}

/// Puts `pairs` by one transaction.
pub(crate) async fn put(store: &Store, pairs: &[(&str, &str)]) -> Version {
    let txn = store.begin();
    for (key, value) in pairs {
        txn.put(key.as_bytes(), *value).unwrap();
    }
    txn.commit().await.unwrap()
}

/// Deletes `keys` by one transaction.
pub(crate) async fn delete(store: &Store, keys: &[&str]) -> Version {
    let txn = store.begin();
    for key in keys {
        txn.delete(key.as_bytes()).unwrap();
    }
    txn.commit().await.unwrap()
}

/// A key's value as text, in `txn`.
pub(crate) async fn get(txn: &Transaction, key: &str) -> Option<String> {
    txn.get(key.as_bytes()).await.unwrap().map(|value| String::from_utf8(value).unwrap())
}

/// A key's value as text, now.
pub(crate) async fn now(store: &Store, key: &str) -> Option<String> {
    get(&store.begin(), key).await
}
