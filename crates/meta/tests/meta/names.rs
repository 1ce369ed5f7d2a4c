//! Names: made, linked, removed.

use millpond_meta::{Facts, VolumeError};
use millpond_types::meta::{
    After, Caller, Create, FileKind, Ino, InodeRecord, LINKS_MAX, MetaError, MetaOp, MetaReply,
    NUMBERS_MAX, Name, PromisedFile, PutFile, SetAttr, Timestamp, WriteInline, keys,
};
use millpond_types::wire::Record;

use crate::support::{Fixture, create, name, rename};

const ROOT: Ino = Ino::ROOT;

pub(crate) async fn create_exclusive_and_not(f: Fixture) {
    let c = f.client().await;
    let open =
        |text: &str, exclusive| Create { exclusive, ..create(ROOT, text, FileKind::Regular) };
    let made = c.create(open("f", true)).await.unwrap();
    assert!(made.created && made.attr.nlink == 1 && made.attr.mode == 0o644);
    assert_eq!(c.create(open("f", true)).await, Err(MetaError::Exists));
    let taken = c.create(open("f", false)).await.unwrap();
    assert!(!taken.created, "what is there is taken");
    assert_eq!(taken.attr, made.attr);
    assert!(c.create(open("g", false)).await.unwrap().created);

    c.dir(ROOT, "d").await;
    c.make(ROOT, "s", FileKind::Symlink).await;
    c.make(ROOT, "p", FileKind::Fifo).await;
    assert_eq!(c.create(open("d", false)).await, Err(MetaError::IsDirectory));
    assert_eq!(c.create(open("s", false)).await, Err(MetaError::Exists));
    assert_eq!(c.create(open("p", false)).await, Err(MetaError::Exists));
    for kind in FileKind::ALL {
        let twice = create(ROOT, "f", kind);
        assert_eq!(c.create(twice).await, Err(MetaError::Exists), "{kind:?}");
    }
    let below_a_file = create(made.attr.ino, "x", FileKind::Regular);
    assert_eq!(c.create(below_a_file).await, Err(MetaError::NotDirectory));
    let nowhere = create(Ino(999_999), "x", FileKind::Regular);
    assert_eq!(c.create(nowhere).await, Err(MetaError::NotFound));
    assert_eq!(c.names(ROOT).await, ["d", "f", "g", "p", "s"]);
}

/// A process that has just started may not know the chains yet.
pub(crate) async fn files_without_a_place_are_made_when_there_is_one(f: Fixture) {
    let c = f.client().await;
    let chains = |chains| {
        f.volume.set_facts(Facts { chains: [chains; _], bytes: 1 << 40, bytes_free: 1 << 39 });
    };
    chains(0);
    let file = MetaOp::Create(create(ROOT, "f", FileKind::Regular));
    let (_, path) = (c.dir(ROOT, "d").await, vec![name("d"), name("g")]);
    let put = MetaOp::PutFile(PutFile { path, mode: 0o644, bytes: b"bytes".to_vec() });
    let requests = [file, put].map(|op| c.request(op));
    for request in &requests {
        let error = c.volume.execute(request).await.unwrap_err();
        assert!(matches!(error, VolumeError::NoChains), "{error}");
    }
    assert_eq!(c.names(ROOT).await, ["d"]);
    chains(64);
    for request in &requests {
        c.send(request).await.unwrap();
    }
    assert_eq!(c.names(ROOT).await, ["d", "f"]);
}

/// A mount makes files by itself and reports them later, once or twice, to one meta or the other.
pub(crate) async fn promised_files_have_the_numbers_that_mounts_gave_them(f: Fixture) {
    let c = f.client().await;
    let take = async |count| match c.run(MetaOp::TakeNumbers { count }).await {
        Ok(MetaReply::Numbers { first }) => Ok(first),
        Err(error) => Err(error),
        other => panic!("{other:?}"),
    };
    let first = take(10).await.unwrap();
    let next = take(NUMBERS_MAX).await.unwrap();
    assert!(next >= first + 10, "nobody gets a number twice");
    for count in [0, NUMBERS_MAX + 1] {
        assert_eq!(take(count).await, Err(MetaError::Invalid));
    }
    let at = Timestamp { secs: 77, nanos: 5 };
    let file = |text: &str, number| {
        let promised = PromisedFile { ino: Ino(number), at, written: at, bytes: Vec::new() };
        let promised = Some(promised);
        Create { promised, ..create(ROOT, text, FileKind::Regular) }
    };
    let made = c.create(file("a", first)).await.unwrap();
    assert!(made.created && made.attr.layout.chains > 0);
    assert_eq!((made.attr.ino, made.attr.data), (Ino(first), first));
    assert_eq!((made.attr.mtime, made.attr.btime), (at, at));
    // Another request at the other meta: the file exists already.
    let again = c.at(&f.other).create(file("a", first)).await.unwrap();
    assert_eq!((again.created, again.attr), (true, made.attr));
    assert_eq!(c.create(file("b", first)).await, Err(MetaError::Exists), "it is another file");
    assert_eq!(c.create(file("a", first + 1)).await, Err(MetaError::Exists));
    // The other meta has not taken these numbers.
    assert!(c.at(&f.other).create(file("b", first + 1)).await.is_ok());
    // With its bytes, which are not written again either.
    let written = Timestamp { secs: 78, nanos: 0 };
    let mut full = file("full", first + 3);
    full.promised = full.promised.map(|promised| PromisedFile {
        written,
        bytes: b"bytes".to_vec(),
        ..promised
    });
    let made = c.create(full.clone()).await.unwrap().attr;
    assert_eq!((made.size, made.mtime, made.btime), (5, written, at));
    let ino = made.ino;
    let more = WriteInline { ino, data: made.data, offset: 5, bytes: b"!".to_vec(), mtime: at };
    c.run(MetaOp::WriteInline(more)).await.unwrap();
    assert_eq!(c.create(full).await.unwrap().attr.size, 6);
    let MetaReply::Content(content) = c.run(MetaOp::Content { ino }).await.unwrap() else {
        panic!()
    };
    assert_eq!(content.bytes, b"bytes!");
    let invalid = Err(MetaError::Invalid);
    assert_eq!(c.create(file("c", next + 1_000_000)).await, invalid, "given to nobody yet");
    assert_eq!(c.create(file("c", 7)).await, invalid, "given to nobody ever");
    let dir = Create { kind: FileKind::Directory, ..file("c", first + 2) };
    assert_eq!(c.create(dir).await, invalid);
    let mut user = c.clone();
    user.caller = Caller { uid: 0, ..Caller::default() };
    assert_eq!(user.create(file("c", first + 2)).await, invalid, "not a mount");
    let other = c.file(ROOT, "other").await;
    assert!(other.0 >= next + u64::from(NUMBERS_MAX) || other.0 < first, "{other} is promised");
    f.assert_sound().await;
}

pub(crate) async fn every_kind_is_made_and_found(f: Fixture) {
    let c = f.client().await;
    for kind in FileKind::ALL {
        let rdev =
            if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) { 0x103 } else { 0 };
        let text = format!("{kind:?}");
        let made = c.create(Create { rdev, ..create(ROOT, &text, kind) }).await.unwrap().attr;
        assert_eq!((made.kind, made.rdev, made.parent), (kind, rdev, ROOT));
        let found = c.at(&f.other).lookup(ROOT, &text).await.unwrap();
        assert_eq!(found, c.getattr(made.ino).await.unwrap());
        assert_eq!((found.ino, found.version), (made.ino, made.version), "the other meta sees it");
        let target = c.run(MetaOp::ReadLink { ino: made.ino }).await;
        if kind == FileKind::Symlink {
            assert_eq!(target, Ok(MetaReply::Target(b"to/there".to_vec())));
            assert_eq!(made.size, 8);
        } else {
            assert_eq!(target, Err(MetaError::Invalid));
        }
        assert_eq!(made.layout.chains > 0, kind == FileKind::Regular, "only files have bytes");
    }
    let longest = "n".repeat(Name::BYTES_MAX);
    c.file(ROOT, &longest).await;
    assert_eq!(c.lookup(ROOT, &longest).await.unwrap().kind, FileKind::Regular);
    assert_eq!(c.lookup(ROOT, "nobody").await, Err(MetaError::NotFound));
    assert_eq!(c.getattr(Ino(999_999)).await, Err(MetaError::Stale));
    assert_eq!(c.run(MetaOp::ReadLink { ino: Ino(999_999) }).await, Err(MetaError::Stale));
}

pub(crate) async fn what_makes_no_sense_is_refused(f: Fixture) {
    let c = f.client().await;
    let empty = Create { target: Vec::new(), ..create(ROOT, "s", FileKind::Symlink) };
    assert_eq!(c.create(empty).await, Err(MetaError::NotFound), "symlink(2): an empty target");
    let pointing = Create { target: b"x".to_vec(), ..create(ROOT, "f", FileKind::Regular) };
    assert_eq!(c.create(pointing).await, Err(MetaError::Invalid), "a file has no target");
    let device = Create { rdev: 5, ..create(ROOT, "f", FileKind::Regular) };
    assert_eq!(c.create(device).await.unwrap().attr.rdev, 0, "a file is no device");
    let long = Create { target: vec![b'x'; 4095], ..create(ROOT, "l", FileKind::Symlink) };
    assert_eq!(c.create(long).await.unwrap().attr.size, 4095);
}

pub(crate) async fn a_removed_directory_takes_no_names(f: Fixture) {
    let c = f.client().await;
    let dir = c.dir(ROOT, "d").await;
    let file = c.file(ROOT, "f").await;
    assert_eq!(c.rmdir(ROOT, "d").await.unwrap().nlink, 0);
    assert_eq!(c.getattr(dir).await.unwrap().nlink, 0, "it may be open");
    for kind in FileKind::ALL {
        assert_eq!(c.create(create(dir, "x", kind)).await, Err(MetaError::NotFound), "{kind:?}");
    }
    assert_eq!(c.link(file, dir, "x").await, Err(MetaError::NotFound));
    assert_eq!(c.unlink(dir, "x").await, Err(MetaError::NotFound));
    assert_eq!(c.rmdir(dir, "x").await, Err(MetaError::NotFound));
    assert_eq!(c.lookup(dir, "x").await, Err(MetaError::NotFound));
    let into = crate::support::rename((ROOT, "f"), (dir, "x"));
    assert_eq!(c.rename(into).await, Err(MetaError::NotFound));
    assert_eq!(c.names(dir).await, [""; 0]);
}

pub(crate) async fn directories_count_their_directories(f: Fixture) {
    let c = f.client().await;
    let nlink = async |ino| c.getattr(ino).await.unwrap().nlink;
    assert_eq!(nlink(ROOT).await, 2);
    let dir = c.dir(ROOT, "d").await;
    assert_eq!((nlink(ROOT).await, nlink(dir).await), (3, 2));
    for text in ["x", "y", "z"] {
        c.dir(dir, text).await;
    }
    c.file(dir, "f").await;
    assert_eq!((nlink(ROOT).await, nlink(dir).await), (3, 5), "files do not count");
    assert_eq!(c.rmdir(ROOT, "d").await, Err(MetaError::NotEmpty));
    for text in ["x", "y", "z"] {
        c.rmdir(dir, text).await.unwrap();
    }
    assert_eq!(c.rmdir(ROOT, "d").await, Err(MetaError::NotEmpty), "the file is left");
    c.unlink(dir, "f").await.unwrap();
    assert_eq!(nlink(dir).await, 2);
    let removed = c.rmdir(ROOT, "d").await.unwrap();
    assert_eq!((removed.ino, removed.nlink, nlink(ROOT).await), (dir, 0, 2));
}

pub(crate) async fn unlink_and_rmdir_know_their_kinds(f: Fixture) {
    let c = f.client().await;
    c.dir(ROOT, "d").await;
    let file = c.file(ROOT, "f").await;
    c.make(ROOT, "s", FileKind::Symlink).await;
    assert_eq!(c.unlink(ROOT, "d").await, Err(MetaError::IsDirectory));
    assert_eq!(c.rmdir(ROOT, "f").await, Err(MetaError::NotDirectory));
    assert_eq!(c.rmdir(ROOT, "s").await, Err(MetaError::NotDirectory));
    assert_eq!(c.unlink(ROOT, "x").await, Err(MetaError::NotFound));
    assert_eq!(c.rmdir(ROOT, "x").await, Err(MetaError::NotFound));
    assert_eq!(c.unlink(file, "x").await, Err(MetaError::NotDirectory));
    assert_eq!(c.rmdir(file, "x").await, Err(MetaError::NotDirectory));
    c.unlink(ROOT, "s").await.unwrap();
    let removed = c.unlink(ROOT, "f").await.unwrap();
    assert_eq!((removed.ino, removed.nlink), (file, 0));
    assert_eq!(c.unlink(ROOT, "f").await, Err(MetaError::NotFound));
    assert_eq!(c.getattr(file).await.unwrap().nlink, 0, "it may be open");
    assert_eq!(c.names(ROOT).await, ["d"]);
}

pub(crate) async fn links_count_and_have_a_limit(f: Fixture) {
    let c = f.client().await;
    let (file, dir) = (c.file(ROOT, "f").await, c.dir(ROOT, "d").await);
    let link = c.make(ROOT, "s", FileKind::Symlink).await.ino;
    assert_eq!(c.link(file, dir, "g").await.unwrap().nlink, 2);
    assert_eq!(c.lookup(dir, "g").await.unwrap().ino, file);
    assert_eq!(c.link(link, dir, "s").await.unwrap().nlink, 2, "links to links are links");
    assert_eq!(c.link(file, dir, "g").await, Err(MetaError::Exists));
    assert_eq!(c.link(dir, dir, "x").await, Err(MetaError::NotPermitted));
    assert_eq!(c.link(file, file, "x").await, Err(MetaError::NotDirectory));
    assert_eq!(c.link(Ino(999_999), dir, "x").await, Err(MetaError::Stale));
    assert_eq!(c.unlink(ROOT, "f").await.unwrap().nlink, 1);
    assert_eq!(c.unlink(dir, "g").await.unwrap().nlink, 0);
    assert_eq!(c.link(file, dir, "x").await, Err(MetaError::NotFound), "its last name is gone");

    let many = c.file(ROOT, "many").await;
    set_nlink(&f, many, LINKS_MAX - 1).await;
    assert_eq!(c.link(many, dir, "one more").await.unwrap().nlink, LINKS_MAX);
    assert_eq!(c.link(many, dir, "too many").await, Err(MetaError::TooManyLinks));
    let report = f.volume.check().await.unwrap();
    let wrong = millpond_meta::Finding::Links { ino: many, nlink: LINKS_MAX, found: 2 };
    assert_eq!(report.findings, [wrong], "the check counts names");
    set_nlink(&f, many, 2).await;
}

/// Sets a link count past all operations.
async fn set_nlink(f: &Fixture, ino: Ino, nlink: u32) {
    let txn = f.store.begin();
    let key = keys::inode(ino);
    let mut record = InodeRecord::open(&txn.get(&key).await.unwrap().unwrap()).unwrap();
    record.attr.nlink = nlink;
    txn.put(&key, record.seal()).unwrap();
    txn.commit().await.unwrap();
}

pub(crate) async fn unchecked_callers_need_permission(f: Fixture) {
    let c = f.client().await;
    let (dir, closed) = (c.dir(ROOT, "d").await, c.dir(ROOT, "closed").await);
    let file = c.file(dir, "f").await;
    c.file(closed, "f").await;
    c.setattr(closed, SetAttr { mode: Some(0o700), ..SetAttr::default() }).await.unwrap();
    let user = c.as_user(1000, 100, &[]);
    assert_eq!(user.lookup(dir, "f").await.unwrap().ino, file);
    assert_eq!(user.create(create(dir, "x", FileKind::Regular)).await, Err(MetaError::Access));
    assert_eq!(user.create(create(dir, "f", FileKind::Regular)).await, Err(MetaError::Exists));
    assert_eq!(user.link(file, dir, "x").await, Err(MetaError::Access));
    assert_eq!(user.unlink(dir, "f").await, Err(MetaError::Access));
    assert_eq!(user.unlink(dir, "x").await, Err(MetaError::NotFound));
    assert_eq!(user.rmdir(ROOT, "d").await, Err(MetaError::Access));
    // A caller without search permission for a directory does not learn its entries.
    for text in ["f", "x"] {
        assert_eq!(user.lookup(closed, text).await, Err(MetaError::Access));
        assert_eq!(user.create(create(closed, text, FileKind::Fifo)).await, Err(MetaError::Access));
        assert_eq!(user.unlink(closed, text).await, Err(MetaError::Access));
        assert_eq!(user.rmdir(closed, text).await, Err(MetaError::Access));
        assert_eq!(user.link(file, closed, text).await, Err(MetaError::Access));
    }
    let page = millpond_types::meta::ReadDir { dir: closed, after: 0, limit: 9, attrs: false };
    assert_eq!(user.page(page).await, Err(MetaError::Access));
    // Only root makes devices (mknod(2)).
    let open = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    c.setattr(dir, open).await.unwrap();
    for kind in [FileKind::CharDevice, FileKind::BlockDevice] {
        assert_eq!(user.create(create(dir, "x", kind)).await, Err(MetaError::NotPermitted));
    }
    let made = user.create(create(dir, "x", FileKind::Fifo)).await.unwrap().attr;
    assert_eq!((made.uid, made.gid), (1000, 100));
    let root = c.as_user(0, 0, &[]);
    root.create(create(closed, "dev", FileKind::CharDevice)).await.unwrap();
}

pub(crate) async fn sticky_directories_protect_owners(f: Fixture) {
    let c = f.client().await;
    let dir = c.dir(ROOT, "tmp").await;
    c.setattr(dir, SetAttr { mode: Some(0o1777), ..SetAttr::default() }).await.unwrap();
    let (one, two) = (c.as_user(1, 1, &[]), c.as_user(2, 1, &[]));
    one.file(dir, "f").await;
    one.dir(dir, "d").await;
    two.file(dir, "g").await;
    assert_eq!(two.unlink(dir, "f").await, Err(MetaError::NotPermitted));
    assert_eq!(two.rmdir(dir, "d").await, Err(MetaError::NotPermitted));
    let away = crate::support::rename((dir, "f"), (dir, "h"));
    assert_eq!(two.rename(away.clone()).await, Err(MetaError::NotPermitted));
    let over = crate::support::rename((dir, "g"), (dir, "f"));
    assert_eq!(two.rename(over).await, Err(MetaError::NotPermitted), "it would go");
    one.rename(away).await.unwrap();
    one.unlink(dir, "h").await.unwrap();
    one.rmdir(dir, "d").await.unwrap();
    c.as_user(0, 0, &[]).unlink(dir, "g").await.unwrap();
}

pub(crate) async fn set_group_id_is_inherited(f: Fixture) {
    let c = f.client().await;
    let dir = c.dir(ROOT, "d").await;
    let shared = SetAttr { mode: Some(0o2777), gid: Some(50), ..SetAttr::default() };
    c.setattr(dir, shared).await.unwrap();
    let user = c.as_user(1, 1, &[]);
    let below = user.make(dir, "sub", FileKind::Directory).await;
    assert_eq!((below.gid, below.mode), (50, 0o2755));
    let file = user.make(below.ino, "f", FileKind::Regular).await;
    assert_eq!((file.gid, file.mode), (50, 0o644));
    let program = Create { mode: 0o2755, ..create(dir, "p", FileKind::Regular) };
    let made = user.create(program.clone()).await.unwrap().attr;
    assert_eq!((made.gid, made.mode), (50, 0o755), "nobody makes programs for groups of others");
    let member = c.as_user(1, 1, &[50]);
    let program = Create { name: name("q"), ..program };
    assert_eq!(member.create(program).await.unwrap().attr.mode, 0o2755);
    let open = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    c.setattr(ROOT, open).await.unwrap();
    assert_eq!(user.make(ROOT, "own", FileKind::Fifo).await.gid, 1);
}

pub(crate) async fn directory_times_follow_their_entries(f: Fixture) {
    let c = f.client().await;
    let dir = c.dir(ROOT, "d").await;
    let mut last = c.getattr(dir).await.unwrap().mtime;
    let mut later = async |what: &str| {
        let attr = c.getattr(dir).await.unwrap();
        assert!(attr.mtime > last, "{what} changes the directory");
        assert_eq!(attr.mtime, attr.ctime);
        last = attr.mtime;
        f.clock.advance(std::time::Duration::from_millis(1));
    };
    f.clock.advance(std::time::Duration::from_millis(1));
    let file = c.file(dir, "f").await;
    later("create").await;
    c.link(file, dir, "g").await.unwrap();
    later("link").await;
    c.rename(crate::support::rename((dir, "f"), (dir, "h"))).await.unwrap();
    later("rename").await;
    c.rename(crate::support::rename((dir, "h"), (ROOT, "h"))).await.unwrap();
    later("rename out").await;
    c.unlink(dir, "g").await.unwrap();
    later("unlink").await;
    c.dir(dir, "sub").await;
    later("mkdir").await;
    c.rmdir(dir, "sub").await.unwrap();
    later("rmdir").await;
}

pub(crate) async fn a_change_tells_what_becomes_of_its_directories(f: Fixture) {
    let c = f.client().await;
    let (one, two) = (c.dir(ROOT, "one").await, c.dir(ROOT, "two").await);
    let old = c.file(one, "old").await;
    let parts = |parent, text| (parent, name(text));
    let link = |(parent, name)| MetaOp::Link { ino: old, parent, name };
    let unlink = |(parent, name)| MetaOp::Unlink { parent, name, of: None };
    let remove = |(parent, name)| MetaOp::RemoveDir { parent, name };
    let moved = |from, to| MetaOp::Rename(rename(from, to));
    let steps = [
        (MetaOp::Create(create(one, "file", FileKind::Regular)), vec![one]),
        (MetaOp::Create(create(one, "dir", FileKind::Directory)), vec![one]),
        (link(parts(two, "link")), vec![two]),
        (moved((one, "dir"), (two, "dir")), vec![one, two]),
        (moved((one, "file"), (one, "renamed")), vec![one]),
        (unlink(parts(one, "renamed")), vec![one]),
        (remove(parts(two, "dir")), vec![two]),
        // The name exists already, or both names lead to one file: nothing changes.
        (
            MetaOp::Create(Create { exclusive: false, ..create(one, "old", FileKind::Regular) }),
            vec![],
        ),
        (moved((one, "old"), (two, "link")), vec![]),
        (MetaOp::GetAttr { ino: one }, vec![]),
    ];
    let mut last = 0;
    for (op, changed) in steps {
        let request = c.request(op);
        let text = format!("{:?}", request.op);
        let answered = f.volume.execute(&request).await.unwrap();
        assert!(answered.answer.is_ok(), "{text}: {answered:?}");
        let told: Vec<_> = answered.after.dirs.iter().map(|attr| attr.ino).collect();
        assert_eq!(told, changed, "{text}");
        for attr in &answered.after.dirs {
            assert_eq!(c.getattr(attr.ino).await.as_ref(), Ok(attr), "{text}");
            assert!(answered.after.version > last, "{text}: {last}, {answered:?}");
        }
        last = answered.after.version.max(last);
        if request.op.changes() {
            let again = f.volume.execute(&request).await.unwrap();
            assert_eq!((again.answer, again.after), (answered.answer, After::default()), "{text}");
        }
    }
    let refused = c.request(MetaOp::Create(create(one, "old", FileKind::Regular)));
    assert_eq!(f.volume.execute(&refused).await.unwrap().after, After::default());
}
