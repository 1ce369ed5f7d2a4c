//! Requests of a gateway to a meta. The meta walks buckets and keys, in one transaction.

use super::super::content::{read_bytes, write_bytes};
use super::super::request::flag;
use super::super::{Ino, Name};
use super::OBJECT_KEY_MAX;
use super::backing::{BackingOp, Origin};
use super::record::{attachment, key};
use crate::limits::REPLICAS_MAX;
use crate::wire::{Reader, WireError, Writer};

/// The highest number of a part of an upload, as in S3.
pub const PARTS_MAX: u16 = 10_000;
/// Smallest size in bytes of a part that is not the last, as in S3.
pub const PART_MIN: u64 = 5 << 20;

/// Number of an upload in its bucket; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UploadId(pub u64);

/// Condition on the object that exists before a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expect {
    /// No condition.
    #[default]
    Any,
    /// No object exists.
    Absent,
    /// This inode exists, with unchanged bytes and attachment.
    Exactly {
        /// The inode.
        ino: Ino,
        /// Its [`Attr::version`](super::super::Attr::version).
        version: u64,
    },
}

/// Source of the bytes of a new object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectBody {
    /// In the request: at most [`STORED_MAX`](super::super::STORED_MAX) bytes.
    Bytes(Vec<u8>),
    /// In a file of the session without a name.
    Nameless(Ino),
    /// In the whole of the upload that this request ends, if its parts are exactly the ones in the
    /// whole.
    Whole {
        /// Number of parts.
        parts: u16,
        /// Sum of their bytes.
        size: u64,
    },
}

/// Request to give a key a new inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutObject {
    /// The bucket.
    pub bucket: Name,
    /// The key.
    pub key: Vec<u8>,
    /// Its bytes.
    pub body: ObjectBody,
    /// Permission bits.
    pub mode: u16,
    /// Its attachment.
    pub attachment: Vec<u8>,
    /// Condition on the object that exists before.
    pub expect: Expect,
    /// Replica count of the chains for its bytes if they move to chunks later; 0 for the default
    /// table.
    pub replicas: u8,
    /// The upload that this request ends.
    pub upload: Option<UploadId>,
    /// The backend has these bytes: they make the key clean, unless it changed in the meantime.
    pub origin: Option<Origin>,
}

/// Request to replace the attachment of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetAttachment {
    /// The bucket.
    pub bucket: Name,
    /// The key.
    pub key: Vec<u8>,
    /// The attachment, made for the content that exists.
    pub attachment: Vec<u8>,
    /// Condition on the object that exists before.
    pub expect: Expect,
}

/// Request for a page of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListObjects {
    /// The bucket.
    pub bucket: Name,
    /// Prefix of the keys.
    pub prefix: Vec<u8>,
    /// Keys that contain this after the prefix are listed once, cut after it; empty for none.
    pub delimiter: Vec<u8>,
    /// Lists only keys and common prefixes after this one. If it ends with NUL, common prefixes of
    /// it are still listed.
    pub after: Vec<u8>,
    /// Most keys and prefixes to return.
    pub limit: u32,
}

/// Request to make a file without a name a part of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutPart {
    /// The bucket.
    pub bucket: Name,
    /// The upload.
    pub id: UploadId,
    /// Its number, 1 to [`PARTS_MAX`].
    pub number: u16,
    /// The file.
    pub ino: Ino,
    /// Its attachment.
    pub attachment: Vec<u8>,
    /// If set, the part is this many bytes, at its place in the whole that the file is; none if the
    /// part is all of a file of its own.
    pub place: Option<u64>,
    /// Only if the part of this number is in this file now.
    pub replaces: Option<Ino>,
}

/// Operations on objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectOp {
    /// Makes a regular file without a name, held by the session.
    Nameless {
        /// The directory with the quota that counts the file.
        parent: Ino,
        /// Its number, one of those that `MetaOp::TakeNumbers` gave to the session.
        ino: Ino,
        /// Permission bits.
        mode: u16,
        /// Replica count of the chains for its bytes; 0 for the default table.
        replicas: u8,
        /// As in [`Create::umask`](crate::meta::Create::umask).
        umask: Option<u16>,
    },
    /// Makes an object, or replaces the existing one.
    Put(PutObject),
    /// Reads an object.
    Get {
        /// The bucket.
        bucket: Name,
        /// The key.
        key: Vec<u8>,
        /// Whether to return its bytes, if they are in the store.
        with_bytes: bool,
    },
    /// Replaces the attachment of an object.
    SetAttachment(SetAttachment),
    /// Removes an object.
    Remove {
        /// The bucket.
        bucket: Name,
        /// The key.
        key: Vec<u8>,
        /// Condition on the object that exists before.
        expect: Expect,
    },
    /// Lists a page of keys.
    List(ListObjects),
    /// Makes a bucket.
    MakeBucket {
        /// Its name.
        bucket: Name,
        /// Its attachment.
        attachment: Vec<u8>,
    },
    /// Removes a bucket without objects.
    RemoveBucket {
        /// Its name.
        bucket: Name,
    },
    /// Reads a bucket.
    GetBucket {
        /// Its name.
        bucket: Name,
    },
    /// Replaces the attachment of a bucket.
    SetBucket {
        /// Its name.
        bucket: Name,
        /// Its attachment.
        attachment: Vec<u8>,
    },
    /// Lists a page of the buckets, in no order.
    ListBuckets {
        /// End of the page before; 0 for the beginning.
        after: u64,
    },
    /// Begins an upload.
    CreateUpload {
        /// The bucket.
        bucket: Name,
        /// The key of the object to make.
        key: Vec<u8>,
        /// Its attachment.
        attachment: Vec<u8>,
    },
    /// Reads an upload.
    GetUpload {
        /// The bucket.
        bucket: Name,
        /// The upload.
        id: UploadId,
    },
    /// Lists a page of uploads, in the order of keys and upload ids.
    ListUploads {
        /// The bucket.
        bucket: Name,
        /// Lists only uploads after this one.
        after: Option<(Vec<u8>, UploadId)>,
        /// Most uploads to return.
        limit: u32,
    },
    /// Adds a part to an upload, or replaces the existing one.
    PutPart(PutPart),
    /// Takes the place of a part in the whole of its upload, and makes the whole if there is none.
    /// The answer is the place, if this part can have one; no other caller gets it.
    TakePlace {
        /// The bucket.
        bucket: Name,
        /// The upload.
        id: UploadId,
        /// The part's number, 1 to [`PARTS_MAX`].
        number: u16,
        /// Length of the part in bytes.
        len: u64,
        /// Permission bits of the whole.
        mode: u16,
        /// Replica count of the chains for the bytes of the whole; 0 for the default table.
        replicas: u8,
    },
    /// Lists a page of parts, in the order of their numbers.
    ListParts {
        /// The bucket.
        bucket: Name,
        /// The upload.
        id: UploadId,
        /// Lists only parts after this one; 0 for the beginning.
        after: u16,
        /// Most parts to return.
        limit: u32,
    },
    /// Removes an upload and its parts.
    AbortUpload {
        /// The bucket.
        bucket: Name,
        /// The upload.
        id: UploadId,
    },
    /// An operation on a backed bucket.
    Backing(BackingOp),
}

impl Expect {
    fn encode(self, w: &mut Writer) {
        match self {
            Self::Any => w.u8(0),
            Self::Absent => w.u8(1),
            Self::Exactly { ino, version } => {
                w.u8(2);
                w.u64(ino.0);
                w.u64(version);
            }
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match r.u8()? {
            0 => Self::Any,
            1 => Self::Absent,
            2 => Self::Exactly { ino: Ino(r.u64()?), version: r.u64()? },
            _ => return Err(WireError::Field("expected state of an object")),
        })
    }
}

impl ObjectBody {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::Bytes(bytes) => {
                w.u8(0);
                write_bytes(w, bytes);
            }
            Self::Nameless(ino) => {
                w.u8(1);
                w.u64(ino.0);
            }
            Self::Whole { parts, size } => {
                w.u8(2);
                w.u16(*parts);
                w.u64(*size);
            }
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match r.u8()? {
            0 => Self::Bytes(read_bytes(r)?),
            1 => Self::Nameless(Ino(r.u64()?)),
            2 => Self::Whole { parts: r.u16()?, size: r.u64()? },
            _ => return Err(WireError::Field("body of an object")),
        })
    }
}

fn mode(r: &mut Reader<'_>) -> Result<u16, WireError> {
    let mode = r.u16()?;
    if mode > 0o7777 { Err(WireError::Field("mode of a new file")) } else { Ok(mode) }
}

/// Reads a position in a list of objects, which may have a NUL at its end.
fn place(r: &mut Reader<'_>) -> Result<Vec<u8>, WireError> {
    Ok(r.bytes16(OBJECT_KEY_MAX + 1, "place in a list of objects")?.to_vec())
}

impl PutObject {
    fn encode(&self, w: &mut Writer) {
        self.bucket.encode(w);
        w.bytes16(&self.key);
        self.body.encode(w);
        w.u16(self.mode);
        w.bytes16(&self.attachment);
        self.expect.encode(w);
        w.u8(self.replicas);
        w.u8(u8::from(self.upload.is_some()));
        if let Some(id) = self.upload {
            w.u64(id.0);
        }
        w.u8(u8::from(self.origin.is_some()));
        if let Some(origin) = &self.origin {
            origin.encode(w);
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (bucket, key, body) = (Name::decode(r)?, key(r)?, ObjectBody::decode(r)?);
        let (mode, attachment, expect) = (mode(r)?, attachment(r)?, Expect::decode(r)?);
        let replicas = read_replicas(r)?;
        let upload = flag(r, "with an upload")?.then(|| r.u64()).transpose()?.map(UploadId);
        let origin = flag(r, "with an origin")?.then(|| Origin::decode(r)).transpose()?;
        Ok(Self { bucket, key, body, mode, attachment, expect, replicas, upload, origin })
    }
}

impl SetAttachment {
    fn encode(&self, w: &mut Writer) {
        self.bucket.encode(w);
        w.bytes16(&self.key);
        w.bytes16(&self.attachment);
        self.expect.encode(w);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (bucket, key, attachment) = (Name::decode(r)?, key(r)?, attachment(r)?);
        Ok(Self { bucket, key, attachment, expect: Expect::decode(r)? })
    }
}

impl ListObjects {
    fn encode(&self, w: &mut Writer) {
        self.bucket.encode(w);
        for bytes in [&self.prefix, &self.delimiter, &self.after] {
            w.bytes16(bytes);
        }
        w.u32(self.limit);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (bucket, prefix) = (Name::decode(r)?, key(r)?);
        let (delimiter, after, limit) = (key(r)?, place(r)?, r.u32()?);
        Ok(Self { bucket, prefix, delimiter, after, limit })
    }
}

impl PutPart {
    fn encode(&self, w: &mut Writer) {
        self.bucket.encode(w);
        w.u64(self.id.0);
        w.u16(self.number);
        w.u64(self.ino.0);
        w.bytes16(&self.attachment);
        for number in [self.place, self.replaces.map(|ino| ino.0)] {
            w.u8(u8::from(number.is_some()));
            if let Some(number) = number {
                w.u64(number);
            }
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (bucket, id, number) = (Name::decode(r)?, UploadId(r.u64()?), part_number(r)?);
        let (ino, attachment) = (Ino(r.u64()?), attachment(r)?);
        let place = flag(r, "with a place")?.then(|| r.u64()).transpose()?;
        let replaces = flag(r, "instead of a part")?.then(|| r.u64()).transpose()?.map(Ino);
        Ok(Self { bucket, id, number, ino, attachment, place, replaces })
    }
}

fn part_number(r: &mut Reader<'_>) -> Result<u16, WireError> {
    let number = r.u16()?;
    if number == 0 || number > PARTS_MAX {
        return Err(WireError::Field("number of a part (1 to 10,000)"));
    }
    Ok(number)
}

impl ObjectOp {
    /// The operation's name in logs and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Nameless { .. } => "nameless",
            Self::Put(_) => "put_object",
            Self::Get { .. } => "get_object",
            Self::SetAttachment(_) => "set_attachment",
            Self::Remove { .. } => "remove_object",
            Self::List(_) => "list_objects",
            Self::MakeBucket { .. } => "make_bucket",
            Self::RemoveBucket { .. } => "remove_bucket",
            Self::GetBucket { .. } => "get_bucket",
            Self::SetBucket { .. } => "set_bucket",
            Self::ListBuckets { .. } => "list_buckets",
            Self::CreateUpload { .. } => "create_upload",
            Self::GetUpload { .. } => "get_upload",
            Self::ListUploads { .. } => "list_uploads",
            Self::PutPart(_) => "put_part",
            Self::ListParts { .. } => "list_parts",
            Self::AbortUpload { .. } => "abort_upload",
            Self::Backing(op) => op.name(),
            Self::TakePlace { .. } => "take_place",
        }
    }

    /// Whether the operation changes anything, so that repetitions must not execute it again.
    #[must_use]
    pub const fn changes(&self) -> bool {
        if let Self::Backing(op) = self {
            return op.changes();
        }
        !matches!(
            self,
            Self::Get { .. }
                | Self::List(_)
                | Self::GetBucket { .. }
                | Self::ListBuckets { .. }
                | Self::GetUpload { .. }
                | Self::ListUploads { .. }
                | Self::ListParts { .. }
        )
    }

    /// Whether it makes an inode or an upload with a number from the meta.
    #[must_use]
    pub const fn takes_id(&self) -> bool {
        matches!(
            self,
            Self::Put(PutObject { body: ObjectBody::Bytes(_), .. })
                | Self::MakeBucket { .. }
                | Self::CreateUpload { .. }
                | Self::TakePlace { .. }
        )
    }

    /// Replica count of the file that it makes; 0 for the default table.
    #[must_use]
    pub const fn replicas(&self) -> u8 {
        match self {
            Self::Nameless { replicas, .. }
            | Self::TakePlace { replicas, .. }
            | Self::Put(PutObject { replicas, .. }) => *replicas,
            _ => 0,
        }
    }

    const fn code(&self) -> u8 {
        match self {
            Self::Nameless { .. } => 0,
            Self::Put(_) => 1,
            Self::Get { .. } => 2,
            Self::SetAttachment(_) => 3,
            Self::Remove { .. } => 4,
            Self::List(_) => 5,
            Self::MakeBucket { .. } => 6,
            Self::RemoveBucket { .. } => 7,
            Self::GetBucket { .. } => 8,
            Self::SetBucket { .. } => 9,
            Self::ListBuckets { .. } => 10,
            Self::CreateUpload { .. } => 11,
            Self::GetUpload { .. } => 12,
            Self::ListUploads { .. } => 13,
            Self::PutPart(_) => 14,
            Self::ListParts { .. } => 15,
            Self::AbortUpload { .. } => 16,
            Self::Backing(_) => 17,
            Self::TakePlace { .. } => 18,
        }
    }

    pub(in super::super) fn encode(&self, w: &mut Writer) {
        w.u8(self.code());
        match self {
            Self::Nameless { parent, ino, mode, replicas, umask } => {
                w.u64(parent.0);
                w.u64(ino.0);
                w.u16(*mode);
                w.u8(*replicas);
                w.u16(umask.unwrap_or(NO_UMASK));
            }
            Self::Put(put) => put.encode(w),
            Self::Get { bucket, key, with_bytes } => {
                bucket.encode(w);
                w.bytes16(key);
                w.u8(u8::from(*with_bytes));
            }
            Self::SetAttachment(set) => set.encode(w),
            Self::Remove { bucket, key, expect } => {
                bucket.encode(w);
                w.bytes16(key);
                expect.encode(w);
            }
            Self::List(list) => list.encode(w),
            Self::MakeBucket { bucket, attachment } | Self::SetBucket { bucket, attachment } => {
                bucket.encode(w);
                w.bytes16(attachment);
            }
            Self::RemoveBucket { bucket } | Self::GetBucket { bucket } => bucket.encode(w),
            Self::ListBuckets { after } => w.u64(*after),
            Self::CreateUpload { bucket, key, attachment } => {
                bucket.encode(w);
                w.bytes16(key);
                w.bytes16(attachment);
            }
            Self::GetUpload { bucket, id } | Self::AbortUpload { bucket, id } => {
                bucket.encode(w);
                w.u64(id.0);
            }
            Self::ListUploads { bucket, after, limit } => {
                bucket.encode(w);
                w.u8(u8::from(after.is_some()));
                if let Some((key, id)) = after {
                    w.bytes16(key);
                    w.u64(id.0);
                }
                w.u32(*limit);
            }
            Self::PutPart(put) => put.encode(w),
            Self::ListParts { bucket, id, after, limit } => {
                bucket.encode(w);
                w.u64(id.0);
                w.u16(*after);
                w.u32(*limit);
            }
            Self::Backing(op) => op.encode(w),
            Self::TakePlace { bucket, id, number, len, mode, replicas } => {
                bucket.encode(w);
                w.u64(id.0);
                w.u16(*number);
                w.u64(*len);
                w.u16(*mode);
                w.u8(*replicas);
            }
        }
    }

    pub(in super::super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match r.u8()? {
            0 => {
                let (parent, ino, mode) = (Ino(r.u64()?), Ino(r.u64()?), mode(r)?);
                let (replicas, umask) = (read_replicas(r)?, read_umask(r)?);
                Self::Nameless { parent, ino, mode, replicas, umask }
            }
            1 => Self::Put(PutObject::decode(r)?),
            2 => {
                let (bucket, key) = (Name::decode(r)?, key(r)?);
                Self::Get { bucket, key, with_bytes: flag(r, "with bytes")? }
            }
            3 => Self::SetAttachment(SetAttachment::decode(r)?),
            4 => {
                let (bucket, key) = (Name::decode(r)?, key(r)?);
                Self::Remove { bucket, key, expect: Expect::decode(r)? }
            }
            5 => Self::List(ListObjects::decode(r)?),
            6 => Self::MakeBucket { bucket: Name::decode(r)?, attachment: attachment(r)? },
            7 => Self::RemoveBucket { bucket: Name::decode(r)? },
            8 => Self::GetBucket { bucket: Name::decode(r)? },
            9 => Self::SetBucket { bucket: Name::decode(r)?, attachment: attachment(r)? },
            10 => Self::ListBuckets { after: r.u64()? },
            11 => {
                let (bucket, key) = (Name::decode(r)?, key(r)?);
                Self::CreateUpload { bucket, key, attachment: attachment(r)? }
            }
            12 => Self::GetUpload { bucket: Name::decode(r)?, id: UploadId(r.u64()?) },
            13 => {
                let bucket = Name::decode(r)?;
                let after = flag(r, "after an upload")?.then(|| upload(r)).transpose()?;
                Self::ListUploads { bucket, after, limit: r.u32()? }
            }
            14 => Self::PutPart(PutPart::decode(r)?),
            15 => {
                let (bucket, id) = (Name::decode(r)?, UploadId(r.u64()?));
                Self::ListParts { bucket, id, after: r.u16()?, limit: r.u32()? }
            }
            16 => Self::AbortUpload { bucket: Name::decode(r)?, id: UploadId(r.u64()?) },
            17 => Self::Backing(BackingOp::decode(r)?),
            18 => {
                let (bucket, id, number) = (Name::decode(r)?, UploadId(r.u64()?), part_number(r)?);
                let (len, mode) = (r.u64()?, mode(r)?);
                Self::TakePlace { bucket, id, number, len, mode, replicas: read_replicas(r)? }
            }
            _ => return Err(WireError::Field("operation on an object")),
        })
    }
}

fn upload(r: &mut Reader<'_>) -> Result<(Vec<u8>, UploadId), WireError> {
    Ok((key(r)?, UploadId(r.u64()?)))
}

/// Encoding of an absent umask.
const NO_UMASK: u16 = u16::MAX;

fn read_umask(r: &mut Reader<'_>) -> Result<Option<u16>, WireError> {
    match r.u16()? {
        NO_UMASK => Ok(None),
        umask if umask <= 0o777 => Ok(Some(umask)),
        _ => Err(WireError::Field("umask")),
    }
}

/// Reads the replica count of a chain table; 0 for the default table.
pub(super) fn read_replicas(r: &mut Reader<'_>) -> Result<u8, WireError> {
    let replicas = r.u8()?;
    if replicas > REPLICAS_MAX { Err(WireError::Field("replicas")) } else { Ok(replicas) }
}
