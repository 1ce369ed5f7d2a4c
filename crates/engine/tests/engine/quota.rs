//! Eviction inside one group: which chunks are evicted, in which order, and which never are.

use std::collections::BTreeSet;
use std::time::Duration;

use millpond_types::{ChunkId, GroupId};
use proptest::prelude::{Strategy, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use crate::harness::{Ack, Fake, Rig, WriteRequest, block_on, buf, get, request, value};

const MINE: GroupId = GroupId(7);
const OTHER: GroupId = GroupId(8);
const LEN: usize = 5000;

fn store(e: &Fake, group: GroupId, priority: u8, id: u64, ack: Ack) {
    let bytes = buf(e, &value(id, LEN));
    let request = WriteRequest { group, priority, evictable: true, ..request(bytes, ack) };
    block_on(e.write(ChunkId(id.into()), request)).unwrap();
}

fn held(e: &Fake, ids: std::ops::Range<u64>) -> BTreeSet<u64> {
    ids.filter(|id| e.lookup(ChunkId((*id).into())).is_some()).collect()
}

#[test]
fn a_group_gives_up_its_own_coldest_chunks() {
    let rig = Rig::new(24);
    let e = rig.open();
    (0..500).for_each(|id| store(&e, OTHER, 1, 10_000 + id, Ack::Memory));
    (0..1000).for_each(|id| store(&e, MINE, 1, id, Ack::Memory));
    block_on(e.flush()).unwrap();
    (0..100).for_each(|id| assert!(e.touch(ChunkId(id))));
    let evicted = e.evict_group(MINE, 400 * LEN as u64);
    assert_eq!((evicted.chunks, evicted.bytes), (400, 400 * LEN as u64));
    assert_eq!(e.group_usage(MINE).chunks, 600);
    assert_eq!(held(&e, 10_000..10_500).len(), 500, "others keep theirs");
    let mine = held(&e, 0..1000);
    assert_eq!(mine.range(..100).count(), 100, "what was read stays");
    assert_eq!(mine.range(100..).copied().collect::<Vec<_>>(), (500..1000).collect::<Vec<_>>());
    // New chunks queue behind the old ones.
    (1000..1200).for_each(|id| store(&e, MINE, 1, id, Ack::Memory));
    assert_eq!(e.evict_group(MINE, 200 * LEN as u64).chunks, 200);
    assert_eq!(held(&e, 700..1200).len(), 500, "the youngest");
    assert_eq!(held(&e, 0..100).len(), 100);
    block_on(e.flush()).unwrap();
    let before: BTreeSet<u64> = held(&e, 0..1200);
    drop(e);
    let e = rig.open();
    assert_eq!(held(&e, 0..1200), before, "evictions are in the log");
    assert!(before.iter().all(|id| get(&e, (*id).into()) == Some(value(*id, LEN))));
}

#[test]
fn lower_priorities_go_first_and_promises_are_kept() {
    let rig = Rig::new(24);
    let e = rig.open();
    (0..100).for_each(|id| store(&e, MINE, 2, id, Ack::Disk));
    (100..200).for_each(|id| store(&e, MINE, 0, id, Ack::Disk));
    for id in 0..10 {
        assert!(block_on(e.set_pinned(ChunkId(id), true)).unwrap());
        let until = millpond_types::Tick(0).plus(Duration::from_secs(5));
        assert!(e.lease(ChunkId(100 + id), until));
    }
    assert_eq!(e.evict_group(MINE, 90 * LEN as u64).chunks, 90);
    assert_eq!(held(&e, 100..200), (100..110).collect(), "the low ones but for the leased");
    assert_eq!(e.evict_group(MINE, u64::MAX).chunks, 90, "all but leased and pinned");
    assert_eq!(e.evict_group(MINE, 1).chunks, 0);
    rig.clock.advance(Duration::from_secs(6));
    assert_eq!(e.evict_group(MINE, u64::MAX).chunks, 10, "leases end");
    assert!(block_on(e.set_pinned(ChunkId(3), false)).unwrap());
    assert_eq!(e.evict_group(MINE, u64::MAX).chunks, 1);
    assert_eq!(held(&e, 0..200), (0..10).filter(|id| *id != 3).collect());
}

#[test]
fn the_coldest_of_a_group_that_are_wanted_are_named_and_stay() {
    let rig = Rig::new(24);
    let e = rig.open();
    (0..300).for_each(|id| {
        let bytes = buf(&e, &value(id, LEN));
        // Every third chunk belongs to a chain with another head.
        let attrs: &[u8] = if id % 3 == 0 { b"theirs" } else { b"mine" };
        let request =
            WriteRequest { group: MINE, attrs, evictable: true, ..request(bytes, Ack::Disk) };
        block_on(e.write(ChunkId(id.into()), request)).unwrap();
    });
    (0..30).for_each(|id| assert!(e.touch(ChunkId(id))));
    assert!(block_on(e.set_pinned(ChunkId(31), true)).unwrap());
    let mut leaving: BTreeSet<u64> = BTreeSet::new();
    for round in 0..2 {
        let found = e.coldest_of_group(MINE, 50 * LEN as u64, |id, attrs| {
            attrs == b"mine" && !leaving.contains(&u64::try_from(id.0).unwrap())
        });
        assert_eq!(found.len(), 50, "round {round}");
        assert!(found.iter().all(|(_, len)| *len == LEN as u64));
        leaving.extend(found.iter().map(|(id, _)| u64::try_from(id.0).unwrap()));
    }
    let oldest: BTreeSet<u64> = (32..300).filter(|id| id % 3 != 0).take(100).collect();
    assert_eq!(leaving, oldest, "neither read nor pinned, the oldest first, none twice");
    assert_eq!(e.group_usage(MINE).chunks, 300, "nothing went");
    let all = e.coldest_of_group(MINE, u64::MAX, |_, attrs| attrs == b"mine");
    assert_eq!(all.len(), 199, "all but the pinned one, each once");
    let theirs = e.coldest_of_group(MINE, 50 * LEN as u64, |_, attrs| attrs == b"theirs");
    let theirs: BTreeSet<u64> = theirs.iter().map(|(id, _)| u64::try_from(id.0).unwrap()).collect();
    let oldest: BTreeSet<u64> = (30..300).filter(|id| id % 3 == 0).take(50).collect();
    assert_eq!(theirs, oldest, "what was passed over has kept its place");
    assert_eq!(e.coldest_of_group(OTHER, u64::MAX, |_, _| true), []);
    e.forget_group(MINE);
    assert_eq!(e.group_queue_len(MINE), 0);
}

#[test]
fn what_is_only_in_memory_may_go() {
    let rig = Rig::new(24);
    let e = rig.open();
    (0..100).for_each(|id| store(&e, MINE, 1, id, Ack::Memory));
    assert_eq!(e.evict_group(MINE, 60 * LEN as u64).chunks, 60);
    assert_eq!(e.stats().dirty_bytes, 40 * 8192, "whole pages");
    block_on(e.flush()).unwrap();
    block_on(e.maintain()).unwrap();
    let left = held(&e, 0..100);
    assert_eq!((left.len(), e.stats().dirty_bytes), (40, 0));
    drop(e);
    assert_eq!(held(&rig.open(), 0..100), left);
}

#[test]
fn queues_do_not_grow_with_what_is_gone() {
    let rig = Rig::new(24);
    let e = rig.open();
    e.track_groups(&[MINE]);
    let started = e.group_queue_len(MINE);
    for round in 0..20 {
        (0..100).for_each(|id| store(&e, MINE, 1, round * 100 + id, Ack::Memory));
        let ids: Vec<_> = (0..100).map(|id| ChunkId((round * 100 + id).into())).collect();
        assert_eq!(block_on(e.delete(&ids[1..], Ack::Memory)).unwrap(), 99);
        block_on(e.maintain()).unwrap();
        assert!(e.group_queue_len(MINE) < 200, "{}", e.group_queue_len(MINE));
    }
    assert_eq!(started, 0);
    assert_eq!(e.evict_group(MINE, u64::MAX).chunks, 20);
}

#[derive(Clone, Debug)]
enum Op {
    Store(u64),
    Delete(u64),
    Touch(u64),
    Pin(u64, bool),
    Evict(u64),
    Flush,
    Drop,
}

fn op() -> impl Strategy<Value = Op> {
    let id = 0..40u64;
    prop_oneof![
        8 => id.clone().prop_map(Op::Store),
        2 => id.clone().prop_map(Op::Delete),
        2 => id.clone().prop_map(Op::Touch),
        1 => (id, proptest::bool::ANY).prop_map(|(id, on)| Op::Pin(id, on)),
        3 => (1..8u64).prop_map(Op::Evict),
        1 => proptest::strategy::Just(Op::Flush),
        1 => proptest::strategy::Just(Op::Drop),
    ]
}

proptest! {
    /// After any history, all unpinned chunks of a group can be evicted, other groups lose nothing,
    /// and all remaining bytes are right.
    #[test]
    fn nothing_escapes_and_nothing_else_goes(ops in prop::collection::vec(op(), 1..200)) {
        let rig = Rig::new(24);
        let e = rig.open();
        (100..110).for_each(|id| store(&e, OTHER, 0, id, Ack::Memory));
        let mut pinned = BTreeSet::new();
        for op in ops {
            match op {
                Op::Store(id) => {
                    // A replaced chunk is a new one, unpinned.
                    store(&e, MINE, u8::try_from(id % 4).unwrap(), id, Ack::Memory);
                    pinned.remove(&id);
                }
                Op::Delete(id) => {
                    block_on(e.delete(&[ChunkId(id.into())], Ack::Memory)).unwrap();
                    pinned.remove(&id);
                }
                Op::Touch(id) => drop(e.touch(ChunkId(id.into()))),
                Op::Pin(id, on) => {
                    if block_on(e.set_pinned(ChunkId(id.into()), on)).unwrap() && on {
                        pinned.insert(id);
                    } else {
                        pinned.remove(&id);
                    }
                }
                Op::Evict(count) => {
                    let before = e.group_usage(MINE).bytes;
                    let given = e.evict_group(MINE, count * LEN as u64);
                    prop_assert_eq!(before - given.bytes, e.group_usage(MINE).bytes);
                    let enough = given.bytes >= count * LEN as u64;
                    prop_assert!(enough || e.group_usage(MINE).chunks == pinned.len() as u64);
                }
                Op::Flush => block_on(e.flush()).unwrap(),
                Op::Drop => {
                    block_on(e.remove_group(MINE)).unwrap();
                    pinned.clear();
                }
            }
        }
        block_on(e.flush()).unwrap();
        let _ = e.evict_group(MINE, u64::MAX);
        prop_assert_eq!(held(&e, 0..40), pinned.clone());
        prop_assert_eq!(held(&e, 100..110).len(), 10);
        prop_assert!(pinned.iter().all(|id| get(&e, (*id).into()) == Some(value(*id, LEN))));
    }
}

#[test]
fn new_chunks_find_no_trace_of_old_ones() {
    let rig = Rig::new(64);
    let e = rig.open();
    e.track_groups(&[MINE]);
    for id in 0..6000u64 {
        if id >= 1000 {
            assert_eq!(e.evict_group(MINE, 1).chunks, 1, "{id}");
        }
        let bytes = buf(&e, &value(id, 100));
        let request = WriteRequest {
            group: MINE,
            evictable: true,
            mode: crate::harness::WriteMode::IfAbsent,
            ..request(bytes, Ack::Memory)
        };
        let outcome =
            block_on(e.write(ChunkId(u128::from(id) << 64 | u128::from(id)), request)).unwrap();
        assert!(matches!(outcome, crate::harness::WriteOutcome::Stored(_)), "{id}: {outcome:?}");
        if id % 97 == 0 {
            block_on(e.flush()).unwrap();
        }
        if id % 501 == 0 {
            block_on(e.maintain()).unwrap();
        }
    }
}
