//! Clones: chunks that several files have, and those that are behind others.

use millpond_meta::{Finding, Garbage};
use millpond_types::limits::BASES_MAX;
use millpond_types::meta::{
    Attr, CloneFile, Entry, Extend, FILE_BYTES_MAX, FileBase, FileKind, Filled, INLINE_MAX, Ino,
    MetaError, MetaOp, MetaReply, PutFile, QuotaLimits, SetAttr, SharedRecord, Timestamp, keys,
};
use millpond_types::wire::Record;

use crate::support::{Client, Fixture, name};

const ROOT: Ino = Ino::ROOT;
const SIZE: u64 = 300_000;

async fn extend(c: &Client, ino: Ino, data: u64, size: u64) -> Attr {
    let mtime = Timestamp { secs: 1_700_000_100, nanos: 1 };
    attr(
        c.run(MetaOp::Extend(Extend { ino, data, size, mtime, filled: Filled::default() }))
            .await
            .unwrap(),
    )
}

fn attr(reply: MetaReply) -> Attr {
    match reply {
        MetaReply::Attr(attr) => attr,
        other => panic!("{other:?}"),
    }
}

async fn share(c: &Client, ino: Ino) -> Result<Attr, MetaError> {
    c.run(MetaOp::Share { ino }).await.map(attr)
}

async fn clone_to(c: &Client, source: Attr, dir: Ino, text: &str) -> Result<MetaReply, MetaError> {
    let (source, chunks) = (source.ino, source.chunk_data());
    c.run(MetaOp::Clone(CloneFile { source, chunks, parent: dir, name: name(text) })).await
}

/// Clones a file; a client would seal its chains in between.
async fn clone(c: &Client, ino: Ino, dir: Ino, text: &str) -> Result<Attr, MetaError> {
    let source = share(c, ino).await?;
    match clone_to(c, source, dir, text).await? {
        MetaReply::Entry(entry) => Ok(entry.attr),
        other => panic!("{other:?}"),
    }
}

async fn unshare(c: &Client, ino: Ino, chunks: u64) -> Attr {
    attr(c.run(MetaOp::Unshare { ino, chunks }).await.unwrap())
}

async fn shared(c: &Client, chunks: u64) -> Result<SharedRecord, MetaError> {
    match c.run(MetaOp::Shared { chunks }).await? {
        MetaReply::Shared(record) => Ok(record),
        other => panic!("{other:?}"),
    }
}

async fn users(c: &Client, chunks: u64) -> u64 {
    shared(c, chunks).await.map_or(0, |record| record.users)
}

/// A file with bytes in chunks.
async fn file(c: &Client, text: &str) -> Attr {
    let made = c.make(ROOT, text, FileKind::Regular).await;
    extend(c, made.ino, made.data, SIZE).await
}

/// Removes a file that is not open.
async fn remove(f: &Fixture, c: &Client, (text, ino): (&str, Ino)) -> Vec<Garbage> {
    c.unlink(ROOT, text).await.unwrap();
    f.volume.collect().await.unwrap();
    c.renew(&[], &[ino]).await.unwrap();
    f.volume.collect().await.unwrap();
    f.assert_sound().await;
    f.volume.garbage(0, 99).await.unwrap()
}

/// A clone is solid where its chunks were written, and not where only later chunks of its source
/// were.
pub(crate) async fn a_clone_is_solid_where_its_chunks_are(f: Fixture) {
    let c = f.client().await;
    let fill = async |file: Attr, size: u64, to: u64| {
        let (ino, data, mtime) = (file.ino, file.chunk_data(), Timestamp::default());
        let filled = Filled { from: 0, to, cuts: file.cuts };
        attr(c.run(MetaOp::Extend(Extend { ino, data, size, mtime, filled })).await.unwrap())
    };
    let whole = c.make(ROOT, "whole", FileKind::Regular).await;
    assert_eq!(fill(whole, SIZE, SIZE).await.solid, SIZE);
    let copy = clone(&c, whole.ino, ROOT, "copy").await.unwrap();
    assert_eq!((copy.size, copy.solid), (SIZE, SIZE));
    let sparse = c.make(ROOT, "sparse", FileKind::Regular).await;
    let sparse = fill(sparse, SIZE, 0).await;
    let source = share(&c, sparse.ino).await.unwrap();
    let front = unshare(&c, sparse.ino, source.chunk_data()).await;
    assert_eq!(fill(front, SIZE, 9).await.solid, 9);
    let MetaReply::Entry(late) = clone_to(&c, source, ROOT, "late").await.unwrap() else {
        panic!("it just had them")
    };
    assert_eq!((late.attr.size, late.attr.solid), (SIZE, 0));
}

pub(crate) async fn a_clone_has_the_chunks_until_it_is_written(f: Fixture) {
    let c = f.client().await;
    let source = file(&c, "f").await;
    assert!(!source.is_shared && shared(&c, source.data).await == Err(MetaError::Stale));
    let begun = share(&c, source.ino).await.unwrap();
    assert!(begun.is_shared && begun.version > source.version);
    assert_eq!(share(&c.at(&f.other), source.ino).await.unwrap(), begun, "once");
    let record = shared(&c, source.data).await.unwrap();
    assert_eq!((record.users, record.is_sealed, record.size), (1, false, SIZE));
    let wrong = Attr { chunks: Some(source.data + 1), ..begun };
    assert_eq!(attr(clone_to(&c, wrong, ROOT, "g").await.unwrap()), begun, "it has others");
    assert_eq!(c.lookup(ROOT, "g").await, Err(MetaError::NotFound));
    let made = clone(&c, source.ino, ROOT, "g").await.unwrap();
    assert_eq!((made.size, made.chunks, made.layout), (SIZE, source.chunks, source.layout));
    assert!(made.is_shared && made.ino != source.ino && made.nlink == 1);
    assert_eq!(c.getattr(made.ino).await.unwrap(), made);
    let record = shared(&c, source.data).await.unwrap();
    assert_eq!((record.users, record.is_sealed), (2, true));

    // A writer of the source is refused by a chain, and reports bytes that it wrote before.
    let own = unshare(&c, source.ino, source.data).await;
    let fresh = own.chunk_data();
    assert!(fresh != source.data && own.is_shared && own.data == source.data);
    assert_eq!(unshare(&c, source.ino, source.data).await, own, "once, however many are refused");
    let base = FileBase { chunks: source.data, size: FILE_BYTES_MAX };
    assert_eq!(shared(&c, fresh).await.unwrap().bases, [base]);
    assert_eq!(extend(&c, source.ino, source.data, SIZE + 5).await.size, SIZE + 5);
    assert_eq!(shared(&c, source.data).await.unwrap().size, SIZE + 5, "they go with the others");
    assert_eq!(shared(&c, fresh).await.unwrap().bases, [base], "what lies behind never changes");
    assert_eq!(c.getattr(made.ino).await.unwrap(), made, "the clone is as it was");
    assert_eq!(extend(&c, source.ino, fresh, SIZE + 9).await.size, SIZE + 9);
    assert_eq!(extend(&c, source.ino, 1 << 40, SIZE * 2).await.size, SIZE + 9, "of no chunks");
    // A client that has sealed the first chunks is not late: the source had this length while they
    // were its own.
    let late = clone_to(&c, begun, ROOT, "late").await.unwrap();
    let MetaReply::Entry(Entry { attr: late, .. }) = late else { panic!("{late:?}") };
    assert_eq!((late.chunks, late.size, users(&c, source.data).await), (source.chunks, SIZE, 3));
    // For the clone, bytes after its end never existed.
    let theirs = unshare(&c, made.ino, source.data).await;
    let base = FileBase { chunks: source.data, size: SIZE };
    assert_eq!(shared(&c, theirs.chunk_data()).await.unwrap().bases, [base]);
    assert_eq!(extend(&c, made.ino, source.data, SIZE + 5).await, theirs);
    // Chunks farther behind may also have unreported bytes.
    clone(&c, source.ino, ROOT, "h").await.unwrap();
    unshare(&c, source.ino, fresh).await;
    assert_eq!(extend(&c, source.ino, source.data, SIZE + 20).await.size, SIZE + 20);
    // A cut leaves empty chunks after its end, which go with the others.
    let shorter = SetAttr { size: Some(5), ..SetAttr::default() };
    let cut = c.setattr(source.ino, shorter).await.unwrap();
    assert_eq!(shared(&c, cut.chunk_data()).await.unwrap().size, SIZE + 20);
    f.assert_sound().await;
}

pub(crate) async fn chunks_go_with_the_last_that_is_read_from_them(f: Fixture) {
    let c = f.client().await;
    let first = file(&c, "a").await;
    let second = clone(&c, first.ino, ROOT, "b").await.unwrap();
    let own = unshare(&c, first.ino, first.data).await.chunk_data();
    let third = clone(&c, first.ino, ROOT, "c").await.unwrap();
    assert_eq!((third.chunk_data(), users(&c, own).await), (own, 2));
    assert_eq!(users(&c, first.data).await, 3, "all are read from the first chunks");
    assert!(remove(&f, &c, ("a", first.ino)).await.is_empty());
    assert_eq!((users(&c, own).await, users(&c, first.data).await), (1, 2));
    let garbage = remove(&f, &c, ("c", third.ino)).await;
    let has = |chunks| garbage.iter().any(|item| item.data == chunks && item.record.is_sealed);
    assert!(garbage.len() == 1 && has(own));
    assert_eq!(users(&c, first.data).await, 1);
    let garbage = remove(&f, &c, ("b", second.ino)).await;
    let base = garbage.iter().find(|item| item.data == first.data).expect("nobody has it");
    assert!(base.record.is_sealed && base.record.size == SIZE && garbage.len() == 2);
    assert_eq!(shared(&c, first.data).await, Err(MetaError::Stale));
    // A clone that dies between its seals and its transaction leaves only the file.
    let left = file(&c, "d").await;
    share(&c, left.ino).await.unwrap();
    let garbage = remove(&f, &c, ("d", left.ino)).await;
    assert!(garbage.iter().any(|item| item.data == left.data && item.record.is_sealed));
}

pub(crate) async fn cut_to_nothing_a_file_shares_nothing(f: Fixture) {
    let c = f.client().await;
    let source = file(&c, "f").await;
    let made = clone(&c, source.ino, ROOT, "g").await.unwrap();
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    let cut = c.setattr(made.ino, set).await.unwrap();
    assert!(cut.is_stored() && !cut.is_shared && cut.data != made.data);
    assert_eq!(users(&c, source.data).await, 1);
    assert!(f.volume.garbage(0, 9).await.unwrap().is_empty(), "the source is read from them");
    assert_eq!(extend(&c, made.ino, source.data, 9).await, cut, "an old writer changes nothing");
    c.setattr(source.ino, set).await.unwrap();
    let garbage = f.volume.garbage(0, 9).await.unwrap();
    assert_eq!((garbage.len(), garbage[0].data), (1, source.data));
    // Bytes in the store are copied: there is nothing to share.
    c.write(cut, 0, b"small").await.unwrap();
    let small = clone(&c, made.ino, ROOT, "h").await.unwrap();
    assert!(small.is_stored() && !small.is_shared && small.size == 5);
    c.write(cut, 0, b"other").await.unwrap();
    assert_eq!(c.content(small.ino).await.unwrap().bytes, b"small");
    // Both files are listed as large and must move to chunks.
    let bytes = vec![7; INLINE_MAX + 1];
    let put = PutFile { path: vec![name("large")], mode: 0o644, bytes };
    c.run(MetaOp::PutFile(put)).await.unwrap();
    let large = c.lookup(ROOT, "large").await.unwrap();
    let copy = clone(&c, large.ino, ROOT, "copy").await.unwrap();
    assert_eq!(f.volume.large(9).await.unwrap(), [large.ino, copy.ino]);
    f.assert_sound().await;
}

pub(crate) async fn so_many_lie_behind_each_other(f: Fixture) {
    let c = f.client().await;
    let source = file(&c, "f").await;
    let mut chunks = source.data;
    for depth in 0..BASES_MAX {
        clone(&c, source.ino, ROOT, &format!("c{depth}")).await.unwrap();
        // Without writes, more clones put nothing behind the chunks.
        clone(&c, source.ino, ROOT, &format!("d{depth}")).await.unwrap();
        chunks = unshare(&c, source.ino, chunks).await.chunk_data();
        assert_eq!(shared(&c, chunks).await.unwrap().bases.len(), depth + 1);
    }
    assert_eq!(users(&c, source.data).await, 1 + 2 * BASES_MAX as u64);
    let full = clone(&c, source.ino, ROOT, "e").await;
    assert_eq!(full, Err(MetaError::TooManyLinks), "its bytes must be copied");
    f.assert_sound().await;
    // A shorter file counts less of the chunks behind it.
    let short = clone(&c, c.lookup(ROOT, "c1").await.unwrap().ino, ROOT, "s").await.unwrap();
    let set = SetAttr { size: Some(7), ..SetAttr::default() };
    c.setattr(short.ino, set).await.unwrap();
    let own = unshare(&c, short.ino, short.chunk_data()).await;
    let bases = shared(&c, own.chunk_data()).await.unwrap().bases;
    assert!(bases.len() == 2 && bases.iter().all(|base| base.size == 7), "{bases:?}");
}

pub(crate) async fn clones_obey_quotas_and_permissions(f: Fixture) {
    let c = f.client().await;
    let source = file(&c, "f").await;
    let dir = c.dir(ROOT, "q").await;
    let limits = QuotaLimits { bytes: SIZE + 9, inodes: 9 };
    c.run(MetaOp::SetQuota { dir, limits }).await.unwrap();
    let made = clone(&c, source.ino, dir, "g").await.unwrap();
    assert_eq!(clone(&c, source.ino, dir, "h").await, Err(MetaError::Quota), "it counts in full");
    assert_eq!(users(&c, source.data).await, 2, "what is refused counts nowhere");
    assert_eq!(clone(&c, source.ino, dir, "g").await, Err(MetaError::Exists));
    assert_eq!(clone(&c, dir, ROOT, "d").await, Err(MetaError::IsDirectory));
    let link = c.make(ROOT, "l", FileKind::Symlink).await;
    assert_eq!(clone(&c, link.ino, ROOT, "m").await, Err(MetaError::Invalid));
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    c.setattr(made.ino, set).await.unwrap();
    let user = c.as_user(1000, 1000, &[]);
    assert_eq!(clone(&user, made.ino, ROOT, "u").await, Err(MetaError::Access));
    let open = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    c.setattr(ROOT, open).await.unwrap();
    let theirs = clone(&user, source.ino, ROOT, "u").await.unwrap();
    assert_eq!((theirs.uid, theirs.mode, theirs.size), (1000, 0o644, SIZE));
    f.assert_sound().await;
}

pub(crate) async fn clones_and_writers_at_the_same_time(f: Fixture) {
    let c = f.client().await;
    let source = file(&c, "f").await;
    let other = f.client().await.at(&f.other);
    for round in 0..10 {
        let chunks = c.getattr(source.ino).await.unwrap().chunk_data();
        let (one, two) = (format!("a{round}"), format!("b{round}"));
        let (a, b, _) = tokio::join!(
            clone_once(&c, source.ino, &one),
            clone_once(&other, source.ino, &two),
            unshare(&other, source.ino, chunks),
        );
        let names = c.names(ROOT).await;
        for (done, text) in [(a, one), (b, two)] {
            assert_eq!(names.contains(&text), done, "{text}");
        }
        if c.getattr(source.ino).await.unwrap().is_shared {
            let now = c.getattr(source.ino).await.unwrap();
            if shared(&c, now.chunk_data()).await.unwrap().bases.len() == BASES_MAX {
                let set = SetAttr { size: Some(0), ..SetAttr::default() };
                let cut = c.setattr(source.ino, set).await.unwrap();
                extend(&c, source.ino, cut.data, SIZE).await;
            }
        }
        f.assert_sound().await;
    }
}

/// Clones if the file still has the sealed chunks. Returns whether it did.
async fn clone_once(c: &Client, ino: Ino, text: &str) -> bool {
    let Ok(source) = share(c, ino).await else { return false };
    matches!(clone_to(c, source, ROOT, text).await, Ok(MetaReply::Entry(_)))
}

#[tokio::test]
async fn wrong_counts_are_found_and_put_right() {
    let f = Fixture::in_memory().await;
    let c = f.client().await;
    let source = file(&c, "f").await;
    clone(&c, source.ino, ROOT, "g").await.unwrap();
    let own = unshare(&c, source.ino, source.data).await.chunk_data();
    for (chunks, wrong) in [(source.data, 1), (source.data, 9), (own, 7)] {
        let mut record = shared(&c, chunks).await.unwrap();
        let found = std::mem::replace(&mut record.users, wrong);
        let txn = f.store.begin();
        txn.put(&keys::shared(chunks), record.seal()).unwrap();
        txn.commit().await.unwrap();
        let report = f.volume.check_in_batches(1).await.unwrap();
        assert_eq!(report.findings, [Finding::Users { chunks, users: wrong, found }]);
        assert!(!report.findings[0].to_string().is_empty());
        for repair in report.repairs {
            assert_eq!(c.run(MetaOp::Repair(repair)).await, Ok(MetaReply::Repaired(true)));
        }
        f.assert_sound().await;
    }
    // Chunks without users become garbage.
    let lost = SharedRecord { users: 1, bases: Vec::new(), ..shared(&c, own).await.unwrap() };
    let txn = f.store.begin();
    txn.put(&keys::shared(77), lost.seal()).unwrap();
    txn.delete(&keys::shared(own)).unwrap();
    txn.commit().await.unwrap();
    let report = f.volume.check().await.unwrap();
    let unknown = Finding::Unknown { chunks: own };
    let users = Finding::Users { chunks: source.data, users: 2, found: 1 };
    let nobody = Finding::Users { chunks: 77, users: 1, found: 0 };
    for finding in [unknown, users, nobody] {
        assert!(report.findings.contains(&finding), "{finding:?} in {:?}", report.findings);
    }
}
