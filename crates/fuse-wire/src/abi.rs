//! Structures and constants of the kernel's interface, ABI 7.45 (Linux 6.18).
//!
//! They follow `include/uapi/linux/fuse.h` of the kernel: a `fuse_setattr_in` is a [`SetattrIn`]
//! here, with the same fields in the same order. Numbers are in the byte order of the host, because
//! both sides are the same host. An assertion fixes each size, so a forgotten field does not
//! compile.

#![allow(missing_docs, reason = "fields are named as in linux/fuse.h, which tells what they mean")]

mod flags;
mod notify;
mod opcode;
mod replies;
mod requests;

pub use flags::{
    AttrFlags, ExtType, FallocateMode, FsyncFlags, GetattrFlags, InitFlags, IoctlFlags, LockFlags,
    OpenFlags, OpenInFlags, PollFlags, ReadFlags, ReleaseFlags, RenameFlags, SetattrValid,
    SetxattrFlags, WriteFlags,
};
pub(crate) use notify::EXPIRE_ONLY;
pub use notify::{
    NotifyCode, NotifyDeleteOut, NotifyInvalEntryOut, NotifyInvalInodeOut, NotifyPollWakeupOut,
    NotifyPruneOut, NotifyRetrieveOut, NotifyStoreOut,
};
pub use opcode::Opcode;
pub use replies::{
    Attr, AttrOut, BmapOut, CopyFileRangeOut, Dirent, EntryOut, FileLock, GetxattrOut, InitOut,
    IoctlIovec, IoctlOut, Kstatfs, LkOut, LseekOut, OpenOut, OutHeader, PollOut, StatfsOut, Statx,
    StatxOut, StatxTime, WriteOut,
};
pub use requests::{
    AccessIn, BatchForgetIn, BmapIn, CopyFileRangeIn, CreateIn, ExtHeader, FallocateIn, FlushIn,
    ForgetIn, ForgetOne, FsyncIn, GetattrIn, GetxattrIn, InHeader, InitIn, InterruptIn, IoctlIn,
    LinkIn, LkIn, LseekIn, MkdirIn, MknodIn, NotifyRetrieveIn, OpenIn, PollIn, ReadIn, ReleaseIn,
    RemoveMappingIn, RemoveMappingOne, Rename2In, RenameIn, SetattrIn, SetupMappingIn, SetxattrIn,
    StatxIn, SyncfsIn, TimeToSet, WriteIn,
};

/// The only supported major version.
pub const KERNEL_VERSION: u32 = 7;
/// The newest minor version that this crate knows: Linux 6.18.
pub const KERNEL_MINOR: u32 = 45;
/// The oldest supported minor version: Linux 5.5. Older kernels lack features that this crate
/// needs.
pub const KERNEL_MINOR_MIN: u32 = 31;
/// The inode of a mount's root directory.
pub const ROOT_ID: u64 = 1;
/// The bit of a request's `unique` that marks a resent request; the reply carries it too.
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// The value of `uid` and `gid` when the caller's id has no mapping in the file system's idmap.
pub const INVALID_UIDGID: u32 = u32::MAX;
/// The smallest buffer in bytes that the kernel accepts for reading a request.
pub const MIN_READ_BUFFER: usize = 8192;
/// The unit of `max_pages`, in bytes.
///
/// On kernels with larger pages `max_pages` allows more bytes than needed.
pub const PAGE_BYTES: u32 = 4096;
/// Pages of one request when the kernel does not offer [`InitFlags::MAX_PAGES`].
pub const DEFAULT_MAX_PAGES: u32 = 32;
/// The longest name in a notification, in bytes.
pub const NAME_MAX: usize = 1024;
/// Size in bytes of [`SetxattrIn`] when [`InitFlags::SETXATTR_EXT`] was not granted.
pub const COMPAT_SETXATTR_IN_SIZE: usize = 8;

/// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, u32)`.
pub const DEV_IOC_CLONE: u32 = 0x8004_e500;
/// `FUSE_DEV_IOC_BACKING_OPEN`: `_IOW(229, 1, struct fuse_backing_map)`.
pub const DEV_IOC_BACKING_OPEN: u32 = 0x4010_e501;
/// `FUSE_DEV_IOC_BACKING_CLOSE`: `_IOW(229, 2, u32)`.
pub const DEV_IOC_BACKING_CLOSE: u32 = 0x4004_e502;

/// `struct fuse_backing_map`: a file that the kernel reads and writes by itself.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct BackingMap {
    pub fd: i32,
    pub flags: u32,
    pub padding: u64,
}

const _: () = assert!(size_of::<BackingMap>() == 16);
