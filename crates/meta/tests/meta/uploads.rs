//! Uploads in parts.

use millpond_types::meta::object::{
    Expect, ObjectBody, ObjectOp, ObjectReply, PARTS_MAX, PutObject, PutPart, UploadId,
};
use millpond_types::meta::{Attr, Ino, MetaError, MetaOp, MetaReply, QuotaLimits, keys};

use crate::objects::{BUCKET, Outcome, bytes_of};
use crate::support::{Client, Fixture, name};

const MIB: u64 = 1 << 20;

impl Client {
    pub(crate) async fn begin_upload(&self, key: &str) -> UploadId {
        let (bucket, key) = (name(BUCKET), key.as_bytes().to_vec());
        let op = ObjectOp::CreateUpload { bucket, key, attachment: b"meta".to_vec() };
        match self.object_op(op).await.unwrap() {
            ObjectReply::Upload(upload) => upload.id,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn part(
        &self,
        id: UploadId,
        number: u16,
        bytes: &[u8],
    ) -> Result<Attr, MetaError> {
        let ino = self.filled(bytes).await.ino;
        let (bucket, attachment) = (name(BUCKET), b"md5".to_vec());
        let put = PutPart { bucket, id, number, ino, attachment, place: None, replaces: None };
        match self.outcome(ObjectOp::PutPart(put)).await? {
            Outcome::Done(Some(attr), None) => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    async fn part_numbers(&self, id: UploadId, after: u16) -> Result<Vec<u16>, MetaError> {
        let op = ObjectOp::ListParts { bucket: name(BUCKET), id, after, limit: 1000 };
        match self.object_op(op).await? {
            ObjectReply::Parts { parts, end: true } => {
                Ok(parts.iter().map(|part| part.number).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    async fn uploads(&self, after: Option<(Vec<u8>, UploadId)>) -> Vec<(Vec<u8>, UploadId)> {
        let op = ObjectOp::ListUploads { bucket: name(BUCKET), after, limit: 1000 };
        match self.object_op(op).await.unwrap() {
            ObjectReply::Uploads { uploads, end: true } => {
                uploads.into_iter().map(|upload| (upload.key, upload.id)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Takes the place of a part.
    async fn take(&self, id: UploadId, number: u16, len: u64) -> Option<(Attr, u64)> {
        let (bucket, mode, replicas) = (name(BUCKET), 0o644, 0);
        let op = ObjectOp::TakePlace { bucket, id, number, len, mode, replicas };
        match self.object_op(op).await.unwrap() {
            ObjectReply::Place(place) => place,
            other => panic!("{other:?}"),
        }
    }

    async fn place(
        &self,
        id: UploadId,
        number: u16,
        (ino, len): (Ino, u64),
    ) -> Result<Attr, MetaError> {
        let (bucket, attachment) = (name(BUCKET), b"md5".to_vec());
        let put = PutPart { bucket, id, number, ino, attachment, place: Some(len), replaces: None };
        match self.outcome(ObjectOp::PutPart(put)).await? {
            Outcome::Done(Some(attr), None) => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    /// Completes an upload with its whole.
    async fn complete(
        &self,
        upload: UploadId,
        (parts, size): (u16, u64),
        expect: Expect,
    ) -> Result<Outcome, MetaError> {
        let (upload, body) = (Some(upload), ObjectBody::Whole { parts, size });
        let put = PutObject { upload, body, expect, ..Client::put_op(b"k", b"") };
        self.outcome(ObjectOp::Put(put)).await
    }

    /// Lists parts by number, with offset and length.
    async fn places(&self, id: UploadId) -> Vec<(u16, u64, u64)> {
        let op = ObjectOp::ListParts { bucket: name(BUCKET), id, after: 0, limit: 1000 };
        match self.object_op(op).await.unwrap() {
            ObjectReply::Parts { parts, end: true } => {
                parts.iter().map(|part| (part.number, part.offset(), part.len())).collect()
            }
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) async fn uploads_hold_their_parts(f: Fixture) {
    let c = f.client().await;
    c.make_bucket(BUCKET).await.unwrap();
    let (b, a) = (c.begin_upload("b").await, c.begin_upload("a").await);
    let a2 = c.begin_upload("a").await;
    let dash = c.begin_upload("a-").await;
    let key = |text: &str| text.as_bytes().to_vec();
    let order = [(key("a"), a), (key("a"), a2), (key("a-"), dash), (key("b"), b)];
    assert_eq!(c.uploads(None).await, order);
    assert_eq!(c.uploads(Some((key("a"), a2))).await, order[2..]);
    for number in [2, 1, 300] {
        c.part(a, number, &number.to_le_bytes()).await.unwrap();
    }
    let first = c.part(a, 7, b"first").await.unwrap();
    let second = c.part(a, 7, b"second").await.unwrap();
    assert_eq!(c.part_numbers(a, 0).await, Ok(vec![1, 2, 7, 300]));
    assert_eq!(c.part_numbers(a, 2).await, Ok(vec![7, 300]));
    f.assert_sound().await;
    c.forget_all(&f).await;
    assert_eq!(c.getattr(first.ino).await, Err(MetaError::Stale), "another one has its number");
    assert_eq!(c.getattr(second.ino).await.unwrap().size, 6);
    let complete = |upload, expect| {
        let upload = Some(upload);
        ObjectOp::Put(PutObject { upload, expect, ..Client::put_op(b"a", b"whole") })
    };
    c.put("a", b"there").await;
    assert!(matches!(c.outcome(complete(a, Expect::Absent)).await, Ok(Outcome::Unmet(Some(_)))));
    assert!(c.part_numbers(a, 0).await.is_ok(), "nothing has changed");
    assert!(matches!(c.outcome(complete(a, Expect::Any)).await, Ok(Outcome::Done(..))));
    let missing = Err(MetaError::NotFound);
    assert_eq!(c.outcome(complete(a, Expect::Any)).await, missing);
    assert_eq!(c.part(a, 8, b"late").await.map(drop), Err(MetaError::NotFound));
    assert_eq!(c.part_numbers(a, 0).await, Err(MetaError::NotFound));
    assert_eq!(bytes_of(c.object("a").await), b"whole");
    for number in 1..60 {
        c.part(b, number, b"part").await.unwrap();
    }
    c.object_op(ObjectOp::AbortUpload { bucket: name(BUCKET), id: b }).await.unwrap();
    f.assert_sound().await;
    c.forget_all(&f).await;
    assert!(c.records(keys::ENDED).await.is_empty());
    assert_eq!(c.records(keys::UPLOADS).await.len(), 2, "those of a2 and dash");
    assert_eq!(c.records(keys::ORPHANS).await.len(), 0);
    assert_eq!(c.getattr(second.ino).await, Err(MetaError::Stale));
    // The record of an upload is missing: its parts go, and it is not listed.
    let part = c.part(a2, 1, b"part").await.unwrap().ino;
    let bucket = c.lookup(Ino::ROOT, BUCKET).await.unwrap().ino;
    let key = &keys::upload(bucket, a2);
    f.store.transact(|txn| async move { txn.delete(key) }).await.unwrap();
    let report = f.volume.check().await.unwrap();
    assert_eq!(report.findings.len(), 2, "{report:#?}");
    for repair in report.repairs {
        assert_eq!(c.run(MetaOp::Repair(repair)).await, Ok(MetaReply::Repaired(true)));
    }
    f.assert_sound().await;
    c.forget_all(&f).await;
    assert_eq!(c.getattr(part).await, Err(MetaError::Stale));
    assert_eq!(c.records(keys::UPLOADS).await.len(), 1, "that of dash");
}

/// Parts lie at their offsets, and the object is the file with all of them.
pub(crate) async fn parts_at_their_places_are_the_object(f: Fixture) {
    let c = f.client().await;
    c.make_bucket(BUCKET).await.unwrap();
    let id = c.begin_upload("k").await;
    let part = 6 * MIB;
    assert_eq!(c.take(id, 2, 5 * MIB - 1).await, None, "it may be the last");
    let (whole, at) = c.take(id, 2, part).await.unwrap();
    // The file has its final length: no client writes beyond its end.
    assert_eq!((whole.nlink, whole.size, whole.is_stored(), at), (0, 2 * part, false, part));
    assert_eq!(c.take(id, 2, part).await, None, "it was taken");
    assert_eq!(c.take(id, 1, part + 1).await, None, "it is too long");
    let other = f.client().await;
    let (same, at) = other.take(id, 1, part).await.unwrap();
    other.run(MetaOp::SessionClose).await.unwrap();
    assert_eq!((same.ino, at), (whole.ino, 0), "of every session");
    let (_, at) = c.take(id, 3, 100).await.unwrap();
    assert_eq!(at, 2 * part);
    f.assert_sound().await;

    let stale = Err(MetaError::Stale);
    let copied = Err(MetaError::Stale);
    c.place(id, 2, (whole.ino, part)).await.unwrap();
    assert_eq!(c.place(id, 1, (whole.ino, part + 1)).await, Err(MetaError::Invalid));
    assert_eq!(c.place(id, 4, (whole.ino, 0)).await, stale, "nobody took it");
    assert_eq!(c.place(id, 2, (whole.ino, part)).await, stale, "it is filled");
    assert_eq!(c.place(id, 1, (c.filled(b"x").await.ino, 1)).await, stale, "another file");
    c.place(id, 1, (whole.ino, part)).await.unwrap();
    assert_eq!(c.places(id).await, [(1, 0, part), (2, part, part)]);
    assert_eq!(c.complete(id, (2, 2 * part), Expect::Any).await, copied, "somebody has the third");
    c.place(id, 3, (whole.ino, 100)).await.unwrap();
    let all = (3, 2 * part + 100);
    assert_eq!(c.complete(id, (2, 2 * part), Expect::Any).await, copied, "these are not all");
    assert_eq!(c.complete(id, (3, 3 * part), Expect::Any).await, copied);
    f.assert_sound().await;

    c.put("k", b"there").await;
    assert!(matches!(c.complete(id, all, Expect::Absent).await, Ok(Outcome::Unmet(Some(_)))));
    assert_eq!(c.places(id).await.len(), 3, "nothing has changed");
    let Ok(Outcome::Done(Some(done), Some(_))) = c.complete(id, all, Expect::Any).await else {
        panic!()
    };
    assert_eq!((done.ino, done.nlink, done.size), (whole.ino, 1, all.1));
    f.assert_sound().await;
    assert_eq!(c.complete(id, all, Expect::Any).await, Err(MetaError::NotFound));
    c.forget_all(&f).await;
    f.assert_sound().await;
    assert!(c.records(keys::UPLOADS).await.is_empty());
    let object = c.object("k").await.unwrap();
    assert_eq!((object.attr.ino, object.attr.size), (whole.ino, all.1), "it stays");
    assert!(object.attachment.unwrap().is_current);
}

/// A whole that may still be written to does not become an object, and goes with the upload.
pub(crate) async fn a_whole_with_loose_ends_goes(f: Fixture) {
    let c = f.client().await;
    c.make_bucket(BUCKET).await.unwrap();
    let part = 5 * MIB;
    let gone = async |whole: &Attr| {
        f.assert_sound().await;
        c.forget_all(&f).await;
        f.assert_sound().await;
        assert_eq!(c.getattr(whole.ino).await, Err(MetaError::Stale));
    };
    // A part is sent again: the first attempt may not have ended.
    let id = c.begin_upload("k").await;
    let (whole, _) = c.take(id, 1, part).await.unwrap();
    c.place(id, 1, (whole.ino, part)).await.unwrap();
    c.part(id, 1, b"again").await.unwrap();
    assert_eq!(c.places(id).await, [(1, 0, 5)]);
    assert_eq!(c.complete(id, (1, part), Expect::Any).await, Err(MetaError::Stale));
    assert_eq!(c.complete(id, (0, 0), Expect::Any).await, Err(MetaError::Stale));
    let copied = PutObject { upload: Some(id), ..Client::put_op(b"k", b"again") };
    assert!(matches!(c.outcome(ObjectOp::Put(copied)).await, Ok(Outcome::Done(..))));
    gone(&whole).await;
    assert_eq!(bytes_of(c.object("k").await), b"again");
    // The other order: the place is filled when the part already has a file.
    let id = c.begin_upload("k").await;
    let (whole, _) = c.take(id, 1, part).await.unwrap();
    let file = c.part(id, 1, b"own").await.unwrap();
    c.place(id, 1, (whole.ino, part)).await.unwrap();
    assert!(matches!(c.complete(id, (1, part), Expect::Any).await, Ok(Outcome::Done(..))));
    c.forget_all(&f).await;
    assert_eq!(c.getattr(file.ino).await, Err(MetaError::Stale));
    assert_eq!(c.object("k").await.unwrap().attr.ino, whole.ino);
    // Aborted, with and without its bucket.
    let id = c.begin_upload("k").await;
    let (whole, _) = c.take(id, 1, part).await.unwrap();
    c.place(id, 1, (whole.ino, part)).await.unwrap();
    c.object_op(ObjectOp::AbortUpload { bucket: name(BUCKET), id }).await.unwrap();
    gone(&whole).await;
    let id = c.begin_upload("k").await;
    let (whole, _) = c.take(id, 1, part).await.unwrap();
    assert!(c.remove("k").await);
    c.object_op(ObjectOp::RemoveBucket { bucket: name(BUCKET) }).await.unwrap();
    gone(&whole).await;
}

/// A bucket with many uploads is removed, and so are their wholes.
pub(crate) async fn a_bucket_goes_with_many_uploads(f: Fixture) {
    let c = f.client().await;
    c.make_bucket(BUCKET).await.unwrap();
    let mut wholes = Vec::new();
    for n in 0..40 {
        let id = c.begin_upload(&format!("k{n}")).await;
        wholes.push(c.take(id, 1, 5 * MIB).await.unwrap().0);
    }
    c.object_op(ObjectOp::RemoveBucket { bucket: name(BUCKET) }).await.unwrap();
    let file = c.file(Ino::ROOT, "f").await;
    c.run(MetaOp::Unlink { parent: Ino::ROOT, name: name("f"), of: None }).await.unwrap();
    c.forget_all(&f).await;
    for ino in wholes.iter().map(|whole| whole.ino).chain([file]) {
        assert_eq!(c.getattr(ino).await, Err(MetaError::Stale));
    }
    f.assert_sound().await;
}

/// Holes between parts count as bytes: where a quota has no room for them, parts have files of
/// their own.
pub(crate) async fn places_count_for_quotas_and_need_not(f: Fixture) {
    let c = f.client().await;
    let bucket = c.make_bucket(BUCKET).await.unwrap();
    let part = 5 * MIB;
    let limits = QuotaLimits { bytes: 4 * part, inodes: 3 };
    c.run(MetaOp::SetQuota { dir: bucket, limits }).await.unwrap();
    let usage = async || {
        let MetaReply::Quota(quota) = c.run(MetaOp::GetQuota { ino: bucket }).await.unwrap() else {
            panic!()
        };
        f.assert_sound().await;
        (quota.bytes, quota.inodes)
    };
    let (id, before) = (c.begin_upload("k").await, usage().await);
    assert_eq!(c.take(id, 10_000, part).await, None, "too far");
    assert_eq!(c.take(id, 5, part).await, None, "more than may be");
    assert_eq!(usage().await, before, "nothing was made");
    let (whole, _) = c.take(id, 2, part).await.unwrap();
    assert_eq!(usage().await, (before.0 + 2 * part, before.1 + 1));
    c.take(id, 1, part).await.unwrap();
    assert_eq!(usage().await, (before.0 + 2 * part, before.1 + 1));
    assert_eq!(c.take(id, 5, part).await, None);
    c.part(id, 5, b"own").await.unwrap();
    for number in [1, 2] {
        c.place(id, number, (whole.ino, part)).await.unwrap();
    }
    c.object_op(ObjectOp::AbortUpload { bucket: name(BUCKET), id }).await.unwrap();
    c.forget_all(&f).await;
    assert_eq!(usage().await, before);
}

/// A client that moves a part to its place replaces only the part that it saw.
pub(crate) async fn a_part_is_replaced_where_it_is_still_there(f: Fixture) {
    let c = f.client().await;
    c.make_bucket(BUCKET).await.unwrap();
    let (id, part) = (c.begin_upload("k").await, 5 * MIB);
    let seen = c.part(id, 1, b"seen").await.unwrap().ino;
    let (whole, _) = c.take(id, 1, part).await.unwrap();
    let put = |replaces| {
        let (bucket, ino, attachment) = (name(BUCKET), whole.ino, b"md5".to_vec());
        let (place, replaces) = (Some(4), Some(replaces));
        c.outcome(ObjectOp::PutPart(PutPart {
            bucket,
            id,
            number: 1,
            ino,
            attachment,
            place,
            replaces,
        }))
    };
    let newer = c.part(id, 1, b"newer").await.unwrap().ino;
    assert_eq!(put(seen).await, Err(MetaError::Stale));
    assert_eq!(c.places(id).await, [(1, 0, 5)], "the newer one stays");
    assert!(matches!(put(newer).await, Ok(Outcome::Done(..))));
    assert_eq!(c.places(id).await, [(1, 0, 4)]);
    f.assert_sound().await;
}

/// A place lies at most 16 GiB plus twice the taken length from the beginning.
pub(crate) async fn places_are_not_far_behind_others(f: Fixture) {
    let c = f.client().await;
    c.make_bucket(BUCKET).await.unwrap();
    let (id, len) = (c.begin_upload("k").await, 5 << 30);
    let mut taken = 0;
    for (number, is_near) in
        [(6, false), (4, true), (7, false), (6, true), (9, false), (8, true), (10, true)]
    {
        let place = c.take(id, number, len).await.map(|(_, at)| at);
        let wanted = is_near.then(|| u64::from(number - 1) * len);
        assert_eq!(place, wanted, "{number}, with {taken} taken");
        taken += usize::from(is_near);
    }
    assert_eq!(c.take(id, PARTS_MAX, len).await, None);
}
