//! Structures that the kernel sends.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::flags::{
    FallocateMode, FsyncFlags, GetattrFlags, InitFlags, IoctlFlags, LockFlags, OpenInFlags,
    PollFlags, ReadFlags, ReleaseFlags, RenameFlags, SetattrValid, SetxattrFlags, WriteFlags,
};
use super::replies::FileLock;

/// The header of every request. `total_extlen` is the size of the extensions at the request's end,
/// in units of 8 bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct InHeader {
    pub len: u32,
    pub opcode: u32,
    pub unique: u64,
    pub nodeid: u64,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
    pub total_extlen: u16,
    pub padding: u16,
}

const _: () = assert!(size_of::<InHeader>() == 40);

/// FORGET: the kernel drops `nlookup` references.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ForgetIn {
    pub nlookup: u64,
}

const _: () = assert!(size_of::<ForgetIn>() == 8);

/// One inode of a `BATCH_FORGET`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ForgetOne {
    pub nodeid: u64,
    pub nlookup: u64,
}

const _: () = assert!(size_of::<ForgetOne>() == 16);

/// `BATCH_FORGET`: `count` structures [`ForgetOne`] follow.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct BatchForgetIn {
    pub count: u32,
    pub dummy: u32,
}

const _: () = assert!(size_of::<BatchForgetIn>() == 8);

/// GETATTR.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct GetattrIn {
    pub getattr_flags: GetattrFlags,
    pub dummy: u32,
    pub fh: u64,
}

const _: () = assert!(size_of::<GetattrIn>() == 16);

/// STATX.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct StatxIn {
    pub getattr_flags: GetattrFlags,
    pub reserved: u32,
    pub fh: u64,
    pub sx_flags: u32,
    pub sx_mask: u32,
}

const _: () = assert!(size_of::<StatxIn>() == 24);

/// MKNOD: the name follows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct MknodIn {
    pub mode: u32,
    pub rdev: u32,
    pub umask: u32,
    pub padding: u32,
}

const _: () = assert!(size_of::<MknodIn>() == 16);

/// MKDIR: the name follows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct MkdirIn {
    pub mode: u32,
    pub umask: u32,
}

const _: () = assert!(size_of::<MkdirIn>() == 8);

/// RENAME: old and new name follow.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RenameIn {
    pub newdir: u64,
}

const _: () = assert!(size_of::<RenameIn>() == 8);

/// RENAME2: old and new name follow.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Rename2In {
    pub newdir: u64,
    pub flags: RenameFlags,
    pub padding: u32,
}

const _: () = assert!(size_of::<Rename2In>() == 16);

/// LINK: the new name follows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LinkIn {
    pub oldnodeid: u64,
}

const _: () = assert!(size_of::<LinkIn>() == 8);

/// SETATTR: only the fields named in `valid` are set.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SetattrIn {
    pub valid: SetattrValid,
    pub padding: u32,
    pub fh: u64,
    pub size: u64,
    pub lock_owner: u64,
    pub atime: u64,
    pub mtime: u64,
    pub ctime: u64,
    pub atimensec: u32,
    pub mtimensec: u32,
    pub ctimensec: u32,
    pub mode: u32,
    pub unused4: u32,
    pub uid: u32,
    pub gid: u32,
    pub unused5: u32,
}

const _: () = assert!(size_of::<SetattrIn>() == 88);

/// OPEN and OPENDIR: `flags` are the flags of `open(2)`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct OpenIn {
    pub flags: u32,
    pub open_flags: OpenInFlags,
}

const _: () = assert!(size_of::<OpenIn>() == 8);

/// CREATE and TMPFILE: the name follows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CreateIn {
    pub flags: u32,
    pub mode: u32,
    pub umask: u32,
    pub open_flags: OpenInFlags,
}

const _: () = assert!(size_of::<CreateIn>() == 16);

/// RELEASE and RELEASEDIR.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ReleaseIn {
    pub fh: u64,
    pub flags: u32,
    pub release_flags: ReleaseFlags,
    pub lock_owner: u64,
}

const _: () = assert!(size_of::<ReleaseIn>() == 24);

/// FLUSH: once per `close(2)` of a descriptor.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct FlushIn {
    pub fh: u64,
    pub unused: u32,
    pub padding: u32,
    pub lock_owner: u64,
}

const _: () = assert!(size_of::<FlushIn>() == 24);

/// READ, READDIR and READDIRPLUS: `flags` are the flags of the open file.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ReadIn {
    pub fh: u64,
    pub offset: u64,
    pub size: u32,
    pub read_flags: ReadFlags,
    pub lock_owner: u64,
    pub flags: u32,
    pub padding: u32,
}

const _: () = assert!(size_of::<ReadIn>() == 40);

/// WRITE: `size` bytes follow; `flags` are the flags of the open file.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct WriteIn {
    pub fh: u64,
    pub offset: u64,
    pub size: u32,
    pub write_flags: WriteFlags,
    pub lock_owner: u64,
    pub flags: u32,
    pub padding: u32,
}

const _: () = assert!(size_of::<WriteIn>() == 40);

/// FSYNC and FSYNCDIR.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct FsyncIn {
    pub fh: u64,
    pub fsync_flags: FsyncFlags,
    pub padding: u32,
}

const _: () = assert!(size_of::<FsyncIn>() == 16);

/// SETXATTR: name and `size` bytes follow. The second half is present only with `SETXATTR_EXT`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SetxattrIn {
    pub size: u32,
    pub flags: u32,
    pub setxattr_flags: SetxattrFlags,
    pub padding: u32,
}

const _: () = assert!(size_of::<SetxattrIn>() == 16);

/// GETXATTR and LISTXATTR: size 0 asks for the length only.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct GetxattrIn {
    pub size: u32,
    pub padding: u32,
}

const _: () = assert!(size_of::<GetxattrIn>() == 8);

/// GETLK, SETLK and SETLKW.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LkIn {
    pub fh: u64,
    pub owner: u64,
    pub lk: FileLock,
    pub lk_flags: LockFlags,
    pub padding: u32,
}

const _: () = assert!(size_of::<LkIn>() == 48);

/// ACCESS.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AccessIn {
    pub mask: u32,
    pub padding: u32,
}

const _: () = assert!(size_of::<AccessIn>() == 8);

/// INIT: the kernel's offer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
    pub flags2: u32,
    pub unused: [u32; 11],
}

const _: () = assert!(size_of::<InitIn>() == 64);

/// INTERRUPT: cancels the request `unique`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct InterruptIn {
    pub unique: u64,
}

const _: () = assert!(size_of::<InterruptIn>() == 8);

/// BMAP.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct BmapIn {
    pub block: u64,
    pub blocksize: u32,
    pub padding: u32,
}

const _: () = assert!(size_of::<BmapIn>() == 16);

/// IOCTL: `in_size` bytes follow.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct IoctlIn {
    pub fh: u64,
    pub flags: IoctlFlags,
    pub cmd: u32,
    pub arg: u64,
    pub in_size: u32,
    pub out_size: u32,
}

const _: () = assert!(size_of::<IoctlIn>() == 32);

/// POLL.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PollIn {
    pub fh: u64,
    pub kh: u64,
    pub flags: PollFlags,
    pub events: u32,
}

const _: () = assert!(size_of::<PollIn>() == 24);

/// FALLOCATE.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct FallocateIn {
    pub fh: u64,
    pub offset: u64,
    pub length: u64,
    pub mode: FallocateMode,
    pub padding: u32,
}

const _: () = assert!(size_of::<FallocateIn>() == 32);

/// `NOTIFY_REPLY`: `size` bytes of the page cache follow, as requested by a RETRIEVE.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NotifyRetrieveIn {
    pub dummy1: u64,
    pub offset: u64,
    pub size: u32,
    pub dummy2: u32,
    pub dummy3: u64,
    pub dummy4: u64,
}

const _: () = assert!(size_of::<NotifyRetrieveIn>() == 40);

/// LSEEK: `whence` is `SEEK_DATA` or `SEEK_HOLE`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LseekIn {
    pub fh: u64,
    pub offset: u64,
    pub whence: u32,
    pub padding: u32,
}

const _: () = assert!(size_of::<LseekIn>() == 24);

/// `COPY_FILE_RANGE` and `COPY_FILE_RANGE_64`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CopyFileRangeIn {
    pub fh_in: u64,
    pub off_in: u64,
    pub nodeid_out: u64,
    pub fh_out: u64,
    pub off_out: u64,
    pub len: u64,
    pub flags: u64,
}

const _: () = assert!(size_of::<CopyFileRangeIn>() == 56);

/// SETUPMAPPING, of virtiofs.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SetupMappingIn {
    pub fh: u64,
    pub foffset: u64,
    pub len: u64,
    pub flags: u64,
    pub moffset: u64,
}

const _: () = assert!(size_of::<SetupMappingIn>() == 40);

/// REMOVEMAPPING, of virtiofs: `count` structures [`RemoveMappingOne`] follow.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RemoveMappingIn {
    pub count: u32,
}

const _: () = assert!(size_of::<RemoveMappingIn>() == 4);

/// One mapping of a REMOVEMAPPING.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RemoveMappingOne {
    pub moffset: u64,
    pub len: u64,
}

const _: () = assert!(size_of::<RemoveMappingOne>() == 16);

/// SYNCFS.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SyncfsIn {
    pub padding: u64,
}

const _: () = assert!(size_of::<SyncfsIn>() == 8);

/// The header of each extension; `size` includes this header.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ExtHeader {
    pub size: u32,
    pub kind: u32,
}

const _: () = assert!(size_of::<ExtHeader>() == 8);

/// A time that a SETATTR sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeToSet {
    /// The server's current time.
    Now,
    /// A time relative to 1970; it may be negative.
    At { seconds: i64, nanos: u32 },
}

impl InitIn {
    /// All flags that the kernel offers.
    ///
    /// The second word is valid only when a flag of the first announces it.
    #[must_use]
    pub fn offered(&self) -> InitFlags {
        let low = InitFlags::from_bits(u64::from(self.flags));
        if low.contains(InitFlags::INIT_EXT) {
            return low.with(InitFlags::from_bits(u64::from(self.flags2) << 32));
        }
        low
    }
}

impl GetattrIn {
    /// The open file that the request refers to, if any.
    #[must_use]
    pub fn handle(&self) -> Option<u64> {
        self.getattr_flags.contains(GetattrFlags::FH).then_some(self.fh)
    }
}

impl StatxIn {
    /// The open file that the request refers to, if any.
    #[must_use]
    pub fn handle(&self) -> Option<u64> {
        self.getattr_flags.contains(GetattrFlags::FH).then_some(self.fh)
    }
}

impl SetattrIn {
    /// `value` when `flag` is set.
    fn when<T>(&self, flag: SetattrValid, value: T) -> Option<T> {
        self.valid.contains(flag).then_some(value)
    }

    /// The new mode, without the file type.
    #[must_use]
    pub fn new_mode(&self) -> Option<u32> {
        self.when(SetattrValid::MODE, self.mode & 0o7777)
    }

    /// The new owner.
    #[must_use]
    pub fn new_uid(&self) -> Option<u32> {
        self.when(SetattrValid::UID, self.uid)
    }

    /// The new group.
    #[must_use]
    pub fn new_gid(&self) -> Option<u32> {
        self.when(SetattrValid::GID, self.gid)
    }

    /// The new length in bytes.
    #[must_use]
    pub fn new_size(&self) -> Option<u64> {
        self.when(SetattrValid::SIZE, self.size)
    }

    /// The open file through which the attributes are set, if any.
    #[must_use]
    pub fn handle(&self) -> Option<u64> {
        self.when(SetattrValid::FH, self.fh)
    }

    /// The new access time.
    #[must_use]
    pub fn new_atime(&self) -> Option<TimeToSet> {
        let at = at(self.atime, self.atimensec);
        let time = if self.valid.contains(SetattrValid::ATIME_NOW) { TimeToSet::Now } else { at };
        self.when(SetattrValid::ATIME, time)
    }

    /// The new modification time of the content.
    #[must_use]
    pub fn new_mtime(&self) -> Option<TimeToSet> {
        let at = at(self.mtime, self.mtimensec);
        let time = if self.valid.contains(SetattrValid::MTIME_NOW) { TimeToSet::Now } else { at };
        self.when(SetattrValid::MTIME, time)
    }

    /// The new change time of the inode; a kernel with a write-back cache sets it.
    #[must_use]
    pub fn new_ctime(&self) -> Option<TimeToSet> {
        self.when(SetattrValid::CTIME, at(self.ctime, self.ctimensec))
    }
}

/// Converts the wire's unsigned seconds back: the kernel casts a signed time to them.
fn at(seconds: u64, nanos: u32) -> TimeToSet {
    TimeToSet::At { seconds: seconds.cast_signed(), nanos }
}
