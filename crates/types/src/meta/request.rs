//! Requests to a meta: the metadata of a `Verb::Meta` request.

use super::check::{RecordRange, Repair, read_keys, write_keys};
use super::content::{PutFile, Reserve, Spill, WriteInline, read_path, write_path};
use super::create::Create;
use super::lock::write_lock;
use super::object::ObjectOp;
use super::set::SetAttr;
use super::share::CloneFile;
use super::trash::TrashChange;
use super::xattr::Setxattr;
use super::{
    Attr, FileLock, Filled, GROUPS_MAX, Ino, MetaError, Name, QuotaLimits, Timestamp, XattrName,
};
use crate::limits::LIST_KEYS_MAX;
use crate::wire::{Reader, WireError, Writer};

/// The user on whose behalf an operation runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group of new files.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Permissions have already been checked, by the kernel of a mount with `default_permissions`.
    /// A mount is trusted, as an NFS client is: it could also claim to be root.
    pub checked: bool,
}

impl Caller {
    /// A caller with permissions already checked by a kernel.
    #[must_use]
    pub const fn checked(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Vec::new(), checked: true }
    }

    /// Whether the group is one of the caller's.
    #[must_use]
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether the caller has all of `wanted` on an inode, by the POSIX rules without access
    /// control lists: 4 to read, 2 to write, 1 to execute or search. A client without a kernel
    /// checks this when it opens a file, because reads and writes of bytes do not pass through
    /// metas.
    ///
    /// # Errors
    /// [`MetaError::Access`].
    pub fn access(&self, attr: &Attr, wanted: u16) -> Result<(), MetaError> {
        if self.checked {
            return Ok(());
        }
        if self.uid == 0 {
            // Root may do everything, except execute a file that nobody may execute.
            let runs = wanted & 1 == 0 || attr.is_dir() || attr.mode & 0o111 != 0;
            return if runs { Ok(()) } else { Err(MetaError::Access) };
        }
        let class = match () {
            () if self.uid == attr.uid => 6,
            () if self.is_in_group(attr.gid) => 3,
            () => 0,
        };
        let granted = attr.mode >> class & 7;
        if granted & wanted == wanted { Ok(()) } else { Err(MetaError::Access) }
    }

    fn encode(&self, w: &mut Writer) {
        w.u32(self.uid);
        w.u32(self.gid);
        w.u8(u8::from(self.checked));
        w.count(self.groups.len());
        for group in &self.groups {
            w.u32(*group);
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (uid, gid, checked) = (r.u32()?, r.u32()?, flag(r, "caller is checked")?);
        let n = r.count(GROUPS_MAX, 4, "groups of a caller")?;
        let groups = (0..n).map(|_| r.u32()).collect::<Result<_, _>>()?;
        Ok(Self { uid, gid, groups, checked })
    }
}

/// Report that bytes were written to chunks: extends the file to at least `size`. An empty file in
/// the store moves to chunks by this; a non-empty one is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extend {
    /// The file.
    pub ino: Ino,
    /// Name of the chunks. Nothing is changed when the file's chunks have another name: it was
    /// truncated to zero, or its bytes are in the store.
    pub data: u64,
    /// The end of the last byte written.
    pub size: u64,
    /// Time of the write.
    pub mtime: Timestamp,
    /// The range that was written without a gap.
    pub filled: Filled,
}

/// Report that a client begins to remove bytes from a file's chunks, or has done so. A reader that
/// misses bytes learns why, and no meta believes that they exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hollow {
    /// The file.
    pub ino: Ino,
    /// The first removed byte.
    pub from: u64,
    /// Whether the removal has ended.
    pub ended: bool,
}

/// Request to rename.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename {
    /// The old directory.
    pub parent: Ino,
    /// The old name.
    pub name: Name,
    /// The new directory.
    pub new_parent: Ino,
    /// The new name.
    pub new_name: Name,
    /// Fail when the new name exists (`RENAME_NOREPLACE`).
    pub no_replace: bool,
    /// Exchange both names (`RENAME_EXCHANGE`).
    pub exchange: bool,
    /// Leave a character device 0:0 under the old name, which marks a removed entry for overlay
    /// file systems (`RENAME_WHITEOUT`).
    pub whiteout: bool,
}

/// Request for a page of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDir {
    /// The directory.
    pub dir: Ino,
    /// Cookie of the last entry that the caller has; 0 for the beginning.
    pub after: u64,
    /// Most entries to return.
    pub limit: u32,
    /// Whether to return the attributes of each entry.
    pub attrs: bool,
}

/// Operations of a meta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetaOp {
    /// Opens a session for a mount. The text tells operators where the mount is.
    SessionOpen {
        /// Host and mount point.
        name: String,
    },
    /// Renews the session, and reports which of the inodes in question are open.
    SessionRenew {
        /// Inodes that are still open.
        open: Vec<Ino>,
        /// Inodes that are not open.
        closed: Vec<Ino>,
    },
    /// Closes the session.
    SessionClose,
    /// Takes numbers for inodes that a mount makes by itself. A repeated request gets other
    /// numbers.
    TakeNumbers {
        /// Number of numbers, at most [`NUMBERS_MAX`](super::NUMBERS_MAX).
        count: u32,
    },
    /// Renews the session and lists recalled directories. The session keeps the others that it was
    /// given in the tenure of the answer.
    Recalled,
    /// Returns directories, whether the session holds them or not; at most
    /// [`RETURNS_MAX`](super::RETURNS_MAX).
    Return {
        /// The directories.
        dirs: Vec<Ino>,
    },
    /// Looks up a name.
    Lookup {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Name,
    },
    /// Reads an inode's attributes.
    GetAttr {
        /// The inode.
        ino: Ino,
    },
    /// Reads a symbolic link's target.
    ReadLink {
        /// The inode.
        ino: Ino,
    },
    /// Reads a page of a directory.
    ReadDir(ReadDir),
    /// Creates a name and an inode.
    Create(Create),
    /// Sets attributes.
    SetAttr {
        /// The inode.
        ino: Ino,
        /// The new attributes.
        set: SetAttr,
    },
    /// Extends a file after a write.
    Extend(Extend),
    /// Reports removal of bytes from chunks; does not change a file with its bytes in the store.
    Hollow(Hollow),
    /// Adds a name to an inode.
    Link {
        /// The inode.
        ino: Ino,
        /// The directory.
        parent: Ino,
        /// The name.
        name: Name,
    },
    /// Removes a name that leads to no directory.
    Unlink {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Name,
        /// Only if the name leads to this inode; otherwise the name counts as missing.
        of: Option<Ino>,
    },
    /// Removes an empty directory.
    RemoveDir {
        /// The directory.
        parent: Ino,
        /// The name.
        name: Name,
    },
    /// Changes a name.
    Rename(Rename),
    /// Sets an extended attribute.
    SetXattr(Setxattr),
    /// Reads the value of an extended attribute.
    GetXattr {
        /// The inode.
        ino: Ino,
        /// The attribute.
        name: XattrName,
    },
    /// Lists the names of the extended attributes.
    ListXattr {
        /// The inode.
        ino: Ino,
    },
    /// Removes an extended attribute.
    RemoveXattr {
        /// The inode.
        ino: Ino,
        /// The attribute.
        name: XattrName,
    },
    /// Reads the usage of the volume, for `statfs`.
    Usage,
    /// Reads the usage at a directory, for `statfs` of a mount of it: of its quota, if it has one.
    UsageAt {
        /// The directory.
        dir: Ino,
    },
    /// Finds a lock that conflicts with this one.
    GetLock {
        /// The inode.
        ino: Ino,
        /// The lock to test.
        lock: FileLock,
    },
    /// Sets, replaces or removes a lock. The meta never waits: a caller that wants to wait asks
    /// again, with a new sequence number.
    SetLock {
        /// The inode.
        ino: Ino,
        /// The lock; its owner belongs to this session.
        lock: FileLock,
    },
    /// Sets the limits of a directory; an empty directory without a quota gets one.
    SetQuota {
        /// The directory.
        dir: Ino,
        /// Its limits.
        limits: QuotaLimits,
    },
    /// Reads the quota that counts an inode.
    GetQuota {
        /// The inode.
        ino: Ino,
    },
    /// Reads a page of stored records, for a check.
    Records(RecordRange),
    /// Reads records at one moment, for a check.
    RecordsAt {
        /// Their keys.
        keys: Vec<Vec<u8>>,
    },
    /// Repairs a fault that a check found.
    Repair(Repair),
    /// Lists a page of the trash of a directory.
    TrashList {
        /// The directory.
        dir: Ino,
        /// The last inode that the caller has; 0 for the beginning.
        after: Ino,
        /// Most entries to return.
        limit: u32,
    },
    /// Changes the trash of a directory.
    Trash(TrashChange),
    /// Reads an inode's attributes, and its bytes if they are in the store.
    Content {
        /// The inode.
        ino: Ino,
    },
    /// Writes bytes to the store; nothing is changed when the file's bytes are in chunks, or its
    /// data id differs.
    WriteInline(WriteInline),
    /// Reserves a name for chunks, to which the bytes of a file will move from the store.
    Reserve(Reserve),
    /// Moves a file to reserved chunks that hold its bytes; nothing is changed when the file has
    /// changed.
    Spill(Spill),
    /// As [`Self::Content`], for the file at the end of this path.
    GetFile {
        /// The path from the root.
        path: Vec<Name>,
    },
    /// Writes a whole file.
    PutFile(PutFile),
    /// Makes the record of a file's chunks, before they are sealed; does nothing for bytes in the
    /// store.
    Share {
        /// The file.
        ino: Ino,
    },
    /// Makes a file with the bytes of another one, if that one is as its client describes it;
    /// otherwise nothing is changed.
    Clone(CloneFile),
    /// Gives a file chunks of its own, with the present sealed chunks as their base; nothing is
    /// changed when the file has other chunks.
    Unshare {
        /// The file.
        ino: Ino,
        /// The name of its chunks.
        chunks: u64,
    },
    /// Reads the record of shared chunks.
    Shared {
        /// Their name.
        chunks: u64,
    },
    /// An operation on objects, for a gateway.
    Object(ObjectOp),
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaRequest {
    /// The session of the request; 0 before there is one.
    pub session: u64,
    /// Number of a permanent change, within the session: a retry has the number of the first
    /// attempt and is not executed again.
    pub sequence: u64,
    /// Hours since 1970 at the first attempt: metas keep answers for a day.
    pub hour: u32,
    /// The user on whose behalf the operation runs.
    pub caller: Caller,
    /// The operation.
    pub op: MetaOp,
}

pub(super) fn flag(r: &mut Reader<'_>, what: &'static str) -> Result<bool, WireError> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Field(what)),
    }
}

fn write_unlink(w: &mut Writer, (parent, name): (Ino, &Name), of: Option<Ino>) {
    w.u64(parent.0);
    name.encode(w);
    if let Some(ino) = of {
        w.u64(ino.0);
    }
}

pub(super) fn write_inos(w: &mut Writer, inos: &[Ino]) {
    w.count(inos.len());
    for ino in inos {
        w.u64(ino.0);
    }
}

pub(super) fn read_inos(r: &mut Reader<'_>) -> Result<Vec<Ino>, WireError> {
    let n = r.count(LIST_KEYS_MAX, 8, "inodes in a list")?;
    (0..n).map(|_| Ok(Ino(r.u64()?))).collect()
}

impl Extend {
    fn encode(&self, w: &mut Writer) {
        for number in [self.ino.0, self.data, self.size] {
            w.u64(number);
        }
        self.mtime.encode(w);
        self.filled.encode(w);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (ino, data, size) = (Ino(r.u64()?), r.u64()?, r.u64()?);
        let mtime = Timestamp::decode(r)?;
        Ok(Self { ino, data, size, mtime, filled: Filled::decode(r)? })
    }
}

impl Hollow {
    fn encode(self, w: &mut Writer) {
        w.u64(self.ino.0);
        w.u64(self.from);
        w.u8(u8::from(self.ended));
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { ino: Ino(r.u64()?), from: r.u64()?, ended: flag(r, "a cut has ended")? })
    }
}

/// Flags of a rename.
const NO_REPLACE: u8 = 1;
const EXCHANGE: u8 = 2;
const WHITEOUT: u8 = 4;

impl Rename {
    fn encode(&self, w: &mut Writer) {
        w.u64(self.parent.0);
        self.name.encode(w);
        w.u64(self.new_parent.0);
        self.new_name.encode(w);
        let flags =
            [(self.no_replace, NO_REPLACE), (self.exchange, EXCHANGE), (self.whiteout, WHITEOUT)];
        w.u8(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum());
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (parent, name) = (Ino(r.u64()?), Name::decode(r)?);
        let (new_parent, new_name) = (Ino(r.u64()?), Name::decode(r)?);
        let flags = r.u8()?;
        // An exchange cannot be combined with the other flags.
        if flags != EXCHANGE && flags & !(NO_REPLACE | WHITEOUT) != 0 {
            return Err(WireError::Field("flags of a rename"));
        }
        let has = |flag| flags & flag != 0;
        let (no_replace, exchange, whiteout) = (has(NO_REPLACE), has(EXCHANGE), has(WHITEOUT));
        Ok(Self { parent, name, new_parent, new_name, no_replace, exchange, whiteout })
    }
}

impl ReadDir {
    fn encode(self, w: &mut Writer) {
        w.u64(self.dir.0);
        w.u64(self.after);
        w.u32(self.limit);
        w.u8(u8::from(self.attrs));
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (dir, after, limit) = (Ino(r.u64()?), r.u64()?, r.u32()?);
        Ok(Self { dir, after, limit, attrs: flag(r, "with attributes")? })
    }
}

impl MetaOp {
    /// The operation's name in logs and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::SessionOpen { .. } => "session_open",
            Self::SessionRenew { .. } => "session_renew",
            Self::SessionClose => "session_close",
            Self::TakeNumbers { .. } => "take_numbers",
            Self::Recalled => "recalled",
            Self::Return { .. } => "return",
            Self::Lookup { .. } => "lookup",
            Self::GetAttr { .. } => "getattr",
            Self::ReadLink { .. } => "readlink",
            Self::ReadDir(_) => "readdir",
            Self::Create(_) => "create",
            Self::SetAttr { .. } => "setattr",
            Self::Extend(_) => "extend",
            Self::Hollow(_) => "hollow",
            Self::Link { .. } => "link",
            Self::Unlink { .. } => "unlink",
            Self::RemoveDir { .. } => "rmdir",
            Self::Rename(_) => "rename",
            Self::SetXattr(_) => "setxattr",
            Self::GetXattr { .. } => "getxattr",
            Self::ListXattr { .. } => "listxattr",
            Self::RemoveXattr { .. } => "removexattr",
            Self::Usage => "usage",
            Self::UsageAt { .. } => "usage_at",
            Self::GetLock { .. } => "getlock",
            Self::SetLock { .. } => "setlock",
            Self::SetQuota { .. } => "setquota",
            Self::GetQuota { .. } => "getquota",
            Self::Records(_) => "records",
            Self::RecordsAt { .. } => "records_at",
            Self::Repair(_) => "repair",
            Self::TrashList { .. } => "trash_list",
            Self::Trash(_) => "trash",
            Self::Content { .. } => "content",
            Self::WriteInline(_) => "write_inline",
            Self::Reserve(_) => "reserve",
            Self::Spill(_) => "spill",
            Self::GetFile { .. } => "get_file",
            Self::PutFile(_) => "put_file",
            Self::Share { .. } => "share",
            Self::Clone(_) => "clone",
            Self::Unshare { .. } => "unshare",
            Self::Shared { .. } => "shared",
            Self::Object(op) => op.name(),
        }
    }

    /// Whether the operation changes anything, so that repetitions must not execute it again.
    #[must_use]
    pub const fn changes(&self) -> bool {
        if let Self::Object(op) = self {
            return op.changes();
        }
        matches!(
            self,
            Self::Create(_)
                | Self::SetAttr { .. }
                | Self::Extend(_)
                | Self::Hollow(_)
                | Self::Link { .. }
                | Self::Unlink { .. }
                | Self::Return { .. }
                | Self::RemoveDir { .. }
                | Self::Rename(_)
                | Self::SetXattr(_)
                | Self::RemoveXattr { .. }
                | Self::SetLock { .. }
                | Self::SetQuota { .. }
                | Self::Repair(_)
                | Self::Trash(_)
                | Self::WriteInline(_)
                | Self::Reserve(_)
                | Self::Spill(_)
                | Self::PutFile(_)
                | Self::Share { .. }
                | Self::Clone(_)
                | Self::Unshare { .. }
        )
    }

    const fn code(&self) -> u8 {
        match self {
            Self::SessionOpen { .. } => 1,
            Self::SessionRenew { .. } => 2,
            Self::SessionClose => 3,
            Self::TakeNumbers { .. } => 4,
            Self::Recalled => 5,
            Self::Return { .. } => 6,
            Self::Lookup { .. } => 10,
            Self::GetAttr { .. } => 11,
            Self::ReadLink { .. } => 12,
            Self::ReadDir(_) => 13,
            Self::Create(_) => 20,
            Self::SetAttr { .. } => 21,
            Self::Extend(_) => 22,
            Self::Hollow(_) => 28,
            Self::Link { .. } => 23,
            Self::Unlink { of: None, .. } => 24,
            Self::Unlink { of: Some(_), .. } => 27,
            Self::RemoveDir { .. } => 25,
            Self::Rename(_) => 26,
            Self::SetXattr(_) => 30,
            Self::GetXattr { .. } => 31,
            Self::ListXattr { .. } => 32,
            Self::RemoveXattr { .. } => 33,
            Self::Usage => 40,
            Self::UsageAt { .. } => 41,
            Self::GetLock { .. } => 50,
            Self::SetLock { .. } => 51,
            Self::SetQuota { .. } => 60,
            Self::GetQuota { .. } => 61,
            Self::Records(_) => 70,
            Self::RecordsAt { .. } => 71,
            Self::Repair(_) => 72,
            Self::TrashList { .. } => 80,
            Self::Trash(_) => 81,
            Self::Content { .. } => 90,
            Self::WriteInline(_) => 91,
            Self::Reserve(_) => 92,
            Self::Spill(_) => 93,
            Self::GetFile { .. } => 94,
            Self::PutFile(_) => 95,
            Self::Share { .. } => 100,
            Self::Clone(_) => 101,
            Self::Unshare { .. } => 102,
            Self::Shared { .. } => 103,
            Self::Object(_) => 110,
        }
    }

    fn encode(&self, w: &mut Writer) {
        w.u8(self.code());
        match self {
            Self::SessionOpen { name } => w.str8(name),
            Self::SessionRenew { open, closed } => {
                write_inos(w, open);
                write_inos(w, closed);
            }
            Self::SessionClose | Self::Usage | Self::Recalled => {}
            Self::Return { dirs } => write_inos(w, dirs),
            Self::Unlink { parent, name, of } => write_unlink(w, (*parent, name), *of),
            Self::TakeNumbers { count } => w.u32(*count),
            Self::Lookup { parent, name } | Self::RemoveDir { parent, name } => {
                w.u64(parent.0);
                name.encode(w);
            }
            Self::GetAttr { ino }
            | Self::ReadLink { ino }
            | Self::ListXattr { ino }
            | Self::UsageAt { dir: ino }
            | Self::Content { ino }
            | Self::Share { ino }
            | Self::GetQuota { ino } => w.u64(ino.0),
            Self::GetLock { ino, lock } | Self::SetLock { ino, lock } => write_lock(w, *ino, lock),
            Self::SetQuota { dir, limits } => {
                w.u64(dir.0);
                limits.encode(w);
            }
            Self::ReadDir(page) => page.encode(w),
            Self::Create(create) => create.encode(w),
            Self::SetAttr { ino, set } => {
                w.u64(ino.0);
                set.encode(w);
            }
            Self::Extend(extend) => extend.encode(w),
            Self::Hollow(hollow) => hollow.encode(w),
            Self::Link { ino, parent, name } => {
                w.u64(ino.0);
                w.u64(parent.0);
                name.encode(w);
            }
            Self::Rename(rename) => rename.encode(w),
            Self::SetXattr(set) => set.encode(w),
            Self::GetXattr { ino, name } | Self::RemoveXattr { ino, name } => {
                w.u64(ino.0);
                name.encode(w);
            }
            Self::Records(range) => range.encode(w),
            Self::RecordsAt { keys } => write_keys(w, keys),
            Self::Repair(repair) => repair.encode(w),
            Self::TrashList { dir, after, limit } => {
                w.u64(dir.0);
                w.u64(after.0);
                w.u32(*limit);
            }
            Self::Trash(change) => change.encode(w),
            Self::WriteInline(write) => write.encode(w),
            Self::Reserve(reserve) => reserve.encode(w),
            Self::Spill(spill) => spill.encode(w),
            Self::GetFile { path } => write_path(w, path),
            Self::PutFile(put) => put.encode(w),
            Self::Clone(clone) => clone.encode(w),
            Self::Unshare { ino, chunks } => {
                w.u64(ino.0);
                w.u64(*chunks);
            }
            Self::Shared { chunks } => w.u64(*chunks),
            Self::Object(op) => op.encode(w),
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(match r.u8()? {
            1 => Self::SessionOpen { name: r.str8()?.to_owned() },
            2 => Self::SessionRenew { open: read_inos(r)?, closed: read_inos(r)? },
            3 => Self::SessionClose,
            4 => Self::TakeNumbers { count: r.u32()? },
            5 => Self::Recalled,
            6 => Self::Return { dirs: read_inos(r)? },
            10 => Self::Lookup { parent: Ino(r.u64()?), name: Name::decode(r)? },
            11 => Self::GetAttr { ino: Ino(r.u64()?) },
            12 => Self::ReadLink { ino: Ino(r.u64()?) },
            13 => Self::ReadDir(ReadDir::decode(r)?),
            20 => Self::Create(Create::decode(r)?),
            21 => Self::SetAttr { ino: Ino(r.u64()?), set: SetAttr::decode(r)? },
            22 => Self::Extend(Extend::decode(r)?),
            28 => Self::Hollow(Hollow::decode(r)?),
            23 => {
                let (ino, parent) = (Ino(r.u64()?), Ino(r.u64()?));
                Self::Link { ino, parent, name: Name::decode(r)? }
            }
            24 => Self::Unlink { parent: Ino(r.u64()?), name: Name::decode(r)?, of: None },
            27 => {
                let (parent, name) = (Ino(r.u64()?), Name::decode(r)?);
                Self::Unlink { parent, name, of: Some(Ino(r.u64()?)) }
            }
            25 => Self::RemoveDir { parent: Ino(r.u64()?), name: Name::decode(r)? },
            26 => Self::Rename(Rename::decode(r)?),
            30 => Self::SetXattr(Setxattr::decode(r)?),
            31 => Self::GetXattr { ino: Ino(r.u64()?), name: XattrName::decode(r)? },
            32 => Self::ListXattr { ino: Ino(r.u64()?) },
            33 => Self::RemoveXattr { ino: Ino(r.u64()?), name: XattrName::decode(r)? },
            40 => Self::Usage,
            41 => Self::UsageAt { dir: Ino(r.u64()?) },
            50 => Self::GetLock { ino: Ino(r.u64()?), lock: FileLock::decode(r)? },
            51 => Self::SetLock { ino: Ino(r.u64()?), lock: FileLock::decode(r)? },
            60 => Self::SetQuota { dir: Ino(r.u64()?), limits: QuotaLimits::decode(r)? },
            61 => Self::GetQuota { ino: Ino(r.u64()?) },
            70 => Self::Records(RecordRange::decode(r)?),
            71 => Self::RecordsAt { keys: read_keys(r)? },
            72 => Self::Repair(Repair::decode(r)?),
            80 => {
                let (dir, after) = (Ino(r.u64()?), Ino(r.u64()?));
                Self::TrashList { dir, after, limit: r.u32()? }
            }
            81 => Self::Trash(TrashChange::decode(r)?),
            90 => Self::Content { ino: Ino(r.u64()?) },
            91 => Self::WriteInline(WriteInline::decode(r)?),
            92 => Self::Reserve(Reserve::decode(r)?),
            93 => Self::Spill(Spill::decode(r)?),
            94 => Self::GetFile { path: read_path(r)? },
            95 => Self::PutFile(PutFile::decode(r)?),
            100 => Self::Share { ino: Ino(r.u64()?) },
            101 => Self::Clone(CloneFile::decode(r)?),
            102 => Self::Unshare { ino: Ino(r.u64()?), chunks: r.u64()? },
            103 => Self::Shared { chunks: r.u64()? },
            110 => Self::Object(ObjectOp::decode(r)?),
            _ => return Err(WireError::Field("operation of a meta")),
        })
    }
}

impl MetaRequest {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(64 + Attr::BYTES_MIN);
        w.u64(self.session);
        w.u64(self.sequence);
        w.u32(self.hour);
        self.caller.encode(&mut w);
        self.op.encode(&mut w);
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let (session, sequence, hour) = (r.u64()?, r.u64()?, r.u32()?);
        let caller = Caller::decode(&mut r)?;
        let op = MetaOp::decode(&mut r)?;
        r.finish()?;
        Ok(Self { session, sequence, hour, caller, op })
    }
}
