//! What a client asks of a meta: the meta of a `Verb::Meta` request.

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

/// On whose behalf an operation is done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group of new files.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Somebody has checked permissions already: the kernel of a mount with `default_permissions`. A
    /// mount is trusted, as an NFS client is: it could also claim to be root.
    pub checked: bool,
}

impl Caller {
    /// A caller whose permissions a kernel has checked.
    #[must_use]
    pub const fn checked(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Vec::new(), checked: true }
    }

    /// Whether the group is one of the caller's.
    #[must_use]
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether the caller has all of `wanted` on an inode, as POSIX says without access control lists:
    /// 4 to read, 2 to write, 1 to run or to search. A client of no kernel asks that of itself when it
    /// opens a file, since bytes are read and written past metas.
    ///
    /// # Errors
    /// [`MetaError::Access`].
    pub fn access(&self, attr: &Attr, wanted: u16) -> Result<(), MetaError> {
        if self.checked {
            return Ok(());
        }
        if self.uid == 0 {
            // Root may do all, but run only what somebody may run.
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

/// Bytes were written to chunks: the file reaches at least so far. A file in the store goes to chunks by that
/// if it is empty; otherwise nothing is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extend {
    /// Which file.
    pub ino: Ino,
    /// Name of the chunks; nothing is changed when those of the file have another one: it was cut to nothing,
    /// or its bytes lie in the store.
    pub data: u64,
    /// The end of the last byte written.
    pub size: u64,
    /// When it was written.
    pub mtime: Timestamp,
    /// Bytes that were written without a gap.
    pub filled: Filled,
}

/// A client begins to take bytes out of a file's chunks, or has done so. A reader that misses bytes
/// learns why, and no meta believes them to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hollow {
    /// Which file.
    pub ino: Ino,
    /// The first byte.
    pub from: u64,
    /// Whether that has been done.
    pub ended: bool,
}

/// A name is to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename {
    /// From which directory.
    pub parent: Ino,
    /// Which name.
    pub name: Name,
    /// To which directory.
    pub new_parent: Ino,
    /// Which name.
    pub new_name: Name,
    /// Fail when the new name is there (`RENAME_NOREPLACE`).
    pub no_replace: bool,
    /// Both names change places (`RENAME_EXCHANGE`).
    pub exchange: bool,
    /// The old name stays, as that of a character device 0:0: for overlays it says that there is nothing
    /// (`RENAME_WHITEOUT`).
    pub whiteout: bool,
}

/// A page of a directory is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadDir {
    /// Which one.
    pub dir: Ino,
    /// The cookie of the last entry that is known; 0 for the beginning.
    pub after: u64,
    /// Entries at most.
    pub limit: u32,
    /// With the attributes of each.
    pub attrs: bool,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetaOp {
    /// A mount comes: it gets a session. The text says where it is, for operators.
    SessionOpen {
        /// Host and mount point.
        name: String,
    },
    /// The session lives, and has these of the inodes it was asked about open.
    SessionRenew {
        /// Still open.
        open: Vec<Ino>,
        /// Asked about, and not open.
        closed: Vec<Ino>,
    },
    /// The mount goes.
    SessionClose,
    /// Numbers for inodes that a mount makes by itself. Asked for twice, they are others.
    TakeNumbers {
        /// How many, [`NUMBERS_MAX`](super::NUMBERS_MAX) at most.
        count: u32,
    },
    /// Which directories is the session asked to return? It lives, and holds the others that it was given in
    /// the tenure of the answer.
    Recalled,
    /// The session holds these no longer, whether it did or not; [`RETURNS_MAX`](super::RETURNS_MAX) at most.
    Return {
        /// Directories.
        dirs: Vec<Ino>,
    },
    /// The inode of a name.
    Lookup {
        /// In which directory.
        parent: Ino,
        /// Which name.
        name: Name,
    },
    /// An inode's attributes.
    GetAttr {
        /// Which one.
        ino: Ino,
    },
    /// A symbolic link's target.
    ReadLink {
        /// Which one.
        ino: Ino,
    },
    /// A page of a directory.
    ReadDir(ReadDir),
    /// A new name and inode.
    Create(Create),
    /// Other attributes.
    SetAttr {
        /// Of which inode.
        ino: Ino,
        /// Which ones.
        set: SetAttr,
    },
    /// A longer file.
    Extend(Extend),
    /// Bytes go from chunks; nothing is changed of a file whose bytes lie in the store.
    Hollow(Hollow),
    /// One more name for an inode.
    Link {
        /// Which inode.
        ino: Ino,
        /// In which directory.
        parent: Ino,
        /// Which name.
        name: Name,
    },
    /// One name less, of what is no directory.
    Unlink {
        /// In which directory.
        parent: Ino,
        /// Which name.
        name: Name,
        /// Only if it leads there; otherwise there is no such name.
        of: Option<Ino>,
    },
    /// An empty directory less.
    RemoveDir {
        /// In which directory.
        parent: Ino,
        /// Which name.
        name: Name,
    },
    /// Another name.
    Rename(Rename),
    /// An extended attribute.
    SetXattr(Setxattr),
    /// The value of an extended attribute.
    GetXattr {
        /// Of which inode.
        ino: Ino,
        /// Which one.
        name: XattrName,
    },
    /// The names of the extended attributes.
    ListXattr {
        /// Of which inode.
        ino: Ino,
    },
    /// An extended attribute less.
    RemoveXattr {
        /// Of which inode.
        ino: Ino,
        /// Which one.
        name: XattrName,
    },
    /// How much there is, for `statfs`.
    Usage,
    /// How much there is at a directory, for `statfs` of a mount of it: of its quota, if it has one.
    UsageAt {
        /// Which one.
        dir: Ino,
    },
    /// Which lock is in the way of this one?
    GetLock {
        /// On which inode.
        ino: Ino,
        /// The lock that is wanted.
        lock: FileLock,
    },
    /// A lock, another one in its place, or one less. It is done or refused, never waited for: who
    /// wants to wait asks again, with a new sequence.
    SetLock {
        /// On which inode.
        ino: Ino,
        /// The lock; its owner is one of this session.
        lock: FileLock,
    },
    /// Other limits of a directory; an empty one without a quota gets one.
    SetQuota {
        /// Which one.
        dir: Ino,
        /// Its limits.
        limits: QuotaLimits,
    },
    /// The quota that an inode counts for.
    GetQuota {
        /// Which one.
        ino: Ino,
    },
    /// A page of records as they lie in the store, for a check.
    Records(RecordRange),
    /// Records at one moment, for a check.
    RecordsAt {
        /// Their keys.
        keys: Vec<Vec<u8>>,
    },
    /// Something that a check found is put right.
    Repair(Repair),
    /// A page of what was removed from a directory and is kept.
    TrashList {
        /// From which directory.
        dir: Ino,
        /// The last inode that is known; 0 for the beginning.
        after: Ino,
        /// Entries at most.
        limit: u32,
    },
    /// A change of what is kept.
    Trash(TrashChange),
    /// An inode's attributes, and its bytes if they lie in the store.
    Content {
        /// Which one.
        ino: Ino,
    },
    /// Bytes for the store; nothing is changed when those of the file lie in chunks, or are others.
    WriteInline(WriteInline),
    /// A name for chunks that the bytes of a file are to go to from the store.
    Reserve(Reserve),
    /// The bytes of a file are in such chunks now; nothing is changed when it is not as it was.
    Spill(Spill),
    /// As [`Self::Content`], of the file at the end of these names from the root on.
    GetFile {
        /// Which one.
        path: Vec<Name>,
    },
    /// A whole file.
    PutFile(PutFile),
    /// The record of a file's chunks is made, before they are sealed; nothing of bytes in the store.
    Share {
        /// Of which file.
        ino: Ino,
    },
    /// A file with the bytes of another one, which is as its client says; nothing is changed otherwise.
    Clone(CloneFile),
    /// A file gets chunks of its own in front of these, which are sealed; nothing is changed when it has others.
    Unshare {
        /// Which file.
        ino: Ino,
        /// The name of its chunks.
        chunks: u64,
    },
    /// What lies behind chunks.
    Shared {
        /// Their name.
        chunks: u64,
    },
    /// Something of objects, for a gateway.
    Object(ObjectOp),
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaRequest {
    /// The session it is made in; 0 before there is one.
    pub session: u64,
    /// Names what changes something for ever, within the session: a repetition has the number of the
    /// first attempt and is not done again.
    pub sequence: u64,
    /// Hours since 1970 at the first attempt: answers are kept for a day.
    pub hour: u32,
    /// On whose behalf.
    pub caller: Caller,
    /// What.
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
        // What is exchanged is neither new nor leaves its name.
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

    /// Whether it changes something, and so must be done once however often it is asked for.
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
    /// Encodes the request's meta.
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

    /// Decodes the request's meta.
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
