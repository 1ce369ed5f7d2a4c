//! Operations that the kernel requests.

/// Defines each operation once: its number, its name and the lookup by number.
macro_rules! opcodes {
    ($($name:ident = $code:literal $text:literal;)*) => {
        /// The operations of `enum fuse_opcode`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Opcode {
            $($name = $code,)*
        }

        impl Opcode {
            /// Every operation, by number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The operation of number `code`.
            #[must_use]
            pub fn from_code(code: u32) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// The kernel's name without the prefix `FUSE_`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1 "LOOKUP";
    Forget = 2 "FORGET";
    Getattr = 3 "GETATTR";
    Setattr = 4 "SETATTR";
    Readlink = 5 "READLINK";
    Symlink = 6 "SYMLINK";
    Mknod = 8 "MKNOD";
    Mkdir = 9 "MKDIR";
    Unlink = 10 "UNLINK";
    Rmdir = 11 "RMDIR";
    Rename = 12 "RENAME";
    Link = 13 "LINK";
    Open = 14 "OPEN";
    Read = 15 "READ";
    Write = 16 "WRITE";
    Statfs = 17 "STATFS";
    Release = 18 "RELEASE";
    Fsync = 20 "FSYNC";
    Setxattr = 21 "SETXATTR";
    Getxattr = 22 "GETXATTR";
    Listxattr = 23 "LISTXATTR";
    Removexattr = 24 "REMOVEXATTR";
    Flush = 25 "FLUSH";
    Init = 26 "INIT";
    Opendir = 27 "OPENDIR";
    Readdir = 28 "READDIR";
    Releasedir = 29 "RELEASEDIR";
    Fsyncdir = 30 "FSYNCDIR";
    Getlk = 31 "GETLK";
    Setlk = 32 "SETLK";
    Setlkw = 33 "SETLKW";
    Access = 34 "ACCESS";
    Create = 35 "CREATE";
    Interrupt = 36 "INTERRUPT";
    Bmap = 37 "BMAP";
    Destroy = 38 "DESTROY";
    Ioctl = 39 "IOCTL";
    Poll = 40 "POLL";
    NotifyReply = 41 "NOTIFY_REPLY";
    BatchForget = 42 "BATCH_FORGET";
    Fallocate = 43 "FALLOCATE";
    Readdirplus = 44 "READDIRPLUS";
    Rename2 = 45 "RENAME2";
    Lseek = 46 "LSEEK";
    CopyFileRange = 47 "COPY_FILE_RANGE";
    SetupMapping = 48 "SETUPMAPPING";
    RemoveMapping = 49 "REMOVEMAPPING";
    Syncfs = 50 "SYNCFS";
    Tmpfile = 51 "TMPFILE";
    Statx = 52 "STATX";
    CopyFileRange64 = 53 "COPY_FILE_RANGE_64";
}

impl Opcode {
    /// Whether the kernel waits for a reply to this operation.
    ///
    /// An INTERRUPT may be answered, but only with `EAGAIN` ("ask again, I have not seen that
    /// request") or `ENOSYS` ("never send one again").
    #[must_use]
    pub const fn wants_reply(self) -> bool {
        !matches!(self, Self::Forget | Self::BatchForget | Self::Interrupt | Self::NotifyReply)
    }
}
