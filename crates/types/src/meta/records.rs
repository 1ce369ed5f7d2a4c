//! Records in the transactional store.

use super::request::flag;
use super::{Attr, Delegation, FileKind, Ino, Layout, SESSIONS_MAX, TARGET_BYTES_MAX, Timestamp};
use crate::wire::{Reader, Record, WireError, Writer};

/// Format of a volume's records that this build writes. It also reads older formats and upgrades
/// them: format 1 has no file bytes in the store, format 2 at most 16 KiB of a file, format 3 no
/// directories of objects, format 4 no chain tables and no places of parts, format 5 no
/// delegations, and format 6 does not distinguish written ranges from holes.
pub const VOLUME_FORMAT: u32 = 7;

/// A volume: one file namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    /// Format of its records; this build rejects a newer one.
    pub format: u32,
    /// Layout of new files; a meta fills in seed and chains.
    pub layout: Layout,
    /// Time of creation.
    pub created: Timestamp,
}

/// The next numbers; a meta takes some thousands at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterRecord {
    /// The next number for inodes, data ids and sessions.
    pub next: u64,
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeRecord {
    /// Its attributes. The times of a directory's entries are in its [`DirTimes`].
    pub attr: Attr,
    /// A symbolic link's target.
    pub target: Vec<u8>,
    /// Number of extended attributes.
    pub xattrs: u16,
    /// The directory with the quota that counts the inode: the nearest ancestor with a quota, or
    /// the directory itself if it has one; 0 for none.
    pub quota: Ino,
    /// Seconds for which inodes removed from a directory are kept; 0 for not at all. A directory
    /// made in it starts with the same value.
    pub keep_s: u32,
    /// Role of the directory or file in the object store.
    pub marks: Marks,
    /// Holder of the directory's delegation.
    pub delegated: Option<Delegation>,
}

/// Role of a directory or file in the object store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is set by itself")]
pub struct Marks {
    /// It is a bucket, or is inside one: the places of its entries are kept in key order.
    pub objects: bool,
    /// It was made for an object below it, and is removed with the last one.
    pub implied: bool,
    /// It is a backed bucket: the states of its keys are kept.
    pub backed: bool,
    /// It is a file that was evicted because the backend had its bytes. Bytes written to it
    /// afterwards, through a descriptor that is still open, would be in no object.
    pub evicted: bool,
}

/// Times of the last change of a directory's entries. Written blindly, so that changes of different
/// entries do not conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirTimes {
    /// Time of the last change of the entries.
    pub mtime: Timestamp,
    /// Time of the last change of the entries, unless the inode itself changed later.
    pub ctime: Timestamp,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRecord {
    /// The inode.
    pub ino: Ino,
    /// The inode's kind.
    pub kind: FileKind,
}

/// An inode without a name that may still be open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanRecord {
    /// Time of the removal of its last name.
    pub since: Timestamp,
    /// Sessions that may still have it open; `None` until they have been counted. A session that
    /// began later cannot reach it.
    pub waits_for: Option<Vec<u64>>,
}

/// Bytes that nobody can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GarbageRecord {
    /// Their placement.
    pub layout: Layout,
    /// The file's last length.
    pub size: u64,
    /// Time since which they are garbage.
    pub since: Timestamp,
    /// Its chains may have seals of it; they are removed after the chunks.
    pub is_sealed: bool,
}

/// Flag in the length of garbage: there may be seals. No file is so long.
const SEALED: u64 = 1 << 63;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// Its host and mount point, for operators.
    pub name: String,
    /// Time of the last renewal.
    pub renewed: Timestamp,
    /// Number of times that its delegations were revoked.
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
/// Flag: a directory's holder follows.
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
            // Without marks the record is the same as before objects existed.
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
            // In the first tenure the record is the same as before tenures existed.
            w.u32(self.tenure);
        }
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (name, renewed) = (r.str8()?.to_owned(), Timestamp::decode(r)?);
        let tenure = if r.is_empty() { 0 } else { r.u32()? };
        Ok(Self { name, renewed, tenure })
    }
}
