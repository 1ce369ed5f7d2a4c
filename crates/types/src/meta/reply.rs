//! Answers of a meta: the metadata of a `Verb::Meta` reply.

use super::check::{RecordPage, read_values, write_values};
use super::content::Content;
use super::object::ObjectReply;
use super::request::{flag, read_inos, write_inos};
use super::share::SharedRecord;
use super::trash::TrashPage;
use super::xattr::{read_value, write_value};
use super::{
    Attr, DIR_PAGE_MAX, FileKind, HeldLock, Ino, MetaError, Name, Quota, TARGET_BYTES_MAX,
    XATTRS_MAX, XattrName,
};
use crate::wire::{Reader, WireError, Writer};

/// An inode found by a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its attributes.
    pub attr: Attr,
    /// Whether the operation made it.
    pub created: bool,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Position of the directory after this entry; not 0.
    pub cookie: u64,
    /// Its name.
    pub name: Name,
    /// Its inode.
    pub ino: Ino,
    /// The inode's kind.
    pub kind: FileKind,
    /// The inode's attributes, when they were asked for and it still exists.
    pub attr: Option<Attr>,
}

/// A name that was removed or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The inode that it led to.
    pub ino: Ino,
    /// Number of names that the inode still has.
    pub nlink: u32,
}

/// A new session of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its number.
    pub id: u64,
    /// Milliseconds after its last renewal when it ends.
    pub lease_ms: u32,
}

/// Usage of the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Total bytes for files.
    pub bytes: u64,
    /// Free bytes.
    pub bytes_free: u64,
    /// Approximate number of inodes in use.
    pub inodes: u64,
}

/// A successful answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "it is taken apart where it arrives")]
pub enum MetaReply {
    /// Done, without a result.
    Done,
    /// A new session.
    Session(Session),
    /// The session is renewed, with a list of inodes for the mount to check.
    Renewed {
        /// Inodes that no other session has open; metas remove those that this session does not
        /// have open.
        asked: Vec<Ino>,
    },
    /// An inode by its name.
    Entry(Entry),
    /// An inode.
    Attr(Attr),
    /// A link's target.
    Target(Vec<u8>),
    /// A page of a directory.
    Page {
        /// Entries in the order of their cookies.
        entries: Vec<DirEntry>,
        /// Whether the directory ends with these entries.
        end: bool,
    },
    /// A name was removed.
    Removed(Removed),
    /// A name was changed, and replaced this one, if any.
    Renamed(Option<Removed>),
    /// The value of an extended attribute.
    Xattr(Vec<u8>),
    /// Names of extended attributes.
    Xattrs(Vec<XattrName>),
    /// Numbers for `statfs`.
    Usage(Usage),
    /// The conflicting lock, if any.
    Lock(Option<HeldLock>),
    /// A quota.
    Quota(Quota),
    /// A page of records.
    Records(RecordPage),
    /// Values of records read at one moment; none for a missing record.
    Values(Vec<Option<Vec<u8>>>),
    /// Whether there was anything to repair.
    Repaired(bool),
    /// A page of a trash.
    Trash(TrashPage),
    /// An inode, and its bytes if they are in the store.
    Content(Content),
    /// A name for chunks.
    Reserved(u64),
    /// A range of numbers from this one on, as long as requested.
    Numbers {
        /// The first.
        first: u64,
    },
    /// The record of shared chunks.
    Shared(SharedRecord),
    /// An answer about objects.
    Object(ObjectReply),
    /// A directory that was made, and that the mount now holds.
    Delegated(Attr),
    /// Directories that the session must return.
    Recalled {
        /// The session's tenure; it holds no directory that it got in an earlier one.
        tenure: u32,
        /// Some of these directories, at least one if there are any.
        dirs: Vec<Ino>,
    },
}

/// The answer of a meta, or its error.
pub type MetaAnswer = Result<MetaReply, MetaError>;

impl DirEntry {
    fn encode(&self, w: &mut Writer) {
        w.u64(self.cookie);
        self.name.encode(w);
        w.u64(self.ino.0);
        w.u8(self.kind as u8);
        w.u8(u8::from(self.attr.is_some()));
        if let Some(attr) = &self.attr {
            attr.encode(w);
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (cookie, name) = (r.u64()?, Name::decode(r)?);
        let (ino, kind) = (Ino(r.u64()?), FileKind::decode(r)?);
        let attr = flag(r, "with attributes")?.then(|| Attr::decode(r)).transpose()?;
        Ok(Self { cookie, name, ino, kind, attr })
    }
}

impl Removed {
    fn encode(self, w: &mut Writer) {
        w.u64(self.ino.0);
        w.u32(self.nlink);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { ino: Ino(r.u64()?), nlink: r.u32()? })
    }
}

impl MetaReply {
    const fn code(&self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Session(_) => 1,
            Self::Renewed { .. } => 2,
            Self::Entry(_) => 3,
            Self::Attr(_) => 4,
            Self::Target(_) => 5,
            Self::Page { .. } => 6,
            Self::Removed(_) => 7,
            Self::Renamed(_) => 8,
            Self::Xattr(_) => 9,
            Self::Xattrs(_) => 10,
            Self::Usage(_) => 11,
            Self::Lock(_) => 12,
            Self::Quota(_) => 13,
            Self::Records(_) => 14,
            Self::Values(_) => 15,
            Self::Repaired(_) => 16,
            Self::Trash(_) => 17,
            Self::Content(_) => 18,
            Self::Reserved(_) => 19,
            Self::Numbers { .. } => 20,
            Self::Shared(_) => 21,
            Self::Object(_) => 22,
            Self::Delegated(_) => 23,
            Self::Recalled { .. } => 24,
        }
    }

    fn write(&self, w: &mut Writer) {
        w.u8(self.code());
        match self {
            Self::Done => {}
            Self::Session(session) => {
                w.u64(session.id);
                w.u32(session.lease_ms);
            }
            Self::Renewed { asked } => write_inos(w, asked),
            Self::Entry(entry) => {
                entry.attr.encode(w);
                w.u8(u8::from(entry.created));
            }
            Self::Attr(attr) | Self::Delegated(attr) => attr.encode(w),
            Self::Recalled { tenure, dirs } => {
                w.u32(*tenure);
                write_inos(w, dirs);
            }
            Self::Target(bytes) => w.bytes16(bytes),
            Self::Xattr(value) => write_value(w, value),
            Self::Page { entries, end } => {
                w.count(entries.len());
                for entry in entries {
                    entry.encode(w);
                }
                w.u8(u8::from(*end));
            }
            Self::Removed(removed) => removed.encode(w),
            Self::Renamed(replaced) => {
                w.u8(u8::from(replaced.is_some()));
                if let Some(removed) = replaced {
                    removed.encode(w);
                }
            }
            Self::Xattrs(names) => {
                w.count(names.len());
                for name in names {
                    name.encode(w);
                }
            }
            Self::Usage(usage) => {
                w.u64(usage.bytes);
                w.u64(usage.bytes_free);
                w.u64(usage.inodes);
            }
            Self::Lock(held) => {
                w.u8(u8::from(held.is_some()));
                if let Some(held) = held {
                    held.encode(w);
                }
            }
            Self::Quota(quota) => quota.encode(w),
            Self::Records(page) => page.encode(w),
            Self::Values(values) => write_values(w, values),
            Self::Repaired(done) => w.u8(u8::from(*done)),
            Self::Trash(page) => page.encode(w),
            Self::Content(content) => content.encode(w),
            Self::Reserved(data) => w.u64(*data),
            Self::Numbers { first } => w.u64(*first),
            Self::Shared(record) => record.encode(w),
            Self::Object(reply) => reply.encode(w),
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match r.u8()? {
            0 => Self::Done,
            1 => Self::Session(Session { id: r.u64()?, lease_ms: r.u32()? }),
            2 => Self::Renewed { asked: read_inos(r)? },
            3 => Self::Entry(Entry { attr: Attr::decode(r)?, created: flag(r, "created")? }),
            4 => Self::Attr(Attr::decode(r)?),
            5 => Self::Target(r.bytes16(TARGET_BYTES_MAX, "target of a symbolic link")?.to_vec()),
            6 => {
                let n = r.count(DIR_PAGE_MAX, 20, "entries of a page")?;
                let entries = (0..n).map(|_| DirEntry::decode(r)).collect::<Result<_, _>>()?;
                Self::Page { entries, end: flag(r, "end of a directory")? }
            }
            7 => Self::Removed(Removed::decode(r)?),
            8 => {
                let replaced = flag(r, "replaced")?.then(|| Removed::decode(r)).transpose()?;
                Self::Renamed(replaced)
            }
            9 => Self::Xattr(read_value(r)?),
            10 => {
                let n = r.count(XATTRS_MAX, 2, "names of extended attributes")?;
                Self::Xattrs((0..n).map(|_| XattrName::decode(r)).collect::<Result<_, _>>()?)
            }
            11 => {
                let (bytes, bytes_free, inodes) = (r.u64()?, r.u64()?, r.u64()?);
                Self::Usage(Usage { bytes, bytes_free, inodes })
            }
            12 => {
                Self::Lock(flag(r, "conflicting lock")?.then(|| HeldLock::decode(r)).transpose()?)
            }
            13 => Self::Quota(Quota::decode(r)?),
            14 => Self::Records(RecordPage::decode(r)?),
            15 => Self::Values(read_values(r)?),
            16 => Self::Repaired(flag(r, "repaired")?),
            17 => Self::Trash(TrashPage::decode(r)?),
            18 => Self::Content(Content::decode(r)?),
            19 => Self::Reserved(r.u64()?),
            20 => Self::Numbers { first: r.u64()? },
            21 => Self::Shared(SharedRecord::decode(r)?),
            22 => Self::Object(ObjectReply::decode(r)?),
            23 => Self::Delegated(Attr::decode(r)?),
            24 => Self::Recalled { tenure: r.u32()?, dirs: read_inos(r)? },
            _ => return Err(WireError::Field("kind of a meta's reply")),
        })
    }

    /// Encodes a successful answer; the same bytes are stored for retries.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(Attr::BYTES_MIN + 2);
        self.write(&mut w);
        w.into_bytes()
    }

    /// Decodes a successful answer.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let reply = Self::read(&mut r)?;
        r.finish()?;
        Ok(reply)
    }

    /// Encodes an answer: the metadata of the reply.
    #[must_use]
    pub fn encode_answer(answer: &MetaAnswer) -> Vec<u8> {
        match answer {
            Ok(reply) => [&[0][..], &reply.encode()].concat(),
            Err(error) => vec![*error as u8],
        }
    }

    /// Decodes an answer.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode_answer(meta: &[u8]) -> Result<MetaAnswer, WireError> {
        match meta.split_first() {
            Some((0, reply)) => Self::decode(reply).map(Ok),
            Some((errno, [])) => MetaError::from_errno(*errno).map(Err),
            Some((_, rest)) => Err(WireError::Trailing(rest.len())),
            None => Err(WireError::Truncated),
        }
    }
}
