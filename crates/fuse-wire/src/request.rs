//! A request of the kernel, decoded from the bytes of one read.
//!
//! Names and data are borrowed from the buffer, so nothing is copied here. A length that the
//! bytes do not bear out is an error that names operation and field; nothing panics.

mod decode;
#[cfg(test)]
mod tests;

use thiserror::Error;
use zerocopy::FromBytes;

use crate::abi::{
    BmapIn, CopyFileRangeIn, CreateIn, FallocateIn, FlushIn, ForgetOne, FsyncIn, GetattrIn,
    InHeader, InitFlags, InitIn, IoctlIn, LkIn, LseekIn, MkdirIn, MknodIn, NotifyRetrieveIn,
    Opcode, OpenIn, PollIn, ReadIn, ReleaseIn, RemoveMappingOne, RenameFlags, SetattrIn,
    SetupMappingIn, SetxattrFlags, StatxIn, UNIQUE_RESEND, WriteIn,
};

/// What a reply is addressed to: the request's `unique` with all its bits.
///
/// The kernel finds a request that it sent again only under the number with the bit that says
/// so. A type of its own keeps that apart from [`Request::unique`], which has not that bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplyTo(u64);

impl ReplyTo {
    /// The address of a request whose header had this `unique`.
    #[must_use]
    pub const fn from_raw(unique: u64) -> Self {
        Self(unique)
    }

    /// The number on the wire.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }
}

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'a> {
    /// Who asks, about which inode. `uid`, `gid` and `pid` are the caller's.
    pub header: InHeader,
    /// What is asked.
    pub operation: Operation<'a>,
    /// Groups of the caller, where [`InitFlags::CREATE_SUPP_GROUP`] was granted and one of them
    /// owns the directory in which something is made.
    pub groups: Option<SuppGroups<'a>>,
}

impl<'a> Request<'a> {
    /// Decodes what one read brought. `granted` is what INIT agreed on, or
    /// [`InitFlags::NONE`] before it.
    ///
    /// # Errors
    /// [`DecodeError`] names the operation and the field; [`DecodeError::answer`] is what to tell
    /// the kernel, which otherwise waits for ever.
    pub fn decode(bytes: &'a [u8], granted: InitFlags) -> Result<Self, DecodeError> {
        decode::request(bytes, granted)
    }

    /// The operation's number.
    ///
    /// # Panics
    /// When the header was changed after decoding.
    #[must_use]
    pub fn opcode(&self) -> Opcode {
        Opcode::from_code(self.header.opcode).expect("only known operations are decoded")
    }

    /// The number by which the kernel knows the request, the same each time that it is sent.
    /// Unique while the connection lives.
    #[must_use]
    pub fn unique(&self) -> u64 {
        self.header.unique & !UNIQUE_RESEND
    }

    /// Whether the kernel sent it before: somebody may have carried it out already.
    #[must_use]
    pub fn resent(&self) -> bool {
        self.header.unique & UNIQUE_RESEND != 0
    }

    /// Where the reply goes.
    #[must_use]
    pub fn reply_to(&self) -> ReplyTo {
        ReplyTo(self.header.unique)
    }
}

/// What is asked, about the inode of the header unless the fields say otherwise.
///
/// Names are bytes without a zero and never empty. They are not checked for `/`, which the
/// kernel never sends.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the text of each operation tells of its fields")]
pub enum Operation<'a> {
    /// Find a name in a directory.
    Lookup { name: &'a [u8] },
    /// Drop references of the header's inode. Has no reply.
    Forget { nlookup: u64 },
    /// Drop references of several inodes. Has no reply.
    BatchForget { items: Items<'a, ForgetOne> },
    /// Attributes.
    Getattr(GetattrIn),
    /// Attributes by `statx(2)`.
    Statx(StatxIn),
    /// Change attributes.
    Setattr(SetattrIn),
    /// Where a symbolic link leads.
    Readlink,
    /// Make a symbolic link.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// Make a file that is not opened, a device, a pipe or a socket.
    Mknod { args: MknodIn, name: &'a [u8] },
    /// Make a directory.
    Mkdir { args: MkdirIn, name: &'a [u8] },
    /// Remove a name that is not a directory's.
    Unlink { name: &'a [u8] },
    /// Remove an empty directory.
    Rmdir { name: &'a [u8] },
    /// RENAME (no flags) and RENAME2.
    Rename { new_parent: u64, flags: RenameFlags, name: &'a [u8], new_name: &'a [u8] },
    /// A further name, in the directory of the header, of the inode `inode`.
    Link { inode: u64, name: &'a [u8] },
    /// Open a file.
    Open(OpenIn),
    /// Read a file.
    Read(ReadIn),
    /// Write a file.
    Write { args: WriteIn, data: &'a [u8] },
    /// Numbers of the file system.
    Statfs,
    /// The last descriptor of an open file is gone.
    Release(ReleaseIn),
    /// Make a file durable.
    Fsync(FsyncIn),
    /// Set an extended attribute; `flags` are those of `setxattr(2)`.
    Setxattr { flags: u32, setxattr_flags: SetxattrFlags, name: &'a [u8], value: &'a [u8] },
    /// An extended attribute of at most `size` bytes; with 0 only its length.
    Getxattr { size: u32, name: &'a [u8] },
    /// Names of extended attributes, each with a zero, `size` bytes at most; with 0 only the length.
    Listxattr { size: u32 },
    /// Remove an extended attribute.
    Removexattr { name: &'a [u8] },
    /// A descriptor of an open file was closed.
    Flush(FlushIn),
    /// The first request of a connection.
    Init(InitIn),
    /// Open a directory.
    Opendir(OpenIn),
    /// Read a directory.
    Readdir(ReadIn),
    /// Read a directory with the attributes of what is in it.
    Readdirplus(ReadIn),
    /// The last descriptor of an open directory is gone.
    Releasedir(ReleaseIn),
    /// Make a directory durable.
    Fsyncdir(FsyncIn),
    /// Which lock is in the way.
    Getlk(LkIn),
    /// Take or give back a lock, or fail.
    Setlk(LkIn),
    /// Take a lock, and wait for it.
    Setlkw(LkIn),
    /// Whether the caller may do what `mask` (`R_OK`...) says.
    Access { mask: u32 },
    /// Make a file and open it.
    Create { args: CreateIn, name: &'a [u8] },
    /// Make a file without a name and open it.
    Tmpfile { args: CreateIn, name: &'a [u8] },
    /// The caller of the request `unique` no longer wants to wait. The number is comparable with
    /// [`Request::unique`].
    Interrupt { unique: u64 },
    /// Where a block lies on the device.
    Bmap(BmapIn),
    /// The connection ends.
    Destroy,
    /// `ioctl(2)`.
    Ioctl { args: IoctlIn, data: &'a [u8] },
    /// `poll(2)`.
    Poll(PollIn),
    /// What a RETRIEVE asked for; the header's `unique` is the one given there. Has no reply.
    NotifyReply { args: NotifyRetrieveIn, data: &'a [u8] },
    /// Reserve or free space.
    Fallocate(FallocateIn),
    /// Find data or a hole.
    Lseek(LseekIn),
    /// Copy between files; the reply is a [`WriteOut`](crate::abi::WriteOut).
    CopyFileRange(CopyFileRangeIn),
    /// The same with lengths beyond 4 GiB; the reply is a
    /// [`CopyFileRangeOut`](crate::abi::CopyFileRangeOut).
    CopyFileRange64(CopyFileRangeIn),
    /// Map a piece of a file into the window of a virtual machine.
    SetupMapping(SetupMappingIn),
    /// The opposite.
    RemoveMapping { items: Items<'a, RemoveMappingOne> },
    /// `syncfs(2)`.
    Syncfs,
}

/// Structures that lie behind each other in a request, perhaps at odd addresses.
#[derive(Clone, Copy)]
pub struct Items<'a, T> {
    bytes: &'a [u8],
    item: std::marker::PhantomData<T>,
}

impl<T> PartialEq for Items<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl<T> std::fmt::Debug for Items<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} items", self.len())
    }
}

impl<'a, T> Items<'a, T> {
    /// `bytes` are whole items.
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, item: std::marker::PhantomData }
    }

    /// Number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / size_of::<T>()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl<'a, T: FromBytes> Items<'a, T> {
    /// The items, copied out.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        self.bytes.chunks_exact(size_of::<T>()).filter_map(|bytes| T::read_from_bytes(bytes).ok())
    }
}

/// Groups of the caller beyond the header's.
#[derive(Clone, Debug, PartialEq)]
pub struct SuppGroups<'a>(Items<'a, u32>);

impl<'a> SuppGroups<'a> {
    /// The groups.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.0.iter()
    }
}

/// Bytes that are not a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{fault}")]
pub struct DecodeError {
    /// What is wrong.
    pub fault: DecodeFault,
    /// The request, when its header could be read and it waits for a reply.
    pub reply_to: Option<ReplyTo>,
}

impl DecodeError {
    /// To whom and with which errno the kernel is to be answered, if it waits for an answer.
    ///
    /// `ENOSYS` makes it do without an operation that this crate does not know; what is
    /// malformed is an `EIO`.
    #[must_use]
    pub fn answer(&self) -> Option<(ReplyTo, i32)> {
        let errno = match self.fault {
            DecodeFault::UnknownOperation { .. } => libc::ENOSYS,
            _ => libc::EIO,
        };
        self.reply_to.map(|to| (to, errno))
    }
}

/// What is wrong with bytes that are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeFault {
    /// Fewer bytes than a header, or not as many as the header says.
    #[error("request: header says {said} bytes, {got} were read")]
    Length {
        /// Of the header.
        said: usize,
        /// Of the read.
        got: usize,
    },
    /// An operation of a newer kernel.
    #[error("request: operation {code} is unknown")]
    UnknownOperation {
        /// Its number.
        code: u32,
    },
    /// The bytes end within a field.
    #[error("{operation}: field '{field}' is cut off")]
    CutOff {
        /// The kernel's name of the operation.
        operation: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A field has a value that it cannot have.
    #[error("{operation}: field '{field}' is not valid")]
    Invalid {
        /// The kernel's name of the operation.
        operation: &'static str,
        /// The field.
        field: &'static str,
    },
}
