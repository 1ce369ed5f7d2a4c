//! Seals: chunks whose updates name one stay unchanged, whichever replica is the head and whatever
//! was in flight.

use millpond_chain::{PeerBody, Refusal, Reply};
use millpond_types::cluster::TargetState;

use super::cluster::{
    Bytes, Cluster, by, bytes, done, of, put, read, remove, replace, seal, unless_sealed, unseal,
};

fn is_sealed(reply: &Reply<Bytes>) -> bool {
    matches!(reply, Reply::Refused(Refusal::Sealed))
}

#[test]
fn after_a_seal_nothing_that_names_it_is_changed_until_it_goes() {
    let mut cluster = Cluster::serving(2);
    let written = cluster.update(1, unless_sealed(replace(1, b"base")));
    assert!(done(&cluster.settle(written)));
    let sealed = cluster.update(1, seal(8));
    assert!(done(&cluster.settle(sealed)));
    let again = cluster.update(1, seal(9));
    assert!(matches!(cluster.settle(again), Reply::Exists { .. }), "it is there once");
    for late in [replace(2, b"late"), remove(3), of(8, put(4, b"new"))] {
        let late = cluster.update(1, unless_sealed(late));
        assert!(is_sealed(&cluster.settle(late)));
    }
    // A retry of an update done before the seal gets its answer.
    let retry = cluster.update(1, unless_sealed(replace(1, b"base")));
    assert!(done(&cluster.settle(retry)));
    let asked = cluster.read(2, read());
    assert_eq!(bytes(&cluster.settle(asked)), b"base");
    // A client that may remove a base names no seal.
    let removed = cluster.update(1, by(5, remove(1)));
    assert!(done(&cluster.settle(removed)));
    let gone = cluster.update(1, unseal(6));
    assert!(done(&cluster.settle(gone)));
    let written = cluster.update(1, unless_sealed(replace(9, b"anew")));
    assert!(done(&cluster.settle(written)));
}

#[test]
fn a_seal_waits_for_what_is_under_way_and_what_comes_meanwhile_waits_for_it() {
    let mut cluster = Cluster::serving(2);
    cluster.hold_messages_to(2);
    let before = cluster.update(1, unless_sealed(replace(1, b"before")));
    cluster.run();
    let sealed = cluster.update(1, seal(8));
    cluster.run();
    assert!(cluster.reply(before).is_none() && cluster.reply(sealed).is_none());
    let during = cluster.update(1, unless_sealed(of(8, put(2, b"during"))));
    let during = cluster.settle(during);
    assert!(matches!(during, Reply::Refused(Refusal::Busy(_))), "{during:?}");
    cluster.deliver_held(|body| matches!(body, PeerBody::Forward { .. }));
    cluster.release();
    assert!(done(&cluster.settle(before)));
    assert!(done(&cluster.settle(sealed)));
    let after = cluster.update(1, unless_sealed(of(8, put(2, b"after"))));
    assert!(is_sealed(&cluster.settle(after)));
    let asked = cluster.read(2, read());
    assert_eq!(bytes(&cluster.settle(asked)), b"before");
}

#[test]
fn a_seal_that_waits_too_long_lets_go() {
    let mut cluster = Cluster::serving(2);
    cluster.hold_messages_to(2);
    let stuck = cluster.update(1, replace(1, b"stuck"));
    cluster.run();
    let sealed = cluster.update(1, seal(8));
    let mut rounds = 0;
    while cluster.reply(sealed).is_none() {
        cluster.run();
        rounds += 1;
        assert!(rounds < 1000, "it lets go");
    }
    assert!(matches!(cluster.reply(sealed), Some(Reply::Refused(Refusal::Busy(_)))));
    let other = cluster.update(1, unless_sealed(of(8, put(2, b"goes on"))));
    cluster.run();
    cluster.release();
    assert!(done(&cluster.settle(other)));
    assert!(done(&cluster.settle(stuck)));
}

#[test]
fn the_next_head_knows_the_seal_and_waits_for_what_it_inherits() {
    let mut cluster = Cluster::serving(3);
    let sealed = cluster.update(1, seal(8));
    assert!(done(&cluster.settle(sealed)));
    cluster.set(0, TargetState::Offline);
    let late = cluster.update(2, unless_sealed(replace(1, b"late")));
    assert!(is_sealed(&cluster.settle(late)));

    let mut cluster = Cluster::serving(3);
    cluster.hold_messages_to(3);
    let before = cluster.update(1, unless_sealed(replace(1, b"before")));
    cluster.run();
    assert!(cluster.reply(before).is_none());
    // The middle has it pending; the head that admitted it leaves.
    cluster.set(0, TargetState::Offline);
    let sealed = cluster.update(2, seal(8));
    cluster.run();
    assert!(cluster.reply(sealed).is_none(), "what the head before admitted is under way");
    cluster.release();
    assert!(done(&cluster.settle(sealed)));
    let asked = cluster.read(3, read());
    assert_eq!(bytes(&cluster.settle(asked)), b"before");
}

#[test]
fn a_target_that_is_brought_up_to_date_has_the_seal_when_it_heads_the_chain() {
    let mut cluster = Cluster::serving(2);
    cluster.set(1, TargetState::Offline);
    let sealed = cluster.update(1, seal(8));
    assert!(done(&cluster.settle(sealed)));
    cluster.set(1, TargetState::Syncing);
    cluster.run();
    cluster.set(1, TargetState::Serving);
    cluster.set(0, TargetState::Offline);
    let late = cluster.update(2, unless_sealed(replace(1, b"late")));
    assert!(is_sealed(&cluster.settle(late)));
}

#[test]
fn what_names_itself_as_its_seal_is_refused() {
    let mut cluster = Cluster::serving(1);
    let itself = cluster.update(1, unless_sealed(of(99, put(1, b""))));
    assert!(matches!(cluster.settle(itself), Reply::Refused(Refusal::Invalid)));
}
