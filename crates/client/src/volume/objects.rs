//! Objects: files of a bucket by their keys, for an S3 gateway (RFC 0019).
//!
//! Every call is one request to a meta, unless stated otherwise, and blocks until it is answered.
//! Any number of threads may call at the same time; nothing is kept between calls.

use std::collections::VecDeque;
use std::sync::Arc;

use millpond_env::{Mutex, PerProcess};
use millpond_types::limits::REPLICAS_MAX;
use millpond_types::meta::object::{
    Attachment, Bucket, Expect, ListObjects as ListOp, ListPage, Object, ObjectBody, ObjectOp,
    ObjectReply, Origin, PARTS_MAX, Part, Put, PutObject as PutOp, PutPart, SetAttachment, Upload,
    UploadId, check_key,
};
use millpond_types::meta::{
    Attr, FileKind, Ino, Layout, MetaAnswer, MetaError, MetaOp, MetaReply, Name, STORED_MAX,
    Timestamp,
};

use super::backing::checked_etag;
use super::file::{File, Opened};
use super::session::{Hold, refused};
use super::{OpenOptions, Volume};
use crate::error::ClientError;

/// Permission bits of an object's file.
const MODE: u16 = 0o644;
/// Attempts of a change that conflicted with others at the same moment.
const TRIES: usize = 8;
/// Most pages of a list to request until one has a result: some million places.
const PAGES_MAX: usize = 256;
/// Numbers for files without names that are taken at once.
const NUMBERS: u32 = 256;

/// The bytes of a new object.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// These bytes, at most [`STORED_MAX`] (64 KiB): they travel in the same round trip.
    Bytes(&'a [u8]),
    /// The bytes of a file of [`Volume::nameless_file`], which then has the key.
    File(&'a File),
    /// The bytes of the whole of an upload ([`Volume::take_place`]), if it has this many parts with
    /// this total size, all in their places, and every taken place is filled. Otherwise the call
    /// fails with `File` and `Stale`, and the parts must be copied.
    Whole {
        /// Number of parts.
        parts: u16,
        /// Sum of their bytes.
        size: u64,
    },
}

/// Request to put an object.
#[derive(Clone, Copy, Debug)]
pub struct PutObject<'a> {
    /// The bucket.
    pub bucket: &'a str,
    /// The key: 1 to 1,024 bytes of UTF-8 without NUL.
    pub key: &'a [u8],
    /// Its bytes.
    pub body: Body<'a>,
    /// Its attachment, 16 KiB at most; an empty one means none.
    pub attachment: &'a [u8],
    /// Condition on the object that exists before.
    pub expect: Expect,
    /// Replica count of [`Body::Bytes`] if they move to chunks; 0 for the cluster's default.
    pub replicas: u8,
    /// Set for a *fill*: the backend of the bucket has these bytes, and they are put here for
    /// reads. The key is clean with them. A fill requires that there is no object, and that its
    /// state is clean and still the one that was seen; otherwise the result is [`Put::Unmet`].
    pub origin: Option<&'a Origin>,
}

/// Request for a page of keys.
#[derive(Clone, Copy, Debug)]
pub struct ListObjects<'a> {
    /// The bucket.
    pub bucket: &'a str,
    /// Prefix of the keys.
    pub prefix: &'a [u8],
    /// Keys that contain this after the prefix are listed as one common prefix, cut after it; empty
    /// for none.
    pub delimiter: &'a [u8],
    /// Lists only keys and common prefixes after this one; empty for the beginning.
    pub after: &'a [u8],
    /// Most keys and prefixes, 1 to 1,000.
    pub limit: u32,
}

/// Numbers from metas for files without names of this process's session.
#[derive(Debug, Default)]
pub(super) struct Numbers(PerProcess<Mutex<VecDeque<u64>>>);

pub(super) fn bucket_name(bucket: &str) -> Result<Name, ClientError> {
    Name::new(bucket.as_bytes()).map_err(|_| refused(bucket, MetaError::NotFound))
}

/// A bucket and a key, for messages.
pub(super) fn shown(bucket: &str, key: &[u8]) -> String {
    format!("s3://{bucket}/{}", String::from_utf8_lossy(key))
}

pub(super) fn checked_key(key: &[u8]) -> Result<Vec<u8>, ClientError> {
    check_key(key).map_err(|error| ClientError::argument("key", error.to_string()))?;
    Ok(key.to_vec())
}

fn checked_attachment(bytes: &[u8]) -> Result<Vec<u8>, ClientError> {
    if bytes.len() > millpond_types::meta::object::ATTACHMENT_MAX {
        return Err(ClientError::argument("attachment", "is longer than 16 KiB"));
    }
    Ok(bytes.to_vec())
}

/// The object in [`Put::Done`] when there was none.
fn nothing() -> Object {
    let time = Timestamp::default();
    let attr = Attr {
        ino: Ino(0),
        kind: FileKind::Regular,
        mode: 0,
        uid: 0,
        gid: 0,
        nlink: 0,
        rdev: 0,
        size: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        data: 0,
        chunks: None,
        is_shared: false,
        solid: 0,
        cuts: 0,
        layout: Layout::NONE,
        parent: Ino(0),
        version: 0,
    };
    Object { attr, attachment: None, bytes: None }
}

/// The operation that stores an object, and its name in errors.
pub(super) fn put_op(
    put: &PutObject<'_>,
    upload: Option<UploadId>,
) -> Result<(String, ObjectOp), ClientError> {
    checked_etag(put.origin.map_or("", |origin| &origin.etag))?;
    check_replicas(put.replicas)?;
    let body = match put.body {
        Body::Bytes(bytes) if bytes.len() > STORED_MAX => {
            return Err(ClientError::argument("body", "is longer than 64 KiB: store it in a file"));
        }
        Body::Bytes(bytes) => ObjectBody::Bytes(bytes.to_vec()),
        Body::File(file) => {
            // The time of the last write must not be reported after the file has its name: the
            // object's time would change then.
            file.sync()?;
            ObjectBody::Nameless(file.ino())
        }
        Body::Whole { parts, size } => ObjectBody::Whole { parts, size },
    };
    let op = PutOp {
        bucket: bucket_name(put.bucket)?,
        key: checked_key(put.key)?,
        body,
        mode: MODE,
        attachment: checked_attachment(put.attachment)?,
        expect: put.expect,
        replicas: put.replicas,
        upload,
        origin: put.origin.cloned(),
    };
    Ok((shown(put.bucket, put.key), ObjectOp::Put(op)))
}

/// The operation that looks up a key, and its name in errors.
pub(super) fn look_up_op(
    bucket: &str,
    key: &[u8],
    with_bytes: bool,
) -> Result<(String, ObjectOp), ClientError> {
    let op = ObjectOp::Get { bucket: bucket_name(bucket)?, key: checked_key(key)?, with_bytes };
    Ok((shown(bucket, key), op))
}

/// The object with all bytes of its file in the store, or without bytes: adds zeros up to its
/// length.
pub(super) fn whole(mut object: Object) -> Object {
    let size = usize::try_from(object.attr.size).unwrap_or(usize::MAX);
    if size > STORED_MAX {
        object.bytes = None;
    } else if let Some(bytes) = &mut object.bytes {
        bytes.resize(size, 0);
    }
    object
}

impl Volume {
    pub(super) fn object_op(&self, path: &str, op: ObjectOp) -> Result<ObjectReply, ClientError> {
        for _ in 1..TRIES {
            match self.ask_once(op.clone())? {
                // Directories on the path were made and removed in the meantime.
                Err(MetaError::Again) => {}
                answer => return self.told(path, answer),
            }
        }
        let answer = self.ask_once(op)?;
        self.told(path, answer)
    }

    fn ask_once(&self, op: ObjectOp) -> Result<MetaAnswer, ClientError> {
        self.metas().ask(self.metas().caller.clone(), MetaOp::Object(op))
    }

    pub(super) fn told(&self, path: &str, answer: MetaAnswer) -> Result<ObjectReply, ClientError> {
        match answer.map_err(|source| refused(path, source))? {
            MetaReply::Object(reply) => Ok(reply),
            _ => Err(self.metas().unexpected()),
        }
    }

    /// The result of a put, with the attachment that was given.
    pub(super) fn done(
        &self,
        reply: ObjectReply,
        attachment: Option<&[u8]>,
    ) -> Result<Put, ClientError> {
        match reply {
            ObjectReply::Unmet(there) => Ok(Put::Unmet(there)),
            ObjectReply::Done { attr, replaced } => {
                if replaced.is_some() {
                    self.metas().note_removed();
                }
                let given = attachment.filter(|bytes| !bytes.is_empty());
                let attachment =
                    given.map(|bytes| Attachment { bytes: bytes.to_vec(), is_current: true });
                let object =
                    attr.map_or_else(nothing, |attr| Object { attr, attachment, bytes: None });
                Ok(Put::Done { object, replaced })
            }
            _ => Err(self.metas().unexpected()),
        }
    }

    fn told_bucket(&self, name: &str, op: ObjectOp) -> Result<Bucket, ClientError> {
        match self.object_op(name, op)? {
            ObjectReply::Bucket(bucket) => Ok(bucket),
            _ => Err(self.metas().unexpected()),
        }
    }

    /// Makes a bucket: a directory of the root that keeps names in the order of keys.
    ///
    /// # Errors
    /// `File`: `Exists` when the name is taken by any file or directory; `Invalid` for an invalid
    /// bucket name; `Access`; `InvalidArgument` for a long attachment; and as for every call.
    pub fn make_bucket(&self, name: &str, attachment: &[u8]) -> Result<Bucket, ClientError> {
        let bucket = Name::new(name.as_bytes()).map_err(|_| refused(name, MetaError::Invalid))?;
        let attachment = checked_attachment(attachment)?;
        self.told_bucket(name, ObjectOp::MakeBucket { bucket, attachment })
    }

    /// Removes a bucket without objects, together with empty directories in it and with uploads.
    ///
    /// # Errors
    /// `File`: `NotFound`, `NotEmpty`, `Access`; and as for every call.
    pub fn remove_bucket(&self, name: &str) -> Result<(), ClientError> {
        let bucket = bucket_name(name)?;
        self.object_op(name, ObjectOp::RemoveBucket { bucket }).map(drop)
    }

    /// A bucket.
    ///
    /// # Errors
    /// `File`: `NotFound`, also for a directory that is no bucket; and as for every call.
    pub fn bucket(&self, name: &str) -> Result<Bucket, ClientError> {
        self.told_bucket(name, ObjectOp::GetBucket { bucket: bucket_name(name)? })
    }

    /// Replaces the attachment of a bucket.
    ///
    /// # Errors
    /// `File`: `NotFound`, `Access`; `InvalidArgument` for more than 16 KiB; and as for every call.
    pub fn set_bucket(&self, name: &str, attachment: &[u8]) -> Result<(), ClientError> {
        let (bucket, attachment) = (bucket_name(name)?, checked_attachment(attachment)?);
        self.told_bucket(name, ObjectOp::SetBucket { bucket, attachment }).map(drop)
    }

    /// All buckets in the order of their names. Sends one request for every 1,000 names of the root
    /// directory.
    ///
    /// # Errors
    /// As for every call.
    pub fn buckets(&self) -> Result<Vec<Bucket>, ClientError> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let ObjectReply::Buckets { buckets, next } =
                self.object_op("/", ObjectOp::ListBuckets { after })?
            else {
                return Err(self.metas().unexpected());
            };
            all.extend(buckets);
            if next <= after {
                all.sort_by(|one, other| one.name.cmp(&other.name));
                return Ok(all);
            }
            after = next;
        }
    }

    /// Gives a key a new inode with these bytes, and replaces the existing one; readers of the old
    /// inode can still use it. Durable and visible everywhere, also on mounts, when it returns.
    ///
    /// # Errors
    /// `File`: `NotFound` without the bucket, `Stale` for a file that is not, or no longer, a
    /// nameless one of this volume, `Quota`, `Access`, `NotSupported` if an inode other than a file
    /// is in the way of a directory; `InvalidArgument` for a key, an attachment or bytes that are
    /// too long; and as for every call.
    pub fn put_object(&self, put: &PutObject<'_>) -> Result<Put, ClientError> {
        self.put(put, None)
    }

    fn put(&self, put: &PutObject<'_>, upload: Option<UploadId>) -> Result<Put, ClientError> {
        let (path, op) = put_op(put, upload)?;
        self.done(self.object_op(&path, op)?, Some(put.attachment))
    }

    /// A file without a name, for reading and writing, with its bytes on chains of this replica
    /// count (0: the cluster's default). It is removed when its last clone is dropped before
    /// anything has given it a name, and when this process dies.
    ///
    /// # Errors
    /// `InvalidArgument` for a replica count above that of any chain; and as for every call. If the
    /// cluster has no chains of this replica count, no meta answers until the deadline.
    pub fn nameless_file(&self, replicas: u8) -> Result<File, ClientError> {
        check_replicas(replicas)?;
        let ino = self.number()?;
        // Recorded as open before it exists: so no meta collects it in between.
        self.metas().note_open(ino);
        let op = ObjectOp::Nameless { parent: Ino::ROOT, ino, mode: MODE, replicas, umask: None };
        let made = self.metas().attr_at("a file without a name", MetaOp::Object(op));
        let file = made.map(|attr| {
            let text = format!("inode {ino} without a name");
            File::of(Opened::new(Arc::clone(&self.shared), (text, attr), OpenOptions::UPDATE))
        });
        self.metas().note_closed(ino);
        file
    }

    fn number(&self) -> Result<Ino, ClientError> {
        let numbers = self.shared.numbers.0.get_or(Mutex::default);
        if let Some(number) = numbers.lock().pop_front() {
            return Ok(Ino(number));
        }
        let op = MetaOp::TakeNumbers { count: NUMBERS };
        let MetaReply::Numbers { first } = self.metas().at("numbers", op)? else {
            return Err(self.metas().unexpected());
        };
        let mut numbers = numbers.lock();
        numbers.extend(first + 1..first + u64::from(NUMBERS));
        Ok(Ino(first))
    }

    /// An object, if it exists, with its bytes if requested and in the store, all at one moment.
    ///
    /// # Errors
    /// `File`: `NotFound` without the bucket, `Access`; `InvalidArgument` for an invalid key; and
    /// as for every call.
    pub fn get_object(
        &self,
        bucket: &str,
        key: &[u8],
        with_bytes: bool,
    ) -> Result<Option<Object>, ClientError> {
        self.look_up(bucket, key, with_bytes).map(|found| found.object)
    }

    /// Opens an object for reading. It stays unchanged while it is open, even when it is removed or
    /// replaced, unless a mount writes to the file.
    ///
    /// # Errors
    /// `File`: `Stale` when it was removed in the meantime; and as for every call.
    pub fn object_file(&self, object: &Object) -> Result<File, ClientError> {
        let file = self.opened(object.attr);
        if file.stat()?.nlink == 0 {
            return Err(refused(&format!("inode {}", object.attr.ino), MetaError::Stale));
        }
        Ok(file)
    }

    /// Starts a hold: until it is dropped, objects looked up from now on can be opened with
    /// [`Volume::object_file_held`].
    #[must_use]
    pub fn hold(&self) -> Hold {
        self.shared.metas.hold()
    }

    /// As [`Volume::object_file`], for an object that was looked up after `hold` was taken. Sends
    /// no request.
    #[must_use]
    pub fn object_file_held(&self, object: &Object, _hold: &Hold) -> File {
        self.opened(object.attr)
    }

    fn opened(&self, attr: Attr) -> File {
        let text = format!("inode {}", attr.ino);
        File::of(Opened::new(Arc::clone(&self.shared), (text, attr), OpenOptions::READ))
    }

    /// Replaces the attachment of an object, made for its present content: a caller that changes
    /// what it read before should expect [`Expect::Exactly`]. Returns [`Put::Unmet`] without an
    /// object when it does not exist.
    ///
    /// # Errors
    /// As [`Volume::get_object`]; `InvalidArgument` for more than 16 KiB.
    pub fn set_attachment(
        &self,
        bucket: &str,
        key: &[u8],
        attachment: &[u8],
        expect: Expect,
    ) -> Result<Put, ClientError> {
        let set = SetAttachment {
            bucket: bucket_name(bucket)?,
            key: checked_key(key)?,
            attachment: checked_attachment(attachment)?,
            expect,
        };
        let reply = self.object_op(&shown(bucket, key), ObjectOp::SetAttachment(set))?;
        self.done(reply, Some(attachment))
    }

    /// Removes an object, and directories that were made for it and are then empty. [`Put::Done`]
    /// has the removed object as `replaced`; if there was none, `replaced` is none and the object
    /// has inode 0.
    ///
    /// # Errors
    /// As [`Volume::get_object`].
    pub fn remove_object(
        &self,
        bucket: &str,
        key: &[u8],
        expect: Expect,
    ) -> Result<Put, ClientError> {
        let (path, key) = (shown(bucket, key), checked_key(key)?);
        let op = ObjectOp::Remove { bucket: bucket_name(bucket)?, key, expect };
        let reply = self.object_op(&path, op)?;
        self.done(reply, None)
    }

    /// A page of keys in the order of their bytes. Keys may be added or removed between two pages;
    /// a key that exists all the time is listed once.
    ///
    /// A directory with only empty directories in it is no common prefix, and a meta must scan it
    /// to know. It ends a page after some thousand places; this call requests up to 256 pages,
    /// until one has a result. If none has, [`ListPage::next`] ends with a NUL, and must be passed
    /// on unchanged.
    ///
    /// # Errors
    /// `File`: `NotFound` without the bucket, `Access`; and as for every call.
    pub fn list_objects(&self, list: &ListObjects<'_>) -> Result<ListPage, ClientError> {
        let mut op = ListOp {
            bucket: bucket_name(list.bucket)?,
            prefix: list.prefix.to_vec(),
            delimiter: list.delimiter.to_vec(),
            after: list.after.to_vec(),
            limit: list.limit,
        };
        let long = [&op.prefix, &op.delimiter].into_iter().any(|bytes| checked_length(bytes));
        if long || op.after.len() > millpond_types::meta::object::OBJECT_KEY_MAX + 1 {
            return Err(ClientError::argument("list", "is longer than a key"));
        }
        let mut items = Vec::new();
        for _ in 0..PAGES_MAX {
            let ObjectReply::Page(page) =
                self.object_op(list.bucket, ObjectOp::List(op.clone()))?
            else {
                return Err(self.metas().unexpected());
            };
            items.extend(page.items);
            let room = (list.limit as usize).saturating_sub(items.len());
            let Some(next) = page.next else { return Ok(ListPage { items, next: None }) };
            op.after = next;
            if room == 0 || op.after.last() != Some(&0) {
                break;
            }
            op.limit = u32::try_from(room).unwrap_or(list.limit);
        }
        Ok(ListPage { items, next: Some(op.after) })
    }

    /// Begins a multipart upload.
    ///
    /// # Errors
    /// As [`Volume::get_object`]; `InvalidArgument` for more than 16 KiB.
    pub fn create_upload(
        &self,
        bucket: &str,
        key: &[u8],
        attachment: &[u8],
    ) -> Result<UploadId, ClientError> {
        let (path, key) = (shown(bucket, key), checked_key(key)?);
        let attachment = checked_attachment(attachment)?;
        let op = ObjectOp::CreateUpload { bucket: bucket_name(bucket)?, key, attachment };
        match self.object_op(&path, op)? {
            ObjectReply::Upload(upload) => Ok(upload.id),
            _ => Err(self.metas().unexpected()),
        }
    }

    /// An upload.
    ///
    /// # Errors
    /// `File`: `NotFound` without it or the bucket; and as for every call.
    pub fn upload(&self, bucket: &str, id: UploadId) -> Result<Upload, ClientError> {
        let op = ObjectOp::GetUpload { bucket: bucket_name(bucket)?, id };
        match self.object_op(bucket, op)? {
            ObjectReply::Upload(upload) => Ok(upload),
            _ => Err(self.metas().unexpected()),
        }
    }

    /// Uploads of a bucket after this one, in the order of keys and ids; fewer than `limit` only at
    /// the end.
    ///
    /// # Errors
    /// `File`: `NotFound` without the bucket; and as for every call.
    pub fn uploads(
        &self,
        bucket: &str,
        after: Option<(&[u8], UploadId)>,
        limit: u32,
    ) -> Result<Vec<Upload>, ClientError> {
        let mut after = after.map(|(key, id)| (key.to_vec(), id));
        let mut all = Vec::new();
        while all.len() < limit as usize {
            let limit = limit - u32::try_from(all.len()).unwrap_or(limit);
            let from = after.clone();
            let op = ObjectOp::ListUploads { bucket: bucket_name(bucket)?, after: from, limit };
            let ObjectReply::Uploads { uploads, end } = self.object_op(bucket, op)? else {
                return Err(self.metas().unexpected());
            };
            all.extend(uploads);
            after = all.last().map(|last: &Upload| (last.key.clone(), last.id));
            if end {
                break;
            }
        }
        Ok(all)
    }

    /// Takes a place for a part of `len` bytes in a file with all parts of the upload one after the
    /// other, so that completing it needs no copy (RFC 0023). Returns the file and the offset of
    /// the place. `None` if the part must have a file of its own: it is longer than the others, or
    /// it is the first and so short that it may be the last, or its place was taken before. The
    /// caller writes only in its place, and not after [`Volume::put_part`].
    ///
    /// # Errors
    /// `File`: `NotFound` without the upload, `Access`; `InvalidArgument` for a number that is not
    /// 1 to 10,000; and as for every call.
    pub fn take_place(
        &self,
        (bucket, id, number): (&str, UploadId, u16),
        len: u64,
        replicas: u8,
    ) -> Result<Option<(File, u64)>, ClientError> {
        check_part(number)?;
        check_replicas(replicas)?;
        // Inodes in a meta's answer count as open from then on.
        let _hold = self.hold();
        let bucket_of = bucket_name(bucket)?;
        let op = ObjectOp::TakePlace { bucket: bucket_of, id, number, len, mode: MODE, replicas };
        let ObjectReply::Place(place) = self.object_op(bucket, op)? else {
            return Err(self.metas().unexpected());
        };
        Ok(place.map(|(attr, offset)| {
            let text = format!("inode {} of an upload", attr.ino);
            let opened = Opened::new(Arc::clone(&self.shared), (text, attr), OpenOptions::UPDATE);
            (File::of(opened), offset)
        }))
    }

    /// Makes a file of [`Volume::nameless_file`] a part of an upload, which then holds it; or, with
    /// `place`, that many bytes at the part's place in the file of [`Volume::take_place`]. The
    /// previous part of this number becomes garbage; with `replaces` it must be in that file.
    ///
    /// # Errors
    /// `File`: `NotFound` without the upload, `Stale` for another file, for a place that was not
    /// taken, or when another part would be replaced, `Quota`; `InvalidArgument` for a number that
    /// is not 1 to 10,000; and as for every call.
    pub fn put_part(
        &self,
        (bucket, id, number): (&str, UploadId, u16),
        (file, place): (&File, Option<u64>),
        replaces: Option<Ino>,
        attachment: &[u8],
    ) -> Result<(), ClientError> {
        check_part(number)?;
        file.sync()?;
        let (ino, attachment) = (file.ino(), checked_attachment(attachment)?);
        let bucket_of = bucket_name(bucket)?;
        let put = PutPart { bucket: bucket_of, id, number, ino, attachment, place, replaces };
        self.object_op(bucket, ObjectOp::PutPart(put)).map(drop)
    }

    /// Parts of an upload after this number, in their order; fewer than `limit` only at the end.
    ///
    /// # Errors
    /// `File`: `NotFound` without the upload; and as for every call.
    pub fn parts(
        &self,
        bucket: &str,
        id: UploadId,
        after: u16,
        limit: u32,
    ) -> Result<Vec<Part>, ClientError> {
        let (mut all, mut after): (Vec<Part>, u16) = (Vec::new(), after);
        while all.len() < limit as usize {
            let limit = limit - u32::try_from(all.len()).unwrap_or(limit);
            let op = ObjectOp::ListParts { bucket: bucket_name(bucket)?, id, after, limit };
            let ObjectReply::Parts { parts, end } = self.object_op(bucket, op)? else {
                return Err(self.metas().unexpected());
            };
            all.extend(parts);
            after = all.last().map_or(after, |last| last.number);
            if end {
                break;
            }
        }
        Ok(all)
    }

    /// Opens a part for reading. It stays while it is open.
    ///
    /// # Errors
    /// `File`: `Stale` when it is gone; and as for every call.
    pub fn part_file(&self, part: &Part) -> Result<File, ClientError> {
        let file = self.opened(part.attr);
        file.stat()?;
        Ok(file)
    }

    /// As [`Volume::put_object`], and ends an upload of its bucket and its parts in the same
    /// transaction.
    ///
    /// # Errors
    /// As [`Volume::put_object`]; also `File`: `NotFound` without the upload.
    pub fn complete_upload(&self, id: UploadId, put: &PutObject<'_>) -> Result<Put, ClientError> {
        self.put(put, Some(id))
    }

    /// Ends an upload; its parts become garbage.
    ///
    /// # Errors
    /// `File`: `NotFound` without it or the bucket; and as for every call.
    pub fn abort_upload(&self, bucket: &str, id: UploadId) -> Result<(), ClientError> {
        let op = ObjectOp::AbortUpload { bucket: bucket_name(bucket)?, id };
        self.object_op(bucket, op).map(drop)
    }
}

fn check_part(number: u16) -> Result<(), ClientError> {
    if number == 0 || number > PARTS_MAX {
        return Err(ClientError::argument("number", "must be from 1 to 10,000"));
    }
    Ok(())
}

fn check_replicas(replicas: u8) -> Result<(), ClientError> {
    if replicas > REPLICAS_MAX {
        let why = format!("{replicas}; at most {REPLICAS_MAX} are allowed");
        return Err(ClientError::argument("replicas", why));
    }
    Ok(())
}

const fn checked_length(bytes: &[u8]) -> bool {
    bytes.len() > millpond_types::meta::object::OBJECT_KEY_MAX
}

const _: () = {
    const fn is_shared_by_threads<T: Sync + Send>() {}
    is_shared_by_threads::<Volume>();
};
