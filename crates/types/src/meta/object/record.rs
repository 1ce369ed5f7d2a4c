//! Records of objects in the store, beside the inodes of their files.

use super::super::{FILE_BYTES_MAX, Ino, Timestamp};
use super::OBJECT_KEY_MAX;
use super::op::PARTS_MAX;
use crate::wire::{Reader, Record, WireError, Writer};

/// Longest attachment of an inode in bytes: it has room for user metadata (2 KiB in S3), tags,
/// checksums and the lengths of 1,000 parts.
pub const ATTACHMENT_MAX: usize = 16 << 10;

/// Most bytes of the bitmap of taken places of an upload.
const TAKEN_BYTES_MAX: usize = PARTS_MAX as usize / 8;

/// Bytes that a gateway keeps with an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentRecord {
    /// Length of the content that it was made for.
    pub size: u64,
    /// Time of the last change of that content.
    pub mtime: Timestamp,
    /// Bytes that the gateway keeps; metas do not read them.
    pub bytes: Vec<u8>,
}

/// A multipart upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadRecord {
    /// Key of the object to make.
    pub key: Vec<u8>,
    /// Time when it began.
    pub started: Timestamp,
    /// Bytes that the gateway keeps; metas do not read them.
    pub attachment: Vec<u8>,
    /// The file for parts that are written at their places, once there is one.
    pub whole: Option<Whole>,
}

/// A file in which part `n` of an upload begins at `(n - 1) * part_len` (RFC 0023). It has no name;
/// the upload holds it.
///
/// A place is taken once, by the caller that then writes there, and is filled when the part belongs
/// to the upload. So no caller writes to the file any more once all taken places are filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// The file.
    pub ino: Ino,
    /// Length in bytes of every part except the last.
    pub part_len: u64,
    /// Taken places: bit `n - 1` is part `n`.
    taken: Vec<u8>,
    /// Number of places that hold a part of the upload.
    pub filled: u16,
}

impl Whole {
    /// An empty whole in a file of its own.
    #[must_use]
    pub const fn new(ino: Ino, part_len: u64) -> Self {
        Self { ino, part_len, taken: Vec::new(), filled: 0 }
    }

    /// Offset of the place of a part; none if `len` bytes do not fit in it, or would end past the
    /// longest file.
    #[must_use]
    pub fn place(&self, number: u16, len: u64) -> Option<u64> {
        let offset = self.part_len.checked_mul(u64::from(number.checked_sub(1)?))?;
        let end = offset.checked_add(len)?;
        (len <= self.part_len && end <= FILE_BYTES_MAX).then_some(offset)
    }

    fn bit(number: u16) -> Option<(usize, u8)> {
        let bit = number.checked_sub(1).filter(|bit| *bit < PARTS_MAX)?;
        Some((usize::from(bit / 8), 1 << (bit % 8)))
    }

    /// Whether the place of a part was taken.
    #[must_use]
    pub fn is_taken(&self, number: u16) -> bool {
        let bit = Self::bit(number);
        bit.is_some_and(|(byte, bit)| self.taken.get(byte).is_some_and(|byte| byte & bit != 0))
    }

    /// Takes the place of a part; false if it was taken before, or no part has that number.
    pub fn take(&mut self, number: u16) -> bool {
        let Some((byte, bit)) = Self::bit(number).filter(|_| !self.is_taken(number)) else {
            return false;
        };
        let bytes = self.taken.len().max(byte + 1);
        self.taken.resize(bytes, 0);
        self.taken[byte] |= bit;
        true
    }

    /// Number of taken places.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    fn encode(&self, w: &mut Writer) {
        w.u64(self.ino.0);
        w.u64(self.part_len);
        w.bytes16(&self.taken);
        w.u16(self.filled);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (ino, part_len) = (Ino(r.u64()?), r.u64()?);
        let taken = r.bytes16(TAKEN_BYTES_MAX, "places of an upload")?.to_vec();
        Ok(Self { ino, part_len, taken, filled: r.u16()? })
    }
}

/// A part of an upload: its file has no name; this record holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartRecord {
    /// The file.
    pub ino: Ino,
    /// Bytes that the gateway keeps; metas do not read them.
    pub attachment: Vec<u8>,
    /// Its place in the upload's whole; none for a file of its own.
    pub place: Option<PartPlace>,
}

/// The range of a part in a file with other parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartPlace {
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Time when the part was written.
    pub modified: Timestamp,
}

impl PartPlace {
    pub(super) fn encode(&self, w: &mut Writer) {
        w.u64(self.offset);
        w.u64(self.len);
        self.modified.encode(w);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { offset: r.u64()?, len: r.u64()?, modified: Timestamp::decode(r)? })
    }
}

pub(super) fn attachment(r: &mut Reader<'_>) -> Result<Vec<u8>, WireError> {
    Ok(r.bytes16(ATTACHMENT_MAX, "attachment (at most 16 KiB)")?.to_vec())
}

pub(super) fn key(r: &mut Reader<'_>) -> Result<Vec<u8>, WireError> {
    Ok(r.bytes16(OBJECT_KEY_MAX, "key of an object")?.to_vec())
}

impl Record for AttachmentRecord {
    const KIND: u8 = 54;

    fn write_body(&self, w: &mut Writer) {
        w.u64(self.size);
        self.mtime.encode(w);
        w.bytes16(&self.bytes);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (size, mtime) = (r.u64()?, Timestamp::decode(r)?);
        Ok(Self { size, mtime, bytes: attachment(r)? })
    }
}

impl Record for UploadRecord {
    const KIND: u8 = 55;

    fn write_body(&self, w: &mut Writer) {
        w.bytes16(&self.key);
        self.started.encode(w);
        w.bytes16(&self.attachment);
        // An upload without a whole is encoded as before protocol 9.
        if let Some(whole) = &self.whole {
            whole.encode(w);
        }
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (key, started, attachment) = (key(r)?, Timestamp::decode(r)?, attachment(r)?);
        let whole = if r.is_empty() { None } else { Some(Whole::decode(r)?) };
        Ok(Self { key, started, attachment, whole })
    }
}

impl Record for PartRecord {
    const KIND: u8 = 56;

    fn write_body(&self, w: &mut Writer) {
        w.u64(self.ino.0);
        w.bytes16(&self.attachment);
        if let Some(place) = &self.place {
            place.encode(w);
        }
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (ino, attachment) = (Ino(r.u64()?), attachment(r)?);
        let place = if r.is_empty() { None } else { Some(PartPlace::decode(r)?) };
        Ok(Self { ino, attachment, place })
    }
}
