//! What lies in the store of objects, beside the inodes of their files.

use super::super::{FILE_BYTES_MAX, Ino, Timestamp};
use super::OBJECT_KEY_MAX;
use super::op::PARTS_MAX;
use crate::wire::{Reader, Record, WireError, Writer};

/// Longest attachment of an inode in bytes: metadata of users (2 KiB in S3), tags, checksums and the lengths of 1,000
/// parts fit.
pub const ATTACHMENT_MAX: usize = 16 << 10;

/// Bytes that say which places of an upload were taken.
const TAKEN_BYTES_MAX: usize = PARTS_MAX as usize / 8;

/// Bytes that a gateway keeps with an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentRecord {
    /// The length of the content that it was made for.
    pub size: u64,
    /// When that was changed last.
    pub mtime: Timestamp,
    /// Whatever the gateway keeps.
    pub bytes: Vec<u8>,
}

/// An upload in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadRecord {
    /// The key of the object that it is to be.
    pub key: Vec<u8>,
    /// When it began.
    pub started: Timestamp,
    /// Whatever the gateway keeps.
    pub attachment: Vec<u8>,
    /// The file that parts are written to where they belong, once there is one.
    pub whole: Option<Whole>,
}

/// A file in which part `n` of an upload lies from `(n - 1) * part_len` on (RFC 0023). It has no name, and is held by the upload.
///
/// A place is taken once, by who then writes there, and filled when the part is one of the upload. So nobody writes to
/// the file any more when as many are filled as were taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// The file.
    pub ino: Ino,
    /// Bytes of every part but the last.
    pub part_len: u64,
    /// Places that were taken: bit `n - 1` is part `n`.
    taken: Vec<u8>,
    /// Places in which a part of the upload lies.
    pub filled: u16,
}

impl Whole {
    /// An empty one, in a file of its own.
    #[must_use]
    pub const fn new(ino: Ino, part_len: u64) -> Self {
        Self { ino, part_len, taken: Vec::new(), filled: 0 }
    }

    /// Where the place of a part begins; none if so many bytes have no room in it, or would end too far behind.
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

    /// Places that were taken.
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

/// A part of an upload: its file has no name, and is held by this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartRecord {
    /// The file.
    pub ino: Ino,
    /// Whatever the gateway keeps.
    pub attachment: Vec<u8>,
    /// Where in the upload's whole it lies; none for a file of its own.
    pub place: Option<PartPlace>,
}

/// The bytes of a part among those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartPlace {
    /// Where they begin in the file.
    pub offset: u64,
    /// How many they are.
    pub len: u64,
    /// When they were there.
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
        // Without one as builds before protocol 9 wrote it.
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
