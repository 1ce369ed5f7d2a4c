//! Replies: a header, a structure of fixed length, and borrowed data.

use zerocopy::{Immutable, IntoBytes};

use crate::abi::{
    AttrOut, BmapOut, CopyFileRangeOut, EntryOut, FileLock, GetxattrOut, InitOut, IoctlOut,
    Kstatfs, LkOut, LseekOut, OpenOut, OutHeader, PollOut, StatxOut, WriteOut,
};
use crate::directory::DirBuffer;
use crate::request::ReplyTo;

/// The answer to one request.
#[derive(Clone, Debug)]
pub enum Reply<'a> {
    /// Failure, with a positive errno such as `libc::ENOENT`.
    Error(i32),
    /// Success without data.
    Done,
    /// LOOKUP, MKNOD, MKDIR, SYMLINK, LINK.
    Entry(EntryOut),
    /// GETATTR, SETATTR.
    Attr(AttrOut),
    /// STATX.
    Statx(&'a StatxOut),
    /// OPEN, OPENDIR.
    Open(OpenOut),
    /// CREATE, TMPFILE.
    Create(EntryOut, OpenOut),
    /// READ, READLINK (without a zero), GETXATTR and LISTXATTR with a size, and bodies from
    /// [`Reply::body`]. At most as many bytes as requested.
    Data(&'a [u8]),
    /// The same in several pieces, none of which is copied.
    Pieces(&'a [&'a [u8]]),
    /// READDIR, READDIRPLUS.
    Directory(&'a DirBuffer),
    /// WRITE, `COPY_FILE_RANGE`: bytes written.
    Written(u32),
    /// `COPY_FILE_RANGE_64`: bytes that were copied.
    Copied(u64),
    /// STATFS.
    Statfs(Kstatfs),
    /// GETXATTR and LISTXATTR of size 0: the size in bytes.
    XattrSize(u32),
    /// GETLK.
    Lock(FileLock),
    /// LSEEK: bytes from the file's start.
    Lseek(u64),
    /// IOCTL, with data or [`IoctlIovec`](crate::abi::IoctlIovec)s.
    Ioctl(IoctlOut, &'a [u8]),
    /// POLL: pending events.
    Poll(u32),
    /// BMAP: a block of the device.
    Bmap(u64),
    /// INIT: [`Negotiated::out`](crate::Negotiated::out).
    Init(InitOut),
}

impl Reply<'_> {
    /// Passes the message for the request `to` to `send`: a header with the total length, then the
    /// pieces.
    ///
    /// A callback rather than a return value, because the header and the small structures live in
    /// this frame.
    pub(crate) fn with_pieces<T>(&self, to: ReplyTo, send: impl FnOnce(&[&[u8]]) -> T) -> T {
        let frame = Frame { to, error: 0, send };
        match self {
            Self::Error(errno) => {
                assert!((1..=511).contains(errno), "{errno} is not an errno of the kernel");
                Frame { error: -errno, ..frame }.data(&[])
            }
            Self::Done => frame.data(&[]),
            Self::Entry(out) => frame.one(out),
            Self::Attr(out) => frame.one(out),
            Self::Statx(out) => frame.one(*out),
            Self::Open(out) => frame.one(out),
            Self::Create(entry, open) => frame.two(entry, open.as_bytes()),
            Self::Data(data) => frame.data(data),
            Self::Pieces(pieces) => frame.pieces(pieces),
            Self::Directory(entries) => frame.data(entries.bytes()),
            Self::Written(size) => frame.one(&WriteOut { size: *size, padding: 0 }),
            Self::Copied(bytes) => frame.one(&CopyFileRangeOut { bytes_copied: *bytes }),
            Self::Statfs(st) => frame.one(st),
            Self::XattrSize(size) => frame.one(&GetxattrOut { size: *size, padding: 0 }),
            Self::Lock(lk) => frame.one(&LkOut { lk: *lk }),
            Self::Lseek(offset) => frame.one(&LseekOut { offset: *offset }),
            Self::Ioctl(out, data) => frame.two(out, data),
            Self::Poll(revents) => frame.one(&PollOut { revents: *revents, padding: 0 }),
            Self::Bmap(block) => frame.one(&BmapOut { block: *block }),
            Self::Init(out) => frame.one(out),
        }
    }

    /// All bytes after the header in one piece, for a journal of replies. Passed to [`Reply::Data`]
    /// it makes the same reply, to the request or to its resend.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        self.with_pieces(ReplyTo::from_raw(0), |pieces| pieces[1..].concat())
    }
}

/// A reply, and the header that is still to be written.
struct Frame<S> {
    to: ReplyTo,
    error: i32,
    send: S,
}

impl<T, S: FnOnce(&[&[u8]]) -> T> Frame<S> {
    /// The header of a reply with `body` bytes.
    fn header(&self, body: usize) -> OutHeader {
        let len = u32::try_from(size_of::<OutHeader>() + body).expect("a reply below 4 GiB");
        OutHeader { len, error: self.error, unique: self.to.raw() }
    }

    fn data(self, data: &[u8]) -> T {
        let header = self.header(data.len());
        (self.send)(&[header.as_bytes(), data])
    }

    fn one(self, out: &(impl IntoBytes + Immutable)) -> T {
        self.data(out.as_bytes())
    }

    fn two(self, out: &(impl IntoBytes + Immutable), data: &[u8]) -> T {
        let header = self.header(size_of_val(out) + data.len());
        (self.send)(&[header.as_bytes(), out.as_bytes(), data])
    }

    fn pieces(self, data: &[&[u8]]) -> T {
        let header = self.header(data.iter().map(|piece| piece.len()).sum());
        let mut pieces = Vec::with_capacity(1 + data.len());
        pieces.push(header.as_bytes());
        pieces.extend_from_slice(data);
        (self.send)(&pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::Reply;
    use crate::abi::{EntryOut, IoctlOut, OpenFlags, OpenOut};
    use crate::request::ReplyTo;

    /// Length, error and number of the header, and the bytes after it.
    fn sent(reply: &Reply<'_>) -> (u32, i32, u64, Vec<u8>) {
        let bytes = reply.with_pieces(ReplyTo::from_raw((1 << 63) + 5), |pieces| pieces.concat());
        let word = |at: usize| <[u8; 4]>::try_from(&bytes[at..at + 4]).unwrap();
        let unique = u64::from_ne_bytes(bytes[8..16].try_into().unwrap());
        let len = u32::from_ne_bytes(word(0));
        assert_eq!(len as usize, bytes.len());
        (len, i32::from_ne_bytes(word(4)), unique, bytes[16..].to_vec())
    }

    #[test]
    fn a_header_counts_what_follows_it() {
        assert_eq!(sent(&Reply::Error(2)), (16, -2, (1 << 63) + 5, Vec::new()));
        assert_eq!(sent(&Reply::Done).0, 16);
        assert_eq!(sent(&Reply::Data(b"abc")).3, b"abc");
        assert_eq!(sent(&Reply::Pieces(&[b"ab", b"", b"c"])).3, b"abc");
        let created = Reply::Create(EntryOut::default(), OpenOut::new(7, OpenFlags::NONE));
        let (len, _, _, body) = sent(&created);
        assert_eq!((len, body[128]), (16 + 128 + 16, 7), "the open file follows the entry");
        assert_eq!(sent(&Reply::Ioctl(IoctlOut::default(), b"xy")).0, 16 + 16 + 2);
    }

    #[test]
    fn the_body_makes_the_same_reply_again() {
        let reply = Reply::Create(EntryOut::default(), OpenOut::new(7, OpenFlags::DIRECT_IO));
        assert_eq!(sent(&reply), sent(&Reply::Data(&reply.body())));
        assert_eq!(Reply::Error(5).body(), b"");
    }
}
