//! Bytes of small files in the store, and their move to chunks.

use std::time::Duration;

use millpond_types::meta::{
    Attr, Extend, FileKind, Filled, INLINE_MAX, Ino, MetaError, MetaOp, MetaReply, PutFile,
    QuotaLimits, Reserve, STORED_MAX, SetAttr, Spill, Timestamp, TrashChange, keys,
};

use crate::support::{Client, Fixture, LEASE, name};

const ROOT: Ino = Ino::ROOT;

async fn extend(c: &Client, file: Attr, data: u64, size: u64) -> Attr {
    let mtime = Timestamp { secs: 1_700_000_100, nanos: 1 };
    match c
        .run(MetaOp::Extend(Extend { ino: file.ino, data, size, mtime, filled: Filled::default() }))
        .await
        .unwrap()
    {
        MetaReply::Attr(attr) => attr,
        other => panic!("{other:?}"),
    }
}

async fn resize(c: &Client, ino: Ino, size: u64) -> Attr {
    c.setattr(ino, SetAttr { size: Some(size), ..SetAttr::default() }).await.unwrap()
}

/// The file's bytes as a reader sees them.
async fn read(c: &Client, ino: Ino) -> Vec<u8> {
    let mut found = c.content(ino).await.unwrap();
    assert!(found.attr.is_stored() && found.bytes.len() as u64 <= found.attr.size);
    found.bytes.resize(usize::try_from(found.attr.size).unwrap(), 0);
    found.bytes
}

pub(crate) async fn bytes_are_written_and_read(f: Fixture) {
    let c = f.client().await;
    let file = c.make(ROOT, "f", FileKind::Regular).await;
    assert!(file.is_stored() && read(&c, file.ino).await.is_empty());
    let told = c.write(file, 0, b"hello").await.unwrap();
    assert_eq!((told.size, told.data, told.mtime.secs), (5, file.data, 1_700_000_200));
    assert!(told.version > file.version && told.is_stored());
    c.write(file, 3, b"p me").await.unwrap();
    c.write(file, 9, b"!").await.unwrap();
    assert_eq!(read(&c.at(&f.other), file.ino).await, b"help me\0\0!");
    c.write(file, 0, b"").await.unwrap();
    c.write(file, 90, b"").await.unwrap();
    assert_eq!(read(&c, file.ino).await.len(), 10, "nothing written is no length");
    let full = vec![7; INLINE_MAX];
    c.write(file, 0, &full).await.unwrap();
    assert_eq!(read(&c, file.ino).await, full);
    // A write to the file from before it was truncated to zero has no effect.
    let cut = resize(&c, file.ino, 0).await;
    assert_eq!(c.write(file, 0, b"old").await.unwrap(), cut);
    assert!(read(&c, file.ino).await.is_empty());
    let dir = c.make(ROOT, "d", FileKind::Directory).await;
    assert_eq!(c.write(dir, 0, b"x").await, Err(MetaError::Invalid));
    assert_eq!(c.write(Attr { ino: Ino(99), ..file }, 0, b"x").await, Err(MetaError::Stale));
    assert_eq!(c.content(Ino(99)).await, Err(MetaError::Stale));
    assert_eq!(c.content(dir.ino).await.unwrap().attr, c.getattr(dir.ino).await.unwrap());
}

pub(crate) async fn lengths_cut_and_grow(f: Fixture) {
    let c = f.client().await;
    let file = c.make(ROOT, "f", FileKind::Regular).await;
    c.write(file, 0, b"0123456789").await.unwrap();
    resize(&c, file.ino, 4).await;
    resize(&c, file.ino, 6).await;
    assert_eq!(read(&c, file.ino).await, b"0123\0\0", "what was cut off does not come back");
    resize(&c, file.ino, 1 << 40).await;
    c.write(file, 5, b"x").await.unwrap();
    let long = c.content(file.ino).await.unwrap();
    assert_eq!((long.attr.size, &long.bytes[..]), (1 << 40, &b"0123\0x"[..]));
    resize(&c, file.ino, 7).await;
    assert_eq!(read(&c, file.ino).await, b"0123\0x\0");
    let stored = SetAttr { size: Some(2), stored: true, ..SetAttr::default() };
    assert_eq!(c.setattr(file.ino, stored).await.unwrap().size, 2);
    let spilled = c.spill(c.getattr(file.ino).await.unwrap(), 9).await.unwrap();
    let cut = SetAttr { size: Some(1), ..stored };
    assert_eq!(c.setattr(file.ino, cut).await.unwrap(), spilled, "its chunks were not cut");
    assert!(f.volume.garbage(0, 9).await.unwrap().is_empty(), "nothing was in chunks before");
}

pub(crate) async fn a_file_goes_to_chunks_once(f: Fixture) {
    let c = f.client().await;
    // An empty file moves to chunks by a write to chunks of its data id.
    let file = c.make(ROOT, "f", FileKind::Regular).await;
    assert_eq!(extend(&c, file, file.data + 1, 9).await, file);
    let told = extend(&c, file, file.data, 300_000).await;
    assert_eq!((told.chunks, told.size), (Some(file.data), 300_000));
    assert_eq!(c.write(file, 0, b"x").await.unwrap(), told, "who believes something else hears it");
    assert!(c.content(file.ino).await.unwrap().bytes.is_empty());
    // A file with bytes, or a length, moves to chunks with a name of their own.
    for size in [0, 100] {
        let file = c.make(ROOT, &format!("g{size}"), FileKind::Regular).await;
        c.write(file, 0, b"bytes").await.unwrap();
        let read = resize(&c, file.ino, 5 + size).await;
        assert_eq!(extend(&c, file, file.data, 300_000).await, read, "its bytes would be lost");
        let told = c.spill(read, 300_000).await.unwrap();
        assert!(told.chunks.is_some_and(|chunks| chunks != file.data) && told.data == file.data);
        assert_eq!((told.size, told.mtime.secs), (300_000, 1_700_000_300));
        assert_eq!(extend(&c, file, file.data, 400_000).await, told, "chunks of another name");
        assert_eq!(extend(&c, file, told.chunk_data(), 400_000).await.size, 400_000);
        assert_eq!(
            c.spill(c.getattr(file.ino).await.unwrap(), 1).await.unwrap().chunks,
            told.chunks
        );
        // Truncated to zero it begins again, and those chunks are garbage.
        let cut = resize(&c, file.ino, 0).await;
        assert!(cut.is_stored() && cut.data != file.data);
        let garbage = f.volume.garbage(0, 99).await.unwrap();
        assert!(
            garbage
                .iter()
                .any(|item| item.data == told.chunk_data() && item.record.size == 400_000)
        );
        assert!(garbage.iter().all(|item| item.data != file.data));
    }
}

pub(crate) async fn only_what_was_read_goes_to_chunks(f: Fixture) {
    let (a, b) = (f.client().await, f.client().await.at(&f.other));
    let file = a.make(ROOT, "f", FileKind::Regular).await;
    let read_by_a = a.write(file, 0, b"aaaa").await.unwrap();
    let told = b.write(file, 2, b"bb").await.unwrap();
    assert_eq!(a.spill(read_by_a, 9).await.unwrap(), told, "b wrote meanwhile");
    assert_eq!(read(&a, file.ino).await, b"aabb");
    // Of two concurrent moves one wins.
    let read = a.content(file.ino).await.unwrap().attr;
    let (one, other) = tokio::join!(a.spill(read, 9), b.spill(read, 9));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!((one.chunks, one.version), (other.chunks, other.version));
    // The name of the other, and the one that was refused before, stay garbage.
    assert_eq!(f.volume.garbage(0, 99).await.unwrap().len(), 2);
}

pub(crate) async fn a_reserved_name_holds_for_a_while(f: Fixture) {
    let c = f.client().await;
    let file = c.make(ROOT, "f", FileKind::Regular).await;
    let read = c.write(file, 0, b"abc").await.unwrap();
    let reserve = c.request(MetaOp::Reserve(Reserve { ino: file.ino, size: 9 }));
    let answer = c.send(&reserve).await.unwrap();
    assert_eq!(answer, c.at(&f.other).send(&reserve).await.unwrap(), "once");
    let MetaReply::Reserved(chunks) = answer else { panic!("{answer:?}") };
    let garbage = f.volume.garbage(0, 9).await.unwrap();
    assert_eq!((garbage.len(), garbage[0].data, garbage[0].record.size), (1, chunks, 9));
    let now = f.volume.garbage(0, 9).await.unwrap()[0].record.since.secs;
    assert!(now > file.ctime.secs + 60, "not to be removed at once");
    f.clock.advance(Duration::from_secs(91));
    assert_eq!(c.spill_to(read, (chunks, 9)).await.unwrap(), read, "somebody may be removing them");
    f.volume.forget_garbage(&[chunks]).await.unwrap();
    assert_eq!(c.spill_to(read, (chunks, 9)).await.unwrap(), read);
    assert!(!c.spill(read, 9).await.unwrap().is_stored());
}

pub(crate) async fn they_go_with_their_file(f: Fixture) {
    let c = f.client().await;
    let files =
        [c.make(ROOT, "f", FileKind::Regular).await, c.make(ROOT, "g", FileKind::Regular).await];
    for file in files {
        c.write(file, 0, b"bytes").await.unwrap();
    }
    c.run(MetaOp::Trash(TrashChange::Keep { dir: ROOT, keep_s: 100 })).await.unwrap();
    c.unlink(ROOT, "f").await.unwrap();
    let restore = TrashChange::Restore { dir: ROOT, ino: files[0].ino, name: name("again") };
    c.run(MetaOp::Trash(restore)).await.unwrap();
    assert_eq!(read(&c, files[0].ino).await, b"bytes");
    c.run(MetaOp::Trash(TrashChange::Keep { dir: ROOT, keep_s: 0 })).await.unwrap();
    c.unlink(ROOT, "again").await.unwrap();
    c.write(files[0], 0, b"B").await.unwrap();
    assert_eq!(read(&c, files[0].ino).await, b"Bytes", "it may be open");
    f.clock.advance(LEASE * 2);
    while f.volume.collect().await.unwrap() != millpond_meta::Collected::default() {}
    assert_eq!(c.content(files[0].ino).await, Err(MetaError::Stale));
    assert!(f.store.begin().get(&keys::content(files[0].ino)).await.unwrap().is_none());
    assert!(f.store.begin().get(&keys::content(files[1].ino)).await.unwrap().is_some());
    assert!(f.volume.garbage(0, 9).await.unwrap().is_empty(), "no chunks are to be removed");
}

pub(crate) async fn they_count_for_quotas(f: Fixture) {
    let c = f.client().await;
    let dir = c.dir(ROOT, "d").await;
    let limits = QuotaLimits { bytes: 1000, inodes: 0 };
    c.run(MetaOp::SetQuota { dir, limits }).await.unwrap();
    let file = c.make(dir, "f", FileKind::Regular).await;
    c.write(file, 0, &[1; 900]).await.unwrap();
    c.write(file, 100, &[2; 800]).await.unwrap();
    assert_eq!(c.write(file, 900, &[3; 101]).await, Err(MetaError::Quota));
    let read = c.getattr(file.ino).await.unwrap();
    assert_eq!((read.size, c.spill(read, 1001).await), (900, Err(MetaError::Quota)));
    let put = |len| PutFile { path: vec![name("d"), name("g")], mode: 0o644, bytes: vec![4; len] };
    assert_eq!(c.run(MetaOp::PutFile(put(101))).await, Err(MetaError::Quota));
    assert_eq!(c.names(dir).await, ["f"], "all of it or nothing");
    c.run(MetaOp::PutFile(put(100))).await.unwrap();
    c.run(MetaOp::PutFile(put(50))).await.unwrap();
    match c.run(MetaOp::GetQuota { ino: dir }).await {
        Ok(MetaReply::Quota(quota)) => assert_eq!((quota.bytes, quota.inodes), (950, 3)),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn whole_files_by_their_paths(f: Fixture) {
    let c = f.client().await;
    let dir = c.dir(ROOT, "d").await;
    let below = c.dir(dir, "e").await;
    c.make(ROOT, "link", FileKind::Symlink).await;
    let path = |text: &str| text.split('/').map(name).collect::<Vec<_>>();
    let put = |text: &str, bytes: &[u8]| {
        MetaOp::PutFile(PutFile { path: path(text), mode: 0o640, bytes: bytes.to_vec() })
    };
    let get = |text: &str| MetaOp::GetFile { path: path(text) };
    let made = c.entry(put("d/e/f", b"whole")).await.unwrap();
    assert!(made.created && made.attr.is_stored());
    assert_eq!((made.attr.size, made.attr.mode, made.attr.parent), (5, 0o640, below));
    let found = c.at(&f.other).run(get("d/e/f")).await.unwrap();
    let MetaReply::Content(found) = found else { panic!("{found:?}") };
    assert_eq!((found.attr, &found.bytes[..]), (made.attr, &b"whole"[..]));
    // A put to an existing name replaces the bytes of the same file.
    let request = c.request(put("d/e/f", b"new"));
    let again = c.send(&request).await.unwrap();
    assert_eq!(again, c.at(&f.other).send(&request).await.unwrap(), "once");
    let MetaReply::Entry(again) = again else { panic!("{again:?}") };
    assert!(!again.created && again.attr.data != made.attr.data && again.attr.ino == made.attr.ino);
    assert_eq!(read(&c, made.attr.ino).await, b"new");
    assert_eq!(c.write(made.attr, 0, b"xxx").await.unwrap(), again.attr, "cut to nothing since");
    // The chunks of a replaced file are garbage; an empty file is replaced too.
    let spilled = c.spill(again.attr, 1 << 20).await.unwrap();
    assert_eq!(c.entry(put("d/e/f", b"")).await.unwrap().attr.size, 0);
    assert_eq!(f.volume.garbage(0, 9).await.unwrap()[0].data, spilled.chunk_data());
    for (text, wanted) in [
        ("d/x/f", MetaError::NotFound),
        ("d/e/f/g", MetaError::NotDirectory),
        ("d/e", MetaError::IsDirectory),
        ("link", MetaError::NotSupported),
        ("link/f", MetaError::NotSupported),
    ] {
        assert_eq!(c.run(put(text, b"x")).await, Err(wanted), "{text}");
        assert_eq!(c.run(get(text)).await, Err(wanted), "{text}");
    }
    assert_eq!(c.run(get("d/y")).await, Err(MetaError::NotFound));
}

pub(crate) async fn whole_files_need_permission(f: Fixture) {
    let c = f.client().await;
    let (dir, shut) = (c.dir(ROOT, "d").await, c.dir(ROOT, "shut").await);
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    c.setattr(dir, mode(0o777)).await.unwrap();
    c.setattr(shut, mode(0o700)).await.unwrap();
    let put = |dir: &str, text: &str| {
        let path = vec![name(dir), name(text)];
        MetaOp::PutFile(PutFile { path, mode: 0o4755, bytes: b"x".to_vec() })
    };
    let get = |dir: &str, text: &str| MetaOp::GetFile { path: vec![name(dir), name(text)] };
    let (owner, other) = (c.as_user(7, 7, &[]), c.as_user(8, 8, &[]));
    assert_eq!(owner.entry(put("d", "f")).await.unwrap().attr.mode, 0o4755);
    assert_eq!(owner.entry(put("d", "f")).await.unwrap().attr.mode, 0o755, "other bytes");
    assert_eq!(other.run(put("d", "f")).await, Err(MetaError::Access));
    assert!(other.run(get("d", "f")).await.is_ok());
    owner.setattr(c.lookup(dir, "f").await.unwrap().ino, mode(0o600)).await.unwrap();
    assert_eq!(other.run(get("d", "f")).await, Err(MetaError::Access));
    assert_eq!(owner.run(put("shut", "f")).await, Err(MetaError::Access));
    assert_eq!(owner.run(get("shut", "f")).await, Err(MetaError::Access));
}

/// Eight clients write each to its own place, some of them so much that the file moves to chunks in
/// the end: all acknowledged bytes are in the moved file.
pub(crate) async fn writers_of_one_file_lose_nothing(f: Fixture) {
    let first = f.client().await;
    let file = first.make(ROOT, "f", FileKind::Regular).await;
    let mut tasks = tokio::task::JoinSet::new();
    for place in 0..8_u32 {
        let mut c = Client::open(if place % 2 == 0 { &f.volume } else { &f.other }).await;
        c.twin = Some(f.other.clone()).filter(|_| place % 4 == 0);
        tasks.spawn(async move {
            let mut done = 0;
            for turn in 1..=9_u8 {
                let told = c.write(file, place, &[turn]).await.unwrap();
                done = if told.is_stored() { turn } else { break };
            }
            // The content that was read has all acknowledged bytes, or the move fails.
            let read = c.content(file.ino).await.unwrap();
            let mut is_ours = false;
            if read.attr.is_stored() {
                let reserve = MetaOp::Reserve(Reserve { ino: file.ino, size: 100 });
                let Ok(MetaReply::Reserved(chunks)) = c.run(reserve).await else { panic!() };
                let told = c.spill_to(read.attr, (chunks, 100)).await.unwrap();
                is_ours = told.chunks == Some(chunks);
            }
            (place, done, is_ours.then_some(read.bytes))
        });
    }
    let all = tasks.join_all().await;
    let moved: Vec<&Vec<u8>> = all.iter().filter_map(|(_, _, bytes)| bytes.as_ref()).collect();
    assert_eq!(moved.len(), 1, "it goes there once");
    for (place, done, _) in &all {
        assert_eq!(moved[0].get(*place as usize).copied().unwrap_or(0), *done, "of writer {place}");
    }
}

pub(crate) async fn large_ones_wait_for_chunks(f: Fixture) {
    let c = f.client().await;
    let put = async |text: &str, len: usize| {
        let put = PutFile { path: vec![name(text)], mode: 0o600, bytes: vec![9; len] };
        match c.run(MetaOp::PutFile(put)).await.unwrap() {
            MetaReply::Entry(entry) => entry.attr,
            other => panic!("{other:?}"),
        }
    };
    put("small", INLINE_MAX).await;
    assert_eq!(f.volume.large(10).await.unwrap(), []);
    let mut files = Vec::new();
    for (n, text) in ["stays", "goes", "cut", "gone", "smaller"].into_iter().enumerate() {
        files.push(put(text, STORED_MAX - n).await);
    }
    let large = f.other.large(10).await.unwrap();
    assert_eq!(large, files.iter().map(|attr| attr.ino).collect::<Vec<_>>());
    assert_eq!(f.other.large(2).await.unwrap(), large[..2]);
    assert_eq!(read(&c, files[0].ino).await, vec![9; STORED_MAX]);

    let gone = c.spill(files[1], files[1].size).await.unwrap();
    assert!(!gone.is_stored() && gone.size == files[1].size);
    resize(&c, files[2].ino, 0).await;
    c.unlink(ROOT, "gone").await.unwrap();
    put("smaller", 7).await;
    // An unlinked file stays until no client can have it open.
    f.volume.forget_large(&large).await.unwrap();
    assert_eq!(f.volume.large(10).await.unwrap(), [files[0].ino, files[3].ino]);
    // It moves to chunks unchanged.
    let MetaReply::Reserved(chunks) =
        c.run(MetaOp::Reserve(Reserve { ino: files[0].ino, size: files[0].size })).await.unwrap()
    else {
        panic!("a name")
    };
    let (ino, version) = (files[0].ino, files[0].version);
    let spill = Spill { ino, version, chunks, size: 0, solid: 0, mtime: None };
    c.run(MetaOp::Spill(spill)).await.unwrap();
    let there = c.getattr(ino).await.unwrap();
    let old = files[0];
    assert_eq!((there.mtime, there.ctime, there.size), (old.mtime, old.ctime, old.size));
    assert_eq!(there.chunks, Some(chunks));
    f.volume.forget_large(&large).await.unwrap();
    assert_eq!(f.volume.large(10).await.unwrap(), [files[3].ino]);
}
