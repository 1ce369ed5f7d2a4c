//! Chunks of files on one chain: parts, cuts, pressure of blocks, a full disk, and the remains on a
//! replica that was away.

use millpond_types::wire::{
    ChunkBase, ChunkBases, ChunkChange, ChunkListRequest, ChunkReadRequest, ChunkStatRequest,
    ChunkUpdateRequest, Cut, PlacedChunk, ReadPart,
};
use millpond_types::{DataId, FileChunk};

use super::*;
use crate::FileUpdate;

const LEN: usize = 64 << 10;

impl Node {
    fn at(&self, index: u32) -> PlacedChunk {
        PlacedChunk { chain: self.chain.id, chunk: FileChunk { data: DataId(9), index } }
    }

    fn tag(&self, sequence: u64) -> ItemTag {
        ItemTag { channel: 0, sequence, chain: self.chain.id, issued: self.chain.version }
    }

    async fn write_part(&self, index: u32, (offset, bytes): (u32, &[u8]), n: u64) -> ItemStatus {
        let update = FileUpdate::new(self.at(index), Some((5, self.tag(n))), Ack::Disk);
        let buffer = self.pool.try_copy(bytes).unwrap().freeze();
        let host = Arc::clone(&self.host);
        host.write_file(update, offset, (buffer, Crc32c::of(bytes))).await
    }

    async fn cut(&self, index: u32, to: Option<u32>, sequence: u64) -> ItemStatus {
        let tags = Some(Tags { client: 5, items: vec![self.tag(sequence)] });
        let change = to.map_or(ChunkChange::Remove, ChunkChange::Cut);
        let cuts = vec![Cut { at: self.at(index), change }];
        self.host.cut_files(&ChunkUpdateRequest { ack: Ack::Disk, cuts, tags }).await[0]
    }

    async fn read_part(&self, index: u32, offset: u32, len: u32) -> Result<Vec<u8>, ItemStatus> {
        let request = ChunkReadRequest {
            parts: vec![ReadPart { at: self.at(index), offset, len, bases: ChunkBases::NONE }],
        };
        let deadline = RealClock::tick().plus(Duration::from_secs(5));
        let cached = self.host.cached_files(&request);
        let outcome = self.host.read_files(&request, deadline).await;
        if let Some(cached) = cached {
            assert_eq!(
                (cached.items, &cached.values[0][..]),
                (outcome.items.clone(), &outcome.values[0][..])
            );
        }
        match outcome.items[0].status {
            ItemStatus::Ok => {
                assert_eq!(outcome.items[0].crc, Crc32c::of(&outcome.values[0]));
                Ok(outcome.values[0].to_vec())
            }
            status => Err(status),
        }
    }

    /// Parts, each an index, an offset and a length, from memory.
    fn cached(&self, parts: &[(u32, u32, u32)]) -> Option<Vec<Vec<u8>>> {
        let part = |&(index, offset, len): &(u32, u32, u32)| ReadPart {
            at: self.at(index),
            offset,
            len,
            bases: ChunkBases::NONE,
        };
        let request = ChunkReadRequest { parts: parts.iter().map(part).collect() };
        let found = self.host.cached_files(&request)?;
        let values = found.values.iter().zip(&found.items);
        Some(
            values
                .map(|(value, item)| {
                    assert_eq!(item.crc, Crc32c::of(value));
                    value.to_vec()
                })
                .collect(),
        )
    }

    async fn change(&self, at: PlacedChunk, change: ChunkChange) -> ItemStatus {
        let request =
            ChunkUpdateRequest { ack: Ack::Disk, cuts: vec![Cut { at, change }], tags: None };
        self.host.cut_files(&request).await[0]
    }

    async fn write_at(&self, at: PlacedChunk, (offset, bytes): (u32, &[u8])) -> ItemStatus {
        let buffer = self.pool.try_copy(bytes).unwrap().freeze();
        let update = FileUpdate::new(at, None, Ack::Disk);
        Arc::clone(&self.host).write_file(update, offset, (buffer, Crc32c::of(bytes))).await
    }

    async fn read_through(&self, at: PlacedChunk, offset: u32, bases: &[(u64, u32)]) -> Vec<u8> {
        let part = ReadPart { at, offset, len: 1 << 20, bases: through(bases) };
        let deadline = RealClock::tick().plus(Duration::from_secs(5));
        let outcome = self.host.read_files(&ChunkReadRequest { parts: vec![part] }, deadline).await;
        assert_eq!(outcome.items[0].status, ItemStatus::Ok);
        outcome.values[0].to_vec()
    }

    async fn listed(&self) -> Vec<u32> {
        let (mut found, mut cursor) = (Vec::new(), 0);
        loop {
            let request = ChunkListRequest { cursor, limit: 7, ..ChunkListRequest::default() };
            let page = self.host.list_files(&request).await;
            found.extend(page.chunks.iter().map(|info| info.at.chunk.index));
            cursor = page.cursor;
            if cursor == 0 {
                found.sort_unstable();
                return found;
            }
        }
    }
}

fn of(data: u64, at: PlacedChunk) -> PlacedChunk {
    PlacedChunk { chunk: FileChunk { data: DataId(data), ..at.chunk }, ..at }
}

fn through(bases: &[(u64, u32)]) -> ChunkBases {
    let base = |(data, len): &(u64, u32)| ChunkBase { data: DataId(*data), len: *len };
    ChunkBases::new(&bases.iter().map(base).collect::<Vec<_>>()).unwrap()
}

fn seal_of(at: PlacedChunk) -> PlacedChunk {
    PlacedChunk { chunk: at.chunk.seal(), ..at }
}

#[test]
fn what_is_sealed_stays_and_is_read_and_copied_by_who_has_it_as_a_base() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        let (base, other) = (node.at(0), node.at(1));
        assert_eq!(node.write_at(base, (0, b"base of all")).await, ItemStatus::Ok);
        assert_eq!(node.change(seal_of(base), ChunkChange::Seal).await, ItemStatus::Ok);
        assert_eq!(node.change(seal_of(base), ChunkChange::Seal).await, ItemStatus::Ok, "again");
        for at in [base, other] {
            assert_eq!(node.write_at(at, (0, b"late")).await, ItemStatus::Sealed);
            assert_eq!(node.change(at, ChunkChange::Cut(1)).await, ItemStatus::Sealed);
            assert_eq!(node.change(at, ChunkChange::Remove).await, ItemStatus::Sealed);
        }
        // A clone, and a clone of that clone with an earlier end.
        let (clone, second) = (of(10, base), of(11, base));
        let (near, far) = ([(9, 8)], [(10, 4), (9, 4)]);
        assert_eq!(node.read_through(clone, 0, &near).await, b"base of ");
        assert_eq!(node.read_through(clone, 5, &near).await, b"of ");
        assert_eq!(node.read_through(clone, 8, &near).await, b"");
        assert_eq!(node.read_through(second, 0, &far).await, b"base");
        assert_eq!(node.read_through(of(10, other), 0, &near).await, b"", "nobody has it");
        for _ in 0..2 {
            let copied = node.change(clone, ChunkChange::Copy(through(&near))).await;
            assert_eq!(copied, ItemStatus::Ok);
            assert_eq!(node.write_at(clone, (5, b"two")).await, ItemStatus::Ok);
            assert_eq!(node.read_through(clone, 0, &near).await, b"base two", "not copied again");
        }
        assert_eq!(node.read_through(clone, 0, &[(9, 4)]).await, b"base two", "its own");
        assert_eq!(node.read_through(base, 0, &[]).await, b"base of all");
        assert_eq!(node.change(seal_of(clone), ChunkChange::Seal).await, ItemStatus::Ok);
        assert_eq!(node.read_through(second, 0, &far).await, b"base", "of the nearest");
        let copied = node.change(second, ChunkChange::Copy(through(&[(10, 0), (9, 0)]))).await;
        assert_eq!(copied, ItemStatus::Ok);
        assert_eq!(node.read_through(second, 0, &far).await, b"", "a hole hides what is behind");
        // A chunk with a base that does not exist is not made.
        let nothing = of(11, other);
        let copied = node.change(nothing, ChunkChange::Copy(through(&far))).await;
        assert_eq!((copied, node.listed().await.len()), (ItemStatus::Ok, 5));
        for at in [base, clone, second, seal_of(base), seal_of(clone)] {
            assert_eq!(node.change(at, ChunkChange::Collect).await, ItemStatus::Ok);
        }
        assert_eq!(node.listed().await, [0; 0]);
        assert_eq!(node.write_at(base, (0, b"anew")).await, ItemStatus::Ok);
    });
}

#[test]
fn a_replica_that_was_away_gets_the_seal_and_no_pressure_takes_it() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        let base = node.at(0);
        assert_eq!(node.write_at(base, (0, b"base")).await, ItemStatus::Ok);
        let away = node.chain.targets[1].target;
        node.silent.push(away);
        node.until("one replica serving", |chain| chain.serving().count() == 1).await;
        node.beat().await;
        assert_eq!(node.change(seal_of(base), ChunkChange::Seal).await, ItemStatus::Ok);
        node.silent.clear();
        node.all_serve().await;
        let engine = usize::try_from(away.0 - 1).unwrap();
        let seal = crate::attrs::engine_id(away, ChunkIds::UNKEYED.file(seal_of(base).chunk));
        assert!(node.engines[engine].lookup(seal).is_some(), "it has the seal");
        let puts = 1000;
        node.put_many(puts).await;
        assert!(node.host.evicted.load(Ordering::Relaxed) > 0, "blocks were given up");
        assert!(node.engines[engine].lookup(seal).is_some(), "it stays");
        assert_eq!(node.write_at(base, (0, b"late")).await, ItemStatus::Sealed);
    });
}

#[test]
fn what_all_lies_in_memory_is_read_on_any_thread() {
    let folder = tempfile::tempdir().unwrap();
    let mut chain = Chain::default();
    let all = vec![b"bcd".to_vec(), b"xyz".to_vec(), Vec::new()];
    let parts = [(0, 1, 3), (1, 0, 3), (1, 3, 0)];
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        assert_eq!(node.write_part(0, (0, b"abcdef"), 1).await, ItemStatus::Ok);
        assert_eq!(node.cached(&parts), None, "there is no second one");
        assert_eq!(node.write_part(1, (0, b"xyz"), 2).await, ItemStatus::Ok);
        assert_eq!(node.cached(&parts), Some(all.clone()));
        for behind in [(0, 0, 7), (0, 7, 0), (0, 1, u32::MAX), (0, u32::MAX, 1)] {
            assert_eq!(node.cached(&[behind]), None, "{behind:?}");
        }
        assert_eq!(node.write_part(0, (2, b"CD"), 3).await, ItemStatus::Ok);
        assert_eq!(node.cached(&[(0, 0, 6)]), Some(vec![b"abCDef".to_vec()]));
        assert_eq!(node.write_part(0, (2, b"cd"), 4).await, ItemStatus::Ok);
        chain = node.chain.clone();
    });
    with_node(folder.path(), 2, async |mut node| {
        node.chain = chain;
        assert_eq!(node.cached(&parts), None, "no replica may say what is there");
        node.until("the absence noticed", |chain| chain.serving().count() == 0).await;
        node.all_serve().await;
        assert_eq!(node.cached(&parts), None, "it lies on the disk");
        assert_eq!(node.read_part(0, 0, 6).await, Ok(b"abcdef".to_vec()));
        assert_eq!(node.cached(&parts), None, "a part of it does");
        assert_eq!(node.read_part(1, 0, 3).await, Ok(b"xyz".to_vec()));
        assert_eq!(node.cached(&parts), Some(all));
        assert_eq!(node.cut(1, None, 5).await, ItemStatus::Ok);
        assert_eq!(node.cached(&parts), None, "it is removed");
    });
}

#[test]
fn parts_and_cuts_are_done_once_and_told_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        assert_eq!(node.read_part(0, 5, 9).await, Ok(Vec::new()));
        assert_eq!(node.write_part(0, (3, b"abc"), 1).await, ItemStatus::Ok);
        assert_eq!(node.write_part(0, (0, b"xy"), 2).await, ItemStatus::Ok);
        assert_eq!(node.read_part(0, 0, 100).await, Ok(b"xy\0abc".to_vec()));
        assert_eq!(node.read_part(0, 4, 1).await, Ok(b"b".to_vec()));
        assert_eq!(node.read_part(0, 6, 9).await, Ok(Vec::new()));
        // A late copy of the first write changes nothing any more.
        assert_eq!(node.write_part(0, (3, b"abc"), 2).await, ItemStatus::Ok);
        assert_eq!(node.write_part(0, (3, b"old"), 1).await, ItemStatus::Late);
        assert_eq!(node.read_part(0, 0, 100).await, Ok(b"xy\0abc".to_vec()));
        assert_eq!(node.cut(0, Some(8), 3).await, ItemStatus::Ok);
        assert_eq!(node.read_part(0, 0, 100).await, Ok(b"xy\0abc\0\0".to_vec()));
        assert_eq!(node.cut(0, Some(1), 4).await, ItemStatus::Ok);
        let request = ChunkStatRequest { chunks: vec![node.at(0), node.at(1)] };
        let stats = node.host.stat_files(&request).await;
        assert_eq!((stats[0].0, stats[0].1.len), (ItemStatus::Ok, 1));
        assert_eq!((stats[0].1.version.0, stats[1].0), (4, ItemStatus::Miss));
        assert_eq!(node.listed().await, [0]);
        assert_eq!(node.cut(0, None, 5).await, ItemStatus::Ok);
        assert_eq!(node.cut(0, Some(7), 6).await, ItemStatus::Ok, "what is not there stays so");
        assert_eq!(node.cut(0, None, 7).await, ItemStatus::Ok);
        assert_eq!(node.read_part(0, 0, 100).await, Ok(Vec::new()));
        assert_eq!(node.listed().await, [0; 0]);
        assert_eq!(node.write_part(0, (1, b"new"), 8).await, ItemStatus::Ok);
        assert_eq!(node.read_part(0, 0, 100).await, Ok(b"\0new".to_vec()));
        // Bytes that changed in transit are not taken.
        let update = FileUpdate::new(node.at(0), Some((5, node.tag(9))), Ack::Disk);
        let bytes = node.pool.try_copy(b"bad").unwrap().freeze();
        let refused = Arc::clone(&node.host).write_file(update, 0, (bytes, Crc32c(1))).await;
        assert_eq!(refused, ItemStatus::Corrupt);
        // Another chain is elsewhere.
        let elsewhere = PlacedChunk { chain: ChainId(77), ..node.at(0) };
        let stats = node.host.stat_files(&ChunkStatRequest { chunks: vec![elsewhere] }).await;
        assert_eq!(stats[0].0, ItemStatus::Moved);
    });
}

#[test]
fn blocks_make_room_and_chunks_of_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        for n in 0..40u8 {
            let status = node.write_part(n.into(), (0, &vec![n; LEN]), u64::from(n) + 1).await;
            assert_eq!(status, ItemStatus::Ok);
        }
        let puts = 1000;
        let refused = node.put_many(puts).await;
        assert!(refused < puts / 20, "{refused} of {puts} puts refused");
        assert!(node.host.evicted.load(Ordering::Relaxed) > 0, "blocks were given up");
        for n in 0..40u8 {
            let read = node.read_part(n.into(), 0, u32::MAX >> 6).await;
            assert!(read == Ok(vec![n; LEN]), "chunk {n}");
        }
        assert_eq!(node.listed().await, (0..40).collect::<Vec<u32>>());
    });
}

#[test]
fn a_full_disk_says_so_and_takes_parts_again_when_chunks_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        let (mut sequence, mut written, bytes) = (0, 0, vec![3; LEN]);
        loop {
            node.beat().await;
            sequence += 1;
            match node.write_part(written, (0, &bytes), sequence).await {
                ItemStatus::Ok => written += 1,
                status => {
                    assert_eq!(status, ItemStatus::NoSpace);
                    break;
                }
            }
        }
        assert!(written > 100, "{written} chunks fit");
        assert!(node.read_part(written - 1, 0, u32::MAX >> 6).await == Ok(bytes.clone()));
        for index in 0..written / 2 {
            sequence += 1;
            assert_eq!(node.cut(index, None, sequence).await, ItemStatus::Ok, "{index}");
        }
        let mut again = ItemStatus::NoSpace;
        for _ in 0..500 {
            node.beat().await;
            sequence += 1;
            again = node.write_part(0, (5, b"again"), sequence).await;
            if again == ItemStatus::Ok {
                break;
            }
        }
        assert_eq!(again, ItemStatus::Ok);
    });
}

#[test]
fn a_replica_that_was_away_gets_what_it_missed_of_chunks_of_files() {
    let folder = tempfile::tempdir().unwrap();
    with_node(folder.path(), 2, async |mut node| {
        node.all_serve().await;
        for n in 0..20u8 {
            let status = node.write_part(n.into(), (0, &[n; 9000]), u64::from(n) + 1).await;
            assert_eq!(status, ItemStatus::Ok);
        }
        let away = node.chain.targets[1].target;
        node.silent.push(away);
        node.until("one replica serving", |chain| chain.serving().count() == 1).await;
        node.beat().await;
        assert_eq!(node.write_part(3, (4000, b"part"), 100).await, ItemStatus::Ok);
        assert_eq!(node.cut(4, Some(17), 101).await, ItemStatus::Ok);
        assert_eq!(node.cut(5, None, 102).await, ItemStatus::Ok);
        node.silent.clear();
        node.all_serve().await;
        let engine = &node.engines[usize::try_from(away.0 - 1).unwrap()];
        for n in 0..20u8 {
            let chunk = ChunkIds::UNKEYED.file(node.at(n.into()).chunk);
            let data = engine.read(crate::attrs::engine_id(away, chunk)).await.unwrap();
            let mut wanted = vec![n; 9000];
            match n {
                3 => wanted[4000..4004].copy_from_slice(b"part"),
                4 => wanted.truncate(17),
                5 => wanted.clear(),
                _ => {}
            }
            let found = data.map(|data| data.bytes.to_vec()).unwrap_or_default();
            assert!(found == wanted, "chunk {n}");
        }
    });
}
