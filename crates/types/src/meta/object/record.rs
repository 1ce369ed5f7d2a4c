//! What lies in the store of objects, beside the inodes of their files.

use super::super::{Ino, Timestamp};
use super::OBJECT_KEY_MAX;
use crate::wire::{Reader, Record, WireError, Writer};

/// Longest attachment of an inode in bytes: metadata of users (2 KiB in S3), tags, checksums and the lengths of 1,000
/// parts fit.
pub const ATTACHMENT_MAX: usize = 16 << 10;

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
}

/// A part of an upload: its file has no name, and is held by this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartRecord {
    /// The file.
    pub ino: Ino,
    /// Whatever the gateway keeps.
    pub attachment: Vec<u8>,
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
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { key: key(r)?, started: Timestamp::decode(r)?, attachment: attachment(r)? })
    }
}

impl Record for PartRecord {
    const KIND: u8 = 56;

    fn write_body(&self, w: &mut Writer) {
        w.u64(self.ino.0);
        w.bytes16(&self.attachment);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { ino: Ino(r.u64()?), attachment: attachment(r)? })
    }
}
