//! Removed inodes that are kept for a while.

use super::request::flag;
use super::{DIR_PAGE_MAX, FileKind, Ino, Name, Timestamp};
use crate::wire::{Reader, Record, WireError, Writer};

/// An inode without a name, removed from a directory that keeps removed inodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrashRecord {
    /// The name that it had.
    pub name: Name,
    /// Time of the removal.
    pub since: Timestamp,
    /// Time until which it is kept.
    pub until: Timestamp,
}

/// An entry of the trash of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrashEntry {
    /// Its inode.
    pub ino: Ino,
    /// The inode's kind.
    pub kind: FileKind,
    /// Its length in bytes.
    pub size: u64,
    /// Its name and times.
    pub record: TrashRecord,
}

/// A page of the trash of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrashPage {
    /// Seconds for which the directory keeps removed inodes; 0 for not at all.
    pub keep_s: u32,
    /// Entries in the order of their inodes.
    pub entries: Vec<TrashEntry>,
    /// Whether this is the last page.
    pub end: bool,
}

/// A change of the trash of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrashChange {
    /// Sets the time for which inodes removed from now on are kept.
    Keep {
        /// The directory.
        dir: Ino,
        /// The time in seconds; 0 for not at all.
        keep_s: u32,
    },
    /// Gives an inode its name again, or another name in the same directory.
    Restore {
        /// The directory that it was removed from.
        dir: Ino,
        /// The inode.
        ino: Ino,
        /// Its name.
        name: Name,
    },
    /// Stops keeping an inode.
    Drop {
        /// The directory that it was removed from.
        dir: Ino,
        /// The inode.
        ino: Ino,
    },
}

impl Record for TrashRecord {
    const KIND: u8 = 51;

    fn write_body(&self, w: &mut Writer) {
        self.name.encode(w);
        self.since.encode(w);
        self.until.encode(w);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let name = Name::decode(r)?;
        Ok(Self { name, since: Timestamp::decode(r)?, until: Timestamp::decode(r)? })
    }
}

impl TrashEntry {
    fn encode(&self, w: &mut Writer) {
        w.u64(self.ino.0);
        w.u8(self.kind as u8);
        w.u64(self.size);
        self.record.write_body(w);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (ino, kind, size) = (Ino(r.u64()?), FileKind::decode(r)?, r.u64()?);
        Ok(Self { ino, kind, size, record: TrashRecord::read_body(r)? })
    }
}

impl TrashPage {
    pub(super) fn encode(&self, w: &mut Writer) {
        w.u32(self.keep_s);
        w.count(self.entries.len());
        for entry in &self.entries {
            entry.encode(w);
        }
        w.u8(u8::from(self.end));
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let keep_s = r.u32()?;
        let n = r.count(DIR_PAGE_MAX, 43, "entries of a trash")?;
        let entries = (0..n).map(|_| TrashEntry::decode(r)).collect::<Result<_, _>>()?;
        Ok(Self { keep_s, entries, end: flag(r, "end of a trash")? })
    }
}

impl TrashChange {
    pub(super) fn encode(&self, w: &mut Writer) {
        match self {
            Self::Keep { dir, keep_s } => {
                w.u8(0);
                w.u64(dir.0);
                w.u32(*keep_s);
            }
            Self::Restore { dir, ino, name } => {
                w.u8(1);
                w.u64(dir.0);
                w.u64(ino.0);
                name.encode(w);
            }
            Self::Drop { dir, ino } => {
                w.u8(2);
                w.u64(dir.0);
                w.u64(ino.0);
            }
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (code, dir) = (r.u8()?, Ino(r.u64()?));
        Ok(match code {
            0 => Self::Keep { dir, keep_s: r.u32()? },
            1 => Self::Restore { dir, ino: Ino(r.u64()?), name: Name::decode(r)? },
            2 => Self::Drop { dir, ino: Ino(r.u64()?) },
            _ => return Err(WireError::Field("change of a trash")),
        })
    }
}
