//! What a check of a volume finds.

use std::fmt;

use millpond_types::meta::{Ino, Name, Repair};

/// Findings that a report lists; of more it has the number.
const FINDINGS_MAX: usize = 1000;

/// Something in a volume that cannot come from its operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// There is no root.
    NoRoot,
    /// A record cannot be read, or its key is none of ours.
    Unreadable {
        /// The key, printable.
        key: String,
    },
    /// A name leads to an inode that is not there, or to one of another kind.
    BadEntry {
        /// In which directory.
        dir: Ino,
        /// Which name.
        name: Name,
        /// Where it leads.
        ino: Ino,
    },
    /// A name lies in what is no directory.
    NoDirectory {
        /// In what.
        dir: Ino,
        /// Which name.
        name: Name,
    },
    /// The link count is not what leads there: names, or 2 and the directories in a directory.
    Links {
        /// Which inode.
        ino: Ino,
        /// What it says.
        nlink: u32,
        /// What was found.
        found: u32,
    },
    /// A directory is not where it says: it has another parent, or several.
    Parent {
        /// Which directory.
        ino: Ino,
        /// Where it says it is.
        parent: Ino,
    },
    /// No name leads to the inode, and it is neither an orphan nor in the trash; or it is and has names.
    Orphan {
        /// Which inode.
        ino: Ino,
    },
    /// The way up from a directory does not end at the root.
    Detached {
        /// Which directory.
        ino: Ino,
    },
    /// Extended attributes were counted wrongly.
    Xattrs {
        /// Of which inode.
        ino: Ino,
    },
    /// There are bytes in the store of what has none there.
    Content {
        /// Of which inode.
        ino: Ino,
    },
    /// A record that belongs to an inode that is not there.
    Stray {
        /// The key, printable.
        key: String,
    },
    /// A name in a directory of objects is not at its places, or something else is there.
    Places {
        /// In which directory.
        dir: Ino,
        /// Which name.
        name: Name,
    },
    /// What counts for a quota is not what the inodes say.
    Usage {
        /// The directory with the quota.
        root: Ino,
        /// Bytes that were found; the records say something else of them or of the inodes.
        bytes: u64,
        /// Inodes that were found.
        inodes: u64,
    },
    /// Chunks that several files have are counted wrongly.
    Users {
        /// Their name.
        chunks: u64,
        /// Files that the record counts.
        users: u64,
        /// Files that were found.
        found: u64,
    },
    /// The record of chunks that several files have is away: what is behind them is not read.
    Unknown {
        /// Their name.
        chunks: u64,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoot => write!(f, "there is no root directory"),
            Self::Unreadable { key } => write!(f, "the record {key} cannot be read"),
            Self::BadEntry { dir, name, ino } => write!(
                f,
                "name {name} in directory {dir} leads to inode {ino}, which is not there or of another kind"
            ),
            Self::NoDirectory { dir, name } => {
                write!(f, "name {name} lies in inode {dir}, which is no directory")
            }
            Self::Links { ino, nlink, found } => {
                write!(f, "inode {ino} counts {nlink} links, {found} were found")
            }
            Self::Parent { ino, parent } => {
                write!(f, "directory {ino} is not where it says, in directory {parent}")
            }
            Self::Orphan { ino } => {
                write!(
                    f,
                    "inode {ino} has no name and is neither an orphan nor in the trash, or is and has names"
                )
            }
            Self::Detached { ino } => {
                write!(f, "the way up from directory {ino} does not end at the root")
            }
            Self::Xattrs { ino } => {
                write!(f, "the extended attributes of inode {ino} are counted wrongly")
            }
            Self::Content { ino } => {
                write!(f, "inode {ino} has bytes in the store, which are not its bytes")
            }
            Self::Stray { key } => {
                write!(f, "the record {key} belongs to an inode that is not there")
            }
            Self::Places { dir, name } => {
                write!(f, "name {name} in directory {dir} is not where it is in the order of keys")
            }
            Self::Usage { root, bytes, inodes } => write!(
                f,
                "the quota of directory {root} counts wrongly: {bytes} bytes, {inodes} inodes were found"
            ),
            Self::Users { chunks, users, found } => write!(
                f,
                "chunks {chunks:016x} count {users} files, and {found} are read from them"
            ),
            Self::Unknown { chunks } => write!(
                f,
                "files have the chunks {chunks:016x} together, and what is known of these is away"
            ),
        }
    }
}

/// What a check has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Inodes.
    pub inodes: u64,
    /// Names.
    pub entries: u64,
    /// Bytes of files, by their lengths.
    pub bytes: u64,
    /// What is wrong, as far as there is room.
    pub findings: Vec<Finding>,
    /// How to put that right, as far as there is a safe way. Repairs change each other's findings: check
    /// again afterwards.
    pub repairs: Vec<Repair>,
    /// Findings that are not listed.
    pub more: u64,
    /// What looked wrong and changed before it could be judged: check again when less is going on.
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
