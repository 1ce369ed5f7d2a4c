//! Findings of a volume check.

use std::fmt;

use millpond_types::meta::{Ino, Name, Repair};

/// Findings that a report lists; it counts the others.
const FINDINGS_MAX: usize = 1000;

/// An inconsistency that no operation of a volume causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// There is no root.
    NoRoot,
    /// A record cannot be read, or its key is invalid.
    Unreadable {
        /// The key, printable.
        key: String,
    },
    /// A name leads to a missing inode, or to one of another kind.
    BadEntry {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Name,
        /// The inode that the name leads to.
        ino: Ino,
    },
    /// A name lies in an inode that is no directory.
    NoDirectory {
        /// The inode.
        dir: Ino,
        /// The name.
        name: Name,
    },
    /// The link count is wrong: it should count names, or for a directory 2 and its subdirectories.
    Links {
        /// The inode.
        ino: Ino,
        /// The link count in the record.
        nlink: u32,
        /// The count that was found.
        found: u32,
    },
    /// A directory is not in its recorded parent: it has another parent, or several.
    Parent {
        /// The directory.
        ino: Ino,
        /// The recorded parent.
        parent: Ino,
    },
    /// An inode without a name is neither an orphan nor in the trash, or one with a name is.
    Orphan {
        /// The inode.
        ino: Ino,
    },
    /// The path upwards from a directory does not end at the root.
    Detached {
        /// The directory.
        ino: Ino,
    },
    /// The count of extended attributes is wrong.
    Xattrs {
        /// The inode.
        ino: Ino,
    },
    /// The store has bytes of an inode that should have none there.
    Content {
        /// The inode.
        ino: Ino,
    },
    /// A record belongs to an inode that does not exist.
    Stray {
        /// The key, printable.
        key: String,
    },
    /// A name in a directory of objects is missing at its places, or another name is there.
    Places {
        /// The directory.
        dir: Ino,
        /// The name.
        name: Name,
    },
    /// The usage of a quota does not match the inodes.
    Usage {
        /// The directory with the quota.
        root: Ino,
        /// Bytes that were found; the records differ in bytes or inodes.
        bytes: u64,
        /// Inodes that were found.
        inodes: u64,
    },
    /// The record of shared chunks has a wrong number of files.
    Users {
        /// The name of the chunks.
        chunks: u64,
        /// Files that the record counts.
        users: u64,
        /// Files that were found.
        found: u64,
    },
    /// The record of shared chunks is missing: the chunks behind them cannot be read.
    Unknown {
        /// The name of the chunks.
        chunks: u64,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoot => write!(f, "the root directory is missing"),
            Self::Unreadable { key } => write!(f, "the record {key} cannot be read"),
            Self::BadEntry { dir, name, ino } => write!(
                f,
                "name {name} in directory {dir} leads to inode {ino}, which does not exist or is \
                 of another kind"
            ),
            Self::NoDirectory { dir, name } => {
                write!(f, "name {name} is in inode {dir}, which is not a directory")
            }
            Self::Links { ino, nlink, found } => {
                write!(f, "inode {ino} counts {nlink} links, but has {found}")
            }
            Self::Parent { ino, parent } => {
                write!(
                    f,
                    "directory {ino} records directory {parent} as its parent, but is not there"
                )
            }
            Self::Orphan { ino } => {
                write!(
                    f,
                    "inode {ino} has no name but is neither an orphan nor in the trash, or has \
                     names but is one of these"
                )
            }
            Self::Detached { ino } => {
                write!(f, "the path from directory {ino} upwards does not end at the root")
            }
            Self::Xattrs { ino } => {
                write!(f, "the count of extended attributes of inode {ino} is wrong")
            }
            Self::Content { ino } => {
                write!(f, "inode {ino} has bytes in the store that do not belong to it")
            }
            Self::Stray { key } => {
                write!(f, "the record {key} belongs to an inode that does not exist")
            }
            Self::Places { dir, name } => {
                write!(f, "name {name} in directory {dir} is at a wrong place in the order of keys")
            }
            Self::Usage { root, bytes, inodes } => write!(
                f,
                "the quota of directory {root} has wrong counts: it holds {bytes} bytes and \
                 {inodes} inodes"
            ),
            Self::Users { chunks, users, found } => {
                write!(f, "chunks {chunks:016x} count {users} files, but {found} files use them")
            }
            Self::Unknown { chunks } => write!(
                f,
                "files share the chunks {chunks:016x}, but the record of these is missing"
            ),
        }
    }
}

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Inodes.
    pub inodes: u64,
    /// Names.
    pub entries: u64,
    /// Bytes of files, by their lengths.
    pub bytes: u64,
    /// Findings, up to a limit.
    pub findings: Vec<Finding>,
    /// Repairs for the findings, if there is a safe one. A repair can change other findings: check
    /// again afterwards.
    pub repairs: Vec<Repair>,
    /// Findings that are not listed.
    pub more: u64,
    /// Inconsistencies that changed before they could be judged: check again when the volume is
    /// less busy.
    pub unjudged: u64,
}

impl CheckReport {
    pub(crate) fn add(&mut self, finding: Finding, repairs: impl IntoIterator<Item = Repair>) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
            self.repairs.extend(repairs);
        } else {
            self.more += 1;
        }
    }
}
