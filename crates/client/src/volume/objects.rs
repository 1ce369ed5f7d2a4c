//! Objects: files of a bucket by their keys, as a gateway of S3 needs them (RFC 0019).
//!
//! Every call is one question to a meta, unless it says otherwise, and blocks until it is answered. Any number of
//! threads may call at the same time; nothing is kept between calls.

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
/// How often a change is tried that met others at the same moment.
const TRIES: usize = 8;
/// Pages of a list that are asked for until there is something to tell: some million places.
const PAGES_MAX: usize = 256;
/// Numbers for files without names that are taken at once.
const NUMBERS: u32 = 256;

/// The bytes of a new object.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// These, [`STORED_MAX`] (64 KiB) at most: they go in the same round trip.
    Bytes(&'a [u8]),
    /// Those of a file of [`Volume::nameless_file`], which has the key from then on.
    File(&'a File),
    /// Those of the whole of an upload ([`Volume::take_place`]), if it has this many parts of so many bytes together, all in their places,
    /// and no place that was taken and has none: `File` with `Stale` otherwise, and the parts are to be copied.
    Whole {
        /// How many parts.
        parts: u16,
        /// Their bytes.
        size: u64,
    },
}

/// An object is to be put.
#[derive(Clone, Copy, Debug)]
pub struct PutObject<'a> {
    /// In which bucket.
    pub bucket: &'a str,
    /// Which key: 1 to 1,024 bytes of UTF-8 without NUL.
    pub key: &'a [u8],
    /// Its bytes.
    pub body: Body<'a>,
    /// What is kept with it, 16 KiB at most; with nothing it has no attachment.
    pub attachment: &'a [u8],
    /// What must be there before.
    pub expect: Expect,
    /// Replicas of bytes that are [`Body::Bytes`], should they go to chunks; 0 for the cluster's own number.
    pub replicas: u8,
    /// The backend of the bucket has these bytes, and they are put here to be read: a *fill*. The key is clean with them. Only
    /// if there is no object, and its state is clean and still the one that was seen: otherwise [`Put::Unmet`].
    pub origin: Option<&'a Origin>,
}

/// A page of keys is wanted.
#[derive(Clone, Copy, Debug)]
pub struct ListObjects<'a> {
    /// Of which bucket.
    pub bucket: &'a str,
    /// Keys that begin so.
    pub prefix: &'a [u8],
    /// Keys with this behind the prefix are told as one prefix, cut behind it; empty for none.
    pub delimiter: &'a [u8],
    /// Keys and such prefixes up to this one are left out; empty for the beginning.
    pub after: &'a [u8],
    /// Keys and prefixes at most, 1 to 1,000.
    pub limit: u32,
}

/// Numbers that metas gave to this process's session for files without names.
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
        return Err(ClientError::argument("attachment", "longer than 16 KiB"));
    }
    Ok(bytes.to_vec())
}

/// What [`Put::Done`] has of an object that was not there.
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

/// The operation that stores an object, and how errors call it.
pub(super) fn put_op(
    put: &PutObject<'_>,
    upload: Option<UploadId>,
) -> Result<(String, ObjectOp), ClientError> {
    checked_etag(put.origin.map_or("", |origin| &origin.etag))?;
    check_replicas(put.replicas)?;
    let body = match put.body {
        Body::Bytes(bytes) if bytes.len() > STORED_MAX => {
            return Err(ClientError::argument("body", "more than 64 KiB: they need a file"));
        }
        Body::Bytes(bytes) => ObjectBody::Bytes(bytes.to_vec()),
        Body::File(file) => {
            // What was written last must not be told behind the name: its time would change then.
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

/// The operation that looks a key up, and how errors call it.
pub(super) fn look_up_op(
    bucket: &str,
    key: &[u8],
    with_bytes: bool,
) -> Result<(String, ObjectOp), ClientError> {
    let op = ObjectOp::Get { bucket: bucket_name(bucket)?, key: checked_key(key)?, with_bytes };
    Ok((shown(bucket, key), op))
}

/// All bytes of a file in the store, or none: what is missing up to its length is zeros.
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
                // Directories on the way were made and removed meanwhile.
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

    /// What was done, with an attachment that was given.
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

    /// Makes a bucket: a directory of the root in which names are kept in the order of keys.
    ///
    /// # Errors
    /// `File`: `Exists` when the name is taken, by whatever; `Invalid` for a name that no bucket has; `Access`;
    /// `InvalidArgument` for a long attachment; and as for every call.
    pub fn make_bucket(&self, name: &str, attachment: &[u8]) -> Result<Bucket, ClientError> {
        let bucket = Name::new(name.as_bytes()).map_err(|_| refused(name, MetaError::Invalid))?;
        let attachment = checked_attachment(attachment)?;
        self.told_bucket(name, ObjectOp::MakeBucket { bucket, attachment })
    }

    /// Removes a bucket without objects. Directories that nothing else is in go with it, and so do uploads.
    ///
    /// # Errors
    /// `File`: `NotFound`, `NotEmpty`, `Access`; and as for every call.
    pub fn remove_bucket(&self, name: &str) -> Result<(), ClientError> {
        let bucket = bucket_name(name)?;
        self.object_op(name, ObjectOp::RemoveBucket { bucket }).map(drop)
    }

    /// What a bucket is.
    ///
    /// # Errors
    /// `File`: `NotFound`, also for a directory that is no bucket; and as for every call.
    pub fn bucket(&self, name: &str) -> Result<Bucket, ClientError> {
        self.told_bucket(name, ObjectOp::GetBucket { bucket: bucket_name(name)? })
    }

    /// Keeps other bytes with a bucket.
    ///
    /// # Errors
    /// `File`: `NotFound`, `Access`; `InvalidArgument` for more than 16 KiB; and as for every call.
    pub fn set_bucket(&self, name: &str, attachment: &[u8]) -> Result<(), ClientError> {
        let (bucket, attachment) = (bucket_name(name)?, checked_attachment(attachment)?);
        self.told_bucket(name, ObjectOp::SetBucket { bucket, attachment }).map(drop)
    }

    /// All buckets in the order of their names. Asks once for 1,000 names of the root directory.
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

    /// Gives a key a new inode with these bytes, in the place of what has it; who reads that goes on with it. Durable and
    /// seen everywhere, by mounts too, when it returns.
    ///
    /// # Errors
    /// `File`: `NotFound` without the bucket, `Stale` for a file that is no nameless one of this volume (any more),
    /// `Quota`, `Access`, `NotSupported` where something else than a file is in the way of a directory;
    /// `InvalidArgument` for a key, an attachment or bytes that are too long; and as for every call.
    pub fn put_object(&self, put: &PutObject<'_>) -> Result<Put, ClientError> {
        self.put(put, None)
    }

    fn put(&self, put: &PutObject<'_>, upload: Option<UploadId>) -> Result<Put, ClientError> {
        let (path, op) = put_op(put, upload)?;
        self.done(self.object_op(&path, op)?, Some(put.attachment))
    }

    /// A file without a name, to read and write, its bytes on chains of so many replicas (0: the cluster's own number). It
    /// goes when its last clone is dropped and nothing has given it a name, and when this process dies.
    ///
    /// # Errors
    /// `InvalidArgument` for more replicas than chains can have; and as for every call. Without chains of so many
    /// replicas no meta answers until the deadline.
    pub fn nameless_file(&self, replicas: u8) -> Result<File, ClientError> {
        check_replicas(replicas)?;
        let ino = self.number()?;
        // Known to be open before it is there: no meta collects it between.
        self.metas().note_open(ino);
        let op = ObjectOp::Nameless { parent: Ino::ROOT, ino, mode: MODE, replicas, umask: None };
        let made = self.metas().attr_at("a file without a name", MetaOp::Object(op));
        let file = made.map(|attr| {
            let text = format!("inode {ino}, without a name");
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

    /// An object, if it is there; with its bytes, if they are wanted and lie in the store. All of it is of one moment.
    ///
    /// # Errors
    /// `File`: `NotFound` without the bucket, `Access`; `InvalidArgument` for a key that none has; and as for every call.
    pub fn get_object(
        &self,
        bucket: &str,
        key: &[u8],
        with_bytes: bool,
    ) -> Result<Option<Object>, ClientError> {
        self.look_up(bucket, key, with_bytes).map(|found| found.object)
    }

    /// Opens an object to read. It stays what it is while it is open, even when it is removed or replaced, unless a mount
    /// writes to the file.
    ///
    /// # Errors
    /// `File`: `Stale` when it was removed meanwhile; and as for every call.
    pub fn object_file(&self, object: &Object) -> Result<File, ClientError> {
        let file = self.opened(object.attr);
        if file.stat()?.nlink == 0 {
            return Err(refused(&format!("inode {}", object.attr.ino), MetaError::Stale));
        }
        Ok(file)
    }

    /// From now on, until it is dropped, what is looked up can be opened with [`Volume::object_file_held`].
    #[must_use]
    pub fn hold(&self) -> Hold {
        self.shared.metas.hold()
    }

    /// The same as [`Volume::object_file`] of an object that was looked up after `hold` was taken. Asks nobody.
    #[must_use]
    pub fn object_file_held(&self, object: &Object, _hold: &Hold) -> File {
        self.opened(object.attr)
    }

    fn opened(&self, attr: Attr) -> File {
        let text = format!("inode {}", attr.ino);
        File::of(Opened::new(Arc::clone(&self.shared), (text, attr), OpenOptions::READ))
    }

    /// Keeps other bytes with an object, made for the content that it has: whoever changes what he read before should
    /// expect [`Expect::Exactly`]. [`Put::Unmet`] with nothing when it is not there.
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

    /// Removes an object, and directories that were made for it and are empty then. [`Put::Done`] has what was removed
    /// as `replaced`; without anything to remove it has nothing there, and an object of inode 0.
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

    /// A page of keys in the order of their bytes. Between two pages keys may come and go; one that is there all the
    /// time is told once.
    ///
    /// A directory with nothing but empty directories in it is no prefix, and a meta looks through it to know. It
    /// ends a page when it has looked at some thousand places; this asks on, 256 times, until there is something to
    /// tell. Then [`ListPage::next`] ends with a NUL, and is to be given back as it is.
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
            return Err(ClientError::argument("list", "longer than a key"));
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

    /// Begins an upload in parts.
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

    /// Uploads of a bucket behind this one, in the order of keys and ids; fewer than `limit` only at the end.
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

    /// A place for a part of so many bytes in a file in which all parts of the upload lie one behind the other, so that completing it need
    /// not copy them (RFC 0023): the file, and where the place begins. `None` where the part has to have a file of its own: it is longer than the
    /// others, or the first and so short that it may be the last, or its place was taken before. Whoever takes a place writes
    /// there and nowhere else, and not after [`Volume::put_part`].
    ///
    /// # Errors
    /// `File`: `NotFound` without the upload, `Access`; `InvalidArgument` for a number that is not 1 to 10,000; and as for every call.
    pub fn take_place(
        &self,
        (bucket, id, number): (&str, UploadId, u16),
        len: u64,
        replicas: u8,
    ) -> Result<Option<(File, u64)>, ClientError> {
        check_part(number)?;
        check_replicas(replicas)?;
        // What a meta tells of is open from then on.
        let _hold = self.hold();
        let bucket_of = bucket_name(bucket)?;
        let op = ObjectOp::TakePlace { bucket: bucket_of, id, number, len, mode: MODE, replicas };
        let ObjectReply::Place(place) = self.object_op(bucket, op)? else {
            return Err(self.metas().unexpected());
        };
        Ok(place.map(|(attr, offset)| {
            let text = format!("inode {}, an upload", attr.ino);
            let opened = Opened::new(Arc::clone(&self.shared), (text, attr), OpenOptions::UPDATE);
            (File::of(opened), offset)
        }))
    }

    /// Has a file of [`Volume::nameless_file`] be a part of an upload, which holds it from then on; or, with `place`, that many bytes at
    /// the part's place in the file of [`Volume::take_place`]. The part of this number that was there is garbage; with `replaces` it must be in this
    /// file.
    ///
    /// # Errors
    /// `File`: `NotFound` without the upload, `Stale` for another file, a place that was not taken or where another part is to be replaced, `Quota`; `InvalidArgument` for a number that is
    /// not 1 to 10,000; and as for every call.
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

    /// Parts of an upload behind this number, in their order; fewer than `limit` only at the end.
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

    /// Opens a part to read. It stays while it is open.
    ///
    /// # Errors
    /// `File`: `Stale` when it is gone; and as for every call.
    pub fn part_file(&self, part: &Part) -> Result<File, ClientError> {
        let file = self.opened(part.attr);
        file.stat()?;
        Ok(file)
    }

    /// [`Volume::put_object`], by which an upload of its bucket ends, with its parts: both in one transaction.
    ///
    /// # Errors
    /// As [`Volume::put_object`]; `File`: `NotFound` without the upload too.
    pub fn complete_upload(&self, id: UploadId, put: &PutObject<'_>) -> Result<Put, ClientError> {
        self.put(put, Some(id))
    }

    /// Ends an upload; its parts are garbage.
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
        return Err(ClientError::argument("number", "a part has a number from 1 to 10,000"));
    }
    Ok(())
}

fn check_replicas(replicas: u8) -> Result<(), ClientError> {
    if replicas > REPLICAS_MAX {
        let why = format!("{replicas}, of {REPLICAS_MAX} at most");
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
