//! Compaction: the segments it frees, and that it may stop at any point.

use std::task::Poll;
use std::time::Duration;

use millpond_types::ChunkId;

use crate::harness::{Ack, Fake, Rig, block_on, get, put, value};

fn bytes_of(id: u128) -> Vec<u8> {
    value(u64::try_from(id).unwrap(), 4000)
}

/// Segments of 4 KiB chunks, a quarter of each in use.
fn scattered(rig: &Rig) -> Fake {
    let e = rig.open();
    for id in 0..2000 {
        block_on(put(&e, id, &bytes_of(id), Ack::Disk)).unwrap();
    }
    let gone: Vec<ChunkId> = (0..2000).filter(|id| id % 4 != 0).map(ChunkId).collect();
    block_on(e.delete(&gone, Ack::Disk)).unwrap();
    e
}

#[test]
fn compaction_makes_segments_free_and_may_be_dropped_at_any_point() {
    let mut dropped = 0;
    for turns in (0..400).step_by(3) {
        let rig = Rig::new(16);
        let rig = rig.with_disk(rig.disk.clone().with_yields(turns));
        let e = scattered(&rig);
        let used = e.stats().used_bytes;
        {
            let mut doomed = Box::pin(e.maintain());
            dropped += u32::from(block_on(std::future::poll_fn(|cx| {
                Poll::Ready((0..turns).all(|_| doomed.as_mut().poll(cx).is_pending()))
            })));
        }
        // Slabs that were being written are used again after a minute.
        rig.clock.advance(Duration::from_mins(2));
        let before = e.stats().free_segments;
        while block_on(e.maintain()).is_ok() && e.stats().compactable_segments > 0 {}
        assert_eq!(e.stats().used_bytes, used, "turns {turns}: a copy without an owner");
        assert!(e.stats().free_segments >= before, "turns {turns}");
        assert_eq!(e.stats().compactable_segments, 0, "turns {turns}");
        let right = |id: &u128| get(&e, *id) == Some(bytes_of(*id));
        assert!((0..2000).step_by(4).all(|id| right(&id)), "turns {turns}");
        drop(e);
        let e = rig.open();
        assert_eq!(e.stats().used_bytes, used, "turns {turns}");
        assert!((0..2000).step_by(4).all(|id| get(&e, id) == Some(bytes_of(id))));
    }
    assert!(dropped > 10, "{dropped} of them were dropped under way");
}
