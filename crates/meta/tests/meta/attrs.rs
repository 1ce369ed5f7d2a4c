//! Attributes, and lengths of files.

use std::time::Duration;

use millpond_types::meta::{
    Attr, Create, Extend, FILE_BYTES_MAX, FileKind, Filled, Hollow, Ino, MetaError, MetaOp,
    MetaReply, SetAttr, SetTime, Timestamp,
};

use crate::support::{Client, Fixture, create};

const ROOT: Ino = Ino::ROOT;

fn size(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

fn mode(mode: u16) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

async fn extend(c: &Client, ino: Ino, data: u64, size: u64) -> Result<u64, MetaError> {
    let mtime = Timestamp { secs: 1_700_000_100, nanos: 1 };
    match c
        .run(MetaOp::Extend(Extend { ino, data, size, mtime, filled: Filled::default() }))
        .await?
    {
        MetaReply::Attr(attr) => Ok(attr.size),
        other => panic!("{other:?}"),
    }
}

async fn fill(c: &Client, file: &Attr, (from, to): (u64, u64), cuts: u32) -> Attr {
    let (ino, data, mtime) = (file.ino, file.chunk_data(), Timestamp::default());
    let filled = Filled { from, to, cuts };
    match c.run(MetaOp::Extend(Extend { ino, data, size: to, mtime, filled })).await.unwrap() {
        MetaReply::Attr(attr) => attr,
        other => panic!("{other:?}"),
    }
}

async fn hollow(c: &Client, ino: Ino, (from, ended): (u64, bool)) -> Attr {
    match c.run(MetaOp::Hollow(Hollow { ino, from, ended })).await.unwrap() {
        MetaReply::Attr(attr) => attr,
        other => panic!("{other:?}"),
    }
}

/// Bytes written without a gap are solid: also when reported in pieces, as long as each begins
/// where the one before ended, and no client removed bytes in the meantime.
pub(crate) async fn what_was_written_without_a_gap_is_solid(f: Fixture) {
    let c = f.client().await;
    let file = c.make(ROOT, "f", FileKind::Regular).await;
    assert_eq!((file.solid, file.cuts), (0, 0));
    let file = fill(&c, &file, (0, 10), 0).await;
    assert_eq!((file.size, file.solid), (10, 10));
    assert_eq!(fill(&c, &file, (20, 30), 0).await.solid, 10, "there is a gap");
    assert_eq!(fill(&c, &file, (5, 20), 0).await.solid, 20, "the rest is told again");
    assert_eq!(fill(&c, &file, (20, 30), 0).await.solid, 30);
    assert_eq!(fill(&c, &file, (30, 40), 1).await.solid, 30, "nothing was cut");
    let longer = c.setattr(file.ino, size(50)).await.unwrap();
    assert_eq!((longer.solid, longer.cuts), (30, 0), "what it is made longer by is a hole");

    // A client that cuts chunks reports it before and after: ranges written by clients that do not
    // know of the cut do not count.
    let begun = hollow(&c, file.ino, (15, false)).await;
    assert_eq!((begun.size, begun.solid, begun.cuts), (50, 15, 1));
    assert!(begun.version > longer.version, "clients that have it open hear of that");
    assert_eq!(fill(&c, &file, (15, 30), 0).await.solid, 15);
    assert_eq!(fill(&c, &file, (15, 30), 1).await.solid, 15, "it may go yet");
    assert_eq!(hollow(&c, file.ino, (15, true)).await.cuts, 2);
    assert_eq!(fill(&c, &file, (15, 30), 1).await.solid, 15);
    assert_eq!(fill(&c, &file, (15, 30), 2).await.solid, 30);
    let cut = c.setattr(file.ino, size(12)).await.unwrap();
    assert_eq!((cut.solid, cut.cuts), (12, 4));
    assert_eq!(fill(&c, &file, (12, 99), 2).await.solid, 12, "it may have been cut off");
    // A client may die before it reports the end: the next cut ends that one too.
    assert_eq!(hollow(&c, file.ino, (9, false)).await.cuts, 5);
    assert_eq!(hollow(&c, file.ino, (9, false)).await.cuts, 7);
    assert_eq!(hollow(&c, file.ino, (9, true)).await.cuts, 8);
    let empty = c.setattr(file.ino, size(0)).await.unwrap();
    assert_eq!((empty.solid, empty.cuts), (0, 10));
    assert_eq!(fill(&c, &file, (0, 9), 10).await.solid, 0, "those are chunks that it had");
    assert_eq!(fill(&c, &empty, (0, 9), 10).await.solid, 9);
    let of_no_file = MetaOp::Hollow(Hollow { ino: ROOT, from: 0, ended: false });
    assert_eq!(c.run(of_no_file).await, Err(MetaError::Invalid));
}

pub(crate) async fn what_is_set_is_seen(f: Fixture) {
    let c = f.client().await;
    let file = c.make(ROOT, "f", FileKind::Regular).await;
    f.clock.advance(Duration::from_secs(5));
    let at = |secs| Timestamp { secs, nanos: 9 };
    let set = SetAttr {
        mode: Some(0o4711),
        uid: Some(5),
        gid: Some(6),
        size: Some(77),
        atime: Some(SetTime::At(at(-3))),
        mtime: Some(SetTime::At(at(4))),
        ctime: None,
        stored: false,
        read: None,
    };
    let attr = c.setattr(file.ino, set).await.unwrap();
    assert_eq!((attr.mode, attr.uid, attr.gid, attr.size), (0o4711, 5, 6, 77));
    assert_eq!((attr.atime, attr.mtime), (at(-3), at(4)));
    assert_eq!(attr.ctime.secs, file.ctime.secs + 5);
    assert_eq!((attr.btime, attr.data, attr.layout), (file.btime, file.data, file.layout));
    assert!(attr.version > file.version);
    let now = SetAttr { atime: Some(SetTime::Now), ctime: Some(at(9)), ..SetAttr::default() };
    let attr = c.setattr(file.ino, now).await.unwrap();
    assert_eq!((attr.atime.secs, attr.mtime, attr.ctime), (file.atime.secs + 5, at(4), at(9)));
    assert_eq!(c.at(&f.other).getattr(file.ino).await.unwrap(), attr);
    assert_eq!(c.setattr(Ino(99), SetAttr::default()).await, Err(MetaError::Stale));
}

pub(crate) async fn a_cut_to_nothing_is_a_new_file_for_its_bytes(f: Fixture) {
    let c = f.client().await;
    let file = c.make(ROOT, "f", FileKind::Regular).await;
    assert_eq!(extend(&c, file.ino, file.data, 1000).await, Ok(1000));
    let part = c.setattr(file.ino, size(10)).await.unwrap();
    assert_eq!((part.data, part.size), (file.data, 10), "the chunks were cut before");
    assert!(f.volume.garbage(0, 10).await.unwrap().is_empty());
    let cut = c.setattr(file.ino, size(0)).await.unwrap();
    assert!(cut.data != file.data && cut.size == 0);
    let again = c.setattr(file.ino, size(0)).await.unwrap();
    assert!(again.data != cut.data, "bytes may have been written that nobody told of yet");
    let garbage = f.volume.garbage(0, 10).await.unwrap();
    let found: Vec<(u64, u64)> = garbage.iter().map(|g| (g.data, g.record.size)).collect();
    assert_eq!(found, [(file.data, 10), (cut.data, 0)]);
    assert_eq!(garbage[0].record.layout, file.layout);
    assert_eq!(extend(&c, file.ino, file.data, 4096).await, Ok(0), "those bytes are gone");
    assert_eq!(extend(&c, file.ino, again.data, 4096).await, Ok(4096));
}

pub(crate) async fn extend_counts_only_for_its_data(f: Fixture) {
    let c = f.client().await;
    let file = c.make(ROOT, "f", FileKind::Regular).await;
    assert_eq!(extend(&c, file.ino, file.data, 50).await, Ok(50));
    assert_eq!(extend(&c, file.ino, file.data, 20).await, Ok(50), "it never shrinks");
    assert_eq!(extend(&c, file.ino, file.data + 1, 90).await, Ok(50), "another file's bytes");
    let attr = c.getattr(file.ino).await.unwrap();
    assert_eq!(attr.mtime, Timestamp { secs: 1_700_000_100, nanos: 1 });
    assert_eq!(extend(&c, file.ino, file.data, FILE_BYTES_MAX).await, Ok(FILE_BYTES_MAX));
    let beyond = extend(&c, file.ino, file.data, FILE_BYTES_MAX + 1).await;
    assert_eq!(beyond, Err(MetaError::TooLarge));
    c.unlink(ROOT, "f").await.unwrap();
    c.setattr(file.ino, size(7)).await.expect("it may be open");
    assert_eq!(extend(&c, file.ino, file.data, 9).await, Ok(9));
}

pub(crate) async fn only_files_have_a_length(f: Fixture) {
    let c = f.client().await;
    for kind in FileKind::ALL {
        let made = c.make(ROOT, &format!("{kind:?}"), kind).await;
        let wanted = match kind {
            FileKind::Regular => None,
            FileKind::Directory => Some(MetaError::IsDirectory),
            _ => Some(MetaError::Invalid),
        };
        assert_eq!(c.setattr(made.ino, size(5)).await.err(), wanted, "{kind:?}");
        if kind != FileKind::Regular {
            assert_eq!(extend(&c, made.ino, made.data, 5).await, Err(MetaError::Invalid));
        }
    }
    let file = c.lookup(ROOT, "Regular").await.unwrap().ino;
    let beyond = c.setattr(file, size(FILE_BYTES_MAX + 1)).await;
    assert_eq!(beyond, Err(MetaError::TooLarge));
    c.setattr(file, size(FILE_BYTES_MAX)).await.unwrap();
}

pub(crate) async fn set_id_bits_go_with_the_owner(f: Fixture) {
    let c = f.client().await;
    let program = Create { mode: 0o6755, ..create(ROOT, "p", FileKind::Regular) };
    let ino = c.create(program).await.unwrap().attr.ino;
    let own = SetAttr { uid: Some(7), gid: Some(7), ..SetAttr::default() };
    c.setattr(ino, own).await.unwrap();
    let user = c.as_user(7, 7, &[8]);
    let give = SetAttr { gid: Some(8), ..SetAttr::default() };
    assert_eq!(user.setattr(ino, mode(0o6755)).await.unwrap().mode, 0o6755);
    // chown(2): a program loses its set-id bits with another owner or group.
    assert_eq!(user.setattr(ino, give).await.unwrap().mode, 0o755);
    // Without the group's execute bit the set-group-id bit means locking, and stays.
    user.setattr(ino, mode(0o6744)).await.unwrap();
    assert_eq!(user.setattr(ino, give).await.unwrap().mode, 0o2744);
    // Nor with other bytes.
    user.setattr(ino, mode(0o6755)).await.unwrap();
    assert_eq!(user.setattr(ino, size(0)).await.unwrap().mode, 0o755);
    let stranger = c.as_user(9, 9, &[]);
    for set in [mode(0o777), give, own, size(0)] {
        assert!(stranger.setattr(ino, set).await.is_err(), "{set:?}");
    }
    let checked = c.setattr(ino, mode(0o6755)).await.unwrap();
    assert_eq!(
        (checked.mode, c.setattr(ino, own).await.unwrap().mode),
        (0o6755, 0o6755),
        "a kernel says itself what it wants"
    );
}

pub(crate) async fn directories_have_times_of_their_own(f: Fixture) {
    let c = f.client().await;
    let dir = c.dir(ROOT, "d").await;
    let at = Timestamp { secs: 1000, nanos: 5 };
    let set = SetAttr { mtime: Some(SetTime::At(at)), ..SetAttr::default() };
    assert_eq!(c.setattr(dir, set).await.unwrap().mtime, at);
    assert_eq!(c.getattr(dir).await.unwrap().mtime, at, "it can be set back");
    f.clock.advance(Duration::from_secs(1));
    let attr = c.setattr(dir, mode(0o700)).await.unwrap();
    assert_eq!(attr.mtime, at, "the mode is not the content");
    assert_eq!(c.getattr(dir).await.unwrap(), attr);
    f.clock.advance(Duration::from_secs(1));
    c.file(dir, "f").await;
    let now = c.getattr(dir).await.unwrap();
    assert!(now.mtime == now.ctime && now.ctime > attr.ctime);
    assert_eq!(now.version, attr.version, "files leave a directory's record alone");
}
