//! Replicas through their public API, message by message: the protocol's steps and the bugs that
//! the simulator found in it, each as a short story.

#![allow(clippy::unwrap_used, reason = "tests")]

mod alone;
mod cluster;
mod forged;
mod lost;
mod seals;

use cluster::{Cluster, bytes, done, put, read, remove, replace};
use millpond_chain::{PeerBody, Refusal, Reply};
use millpond_types::ChunkId;
use millpond_types::cluster::{ChainVersion, LocalState, TargetState};
use millpond_types::limits::RESYNC_JOBS_MAX;

#[test]
fn a_write_is_stored_by_all_and_read_from_any() {
    let mut cluster = Cluster::serving(3);
    let written = cluster.update(1, replace(1, b"hello"));
    assert!(done(&cluster.settle(written)));
    for target in 1..=3 {
        let asked = cluster.read(target, read());
        assert_eq!(bytes(&cluster.settle(asked)), b"hello", "target {target}");
    }
}

#[test]
fn a_pending_version_is_not_read_before_the_tail_has_it() {
    let mut cluster = Cluster::serving(3);
    let first = cluster.update(1, replace(1, b"old"));
    assert!(done(&cluster.settle(first)));
    cluster.hold_messages_to(3);
    let second = cluster.update(1, replace(2, b"new"));
    cluster.run();
    assert!(cluster.reply(second).is_none(), "the tail has not committed");
    // The middle has the new version pending; only the tail knows which one is committed.
    cluster.deliver_held(|body| matches!(body, PeerBody::TailQuery { .. }));
    let asked = cluster.read(2, read());
    cluster.run();
    cluster.deliver_held(|body| matches!(body, PeerBody::TailQuery { .. }));
    cluster.run();
    assert_eq!(bytes(&cluster.reply(asked).unwrap()), b"old");
    cluster.release();
    assert!(done(&cluster.settle(second)));
    let asked = cluster.read(2, read());
    assert_eq!(bytes(&cluster.settle(asked)), b"new");
}

#[test]
fn the_tail_commits_only_what_the_head_has_stored() {
    let mut cluster = Cluster::serving(2);
    let first = cluster.update(1, replace(1, b"old"));
    assert!(done(&cluster.settle(first)));
    cluster.hold_store_of(1);
    let second = cluster.update(1, replace(2, b"new"));
    cluster.run();
    let asked = cluster.read(2, read());
    assert_eq!(bytes(&cluster.settle(asked)), b"old", "shown, it could be lost with the head");
    assert!(cluster.reply(second).is_none());
    cluster.release_store();
    assert!(done(&cluster.settle(second)));
}

#[test]
fn a_retry_gets_the_first_answer() {
    let mut cluster = Cluster::serving(2);
    let first = cluster.update(1, replace(1, b"a"));
    assert!(done(&cluster.settle(first)));
    let other = cluster.update(1, cluster::by(9, replace(1, b"b")));
    assert!(done(&cluster.settle(other)));
    let retry = cluster.update(1, replace(1, b"a"));
    assert!(done(&cluster.settle(retry)));
    let asked = cluster.read(1, read());
    assert_eq!(bytes(&cluster.settle(asked)), b"b", "done once");
}

#[test]
fn a_retry_of_what_is_under_way_leaves_no_attempt_without_an_answer() {
    let mut cluster = Cluster::serving(2);
    cluster.hold_messages_to(2);
    let first = cluster.update(1, replace(1, b"a"));
    cluster.run();
    let queued = cluster.update(1, cluster::by(9, replace(1, b"b")));
    cluster.run();
    assert!(cluster.reply(first).is_none() && cluster.reply(queued).is_none());
    let retry = cluster.update(1, replace(1, b"a"));
    let of_queued = cluster.update(1, cluster::by(9, replace(1, b"b")));
    cluster.run();
    for given_up in [first, queued] {
        assert!(cluster.replaced.contains(&given_up) && cluster.reply(given_up).is_none());
    }
    cluster.release();
    assert!(done(&cluster.settle(retry)) && done(&cluster.settle(of_queued)));
    let asked = cluster.read(1, read());
    assert_eq!(bytes(&cluster.settle(asked)), b"b", "each done once");
}

#[test]
fn a_repair_without_room_stops_no_replica() {
    let mut cluster = Cluster::serving(2);
    let first = cluster.update(1, replace(1, b"a"));
    assert!(done(&cluster.settle(first)));
    for _ in 0..3 {
        cluster.damage(1);
        cluster.run();
        assert_eq!(cluster.state(1), LocalState::UpToDate);
    }
    // The whole chunk is written again.
    let second = cluster.update(1, replace(2, b"b"));
    assert!(done(&cluster.settle(second)));
}

#[test]
fn a_late_copy_of_a_removal_that_found_nothing_removes_nothing() {
    let mut cluster = Cluster::serving(2);
    let nothing = cluster.update(1, remove(1));
    assert!(matches!(cluster.settle(nothing), Reply::NotFound));
    let written = cluster.update(1, cluster::by(9, replace(1, b"b")));
    assert!(done(&cluster.settle(written)));
    let copy = cluster.update(1, remove(1));
    assert!(matches!(cluster.settle(copy), Reply::NotFound));
    let asked = cluster.read(2, read());
    assert_eq!(bytes(&cluster.settle(asked)), b"b");
}

#[test]
fn a_head_without_a_lease_says_nothing_about_its_chunks() {
    let mut cluster = Cluster::serving(2);
    let written = cluster.update(1, replace(1, b"a"));
    assert!(done(&cluster.settle(written)));
    cluster.pass_without_leases(5_000);
    for request in
        [cluster.update(1, put(2, b"x")), cluster.update(1, cluster::by(9, put(1, b"x")))]
    {
        let reply = cluster.settle(request);
        assert!(matches!(reply, Reply::Refused(Refusal::NotServing)), "{reply:?}");
    }
    let asked = cluster.read(2, read());
    let reply = cluster.settle(asked);
    assert!(matches!(reply, Reply::Refused(Refusal::NotServing)), "{reply:?}");
}

#[test]
fn a_stale_client_learns_the_version_and_a_damaged_payload_is_sent_back() {
    let mut cluster = Cluster::serving(2);
    let mut old = replace(1, b"a");
    old.version.0 = 1;
    let refused = cluster.update_as_is(1, old);
    assert!(matches!(cluster.settle(refused), Reply::Refused(Refusal::Stale(_))));
    let mut damaged = replace(1, b"a");
    damaged.crc.0 ^= 1;
    let refused = cluster.update(1, damaged);
    assert!(matches!(cluster.settle(refused), Reply::Refused(Refusal::BadChecksum)));
}

#[test]
fn a_shell_reads_by_itself_exactly_when_a_step_would_read_the_committed_version() {
    // Every read of these tests compares the two; this test covers each path of the decision.
    let mut cluster = Cluster::serving(3);
    let first = cluster.update(1, replace(1, b"old"));
    assert!(done(&cluster.settle(first)));
    cluster.hold_messages_to(3);
    let _pending = cluster.update(1, replace(2, b"new"));
    cluster.run();
    for target in [1, 2, 3] {
        cluster.read(target, read());
    }
    cluster.run();
    assert_eq!(cluster.reads_at_once, [false, false, true], "only the tail knows");
    cluster.release();
    cluster.run();
    cluster.read(2, read());
    cluster.run();
    assert_eq!(cluster.reads_at_once.pop(), Some(true), "nothing is pending");
    cluster.pass_without_leases(5_000);
    cluster.read(3, read());
    cluster.run();
    assert_eq!(cluster.reads_at_once.pop(), Some(false), "no lease");
}

#[test]
fn a_shell_learns_what_it_needs_of_a_replica() {
    let cluster = Cluster::serving(2);
    assert!(cluster.replica(1).is_head_serving());
    assert!(!cluster.replica(2).is_head_serving());
    // One serving, then the other syncing and serving.
    assert_eq!(cluster.replica(1).chain_version(), ChainVersion(4));
    let report = cluster.replica(2).local_report().unwrap();
    assert_eq!((report.state, report.version), (LocalState::UpToDate, ChainVersion(4)));
}

#[test]
fn what_was_buried_is_not_imported_on_any_replica() {
    let mut cluster = Cluster::serving(2);
    let buried = cluster.update(1, cluster::bury(1));
    assert!(done(&cluster.settle(buried)));
    let late = cluster.update(1, cluster::import(b"old"));
    assert!(matches!(cluster.settle(late), Reply::Exists { .. }));
    for target in 1..=2 {
        let asked = cluster.read(target, read());
        assert!(matches!(cluster.settle(asked), Reply::NotFound), "target {target}");
    }
    let written = cluster.update(1, put(2, b"new"));
    assert!(done(&cluster.settle(written)));
}

#[test]
fn nobody_remembers_a_probe() {
    let mut cluster = Cluster::serving(2);
    let asked = cluster.update(1, cluster::probe());
    assert!(matches!(cluster.settle(asked), Reply::NotFound));
    // The put that follows has the same tag.
    let written = cluster.update(1, put(1, b"new"));
    assert!(done(&cluster.settle(written)));
    let asked = cluster.update(1, cluster::probe());
    assert!(matches!(cluster.settle(asked), Reply::Exists { .. }));
    let mut bare = cluster::bury(2);
    bare.tag.lane.channel = 0;
    let refused = cluster.update(1, bare);
    assert!(matches!(cluster.settle(refused), Reply::Refused(Refusal::Invalid)));
}

#[test]
fn resync_sends_what_it_may_and_makes_up_for_what_was_too_much() {
    let mut cluster = Cluster::serving(2);
    cluster.set(1, TargetState::Offline);
    for n in 0..40u32 {
        let mut request = put(u64::from(n) + 1, &[7; 1000]);
        request.chunk = ChunkId(100 + u128::from(n));
        let written = cluster.update(1, request);
        assert!(done(&cluster.settle(written)));
    }
    // A chunk every other tick, of which a run has eight.
    cluster.budget = 500;
    cluster.set(1, TargetState::Syncing);
    let mut runs = 1;
    while cluster.state(2) != LocalState::UpToDate {
        let most = RESYNC_JOBS_MAX + 4 * runs;
        assert!(cluster.chunks(2) <= most, "{} chunks after {runs} runs", cluster.chunks(2));
        cluster.run();
        runs += 1;
    }
    assert_eq!(cluster.chunks(2), 40);
    assert!(runs >= 8, "{runs} runs");
    assert!(runs <= 14, "{runs} runs: too slow");
}
