//! The entries of one READDIR or READDIRPLUS.

use zerocopy::IntoBytes;

use crate::abi::{Dirent, EntryOut};

/// The alignment of entries.
const ALIGN: usize = 8;

/// The type of a directory entry; the same values as `DT_*` and as the upper bits of a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileKind(u32);

impl FileKind {
    /// The type from a mode with its type bits (`S_IFMT`).
    #[must_use]
    pub const fn of_mode(mode: u32) -> Self {
        Self((mode & libc::S_IFMT) >> 12)
    }

    /// A regular file.
    pub const REGULAR: Self = Self(libc::DT_REG as u32);
    /// A directory.
    pub const DIRECTORY: Self = Self(libc::DT_DIR as u32);
    /// A symbolic link.
    pub const SYMLINK: Self = Self(libc::DT_LNK as u32);
}

/// Entries up to the size that the kernel asked for.
///
/// Each has a cookie: the offset that the kernel passes to read the entries after it. A cookie may
/// be any number except 0, which is the start, as long as the sequence advances.
#[derive(Clone, Debug)]
pub struct DirBuffer {
    bytes: Vec<u8>,
    capacity: usize,
}

impl DirBuffer {
    /// Makes a buffer for `capacity` bytes: the request's `size`, within the caller's limit. It
    /// allocates memory on demand.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { bytes: Vec::new(), capacity }
    }

    /// Adds an entry of READDIR: `cookie` is the offset of the entry after this one.
    ///
    /// Returns false and adds nothing when it does not fit or the name is empty.
    #[must_use]
    pub fn push(&mut self, ino: u64, cookie: u64, kind: FileKind, name: &[u8]) -> bool {
        self.add(&[], Dirent { ino, off: cookie, namelen: 0, kind: kind.0 }, name)
    }

    /// Adds an entry of READDIRPLUS. A `nodeid` of 0 in `entry` leaves the attributes out; any
    /// other counts as a LOOKUP, except for `.` and `..`, of which the kernel takes no reference.
    #[must_use]
    pub fn push_plus(
        &mut self,
        entry: &EntryOut,
        cookie: u64,
        kind: FileKind,
        name: &[u8],
    ) -> bool {
        let ino = entry.attr.ino;
        self.add(entry.as_bytes(), Dirent { ino, off: cookie, namelen: 0, kind: kind.0 }, name)
    }

    /// Adds an entry and fills in its length.
    fn add(&mut self, plus: &[u8], dirent: Dirent, name: &[u8]) -> bool {
        let len = (plus.len() + size_of::<Dirent>() + name.len()).next_multiple_of(ALIGN);
        let Ok(namelen) = u32::try_from(name.len()) else { return false };
        if namelen == 0 || self.bytes.len() + len > self.capacity {
            return false;
        }
        let dirent = Dirent { namelen, ..dirent };
        let end = self.bytes.len() + len;
        self.bytes.extend_from_slice(plus);
        self.bytes.extend_from_slice(dirent.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }

    /// The entries in the kernel's format.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether there are no entries. An empty reply is the end of the directory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{DirBuffer, FileKind};
    use crate::abi::{Attr, EntryOut};

    #[test]
    fn entries_are_padded_and_bounded() {
        let mut buffer = DirBuffer::new(64);
        assert!(buffer.is_empty());
        assert!(buffer.push(9, 1, FileKind::REGULAR, b"a"), "24 + 1 bytes make 32");
        assert!(buffer.push(9, 2, FileKind::DIRECTORY, b"12345678"));
        assert_eq!(buffer.bytes().len(), 64);
        assert!(!buffer.push(9, 3, FileKind::REGULAR, b"b"), "it is full");
        assert_eq!(buffer.bytes().len(), 64, "what does not fit leaves nothing behind");
        assert_eq!(&buffer.bytes()[8..16], 1_u64.to_ne_bytes(), "the cookie");
        assert_eq!(buffer.bytes()[20], libc::DT_REG);
        assert_eq!(&buffer.bytes()[24..32], b"a\0\0\0\0\0\0\0");
    }

    #[test]
    fn an_empty_name_is_refused() {
        assert!(!DirBuffer::new(64).push(9, 1, FileKind::REGULAR, b""), "the kernel gives EIO");
    }

    #[test]
    fn plus_puts_the_attributes_first() {
        let attr = Attr { ino: 77, ..Attr::default() };
        let entry = EntryOut { nodeid: 5, attr, ..EntryOut::default() };
        let mut buffer = DirBuffer::new(128 + 32);
        assert!(buffer.push_plus(&entry, 1, FileKind::of_mode(0o100_644), b"name"));
        assert_eq!(buffer.bytes()[0], 5);
        assert_eq!(buffer.bytes()[128], 77, "the entry carries the inode's own number");
        assert!(!buffer.push_plus(&entry, 2, FileKind::REGULAR, b"more"));
    }
}
