//! Requests to create a name.

use super::content::read_bytes;
use super::request::flag;
use super::{FileKind, Ino, Name, TARGET_BYTES_MAX, Timestamp};
use crate::wire::{Reader, WireError, Writer};

/// Most numbers given to a mount at a time.
pub const NUMBERS_MAX: u32 = 4096;

/// Request to create a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// The directory.
    pub parent: Ino,
    /// The name.
    pub name: Name,
    /// Kind of the new inode.
    pub kind: FileKind,
    /// Permission bits; the umask is already applied unless `umask` is set.
    pub mode: u16,
    /// Applies the directory's default access control list, or this umask if it has none. If
    /// absent, the mode is used unchanged.
    pub umask: Option<u16>,
    /// Device number of a device file.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Fail when the name exists; otherwise an existing regular file is opened.
    pub exclusive: bool,
    /// The file, if the mount has already reported it to its kernel.
    pub promised: Option<PromisedFile>,
    /// Asks for the delegation of the new directory, in this tenure of the session. If it is
    /// granted, the answer is [`MetaReply::Delegated`](super::MetaReply::Delegated).
    pub delegate: Option<u32>,
}

/// A regular file that a mount made by itself before any meta knew of it. The request makes the
/// name for this inode, or the name already leads to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromisedFile {
    /// Its number, one of those that [`MetaOp::TakeNumbers`](super::MetaOp::TakeNumbers) gave to
    /// the mount.
    pub ino: Ino,
    /// Time of creation.
    pub at: Timestamp,
    /// Time of the last write.
    pub written: Timestamp,
    /// Its first bytes, [`INLINE_MAX`](super::INLINE_MAX) at most.
    pub bytes: Vec<u8>,
}

/// Flags of the fields that follow.
const PROMISED: u8 = 1;
const HELD: u8 = 2;
const UMASK: u8 = 4;

impl Create {
    pub(super) fn encode(&self, w: &mut Writer) {
        w.u64(self.parent.0);
        self.name.encode(w);
        w.u8(self.kind as u8);
        w.u16(self.mode);
        w.u32(self.rdev);
        w.bytes16(&self.target);
        w.u8(u8::from(self.exclusive));
        let of_dir = if self.delegate.is_some() { HELD } else { 0 };
        let of_mode = if self.umask.is_some() { UMASK } else { 0 };
        w.u8(u8::from(self.promised.is_some()) | of_dir | of_mode);
        if let Some(promised) = &self.promised {
            w.u64(promised.ino.0);
            promised.at.encode(w);
            promised.written.encode(w);
            w.bytes16(&promised.bytes);
        }
        if let Some(tenure) = self.delegate {
            w.u32(tenure);
        }
        if let Some(umask) = self.umask {
            w.u16(umask);
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (parent, name) = (Ino(r.u64()?), Name::decode(r)?);
        let (kind, mode, rdev) = (FileKind::decode(r)?, r.u16()?, r.u32()?);
        if mode > 0o7777 {
            return Err(WireError::Field("mode of a new inode"));
        }
        let target = r.bytes16(TARGET_BYTES_MAX, "target of a symbolic link")?.to_vec();
        let exclusive = flag(r, "exclusive")?;
        let bits = r.u8()?;
        if bits & !(PROMISED | HELD | UMASK) != 0 {
            return Err(WireError::Field("options of a new inode"));
        }
        let promised = (bits & PROMISED != 0).then(|| PromisedFile::decode(r)).transpose()?;
        let delegate = (bits & HELD != 0).then(|| r.u32()).transpose()?;
        let umask = (bits & UMASK != 0).then(|| r.u16()).transpose()?;
        if umask.is_some_and(|umask| umask > 0o777) {
            return Err(WireError::Field("umask"));
        }
        Ok(Self { parent, name, kind, mode, umask, rdev, target, exclusive, promised, delegate })
    }
}

impl PromisedFile {
    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let ino = Ino(r.u64()?);
        let (at, written) = (Timestamp::decode(r)?, Timestamp::decode(r)?);
        Ok(Self { ino, at, written, bytes: read_bytes(r)? })
    }
}
