//! Every prefix, torn sector and legal reordering of the writes before a crash.

use std::cell::RefCell;
use std::collections::HashMap;

use millpond_types::ChunkId;

use crate::harness::{
    Ack, EngineError, Fake, Rig, WriteOutcome, block_on, get, put, run_all, value,
};

/// Possible values under an id: every value ever written, and the point where each became sure.
#[derive(Default)]
struct History {
    /// (value or absence, point of the disk's history when the attempt began).
    attempts: Vec<(Option<Vec<u8>>, usize)>,
    /// (index into `attempts`, point of the disk's history at the acknowledgement).
    acks: Vec<(usize, usize)>,
}

type Histories = RefCell<HashMap<u128, History>>;

async fn step(e: &Fake, disk: &millpond_env::FakeDisk, all: &Histories, id: u128, n: u64) {
    let len = [100, 4096, 5000, 70_000][usize::try_from(n % 4).unwrap()];
    let bytes = value(n, len);
    let new = match n % 7 {
        5 => None,
        6 => {
            let before = { all.borrow().get(&id).and_then(|h| h.attempts.last().cloned()) };
            before.and_then(|(b, _)| b).map(|b| [b, value(n, 600)].concat())
        }
        _ => Some(bytes),
    };
    let at = {
        let mut all = all.borrow_mut();
        let h = all.entry(id).or_default();
        h.attempts.push((new.clone(), disk.history_len()));
        h.attempts.len() - 1
    };
    let done: Result<(), EngineError> = match (&new, n % 7) {
        (None, _) => e.delete(&[ChunkId(id)], Ack::Disk).await.map(|_| ()),
        (Some(b), 6) => {
            let old = b.len() - 600;
            let more = crate::harness::buf(e, &b[old..]);
            e.append(ChunkId(id), old as u64, more).await.map(|_| ())
        }
        (Some(b), _) => put(e, id, b, Ack::Disk).await.map(|_| ()),
    };
    done.unwrap();
    let point = disk.history_len();
    all.borrow_mut().get_mut(&id).unwrap().acks.push((at, point));
}

/// Runs writers that meet in the log, with deletes, appends, eviction-free replacement.
fn workload(rig: &Rig, rounds: u64, checkpoint: bool) -> HashMap<u128, History> {
    let e = rig.open();
    let all = Histories::default();
    let disk = rig.disk.clone();
    for round in 0..rounds {
        // One task per id: operations of one id follow each other, tasks interleave.
        run_all(
            (0..4u64)
                .map(|task| {
                    let (e, all, disk) = (&e, &all, &disk);
                    Box::pin(async move {
                        for i in 0..3 {
                            step(e, disk, all, u128::from(task), round * 12 + task * 3 + i).await;
                        }
                    }) as std::pin::Pin<Box<dyn Future<Output = ()>>>
                })
                .collect(),
        );
        if checkpoint && round % 2 == 1 {
            block_on(e.checkpoint()).unwrap();
        }
    }
    all.into_inner()
}

/// Opens every crash image and returns what contradicts the histories.
fn contradictions(rig: &Rig, all: &HashMap<u128, History>, limit: usize, seed: u64) -> Vec<String> {
    let mut found = Vec::new();
    for image in rig.disk.crash_images(limit, seed) {
        let point = image.crash_point();
        let again = rig.with_disk(image);
        let e = match again.try_open() {
            Ok(e) => e,
            Err(error) => {
                found.push(format!("at {point}: {error}"));
                continue;
            }
        };
        for (id, h) in all {
            let got = match block_on(e.read(ChunkId(*id))) {
                Ok(data) => data.map(|d| d.bytes.to_vec()),
                Err(error) => {
                    found.push(format!("at {point}: {error}"));
                    continue;
                }
            };
            // The last sure state, and any attempt begun later but before the crash.
            let sure = h.acks.iter().rev().find(|(_, at)| *at <= point).map(|(i, _)| *i);
            let may = |i: usize| h.attempts[i].0 == got;
            let later = sure.map_or(0, |i| i + 1)..h.attempts.len();
            let fine = sure.map_or(got.is_none(), may)
                || later.into_iter().any(|i| h.attempts[i].1 <= point && may(i));
            if !fine {
                let n = got.as_ref().map(Vec::len);
                found.push(format!("at {point}: chunk {id} holds {n:?} bytes, sure {sure:?}"));
            }
        }
    }
    found
}

#[test]
fn acknowledged_writes_come_back_whole() {
    for seed in 0..6 {
        let mut rig = Rig::new(24);
        rig.disk.forget_history();
        rig.disk = rig.disk.clone().with_yields(seed);
        let all = workload(&rig, 4, seed % 2 == 1);
        let bad = contradictions(&rig, &all, 600, seed);
        assert!(bad.is_empty(), "seed {seed}: {bad:#?}");
    }
}

#[test]
fn without_the_check_of_the_last_batch_the_test_above_fails() {
    let mut bad = 0;
    for seed in 0..6 {
        let mut rig = Rig::new(24);
        rig.disk.forget_history();
        rig.disk = rig.disk.clone().with_yields(seed);
        let all = workload(&rig, 4, false);
        rig.options.verify_last_batch = false;
        bad += contradictions(&rig, &all, 600, seed).len();
    }
    assert!(bad > 0, "the crash test does not notice a missing check");
}

#[test]
fn a_crash_after_a_recovery_keeps_what_the_recovery_decided() {
    let mut rig = Rig::new(24);
    rig.disk.forget_history();
    rig.disk = rig.disk.clone().with_yields(3);
    workload(&rig, 2, false);
    for (n, image) in rig.disk.crash_images(80, 9).enumerate() {
        image.forget_history();
        let once = rig.with_disk(image);
        let e = once.open();
        let first: Vec<_> = (0..4).map(|id| get(&e, id)).collect();
        block_on(put(&e, 50, &value(n as u64, 9000), Ack::Disk)).unwrap();
        let point = once.disk.history_len();
        drop(e);
        for image in once.disk.crash_images(30, 1) {
            let sure = image.crash_point() >= point;
            let e = once.with_disk(image).open();
            let second: Vec<_> = (0..4).map(|id| get(&e, id)).collect();
            assert_eq!(first, second);
            let fifty = get(&e, 50);
            assert!(fifty.is_none() && !sure || fifty == Some(value(n as u64, 9000)));
        }
    }
}

#[test]
fn a_cancelled_writer_does_not_wedge_the_others() {
    for turns in 0..60 {
        let rig = Rig::new(24);
        let rig = rig.with_disk(rig.disk.clone().with_yields(turns));
        let e = rig.open();
        let bytes = value(1, 5000);
        let mut doomed = Box::pin(put(&e, 1, &bytes, Ack::Disk));
        let mut other = Box::pin(put(&e, 2, &bytes, Ack::Disk));
        block_on(std::future::poll_fn(|cx| {
            for _ in 0..turns {
                if doomed.as_mut().poll(cx).is_ready() {
                    break;
                }
                if other.as_mut().poll(cx).is_ready() {
                    break;
                }
            }
            std::task::Poll::Ready(())
        }));
        drop((doomed, other));
        // The next writers finish anything left half done, also of the same chunk.
        let all = (1..6u128).map(|id| {
            let (e, bytes) = (&e, &bytes);
            Box::pin(async move { put(e, id, bytes, Ack::Disk).await.unwrap() })
                as std::pin::Pin<Box<dyn Future<Output = WriteOutcome>>>
        });
        assert_eq!(run_all(all.collect()).len(), 5, "turns {turns}");
        drop(e);
        let e = rig.open();
        assert!((1..6).all(|id| get(&e, id).as_ref() == Some(&bytes)));
    }
}
