//! Requests of a volume check to metas: stored records, and repairs.

use super::request::flag;
use super::{Ino, Name};
use crate::limits::{STORE_KEY_BYTES_MAX, STORE_PAGE_KEYS_MAX, STORE_VALUE_BYTES_MAX};
use crate::wire::{Reader, WireError, Writer};

/// Most records that one request reads at the same moment.
pub const RECORDS_AT_ONCE_MAX: usize = 1000;

/// Request for a page of records as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordRange {
    /// The first key.
    pub start: Vec<u8>,
    /// The end of the range, exclusive.
    pub end: Vec<u8>,
    /// Whether to return the values; otherwise they are empty.
    pub values: bool,
}

/// A page of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordPage {
    /// Keys and values, in the order of their keys.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// Start of the next page; `None` at the end of the range.
    pub next: Option<Vec<u8>>,
}

/// A repair of a volume. Each first checks that the fault is still as it was found, and otherwise
/// does nothing. A version is the inode's version when the fault was found: as long as it is the
/// same, no relevant field has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Makes a root directory when there is none.
    Root,
    /// Moves an unreadable record to a prefix that nothing else reads.
    Aside {
        /// Its key.
        key: Vec<u8>,
    },
    /// Removes a name that leads nowhere or is in no directory; corrects a name with the wrong
    /// kind.
    Name {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Name,
    },
    /// Removes one of several names of a directory.
    ExtraName {
        /// The directory that contains the name.
        dir: Ino,
        /// The name.
        name: Name,
        /// The directory that it leads to.
        ino: Ino,
        /// Version of that directory.
        version: u64,
    },
    /// Sets the parent of a directory to the directory that contains its name.
    Place {
        /// The directory.
        ino: Ino,
        /// Its version.
        version: u64,
        /// The parent.
        parent: Ino,
    },
    /// Sets a link count.
    Links {
        /// The inode.
        ino: Ino,
        /// Its version.
        version: u64,
        /// The count.
        nlink: u32,
    },
    /// Gives an inode without a name one in `/lost+found`.
    Nameless {
        /// The inode.
        ino: Ino,
        /// Its version.
        version: u64,
        /// Its link count afterwards.
        nlink: u32,
    },
    /// Removes an inode with names from the orphans and from a trash.
    Named {
        /// The inode.
        ino: Ino,
        /// Its version.
        version: u64,
        /// Its link count.
        nlink: u32,
        /// The directory with the trash that holds it; 0 for none.
        trash: Ino,
    },
    /// Moves a directory that contains itself, through other directories, to `/lost+found`.
    Ring {
        /// The directory.
        ino: Ino,
    },
    /// Counts the extended attributes of an inode again.
    Xattrs {
        /// The inode.
        ino: Ino,
    },
    /// Removes a record of an inode that does not exist.
    Stray {
        /// Its key.
        key: Vec<u8>,
    },
    /// Sets a part of a quota's usage.
    Usage {
        /// Key of the part.
        key: Vec<u8>,
        /// The part's version; 0 when it does not exist.
        version: u64,
        /// Bytes.
        bytes: u64,
        /// Inodes.
        inodes: u64,
    },
    /// Sets the places of a name in a directory of objects to those of its entry.
    Places {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Name,
    },
    /// Sets the number of users of shared chunks; without users the chunks become garbage.
    Users {
        /// The name of the chunks.
        chunks: u64,
        /// The version of their record.
        version: u64,
        /// The count.
        users: u64,
    },
}

fn write_key(w: &mut Writer, key: &[u8]) {
    w.bytes16(key);
}

fn read_key(r: &mut Reader<'_>) -> Result<Vec<u8>, WireError> {
    Ok(r.bytes16(STORE_KEY_BYTES_MAX, "key of a record")?.to_vec())
}

pub(super) fn write_keys(w: &mut Writer, keys: &[Vec<u8>]) {
    w.count(keys.len());
    for key in keys {
        write_key(w, key);
    }
}

pub(super) fn read_keys(r: &mut Reader<'_>) -> Result<Vec<Vec<u8>>, WireError> {
    let n = r.count(RECORDS_AT_ONCE_MAX, 2, "keys of records")?;
    (0..n).map(|_| read_key(r)).collect()
}

fn write_value(w: &mut Writer, value: &[u8]) {
    w.count(value.len());
    w.raw(value);
}

fn read_value(r: &mut Reader<'_>) -> Result<Vec<u8>, WireError> {
    let n = r.count(STORE_VALUE_BYTES_MAX, 1, "value of a record")?;
    Ok(r.bytes(n)?.to_vec())
}

pub(super) fn write_values(w: &mut Writer, values: &[Option<Vec<u8>>]) {
    w.count(values.len());
    for value in values {
        w.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            write_value(w, value);
        }
    }
}

pub(super) fn read_values(r: &mut Reader<'_>) -> Result<Vec<Option<Vec<u8>>>, WireError> {
    let n = r.count(RECORDS_AT_ONCE_MAX, 1, "values of records")?;
    let value = |r: &mut Reader<'_>| flag(r, "record exists")?.then(|| read_value(r)).transpose();
    (0..n).map(|_| value(r)).collect()
}

impl RecordRange {
    pub(super) fn encode(&self, w: &mut Writer) {
        write_key(w, &self.start);
        write_key(w, &self.end);
        w.u8(u8::from(self.values));
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (start, end) = (read_key(r)?, read_key(r)?);
        Ok(Self { start, end, values: flag(r, "with values")? })
    }
}

impl RecordPage {
    pub(super) fn encode(&self, w: &mut Writer) {
        w.count(self.entries.len());
        for (key, value) in &self.entries {
            write_key(w, key);
            write_value(w, value);
        }
        w.u8(u8::from(self.next.is_some()));
        if let Some(next) = &self.next {
            write_key(w, next);
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let n = r.count(STORE_PAGE_KEYS_MAX, 6, "records of a page")?;
        let entries =
            (0..n).map(|_| Ok((read_key(r)?, read_value(r)?))).collect::<Result<_, WireError>>()?;
        let more = flag(r, "more records")?;
        Ok(Self { entries, next: more.then(|| read_key(r)).transpose()? })
    }
}

impl Repair {
    pub(super) fn encode(&self, w: &mut Writer) {
        let mut inode = |code, numbers: &[u64]| {
            w.u8(code);
            for number in numbers {
                w.u64(*number);
            }
        };
        match self {
            Self::Root => w.u8(0),
            Self::Aside { key } => {
                w.u8(1);
                write_key(w, key);
            }
            Self::Name { dir, name } => {
                inode(2, &[dir.0]);
                name.encode(w);
            }
            Self::ExtraName { dir, name, ino, version } => {
                inode(3, &[dir.0, ino.0, *version]);
                name.encode(w);
            }
            Self::Place { ino, version, parent } => inode(4, &[ino.0, *version, parent.0]),
            Self::Links { ino, version, nlink } => inode(5, &[ino.0, *version, u64::from(*nlink)]),
            Self::Nameless { ino, version, nlink } => {
                inode(6, &[ino.0, *version, u64::from(*nlink)]);
            }
            Self::Named { ino, version, nlink, trash } => {
                inode(7, &[ino.0, *version, u64::from(*nlink), trash.0]);
            }
            Self::Ring { ino } => inode(8, &[ino.0]),
            Self::Xattrs { ino } => inode(9, &[ino.0]),
            Self::Stray { key } => {
                w.u8(10);
                write_key(w, key);
            }
            Self::Usage { key, version, bytes, inodes } => {
                inode(11, &[*version, *bytes, *inodes]);
                write_key(w, key);
            }
            Self::Places { dir, name } => {
                inode(13, &[dir.0]);
                name.encode(w);
            }
            Self::Users { chunks, version, users } => inode(12, &[*chunks, *version, *users]),
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match r.u8()? {
            0 => Self::Root,
            1 => Self::Aside { key: read_key(r)? },
            2 => Self::Name { dir: Ino(r.u64()?), name: Name::decode(r)? },
            3 => {
                let (dir, ino, version) = (Ino(r.u64()?), Ino(r.u64()?), r.u64()?);
                Self::ExtraName { dir, ino, version, name: Name::decode(r)? }
            }
            4 => Self::Place { ino: Ino(r.u64()?), version: r.u64()?, parent: Ino(r.u64()?) },
            code @ 5..=7 => {
                let (ino, version, nlink) = (Ino(r.u64()?), r.u64()?, r.u64()?);
                let nlink = u32::try_from(nlink).map_err(|_| WireError::Field("link count"))?;
                match code {
                    5 => Self::Links { ino, version, nlink },
                    6 => Self::Nameless { ino, version, nlink },
                    _ => Self::Named { ino, version, nlink, trash: Ino(r.u64()?) },
                }
            }
            8 => Self::Ring { ino: Ino(r.u64()?) },
            9 => Self::Xattrs { ino: Ino(r.u64()?) },
            10 => Self::Stray { key: read_key(r)? },
            11 => {
                let (version, bytes, inodes) = (r.u64()?, r.u64()?, r.u64()?);
                Self::Usage { key: read_key(r)?, version, bytes, inodes }
            }
            12 => Self::Users { chunks: r.u64()?, version: r.u64()?, users: r.u64()? },
            13 => Self::Places { dir: Ino(r.u64()?), name: Name::decode(r)? },
            _ => return Err(WireError::Field("kind of a repair")),
        })
    }

    /// Whether the repair may need a new inode, for the `/lost+found` directory.
    #[must_use]
    pub const fn takes_id(&self) -> bool {
        matches!(self, Self::Nameless { .. } | Self::Ring { .. })
    }
}
