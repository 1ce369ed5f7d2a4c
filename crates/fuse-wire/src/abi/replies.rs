//! Structures that the server sends to the kernel.

use std::time::Duration;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::flags::{AttrFlags, InitFlags, IoctlFlags, OpenFlags};

/// The header of every reply and notification. `error` is 0, a negative errno or a notify code.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct OutHeader {
    pub len: u32,
    pub error: i32,
    pub unique: u64,
}

const _: () = assert!(size_of::<OutHeader>() == 16);

/// Attributes of an inode. Seconds before 1970 are in two's complement.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Attr {
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: u64,
    pub mtime: u64,
    pub ctime: u64,
    pub atimensec: u32,
    pub mtimensec: u32,
    pub ctimensec: u32,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub blksize: u32,
    pub flags: AttrFlags,
}

const _: () = assert!(size_of::<Attr>() == 88);

/// The reply to LOOKUP and to operations that create a name. `nodeid` 0 means "no such name",
/// cached for `entry_valid`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct EntryOut {
    pub nodeid: u64,
    pub generation: u64,
    pub entry_valid: u64,
    pub attr_valid: u64,
    pub entry_valid_nsec: u32,
    pub attr_valid_nsec: u32,
    pub attr: Attr,
}

const _: () = assert!(size_of::<EntryOut>() == 128);

/// GETATTR and SETATTR.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AttrOut {
    pub attr_valid: u64,
    pub attr_valid_nsec: u32,
    pub dummy: u32,
    pub attr: Attr,
}

const _: () = assert!(size_of::<AttrOut>() == 104);

/// A timestamp of STATX.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct StatxTime {
    pub tv_sec: i64,
    pub tv_nsec: u32,
    pub reserved: i32,
}

const _: () = assert!(size_of::<StatxTime>() == 16);

/// `struct statx` of `statx(2)`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Statx {
    pub mask: u32,
    pub blksize: u32,
    pub attributes: u64,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub mode: u16,
    pub spare0: u16,
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub attributes_mask: u64,
    pub atime: StatxTime,
    pub btime: StatxTime,
    pub ctime: StatxTime,
    pub mtime: StatxTime,
    pub rdev_major: u32,
    pub rdev_minor: u32,
    pub dev_major: u32,
    pub dev_minor: u32,
    pub spare2: [u64; 14],
}

const _: () = assert!(size_of::<Statx>() == 256);

/// STATX.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct StatxOut {
    pub attr_valid: u64,
    pub attr_valid_nsec: u32,
    pub flags: u32,
    pub spare: [u64; 2],
    pub stat: Statx,
}

const _: () = assert!(size_of::<StatxOut>() == 288);

/// OPEN, OPENDIR and the second half of CREATE.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct OpenOut {
    pub fh: u64,
    pub open_flags: OpenFlags,
    pub backing_id: i32,
}

const _: () = assert!(size_of::<OpenOut>() == 16);

/// WRITE and `COPY_FILE_RANGE`: the number of bytes written.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct WriteOut {
    pub size: u32,
    pub padding: u32,
}

const _: () = assert!(size_of::<WriteOut>() == 8);

/// Numbers of `statfs(2)`; blocks have `frsize` bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Kstatfs {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub namelen: u32,
    pub frsize: u32,
    pub padding: u32,
    pub spare: [u32; 6],
}

const _: () = assert!(size_of::<Kstatfs>() == 80);

/// STATFS.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct StatfsOut {
    pub st: Kstatfs,
}

const _: () = assert!(size_of::<StatfsOut>() == 80);

/// GETXATTR and LISTXATTR of size 0: the size in bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct GetxattrOut {
    pub size: u32,
    pub padding: u32,
}

const _: () = assert!(size_of::<GetxattrOut>() == 8);

/// A lock: both ends are inclusive, `kind` is `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct FileLock {
    pub start: u64,
    pub end: u64,
    pub kind: u32,
    pub pid: u32,
}

const _: () = assert!(size_of::<FileLock>() == 24);

/// GETLK: the conflicting lock, or `F_UNLCK`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LkOut {
    pub lk: FileLock,
}

const _: () = assert!(size_of::<LkOut>() == 24);

/// INIT: the server's choice.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct InitOut {
    pub major: u32,
    pub minor: u32,
    pub max_readahead: u32,
    pub flags: u32,
    pub max_background: u16,
    pub congestion_threshold: u16,
    pub max_write: u32,
    pub time_gran: u32,
    pub max_pages: u16,
    pub map_alignment: u16,
    pub flags2: u32,
    pub max_stack_depth: u32,
    pub request_timeout: u16,
    pub unused: [u16; 11],
}

const _: () = assert!(size_of::<InitOut>() == 64);

/// BMAP.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct BmapOut {
    pub block: u64,
}

const _: () = assert!(size_of::<BmapOut>() == 8);

/// A piece of the caller's memory that an ioctl with `RETRY` asks for.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct IoctlIovec {
    pub base: u64,
    pub len: u64,
}

const _: () = assert!(size_of::<IoctlIovec>() == 16);

/// IOCTL: data or [`IoctlIovec`]s follow.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct IoctlOut {
    pub result: i32,
    pub flags: IoctlFlags,
    pub in_iovs: u32,
    pub out_iovs: u32,
}

const _: () = assert!(size_of::<IoctlOut>() == 16);

/// POLL.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PollOut {
    pub revents: u32,
    pub padding: u32,
}

const _: () = assert!(size_of::<PollOut>() == 8);

/// LSEEK.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LseekOut {
    pub offset: u64,
}

const _: () = assert!(size_of::<LseekOut>() == 8);

/// `COPY_FILE_RANGE_64`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CopyFileRangeOut {
    pub bytes_copied: u64,
}

const _: () = assert!(size_of::<CopyFileRangeOut>() == 8);

/// The header of each name of a READDIR; names are padded to 8 bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Dirent {
    pub ino: u64,
    pub off: u64,
    pub namelen: u32,
    pub kind: u32,
}

const _: () = assert!(size_of::<Dirent>() == 24);

impl EntryOut {
    /// An inode found under a name.
    ///
    /// The kernel trusts the name for `entry_valid` and the attributes for `attr_valid`. It holds
    /// one more reference until a FORGET.
    #[must_use]
    pub fn new(attr: Attr, generation: u64, entry_valid: Duration, attr_valid: Duration) -> Self {
        Self {
            nodeid: attr.ino,
            generation,
            entry_valid: entry_valid.as_secs(),
            attr_valid: attr_valid.as_secs(),
            entry_valid_nsec: entry_valid.subsec_nanos(),
            attr_valid_nsec: attr_valid.subsec_nanos(),
            attr,
        }
    }

    /// "No such name", which the kernel caches for `valid`. It does not cache an `ENOENT`.
    #[must_use]
    pub fn negative(valid: Duration) -> Self {
        Self {
            entry_valid: valid.as_secs(),
            entry_valid_nsec: valid.subsec_nanos(),
            ..Self::default()
        }
    }
}

impl AttrOut {
    /// Attributes that the kernel trusts for `valid`.
    #[must_use]
    pub fn new(attr: Attr, valid: Duration) -> Self {
        Self { attr_valid: valid.as_secs(), attr_valid_nsec: valid.subsec_nanos(), dummy: 0, attr }
    }
}

impl StatxOut {
    /// Attributes that the kernel trusts for `valid`.
    #[must_use]
    pub fn new(stat: Statx, valid: Duration) -> Self {
        Self {
            attr_valid: valid.as_secs(),
            attr_valid_nsec: valid.subsec_nanos(),
            stat,
            ..Self::default()
        }
    }
}

impl OpenOut {
    /// An open file with handle `fh`, which the kernel passes with later requests.
    #[must_use]
    pub fn new(fh: u64, open_flags: OpenFlags) -> Self {
        Self { fh, open_flags, backing_id: 0 }
    }

    /// An open file that the kernel reads and writes by itself, through the file that
    /// [`Device::backing_open`](crate::Device::backing_open) named `backing_id`.
    #[must_use]
    pub fn passthrough(fh: u64, open_flags: OpenFlags, backing_id: i32) -> Self {
        Self { fh, open_flags: open_flags.with(OpenFlags::PASSTHROUGH), backing_id }
    }
}

impl InitOut {
    /// All flags that the server takes.
    #[must_use]
    pub fn taken(&self) -> InitFlags {
        InitFlags::from_bits(u64::from(self.flags) | u64::from(self.flags2) << 32)
    }
}
