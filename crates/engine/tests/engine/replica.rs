//! Needs of a chain's replica: removal decided elsewhere, damage reported and repaired.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use millpond_types::{ChunkId, Tick, UnixSeconds};
use parking_lot::Mutex;

use crate::harness::{
    Ack, EngineError, ErrorKind, Fake, Fault, FaultKind, Rig, WriteRequest, block_on, buf, get,
    put, request, value,
};

const LEN: usize = 60_000;

fn rig(segments: u64) -> Rig {
    let mut rig = Rig::new(segments);
    rig.options.own_removal = false;
    rig
}

fn store(e: &Fake, id: u128, attrs: &[u8]) -> Result<(), EngineError> {
    let bytes = buf(e, &value(u64::try_from(id).unwrap(), LEN));
    let req = WriteRequest { evictable: true, attrs, ..request(bytes, Ack::Disk) };
    block_on(e.write(ChunkId(id), req)).map(|_| ())
}

#[test]
fn nothing_is_removed_unless_asked() {
    let rig = rig(12);
    let e = rig.open();
    assert_eq!(e.over_watermark(), None);
    let full = (0..1000).find(|id| match store(&e, *id, b"") {
        Ok(()) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            true
        }
    });
    let full = full.unwrap();
    block_on(e.maintain()).unwrap();
    assert!((0..full).all(|id| get(&e, id) == Some(value(u64::try_from(id).unwrap(), LEN))));
    let over = e.over_watermark().unwrap();
    let stats = e.stats();
    assert_eq!(over, stats.used_bytes - stats.usable_bytes / 1000 * 900);
    // The target of an external remover: one round of the coldest chunks is enough.
    let victims = e.coldest(over, |_, _, _| true);
    assert_eq!(block_on(e.delete_lazy(&victims)).unwrap(), victims.len());
    block_on(e.flush()).unwrap();
    assert_eq!(e.over_watermark(), None);
    assert!(e.stats().used_bytes > stats.usable_bytes / 1000 * 850, "not much too far");
    store(&e, 5000, b"").unwrap();
}

#[test]
fn what_has_expired_or_cannot_be_written_stays() {
    let rig = rig(12);
    let e = rig.open();
    let req = WriteRequest {
        expires: Some(UnixSeconds(1_700_000_010)),
        evictable: true,
        ..request(buf(&e, &value(1, 5000)), Ack::Memory)
    };
    block_on(e.write(ChunkId(1), req)).unwrap();
    rig.disk.inject(Fault { kind: FaultKind::Write, after: 0, errno: 5, partial: 0 });
    assert_eq!(block_on(e.flush()).unwrap_err().kind(), ErrorKind::Io);
    rig.clock.advance(Duration::from_mins(1));
    block_on(e.maintain()).unwrap();
    assert_eq!(get(&e, 1), Some(value(1, 5000)));
    assert_eq!(e.lookup(ChunkId(1)).unwrap().expires, Some(UnixSeconds(1_700_000_010)));
    assert_eq!(e.scan(None, crate::harness::Cursor::default(), 10).0.len(), 1);
    block_on(e.flush()).unwrap();
    drop(e);
    assert_eq!(get(&rig.open(), 1), Some(value(1, 5000)));
}

#[test]
fn the_coldest_come_once_and_only_those_that_may_go() {
    let rig = rig(24);
    let e = rig.open();
    for id in 0..2000u64 {
        let attrs = if id < 10 { &b"staged"[..] } else { b"" };
        let req = WriteRequest { evictable: true, attrs, ..request(buf(&e, b"x"), Ack::Memory) };
        block_on(e.write(ChunkId(id.into()), req)).unwrap();
    }
    block_on(e.flush()).unwrap();
    let all: BTreeSet<u128> = (0..2000).collect();
    (10..20).for_each(|id| assert!(e.lease(ChunkId(id), Tick(1 << 40))));
    (20..30).for_each(|id| assert!(block_on(e.set_pinned(ChunkId(id), true)).unwrap()));
    (30..40).for_each(|id| assert!(e.touch(ChunkId(id))));
    let mut accepted = Vec::new();
    let mut ask = |bytes: u64| {
        accepted.clear();
        let got = e.coldest(bytes, |id, attrs, _| {
            let yes = attrs != b"staged";
            accepted.extend(yes.then_some(id));
            yes
        });
        assert_eq!(got, accepted, "exactly what was accepted, in that order");
        got.into_iter().map(|id| id.0).collect::<Vec<_>>()
    };
    // A caller that removes nothing gets no chunk twice before many others.
    let mut seen = BTreeSet::new();
    while seen.len() < 800 {
        let got = ask(10 * 4096);
        assert_eq!(got.len(), 10);
        for id in got {
            assert!(seen.insert(id), "{id} twice, {} seen", seen.len());
        }
    }
    assert!(all.range(..40).all(|id| !seen.contains(id)), "not the read ones, not the kept ones");
    assert!((0..2000).all(|id| e.lookup(ChunkId(id)).is_some()), "nothing was removed");
    // A caller that removes them gets all, including chunks that were read once.
    let mut gone = BTreeSet::new();
    while gone.len() < 1970 {
        let got: Vec<ChunkId> = ask(100 * 4096).into_iter().map(ChunkId).collect();
        assert!(!got.is_empty(), "{} gone", gone.len());
        assert_eq!(block_on(e.delete_lazy(&got)).unwrap(), got.len());
        gone.extend(got.iter().map(|id| id.0));
    }
    assert!(gone == all.range(30..).copied().collect());
    assert_eq!(e.coldest(u64::MAX, |_, attrs, _| attrs != b"staged"), Vec::new());
}

#[test]
fn one_call_looks_at_a_bounded_number_of_chunks() {
    let rig = rig(48);
    let e = rig.open();
    for id in 0..30_000u128 {
        let req = WriteRequest { evictable: true, ..request(buf(&e, b""), Ack::Memory) };
        block_on(e.write(ChunkId(id << 64 | id), req)).unwrap();
        if id % 1000 == 999 {
            block_on(e.flush()).unwrap();
        }
    }
    let mut asked = 0;
    let none = e.coldest(u64::MAX, |_, _, _| {
        asked += 1;
        false
    });
    assert!(none.is_empty() && (1..5000).contains(&asked), "{asked}");
    // The next call continues behind them: every chunk is asked about in the end.
    let mut seen = BTreeSet::new();
    for _ in 0..40 {
        let none = e.coldest(u64::MAX, |id, _, _| {
            seen.insert(id);
            false
        });
        assert!(none.is_empty());
    }
    assert_eq!(seen.len(), 30_000);
}

/// Flips a bit of every copy of the chunk's bytes on the disk.
fn damage(rig: &Rig, bytes: &[u8]) {
    let mut hit = 0;
    for block in rig.disk.written_blocks() {
        let mut page = vec![0; 4096];
        rig.disk.peek(block, &mut page);
        if page == bytes[..4096] {
            rig.disk.flip_bit(block + 100, 3);
            hit += 1;
        }
    }
    assert_eq!(hit, 1);
}

#[test]
fn damage_is_reported_and_repaired_in_place() {
    let mut rig = rig(24);
    let told = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&told);
    rig.options.on_damaged = Some(Arc::new(move |id| to.lock().push(id.0)));
    let e = rig.open();
    (1..4).for_each(|id| store(&e, id, b"a").unwrap());
    block_on(put(&e, 4, &value(4, LEN), Ack::Disk)).unwrap();
    block_on(e.checkpoint()).unwrap();
    let _ = e.reclaim(1 << 30);
    damage(&rig, &value(2, LEN));
    damage(&rig, &value(4, LEN));
    for id in [2, 4] {
        let error = block_on(e.read(ChunkId(id))).unwrap_err();
        assert!(matches!(error, EngineError::Corrupt(c) if c == ChunkId(id)), "{error}");
        let error = block_on(e.read_range(ChunkId(id), 0..10)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(e.lookup(ChunkId(id)).is_some(), "it stays");
    }
    assert_eq!(std::mem::take(&mut *told.lock()), [2, 2, 4, 4]);
    assert_eq!(block_on(e.scrub_pass()).unwrap(), 2);
    assert_eq!(told.lock().drain(..).collect::<BTreeSet<_>>(), BTreeSet::from([2, 4]));
    assert_eq!(block_on(e.verify(ChunkId(2))).unwrap_err().kind(), ErrorKind::Corrupt);
    told.lock().clear();
    // It can be promoted away from or onto, and replaced; then all is well.
    store(&e, 2, b"a").unwrap();
    store(&e, 9, b"a").unwrap();
    assert!(block_on(e.promote(ChunkId(9), ChunkId(4), b"a")).unwrap());
    block_on(e.flush()).unwrap();
    let _ = e.reclaim(1 << 30);
    assert_eq!(block_on(e.scrub_pass()).unwrap(), 0);
    assert_eq!([get(&e, 2), get(&e, 4)], [Some(value(2, LEN)), Some(value(9, LEN))]);
    assert!(told.lock().is_empty());
}

#[test]
fn without_a_callback_only_what_may_go_goes() {
    let rig = Rig::new(24);
    let e = rig.open();
    (1..3).for_each(|id| store(&e, id, b"a").unwrap());
    block_on(put(&e, 4, &value(4, LEN), Ack::Disk)).unwrap();
    block_on(e.checkpoint()).unwrap();
    let _ = e.reclaim(1 << 30);
    damage(&rig, &value(2, LEN));
    damage(&rig, &value(4, LEN));
    assert_eq!(block_on(e.scrub_pass()).unwrap(), 2);
    assert_eq!(get(&e, 2), None);
    assert_eq!(block_on(e.read(ChunkId(4))).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(e.lookup(ChunkId(4)).is_some());
}
