//! Disks of earlier formats stay readable for ever.
//!
//! A golden file holds the pages of a small disk: offset u64, length u32, bytes without trailing
//! zeros. `MILLPOND_GOLDEN=write cargo test -p millpond-engine golden` writes the one of the
//! current format; those of earlier formats were written by the code of their time and never
//! change.

use std::path::PathBuf;

use millpond_engine::{FORMAT_VERSION, LostChunk, PatchRequest};
use millpond_env::FakeDisk;
use millpond_types::{ByteSize, ChunkId, Crc32c, GroupId, UnixSeconds, Uuid128};

use crate::harness::{
    Ack, Cursor, ErrorKind, Fake, FormatOptions, Rig, WriteRequest, block_on, buf, get, request,
};

const SEGMENT: u64 = 128 << 10;
const CAPACITY: u64 = (64 << 10) + 12 * SEGMENT;

fn path(version: u32) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{version}.pages"))
}

/// A few bytes that differ, then zeros: little to keep in the repository.
fn sparse(n: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes.iter_mut().step_by(65_536).for_each(|b| *b = n + 1);
    bytes
}

fn rig(disk: FakeDisk) -> Rig {
    Rig::over(disk)
}

fn formatted() -> Rig {
    let rig = rig(FakeDisk::new(CAPACITY));
    let options = FormatOptions {
        segment_bytes: ByteSize(SEGMENT),
        ..FormatOptions::new(Uuid128([7; 16]), Uuid128([8; 16]))
    };
    block_on(Fake::format(&rig.disk, &rig.pool, options)).unwrap();
    rig
}

/// Length of the chunk stored under an id.
fn len_of(id: u8) -> usize {
    [0, 10, 4096, 5000, 66_000, 100][usize::from(id) % 6]
}

/// Writes content that is later checked as chunk `id`, perhaps under another id.
fn write(e: &Fake, under: u128, id: u8, n: u8) {
    let req = WriteRequest {
        attrs: &[id; 9],
        group: GroupId(u32::from(id % 2)),
        priority: id % 4,
        expires: (id == 5).then_some(UnixSeconds(4_000_000_000)),
        evictable: id.is_multiple_of(3),
        ..request(buf(e, &sparse(n, len_of(id))), Ack::Disk)
    };
    block_on(e.write(ChunkId(under), req)).unwrap();
}

/// Chunks in the checkpoint and in the log: written, replaced, deleted, pinned, appended to; from
/// format 2 on promoted.
fn fill(e: &Fake) {
    let write = |id: u8, n: u8| write(e, id.into(), id, n);
    (0..9).for_each(|id| write(id, id + 50));
    block_on(e.checkpoint()).unwrap();
    // One is replaced, one is new, one is gone.
    (3..7).for_each(|id| write(id, id));
    write(9, 9);
    block_on(e.delete(&[ChunkId(8)], Ack::Disk)).unwrap();
    assert!(block_on(e.set_pinned(ChunkId(2), true)).unwrap());
    let more = buf(e, &[77; 50]);
    assert!(block_on(e.append(ChunkId(1), 10, more)).unwrap().is_some());
}

fn promote(e: &Fake) {
    // Over an existing chunk, over none, and one without bytes.
    for (id, n) in [(3, 93), (4, 94), (8, 98), (6, 96)] {
        write(e, 1 << 100 | u128::from(id), id, n);
        let from = ChunkId(1 << 100 | u128::from(id));
        assert!(block_on(e.promote(from, ChunkId(id.into()), &[id; 9])).unwrap());
    }
    block_on(e.flush()).unwrap();
}

/// Patches, from format 3 on: a promoted one over a promoted chunk, and one that was not promoted.
fn patch(e: &Fake) {
    let patch = |base: u8, to: u128, offset: u32| {
        let bytes: &[u8] = &[55; 20];
        let (attrs, base, crc) = (&[base; 9], ChunkId(base.into()), Crc32c::of(bytes));
        let request = PatchRequest { base, offset, bytes, crc, attrs };
        assert!(block_on(e.write_patch(ChunkId(to), request)).unwrap().is_some());
    };
    for offset in [100, 65_990] {
        patch(4, 1 << 100 | 4, offset);
        assert!(block_on(e.promote(ChunkId(1 << 100 | 4), ChunkId(4), &[4; 9])).unwrap());
    }
    block_on(e.flush()).unwrap();
    patch(7, 10, 0);
}

/// Lost chunks, from format 4 on: one in the log, and one that was in the checkpoint.
fn lose(e: &Fake) {
    for id in [11, 1] {
        let (attrs, crc) = (&[id; 9], Crc32c(77));
        let (group, priority, evictable) = (GroupId(u32::from(id % 2)), id % 4, false);
        let lost = LostChunk { len: 66_000, crc, attrs, group, priority, evictable };
        block_on(e.write_lost(ChunkId(id.into()), lost)).unwrap();
    }
}

/// Checks the chunks that [`fill`] and, from format 2 on, [`promote`] leave.
fn check(e: &Fake, version: u32) {
    for id in 0..12u8 {
        let promoted = version > 1 && [3, 4, 6, 8].contains(&id);
        let n = match id {
            _ if promoted => id + 90,
            3..7 | 9 => id,
            _ => id + 50,
        };
        let mut want = Some(sparse(n, len_of(id)));
        match (id, &mut want) {
            (1, Some(bytes)) => bytes.extend([77; 50]),
            (8, _) if !promoted => want = None,
            (4, Some(bytes)) if version > 2 => {
                bytes.resize(66_010, 0);
                bytes[100..120].fill(55);
                bytes[65_990..].fill(55);
            }
            _ => {}
        }
        let lost = version > 3 && [1, 11].contains(&id);
        if lost {
            let error = block_on(e.read(ChunkId(id.into()))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "chunk {id}");
            let info = e.lookup(ChunkId(id.into())).unwrap();
            assert_eq!((info.lost, info.len, info.crc), (true, 66_000, Crc32c(77)));
        } else if id < 10 {
            assert_eq!(get(e, id.into()), want, "chunk {id}");
        }
        if id == 10 {
            continue; // It is checked below.
        }
        let Some(info) = e.lookup(ChunkId(id.into())) else { continue };
        assert_eq!((info.group.0, info.priority), (u32::from(id % 2), id % 4), "chunk {id}");
        assert_eq!((info.pinned, info.evictable), (id == 2, id.is_multiple_of(3)), "chunk {id}");
        assert_eq!(info.expires.is_some(), id == 5, "chunk {id}");
        assert_eq!(*e.attrs(info.id).unwrap(), [id; 9], "chunk {id}");
    }
    assert_eq!(get(e, 10), (version > 2).then(|| vec![55; 20]));
    let (page, _) = e.scan(None, Cursor::default(), 100);
    assert_eq!(page.len(), [9, 10, 11, 12][version as usize - 1]);
}

fn dump(disk: &FakeDisk) -> Vec<u8> {
    let mut out = Vec::new();
    for offset in disk.written_blocks() {
        let mut page = vec![0; 4096];
        disk.peek(offset, &mut page);
        let used = page.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        if used > 0 {
            out.extend(offset.to_le_bytes());
            out.extend(u32::try_from(used).unwrap().to_le_bytes());
            out.extend(&page[..used]);
        }
    }
    out
}

fn load(version: u32) -> Rig {
    let bytes = std::fs::read(path(version)).unwrap();
    let disk = FakeDisk::new(CAPACITY);
    let mut left = &bytes[..];
    while !left.is_empty() {
        let offset = u64::from_le_bytes(left[..8].try_into().unwrap());
        let len = u32::from_le_bytes(left[8..12].try_into().unwrap()) as usize;
        disk.poke(offset, &left[12..12 + len]);
        left = &left[12 + len..];
    }
    rig(disk)
}

#[test]
fn todays_disk_is_written_when_asked() {
    if std::env::var_os("MILLPOND_GOLDEN").is_none() {
        return;
    }
    let rig = formatted();
    let e = rig.open();
    fill(&e);
    promote(&e);
    patch(&e);
    lose(&e);
    drop(e);
    std::fs::write(path(FORMAT_VERSION), dump(&rig.disk)).unwrap();
}

fn inspected(rig: &Rig) -> u32 {
    let found = block_on(millpond_engine::check(&rig.disk, &rig.pool)).unwrap();
    let flawed = found.errors.iter().any(|error| !error.contains("is lost"));
    assert!(!flawed, "{found}");
    found.superblock.version
}

#[test]
fn every_format_is_read_and_becomes_todays() {
    for version in 1..=FORMAT_VERSION {
        let rig = load(version);
        assert_eq!(inspected(&rig), version);
        check(&rig.open(), version);
        assert_eq!(inspected(&rig), FORMAT_VERSION);
        // Once more, after the writes of the first opening, and after a checkpoint in the current
        // format.
        let e = rig.open();
        check(&e, version);
        block_on(e.checkpoint()).unwrap();
        drop(e);
        check(&rig.open(), version);
    }
}

#[test]
fn a_crash_during_the_migration_leaves_one_of_both() {
    let rig = load(1);
    rig.disk.forget_history();
    drop(rig.open());
    let mut seen = std::collections::HashSet::new();
    for image in rig.disk.crash_images(200, 1) {
        let again = rig.with_disk(image);
        seen.insert(inspected(&again));
        check(&again.open(), 1);
    }
    assert_eq!(seen.len(), 2, "{seen:?}");
}
