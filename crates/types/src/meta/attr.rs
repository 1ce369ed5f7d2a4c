//! Attributes of inodes.

use std::fmt;

use super::Layout;
use crate::wire::{Reader, WireError, Writer};

/// Number of an inode: never reused, so it identifies the inode forever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory of a volume.
    pub const ROOT: Self = Self(1);
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Kind of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A regular file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// A Unix socket.
    Socket = 5,
    /// A character device.
    CharDevice = 6,
    /// A block device.
    BlockDevice = 7,
}

impl FileKind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::Regular,
        Self::Directory,
        Self::Symlink,
        Self::Fifo,
        Self::Socket,
        Self::CharDevice,
        Self::BlockDevice,
    ];

    /// The `S_IFMT` bits of `st_mode` (inode(7)).
    #[must_use]
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Regular => 0o100_000,
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
        }
    }

    /// The kind of the `S_IFMT` bits of `st_mode`.
    #[must_use]
    pub fn from_mode(mode: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.mode_bits() == mode & 0o170_000)
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Self::of(r.u8()?)
    }

    fn of(value: u8) -> Result<Self, WireError> {
        let known = Self::ALL.into_iter().find(|kind| *kind as u8 == value);
        known.ok_or(WireError::Field("kind of a file"))
    }
}

/// Seconds after which a read updates the access time again.
const READ_NOTED_S: i64 = 24 * 3600;

/// Bit of the kind byte: the file's bytes are in the store.
const STORED: u8 = 0x80;
/// Bit of the kind byte: the name of the chunks differs from the data id, and follows at the end.
const OWN_CHUNKS: u8 = 0x40;
/// Bit of the kind byte: the chunks have a [`super::SharedRecord`].
const SHARED: u8 = 0x20;
/// Bit of the kind byte: [`Attr::solid`] and [`Attr::cuts`] follow at the end.
const SOLID: u8 = 0x10;

/// A point in time: seconds since 1970 (negative before it) and nanoseconds after them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp {
    /// Whole seconds.
    pub secs: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
}

impl Timestamp {
    /// From nanoseconds since 1970.
    #[must_use]
    pub const fn from_unix_nanos(nanos: u128) -> Self {
        #[allow(clippy::cast_possible_truncation, reason = "585 billion years fit")]
        Self { secs: (nanos / 1_000_000_000) as i64, nanos: (nanos % 1_000_000_000) as u32 }
    }

    pub(super) fn encode(self, w: &mut Writer) {
        w.u64(self.secs.cast_unsigned());
        w.u32(self.nanos);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (secs, nanos) = (r.u64()?.cast_signed(), r.u32()?);
        if nanos >= 1_000_000_000 {
            return Err(WireError::Field("nanoseconds of a time"));
        }
        Ok(Self { secs, nanos })
    }
}

/// A range of bytes that was completely written to chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filled {
    /// Its first byte.
    pub from: u64,
    /// Its end, not before `from`. If both are equal, the range is empty.
    pub to: u64,
    /// [`Attr::cuts`] as known before the write.
    pub cuts: u32,
}

impl Filled {
    pub(super) fn encode(self, w: &mut Writer) {
        w.u64(self.from);
        w.u64(self.to);
        w.u32(self.cuts);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (from, to, cuts) = (r.u64()?, r.u64()?, r.u32()?);
        if from > to || to > super::FILE_BYTES_MAX {
            return Err(WireError::Field("bytes written to chunks"));
        }
        Ok(Self { from, to, cuts })
    }
}

/// Attributes of an inode, as `stat` reports them, and the place of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The inode.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits, set-id and sticky bits: `0o7777` at most.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names that lead to it; for a directory 2, plus one for every directory in it.
    pub nlink: u32,
    /// Device number of a device file, as Linux encodes it in 32 bits.
    pub rdev: u32,
    /// Length in bytes of a file or of a link's target.
    pub size: u64,
    /// Time of the last read that updated it.
    pub atime: Timestamp,
    /// Time of the last change of the content.
    pub mtime: Timestamp,
    /// Time of the last change of anything.
    pub ctime: Timestamp,
    /// Time of creation.
    pub btime: Timestamp,
    /// Data id of the bytes: chunks belong to a data id, and a file that is truncated to zero gets
    /// a new one.
    pub data: u64,
    /// Name of the chunks with the bytes; none for a file with its bytes in the store. It equals
    /// `data` unless the bytes were in the store before. Then it is a number of its own, so that no
    /// other writer ever wrote to chunks of that name.
    pub chunks: Option<u64>,
    /// The chunks have a [`super::SharedRecord`]: other files may share them, or they have base
    /// chunks.
    pub is_shared: bool,
    /// All bytes before this offset were written to chunks: a missing chunk there is lost, not a
    /// hole. At most `size`; 0 while the bytes are in the store.
    pub solid: u64,
    /// Grows when a client begins or ends to remove bytes from chunks, and is odd in between. A
    /// range written under another number may be gone.
    pub cuts: u32,
    /// Placement of the chunks.
    pub layout: Layout,
    /// The parent of a directory. For other kinds, the directory in which the inode was made, which
    /// may be gone.
    pub parent: Ino,
    /// Version of the inode itself: grows with every change.
    pub version: u64,
}

impl Attr {
    /// Smallest encoding in bytes.
    pub(super) const BYTES_MIN: usize = 118;

    /// `st_mode`: kind and permissions.
    #[must_use]
    pub const fn st_mode(&self) -> u32 {
        self.kind.mode_bits() | self.mode as u32
    }

    /// Whether it is a file with its bytes in the store.
    #[must_use]
    pub const fn is_stored(&self) -> bool {
        self.chunks.is_none()
    }

    /// Name of the file's chunks: of the existing ones, or of those that an empty file would get.
    #[must_use]
    pub const fn chunk_data(&self) -> u64 {
        match self.chunks {
            Some(chunks) => chunks,
            None => self.data,
        }
    }

    /// Whether a read at this time updates the access time, as with `relatime` of mount(8): if the
    /// last noted read is not later than a change, or a day old.
    #[must_use]
    pub fn is_read_due(&self, at: Timestamp) -> bool {
        let is_old = at.secs.saturating_sub(self.atime.secs) >= READ_NOTED_S;
        at > self.atime && (self.atime <= self.mtime || self.atime <= self.ctime || is_old)
    }

    /// Records a range that was written to these chunks without a gap. The solid length grows if
    /// the range begins within it, and no cut happened since.
    pub fn fill(&mut self, filled: &Filled) {
        let reaches = filled.from <= self.solid && filled.cuts == self.cuts;
        if reaches && self.cuts.is_multiple_of(2) && !self.is_stored() {
            self.solid = self.solid.max(filled.to.min(self.size));
        }
    }

    /// Records that a client begins, or has ended, to remove the bytes from `from` on from chunks.
    pub fn hollow(&mut self, from: u64, ended: bool) {
        self.solid = self.solid.min(from);
        self.cuts = Self::cuts_after(self.cuts, ended);
    }

    /// The value of [`Attr::cuts`] after one more cut has begun, or ended.
    #[must_use]
    pub const fn cuts_after(cuts: u32, ended: bool) -> u32 {
        // Cuts may overlap: the last report decides whether the number is odd.
        let is_pending = !cuts.is_multiple_of(2);
        cuts.wrapping_add(if is_pending == ended { 1 } else { 2 })
    }

    /// True for a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        w.u64(self.ino.0);
        let own = self.chunks.filter(|chunks| *chunks != self.data);
        // Files of volumes from before bytes were kept in the store have neither bit.
        let place = if self.is_stored() { STORED } else { u8::from(own.is_some()) * OWN_CHUNKS };
        let has_solid = self.solid > 0 || self.cuts > 0;
        let more = (u8::from(self.is_shared) * SHARED) | (u8::from(has_solid) * SOLID);
        w.u8(self.kind as u8 | place | more);
        w.u16(self.mode);
        for word in [self.uid, self.gid, self.nlink, self.rdev] {
            w.u32(word);
        }
        w.u64(self.size);
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            time.encode(w);
        }
        w.u64(self.data);
        self.layout.encode(w);
        w.u64(self.parent.0);
        w.u64(self.version);
        if let Some(own) = own {
            w.u64(own);
        }
        if has_solid {
            w.u64(self.solid);
            w.u32(self.cuts);
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (ino, kind) = (Ino(r.u64()?), r.u8()?);
        let (place, is_shared) = (kind & (STORED | OWN_CHUNKS), kind & SHARED != 0);
        let has_solid = kind & SOLID != 0;
        let (kind, mode) = (FileKind::of(kind & !(place | SHARED | SOLID))?, r.u16()?);
        if mode > 0o7777 {
            return Err(WireError::Field("mode of an inode"));
        }
        let (uid, gid, nlink, rdev) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        let size = r.u64()?;
        if size > super::FILE_BYTES_MAX {
            return Err(WireError::Field("size of an inode"));
        }
        let (atime, mtime) = (Timestamp::decode(r)?, Timestamp::decode(r)?);
        let (ctime, btime) = (Timestamp::decode(r)?, Timestamp::decode(r)?);
        let (data, layout) = (r.u64()?, Layout::decode(r)?);
        let (parent, version) = (Ino(r.u64()?), r.u64()?);
        let chunks = match place {
            0 => Some(data),
            STORED if kind == FileKind::Regular => None,
            OWN_CHUNKS if kind == FileKind::Regular => Some(r.u64()?),
            _ => return Err(WireError::Field("place of the bytes of an inode")),
        };
        if is_shared && (kind != FileKind::Regular || chunks.is_none()) {
            return Err(WireError::Field("shared chunks of an inode without chunks"));
        }
        let (solid, cuts) = if has_solid { (r.u64()?, r.u32()?) } else { (0, 0) };
        if solid > size || (solid > 0 && (kind != FileKind::Regular || chunks.is_none())) {
            return Err(WireError::Field("written bytes of an inode"));
        }
        Ok(Self {
            ino,
            kind,
            mode,
            uid,
            gid,
            nlink,
            rdev,
            size,
            atime,
            mtime,
            ctime,
            btime,
            data,
            chunks,
            is_shared,
            solid,
            cuts,
            layout,
            parent,
            version,
        })
    }
}

/// A text that is no valid name; the message gives the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name is too long.
    #[error("the name has {0} bytes: at most {max} are allowed", max = Name::BYTES_MAX)]
    TooLong(usize),
    /// Empty, `.`, `..`, or with a slash or a NUL byte in it.
    #[error("a name must not be empty, '.' or '..', and must not contain '/' or NUL")]
    NoName,
}

/// Appends the length as one byte, then at most 255 bytes.
fn write_short(w: &mut Writer, bytes: &[u8]) {
    w.u8(u8::try_from(bytes.len()).expect("a name has at most 255 bytes"));
    w.raw(bytes);
}

fn read_short<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], WireError> {
    let n = usize::from(r.u8()?);
    r.bytes(n)
}

/// A name in a directory: 1 to 255 bytes, in no particular encoding.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<[u8]>);

impl Name {
    /// Longest name in bytes (Linux' `NAME_MAX`).
    pub const BYTES_MAX: usize = 255;

    /// Checks and copies a name.
    ///
    /// # Errors
    /// [`NameError`].
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        if bytes.len() > Self::BYTES_MAX {
            return Err(NameError::TooLong(bytes.len()));
        }
        let special = matches!(bytes, b"" | b"." | b"..");
        if special || bytes.iter().any(|byte| matches!(byte, b'/' | 0)) {
            return Err(NameError::NoName);
        }
        Ok(Self(bytes.into()))
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        write_short(w, &self.0);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Self::new(read_short(r)?).map_err(|_| WireError::Field("name"))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// The name of an extended attribute with its class, as in `user.mime_type`: 1 to 255 bytes without
/// NUL.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct XattrName(Box<[u8]>);

impl XattrName {
    /// Checks and copies a name.
    ///
    /// # Errors
    /// [`NameError`].
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        if bytes.len() > Name::BYTES_MAX {
            return Err(NameError::TooLong(bytes.len()));
        }
        if bytes.is_empty() || bytes.contains(&0) {
            return Err(NameError::NoName);
        }
        Ok(Self(bytes.into()))
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        write_short(w, &self.0);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Self::new(read_short(r)?).map_err(|_| WireError::Field("name of an extended attribute"))
    }
}

impl fmt::Debug for XattrName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}
