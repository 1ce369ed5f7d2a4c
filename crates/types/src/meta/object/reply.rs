//! Answers of a meta to a gateway.

use super::super::content::{read_bytes, write_bytes};
use super::super::request::flag;
use super::super::{Attr, DIR_PAGE_MAX, Name, Timestamp};
use super::OBJECT_KEY_MAX;
use super::backing::{Backing, BackingReply, KeyState, state, write_state};
use super::op::UploadId;
use super::record::{PartPlace, attachment, key};
use crate::wire::{Reader, WireError, Writer};

/// Bytes that a gateway keeps with an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The bytes; metas do not read them.
    pub bytes: Vec<u8>,
    /// Whether it was made for the content that exists now.
    pub is_current: bool,
}

/// An object: a file with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its inode.
    pub attr: Attr,
    /// Its attachment.
    pub attachment: Option<Attachment>,
    /// Its bytes, if they were asked for and are in the store; zeros follow up to its length.
    pub bytes: Option<Vec<u8>>,
}

/// Outcome of a conditional change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "it is taken apart where it arrives")]
pub enum Put {
    /// The change was made.
    Done {
        /// The object as it is now, or as it was before it was removed.
        object: Object,
        /// The object that was replaced.
        replaced: Option<Object>,
    },
    /// The condition does not hold, and nothing was changed: this object exists.
    Unmet(Option<Object>),
}

/// A bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Its name.
    pub name: String,
    /// Its directory.
    pub attr: Attr,
    /// Its attachment.
    pub attachment: Option<Attachment>,
    /// Its backing.
    pub backing: Option<Backing>,
}

/// A line of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "most of them are keys")]
pub enum Listed {
    /// An object.
    Key {
        /// Its key.
        key: Vec<u8>,
        /// The object.
        object: Object,
    },
    /// Common prefix of the keys of several objects.
    Prefix(Vec<u8>),
}

/// A page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Items in the order of their bytes.
    pub items: Vec<Listed>,
    /// Position after which the next page begins. If it ends with NUL, the meta has scanned up to
    /// there without a result to report.
    pub next: Option<Vec<u8>>,
}

/// A multipart upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Its id.
    pub id: UploadId,
    /// Key of the object to make.
    pub key: Vec<u8>,
    /// Its attachment.
    pub attachment: Vec<u8>,
    /// When it began.
    pub started: Timestamp,
}

/// A part of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its number.
    pub number: u16,
    /// Its file.
    pub attr: Attr,
    /// Its attachment.
    pub attachment: Vec<u8>,
    /// Its range in a file with other parts; none if it is all of the file.
    pub place: Option<PartPlace>,
}

impl Part {
    /// Offset in its file.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.place.map_or(0, |place| place.offset)
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.place.map_or(self.attr.size, |place| place.len)
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Time when the part was written.
    #[must_use]
    pub fn modified(&self) -> Timestamp {
        self.place.map_or(self.attr.mtime, |place| place.modified)
    }
}

/// A successful answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "it is taken apart where it arrives")]
pub enum ObjectReply {
    /// The operation is done. The inode is as it is now, or as it was before its removal.
    Done {
        /// The inode; none when there was nothing to remove.
        attr: Option<Attr>,
        /// The object that was replaced.
        replaced: Option<Object>,
    },
    /// The condition does not hold: this object exists.
    Unmet(Option<Object>),
    /// The object and the state of a key.
    Object {
        /// The object, if it exists.
        object: Option<Object>,
        /// The state of the key, in a backed bucket.
        state: Option<KeyState>,
    },
    /// A page of keys.
    Page(ListPage),
    /// A bucket.
    Bucket(Bucket),
    /// Some buckets.
    Buckets {
        /// Buckets in no order.
        buckets: Vec<Bucket>,
        /// Where the next page begins; 0 at the end.
        next: u64,
    },
    /// An upload.
    Upload(Upload),
    /// A page of uploads.
    Uploads {
        /// Uploads in the order of keys and upload ids.
        uploads: Vec<Upload>,
        /// Whether this is the last page.
        end: bool,
    },
    /// A page of parts.
    Parts {
        /// Parts in the order of their numbers.
        parts: Vec<Part>,
        /// Whether this is the last page.
        end: bool,
    },
    /// An answer about a backed bucket.
    Backing(BackingReply),
    /// The whole of an upload, and the offset of the taken place in it; none if the part must have
    /// a file of its own.
    Place(Option<(Attr, u64)>),
}

fn write_option<T>(w: &mut Writer, value: Option<&T>, write: impl FnOnce(&mut Writer, &T)) {
    w.u8(u8::from(value.is_some()));
    if let Some(value) = value {
        write(w, value);
    }
}

impl Attachment {
    fn encode(&self, w: &mut Writer) {
        w.bytes16(&self.bytes);
        w.u8(u8::from(self.is_current));
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { bytes: attachment(r)?, is_current: flag(r, "attachment is current")? })
    }
}

impl Object {
    pub(super) fn encode(&self, w: &mut Writer) {
        self.attr.encode(w);
        write_option(w, self.attachment.as_ref(), |w, attachment| attachment.encode(w));
        write_option(w, self.bytes.as_ref(), |w, bytes| write_bytes(w, bytes));
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let attr = Attr::decode(r)?;
        let attachment = attached(r)?;
        let bytes = flag(r, "with bytes")?.then(|| read_bytes(r)).transpose()?;
        Ok(Self { attr, attachment, bytes })
    }
}

fn attached(r: &mut Reader<'_>) -> Result<Option<Attachment>, WireError> {
    flag(r, "with an attachment")?.then(|| Attachment::decode(r)).transpose()
}

pub(super) fn object(r: &mut Reader<'_>) -> Result<Option<Object>, WireError> {
    flag(r, "with an object")?.then(|| Object::decode(r)).transpose()
}

impl Bucket {
    fn encode(&self, w: &mut Writer) {
        w.str8(&self.name);
        self.attr.encode(w);
        write_option(w, self.attachment.as_ref(), |w, attachment| attachment.encode(w));
        write_option(w, self.backing.as_ref(), |w, backing| backing.encode(w));
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let name = r.str8()?.to_owned();
        Name::new(name.as_bytes()).map_err(|_| WireError::Field("name of a bucket"))?;
        let (attr, attachment) = (Attr::decode(r)?, attached(r)?);
        let backing = flag(r, "with a backing")?.then(|| Backing::decode(r)).transpose()?;
        Ok(Self { name, attr, attachment, backing })
    }
}

impl Listed {
    fn encode(&self, w: &mut Writer) {
        match self {
            Self::Key { key, object } => {
                w.u8(0);
                w.bytes16(key);
                object.encode(w);
            }
            Self::Prefix(prefix) => {
                w.u8(1);
                w.bytes16(prefix);
            }
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match r.u8()? {
            0 => Self::Key { key: key(r)?, object: Object::decode(r)? },
            1 => Self::Prefix(key(r)?),
            _ => return Err(WireError::Field("line of a list of objects")),
        })
    }
}

impl ListPage {
    fn encode(&self, w: &mut Writer) {
        w.count(self.items.len());
        for item in &self.items {
            item.encode(w);
        }
        write_option(w, self.next.as_ref(), |w, next| w.bytes16(next));
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let n = r.count(DIR_PAGE_MAX, 3, "lines of a list of objects")?;
        let items = (0..n).map(|_| Listed::decode(r)).collect::<Result<_, _>>()?;
        let more = flag(r, "more objects")?;
        let next = more.then(|| r.bytes16(OBJECT_KEY_MAX + 1, "place in a list of objects"));
        Ok(Self { items, next: next.transpose()?.map(<[u8]>::to_vec) })
    }
}

impl Upload {
    fn encode(&self, w: &mut Writer) {
        w.u64(self.id.0);
        w.bytes16(&self.key);
        w.bytes16(&self.attachment);
        self.started.encode(w);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (id, key, attachment) = (UploadId(r.u64()?), key(r)?, attachment(r)?);
        Ok(Self { id, key, attachment, started: Timestamp::decode(r)? })
    }
}

impl Part {
    fn encode(&self, w: &mut Writer) {
        w.u16(self.number);
        self.attr.encode(w);
        w.bytes16(&self.attachment);
        write_option(w, self.place.as_ref(), |w, place| place.encode(w));
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (number, attr, attachment) = (r.u16()?, Attr::decode(r)?, attachment(r)?);
        let place = flag(r, "with a place")?.then(|| PartPlace::decode(r)).transpose()?;
        Ok(Self { number, attr, attachment, place })
    }
}

impl ObjectReply {
    pub(in super::super) fn encode(&self, w: &mut Writer) {
        match self {
            Self::Done { attr, replaced } => {
                w.u8(0);
                write_option(w, attr.as_ref(), |w, attr| attr.encode(w));
                write_option(w, replaced.as_ref(), |w, object| object.encode(w));
            }
            Self::Unmet(there) => {
                w.u8(1);
                write_option(w, there.as_ref(), |w, object| object.encode(w));
            }
            Self::Object { object, state } => {
                w.u8(2);
                write_option(w, object.as_ref(), |w, object| object.encode(w));
                write_state(w, state.as_ref());
            }
            Self::Page(page) => {
                w.u8(3);
                page.encode(w);
            }
            Self::Bucket(bucket) => {
                w.u8(4);
                bucket.encode(w);
            }
            Self::Buckets { buckets, next } => {
                w.u8(5);
                w.count(buckets.len());
                for bucket in buckets {
                    bucket.encode(w);
                }
                w.u64(*next);
            }
            Self::Upload(upload) => {
                w.u8(6);
                upload.encode(w);
            }
            Self::Uploads { uploads, end } => {
                w.u8(7);
                w.count(uploads.len());
                for upload in uploads {
                    upload.encode(w);
                }
                w.u8(u8::from(*end));
            }
            Self::Parts { parts, end } => {
                w.u8(8);
                w.count(parts.len());
                for part in parts {
                    part.encode(w);
                }
                w.u8(u8::from(*end));
            }
            Self::Backing(reply) => {
                w.u8(9);
                reply.encode(w);
            }
            Self::Place(place) => {
                w.u8(10);
                write_option(w, place.as_ref(), |w, (attr, offset)| {
                    attr.encode(w);
                    w.u64(*offset);
                });
            }
        }
    }

    pub(in super::super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match r.u8()? {
            0 => {
                let attr = flag(r, "with an inode")?.then(|| Attr::decode(r)).transpose()?;
                Self::Done { attr, replaced: object(r)? }
            }
            1 => Self::Unmet(object(r)?),
            2 => Self::Object { object: object(r)?, state: state(r)? },
            3 => Self::Page(ListPage::decode(r)?),
            4 => Self::Bucket(Bucket::decode(r)?),
            5 => {
                let n = r.count(DIR_PAGE_MAX, Attr::BYTES_MIN, "buckets of a page")?;
                let buckets = (0..n).map(|_| Bucket::decode(r)).collect::<Result<_, _>>()?;
                Self::Buckets { buckets, next: r.u64()? }
            }
            6 => Self::Upload(Upload::decode(r)?),
            7 => {
                let n = r.count(DIR_PAGE_MAX, 24, "uploads of a page")?;
                let uploads = (0..n).map(|_| Upload::decode(r)).collect::<Result<_, _>>()?;
                Self::Uploads { uploads, end: flag(r, "end of the uploads")? }
            }
            8 => {
                let n = r.count(DIR_PAGE_MAX, Attr::BYTES_MIN, "parts of a page")?;
                let parts = (0..n).map(|_| Part::decode(r)).collect::<Result<_, _>>()?;
                Self::Parts { parts, end: flag(r, "end of the parts")? }
            }
            9 => Self::Backing(BackingReply::decode(r)?),
            10 => {
                let place = |r: &mut Reader<'_>| Ok::<_, WireError>((Attr::decode(r)?, r.u64()?));
                Self::Place(flag(r, "with a place")?.then(|| place(r)).transpose()?)
            }
            _ => return Err(WireError::Field("kind of an answer about objects")),
        })
    }
}
