//! A request of the kernel, decoded from the bytes of one read.
//!
//! Names and data are borrowed from the buffer, so nothing is copied. A length that exceeds the
//! bytes is an error that names operation and field; nothing panics.

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

/// The address of a reply: the request's `unique` with all its bits.
///
/// The kernel finds a resent request only under the number with the resend bit. A separate type
/// distinguishes it from [`Request::unique`], which lacks that bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReplyTo(u64);

impl ReplyTo {
    /// The address for a request with this `unique` in its header.
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
    /// The caller's `uid`, `gid` and `pid`, and the inode.
    pub header: InHeader,
    /// The requested operation.
    pub operation: Operation<'a>,
    /// Groups of the caller, if [`InitFlags::CREATE_SUPP_GROUP`] was granted and one of them owns
    /// the directory of the new name.
    pub groups: Option<SuppGroups<'a>>,
}

impl<'a> Request<'a> {
    /// Decodes the bytes of one read. `granted` are the flags agreed in INIT, or
    /// [`InitFlags::NONE`] before it.
    ///
    /// # Errors
    /// [`DecodeError`] names the operation and the field. Send [`DecodeError::answer`] to the
    /// kernel, which otherwise waits forever.
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

    /// The kernel's number of the request, the same each time it is sent. Unique while the
    /// connection lives.
    #[must_use]
    pub fn unique(&self) -> u64 {
        self.header.unique & !UNIQUE_RESEND
    }

    /// Whether this is a resend: the operation may have been carried out already.
    #[must_use]
    pub fn resent(&self) -> bool {
        self.header.unique & UNIQUE_RESEND != 0
    }

    /// The address of the reply.
    #[must_use]
    pub fn reply_to(&self) -> ReplyTo {
        ReplyTo(self.header.unique)
    }
}

/// An operation, on the inode of the header unless the fields say otherwise.
///
/// Names are bytes without a zero and never empty. They are not checked for `/`, which the kernel
/// never sends.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the text of each operation tells of its fields")]
pub enum Operation<'a> {
    /// Finds a name in a directory.
    Lookup { name: &'a [u8] },
    /// Drops references of the header's inode. Has no reply.
    Forget { nlookup: u64 },
    /// Drops references of several inodes. Has no reply.
    BatchForget { items: Items<'a, ForgetOne> },
    /// Reads attributes.
    Getattr(GetattrIn),
    /// Reads attributes for `statx(2)`.
    Statx(StatxIn),
    /// Changes attributes.
    Setattr(SetattrIn),
    /// Reads the target of a symbolic link.
    Readlink,
    /// Makes a symbolic link.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// Makes a file without opening it, a device, a pipe or a socket.
    Mknod { args: MknodIn, name: &'a [u8] },
    /// Makes a directory.
    Mkdir { args: MkdirIn, name: &'a [u8] },
    /// Removes a name, not of a directory.
    Unlink { name: &'a [u8] },
    /// Removes an empty directory.
    Rmdir { name: &'a [u8] },
    /// RENAME (no flags) and RENAME2.
    Rename { new_parent: u64, flags: RenameFlags, name: &'a [u8], new_name: &'a [u8] },
    /// Adds a name for the inode `inode`, in the directory of the header.
    Link { inode: u64, name: &'a [u8] },
    /// Opens a file.
    Open(OpenIn),
    /// Reads a file.
    Read(ReadIn),
    /// Writes a file.
    Write { args: WriteIn, data: &'a [u8] },
    /// Reads the numbers of the file system.
    Statfs,
    /// The last descriptor of an open file is closed.
    Release(ReleaseIn),
    /// Makes a file durable.
    Fsync(FsyncIn),
    /// Sets an extended attribute; `flags` are the flags of `setxattr(2)`.
    Setxattr { flags: u32, setxattr_flags: SetxattrFlags, name: &'a [u8], value: &'a [u8] },
    /// Reads an extended attribute of at most `size` bytes; with 0 only its length.
    Getxattr { size: u32, name: &'a [u8] },
    /// Lists the names of extended attributes, each with a zero, `size` bytes at most; with 0 only
    /// the length.
    Listxattr { size: u32 },
    /// Removes an extended attribute.
    Removexattr { name: &'a [u8] },
    /// A descriptor of an open file was closed.
    Flush(FlushIn),
    /// The first request of a connection.
    Init(InitIn),
    /// Opens a directory.
    Opendir(OpenIn),
    /// Reads a directory.
    Readdir(ReadIn),
    /// Reads a directory with the attributes of its entries.
    Readdirplus(ReadIn),
    /// The last descriptor of an open directory is closed.
    Releasedir(ReleaseIn),
    /// Makes a directory durable.
    Fsyncdir(FsyncIn),
    /// Finds a conflicting lock.
    Getlk(LkIn),
    /// Takes or releases a lock, or fails.
    Setlk(LkIn),
    /// Takes a lock, and waits for it.
    Setlkw(LkIn),
    /// Whether the caller has the permissions in `mask` (`R_OK`...).
    Access { mask: u32 },
    /// Makes a file and opens it.
    Create { args: CreateIn, name: &'a [u8] },
    /// Makes a file without a name and opens it.
    Tmpfile { args: CreateIn, name: &'a [u8] },
    /// The caller of the request `unique` no longer waits. The number is comparable with
    /// [`Request::unique`].
    Interrupt { unique: u64 },
    /// Finds the place of a block on the device.
    Bmap(BmapIn),
    /// The connection ends.
    Destroy,
    /// `ioctl(2)`.
    Ioctl { args: IoctlIn, data: &'a [u8] },
    /// `poll(2)`.
    Poll(PollIn),
    /// The data of a RETRIEVE; the header's `unique` is the one given there. Has no reply.
    NotifyReply { args: NotifyRetrieveIn, data: &'a [u8] },
    /// Reserves or frees space.
    Fallocate(FallocateIn),
    /// Finds data or a hole.
    Lseek(LseekIn),
    /// Copies between files; the reply is a [`WriteOut`](crate::abi::WriteOut).
    CopyFileRange(CopyFileRangeIn),
    /// The same with lengths beyond 4 GiB; the reply is a
    /// [`CopyFileRangeOut`](crate::abi::CopyFileRangeOut).
    CopyFileRange64(CopyFileRangeIn),
    /// Maps a piece of a file into the window of a virtual machine.
    SetupMapping(SetupMappingIn),
    /// Removes such mappings.
    RemoveMapping { items: Items<'a, RemoveMappingOne> },
    /// `syncfs(2)`.
    Syncfs,
}

/// Consecutive structures in a request, perhaps at unaligned addresses.
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
    /// Wraps `bytes`, which must be whole items.
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, item: std::marker::PhantomData }
    }

    /// Number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len() / size_of::<T>()
    }

    /// Whether there are no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl<'a, T: FromBytes> Items<'a, T> {
    /// Copies of the items.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        self.bytes.chunks_exact(size_of::<T>()).filter_map(|bytes| T::read_from_bytes(bytes).ok())
    }
}

/// Supplementary groups of the caller, besides the header's group.
#[derive(Clone, Debug, PartialEq)]
pub struct SuppGroups<'a>(Items<'a, u32>);

impl<'a> SuppGroups<'a> {
    /// The groups.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.0.iter()
    }
}

/// An error of decoding a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{fault}")]
pub struct DecodeError {
    /// The cause.
    pub fault: DecodeFault,
    /// The address of the reply, if the header could be read and the kernel waits for one.
    pub reply_to: Option<ReplyTo>,
}

impl DecodeError {
    /// The address and errno of the answer, if the kernel waits for one.
    ///
    /// `ENOSYS` tells it that this crate does not know the operation; a malformed request gets
    /// `EIO`.
    #[must_use]
    pub fn answer(&self) -> Option<(ReplyTo, i32)> {
        let errno = match self.fault {
            DecodeFault::UnknownOperation { .. } => libc::ENOSYS,
            _ => libc::EIO,
        };
        self.reply_to.map(|to| (to, errno))
    }
}

/// The cause of a decoding error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeFault {
    /// Fewer bytes than a header, or not as many as its length field.
    #[error("request: header says {said} bytes, {got} were read")]
    Length {
        /// Length according to the header.
        said: usize,
        /// Length of the read.
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
    /// A field has an invalid value.
    #[error("{operation}: field '{field}' is not valid")]
    Invalid {
        /// The kernel's name of the operation.
        operation: &'static str,
        /// The field.
        field: &'static str,
    },
}
