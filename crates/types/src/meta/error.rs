//! How an operation on the namespace fails, as POSIX names it.

use crate::wire::WireError;

macro_rules! errors {
    ($($(#[$doc:meta])* $variant:ident = $errno:literal, $text:literal;)*) => {
        /// Why an operation was not done; nothing has changed then. The value is Linux' errno.
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
    /// The caller may not do that to what belongs to others.
    NotPermitted = 1, "operation not permitted";
    /// No such name or inode.
    NotFound = 2, "no such file or directory";
    /// The volume's records cannot be read.
    Io = 5, "input/output error: the server's log has more";
    /// The server cannot do it now; try again.
    Again = 11, "try again";
    /// The mode does not allow it.
    Access = 13, "permission denied";
    /// Locked, or part of something else.
    Busy = 16, "device or resource busy";
    /// The name is taken.
    Exists = 17, "file exists";
    /// The names belong to different quotas; a copy can be made.
    CrossDevice = 18, "invalid cross-device link";
    /// A directory is needed.
    NotDirectory = 20, "not a directory";
    /// A directory will not do.
    IsDirectory = 21, "is a directory";
    /// An argument makes no sense.
    Invalid = 22, "invalid argument";
    /// Beyond the longest file.
    TooLarge = 27, "file too large";
    /// No room.
    NoSpace = 28, "no space left on device";
    /// The volume is mounted to read.
    ReadOnly = 30, "read-only file system";
    /// Too many names for one inode.
    TooManyLinks = 31, "too many links";
    /// A value does not fit what it was asked for with.
    Range = 34, "result too large";
    /// A wait would never end.
    Deadlock = 35, "resource deadlock avoided";
    /// The name has more than 255 bytes.
    NameTooLong = 36, "file name too long";
    /// No locks are left.
    NoLocks = 37, "no locks available";
    /// The directory has entries.
    NotEmpty = 39, "directory not empty";
    /// Links lead to links, too many of them.
    Loop = 40, "too many levels of symbolic links";
    /// No such attribute.
    NoData = 61, "no data available";
    /// This build or volume does not do that.
    NotSupported = 95, "operation not supported";
    /// The inode is gone, or the session has ended.
    Stale = 116, "stale file handle";
    /// A quota would be broken.
    Quota = 122, "disk quota exceeded";
}

impl MetaError {
    /// Linux' number for it.
    #[must_use]
    pub const fn errno(self) -> i32 {
        self as i32
    }

    /// The error of an encoded number.
    ///
    /// # Errors
    /// [`WireError::Field`] for a number that is none of ours.
    pub fn from_errno(errno: u8) -> Result<Self, WireError> {
        let known = Self::ALL.iter().copied().find(|error| *error as u8 == errno);
        known.ok_or(WireError::Field("error of a meta"))
    }
}
