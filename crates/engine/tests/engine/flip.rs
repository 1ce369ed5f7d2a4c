//! Every byte of a small image flipped: a miss or a clear error, never wrong bytes.

use std::collections::HashMap;

use millpond_types::{ChunkId, GroupId};

use crate::harness::{
    Ack, Cursor, EngineError, ErrorKind, Rig, WriteRequest, block_on, buf, put, request, value,
};

/// A disk with durable chunks in the checkpoint and in the log, and their contents.
fn image(clean: bool) -> (Rig, HashMap<u128, Vec<u8>>) {
    let rig = Rig::new(8);
    let e = rig.open();
    let mut all = HashMap::new();
    for id in 0..12u64 {
        let bytes = value(id, [10, 4096, 9000, 70_000][usize::try_from(id % 4).unwrap()]);
        // Overwritten once, so that an old version remains on the disk.
        block_on(put(&e, id.into(), &value(id + 100, 5000), Ack::Disk)).unwrap();
        let req = WriteRequest { evictable: id % 2 == 0, ..request(buf(&e, &bytes), Ack::Disk) };
        block_on(e.write(ChunkId(id.into()), req)).unwrap();
        if id == 6 {
            block_on(e.checkpoint()).unwrap();
        }
        all.insert(id.into(), bytes);
    }
    if clean {
        block_on(e.shutdown()).unwrap();
    } else {
        // Acts like the background after a quiet moment: the last data are known durable.
        drop(rig.open());
    }
    (rig, all)
}

fn flip_everything(clean: bool) {
    let (rig, all) = image(clean);
    let stride: u64 = if std::env::var_os("FLIP_ALL").is_some() { 1 } else { 211 };
    let mut refused = 0;
    for block in rig.disk.written_blocks() {
        let mut at = block + (block / 4096 % stride);
        while at < block + 4096 {
            let copy = clone_disk(&rig);
            copy.disk.flip_bit(at, u32::try_from(at % 8).unwrap());
            match copy.try_open() {
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Format, "flip at {at}: {error}");
                    refused += 1;
                }
                Ok(e) => {
                    for (id, bytes) in &all {
                        match block_on(e.read(ChunkId(*id))) {
                            Ok(Some(d)) => assert!(*d.bytes == **bytes, "flip at {at}: {id}"),
                            Ok(None) => assert!(id % 2 == 0, "flip at {at}: {id} is lost"),
                            Err(EngineError::Corrupt(c)) => assert_eq!(c, ChunkId(*id)),
                            Err(error) => panic!("flip at {at}: {error}"),
                        }
                    }
                    let (page, _) = e.scan(Some(GroupId(1)), Cursor::default(), 100);
                    assert!(page.iter().all(|(_, attrs)| **attrs == *b"key"));
                }
            }
            at += stride;
        }
    }
    assert!(refused > 0, "no flip hit what opening reads");
}

/// A separate disk with the same bytes.
fn clone_disk(rig: &Rig) -> Rig {
    rig.disk.forget_history();
    let copy = rig.disk.crash_images(1, 0).next().unwrap();
    rig.with_disk(copy)
}

#[test]
fn after_a_shutdown() {
    flip_everything(true);
}

#[test]
fn after_a_quiet_crash() {
    flip_everything(false);
}
