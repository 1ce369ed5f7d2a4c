//! Types of the file namespace: inodes, attributes, layouts, and the operations of a meta.
//!
//! Reading order: `attr` (inodes), `acl` (permissions), `layout` (placement of a file's bytes),
//! `error`, `lock`, `delegation` (directories that one mount has exclusively), `quota`, `trash`,
//! `check`, `content` (bytes in the store), `share` (chunks of several files), [`object`] (keys and
//! files of buckets), `set` (changes of attributes), `xattr`, `request` and `reply` (the protocol
//! of `Verb::Meta`), `watch` (of `Verb::MetaWatch`), `records` and [`keys`] (the contents of the
//! transactional store). `docs/files.md` describes the guarantees of the operations.

mod acl;
mod attr;
mod check;
mod content;
mod create;
mod delegation;
mod error;
pub mod keys;
mod layout;
mod lock;
pub mod object;
mod quota;
mod records;
mod reply;
mod request;
mod set;
mod share;
mod trash;
mod watch;
mod xattr;

pub use acl::{ACL_ENTRIES_MAX, Acl, AclKind};
pub use attr::{Attr, FileKind, Filled, Ino, Name, NameError, Timestamp, XattrName};
pub use check::{RECORDS_AT_ONCE_MAX, RecordPage, RecordRange, Repair};
pub use content::{
    Content, ContentRecord, FILE_PATH_MAX, INLINE_MAX, PutFile, Reserve, STORED_MAX, Spill,
    WriteInline,
};
pub use create::{Create, NUMBERS_MAX, PromisedFile};
pub use delegation::{DELEGATION_MS, Delegation, FENCE_MS, RETURN_MS, RETURNS_MAX};
pub use error::MetaError;
pub use layout::Layout;
pub use lock::{FileLock, HeldLock, LockKind, LockSpace, LocksRecord};
pub use quota::{Quota, QuotaLimits, QuotaRecord, UsageRecord};
pub use records::{
    CounterRecord, DirTimes, EntryRecord, GarbageRecord, InodeRecord, Marks, OrphanRecord,
    SessionRecord, VOLUME_FORMAT, VolumeRecord,
};
pub use reply::{DirEntry, Entry, MetaAnswer, MetaReply, Removed, Session, Usage};
pub use request::{Caller, Extend, Hollow, MetaOp, MetaRequest, ReadDir, Rename};
pub use set::{SetAttr, SetTime};
pub use share::{CloneFile, FileBase, SharedRecord};
pub use trash::{TrashChange, TrashEntry, TrashPage, TrashRecord};
pub use watch::{
    After, Answered, CHANGES_MAX, Changed, MetaNews, MetaWatch, TOUCHED_MAX, WATCH_MS_MAX,
};
pub use xattr::{Setxattr, XattrMode};

/// Longest target of a symbolic link in bytes (Linux' `PATH_MAX` without its NUL).
pub const TARGET_BYTES_MAX: usize = 4095;
/// Longest value of an extended attribute in bytes (Linux' `XATTR_SIZE_MAX`).
pub const XATTR_BYTES_MAX: usize = 65_536;
/// Extended attributes of one inode: Linux lists 64 KiB of names.
pub const XATTRS_MAX: usize = 1024;
/// Hard links of one inode, as on ext4.
pub const LINKS_MAX: u32 = 65_000;
/// Entries of one page of a directory: about 250 KiB with attributes.
pub const DIR_PAGE_MAX: usize = 1000;
/// Longest file in bytes: chunks are numbered by 32 bits, and offsets of system calls are signed.
pub const FILE_BYTES_MAX: u64 = (1 << 32) * (64 << 10);
/// Mounts of one volume at the same time: an orphan's record names them all.
pub const SESSIONS_MAX: usize = 16_384;
/// Locks of one inode, of all owners together: their record fits a value of the store.
pub const LOCKS_MAX: usize = 4096;
/// Parts in which the usage of a quota is counted: changes of inodes in different parts do not
/// conflict.
pub const USAGE_SHARDS: u8 = 32;
/// Supplementary groups of a caller (Linux' `NGROUPS_MAX`).
pub const GROUPS_MAX: usize = 65_536;

#[cfg(test)]
mod tests;
