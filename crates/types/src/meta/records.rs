//! What lies in the transactional store.

use super::request::flag;
use super::{Attr, Delegation, FileKind, Ino, Layout, SESSIONS_MAX, TARGET_BYTES_MAX, Timestamp};
use crate::wire::{Reader, Record, WireError, Writer};

/// Format of the records of a volume that this build writes. It reads format 1, which has no bytes of
/// files in the store, format 2, which has no more than 16 KiB of a file, format 3, which has no directories of
/// objects, format 4, which has no chain tables and no places of parts, format 5, in which nobody holds a directory, and
/// format 6, which does not tell what was written from holes, and makes them this one.
pub const VOLUME_FORMAT: u32 = 7;

/// A volume: one file namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    /// Format of its records; a newer one is refused.
    pub format: u32,
    /// Layout of new files; seed and chains are filled in.
    pub layout: Layout,
    /// When it was made.
    pub created: Timestamp,
}

/// The next numbers; a meta takes some thousand at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterRecord {
    /// Inodes, data ids and sessions are numbered from here on.
    pub next: u64,
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeRecord {
    /// Its attributes. The times of a directory's entries are in its [`DirTimes`].
    pub attr: Attr,
    /// A symbolic link's target.
    pub target: Vec<u8>,
    /// How many extended attributes it has.
    pub xattrs: u16,
    /// The directory whose quota it counts for: the nearest above it that has one, of such a directory
    /// itself; 0 for none.
    pub quota: Ino,
    /// How long what is removed from a directory is kept, in seconds; 0 for not at all. A directory that is
    /// made in it begins with the same.
    pub keep_s: u32,
    /// What a directory is to objects; and a file.
    pub marks: Marks,
    /// Who has a directory to itself.
    pub delegated: Option<Delegation>,
}

/// What a directory is to objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is set by itself")]
pub struct Marks {
    /// It is a bucket, or lies in one: beside its entries their places are kept, in the order of keys.
    pub objects: bool,
    /// It was made for an object below it, and goes with the last one.
    pub implied: bool,
    /// It is a bucket that an object store is behind: states of its keys are kept.
    pub backed: bool,
    /// It is a file that was given up, since the object store had its bytes: what is written to it from then on, by who
    /// has it open, would be in no object.
    pub evicted: bool,
}

/// When a directory's entries changed last. Written blindly, so that changes of different entries do
/// not conflict with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirTimes {
    /// Last change of the entries.
    pub mtime: Timestamp,
    /// Last change of the entries, unless the inode itself changed later.
    pub ctime: Timestamp,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRecord {
    /// Where it leads.
    pub ino: Ino,
    /// What that is.
    pub kind: FileKind,
}

/// An inode without a name, that somebody may have open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanRecord {
    /// Since when.
    pub since: Timestamp,
    /// Sessions that may still have it open; `None` until they have been counted. A session that began
    /// later cannot reach it.
    pub waits_for: Option<Vec<u64>>,
}

/// Bytes that nobody can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GarbageRecord {
    /// Where they lie.
    pub layout: Layout,
    /// The file's length at its end.
    pub size: u64,
    /// Since when.
    pub since: Timestamp,
    /// There may be seals of it on its chains, which go after the chunks.
    pub is_sealed: bool,
}

/// Beside the length of garbage: there may be seals. No file is so long.
const SEALED: u64 = 1 << 63;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// Where it is, for operators.
    pub name: String,
    /// When it was renewed last.
    pub renewed: Timestamp,
    /// How often what it held was taken from it.
    pub tenure: u32,
}

impl Record for VolumeRecord {
    const KIND: u8 = 40;

    fn write_body(&self, w: &mut Writer) {
        w.u32(self.format);
        self.layout.encode(w);
        self.created.encode(w);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (format, layout) = (r.u32()?, Layout::decode(r)?);
        Ok(Self { format, layout, created: Timestamp::decode(r)? })
    }
}

impl Record for CounterRecord {
    const KIND: u8 = 41;

    fn write_body(&self, w: &mut Writer) {
        w.u64(self.next);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { next: r.u64()? })
    }
}

/// Marks of a directory, and of a file, in a record.
const OF_DIRECTORY: u8 = 0b111 | HELD;
const EVICTED: u8 = 0b1000;
/// A directory's holder follows.
const HELD: u8 = 0b1_0000;

impl Record for InodeRecord {
    const KIND: u8 = 42;

    fn write_body(&self, w: &mut Writer) {
        self.attr.encode(w);
        w.u16(self.xattrs);
        w.u64(self.quota.0);
        w.u32(self.keep_s);
        w.bytes16(&self.target);
        let Marks { objects, implied, backed, evicted } = self.marks;
        let bits = u8::from(objects) | u8::from(implied) << 1 | u8::from(backed) << 2;
        let held = if self.delegated.is_some() { HELD } else { 0 };
        let bits = bits | u8::from(evicted) << 3 | held;
        if bits != 0 {
            // Without any a record is what it was before there were objects.
            w.u8(bits);
        }
        if let Some(Delegation { session, tenure }) = self.delegated {
            w.u64(session);
            w.u32(tenure);
        }
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (attr, xattrs, quota) = (Attr::decode(r)?, r.u16()?, Ino(r.u64()?));
        let keep_s = r.u32()?;
        let target = r.bytes16(TARGET_BYTES_MAX, "target of a symbolic link")?.to_vec();
        let bits = if r.is_empty() { 0 } else { r.u8()? };
        let known = if attr.is_dir() { OF_DIRECTORY } else { EVICTED };
        if bits & !known != 0 {
            return Err(WireError::Field("marks of an inode"));
        }
        let (objects, implied, backed) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
        let marks = Marks { objects, implied, backed, evicted: bits & EVICTED != 0 };
        let mut delegated = None;
        if bits & HELD != 0 {
            delegated = Some(Delegation { session: r.u64()?, tenure: r.u32()? });
        }
        Ok(Self { attr, target, xattrs, quota, keep_s, marks, delegated })
    }
}

impl Record for DirTimes {
    const KIND: u8 = 43;

    fn write_body(&self, w: &mut Writer) {
        self.mtime.encode(w);
        self.ctime.encode(w);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { mtime: Timestamp::decode(r)?, ctime: Timestamp::decode(r)? })
    }
}

impl Record for EntryRecord {
    const KIND: u8 = 44;

    fn write_body(&self, w: &mut Writer) {
        w.u64(self.ino.0);
        w.u8(self.kind as u8);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { ino: Ino(r.u64()?), kind: FileKind::decode(r)? })
    }
}

impl Record for OrphanRecord {
    const KIND: u8 = 45;

    fn write_body(&self, w: &mut Writer) {
        self.since.encode(w);
        w.u8(u8::from(self.waits_for.is_some()));
        if let Some(sessions) = &self.waits_for {
            w.count(sessions.len());
            for session in sessions {
                w.u64(*session);
            }
        }
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let since = Timestamp::decode(r)?;
        let mut waits_for = None;
        if flag(r, "sessions counted")? {
            let n = r.count(SESSIONS_MAX, 8, "sessions of an orphan")?;
            waits_for = Some((0..n).map(|_| r.u64()).collect::<Result<_, _>>()?);
        }
        Ok(Self { since, waits_for })
    }
}

impl Record for GarbageRecord {
    const KIND: u8 = 46;

    fn write_body(&self, w: &mut Writer) {
        self.layout.encode(w);
        w.u64(self.size | (u64::from(self.is_sealed) * SEALED));
        self.since.encode(w);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (layout, size, since) = (Layout::decode(r)?, r.u64()?, Timestamp::decode(r)?);
        Ok(Self { layout, size: size & !SEALED, since, is_sealed: size & SEALED != 0 })
    }
}

impl Record for SessionRecord {
    const KIND: u8 = 47;

    fn write_body(&self, w: &mut Writer) {
        w.str8(&self.name);
        self.renewed.encode(w);
        if self.tenure != 0 {
            // In its first tenure a record is what it was before there were any.
            w.u32(self.tenure);
        }
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (name, renewed) = (r.str8()?.to_owned(), Timestamp::decode(r)?);
        let tenure = if r.is_empty() { 0 } else { r.u32()? };
        Ok(Self { name, renewed, tenure })
    }
}
