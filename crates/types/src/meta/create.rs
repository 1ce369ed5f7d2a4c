//! A name that is to be made.

use super::content::read_bytes;
use super::request::flag;
use super::{FileKind, Ino, Name, TARGET_BYTES_MAX, Timestamp};
use crate::wire::{Reader, WireError, Writer};

/// Numbers that are given to a mount at a time, at most.
pub const NUMBERS_MAX: u32 = 4096;

/// A name is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    /// In which directory.
    pub parent: Ino,
    /// Which name.
    pub name: Name,
    /// What it is to be.
    pub kind: FileKind,
    /// Permission bits, the umask taken off already unless it is beside them.
    pub mode: u16,
    /// The directory's default access control list counts, and this umask where it has none.
    /// Without it the mode is as it is said.
    pub umask: Option<u16>,
    /// Device number of a device file.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Fail when the name is there; otherwise a regular file that is there is taken.
    pub exclusive: bool,
    /// A mount has told its kernel of the file already.
    pub promised: Option<PromisedFile>,
    /// The mount wants to hold the directory that is made, in this tenure of its session: the answer is
    /// [`MetaReply::Delegated`](super::MetaReply::Delegated) if it does.
    pub delegate: Option<u32>,
}

/// A regular file that a mount made by itself before a meta hears of it. The name is then to be made for
/// this inode, or is there for it already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromisedFile {
    /// Its number, one of those that [`MetaOp::TakeNumbers`](super::MetaOp::TakeNumbers) gave to the mount.
    pub ino: Ino,
    /// When it was made.
    pub at: Timestamp,
    /// When bytes were written to it.
    pub written: Timestamp,
    /// Its first bytes, [`INLINE_MAX`](super::INLINE_MAX) at most.
    pub bytes: Vec<u8>,
}

/// What follows the other fields.
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
            return Err(WireError::Field("what follows a new name"));
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
