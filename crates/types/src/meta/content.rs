//! Bytes of small files, which lie in the store beside their inodes, and how they go to chunks.
//!
//! A file begins with its bytes in the store, and stays there while it is not written to behind
//! [`INLINE_MAX`]. It goes to chunks once and for ever: only a file that is cut to nothing begins anew. So who
//! believes that bytes lie in chunks of a name is right as long as they have that name; who believes that
//! they lie in the store says so with each change, which is not done otherwise.

use super::request::flag;
use super::{Attr, Ino, Name, Timestamp};
use crate::wire::{Reader, Record, WireError, Writer};

/// Bytes of a file that lie in the store at most. A commit of them takes hardly longer than one of an inode
/// alone; larger ones would fill the store's log, which all operations share, with bytes.
pub const INLINE_MAX: usize = 16 << 10;
/// Bytes of a file that lie in the store for a while at most: what was put there whole. Those of more than
/// [`INLINE_MAX`] are brought to chunks when they are there, and nobody waits for that.
pub const STORED_MAX: usize = 64 << 10;
/// Names of a path that a meta walks at most.
pub const FILE_PATH_MAX: usize = 64;

/// An inode, and its bytes if they lie in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The inode.
    pub attr: Attr,
    /// Its first bytes, while [`Attr::is_stored`]; what is missing up to its length is zeros.
    pub bytes: Vec<u8>,
}

/// Bytes to be written to a file whose bytes lie in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteInline {
    /// Which file.
    pub ino: Ino,
    /// Its data id: another one has been cut to nothing since.
    pub data: u64,
    /// Where the bytes go.
    pub offset: u32,
    /// The bytes; they end within [`STORED_MAX`].
    pub bytes: Vec<u8>,
    /// When they were written.
    pub mtime: Timestamp,
}

/// A name for chunks is wanted. What is written to them is garbage, and goes after some minutes, until a
/// [`Spill`] names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// For which file.
    pub ino: Ino,
    /// Chunks are written up to this length.
    pub size: u64,
}

/// The bytes of a file have been written to chunks of a reserved name, and more with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spill {
    /// Which file.
    pub ino: Ino,
    /// Its version when its bytes were read.
    pub version: u64,
    /// The name of the chunks.
    pub chunks: u64,
    /// The file reaches at least so far.
    pub size: u64,
    /// All bytes before this one were written to the chunks.
    pub solid: u64,
    /// When bytes were written; nothing when they were brought there as they were.
    pub mtime: Option<Timestamp>,
}

/// A whole file, made or put in the place of the bytes of the one that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutFile {
    /// Its directories from the root on, then its name; none of them is a link.
    pub path: Vec<Name>,
    /// Permission bits of a new file.
    pub mode: u16,
    /// Its bytes, [`STORED_MAX`] at most.
    pub bytes: Vec<u8>,
}

/// The bytes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentRecord {
    /// The file's data id.
    pub data: u64,
    /// Its first bytes.
    pub bytes: Vec<u8>,
}

pub(super) fn write_path(w: &mut Writer, path: &[Name]) {
    w.count(path.len());
    for name in path {
        name.encode(w);
    }
}

pub(super) fn read_path(r: &mut Reader<'_>) -> Result<Vec<Name>, WireError> {
    let n = r.count(FILE_PATH_MAX, 2, "names of a path")?;
    if n == 0 {
        return Err(WireError::Field("names of a path (at least one)"));
    }
    (0..n).map(|_| Name::decode(r)).collect()
}

/// In front of a length that does not fit into 16 bits.
const LONG: u16 = u16::MAX;

/// Below 65,535 bytes this is what volumes of format 2 have.
pub(super) fn write_bytes(w: &mut Writer, bytes: &[u8]) {
    match u16::try_from(bytes.len()) {
        Ok(len) if len < LONG => w.u16(len),
        _ => {
            w.u16(LONG);
            w.count(bytes.len());
        }
    }
    w.raw(bytes);
}

pub(super) fn read_bytes(r: &mut Reader<'_>) -> Result<Vec<u8>, WireError> {
    let short = r.u16()?;
    let len = if short == LONG { r.u32()? as usize } else { usize::from(short) };
    let is_long = len >= usize::from(LONG);
    if len > STORED_MAX || is_long != (short == LONG) {
        return Err(WireError::Field("bytes of a file in the store (at most 64 KiB)"));
    }
    Ok(r.bytes(len)?.to_vec())
}

impl Content {
    /// Copies the file's bytes from `offset` on, zeros where none were written, into `buf`, which ends within the
    /// file.
    pub fn copy(&self, offset: u64, buf: &mut [u8]) {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes.len());
        let here = &self.bytes[from..];
        let len = here.len().min(buf.len());
        buf[..len].copy_from_slice(&here[..len]);
        buf[len..].fill(0);
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        self.attr.encode(w);
        write_bytes(w, &self.bytes);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { attr: Attr::decode(r)?, bytes: read_bytes(r)? })
    }
}

impl WriteInline {
    /// The end of the bytes, as a length of the file; 0 without bytes.
    #[must_use]
    pub fn end(&self) -> u64 {
        if self.bytes.is_empty() { 0 } else { u64::from(self.offset) + self.bytes.len() as u64 }
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        w.u64(self.ino.0);
        w.u64(self.data);
        w.u32(self.offset);
        write_bytes(w, &self.bytes);
        self.mtime.encode(w);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (ino, data, offset) = (Ino(r.u64()?), r.u64()?, r.u32()?);
        let (bytes, mtime) = (read_bytes(r)?, Timestamp::decode(r)?);
        if offset as usize + bytes.len() > STORED_MAX {
            return Err(WireError::Field("end of bytes in the store (at most 64 KiB)"));
        }
        Ok(Self { ino, data, offset, bytes, mtime })
    }
}

impl Reserve {
    pub(super) fn encode(self, w: &mut Writer) {
        w.u64(self.ino.0);
        w.u64(self.size);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { ino: Ino(r.u64()?), size: size(r)? })
    }
}

fn size(r: &mut Reader<'_>) -> Result<u64, WireError> {
    let size = r.u64()?;
    if size > super::FILE_BYTES_MAX {
        return Err(WireError::Field("length of a file"));
    }
    Ok(size)
}

impl Spill {
    pub(super) fn encode(self, w: &mut Writer) {
        for number in [self.ino.0, self.version, self.chunks, self.size, self.solid] {
            w.u64(number);
        }
        w.u8(u8::from(self.mtime.is_some()));
        if let Some(mtime) = self.mtime {
            mtime.encode(w);
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (ino, version, chunks) = (Ino(r.u64()?), r.u64()?, r.u64()?);
        let (size, solid) = (size(r)?, size(r)?);
        let mtime = flag(r, "with a time")?.then(|| Timestamp::decode(r)).transpose()?;
        Ok(Self { ino, version, chunks, size, solid, mtime })
    }
}

impl PutFile {
    pub(super) fn encode(&self, w: &mut Writer) {
        write_path(w, &self.path);
        w.u16(self.mode);
        write_bytes(w, &self.bytes);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (path, mode) = (read_path(r)?, r.u16()?);
        if mode > 0o7777 {
            return Err(WireError::Field("mode of a new file"));
        }
        Ok(Self { path, mode, bytes: read_bytes(r)? })
    }
}

impl Record for ContentRecord {
    const KIND: u8 = 52;

    fn write_body(&self, w: &mut Writer) {
        w.u64(self.data);
        write_bytes(w, &self.bytes);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { data: r.u64()?, bytes: read_bytes(r)? })
    }
}
