//! Extended attributes that a client sets.

use super::{Ino, XATTR_BYTES_MAX, XattrName};
use crate::wire::{Reader, WireError, Writer};

/// Condition on the existence of an extended attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum XattrMode {
    /// No condition.
    #[default]
    Any = 0,
    /// It must not exist (`XATTR_CREATE`).
    Create = 1,
    /// It must exist (`XATTR_REPLACE`).
    Replace = 2,
}

/// Request to set an extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setxattr {
    /// The inode.
    pub ino: Ino,
    /// Its name.
    pub name: XattrName,
    /// Its value.
    pub value: Vec<u8>,
    /// Condition on the attribute that exists before.
    pub mode: XattrMode,
    /// Clear the set-group-id bit when an access control list is set: the kernel requests it for a
    /// caller outside the inode's group.
    pub drops_set_gid: bool,
}

/// Flag in the mode byte of an extended attribute.
const DROPS_SET_GID: u8 = 0x80;

pub(super) fn write_value(w: &mut Writer, value: &[u8]) {
    w.u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
    w.raw(value);
}

pub(super) fn read_value(r: &mut Reader<'_>) -> Result<Vec<u8>, WireError> {
    let len = usize::try_from(r.u32()?).unwrap_or(usize::MAX);
    if len > XATTR_BYTES_MAX {
        return Err(WireError::Field("value of an extended attribute"));
    }
    Ok(r.bytes(len)?.to_vec())
}

impl Setxattr {
    pub(super) fn encode(&self, w: &mut Writer) {
        w.u64(self.ino.0);
        self.name.encode(w);
        write_value(w, &self.value);
        let flag = if self.drops_set_gid { DROPS_SET_GID } else { 0 };
        w.u8(self.mode as u8 | flag);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (ino, name) = (Ino(r.u64()?), XattrName::decode(r)?);
        let value = read_value(r)?;
        let bits = r.u8()?;
        let mode = match bits & !DROPS_SET_GID {
            0 => XattrMode::Any,
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => return Err(WireError::Field("mode of an extended attribute")),
        };
        Ok(Self { ino, name, value, mode, drops_set_gid: bits & DROPS_SET_GID != 0 })
    }
}
