//! Folding patches beside faults, full disks and other changes.

use std::cell::Cell;
use std::pin::Pin;

use millpond_engine::EngineOptions;
use millpond_env::Rng;
use millpond_types::{ByteSize, ChunkId};

use crate::harness::{
    Ack, EngineError, Fake, Fault, FaultKind, Rig, block_on, flush_lazily, get, patch, put,
    run_all, turns, value,
};

#[test]
fn a_fold_that_fails_goes_elsewhere() {
    let rig = Rig::new(24);
    let e = rig.open();
    block_on(put(&e, 1, &value(1, 9000), Ack::Disk)).unwrap();
    block_on(patch(&e, (1, 2), 10, b"new")).unwrap().unwrap();
    let mut two = value(1, 9000);
    two[10..13].copy_from_slice(b"new");
    rig.disk.inject(Fault::eio(FaultKind::Write, 1));
    block_on(e.checkpoint()).unwrap_err();
    assert_eq!((get(&e, 2), e.metrics().folds.get()), (Some(two.clone()), 0));
    // The next checkpoint becomes valid; the bad slab stays unused for a minute.
    block_on(e.checkpoint()).unwrap();
    assert_eq!((e.metrics().checkpoints.get(), e.metrics().folds.get()), (1, 1));
    assert_eq!(e.stats().used_bytes, 3 * 12_288);
    rig.clock.advance(std::time::Duration::from_secs(61));
    block_on(e.maintain()).unwrap();
    assert_eq!(e.stats().used_bytes, 2 * 12_288);
    drop(e);
    assert_eq!(get(&rig.open(), 2), Some(two));
}

/// The slab that a patched chunk has reserved is the only free one: the log has since taken the
/// segments reserved for it.
#[test]
fn a_full_disk_is_opened_with_patches() {
    let mut rig = Rig::new(14);
    rig.options = EngineOptions { checkpoint_log_bytes: ByteSize::mib(1), ..rig.options.clone() };
    let e = rig.open();
    let mut id = 10;
    while e.stats().free_segments > 1 {
        block_on(put(&e, id, &value(3, 40_000), Ack::Disk)).unwrap();
        id += 1;
    }
    let new = value(7, 16_000);
    block_on(patch(&e, (10, 2), 39_000, &new)).unwrap().unwrap();
    assert_eq!(e.stats().free_segments, 0, "it has a segment of its own");
    let mut two = value(3, 40_000)[..39_000].to_vec();
    two.extend(&new);
    let bytes = e.stats().log_bytes;
    for n in 0..400 {
        block_on(e.set_pinned(ChunkId(11), n % 2 == 0)).unwrap();
    }
    assert!(e.stats().log_bytes > bytes + (1 << 20), "no checkpoint");
    drop(e);
    for _ in 0..2 {
        let e = rig.open();
        assert_eq!(get(&e, 2), Some(two.clone()));
    }
}

#[test]
fn a_patch_and_a_promotion_the_other_way_do_not_wait_for_each_other() {
    for (base, to) in [(1, 2), (2, 1)] {
        let mut rig = Rig::new(24);
        rig.disk = rig.disk.clone().with_yields(3);
        let e = rig.open();
        block_on(put(&e, base, &value(1, 9000), Ack::Disk)).unwrap();
        let left = Cell::new(3);
        let done = || left.set(left.get() - 1);
        let mut work: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
        // It holds the guard that the other two wait for, in this order.
        work.push(Box::pin(async {
            put(&e, to, &value(2, 9000), Ack::Disk).await.unwrap();
            done();
        }));
        work.push(Box::pin(async {
            patch(&e, (base, to), 10, b"new").await.unwrap();
            done();
        }));
        work.push(Box::pin(async {
            assert!(e.promote(ChunkId(to), ChunkId(base), b"").await.unwrap());
            done();
        }));
        let (mut polls, left) = (0, &left);
        work.push(Box::pin(std::future::poll_fn(move |_| {
            polls += 1;
            assert!(polls < 100_000, "they wait for each other");
            if left.get() == 0 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })));
        run_all(work);
    }
}

/// Chunks of the test below.
const STAGED: u128 = 3;
const COMMITTED: u128 = 4;
const LATER: u128 = 5;

/// Shows changes before they are durable while a checkpoint folds. A patched chunk gets another
/// name, for which it had to wait, is perhaps patched once more, and is removed. The checkpoint
/// finds nothing of it to fold. Returns the point of the disk's history at which that last patch
/// was acknowledged.
fn vanish_beside_a_checkpoint(rig: &Rig, e: &Fake, seed: u64) -> Option<usize> {
    let mut rng = Rng::new(seed);
    let mut pauses = || usize::try_from(rng.below(12)).unwrap();
    let (one, two) = (pauses(), pauses());
    let acknowledged = Cell::new(None);
    let working = Cell::new(3);
    let done = || working.set(working.get() - 1);
    let work: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = vec![
        // It holds the guard that the promotion waits for.
        Box::pin(async {
            put(e, COMMITTED, &value(6, 5000), Ack::Disk).await.unwrap();
            done();
        }),
        Box::pin(async {
            turns(one).await;
            assert!(e.promote(ChunkId(STAGED), ChunkId(COMMITTED), b"").await.unwrap());
            let gone = [ChunkId(COMMITTED)];
            if seed.is_multiple_of(2) {
                assert_eq!(e.delete_lazy(&gone).await.unwrap(), 1);
                return done();
            }
            let patched = async {
                let later = patch(e, (COMMITTED, LATER), 20, b"later").await.unwrap();
                acknowledged.set(later.map(|_| rig.disk.history_len()));
            };
            let deleted = async {
                assert_eq!(e.delete_lazy(&gone).await.unwrap(), 1);
            };
            futures_util::future::join(patched, deleted).await;
            done();
        }),
        Box::pin(async {
            turns(two).await;
            e.checkpoint().await.unwrap();
            done();
        }),
        Box::pin(flush_lazily(e, &working)),
    ];
    run_all(work);
    acknowledged.get()
}

#[test]
fn what_a_checkpoint_finds_gone_is_durably_so_before_it_counts() {
    let mut later = 0;
    for seed in 0..400 {
        let mut rig = Rig::new(14);
        rig.disk = rig.disk.clone().with_yields(seed);
        let e = rig.open();
        for (base, to) in [(1, 2), (10, STAGED)] {
            block_on(put(&e, base, &value(1, 9000), Ack::Disk)).unwrap();
            block_on(patch(&e, (base, to), 10, b"new")).unwrap().unwrap();
        }
        block_on(put(&e, COMMITTED, &value(5, 5000), Ack::Disk)).unwrap();
        rig.disk.forget_history();
        let acknowledged = vanish_beside_a_checkpoint(&rig, &e, seed);
        drop(e);
        later += u64::from(acknowledged.is_some());
        for image in rig.disk.crash_images(60, seed) {
            let point = image.crash_point();
            let e = rig.with_disk(image).open();
            let len = |id| get(&e, id).map(|bytes| bytes.len());
            let found = (len(STAGED), len(COMMITTED));
            let may = [(Some(9000), Some(5000)), (None, Some(9000)), (None, None)];
            assert!(may.contains(&found), "seed {seed} at {point}: {found:?}");
            let sure = acknowledged.is_some_and(|at| at <= point);
            assert!(!sure || len(LATER) == Some(9000), "seed {seed} at {point}: acknowledged");
        }
    }
    assert!(later > 50, "{later} were patched while they went");
}

/// A pin that saw a chunk waits until it is on the disk, and logs the state it finds then: the
/// chunk may have been replaced in memory.
#[test]
fn a_pin_is_of_a_chunk_that_is_on_the_disk() {
    for seed in 0..40 {
        let mut rig = Rig::new(14);
        rig.disk = rig.disk.clone().with_yields(seed);
        let e = rig.open();
        block_on(put(&e, 1, &value(1, 5000), Ack::Memory)).unwrap();
        rig.disk.forget_history();
        let work: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = vec![
            Box::pin(async {
                assert!(e.set_pinned(ChunkId(1), true).await.unwrap());
            }),
            Box::pin(async {
                for n in 2..6 {
                    put(&e, 1, &value(n, 5000), Ack::Memory).await.unwrap();
                    put(&e, 9, &value(n, 10), Ack::Disk).await.unwrap();
                }
            }),
        ];
        run_all(work);
        block_on(put(&e, 9, &value(9, 10), Ack::Disk)).unwrap();
        for image in rig.disk.crash_images(60, seed) {
            let found = block_on(rig.with_disk(image).open().read(ChunkId(1)));
            assert!(found.is_ok(), "seed {seed}: {found:?}");
        }
    }
}

/// A restart repairs a fold that a crash tore, and another crash tears the restart's own fold.
#[test]
fn a_torn_fold_that_makes_good_a_torn_one_loses_nothing() {
    let rig = Rig::new(14);
    let e = rig.open();
    block_on(put(&e, 1, &value(1, 30_000), Ack::Disk)).unwrap();
    block_on(patch(&e, (1, 2), 10, b"new")).unwrap().unwrap();
    let mut two = value(1, 30_000);
    two[10..13].copy_from_slice(b"new");
    rig.disk.forget_history();
    block_on(e.checkpoint()).unwrap();
    let mut torn = 0;
    for image in rig.disk.crash_images(150, 1) {
        let once = rig.with_disk(image);
        once.disk.forget_history();
        let e = once.open();
        assert_eq!(get(&e, 2).as_ref(), Some(&two));
        torn += u64::from(e.metrics().folds.get() > 0);
        for image in once.disk.crash_images(60, 2) {
            assert_eq!(get(&once.with_disk(image).open(), 2).as_ref(), Some(&two));
        }
    }
    assert!(torn > 20, "{torn} folds were done again");
}

#[test]
fn a_full_disk_folds_before_it_refuses() {
    let rig = Rig::new(14);
    let e = rig.open();
    for id in 0..10 {
        block_on(put(&e, id, &value(1, 100_000), Ack::Disk)).unwrap();
        block_on(patch(&e, (id, 1 << 100), 10, b"new")).unwrap().unwrap();
        assert!(block_on(e.promote(ChunkId(1 << 100), ChunkId(id), b"")).unwrap());
    }
    assert_eq!(e.metrics().folds.get(), 0);
    let error = (20..300).find_map(|id| block_on(put(&e, id, &value(1, 100_000), Ack::Disk)).err());
    assert!(matches!(error, Some(EngineError::NoSpace)), "{error:?}");
    assert_eq!(e.metrics().folds.get(), 10);
    let chunks = e.stats().chunks;
    assert_eq!(e.stats().used_bytes / chunks, 106_496, "each has one slab");
}
