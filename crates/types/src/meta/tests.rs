use super::*;
use crate::cluster::ChainId;
use crate::wire::{Reader, Record, Writer};

mod backing;
mod objects;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn xattr(text: &str) -> XattrName {
    XattrName::new(text.as_bytes()).unwrap()
}

pub(super) fn attr() -> Attr {
    let time = |secs| Timestamp { secs, nanos: 999_999_999 };
    Attr {
        ino: Ino(77),
        kind: FileKind::Regular,
        mode: 0o4755,
        uid: 1000,
        gid: 100,
        nlink: 2,
        rdev: 0x801,
        size: 1 << 40,
        atime: time(-5),
        mtime: time(6),
        ctime: time(7),
        btime: time(8),
        data: 78,
        chunks: Some(78),
        is_shared: true,
        solid: 0,
        cuts: 0,
        layout: Layout { chunk_log2: 18, stripe: 16, seed: 3, chains: 256, table: 0 },
        parent: Ino::ROOT,
        version: u64::MAX,
    }
}

fn lock() -> FileLock {
    let (space, kind) = (LockSpace::Flock, LockKind::Write);
    FileLock { space, kind, owner: 1 << 50, pid: 77, start: 5, end: u64::MAX }
}

fn creates() -> [Create; 3] {
    let create = Create {
        parent: Ino::ROOT,
        name: name("a"),
        kind: FileKind::Symlink,
        mode: 0o644,
        umask: None,
        rdev: 7,
        target: b"/x/y".to_vec(),
        exclusive: true,
        promised: None,
        delegate: None,
    };
    let at = Timestamp { secs: 9, nanos: 8 };
    let promised = PromisedFile { ino: Ino(4097), at, written: at, bytes: vec![7; INLINE_MAX] };
    let (kind, target) = (FileKind::Regular, Vec::new());
    let file = Create { kind, target, promised: Some(promised), ..create.clone() };
    let dir = Create {
        kind: FileKind::Directory,
        target: Vec::new(),
        delegate: Some(3),
        umask: Some(0o777),
        ..create.clone()
    };
    [create, file, dir]
}

fn rename() -> Rename {
    let (parent, new_parent, no_replace, exchange) = (Ino::ROOT, Ino(9), false, true);
    let [before, new_name] = ["a", "b"].map(name);
    Rename { parent, name: before, new_parent, new_name, no_replace, exchange, whiteout: false }
}

fn ops() -> Vec<MetaOp> {
    let (parent, ino, mtime) = (Ino::ROOT, Ino(9), Timestamp::default());
    let set = SetAttr {
        mode: Some(0o7777),
        uid: Some(1),
        gid: None,
        size: Some(5),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(Timestamp { secs: -1, nanos: 1 })),
        ctime: Some(Timestamp::default()),
        stored: true,
        read: Some(mtime),
    };
    let [create, file, dir] = creates();
    let filled = Filled { from: 1, to: 5, cuts: 9 };
    [
        MetaOp::SessionOpen { name: "host:/mnt".to_owned() },
        MetaOp::SessionRenew { open: vec![Ino(1), Ino(2)], closed: vec![Ino(3)] },
        MetaOp::SessionClose,
        MetaOp::TakeNumbers { count: NUMBERS_MAX },
        MetaOp::Lookup { parent, name: name("a\u{f6}") },
        MetaOp::GetAttr { ino },
        MetaOp::ReadLink { ino },
        MetaOp::ReadDir(ReadDir { dir: parent, after: 1 << 62, limit: 10, attrs: true }),
        MetaOp::Create(create),
        MetaOp::Create(file),
        MetaOp::Create(dir),
        MetaOp::SetAttr { ino, set },
        MetaOp::SetAttr { ino, set: SetAttr::default() },
        MetaOp::Extend(Extend { ino, data: 4, size: 5, mtime, filled }),
        MetaOp::Hollow(Hollow { ino, from: 1 << 33, ended: true }),
        MetaOp::Link { ino, parent, name: name("l") },
        MetaOp::Unlink { parent, name: name("u"), of: None },
        MetaOp::Unlink { parent, name: name("u"), of: Some(Ino(1 << 40)) },
        MetaOp::Recalled,
        MetaOp::Return { dirs: vec![ino; RETURNS_MAX] },
        MetaOp::RemoveDir { parent, name: name("d") },
        MetaOp::Rename(rename()),
        MetaOp::SetXattr(Setxattr {
            ino,
            name: xattr("user.a/b"),
            value: vec![0; XATTR_BYTES_MAX],
            mode: XattrMode::Replace,
            drops_set_gid: true,
        }),
        MetaOp::GetXattr { ino, name: xattr("user.a") },
        MetaOp::ListXattr { ino },
        MetaOp::RemoveXattr { ino, name: xattr("user.a") },
        MetaOp::Usage,
        MetaOp::UsageAt { dir: ino },
        MetaOp::GetLock { ino, lock: lock() },
        MetaOp::SetLock { ino, lock: FileLock { kind: LockKind::Unlock, ..lock() } },
        MetaOp::SetQuota { dir: ino, limits: QuotaLimits { bytes: 1 << 40, inodes: 7 } },
        MetaOp::GetQuota { ino },
        MetaOp::Records(RecordRange { start: b"f/i".to_vec(), end: vec![], values: true }),
        MetaOp::RecordsAt { keys: vec![keys::inode(ino), keys::times(ino)] },
        MetaOp::TrashList { dir: parent, after: ino, limit: 5 },
        MetaOp::Trash(TrashChange::Keep { dir: parent, keep_s: 86_400 }),
        MetaOp::Trash(TrashChange::Restore { dir: parent, ino, name: name("r") }),
        MetaOp::Trash(TrashChange::Drop { dir: parent, ino }),
    ]
    .into_iter()
    .chain(repairs().into_iter().map(MetaOp::Repair))
    .chain(of_content())
    .chain(objects::ops().into_iter().map(MetaOp::Object))
    .collect()
}

fn of_content() -> Vec<MetaOp> {
    let ino = Ino(9);
    vec![
        MetaOp::Content { ino },
        MetaOp::WriteInline(WriteInline {
            ino,
            data: 4,
            offset: 1,
            bytes: vec![7; INLINE_MAX - 1],
            mtime: Timestamp::default(),
        }),
        MetaOp::Reserve(Reserve { ino, size: 1 << 40 }),
        MetaOp::Spill(Spill {
            ino,
            version: 3,
            chunks: 12,
            size: 1 << 40,
            solid: 1 << 39,
            mtime: Some(Timestamp::default()),
        }),
        MetaOp::Spill(Spill { ino, version: 3, chunks: 12, size: 0, solid: 0, mtime: None }),
        MetaOp::PutFile(PutFile { path: vec![name("a")], mode: 0, bytes: vec![1; STORED_MAX] }),
        MetaOp::GetFile { path: vec![name("a"), name("b")] },
        MetaOp::PutFile(PutFile { path: vec![name("a")], mode: 0o600, bytes: b"v".to_vec() }),
        MetaOp::Share { ino },
        MetaOp::Clone(CloneFile {
            source: ino,
            chunks: 1 << 50,
            parent: Ino::ROOT,
            name: name("c"),
        }),
        MetaOp::Unshare { ino, chunks: 12 },
        MetaOp::Shared { chunks: 12 },
    ]
}

fn shared() -> SharedRecord {
    let base = |(chunks, size)| FileBase { chunks, size };
    let bases = [(7, 9), (8, 9), (9, 0)].map(base).to_vec();
    let (layout, version) = (attr().layout, 5);
    let (users, is_sealed, size, began, owner) = (3, true, 9, 8, Ino(7));
    SharedRecord { version, users, is_sealed, layout, size, began, owner, bases }
}

fn repairs() -> Vec<Repair> {
    let (dir, ino, version, nlink) = (Ino::ROOT, Ino(9), 7, 3);
    let key = keys::inode(ino);
    vec![
        Repair::Root,
        Repair::Aside { key: key.clone() },
        Repair::Name { dir, name: name("a") },
        Repair::ExtraName { dir, name: name("a"), ino, version },
        Repair::Place { ino, version, parent: dir },
        Repair::Links { ino, version, nlink },
        Repair::Nameless { ino, version, nlink },
        Repair::Named { ino, version, nlink: 0, trash: dir },
        Repair::Ring { ino },
        Repair::Xattrs { ino },
        Repair::Stray { key: key.clone() },
        Repair::Usage { key, version, bytes: 1 << 40, inodes: 5 },
        Repair::Users { chunks: 1 << 50, version, users: 3 },
        Repair::Places { dir, name: name("a") },
    ]
}

fn trashed() -> TrashRecord {
    let until = Timestamp { secs: 1, nanos: 2 };
    TrashRecord { name: name("gone"), since: Timestamp::default(), until }
}

fn replies() -> Vec<MetaReply> {
    let objects = objects::replies().into_iter().map(MetaReply::Object);
    let removed = Removed { ino: Ino(4), nlink: 1 };
    let entry = |attr| DirEntry {
        cookie: 5,
        name: name("n"),
        ino: Ino(77),
        kind: FileKind::Directory,
        attr,
    };
    let mut all = vec![
        MetaReply::Done,
        MetaReply::Session(Session { id: 1 << 40, lease_ms: 2000 }),
        MetaReply::Renewed { asked: vec![Ino(5)] },
        MetaReply::Entry(Entry { attr: attr(), created: true }),
        MetaReply::Attr(attr()),
        MetaReply::Delegated(attr()),
        MetaReply::Recalled { tenure: 3, dirs: vec![Ino(5)] },
        MetaReply::Target(vec![b'/'; TARGET_BYTES_MAX]),
        MetaReply::Page { entries: vec![entry(None), entry(Some(attr()))], end: false },
        MetaReply::Removed(removed),
        MetaReply::Renamed(None),
        MetaReply::Renamed(Some(removed)),
        MetaReply::Xattr(b"v".to_vec()),
        MetaReply::Xattrs(vec![xattr("user.a"), xattr("user.b")]),
        MetaReply::Usage(Usage { bytes: 1, bytes_free: 2, inodes: 3 }),
        MetaReply::Lock(None),
        MetaReply::Lock(Some(HeldLock { session: 1 << 40, lock: lock() })),
        MetaReply::Quota(Quota {
            root: Ino(9),
            limits: QuotaLimits { bytes: 1, inodes: 2 },
            bytes: 3,
            inodes: 4,
        }),
        MetaReply::Records(RecordPage {
            entries: vec![(b"f/i1".to_vec(), b"v".to_vec()), (b"f/i2".to_vec(), Vec::new())],
            next: Some(b"f/i3".to_vec()),
        }),
        MetaReply::Records(RecordPage::default()),
        MetaReply::Values(vec![None, Some(b"v".to_vec()), Some(Vec::new())]),
        MetaReply::Repaired(true),
        MetaReply::Content(Content { attr: attr(), bytes: Vec::new() }),
        MetaReply::Content(Content {
            attr: Attr { chunks: None, is_shared: false, ..attr() },
            bytes: vec![1; INLINE_MAX],
        }),
        MetaReply::Attr(Attr { chunks: Some(99), ..attr() }),
        MetaReply::Attr(Attr { solid: 1 << 40, cuts: 3, ..attr() }),
        MetaReply::Attr(Attr { chunks: Some(99), solid: 7, ..attr() }),
        MetaReply::Attr(Attr { cuts: u32::MAX, ..attr() }),
        MetaReply::Reserved(12),
        MetaReply::Numbers { first: 4097 },
        MetaReply::Shared(shared()),
        MetaReply::Trash(TrashPage {
            keep_s: 7,
            entries: vec![TrashEntry {
                ino: Ino(5),
                kind: FileKind::Regular,
                size: 1 << 40,
                record: trashed(),
            }],
            end: true,
        }),
    ];
    all.extend(objects);
    all
}

#[test]
fn requests_come_back_and_pieces_of_them_are_refused() {
    for op in ops() {
        let caller = Caller { uid: 1, gid: 2, groups: vec![3, 4], checked: true };
        let request = MetaRequest { session: 1, sequence: 2, hour: 3, caller, op };
        let bytes = request.encode();
        assert_eq!(MetaRequest::decode(&bytes).as_ref(), Ok(&request));
        for cut in (0..bytes.len()).step_by(1 + bytes.len() / 300) {
            assert!(MetaRequest::decode(&bytes[..cut]).is_err(), "{} cut", request.op.name());
        }
        assert!(MetaRequest::decode(&[&bytes[..], &[0]].concat()).is_err());
    }
}

#[test]
fn answers_come_back_and_pieces_of_them_are_refused() {
    for reply in replies() {
        let answer = Ok(reply);
        let bytes = MetaReply::encode_answer(&answer);
        assert_eq!(MetaReply::decode_answer(&bytes), Ok(answer));
        for cut in (0..bytes.len()).step_by(1 + bytes.len() / 300) {
            assert!(MetaReply::decode_answer(&bytes[..cut]).is_err());
        }
    }
    for error in MetaError::ALL {
        let bytes = MetaReply::encode_answer(&Err(*error));
        assert_eq!(MetaReply::decode_answer(&bytes), Ok(Err(*error)));
    }
    assert!(MetaReply::decode_answer(&[255]).is_err());
}

#[test]
fn records_come_back_and_damage_is_seen() {
    let marks = Marks::default();
    let (target, xattrs, quota, keep_s) = (b"t".to_vec(), 2, Ino(5), 7);
    let delegated = None;
    let record = InodeRecord { attr: attr(), target, xattrs, quota, keep_s, marks, delegated };
    let mut bytes = record.seal();
    assert_eq!(InodeRecord::open(&bytes), Ok(record));
    assert!(EntryRecord::open(&bytes).is_err(), "another kind");
    bytes[20] ^= 1;
    assert!(InodeRecord::open(&bytes).is_err());
    for len in [0, INLINE_MAX, STORED_MAX - 2, STORED_MAX - 1, STORED_MAX] {
        let content = ContentRecord { data: 5, bytes: vec![9; len] };
        assert_eq!(ContentRecord::open(&content.seal()), Ok(content));
    }
    let long = ContentRecord { data: 5, bytes: vec![9; STORED_MAX + 1] };
    assert!(ContentRecord::open(&long.seal()).is_err());
    assert_eq!(SharedRecord::open(&shared().seal()), Ok(shared()));
    let mut longer = shared();
    longer.bases[1].size = 10;
    assert!(SharedRecord::open(&longer.seal()).is_err(), "a base that counts more");
    for tenure in [0, 1, u32::MAX] {
        let (name, renewed) = ("h".to_owned(), Timestamp::default());
        let session = SessionRecord { name, renewed, tenure };
        assert_eq!(SessionRecord::open(&session.seal()), Ok(session));
    }
    let garbage = GarbageRecord {
        layout: attr().layout,
        size: 9,
        since: Timestamp::default(),
        is_sealed: true,
    };
    assert_eq!(GarbageRecord::open(&garbage.seal()), Ok(garbage));
    let locks = LocksRecord { locks: vec![HeldLock { session: 1, lock: lock() }; LOCKS_MAX] };
    let bytes = locks.seal();
    assert!(bytes.len() < crate::limits::STORE_VALUE_BYTES_MAX, "one value holds them all");
    assert_eq!(LocksRecord::open(&bytes), Ok(locks));
    let limits = QuotaLimits { bytes: 1, inodes: 2 };
    assert_eq!(QuotaRecord::open(&QuotaRecord { limits }.seal()), Ok(QuotaRecord { limits }));
    assert_eq!(TrashRecord::open(&trashed().seal()), Ok(trashed()));
    let usage = UsageRecord { bytes: 1, inodes: 2, version: 3 };
    assert_eq!(UsageRecord::open(&usage.seal()), Ok(usage));
}

#[test]
fn names_that_no_directory_has_are_refused() {
    for wrong in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
        assert!(Name::new(wrong).is_err(), "{}", wrong.escape_ascii());
    }
    assert!(Name::new(&[0xff; 255]).is_ok() && Name::new(b"...").is_ok());
    assert!(XattrName::new(b"user.a/b").is_ok() && XattrName::new(b"").is_err());
}

#[test]
fn entries_lie_in_the_order_of_their_hashes() {
    let dir = Ino(3);
    let key = keys::entry(dir, &name("hello"));
    // Golden values: every later build must find data stored today.
    assert_eq!(keys::hash(&name("hello")), 0x9555_e855_5c62_dcfd >> 13);
    assert_eq!(keys::split_entry(&key), Some((keys::hash(&name("hello")), name("hello"))));
    assert!(key.starts_with(&keys::entries(dir)) && !key.starts_with(&keys::entries(Ino(4))));
    assert!(keys::entries_from(dir, keys::hash(&name("hello"))) < key);
    assert!(keys::entries_from(dir, keys::hash(&name("hello")) + 1) > key);
    assert_eq!(keys::number(keys::ORPHANS, &keys::orphan(Ino(8))), Some(8));
    assert_eq!(keys::number(keys::ORPHANS, &keys::garbage(8)), None);
    assert_eq!(keys::split_locked(&keys::locked(7, Ino(8))), Some((7, Ino(8))));
    assert_eq!(keys::split_locked(&keys::locked_by(7)), None);
    assert!(keys::locked(7, Ino(8)).starts_with(&keys::locked_by(7)));
    assert_eq!(keys::split_trash(&keys::trash(dir, Ino(8))), Some((dir, Ino(8))));
    assert_eq!(keys::split_trash(&keys::trash_of(dir)), None);
}

#[test]
fn a_layout_spreads_chunks_over_its_stripe_and_stays_in_the_table() {
    let layout = Layout { chunk_log2: 16, stripe: 4, seed: 254, chains: 256, table: 0 };
    let chains: Vec<u32> = (0..6).map(|index| layout.chain(index).0).collect();
    assert_eq!(chains, [255, 256, 1, 2, 255, 256]);
    assert_eq!(layout.locate(0x1_0005), Some((1, 5)));
    assert_eq!(layout.locate(1 << 48), None);
    assert_eq!(layout.chunks(0x1_0001), 2);
    assert_eq!(Layout::NONE.chain(7), ChainId::NONE);
    let other = Layout { table: 6, ..layout };
    let chains = [255, 256, 1].map(|number| ChainId::of(6, number));
    assert_eq!([0, 1, 2].map(|index| other.chain(index)), chains);
    assert_eq!(chains.map(|chain| (chain.table(), chain.number())), [(6, 255), (6, 256), (6, 1)]);
}

/// The table shares a byte with the chunk size: layouts from before tables existed decode
/// unchanged.
#[test]
fn a_layout_is_read_as_it_was_written_and_no_other() {
    let layout = Layout { chunk_log2: 26, stripe: 4, seed: 1, chains: 256, table: 6 };
    let encoded = |layout: &Layout| {
        let mut w = Writer::default();
        layout.encode(&mut w);
        w.into_bytes()
    };
    for table in 0..=6 {
        let layout = Layout { table, ..layout };
        assert_eq!(Layout::decode(&mut Reader::new(&encoded(&layout))), Ok(layout));
    }
    let before = encoded(&Layout { table: 0, ..layout });
    assert_eq!(before[0], 26);
    for first in [0b111_11010, 0b110_11011, 15, 27] {
        let mut wrong = before.clone();
        wrong[0] = first;
        assert!(Layout::decode(&mut Reader::new(&wrong)).is_err(), "{first}");
    }
}

#[test]
fn kinds_and_mode_bits_agree() {
    for kind in FileKind::ALL {
        assert_eq!(FileKind::from_mode(kind.mode_bits() | 0o644), Some(kind));
    }
    assert_eq!(FileKind::from_mode(0), None);
    assert_eq!(attr().st_mode(), 0o104_755);
}
