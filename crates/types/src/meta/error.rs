//! Errors of operations on the namespace, named as in POSIX.

use crate::wire::WireError;

macro_rules! errors {
    ($($(#[$doc:meta])* $variant:ident = $errno:literal, $text:literal;)*) => {
        /// Why an operation failed; it changed nothing. The value is Linux' errno.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        #[repr(u8)]
        pub enum MetaError { $($(#[$doc])* #[error($text)] $variant = $errno,)* }

        impl MetaError {
            /// Every error.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];
        }
    };
}

errors! {
    /// The caller may not do that to an inode of another user.
    NotPermitted = 1, "operation not permitted";
    /// The name or inode does not exist.
    NotFound = 2, "no such file or directory";
    /// The volume's records cannot be read.
    Io = 5, "input/output error: see the log of the server";
    /// The server cannot do it now; try again.
    Again = 11, "try again";
    /// The mode does not allow it.
    Access = 13, "permission denied";
    /// Locked, or part of something else.
    Busy = 16, "device or resource busy";
    /// The name is taken.
    Exists = 17, "file exists";
    /// The names belong to different quotas; a copy is possible.
    CrossDevice = 18, "invalid cross-device link";
    /// A directory is needed.
    NotDirectory = 20, "not a directory";
    /// The operation does not work on a directory.
    IsDirectory = 21, "is a directory";
    /// An argument makes no sense.
    Invalid = 22, "invalid argument";
    /// The file would be longer than the longest file.
    TooLarge = 27, "file too large";
    /// No space is left.
    NoSpace = 28, "no space left on device";
    /// The volume is mounted read-only.
    ReadOnly = 30, "read-only file system";
    /// Too many names for one inode.
    TooManyLinks = 31, "too many links";
    /// A value is larger than the space the caller has for it.
    Range = 34, "result too large";
    /// A wait would never end.
    Deadlock = 35, "resource deadlock avoided";
    /// The name has more than 255 bytes.
    NameTooLong = 36, "file name too long";
    /// No locks are left.
    NoLocks = 37, "no locks available";
    /// The directory has entries.
    NotEmpty = 39, "directory not empty";
    /// Too many symbolic links in the path.
    Loop = 40, "too many levels of symbolic links";
    /// The attribute does not exist.
    NoData = 61, "no data available";
    /// This build or volume does not do that.
    NotSupported = 95, "operation not supported";
    /// The inode is gone, or the session has ended.
    Stale = 116, "stale file handle";
    /// The operation would exceed a quota.
    Quota = 122, "disk quota exceeded";
}

impl MetaError {
    /// The errno of Linux.
    #[must_use]
    pub const fn errno(self) -> i32 {
        self as i32
    }

    /// The error of an encoded number.
    ///
    /// # Errors
    /// [`WireError::Field`] for an unknown number.
    pub fn from_errno(errno: u8) -> Result<Self, WireError> {
        let known = Self::ALL.iter().copied().find(|error| *error as u8 == errno);
        known.ok_or(WireError::Field("error of a meta"))
    }
}
