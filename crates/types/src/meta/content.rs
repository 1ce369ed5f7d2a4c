//! Bytes of small files, which are in the store beside their inodes, and their move to chunks.
//!
//! A file begins with its bytes in the store, and stays there until a write goes beyond
//! [`INLINE_MAX`]. It moves to chunks once and for good; only truncation to zero starts it in the
//! store again. So a client that believes the bytes are in chunks of some name is right as long as
//! the file has that name. A client that believes they are in the store states it with each change,
//! and the change fails if that is wrong.

use super::request::flag;
use super::{Attr, Ino, Name, Timestamp};
use crate::wire::{Reader, Record, WireError, Writer};

/// Most bytes of a file that stay in the store. Committing them takes hardly longer than committing
/// an inode alone; more would fill the store's log, which all operations share, with file bytes.
pub const INLINE_MAX: usize = 16 << 10;
/// Most bytes of a file that may be in the store for a while, if they were put as one whole. A meta
/// moves those of more than [`INLINE_MAX`] to chunks afterwards, and no caller waits for it.
pub const STORED_MAX: usize = 64 << 10;
/// Most names of a path that a meta walks.
pub const FILE_PATH_MAX: usize = 64;

/// An inode, and its bytes if they are in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// The inode.
    pub attr: Attr,
    /// Its first bytes, while [`Attr::is_stored`]; zeros follow up to its length.
    pub bytes: Vec<u8>,
}

/// Request to write bytes to a file with its bytes in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteInline {
    /// The file.
    pub ino: Ino,
    /// Its data id; the request fails if the file was truncated to zero since.
    pub data: u64,
    /// Offset of the bytes in the file.
    pub offset: u32,
    /// The bytes; they end within [`STORED_MAX`].
    pub bytes: Vec<u8>,
    /// Time of the write.
    pub mtime: Timestamp,
}

/// Request for a name for chunks. Bytes written to them are garbage, and are removed after some
/// minutes, unless a [`Spill`] names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// The file.
    pub ino: Ino,
    /// Length up to which the client will write chunks.
    pub size: u64,
}

/// Report that the bytes of a file, and more, have been written to chunks of a reserved name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spill {
    /// The file.
    pub ino: Ino,
    /// Its version when the client read its bytes.
    pub version: u64,
    /// The name of the chunks.
    pub chunks: u64,
    /// The file's length afterwards, at least.
    pub size: u64,
    /// All bytes before this offset were written to the chunks.
    pub solid: u64,
    /// Time of the write; none when the bytes only moved.
    pub mtime: Option<Timestamp>,
}

/// Request to put a whole file: makes it, or replaces the bytes of the existing one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutFile {
    /// Its directories from the root on, then its name; none of them may be a symbolic link.
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

/// Marker before a length that does not fit in 16 bits.
const LONG: u16 = u16::MAX;

/// Below 65,535 bytes the encoding is that of volume format 2.
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
    /// Copies the file's bytes from `offset` on into `buf`, with zeros where none were written.
    /// `buf` must end within the file.
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
    /// End offset of the bytes; 0 without bytes.
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
