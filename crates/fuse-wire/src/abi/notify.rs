//! Notifications from the server to the kernel.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// POLL.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NotifyPollWakeupOut {
    pub kh: u64,
}

const _: () = assert!(size_of::<NotifyPollWakeupOut>() == 8);

/// `INVAL_INODE`: a length of 0 or less means "to the end", a negative offset "attributes only".
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NotifyInvalInodeOut {
    pub ino: u64,
    pub off: i64,
    pub len: i64,
}

const _: () = assert!(size_of::<NotifyInvalInodeOut>() == 24);

/// `INVAL_ENTRY`: the name follows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NotifyInvalEntryOut {
    pub parent: u64,
    pub namelen: u32,
    pub flags: u32,
}

const _: () = assert!(size_of::<NotifyInvalEntryOut>() == 16);

/// DELETE: the name follows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NotifyDeleteOut {
    pub parent: u64,
    pub child: u64,
    pub namelen: u32,
    pub padding: u32,
}

const _: () = assert!(size_of::<NotifyDeleteOut>() == 24);

/// STORE: the data follows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NotifyStoreOut {
    pub nodeid: u64,
    pub offset: u64,
    pub size: u32,
    pub padding: u32,
}

const _: () = assert!(size_of::<NotifyStoreOut>() == 24);

/// RETRIEVE.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NotifyRetrieveOut {
    pub notify_unique: u64,
    pub nodeid: u64,
    pub offset: u64,
    pub size: u32,
    pub padding: u32,
}

const _: () = assert!(size_of::<NotifyRetrieveOut>() == 32);

/// PRUNE: `count` inodes follow.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct NotifyPruneOut {
    pub count: u32,
    pub padding: u32,
    pub spare: u64,
}

const _: () = assert!(size_of::<NotifyPruneOut>() == 16);

/// The flag of [`NotifyInvalEntryOut`] to look the name up again without detaching mounts and open
/// files below it.
pub(crate) const EXPIRE_ONLY: u32 = 1;

/// `enum fuse_notify_code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum NotifyCode {
    Poll = 1,
    InvalInode = 2,
    InvalEntry = 3,
    Store = 4,
    Retrieve = 5,
    Delete = 6,
    Resend = 7,
    IncEpoch = 8,
    Prune = 9,
}
