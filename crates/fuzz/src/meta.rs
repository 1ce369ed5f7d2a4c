//! Seeds of the file namespace's requests, answers and records.

use millpond_types::meta::object::{
    Attachment, AttachmentRecord, Backing, BackingOp, BackingReply, Bucket, Claimed, Expect,
    KeyState, ListObjects, ListPage, Listed, Mode, Object, ObjectBody, ObjectOp, ObjectReply,
    Origin, Outcome, Part, PartPlace, PartRecord, Place, PutObject, PutPart, QueuePage,
    QueueRecord, Queued, Remote, Rule, SetAttachment, Sharing, StatePage, Under, Upload, UploadId,
    UploadRecord, Wanted, WhenFull, Whole,
};
use millpond_types::meta::{
    Acl, After, Answered, Attr, Caller, Changed, Content, ContentRecord, CounterRecord, Create,
    Delegation, DirEntry, DirTimes, Entry, EntryRecord, Extend, FileKind, FileLock, Filled,
    GarbageRecord, HeldLock, Hollow, Ino, InodeRecord, Layout, LockKind, LockSpace, LocksRecord,
    Marks, MetaError, MetaNews, MetaOp, MetaReply, MetaRequest, MetaWatch, Name, OrphanRecord,
    PromisedFile, PutFile, Quota, QuotaLimits, QuotaRecord, ReadDir, RecordPage, RecordRange,
    Removed, Rename, Repair, Reserve, Session, SessionRecord, SetAttr, SetTime, Setxattr, Spill,
    Timestamp, TrashChange, TrashEntry, TrashPage, TrashRecord, Usage, UsageRecord, VolumeRecord,
    WriteInline, XattrMode, XattrName, keys,
};
use millpond_types::wire::Record;

use crate::seeds::Seeds;

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("it is a name")
}

fn xattr(text: &str) -> XattrName {
    XattrName::new(text.as_bytes()).expect("it is a name")
}

const TIME: Timestamp = Timestamp { secs: -5, nanos: 999_999_999 };
const LAYOUT: Layout = Layout { chunk_log2: 18, stripe: 16, seed: 3, chains: 256, table: 2 };
const FILLED: Filled = Filled { from: 3, to: 9, cuts: 5 };
const PLACE: PartPlace = PartPlace { offset: 1 << 24, len: 1 << 23, modified: TIME };
const LIMITS: QuotaLimits = QuotaLimits { bytes: 1 << 40, inodes: 1000 };
const LOCK: FileLock = FileLock {
    space: LockSpace::Posix,
    kind: LockKind::Write,
    owner: 5,
    pid: 6,
    start: 7,
    end: u64::MAX,
};

fn attr() -> Attr {
    Attr {
        ino: Ino(77),
        kind: FileKind::Regular,
        mode: 0o4755,
        uid: 1000,
        gid: 100,
        nlink: 2,
        rdev: 0,
        size: 1 << 40,
        atime: TIME,
        mtime: TIME,
        ctime: TIME,
        btime: TIME,
        data: 78,
        chunks: Some(78),
        is_shared: true,
        solid: 0,
        cuts: 5,
        layout: LAYOUT,
        parent: Ino::ROOT,
        version: 9,
    }
}

fn stored() -> Attr {
    Attr { chunks: None, size: 5, ..attr() }
}

fn rename() -> Rename {
    let (parent, new_parent, no_replace, exchange) = (Ino::ROOT, Ino(9), false, true);
    let [before, new_name] = ["a", "b"].map(name);
    Rename { parent, name: before, new_parent, new_name, no_replace, exchange, whiteout: false }
}

fn changes() -> Vec<MetaOp> {
    let (parent, ino) = (Ino::ROOT, Ino(9));
    let set = SetAttr {
        mode: Some(0o7777),
        size: Some(5),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(TIME)),
        ..SetAttr::default()
    };
    let create = Create {
        parent,
        name: name("a"),
        kind: FileKind::Symlink,
        mode: 0o644,
        umask: None,
        rdev: 7,
        target: b"/x/y".to_vec(),
        exclusive: true,
        promised: None,
        delegate: Some(3),
    };
    let rename = rename();
    let (value, mode) = (b"value".to_vec(), XattrMode::Replace);
    let promised = PromisedFile { ino: Ino(4097), at: TIME, written: TIME, bytes: vec![7; 90] };
    let (kind, target) = (FileKind::Regular, Vec::new());
    let umask = Some(0o22);
    let file = Create { kind, target, umask, promised: Some(promised), ..create.clone() };
    vec![
        MetaOp::TakeNumbers { count: 1024 },
        MetaOp::Create(create),
        MetaOp::Create(file),
        MetaOp::SetAttr { ino, set },
        MetaOp::Extend(Extend { ino, data: 4, size: 5, mtime: TIME, filled: FILLED }),
        MetaOp::Hollow(Hollow { ino, from: 77, ended: false }),
        MetaOp::Link { ino, parent, name: name("l") },
        MetaOp::WriteInline(WriteInline {
            ino,
            data: 4,
            offset: 3,
            bytes: b"bytes".to_vec(),
            mtime: TIME,
        }),
        MetaOp::Reserve(Reserve { ino, size: 1 << 20 }),
        MetaOp::Spill(Spill {
            ino,
            version: 7,
            chunks: 12,
            size: 1 << 20,
            solid: 99,
            mtime: Some(TIME),
        }),
        MetaOp::PutFile(PutFile {
            path: vec![name("d"), name("f")],
            mode: 0o600,
            bytes: b"v".to_vec(),
        }),
        MetaOp::Unlink { parent, name: name("u"), of: Some(ino) },
        MetaOp::RemoveDir { parent, name: name("d") },
        MetaOp::Rename(rename),
        MetaOp::SetXattr(Setxattr { ino, name: xattr("user.a"), value, mode, drops_set_gid: true }),
        MetaOp::RemoveXattr { ino, name: xattr("user.a") },
        MetaOp::SetLock { ino, lock: LOCK },
        MetaOp::SetQuota { dir: ino, limits: LIMITS },
        MetaOp::Trash(TrashChange::Keep { dir: ino, keep_s: 86_400 }),
        MetaOp::Trash(TrashChange::Restore { dir: parent, ino, name: name("r") }),
        MetaOp::Trash(TrashChange::Drop { dir: parent, ino }),
    ]
}

fn repairs() -> Vec<MetaOp> {
    let (dir, ino, version, nlink) = (Ino::ROOT, Ino(9), 7, 3);
    let (key, name) = (keys::inode(ino), name("a"));
    let repairs = [
        Repair::Root,
        Repair::Aside { key: key.clone() },
        Repair::Name { dir, name: name.clone() },
        Repair::ExtraName { dir, name: name.clone(), ino, version },
        Repair::Place { ino, version, parent: dir },
        Repair::Links { ino, version, nlink },
        Repair::Nameless { ino, version, nlink },
        Repair::Named { ino, version, nlink, trash: dir },
        Repair::Ring { ino },
        Repair::Xattrs { ino },
        Repair::Places { dir, name: name.clone() },
        Repair::Stray { key: key.clone() },
        Repair::Usage { key, version, bytes: 1, inodes: 2 },
    ];
    repairs.into_iter().map(MetaOp::Repair).collect()
}

fn looks() -> Vec<MetaOp> {
    let (parent, ino) = (Ino::ROOT, Ino(9));
    vec![
        MetaOp::SessionOpen { name: "host:/mnt".into() },
        MetaOp::SessionRenew { open: vec![Ino(1), Ino(2)], closed: vec![Ino(3)] },
        MetaOp::SessionClose,
        MetaOp::Lookup { parent, name: name("a") },
        MetaOp::GetAttr { ino },
        MetaOp::ReadLink { ino },
        MetaOp::Content { ino },
        MetaOp::GetFile { path: vec![name("d"), name("f")] },
        MetaOp::ReadDir(ReadDir { dir: parent, after: 1 << 62, limit: 10, attrs: true }),
        MetaOp::GetXattr { ino, name: xattr("user.a") },
        MetaOp::ListXattr { ino },
        MetaOp::Usage,
        MetaOp::UsageAt { dir: ino },
        MetaOp::GetLock { ino, lock: LOCK },
        MetaOp::GetQuota { ino },
        MetaOp::Records(RecordRange { start: b"f/i".to_vec(), end: b"f/j".to_vec(), values: true }),
        MetaOp::RecordsAt { keys: vec![keys::inode(ino), keys::times(ino)] },
        MetaOp::TrashList { dir: parent, after: ino, limit: 5 },
    ]
}

fn backing() -> Backing {
    let rule = Rule {
        prefix: b"tmp/".to_vec(),
        mode: Mode::Transient,
        is_pinned: true,
        sharing: Sharing::AsBucket,
        priority: 3,
        ttl_s: 60,
        quota_bytes: 1 << 40,
        when_full: WhenFull::WriteThrough,
        replicas: 2,
    };
    Backing {
        backend: "far".into(),
        bucket: "b".into(),
        prefix: b"p/".to_vec(),
        is_shared: true,
        ttl_s: 60,
        cache_bytes: 1 << 50,
        rules: vec![rule],
    }
}

fn state() -> KeyState {
    KeyState {
        seq: 7,
        wanted: Wanted::File { ino: Ino(77), size: 9, ctime: TIME },
        has: Some(Remote { etag: "etag".into(), seq: 5 }),
        place: Some(Place { lane: 1, due_ms: 1 << 41, n: 8 }),
        under: Some(Under { seq: 6, put_id: 9, since: TIME }),
        since: TIME,
        mode: Mode::WriteThrough,
        attempts: 3,
        error: "503".into(),
    }
}

fn backing_ops() -> Vec<ObjectOp> {
    let (bucket, key) = (name("bucket"), b"a/b".to_vec());
    let (error, etag) = ("503".to_owned(), Some("etag".to_owned()));
    let settle = |outcome| {
        let (bucket, key) = (name("bucket"), b"a".to_vec());
        BackingOp::Settle { bucket, key, put_id: 5, outcome }
    };
    let ops = [
        BackingOp::Set { bucket: bucket.clone(), backing: Some(backing()) },
        BackingOp::Claim {
            bucket: bucket.clone(),
            lane: 1,
            limit: 9,
            lease_ms: 9,
            put_ids_from: 9,
        },
        settle(Outcome::Done { etag }),
        settle(Outcome::Failed { error: error.clone(), pause_ms: 7 }),
        settle(Outcome::Unknown { error, pause_ms: 7 }),
        settle(Outcome::GoingOn { lease_ms: 7 }),
        BackingOp::Evict { bucket: bucket.clone(), key: key.clone(), seq: 9 },
        BackingOp::Adopt { bucket: bucket.clone(), key: key.clone() },
        BackingOp::Hasten { bucket: bucket.clone(), key: key.clone() },
        BackingOp::ListQueue { bucket: bucket.clone(), lane: 0, after: state().place, limit: 9 },
        BackingOp::ListStates { bucket, prefix: key.clone(), after: key, limit: 9 },
    ];
    ops.into_iter().map(ObjectOp::Backing).collect()
}

fn backing_replies() -> Vec<ObjectReply> {
    let key = b"a".to_vec();
    let entry = Queued {
        key: key.clone(),
        bytes: 7,
        since: TIME,
        place: Place { lane: 0, due_ms: 5, n: 6 },
    };
    let claimed = Claimed { key: key.clone(), state: state(), object: None, is_fresh: true };
    let replies = [
        BackingReply::Claims(vec![claimed]),
        BackingReply::Queue(QueuePage { entries: vec![entry], end: false, now_ms: 1 << 41 }),
        BackingReply::States(StatePage { states: vec![(key, state())], end: true }),
        BackingReply::Settled(state()),
        BackingReply::State(None),
        BackingReply::Is(true),
    ];
    replies.into_iter().map(ObjectReply::Backing).collect()
}

fn objects() -> Vec<ObjectOp> {
    let (bucket, key, id) = (name("bucket"), b"a/b".to_vec(), UploadId(9));
    let (attachment, ino) = (b"etag".to_vec(), Ino(9));
    let expect = Expect::Exactly { ino, version: 7 };
    let put = PutObject {
        bucket: bucket.clone(),
        key: key.clone(),
        body: ObjectBody::Bytes(b"bytes".to_vec()),
        mode: 0o644,
        attachment: attachment.clone(),
        expect: Expect::Absent,
        replicas: 2,
        upload: None,
        origin: None,
    };
    let body = ObjectBody::Nameless(ino);
    let origin = Some(Origin { etag: "etag".into(), seen: Some(7) });
    let filled = PutObject { origin, ..put.clone() };
    let named = PutObject { body, expect, upload: Some(id), ..put.clone() };
    let after = Some((key.clone(), id));
    let set = SetAttachment {
        bucket: bucket.clone(),
        key: key.clone(),
        attachment: attachment.clone(),
        expect,
    };
    let list = ListObjects {
        bucket: bucket.clone(),
        prefix: key.clone(),
        delimiter: b"/".to_vec(),
        after: key.clone(),
        limit: 9,
    };
    let part = PutPart {
        bucket: bucket.clone(),
        id,
        number: 3,
        ino,
        attachment: attachment.clone(),
        place: Some(1 << 24),
        replaces: Some(Ino(8)),
    };
    vec![
        ObjectOp::Nameless { parent: Ino::ROOT, ino, mode: 0o600, replicas: 2, umask: None },
        ObjectOp::Put(put),
        ObjectOp::Put(named),
        ObjectOp::Put(filled),
        ObjectOp::Get { bucket: bucket.clone(), key: key.clone(), with_bytes: true },
        ObjectOp::SetAttachment(set),
        ObjectOp::Remove { bucket: bucket.clone(), key: key.clone(), expect },
        ObjectOp::List(list),
        ObjectOp::MakeBucket { bucket: bucket.clone(), attachment: attachment.clone() },
        ObjectOp::CreateUpload { bucket: bucket.clone(), key, attachment },
        ObjectOp::ListUploads { bucket: bucket.clone(), after, limit: 9 },
        ObjectOp::PutPart(part),
        ObjectOp::ListParts { bucket: bucket.clone(), id, after: 3, limit: 9 },
        ObjectOp::AbortUpload { bucket, id },
    ]
    .into_iter()
    .chain(backing_ops())
    .collect()
}

fn object_replies() -> Vec<ObjectReply> {
    let attachment = Some(Attachment { bytes: b"etag".to_vec(), is_current: true });
    let (attr, bytes) = (Attr { is_shared: false, ..stored() }, Some(b"bytes".to_vec()));
    let object = Object { attr, attachment: attachment.clone(), bytes };
    let key = Listed::Key { key: b"a".to_vec(), object: object.clone() };
    let items = vec![key, Listed::Prefix(b"b/".to_vec())];
    let bucket = Bucket { name: "bucket".into(), attr, attachment, backing: Some(backing()) };
    let (key, attachment) = (b"a".to_vec(), b"etag".to_vec());
    let part = Part { number: 3, attr, attachment: attachment.clone(), place: Some(PLACE) };
    let upload = Upload { id: UploadId(9), key, attachment, started: TIME };
    vec![
        ObjectReply::Done { attr: Some(attr), replaced: Some(object.clone()) },
        ObjectReply::Object { object: Some(object.clone()), state: Some(state()) },
        ObjectReply::Unmet(Some(object)),
        ObjectReply::Page(ListPage { items, next: Some(b"b/".to_vec()) }),
        ObjectReply::Buckets { buckets: vec![bucket], next: 7 },
        ObjectReply::Uploads { uploads: vec![upload], end: true },
        ObjectReply::Parts { parts: vec![part], end: false },
    ]
    .into_iter()
    .chain(backing_replies())
    .collect()
}

fn requests() -> Vec<Vec<u8>> {
    let caller = Caller { uid: 1, gid: 2, groups: vec![3, 4], checked: true };
    let request = |op| MetaRequest { session: 1, sequence: 2, hour: 3, caller: caller.clone(), op };
    let objects = objects().into_iter().map(MetaOp::Object);
    changes()
        .into_iter()
        .chain(repairs())
        .chain(looks())
        .chain(objects)
        .map(|op| request(op).encode())
        .collect()
}

fn trash_record() -> TrashRecord {
    TrashRecord { name: name("gone"), since: TIME, until: TIME }
}

fn trashed() -> TrashEntry {
    TrashEntry { ino: Ino(5), kind: FileKind::Regular, size: 1 << 40, record: trash_record() }
}

fn replies() -> Vec<Vec<u8>> {
    let removed = Removed { ino: Ino(4), nlink: 1 };
    let entry = |attr| DirEntry {
        cookie: 5,
        name: name("n"),
        ino: Ino(77),
        kind: FileKind::Directory,
        attr,
    };
    let replies = [
        MetaReply::Done,
        MetaReply::Session(Session { id: 1 << 40, lease_ms: 2000 }),
        MetaReply::Renewed { asked: vec![Ino(5)] },
        MetaReply::Entry(Entry { attr: attr(), created: true }),
        MetaReply::Attr(attr()),
        MetaReply::Attr(stored()),
        MetaReply::Attr(Attr { chunks: Some(99), ..attr() }),
        MetaReply::Content(Content { attr: stored(), bytes: b"bytes".to_vec() }),
        MetaReply::Reserved(12),
        MetaReply::Numbers { first: 4096 },
        MetaReply::Target(b"/x".to_vec()),
        MetaReply::Page { entries: vec![entry(None), entry(Some(attr()))], end: false },
        MetaReply::Removed(removed),
        MetaReply::Renamed(Some(removed)),
        MetaReply::Xattr(b"v".to_vec()),
        MetaReply::Xattrs(vec![xattr("user.a"), xattr("user.b")]),
        MetaReply::Usage(Usage { bytes: 1, bytes_free: 2, inodes: 3 }),
        MetaReply::Lock(Some(HeldLock { session: 1, lock: LOCK })),
        MetaReply::Quota(Quota { root: Ino(9), limits: LIMITS, bytes: 1, inodes: 2 }),
        MetaReply::Records(RecordPage {
            entries: vec![(b"f/i1".to_vec(), b"v".to_vec())],
            next: Some(b"f/i2".to_vec()),
        }),
        MetaReply::Values(vec![None, Some(b"v".to_vec())]),
        MetaReply::Repaired(true),
        MetaReply::Trash(TrashPage { keep_s: 7, entries: vec![trashed()], end: true }),
    ];
    let refused = MetaReply::encode_answer(&Err(MetaError::NotEmpty));
    let objects = object_replies().into_iter().map(MetaReply::Object);
    let mut all: Vec<Vec<u8>> = replies
        .into_iter()
        .chain(objects)
        .map(|reply| MetaReply::encode_answer(&Ok(reply)))
        .collect();
    all.push(refused);
    all
}

fn records() -> Vec<Vec<u8>> {
    let marks = Marks { objects: true, implied: true, backed: true, evicted: true };
    let inode = InodeRecord {
        attr: Attr { kind: FileKind::Directory, is_shared: false, ..attr() },
        target: Vec::new(),
        xattrs: 2,
        quota: Ino(9),
        keep_s: 7,
        marks,
        delegated: Some(Delegation { session: 9, tenure: 3 }),
    };
    let (key, attachment) = (b"a/b".to_vec(), b"etag".to_vec());
    let sealed = [
        VolumeRecord { format: 1, layout: LAYOUT, created: TIME }.seal(),
        CounterRecord { next: 5120 }.seal(),
        inode.seal(),
        DirTimes { mtime: TIME, ctime: TIME }.seal(),
        EntryRecord { ino: Ino(77), kind: FileKind::Directory }.seal(),
        ContentRecord { data: 78, bytes: b"bytes".to_vec() }.seal(),
        OrphanRecord { since: TIME, waits_for: Some(vec![1, 2]) }.seal(),
        GarbageRecord { layout: LAYOUT, size: 9, since: TIME, is_sealed: true }.seal(),
        SessionRecord { name: "host:/mnt".into(), renewed: TIME, tenure: 3 }.seal(),
        LocksRecord { locks: vec![HeldLock { session: 1, lock: LOCK }] }.seal(),
        QuotaRecord { limits: LIMITS }.seal(),
        UsageRecord { bytes: 1, inodes: 2, version: 3 }.seal(),
        trash_record().seal(),
        AttachmentRecord { size: 5, mtime: TIME, bytes: attachment.clone() }.seal(),
        UploadRecord {
            key,
            started: TIME,
            attachment: attachment.clone(),
            whole: Some(Whole::new(Ino(77), 1 << 23)),
        }
        .seal(),
        PartRecord { ino: Ino(77), attachment, place: Some(PLACE) }.seal(),
        backing().seal(),
        state().seal(),
        QueueRecord { key: b"a".to_vec(), bytes: 5, since: TIME, file: Ino(7) }.seal(),
    ];
    // The target adds the checksum.
    sealed.into_iter().map(|bytes| bytes[..bytes.len() - 4].to_vec()).collect()
}

/// Access control lists after a mode.
fn lists() -> Vec<Vec<u8>> {
    let minimal = Acl::from_mode(0o751).to_bytes();
    // The entry of a user after the owner's, and a mask before others'.
    let user: [u8; 8] = [2, 0, 7, 0, 0xe8, 3, 0, 0];
    let mask: [u8; 8] = [0x10, 0, 5, 0, 0xff, 0xff, 0xff, 0xff];
    let long = [&minimal[..12], &user, &minimal[12..20], &mask, &minimal[20..]].concat();
    let mode = 0o664_u16.to_le_bytes();
    [minimal, long].into_iter().map(|list| [&mode[..], &list].concat()).collect()
}

/// Seeds of the targets.
fn watches() -> Vec<Vec<u8>> {
    let changes = vec![(9, Changed::Inode(Ino(5))), (10, Changed::Name(Ino::ROOT, name("a")))];
    let answers = [Ok(MetaReply::Attr(attr())), Err(MetaError::NotFound)];
    let mut seeds: Vec<Vec<u8>> = answers
        .into_iter()
        .map(|answer| Answered { answer, version: 10, after: After::default() }.encode())
        .collect();
    let after = After { version: 11, dirs: vec![attr()] };
    seeds.push(Answered { answer: Ok(MetaReply::Done), version: 10, after }.encode());
    seeds.push(MetaWatch { session: 3, after: 8, wait_ms: 1000 }.encode());
    seeds.push(MetaNews { version: 10, gap: false, changes }.encode());
    seeds.push(MetaNews { version: 10, gap: true, changes: Vec::new() }.encode());
    seeds
}

pub(crate) fn all() -> Vec<Seeds> {
    vec![
        ("meta_acl", lists()),
        ("meta_request", requests()),
        ("meta_reply", replies()),
        ("meta_watch", watches()),
        ("meta_records", records()),
    ]
}
