//! Promotions, lazy deletions and flushes: their effects, and their state after a crash.

use std::cell::RefCell;
use std::collections::HashMap;
use std::pin::Pin;

use millpond_env::{FakeDisk, Rng};
use millpond_types::{ByteSize, ChunkId, GroupId, Tick, UnixSeconds, Uuid128};

use crate::harness::{
    Ack, ErrorKind, Fake, FormatOptions, Rig, WriteRequest, block_on, buf, get, put, request,
    run_all, value,
};

/// Id of a staged version, as a replica of a chain uses it.
const fn staged(id: u128) -> u128 {
    id ^ 1 << 100
}

fn promote(e: &Fake, id: u128, attrs: &[u8]) -> bool {
    block_on(e.promote(ChunkId(staged(id)), ChunkId(id), attrs)).unwrap()
}

#[test]
fn seen_at_once_and_durable_with_the_next_flush() {
    for ack in [Ack::Disk, Ack::Memory] {
        let rig = Rig::new(24);
        let e = rig.open();
        block_on(put(&e, 1, &value(1, 5000), Ack::Disk)).unwrap();
        assert!(block_on(e.set_pinned(ChunkId(1), true)).unwrap());
        assert!(e.lease(ChunkId(1), Tick(1 << 40)));
        let req = WriteRequest {
            group: GroupId(7),
            expires: Some(UnixSeconds(4_000_000_000)),
            priority: 2,
            evictable: true,
            ..request(buf(&e, &value(2, 9000)), ack)
        };
        block_on(e.write(ChunkId(staged(1)), req)).unwrap();
        rig.disk.forget_history();
        assert!(promote(&e, 1, b"new"));
        assert_eq!(rig.disk.history_len(), 0, "it waits for somebody's flush");
        let info = e.lookup(ChunkId(1)).unwrap();
        assert_eq!((info.len, info.group, info.priority), (9000, GroupId(7), 2));
        assert_eq!((info.pinned, info.evictable, info.in_memory), (true, true, true));
        assert_eq!(info.expires, Some(UnixSeconds(4_000_000_000)));
        assert_eq!(*e.attrs(ChunkId(1)).unwrap(), *b"new");
        assert_eq!(get(&e, 1), Some(value(2, 9000)));
        assert!(e.lookup(ChunkId(staged(1))).is_none());
        assert_eq!(e.group_usage(GroupId(1)).chunks, 0);
        assert_eq!((e.group_usage(GroupId(7)).chunks, e.group_usage(GroupId(7)).bytes), (1, 9000));
        assert_eq!(e.stats().leased_bytes, 9000);
        assert_eq!(e.stats().dirty_bytes, if ack == Ack::Memory { 12_288 } else { 0 });
        assert_eq!(e.stats().used_bytes, 8192 + 12_288, "the old slab waits");
        // A crash now shows both names as before.
        let copy = rig.disk.crash_images(1, 0).next().unwrap();
        let before = rig.with_disk(copy).open();
        assert_eq!(get(&before, 1), Some(value(1, 5000)));
        assert_eq!(get(&before, staged(1)), (ack == Ack::Disk).then(|| value(2, 9000)));
        block_on(e.flush()).unwrap();
        assert_eq!((e.stats().dirty_bytes, e.stats().used_bytes), (0, 12_288));
        let done = rig.disk.history_len();
        block_on(e.flush()).unwrap();
        assert_eq!(rig.disk.history_len(), done, "nothing was left to flush");
        drop(e);
        let e = rig.open();
        assert_eq!(get(&e, 1), Some(value(2, 9000)));
        assert!(e.lookup(ChunkId(1)).unwrap().pinned && get(&e, staged(1)).is_none());
        assert_eq!(*e.attrs(ChunkId(1)).unwrap(), *b"new");
    }
}

#[test]
fn what_is_absent_or_impossible_is_refused() {
    let rig = Rig::new(12);
    let e = rig.open();
    block_on(put(&e, 1, &value(1, 10), Ack::Disk)).unwrap();
    assert!(!promote(&e, 1, b""));
    assert_eq!(get(&e, 1), Some(value(1, 10)));
    let same = block_on(e.promote(ChunkId(1), ChunkId(1), b"")).unwrap_err();
    let long = block_on(e.promote(ChunkId(1), ChunkId(2), &[0; 257])).unwrap_err();
    assert_eq!((same.kind(), long.kind()), (ErrorKind::Invalid, ErrorKind::Invalid));
}

#[test]
fn one_only_in_memory_never_reaches_the_disk_under_its_old_name() {
    let rig = Rig::new(24);
    let e = rig.open();
    rig.disk.forget_history();
    for n in 0..50u64 {
        block_on(put(&e, staged(1), &value(n, 4000), Ack::Memory)).unwrap();
        assert!(promote(&e, 1, b"a"));
    }
    assert_eq!((rig.disk.history_len(), e.stats().dirty_bytes), (0, 4096));
    assert_eq!(e.stats().used_bytes, 4096, "what was never logged is free at once");
    block_on(e.flush()).unwrap();
    let records = e.metrics().commit_records.get();
    assert!(records <= 2, "one put beside the opening's record, not {records}");
    drop(e);
    assert_eq!(get(&rig.open(), 1), Some(value(49, 4000)));
}

#[test]
fn a_durable_version_under_a_dirty_one_is_not_lost() {
    let rig = Rig::new(24);
    let e = rig.open();
    block_on(put(&e, staged(1), &value(1, 4000), Ack::Disk)).unwrap();
    block_on(put(&e, staged(1), &value(2, 4000), Ack::Memory)).unwrap();
    assert!(promote(&e, 1, b""));
    rig.disk.forget_history();
    let copy = rig.with_disk(rig.disk.crash_images(1, 0).next().unwrap()).open();
    assert_eq!((get(&copy, 1), get(&copy, staged(1))), (None, Some(value(2, 4000))));
    assert_eq!((get(&e, 1), get(&e, staged(1))), (Some(value(2, 4000)), None));
}

#[test]
fn a_durable_write_waits_for_what_was_promoted_before_it() {
    let rig = Rig::new(24);
    let e = rig.open();
    block_on(put(&e, staged(1), &value(1, 4000), Ack::Memory)).unwrap();
    assert!(promote(&e, 1, b""));
    block_on(put(&e, staged(1), &value(2, 4000), Ack::Disk)).unwrap();
    assert_eq!(e.stats().dirty_bytes, 0);
    drop(e);
    let e = rig.open();
    assert_eq!(get(&e, 1), Some(value(1, 4000)));
    assert_eq!(get(&e, staged(1)), Some(value(2, 4000)));
}

#[test]
fn the_next_version_need_not_wait_for_the_promotion() {
    let rig = Rig::new(24);
    let e = rig.open();
    let before = e.metrics().commits.get();
    for n in 0..20u64 {
        block_on(put(&e, staged(1), &value(n, 4000), Ack::Disk)).unwrap();
        assert!(promote(&e, 1, b""));
    }
    assert_eq!(e.metrics().commits.get() - before, 20, "one flush a version");
    block_on(e.flush()).unwrap();
    drop(e);
    assert_eq!(get(&rig.open(), 1), Some(value(19, 4000)));
}

#[test]
fn lazy_deletes_are_seen_at_once_and_wait_for_a_flush() {
    let rig = Rig::new(24);
    let e = rig.open();
    for id in 0..10u64 {
        let ack = if id % 2 == 0 { Ack::Disk } else { Ack::Memory };
        block_on(put(&e, id.into(), &value(id, 4000), ack)).unwrap();
    }
    rig.disk.forget_history();
    let ids: Vec<_> = (0..12).map(ChunkId).collect();
    assert_eq!(block_on(e.delete_lazy(&ids)).unwrap(), 10);
    assert_eq!((rig.disk.history_len(), e.stats().chunks), (0, 0));
    // Written again: the deletion precedes it.
    block_on(put(&e, 2, &value(77, 4000), Ack::Disk)).unwrap();
    block_on(e.flush()).unwrap();
    assert_eq!(e.stats().used_bytes, 4096);
    drop(e);
    let e = rig.open();
    assert_eq!((e.stats().chunks, get(&e, 2)), (1, Some(value(77, 4000))));
}

#[test]
fn a_flush_waits_for_chunks_that_somebody_else_is_writing() {
    for turns in 1.. {
        let rig = Rig::new(24);
        let rig = rig.with_disk(rig.disk.clone().with_yields(turns));
        let e = rig.open();
        for id in 0..3u64 {
            block_on(put(&e, id.into(), &value(id, 4000), Ack::Memory)).unwrap();
        }
        // One flush has begun, and continues or is cancelled at any point.
        let mut first = Box::pin(e.flush());
        let over = block_on(std::future::poll_fn(|cx| {
            let over = (0..turns).any(|_| first.as_mut().poll(cx).is_ready());
            std::task::Poll::Ready(over)
        }));
        if over {
            break;
        }
        if turns % 2 == 0 {
            drop(first);
            block_on(e.flush()).unwrap();
        } else {
            let second: Pin<Box<dyn Future<Output = _>>> = Box::pin(e.flush());
            for done in run_all(vec![second, first]) {
                done.unwrap();
            }
        }
        assert_eq!(e.stats().dirty_bytes, 0, "turns {turns}");
        drop(e);
        let e = rig.open();
        assert!((0..3).all(|id| get(&e, id.into()) == Some(value(id, 4000))), "turns {turns}");
    }
}

/// Possible contents of one chunk's two names: staged and committed version.
type State = (Option<u64>, Option<u64>);

/// States of one chunk in order, with the point of the disk's history when each began, and states
/// known durable: state and point.
#[derive(Default)]
struct Line {
    states: Vec<(State, usize)>,
    sure: Vec<(usize, usize)>,
}

type Lines = RefCell<HashMap<u128, Line>>;

fn len_of(n: u64) -> usize {
    [0, 100, 4096, 5000, 20_000][usize::try_from(n % 5).unwrap()]
}

impl Line {
    fn now(&self) -> State {
        self.states.last().map_or((None, None), |(s, _)| *s)
    }
}

/// Changes a chunk as a replica does; `n` numbers changes.
async fn change(e: &Fake, disk: &FakeDisk, all: &Lines, id: u128, (n, what): (u64, u64)) {
    let before = all.borrow().get(&id).map(Line::now).unwrap_or_default();
    let (stage, commit) = (ChunkId(staged(id)), ChunkId(id));
    let next: State = match what {
        0..5 if before.0.is_some() => (None, before.0),
        0..5 => (Some(n), before.1),
        5 => (None, before.1),
        6 => (before.0, None),
        _ => before,
    };
    let durably = n % 3 != 0;
    {
        let mut all = all.borrow_mut();
        all.entry(id).or_default().states.push((next, disk.history_len()));
    }
    let sure = match what {
        0..5 if before.0.is_some() => {
            assert!(e.promote(stage, commit, &n.to_le_bytes()).await.unwrap());
            false
        }
        0..5 => {
            let ack = if durably { Ack::Disk } else { Ack::Memory };
            put(e, stage.0, &value(n, len_of(n)), ack).await.unwrap();
            durably
        }
        5 => {
            e.delete_lazy(&[stage]).await.unwrap();
            false
        }
        6 => {
            e.delete_lazy(&[commit]).await.unwrap();
            false
        }
        _ => {
            e.flush().await.unwrap();
            true
        }
    };
    if sure {
        let mut all = all.borrow_mut();
        let line = all.get_mut(&id).unwrap();
        let last = line.states.len() - 1;
        line.sure.push((last, disk.history_len()));
    }
}

fn small_rig() -> Rig {
    let rig = Rig::over(FakeDisk::new((64 << 10) + (160 << 16)));
    let options = FormatOptions {
        segment_bytes: ByteSize(64 << 10),
        ..FormatOptions::new(Uuid128([1; 16]), Uuid128([2; 16]))
    };
    block_on(Fake::format(&rig.disk, &rig.pool, options)).unwrap();
    rig
}

/// Replicas of several chunks at work beside flushes and checkpoints of more than one block.
fn workload(rig: &Rig, seed: u64, filler: u64) -> HashMap<u128, Line> {
    let e = rig.open();
    for id in 0..filler {
        let req = WriteRequest { attrs: &[5; 250], ..request(buf(&e, b""), Ack::Memory) };
        block_on(e.write(ChunkId(u128::from(id + 1000) << 64), req)).unwrap();
    }
    block_on(e.checkpoint()).unwrap();
    block_on(e.flush()).unwrap();
    rig.disk.forget_history();
    let all = Lines::default();
    let disk = rig.disk.clone();
    let mut work: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
    for task in 0..5u64 {
        let (e, all, disk) = (&e, &all, &disk);
        work.push(Box::pin(async move {
            let mut rng = Rng::new(seed << 8 | task);
            // Tasks 3 and 4 stage in memory only: their chunks may stay dirty for long.
            for i in 0..12 {
                let n = (seed * 1000 + task * 100 + i) * 3 + u64::from(task < 3) * rng.below(3);
                let what = rng.below(if task < 3 { 8 } else { 7 });
                change(e, disk, all, u128::from(task) + 1, (n, what)).await;
            }
        }));
    }
    let (engine, rounds) = (&e, if filler > 0 { 6 } else { 1 });
    work.push(Box::pin(async move {
        for _ in 0..rounds {
            engine.checkpoint().await.unwrap();
        }
    }));
    run_all(work);
    all.into_inner()
}

/// Contents of crash images that no state of the chunk explains.
fn contradictions(rig: &Rig, all: &HashMap<u128, Line>, limit: usize, seed: u64) -> Vec<String> {
    let mut found = Vec::new();
    for image in rig.disk.crash_images(limit, seed) {
        let point = image.crash_point();
        let e = match rig.with_disk(image).try_open() {
            Ok(e) => e,
            Err(error) => {
                found.push(format!("at {point}: {error}"));
                continue;
            }
        };
        for (id, line) in all {
            let mut read = |id: u128| match block_on(e.read(ChunkId(id))) {
                Ok(data) => data.map(|d| d.bytes.to_vec()),
                Err(error) => {
                    found.push(format!("at {point}: {error}"));
                    None
                }
            };
            let got = (read(staged(*id)), read(*id));
            let bytes = |n: Option<u64>| n.map(|n| value(n, len_of(n)));
            let is = |(s, c): State| (bytes(s), bytes(c)) == got;
            let sure = line.sure.iter().rev().find(|(_, at)| *at <= point).map(|(i, _)| *i);
            let mut may = line.states[sure.unwrap_or(0)..].iter().filter(|(_, at)| *at <= point);
            let nothing = sure.is_none() && is((None, None));
            if !nothing && !may.any(|(state, _)| is(*state)) {
                let got = (got.0.map(|b| b.len()), got.1.map(|b| b.len()));
                found.push(format!("at {point}: chunk {id} holds {got:?}, sure {sure:?}"));
            }
        }
    }
    found
}

#[test]
fn a_crash_shows_both_names_as_before_or_both_as_after() {
    for seed in 0..10 {
        let mut rig = small_rig();
        rig.disk = rig.disk.clone().with_yields(seed);
        let filler = if seed % 2 == 0 { 0 } else { 700 };
        let all = workload(&rig, seed, filler);
        let bad = contradictions(&rig, &all, if filler == 0 { 500 } else { 150 }, seed);
        assert!(bad.is_empty(), "seed {seed}: {bad:#?}");
    }
}
