//! Folding patches beside faults, full disks and other changes.

use std::cell::Cell;
use std::pin::Pin;

use millpond_engine::{ChunkInfo, EngineOptions, PatchRequest};
use millpond_types::{ByteSize, ChunkId, Crc32c};

use crate::harness::{
    Ack, EngineError, Fake, Fault, FaultKind, Rig, block_on, get, put, run_all, value,
};

async fn patch(
    e: &Fake,
    (base, to): (u128, u128),
    offset: usize,
    bytes: &[u8],
) -> Result<Option<ChunkInfo>, EngineError> {
    let request = PatchRequest {
        base: ChunkId(base),
        offset: u32::try_from(offset).unwrap(),
        bytes,
        crc: Crc32c::of(bytes),
        attrs: b"patched",
    };
    e.write_patch(ChunkId(to), request).await
}

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
    // The next checkpoint is not kept from counting; the bad slab stays away for a minute.
    block_on(e.checkpoint()).unwrap();
    assert_eq!((e.metrics().checkpoints.get(), e.metrics().folds.get()), (1, 1));
    assert_eq!(e.stats().used_bytes, 3 * 12_288);
    rig.clock.advance(std::time::Duration::from_secs(61));
    block_on(e.maintain()).unwrap();
    assert_eq!(e.stats().used_bytes, 2 * 12_288);
    drop(e);
    assert_eq!(get(&rig.open(), 2), Some(two));
}

/// The slab that a patched chunk has reserved is the only one of its segment, and the log has taken the
/// segments that are kept for it since: nothing but that slab is left.
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
        // It has the guard that the other two wait for, in this order.
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

#[test]
fn removals_are_durable_before_a_checkpoint_counts() {
    let rig = Rig::new(24);
    let e = rig.open();
    block_on(put(&e, 1, &value(1, 9000), Ack::Disk)).unwrap();
    rig.disk.forget_history();
    block_on(patch(&e, (1, 2), 10, b"new")).unwrap().unwrap();
    let acknowledged = rig.disk.history_len();
    // Shown in memory alone: the chunk has the other's name, and then is gone.
    assert!(block_on(e.promote(ChunkId(2), ChunkId(1), b"")).unwrap());
    block_on(e.delete_lazy(&[ChunkId(1)])).unwrap();
    block_on(e.checkpoint()).unwrap();
    let (mut staged, mut gone) = (0, 0);
    for image in rig.disk.crash_images(200, 5) {
        let point = image.crash_point();
        let e = rig.with_disk(image).open();
        match (get(&e, 1), get(&e, 2)) {
            (Some(_), Some(_)) => staged += 1,
            (None, None) => gone += 1,
            (Some(_), None) if point < acknowledged => {}
            (one, two) => panic!("at {point}: {:?} {:?}", one.is_some(), two.is_some()),
        }
    }
    assert!(staged > 0 && gone > 0);
}

/// A pin that looked at a chunk, waited until that was on the disk, and logs what it finds then: that may
/// have been replaced in memory.
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
