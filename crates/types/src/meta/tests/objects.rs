//! Operations, answers and records of objects.

use super::super::object::{
    ATTACHMENT_MAX, Attachment, AttachmentRecord, Bucket, Expect, ListObjects, ListPage, Listed,
    OBJECT_KEY_MAX, Object, ObjectBody, ObjectOp, ObjectReply, PARTS_MAX, Part, PartPlace,
    PartRecord, PutObject, PutPart, SetAttachment, Upload, UploadId, UploadRecord, Whole,
};
use super::backing::{self, backing, state};
use super::*;

fn stored() -> Attr {
    Attr { chunks: None, is_shared: false, size: 5, ..attr() }
}

pub(super) fn object() -> Object {
    let attachment = Some(Attachment { bytes: vec![7; ATTACHMENT_MAX], is_current: true });
    Object { attr: stored(), attachment, bytes: Some(b"bytes".to_vec()) }
}

fn nameless() -> ObjectOp {
    let (parent, ino, umask) = (Ino::ROOT, Ino(5000), Some(0o27));
    ObjectOp::Nameless { parent, ino, mode: 0o600, replicas: 3, umask }
}

pub(super) fn ops() -> Vec<ObjectOp> {
    let (bucket, key, id) = (name("bucket"), b"a/b".to_vec(), UploadId(1 << 40));
    let (attachment, limit) = (b"etag".to_vec(), 1000);
    let put = PutObject {
        bucket: bucket.clone(),
        key: key.clone(),
        body: ObjectBody::Bytes(vec![1; STORED_MAX]),
        mode: 0o644,
        attachment: attachment.clone(),
        expect: Expect::Absent,
        replicas: 6,
        upload: None,
        origin: None,
    };
    let expect = Expect::Exactly { ino: Ino(9), version: 7 };
    let named =
        PutObject { body: ObjectBody::Nameless(Ino(9)), expect, upload: Some(id), ..put.clone() };
    let set = SetAttachment {
        bucket: bucket.clone(),
        key: key.clone(),
        attachment: attachment.clone(),
        expect: Expect::Any,
    };
    let part = PutPart {
        bucket: bucket.clone(),
        id,
        number: PARTS_MAX,
        ino: Ino(9),
        attachment: attachment.clone(),
        place: None,
        replaces: None,
    };
    let places = places(&put, &part);
    let of = |origin| ObjectOp::Put(PutObject { origin, ..put.clone() });
    let fills: Vec<ObjectOp> = backing::origins().into_iter().map(of).collect();
    vec![
        nameless(),
        ObjectOp::Put(put),
        ObjectOp::Put(named),
        ObjectOp::Get { bucket: bucket.clone(), key: key.clone(), with_bytes: true },
        ObjectOp::SetAttachment(set),
        ObjectOp::Remove { bucket: bucket.clone(), key: key.clone(), expect },
        ObjectOp::List(ListObjects {
            bucket: bucket.clone(),
            prefix: b"a/".to_vec(),
            delimiter: b"/".to_vec(),
            after: vec![b'x'; OBJECT_KEY_MAX + 1],
            limit,
        }),
        ObjectOp::MakeBucket { bucket: bucket.clone(), attachment: attachment.clone() },
        ObjectOp::RemoveBucket { bucket: bucket.clone() },
        ObjectOp::GetBucket { bucket: bucket.clone() },
        ObjectOp::SetBucket { bucket: bucket.clone(), attachment: attachment.clone() },
        ObjectOp::ListBuckets { after: 1 << 62 },
        ObjectOp::CreateUpload { bucket: bucket.clone(), key: key.clone(), attachment },
        ObjectOp::GetUpload { bucket: bucket.clone(), id },
        ObjectOp::ListUploads { bucket: bucket.clone(), after: None, limit },
        ObjectOp::ListUploads { bucket: bucket.clone(), after: Some((key, id)), limit },
        ObjectOp::PutPart(part),
        ObjectOp::ListParts { bucket: bucket.clone(), id, after: 3, limit },
        ObjectOp::AbortUpload { bucket, id },
    ]
    .into_iter()
    .chain(backing::ops().into_iter().map(ObjectOp::Backing))
    .chain(fills)
    .chain(places)
    .collect()
}

/// Operations on parts at their places.
fn places(put: &PutObject, part: &PutPart) -> [ObjectOp; 3] {
    let placed = PutPart { place: Some(5 << 30), replaces: Some(Ino(8)), ..part.clone() };
    let whole = PutObject { body: ObjectBody::Whole { parts: 3, size: 1 << 50 }, ..put.clone() };
    let (bucket, id) = (part.bucket.clone(), part.id);
    let (number, len, mode, replicas) = (PARTS_MAX, 5 << 30, 0o644, 6);
    let take = ObjectOp::TakePlace { bucket, id, number, len, mode, replicas };
    [ObjectOp::PutPart(placed), ObjectOp::Put(whole), take]
}

pub(super) fn replies() -> Vec<ObjectReply> {
    let bare = Object { attachment: None, bytes: None, ..object() };
    let items = vec![
        Listed::Prefix(b"a/".to_vec()),
        Listed::Key { key: b"b".to_vec(), object: bare.clone() },
    ];
    let next = Some(b"b\0".to_vec());
    let attachment = object().attachment;
    let bucket = Bucket { name: "bucket".to_owned(), attr: attr(), attachment, backing: None };
    let (id, started) = (UploadId(5), Timestamp::default());
    let upload = Upload { id, key: b"a".to_vec(), attachment: b"t".to_vec(), started };
    let place = PartPlace { offset: 1 << 40, len: 5 << 30, modified: Timestamp::default() };
    let placed = Part { number: 4, attr: attr(), attachment: b"t".to_vec(), place: Some(place) };
    let part = Part { number: 3, attr: stored(), attachment: b"t".to_vec(), place: None };
    vec![
        ObjectReply::Done { attr: None, replaced: None },
        ObjectReply::Done { attr: Some(attr()), replaced: Some(object()) },
        ObjectReply::Unmet(None),
        ObjectReply::Unmet(Some(bare)),
        ObjectReply::Object { object: Some(object()), state: None },
        ObjectReply::Object { object: None, state: Some(state()) },
        ObjectReply::Page(ListPage { items, next }),
        ObjectReply::Bucket(bucket.clone()),
        ObjectReply::Bucket(Bucket { backing: Some(backing()), ..bucket.clone() }),
        ObjectReply::Buckets { buckets: vec![bucket], next: 7 },
        ObjectReply::Upload(upload.clone()),
        ObjectReply::Uploads { uploads: vec![upload], end: true },
        ObjectReply::Parts { parts: vec![part, placed], end: false },
        ObjectReply::Place(None),
        ObjectReply::Place(Some((attr(), 7 << 40))),
    ]
    .into_iter()
    .chain(backing::replies().into_iter().map(ObjectReply::Backing))
    .collect()
}

#[test]
fn records_come_back() {
    let bytes = vec![1; ATTACHMENT_MAX];
    let record = AttachmentRecord { size: 5, mtime: Timestamp::default(), bytes };
    assert_eq!(AttachmentRecord::open(&record.seal()), Ok(record));
    let (key, attachment) = (vec![b'k'; OBJECT_KEY_MAX], b"a".to_vec());
    let started = Timestamp::default();
    let upload = UploadRecord { key, started, attachment, whole: None };
    assert_eq!(UploadRecord::open(&upload.seal()), Ok(upload.clone()));
    let mut whole = Whole::new(Ino(8), 5 << 20);
    for number in (1..=PARTS_MAX).rev() {
        assert!(whole.take(number) && whole.is_taken(number) && !whole.take(number), "{number}");
    }
    assert!(!whole.take(0) && !whole.take(PARTS_MAX + 1));
    assert_eq!(whole.taken(), usize::from(PARTS_MAX));
    assert_eq!(whole.place(3, 5 << 20), Some(10 << 20));
    assert_eq!([whole.place(0, 1), whole.place(1, (5 << 20) + 1)], [None, None]);
    assert_eq!(Whole::new(Ino(8), u64::MAX).place(3, 1), None);
    let upload = UploadRecord { whole: Some(whole), ..upload };
    assert_eq!(UploadRecord::open(&upload.seal()), Ok(upload));
    let part = PartRecord { ino: Ino(7), attachment: b"a".to_vec(), place: None };
    assert_eq!(PartRecord::open(&part.seal()), Ok(part.clone()));
    let part =
        PartRecord { place: Some(PartPlace { offset: 1, len: 2, modified: started }), ..part };
    assert_eq!(PartRecord::open(&part.seal()), Ok(part));
    let dir = Attr { kind: FileKind::Directory, chunks: Some(78), is_shared: false, ..attr() };
    for (objects, implied, backed) in
        [(false, false, false), (true, false, false), (true, true, false), (true, false, true)]
    {
        let marks = Marks { objects, implied, backed, evicted: false };
        let (target, xattrs, quota, keep_s) = (Vec::<u8>::new(), 0, Ino(0), 0);
        for delegated in [None, Some(Delegation { session: 1 << 40, tenure: 3 })] {
            let target = target.clone();
            let record = InodeRecord { attr: dir, target, xattrs, quota, keep_s, marks, delegated };
            assert_eq!(InodeRecord::open(&record.seal()), Ok(record));
        }
    }
    let marks = Marks { evicted: true, ..Marks::default() };
    let (target, xattrs, quota, keep_s) = (Vec::new(), 0, Ino(0), 0);
    let record =
        InodeRecord { attr: attr(), target, xattrs, quota, keep_s, marks, delegated: None };
    assert_eq!(InodeRecord::open(&record.seal()), Ok(record.clone()));
    let wrong = InodeRecord { attr: dir, ..record };
    assert!(InodeRecord::open(&wrong.seal()).is_err(), "no directory is evicted");
}

#[test]
fn keys_say_where_they_belong() {
    let (dir, id) = (Ino(3), UploadId(9));
    assert_eq!(keys::split_place(&keys::place(dir, b"a/")), Some((dir, &b"a/"[..])));
    assert!(keys::place(dir, b"").starts_with(&keys::places(dir)));
    assert_eq!(keys::split_upload(keys::UPLOADS, &keys::upload(dir, id)), Some((dir, id)));
    assert_eq!(keys::split_upload(keys::UPLOADS, &keys::part(dir, id, 7)), Some((dir, id)));
    assert_eq!(keys::part_number(&keys::part(dir, id, 7)), Some(7));
    assert_eq!(keys::part_number(&keys::upload(dir, id)), None);
    assert!(keys::part(dir, id, 255) < keys::part(dir, id, 256));
    let by_key = |key: &[u8], id| keys::upload_by_key(dir, key, UploadId(id));
    assert_eq!(keys::split_upload_by_key(&by_key(b"a", 9)), Some((dir, id)));
    assert!(by_key(b"a", u64::MAX) < by_key(b"a!", 0) && by_key(b"a", 1) < by_key(b"a", 2));
    assert!(by_key(b"a", 1).starts_with(&keys::uploads_by_key(dir)));
}
