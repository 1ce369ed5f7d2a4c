//! Chunks whose bytes are lost: known, and never read as anything.

use std::collections::BTreeSet;
use std::sync::Arc;

use millpond_engine::{LostChunk, check};
use millpond_types::{ChunkId, Crc32c, GroupId};
use parking_lot::Mutex;

use crate::harness::{
    Ack, Cursor, EngineError, ErrorKind, Fake, Rig, block_on, buf, get, patch, put, value,
};

const LENS: [usize; 3] = [5_000, 65_536, 200_000];

/// A disk of a replica: unreadable chunks stay.
fn rig() -> Rig {
    let mut rig = Rig::new(12);
    rig.options.own_removal = false;
    rig
}

fn lose(e: &Fake, id: u128, bytes: &[u8]) -> Result<(), EngineError> {
    let lost = LostChunk {
        len: u32::try_from(bytes.len()).unwrap(),
        crc: Crc32c::of(bytes),
        attrs: b"label",
        group: GroupId(4),
        priority: 2,
        evictable: true,
    };
    block_on(e.write_lost(ChunkId(id), lost))
}

fn is_refused(e: &Fake, id: u128) {
    let id = ChunkId(id);
    let kinds = [
        block_on(e.read(id)).map(|_| ()),
        block_on(e.read_range(id, 10..20)).map(|_| ()),
        block_on(e.read_range(id, 4_000..1 << 20)).map(|_| ()),
        block_on(e.verify(id)).map(|_| ()),
    ];
    for kind in kinds {
        assert_eq!(kind.unwrap_err().kind(), ErrorKind::Corrupt);
    }
    assert!(e.read_cached(id).is_none());
}

#[test]
fn what_is_lost_is_known_and_refused_and_stays_so() {
    let mut rig = rig();
    let told: Arc<Mutex<BTreeSet<ChunkId>>> = Arc::default();
    let tell = Arc::clone(&told);
    rig.options.on_damaged = Some(Arc::new(move |id| {
        tell.lock().insert(id);
    }));
    let mut e = rig.open();
    for (id, len) in LENS.into_iter().enumerate() {
        // Over no chunk, and over bytes of other content and length.
        if id != 0 {
            block_on(put(&e, id as u128, &value(9, 700), Ack::Disk)).unwrap();
        }
        lose(&e, id as u128, &value(id as u64, len)).unwrap();
    }
    assert_eq!(e.stats().used_bytes, 0, "what it replaced is given back, and it needs no room");
    for round in 0..4 {
        for (id, len) in LENS.into_iter().enumerate() {
            is_refused(&e, id as u128);
            let info = e.lookup(ChunkId(id as u128)).unwrap();
            let known = (info.len as usize, info.crc, info.group, info.priority, info.evictable);
            let crc = Crc32c::of(&value(id as u64, len));
            assert_eq!(known, (len, crc, GroupId(4), 2, true), "round {round}");
            assert!(info.lost);
            assert_eq!(*e.attrs(info.id).unwrap(), *b"label");
        }
        assert_eq!(e.scan(None, Cursor::default(), 10).0.len(), 3);
        assert_eq!(block_on(e.scrub_pass()).unwrap(), 3);
        assert_eq!(std::mem::take(&mut *told.lock()).len(), 3, "others are asked again and again");
        // From the log, from a checkpoint, and after both.
        if round == 1 {
            block_on(e.checkpoint()).unwrap();
        }
        block_on(e.maintain()).unwrap();
        drop(e);
        let found = block_on(check(&rig.disk, &rig.pool)).unwrap();
        assert_eq!(found.errors.len(), 3, "{found}");
        assert!(found.errors.iter().all(|error| error.contains("is lost")), "{found}");
        e = rig.open();
    }
}

#[test]
fn nothing_is_made_from_what_is_lost_and_a_whole_write_mends_it() {
    let rig = rig();
    let e = rig.open();
    let bytes = value(1, 5_000);
    for id in 1..4 {
        lose(&e, id, &bytes).unwrap();
    }
    let made = block_on(patch(&e, (1, 7), 10, b"part"));
    assert!(!matches!(made, Ok(Some(_))), "{made:?}");
    let more = buf(&e, b"more");
    let appended = block_on(e.append(ChunkId(1), 5_000, more));
    assert_eq!(appended.unwrap_err().kind(), ErrorKind::Corrupt);
    is_refused(&e, 1);
    // It stays lost under another name, and a chunk with bytes can replace it.
    assert!(block_on(e.promote(ChunkId(1), ChunkId(5), b"label")).unwrap());
    is_refused(&e, 5);
    block_on(put(&e, 6, &bytes, Ack::Disk)).unwrap();
    assert!(block_on(e.promote(ChunkId(6), ChunkId(5), b"label")).unwrap());
    block_on(put(&e, 2, &bytes, Ack::Disk)).unwrap();
    assert_eq!(block_on(e.delete(&[ChunkId(3)], Ack::Disk)).unwrap(), 1);
    for e in [e, rig.open()] {
        assert_eq!((get(&e, 5), get(&e, 2)), (Some(bytes.clone()), Some(bytes.clone())));
        assert!(!e.lookup(ChunkId(2)).unwrap().lost);
        assert!(e.lookup(ChunkId(1)).is_none() && e.lookup(ChunkId(3)).is_none());
        drop(e);
    }
}

#[test]
fn after_a_crash_it_is_lost_once_that_was_said() {
    let rig = rig();
    let e = rig.open();
    let bytes = value(1, 5_000);
    block_on(put(&e, 2, &value(2, 300), Ack::Disk)).unwrap();
    rig.disk.forget_history();
    lose(&e, 1, &bytes).unwrap();
    assert!(block_on(e.promote(ChunkId(1), ChunkId(2), b"label")).unwrap());
    block_on(e.flush()).unwrap();
    drop(e);
    for image in rig.disk.crash_images(200, 1) {
        let e = rig.with_disk(image).open();
        let old = e.lookup(ChunkId(2)).unwrap();
        if old.lost {
            is_refused(&e, 2);
            assert!(e.lookup(ChunkId(1)).is_none());
        } else {
            assert_eq!(get(&e, 2), Some(value(2, 300)));
        }
    }
    is_refused(&rig.open(), 2);
}

#[test]
fn of_nothing_nothing_is_lost() {
    let rig = rig();
    let e = rig.open();
    assert_eq!(lose(&e, 1, b"").unwrap_err().kind(), ErrorKind::Invalid);
    assert!(e.lookup(ChunkId(1)).is_none());
}
