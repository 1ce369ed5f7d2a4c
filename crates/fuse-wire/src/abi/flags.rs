//! Flags: one type per set, so that flags of different messages cannot be mixed up.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Defines a set of flags over an integer, with flag names in its debug output.
macro_rules! flags {
    ($(#[$meta:meta])* $name:ident: $int:ty { $($flag:ident = $value:expr;)* }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
        )]
        #[repr(transparent)]
        pub struct $name($int);

        impl $name {
            /// No flag.
            pub const NONE: Self = Self(0);
            $(pub const $flag: Self = Self($value);)*

            /// The set with exactly these bits, known or not.
            #[must_use]
            pub const fn from_bits(bits: $int) -> Self {
                Self(bits)
            }

            /// The bits in the kernel's layout.
            #[must_use]
            pub const fn bits(self) -> $int {
                self.0
            }

            /// Whether all flags of `other` are set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether no flag is set.
            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// The union of both sets.
            #[must_use]
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The flags that are not in `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// The flags that are in both sets.
            #[must_use]
            pub const fn and(self, other: Self) -> Self {
                Self(self.0 & other.0)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                self.with(other)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let known: &[($int, &str)] = &[$(($value, stringify!($flag))),*];
                let mut left = self.0;
                let mut names = Vec::new();
                for (bits, name) in known {
                    if left & bits == *bits {
                        names.push((*name).to_owned());
                        left &= !bits;
                    }
                }
                if left != 0 || names.is_empty() {
                    names.push(format!("{left:#x}"));
                }
                write!(f, "{}({})", stringify!($name), names.join(" | "))
            }
        }
    };
}

flags! {
    /// Flags that kernel and server agree on with INIT: the low word is `flags`, the high one
    /// `flags2`.
    InitFlags: u64 {
        ASYNC_READ = 1;
        POSIX_LOCKS = 1 << 1;
        FILE_OPS = 1 << 2;
        ATOMIC_O_TRUNC = 1 << 3;
        EXPORT_SUPPORT = 1 << 4;
        BIG_WRITES = 1 << 5;
        DONT_MASK = 1 << 6;
        SPLICE_WRITE = 1 << 7;
        SPLICE_MOVE = 1 << 8;
        SPLICE_READ = 1 << 9;
        FLOCK_LOCKS = 1 << 10;
        HAS_IOCTL_DIR = 1 << 11;
        AUTO_INVAL_DATA = 1 << 12;
        DO_READDIRPLUS = 1 << 13;
        READDIRPLUS_AUTO = 1 << 14;
        ASYNC_DIO = 1 << 15;
        WRITEBACK_CACHE = 1 << 16;
        NO_OPEN_SUPPORT = 1 << 17;
        PARALLEL_DIROPS = 1 << 18;
        HANDLE_KILLPRIV = 1 << 19;
        POSIX_ACL = 1 << 20;
        ABORT_ERROR = 1 << 21;
        MAX_PAGES = 1 << 22;
        CACHE_SYMLINKS = 1 << 23;
        NO_OPENDIR_SUPPORT = 1 << 24;
        EXPLICIT_INVAL_DATA = 1 << 25;
        MAP_ALIGNMENT = 1 << 26;
        SUBMOUNTS = 1 << 27;
        HANDLE_KILLPRIV_V2 = 1 << 28;
        SETXATTR_EXT = 1 << 29;
        INIT_EXT = 1 << 30;
        SECURITY_CTX = 1 << 32;
        HAS_INODE_DAX = 1 << 33;
        CREATE_SUPP_GROUP = 1 << 34;
        HAS_EXPIRE_ONLY = 1 << 35;
        DIRECT_IO_ALLOW_MMAP = 1 << 36;
        PASSTHROUGH = 1 << 37;
        NO_EXPORT_SUPPORT = 1 << 38;
        HAS_RESEND = 1 << 39;
        ALLOW_IDMAP = 1 << 40;
        OVER_IO_URING = 1 << 41;
        REQUEST_TIMEOUT = 1 << 42;
    }
}

flags! {
    /// Properties of an opened file that the server reports (`FOPEN_*`).
    OpenFlags: u32 {
        DIRECT_IO = 1;
        KEEP_CACHE = 1 << 1;
        NONSEEKABLE = 1 << 2;
        CACHE_DIR = 1 << 3;
        STREAM = 1 << 4;
        NOFLUSH = 1 << 5;
        PARALLEL_DIRECT_WRITES = 1 << 6;
        PASSTHROUGH = 1 << 7;
    }
}

flags! {
    /// The fields that a SETATTR sets (`FATTR_*`).
    SetattrValid: u32 {
        MODE = 1;
        UID = 1 << 1;
        GID = 1 << 2;
        SIZE = 1 << 3;
        ATIME = 1 << 4;
        MTIME = 1 << 5;
        FH = 1 << 6;
        ATIME_NOW = 1 << 7;
        MTIME_NOW = 1 << 8;
        LOCKOWNER = 1 << 9;
        CTIME = 1 << 10;
        KILL_SUIDGID = 1 << 11;
    }
}

flags! {
    /// `FUSE_GETATTR_*`.
    GetattrFlags: u32 { FH = 1; }
}

flags! {
    /// `FUSE_RELEASE_*`.
    ReleaseFlags: u32 { FLUSH = 1; FLOCK_UNLOCK = 1 << 1; }
}

flags! {
    /// `FUSE_LK_*`.
    LockFlags: u32 { FLOCK = 1; }
}

flags! {
    /// `FUSE_WRITE_*`: with `CACHE` the data comes from the page cache and the handle is a guess.
    WriteFlags: u32 { CACHE = 1; LOCKOWNER = 1 << 1; KILL_SUIDGID = 1 << 2; }
}

flags! {
    /// `FUSE_READ_*`.
    ReadFlags: u32 { LOCKOWNER = 1 << 1; }
}

flags! {
    /// `FUSE_IOCTL_*`.
    IoctlFlags: u32 {
        COMPAT = 1;
        UNRESTRICTED = 1 << 1;
        RETRY = 1 << 2;
        BITS_32 = 1 << 3;
        DIR = 1 << 4;
        COMPAT_X32 = 1 << 5;
    }
}

flags! {
    /// `FUSE_POLL_*`.
    PollFlags: u32 { SCHEDULE_NOTIFY = 1; }
}

flags! {
    /// `FUSE_FSYNC_*`.
    FsyncFlags: u32 { FDATASYNC = 1; }
}

flags! {
    /// `FUSE_ATTR_*`.
    AttrFlags: u32 { SUBMOUNT = 1; DAX = 1 << 1; }
}

flags! {
    /// `FUSE_OPEN_*`: requirements of the kernel for an open or create.
    OpenInFlags: u32 { KILL_SUIDGID = 1; }
}

flags! {
    /// `FUSE_SETXATTR_*`.
    SetxattrFlags: u32 { ACL_KILL_SGID = 1; }
}

flags! {
    /// `RENAME_*` of `renameat2(2)`.
    RenameFlags: u32 { NOREPLACE = 1; EXCHANGE = 1 << 1; WHITEOUT = 1 << 2; }
}

flags! {
    /// `FALLOC_FL_*` of `fallocate(2)`.
    FallocateMode: u32 {
        KEEP_SIZE = 1;
        PUNCH_HOLE = 1 << 1;
        COLLAPSE_RANGE = 1 << 3;
        ZERO_RANGE = 1 << 4;
        INSERT_RANGE = 1 << 5;
        UNSHARE_RANGE = 1 << 6;
    }
}

/// Kinds of extensions that may follow a request's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtType(pub u32);

impl ExtType {
    /// The largest number of security contexts; a value up to it is a count, not a kind.
    pub const MAX_NR_SECCTX: Self = Self(31);
    /// Supplementary groups of the caller.
    pub const GROUPS: Self = Self(32);
}
