//! Chunks without a good copy: a resync continues without their bytes, and no read returns other
//! bytes in their place.

use std::ops::Range;

use millpond_chain::{Alarm, Content, PeerBody, Refusal, Reply};
use millpond_types::cluster::{ChainVersion, LocalState, TargetState};
use millpond_types::{ChunkId, Crc32c};

use crate::cluster::{Cluster, by, bytes, done, of, part, put, read, remove, replace};

const LOST: u128 = 7;
const SOUND: u128 = 8;

/// Two replicas, of which only the second serves: `LOST` is damaged there, `SOUND` is not. The
/// first one was away when they were written.
fn one_bad_copy() -> Cluster {
    let mut cluster = Cluster::serving(2);
    cluster.change(1, TargetState::Offline);
    for (n, chunk) in [LOST, SOUND].into_iter().enumerate() {
        let written = cluster.update(2, of(chunk, replace(n as u64 + 1, b"bytes")));
        assert!(done(&cluster.settle(written)));
    }
    cluster.rot(2, LOST);
    cluster
}

/// The same state once the first one is back.
fn lost() -> Cluster {
    let mut cluster = one_bad_copy();
    come_back(&mut cluster, 1);
    cluster
}

fn come_back(cluster: &mut Cluster, target: u32) {
    cluster.change(target, TargetState::Syncing);
    for _ in 0..4 {
        cluster.run();
    }
    assert_eq!(cluster.state(target), LocalState::UpToDate, "the resync ends");
    cluster.change(target, TargetState::Serving);
}

fn refused(cluster: &mut Cluster, target: u32) {
    let asked = cluster.read(target, read());
    let reply = cluster.settle(asked);
    assert!(matches!(reply, Reply::Refused(Refusal::Corrupt)), "target {target}: {reply:?}");
}

fn reads(cluster: &mut Cluster, expected: &[u8]) {
    for target in [1, 2] {
        let asked = cluster.read(target, read());
        assert_eq!(bytes(&cluster.settle(asked)), expected, "target {target}");
    }
}

#[test]
fn a_resync_ends_without_the_bytes_that_nobody_has() {
    let mut cluster = lost();
    assert!(cluster.alarms.contains(&(1, Alarm::Lost(ChunkId(LOST)))));
    let known = [1, 2].map(|target| cluster.held(target, LOST).unwrap());
    assert_eq!(known[0], known[1], "the version is known");
    assert!(!known[0].1, "and has no bytes");
    assert!(cluster.held(1, SOUND).unwrap().1, "all others have a second copy");
    for target in [1, 2, 1] {
        refused(&mut cluster, target);
    }
    // For other operations it exists.
    let exists = cluster.update(2, by(9, put(1, b"x")));
    assert!(matches!(cluster.settle(exists), Reply::Exists { .. }));
}

#[test]
fn what_is_lost_stays_so_over_restarts_of_all() {
    let mut cluster = lost();
    for target in [1, 2] {
        let saved = cluster.replica(target).chain_version();
        cluster.restart(target, saved);
    }
    cluster.change(1, TargetState::Offline);
    cluster.change(2, TargetState::LastServing);
    cluster.change(2, TargetState::Serving);
    come_back(&mut cluster, 1);
    for target in [1, 2] {
        refused(&mut cluster, target);
    }
    assert_eq!(cluster.held(1, LOST), cluster.held(2, LOST));
}

#[test]
fn a_whole_write_mends_and_a_removal_removes_it() {
    for shorter in [false, true] {
        let mut cluster = lost();
        let request = if shorter { replace(5, b"new") } else { part(5, 0, b"longer") };
        let written = cluster.update(2, request);
        assert!(done(&cluster.settle(written)));
        reads(&mut cluster, if shorter { b"new" } else { b"longer" });
    }
    let mut cluster = lost();
    let removed = cluster.update(2, remove(5));
    assert!(done(&cluster.settle(removed)));
    for target in [1, 2] {
        let asked = cluster.read(target, read());
        assert!(matches!(cluster.settle(asked), Reply::NotFound));
    }
    let written = cluster.update(2, put(6, b"new"));
    assert!(done(&cluster.settle(written)));
    reads(&mut cluster, b"new");
}

#[test]
fn a_part_is_refused_and_leaves_the_chunk_free() {
    // The head has asked the other one and knows that the bytes are lost.
    refused_part(&mut lost(), 2);
    // Here it knows from its store.
    let mut cluster = lost();
    cluster.change(2, TargetState::Offline);
    come_back(&mut cluster, 2);
    refused_part(&mut cluster, 1);
    // Here no other replica has seen it.
    let mut cluster = one_bad_copy();
    refused_part(&mut cluster, 2);
}

#[test]
fn a_part_that_only_those_saw_who_left_holds_nothing_up() {
    let mut cluster = Cluster::serving(2);
    let written = cluster.update(1, replace(1, b"bytes"));
    assert!(done(&cluster.settle(written)));
    cluster.rot(1, LOST);
    cluster.hold_messages_to(2);
    let written = cluster.update(1, part(2, 1, b"x"));
    cluster.run();
    assert!(cluster.reply(written).is_none(), "the other one may have it");
    cluster.change(2, TargetState::Offline);
    let reply = cluster.settle(written);
    assert!(matches!(reply, Reply::Refused(Refusal::Corrupt)), "{reply:?}");
    cluster.release();
    cluster.change(2, TargetState::Waiting);
    cluster.make_room(1);
    // It still has the good copy.
    come_back(&mut cluster, 2);
    refused(&mut cluster, 1);
    reads(&mut cluster, b"bytes");
}

fn refused_part(cluster: &mut Cluster, head: u32) {
    let written = cluster.update(head, part(5, 1, b"x"));
    let reply = cluster.settle(written);
    assert!(matches!(reply, Reply::Refused(Refusal::Corrupt)), "{reply:?}");
    let written = cluster.update(head, replace(6, b"new"));
    assert!(done(&cluster.settle(written)), "nothing is before it");
}

#[test]
fn a_good_copy_that_comes_back_mends_all() {
    let mut cluster = Cluster::serving(3);
    let written = cluster.update(1, replace(1, b"bytes"));
    assert!(done(&cluster.settle(written)));
    // The third one leaves with a good copy, then the first one, which comes back without any.
    cluster.change(3, TargetState::Offline);
    cluster.change(1, TargetState::Offline);
    cluster.rot(2, LOST);
    cluster.rot(1, LOST);
    come_back(&mut cluster, 1);
    for target in [1, 2] {
        refused(&mut cluster, target);
        cluster.make_room(target);
    }
    come_back(&mut cluster, 3);
    // Without any read.
    let held = [1, 2, 3].map(|target| cluster.held(target, LOST).unwrap());
    assert_eq!((held, held[0].1), ([held[0]; 3], true));
    for target in [1, 2, 3] {
        let asked = cluster.read(target, read());
        assert_eq!(bytes(&cluster.settle(asked)), b"bytes", "target {target}");
    }
}

/// Three replicas: the third one is away with the good copy of these chunks, the second one is
/// damaged, and the first one was brought up to date without their bytes.
fn good_copy_away(chunks: Range<u128>) -> Cluster {
    let mut cluster = Cluster::serving(3);
    cluster.change(1, TargetState::Offline);
    for (n, chunk) in chunks.clone().enumerate() {
        let written = cluster.update(2, of(chunk, replace(n as u64 + 1, b"bytes")));
        assert!(done(&cluster.settle(written)));
    }
    cluster.change(3, TargetState::Offline);
    for chunk in chunks.clone() {
        cluster.rot(2, chunk);
    }
    come_back(&mut cluster, 1);
    for chunk in chunks {
        assert!(!cluster.held(1, chunk).unwrap().1);
    }
    cluster
}

#[test]
fn many_good_copies_that_come_back_are_fetched_in_turn() {
    let chunks = 100..150;
    let mut cluster = good_copy_away(chunks.clone());
    cluster.make_room(1);
    cluster.make_room(2);
    come_back(&mut cluster, 3);
    for (chunk, target) in chunks.flat_map(|chunk| [1, 2, 3].map(|target| (chunk, target))) {
        assert!(cluster.held(target, chunk).unwrap().1, "chunk {chunk} at {target}");
    }
}

#[test]
fn a_target_without_bytes_gets_those_of_its_source_before_it_serves() {
    let mut cluster = good_copy_away(LOST..LOST + 1);
    cluster.change(1, TargetState::Offline);
    cluster.make_room(2);
    come_back(&mut cluster, 3);
    assert!(cluster.held(2, LOST).unwrap().1, "the third one has it still");
    cluster.make_room(1);
    cluster.hold_messages_to(1);
    cluster.change(1, TargetState::Syncing);
    for _ in 0..12 {
        cluster.deliver_held(|body| !matches!(body, PeerBody::Fetched { .. }));
        cluster.deliver();
    }
    assert_eq!(cluster.state(1), LocalState::Online, "what it has without bytes may come");
    cluster.release();
    for _ in 0..4 {
        cluster.run();
    }
    assert_eq!(cluster.state(1), LocalState::UpToDate);
    assert!(cluster.held(1, LOST).unwrap().1, "its source had the bytes");
}

#[test]
fn all_who_serve_are_asked_before_a_chunk_is_lost() {
    let mut cluster = Cluster::serving(3);
    cluster.change(3, TargetState::Offline);
    let written = cluster.update(1, replace(1, b"bytes"));
    assert!(done(&cluster.settle(written)));
    cluster.rot(2, LOST);
    cluster.hold_messages_to(1);
    cluster.change(3, TargetState::Syncing);
    for _ in 0..4 {
        cluster.run();
    }
    // The source has no copy, and the first one has not answered.
    assert_eq!(cluster.state(3), LocalState::Online);
    assert_eq!(cluster.held(3, LOST), None);
    cluster.make_room(2);
    cluster.release();
    for _ in 0..4 {
        cluster.run();
    }
    assert_eq!(cluster.state(3), LocalState::UpToDate);
    let held = [1, 2, 3].map(|target| cluster.held(target, LOST).unwrap());
    assert_eq!(held, [held[0]; 3]);
    assert!(held[0].1, "all have the bytes");
}

#[test]
fn an_older_version_at_the_one_that_comes_back_ends_no_search() {
    let mut cluster = Cluster::serving(3);
    let written = cluster.update(1, replace(1, b"old"));
    assert!(done(&cluster.settle(written)));
    cluster.change(3, TargetState::Offline);
    let written = cluster.update(1, replace(2, b"bytes"));
    assert!(done(&cluster.settle(written)));
    cluster.rot(2, LOST);
    cluster.make_room(2);
    come_back(&mut cluster, 3);
    let held = [1, 2, 3].map(|target| cluster.held(target, LOST).unwrap());
    assert_eq!((held, held[0].1), ([held[0]; 3], true), "the first one had a good copy");
    // Without any good copy the old version still goes: it must not be shown.
    let mut cluster = one_bad_copy();
    cluster.change(1, TargetState::Syncing);
    let seen = |body: &PeerBody<_>| !matches!(body, PeerBody::Stale);
    cluster.deliver_held(seen);
    come_back(&mut cluster, 1);
    refused(&mut cluster, 1);
}

#[test]
fn a_transfer_keeps_no_good_copy_from_its_source() {
    let mut cluster = Cluster::serving(3);
    cluster.change(3, TargetState::Offline);
    let written = cluster.update(1, replace(1, b"bytes"));
    assert!(done(&cluster.settle(written)));
    cluster.rot(2, LOST);
    cluster.make_room(2);
    cluster.slow_reads_of(2);
    come_back(&mut cluster, 3);
    let held = [1, 2, 3].map(|target| cluster.held(target, LOST).unwrap());
    assert_eq!((held, held[0].1), ([held[0]; 3], true));
}

#[test]
fn late_answers_to_other_searches_count_for_nothing() {
    let mut cluster = one_bad_copy();
    cluster.hold_messages_to(2);
    cluster.change(1, TargetState::Syncing);
    cluster.deliver_held(|_| true);
    let stale = PeerBody::NoCopy { nonce: u64::MAX, chunk: ChunkId(LOST) };
    for _ in 0..4 {
        cluster.say(1, 2, stale.clone());
        cluster.run();
        cluster.deliver_held(|body| !matches!(body, PeerBody::NoCopy { .. }));
    }
    assert_eq!(cluster.state(1), LocalState::Online, "no answer to this search came");
    cluster.release();
    for _ in 0..4 {
        cluster.run();
    }
    assert_eq!(cluster.state(1), LocalState::UpToDate);
    assert!(cluster.replica(1).chain_version() > ChainVersion(1));
}

#[test]
fn a_place_that_can_be_read_again_is_not_lost() {
    // The head remembers the search; its store does not know of the loss.
    let mut cluster = lost();
    let written = cluster.update(2, part(5, 1, b"x"));
    assert!(matches!(cluster.settle(written), Reply::Refused(Refusal::Corrupt)));
    cluster.unrot(2, LOST);
    cluster.make_room(1);
    let asked = cluster.read(2, read());
    assert_eq!(bytes(&cluster.settle(asked)), b"bytes");
    let written = cluster.update(2, part(6, 1, b"x"));
    assert!(done(&cluster.settle(written)), "a read showed that it is there");
    // Without a read: the refused update reads the place, and the next one is accepted.
    let mut cluster = lost();
    cluster.unrot(2, LOST);
    cluster.make_room(1);
    let written = cluster.update(2, part(5, 1, b"x"));
    assert!(matches!(cluster.settle(written), Reply::Refused(Refusal::Corrupt)));
    let written = cluster.update(2, part(6, 1, b"x"));
    assert!(done(&cluster.settle(written)));
    reads(&mut cluster, b"bxtes");
    // Without either: others begin to write, and every remembered chunk is read again.
    let mut cluster = lost();
    cluster.unrot(2, LOST);
    cluster.make_room(1);
    cluster.change(1, TargetState::Offline);
    come_back(&mut cluster, 1);
    let written = cluster.update(2, part(5, 1, b"x"));
    assert!(done(&cluster.settle(written)));
}

#[test]
fn what_others_said_before_a_search_counts_no_more() {
    let mut cluster = Cluster::serving(3);
    cluster.change(3, TargetState::Offline);
    let written = cluster.update(1, replace(1, b"bytes"));
    assert!(done(&cluster.settle(written)));
    cluster.rot(1, LOST);
    cluster.rot(2, LOST);
    // No transfer begins, and the source has learned that no replica has it.
    cluster.budget = 0;
    cluster.change(3, TargetState::Syncing);
    cluster.damage(2);
    cluster.run();
    cluster.unrot(1, LOST);
    cluster.make_room(2);
    cluster.hold_messages_to(2);
    cluster.damage(2);
    cluster.deliver();
    cluster.budget = 1 << 20;
    cluster.run();
    assert_eq!(cluster.held(3, LOST), None, "a search is under way");
    cluster.release();
    for _ in 0..4 {
        cluster.run();
    }
    let held = [1, 2, 3].map(|target| cluster.held(target, LOST).unwrap());
    assert_eq!((held, held[0].1), ([held[0]; 3], true));
}

#[test]
fn that_nothing_is_lost_is_no_message() {
    let mut cluster = lost();
    cluster.change(1, TargetState::Offline);
    cluster.change(1, TargetState::Syncing);
    let (mut meta, _) = cluster.held(2, SOUND).unwrap();
    meta.version.0 += 1;
    let expect = cluster.held(1, SOUND).map(|held| held.0);
    for content in [Content::Data { len: 0, crc: Crc32c::EMPTY }, Content::Tombstone] {
        meta.content = content;
        let body = Cluster::lost_message(SOUND, expect, meta);
        cluster.say(2, 1, body);
        cluster.run();
        assert_eq!(cluster.held(1, SOUND), cluster.held(2, SOUND));
    }
}

#[test]
fn reads_that_wait_for_what_is_taken_back_are_answered() {
    let mut cluster = Cluster::serving(3);
    let written = cluster.update(1, replace(1, b"bytes"));
    assert!(done(&cluster.settle(written)));
    cluster.rot(2, LOST);
    // The version in flight reaches the second one, and no good copy follows it.
    cluster.hold_messages_to(2);
    let _under_way = cluster.update(1, part(2, 1, b"x"));
    cluster.run();
    cluster.deliver_held(|_| true);
    cluster.change(3, TargetState::Offline);
    // Read as soon as it is alone, before it has noticed that no other replica can commit the
    // version.
    cluster.decide(1, TargetState::Offline);
    let asked = cluster.read(2, read());
    let reply = cluster.settle(asked);
    assert!(matches!(reply, Reply::Refused(Refusal::Corrupt)), "{reply:?}");
}
