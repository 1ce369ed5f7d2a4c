//! A replica alone in the chain: a version that replaces nothing is put in place without a stage.

use millpond_chain::{Refusal, Reply, StoreError};
use millpond_types::cluster::{LocalState, TargetState};

use crate::cluster::{CHUNK, Cluster, bytes, done, put, read, remove, replace};

/// The first of two is alone.
fn alone() -> Cluster {
    let mut cluster = Cluster::serving(2);
    cluster.change(2, TargetState::Offline);
    cluster.change(2, TargetState::Waiting);
    cluster
}

#[test]
fn only_what_replaces_nothing_is_put_without_a_stage() {
    let mut cluster = alone();
    let staged = cluster.staged;
    let first = cluster.update(1, put(1, b"a"));
    assert!(done(&cluster.settle(first)));
    assert_eq!(cluster.staged, staged, "put in place");
    let asked = cluster.read(1, read());
    assert_eq!(bytes(&cluster.settle(asked)), b"a");
    // A crash must show one of the two versions, and a pin or a lease stays.
    for (sequence, update) in [replace(2, b"b"), remove(3), put(4, b"c")].into_iter().enumerate() {
        let next = cluster.update(1, update);
        assert!(done(&cluster.settle(next)));
        assert_eq!(cluster.staged, staged + 1 + sequence, "staged first");
    }
    let retry = cluster.update(1, put(4, b"c"));
    assert!(done(&cluster.settle(retry)), "the first answer");
}

#[test]
fn who_joins_does_not_wait_for_a_put_that_failed() {
    let mut cluster = alone();
    let alone_in = cluster.replica(1).chain_version();
    cluster.hold_store_of(1);
    cluster.refuse(1, Some(StoreError::NoSpace));
    let first = cluster.update(1, put(1, b"a"));
    cluster.run();
    cluster.decide(2, TargetState::Syncing);
    cluster.run();
    assert_eq!(cluster.replica(1).chain_version(), alone_in, "its disk is still at it");
    cluster.refuse(1, None);
    cluster.release_store();
    assert!(matches!(cluster.settle(first), Reply::Refused(Refusal::NoSpace)));
    assert_eq!(cluster.state(2), LocalState::UpToDate);
    // The next attempt involves two replicas.
    let again = cluster.update(1, put(1, b"a"));
    assert!(done(&cluster.settle(again)));
    assert!(cluster.held(1, CHUNK.0).is_some());
    assert_eq!(cluster.held(2, CHUNK.0), cluster.held(1, CHUNK.0));
}

#[test]
fn who_joins_during_a_put_waits_for_it() {
    let mut cluster = alone();
    let alone_in = cluster.replica(1).chain_version();
    cluster.hold_store_of(1);
    let first = cluster.update(1, put(1, b"a"));
    cluster.run();
    assert!(cluster.reply(first).is_none());
    cluster.decide(2, TargetState::Syncing);
    cluster.run();
    assert_eq!(cluster.replica(1).chain_version(), alone_in, "its disk is still at it");
    cluster.release_store();
    assert!(done(&cluster.settle(first)));
    assert!(cluster.replica(1).chain_version() > alone_in);
    assert_eq!(cluster.state(2), LocalState::UpToDate);
    assert_eq!(cluster.held(2, CHUNK.0), cluster.held(1, CHUNK.0));
    // From now on there are two: both stage every version.
    let staged = cluster.staged;
    let second = cluster.update(1, crate::cluster::of(8, put(2, b"b")));
    assert!(done(&cluster.settle(second)));
    assert_eq!(cluster.staged, staged + 2);
}
