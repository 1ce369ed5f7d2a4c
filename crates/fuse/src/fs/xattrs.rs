//! Extended attributes.

use millpond_fuse_wire::{Operation, Reply};
use millpond_types::meta::{
    Ino, MetaOp, MetaReply, Setxattr, XATTR_BYTES_MAX, XattrMode, XattrName,
};

use super::{Fs, Send};
use crate::backend::{Ticket, unexpected};
use crate::errno::Errno;

/// Access control lists are not kept, so nobody may think that they are.
const NOT_KEPT: &[u8] = b"system.";

fn named(name: &[u8]) -> Result<XattrName, Errno> {
    if name.starts_with(NOT_KEPT) {
        return Err(Errno::NOTSUP);
    }
    XattrName::new(name).map_err(|_| Errno::RANGE)
}

/// Answers with a value, or its length.
fn send_value(value: &[u8], size: u32, send: Send<'_>) -> Result<(), Errno> {
    if size == 0 {
        send(Reply::XattrSize(u32::try_from(value.len()).unwrap_or(u32::MAX)));
    } else if value.len() > size as usize {
        return Err(Errno::RANGE);
    } else {
        send(Reply::Data(value));
    }
    Ok(())
}

impl Fs {
    pub(super) fn on_xattr(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        operation: &Operation<'_>,
        send: Send<'_>,
    ) -> Result<(), Errno> {
        match operation {
            Operation::Getxattr { size, name } => {
                let op = MetaOp::GetXattr { ino, name: named(name)? };
                let MetaReply::Xattr(value) = self.backend.meta(ticket, op)? else {
                    return Err(unexpected());
                };
                send_value(&value, *size, send)
            }
            Operation::Listxattr { size } => {
                let MetaReply::Xattrs(names) =
                    self.backend.meta(ticket, MetaOp::ListXattr { ino })?
                else {
                    return Err(unexpected());
                };
                let list: Vec<u8> = names
                    .iter()
                    .flat_map(|name| name.as_bytes().iter().copied().chain([0]))
                    .collect();
                send_value(&list, *size, send)
            }
            Operation::Setxattr { flags, name, value, .. } => {
                if value.len() > XATTR_BYTES_MAX {
                    return Err(Errno::TOO_BIG);
                }
                let mode = match flags.cast_signed() {
                    0 => XattrMode::Any,
                    libc::XATTR_CREATE => XattrMode::Create,
                    libc::XATTR_REPLACE => XattrMode::Replace,
                    _ => return Err(Errno::INVAL),
                };
                let set = Setxattr { ino, name: named(name)?, value: value.to_vec(), mode };
                self.backend.meta(ticket, MetaOp::SetXattr(set))?;
                send(Reply::Done);
                Ok(())
            }
            Operation::Removexattr { name } => {
                let op = MetaOp::RemoveXattr { ino, name: named(name)? };
                self.backend.meta(ticket, op)?;
                send(Reply::Done);
                Ok(())
            }
            _ => Err(Errno::NOSYS),
        }
    }
}
