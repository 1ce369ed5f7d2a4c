//! Full disks, failing disks, foreign disks, bad requests.

use std::time::Duration;

use millpond_env::FakeDisk;
use millpond_types::{ChunkId, Crc32c, GroupId, UnixSeconds, Uuid128};

use crate::harness::{
    Ack, ErrorKind, Fault, FaultKind, Rig, WriteRequest, block_on, buf, get, put, request, value,
};

#[test]
fn a_full_disk_refuses_and_keeps_what_it_has() {
    let rig = Rig::new(12);
    let e = rig.open();
    let full = (0..1000u64).find(|id| {
        block_on(put(&e, (*id).into(), &value(*id, 60_000), Ack::Disk))
            .is_err_and(|e| e.kind() == ErrorKind::NoSpace)
    });
    let full = full.unwrap();
    assert!((0..full).all(|id| get(&e, id.into()) == Some(value(id, 60_000))));
    assert_eq!(block_on(e.delete(&[ChunkId(0), ChunkId(1)], Ack::Disk)).unwrap(), 2);
    block_on(put(&e, 5000, &value(5, 60_000), Ack::Disk)).unwrap();
    block_on(e.checkpoint()).unwrap();
    drop(e);
    assert_eq!(get(&rig.open(), 5000), Some(value(5, 60_000)));
}

/// When the index exceeds its memory, the coldest chunks are evicted, however much space is left.
#[test]
fn an_index_evicts_down_to_its_memory() {
    let mut rig = Rig::new(64);
    rig.options.index_bytes_max = millpond_types::ByteSize(64 << 10);
    rig.options.owner_bytes_per_chunk = 20;
    let e = rig.open();
    for id in 0..3000u64 {
        let bytes = buf(&e, &value(id, 100));
        let req = WriteRequest { evictable: true, ..request(bytes, Ack::Memory) };
        block_on(e.write(ChunkId(id.into()), req)).unwrap();
        if id % 20 == 19 {
            block_on(e.flush()).unwrap();
            block_on(e.maintain()).unwrap();
            let stats = e.stats();
            assert!(stats.index_bytes < 66 << 10, "{stats:?}");
        }
    }
    let stats = e.stats();
    assert!((200..700).contains(&stats.chunks), "{stats:?}");
    assert!(stats.index_bytes > 50 << 10, "no more goes than must: {stats:?}");
    assert!(stats.used_bytes < stats.room_bytes / 2, "space is left: {stats:?}");
    assert!((2990..3000).all(|id| get(&e, u128::from(id)) == Some(value(id, 100))));
    drop(e);
    // An index above its limit is loaded all the same, and shrinks then.
    rig.options.index_bytes_max = millpond_types::ByteSize(20 << 10);
    let e = rig.open();
    assert_eq!(e.stats().chunks, stats.chunks);
    block_on(e.maintain()).unwrap();
    assert!(e.stats().index_bytes <= 18 << 10, "{:?}", e.stats());
    // Marks that an owner keeps for removed chunks evict no others.
    let left = e.stats().chunks;
    for id in 5000..5100u64 {
        let mark = WriteRequest { group: GroupId::SYSTEM, ..request(buf(&e, &[]), Ack::Disk) };
        block_on(e.write(ChunkId(id.into()), mark)).unwrap();
    }
    block_on(e.maintain()).unwrap();
    assert!(e.index_bytes() > 30 << 10);
    assert_eq!(e.stats().chunks, left + 100);
}

/// A disk that gets no more room is full with the room it has: chunks are refused or evicted, log
/// and checkpoints continue, and no acknowledged chunk is lost.
#[test]
fn a_disk_without_room_for_all_its_segments_is_full_before() {
    for evictable in [false, true] {
        let mut rig = Rig::new(64);
        rig.options.checkpoint_log_bytes = millpond_types::ByteSize(64 << 10);
        rig.disk.set_room(8 << 20);
        let e = rig.open();
        let usable = e.stats().room_bytes;
        assert!(usable > 50 << 20, "it is not known yet: {usable}");
        let write = |id: u64| {
            let req = WriteRequest { evictable, ..request(buf(&e, &value(id, 60_000)), Ack::Disk) };
            block_on(e.write(ChunkId(id.into()), req))
        };
        let mut kept = Vec::new();
        let mut refused = 0;
        for id in 0..1000u64 {
            match write(id) {
                Ok(_) => kept.push(id),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                    refused += 1;
                }
            }
            block_on(e.maintain()).unwrap();
        }
        assert!(!e.stats().read_only);
        let room = e.stats().room_bytes;
        assert!(room < 9 << 20, "it is known: {room}");
        assert!(e.stats().used_bytes <= 8 << 20);
        let there = kept.iter().filter(|id| get(&e, u128::from(**id)).is_some()).count();
        if evictable {
            assert_eq!(refused, 0, "the coldest give way");
            assert!((40..kept.len()).contains(&there), "{there}");
        } else {
            assert!(refused > 800, "{refused}");
            assert_eq!(there, kept.len(), "what was acknowledged stays");
        }
        // The log and checkpoints never lack room.
        for n in 0..40 {
            assert_eq!(
                block_on(e.delete(&[ChunkId(kept[0].into())], Ack::Disk)).unwrap() > 0,
                n == 0 && !evictable
            );
            block_on(e.checkpoint()).unwrap();
        }
        block_on(put(&e, 5000, &value(5, 60_000), Ack::Disk)).unwrap();
        // Some room is free again; the engine asks for it after a while.
        rig.disk.set_room(100 << 20);
        rig.clock.advance(Duration::from_secs(6));
        block_on(e.maintain()).unwrap();
        assert!(e.stats().room_bytes > usable / 2, "those who see a full disk ask for nothing");
        for id in 2000..2300u64 {
            write(id).unwrap();
        }
        assert!(e.stats().room_bytes >= usable - (1 << 20), "{}", e.stats().room_bytes);
        drop(e);
        let e = rig.open();
        assert!((2000..2300).all(|id| get(&e, u128::from(id)) == Some(value(id, 60_000))));
    }
}

#[test]
fn what_a_disk_had_room_for_it_has_room_for_after_a_restart() {
    let rig = Rig::new(64);
    rig.disk.set_room(12 << 20);
    let e = rig.open();
    let fits = |e: &crate::harness::Fake| {
        let full = (0..1000u64)
            .find(|id| block_on(put(e, (*id).into(), &value(*id, 60_000), Ack::Disk)).is_err());
        full.unwrap()
    };
    let before = fits(&e);
    let all: Vec<ChunkId> = (0..before).map(|id| ChunkId(id.into())).collect();
    block_on(e.delete(&all, Ack::Disk)).unwrap();
    block_on(e.shutdown()).unwrap();
    drop(e);
    // Segments that had room are not asked for first.
    let e = rig.open();
    let after = fits(&e);
    // Except for one segment of a checkpoint, and one reserved for the next.
    assert!(after + 40 >= before, "{before}, then {after}");
}

#[test]
fn a_failed_flush_makes_the_engine_read_only() {
    for kind in [FaultKind::Sync, FaultKind::Write] {
        let rig = Rig::new(12);
        let e = rig.open();
        block_on(put(&e, 1, &value(1, 100), Ack::Disk)).unwrap();
        // For a write fault, let the data write pass and fail the log's.
        rig.disk.inject(Fault {
            kind,
            after: u64::from(kind == FaultKind::Write),
            errno: 5,
            partial: 0,
        });
        let error = block_on(put(&e, 2, &value(2, 100), Ack::Disk)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
        let error = block_on(put(&e, 3, &value(3, 100), Ack::Disk)).unwrap_err();
        assert!(error.to_string().contains("restart"), "{error}");
        assert_eq!(get(&e, 1), Some(value(1, 100)), "reads go on");
        assert!(e.stats().read_only);
    }
}

#[test]
fn a_failed_data_write_or_read_harms_nothing_else() {
    let rig = Rig::new(12);
    let e = rig.open();
    block_on(put(&e, 1, &value(1, 100), Ack::Disk)).unwrap();
    rig.disk.inject(Fault { kind: FaultKind::Write, after: 0, errno: 5, partial: 0 });
    let error = block_on(put(&e, 1, &value(2, 100), Ack::Disk)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert_eq!(get(&e, 1), Some(value(1, 100)));
    assert!(e.reclaim(1 << 30) > 0);
    rig.disk.inject(Fault { kind: FaultKind::Read, after: 0, errno: 5, partial: 0 });
    assert_eq!(get(&e, 1), Some(value(1, 100)), "it is read once more");
    assert!(e.reclaim(1 << 30) > 0);
    // An error that is not of a place does not count as damage.
    rig.disk.inject(Fault { kind: FaultKind::Read, after: 0, errno: 12, partial: 0 });
    assert_eq!(block_on(e.read(ChunkId(1))).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(get(&e, 1), Some(value(1, 100)), "a later read works");
    block_on(put(&e, 1, &value(3, 100), Ack::Disk)).unwrap();
}

#[test]
fn write_behind_keeps_what_may_not_be_lost() {
    let rig = Rig::new(12);
    let e = rig.open();
    block_on(put(&e, 1, &value(1, 100), Ack::Memory)).unwrap();
    rig.disk.inject(Fault { kind: FaultKind::Write, after: 0, errno: 5, partial: 0 });
    assert_eq!(block_on(e.flush()).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(get(&e, 1), Some(value(1, 100)));
    block_on(e.flush()).unwrap();
    drop(e);
    assert_eq!(get(&rig.open(), 1), Some(value(1, 100)));
}

#[test]
fn a_durable_exists_is_durable() {
    let rig = Rig::new(12);
    let e = rig.open();
    block_on(put(&e, 1, &value(1, 100), Ack::Memory)).unwrap();
    let again = WriteRequest {
        mode: crate::harness::WriteMode::IfAbsent,
        ..request(buf(&e, &value(2, 100)), Ack::Disk)
    };
    block_on(e.write(ChunkId(1), again)).unwrap();
    drop(e);
    assert_eq!(get(&rig.open(), 1), Some(value(1, 100)));
}

#[test]
fn expired_chunks_are_gone_and_their_space_comes_back() {
    let rig = Rig::new(12);
    let e = rig.open();
    let expires = Some(UnixSeconds(1_700_000_010));
    let req = WriteRequest { expires, ..request(buf(&e, &value(1, 5000)), Ack::Disk) };
    block_on(e.write(ChunkId(1), req)).unwrap();
    assert!(e.lookup(ChunkId(1)).is_some());
    rig.clock.advance(Duration::from_secs(11));
    assert!(e.lookup(ChunkId(1)).is_none() && get(&e, 1).is_none());
    block_on(e.maintain()).unwrap();
    assert_eq!((e.stats().chunks, e.stats().used_bytes), (0, 0));
}

#[test]
fn bad_requests_name_the_bound() {
    let rig = Rig::new(12);
    let e = rig.open();
    let bad = |req: WriteRequest<'_>, word: &str| {
        let error = block_on(e.write(ChunkId(1), req)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(word), "{error}");
    };
    let fine = || request(buf(&e, b"x"), Ack::Disk);
    bad(WriteRequest { crc: Crc32c(1), ..fine() }, "checksum");
    bad(WriteRequest { attrs: &[0; 257], ..fine() }, "256");
    bad(WriteRequest { priority: 4, ..fine() }, "priority");
    bad(request(buf(&e, &vec![0; (1 << 20) + 1]), Ack::Disk), "at most");
    block_on(put(&e, 1, b"", Ack::Disk)).unwrap();
    assert_eq!(get(&e, 1), Some(Vec::new()), "no bytes is a value");
}

#[test]
fn chunks_without_bytes_take_no_space() {
    let rig = Rig::new(12);
    let e = rig.open();
    for id in 0..3000u64 {
        let ack = if id % 2 == 0 { Ack::Memory } else { Ack::Disk };
        block_on(put(&e, id.into(), b"", ack)).unwrap();
    }
    let pool = rig.pool.used();
    block_on(e.flush()).unwrap();
    assert_eq!((e.stats().chunks, e.stats().used_bytes), (3000, 0));
    assert!(rig.pool.used() < pool / 10, "no memory either: {} of {pool}", rig.pool.used());
    // Replacing a chunk with bytes and the reverse, growth, compaction, promotion.
    block_on(put(&e, 0, &value(9, 5000), Ack::Disk)).unwrap();
    block_on(put(&e, 0, b"", Ack::Disk)).unwrap();
    assert_eq!(e.stats().used_bytes, 0);
    let more = buf(&e, &value(1, 9000));
    assert!(block_on(e.append(ChunkId(1), 0, more)).unwrap().is_some());
    assert!(block_on(e.promote(ChunkId(2), ChunkId(1 << 90), b"")).unwrap());
    assert_eq!(block_on(e.scrub_pass()).unwrap(), 0);
    block_on(e.maintain()).unwrap();
    block_on(e.checkpoint()).unwrap();
    block_on(put(&e, 4000, b"", Ack::Disk)).unwrap();
    drop(e);
    let e = rig.open();
    assert_eq!((e.stats().chunks, e.stats().used_bytes), (3001, 12_288));
    assert_eq!(get(&e, 1), Some(value(1, 9000)));
    assert_eq!([get(&e, 0), get(&e, 4000)], [Some(Vec::new()), Some(Vec::new())]);
    assert_eq!(block_on(e.delete(&[ChunkId(0), ChunkId(1)], Ack::Disk)).unwrap(), 2);
    assert_eq!((e.stats().chunks, e.stats().used_bytes), (2999, 0));
}

#[test]
fn foreign_disks_are_refused_with_the_fix() {
    let rig = Rig::new(12);
    let mut other = rig.clone();
    other.options.cluster_id = Some(Uuid128([9; 16]));
    let error = other.try_open().unwrap_err().to_string();
    assert!(error.contains("belongs to cluster"), "{error}");
    let error = rig.with_disk(FakeDisk::new(1 << 20)).try_open().unwrap_err().to_string();
    assert!(error.contains("not a Millpond disk"), "{error}");
    let short = FakeDisk::new(1 << 20);
    let mut page = [0; 8192];
    rig.disk.peek(0, &mut page);
    short.poke(0, &page);
    let error = rig.with_disk(short).try_open().unwrap_err().to_string();
    assert!(error.contains("truncated"), "{error}");
}

#[test]
fn groups_are_removed_whole() {
    let rig = Rig::new(32);
    let e = rig.open();
    for id in 0..3000u64 {
        block_on(put(&e, id.into(), b"abc", Ack::Memory)).unwrap();
    }
    block_on(e.flush()).unwrap();
    assert_eq!(block_on(e.remove_group(millpond_types::GroupId(1))).unwrap(), 3000);
    assert_eq!((e.stats().chunks, e.stats().used_bytes), (0, 0));
}
