//! Extended attributes.

use millpond_env::RealClock;
use millpond_fuse_wire::abi::SetxattrFlags;
use millpond_fuse_wire::{Operation, Reply};
use millpond_types::meta::{
    AclKind, Answered, Ino, MetaError, MetaOp, MetaReply, Setxattr, XATTR_BYTES_MAX, XattrMode,
    XattrName,
};

use super::cached::ATTRIBUTE;
use super::{BELIEVED, Fs, Send};
use crate::backend::{Ticket, unexpected};
use crate::errno::Errno;
use crate::files::{Bare, File};
use crate::options::Mode;

/// The prefixes of supported names. Linux's own file systems know no others, except those of access
/// control lists ([`AclKind`]).
const KEPT: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// Both flags of setxattr(2), which contradict each other.
const BOTH: i32 = libc::XATTR_CREATE | libc::XATTR_REPLACE;
/// The attribute that is removed when the file is written to ([`super::set_ids`]).
pub(super) const CAPABILITY: &[u8] = b"security.capability";

fn named(name: &[u8]) -> Result<XattrName, Errno> {
    if is_list(name) {
        return any(name);
    }
    let rest = KEPT.iter().find_map(|class| name.strip_prefix(*class)).ok_or(Errno::NOTSUP)?;
    if rest.is_empty() {
        return Err(Errno::INVAL);
    }
    any(name)
}

/// A name to remove: an earlier version stored all except `system.`.
fn any(name: &[u8]) -> Result<XattrName, Errno> {
    XattrName::new(name).map_err(|_| Errno::RANGE)
}

fn is_list(name: &[u8]) -> bool {
    AclKind::of(name).is_some()
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
        if let Operation::Getxattr { name, .. }
        | Operation::Setxattr { name, .. }
        | Operation::Removexattr { name } = operation
            && is_list(name)
            && !self.acl
        {
            // Setting them must fail, because they have no effect here.
            return Err(Errno::NOTSUP);
        }
        match operation {
            Operation::Getxattr { size, name } => {
                send_value(&self.get_xattr(ticket, ino, name)?, *size, send)
            }
            Operation::Listxattr { size } => {
                let MetaReply::Xattrs(names) =
                    self.backend.meta(ticket, MetaOp::ListXattr { ino })?
                else {
                    return Err(unexpected());
                };
                // Only for programs with rights over the system, as on local disks.
                let is_shown = |name: &&XattrName| {
                    let name = name.as_bytes();
                    (ticket.may_be_of_root() || !name.starts_with(b"trusted."))
                        && (self.acl || !is_list(name))
                };
                let list: Vec<u8> = names
                    .iter()
                    .filter(is_shown)
                    .flat_map(|name| name.as_bytes().iter().copied().chain([0]))
                    .collect();
                send_value(&list, *size, send)
            }
            Operation::Setxattr { flags, setxattr_flags, name, value } => {
                if value.len() > XATTR_BYTES_MAX {
                    return Err(Errno::TOO_BIG);
                }
                let mode = match flags.cast_signed() {
                    0 => XattrMode::Any,
                    libc::XATTR_CREATE => XattrMode::Create,
                    libc::XATTR_REPLACE => XattrMode::Replace,
                    BOTH => return Err(self.neither(ticket, ino, name)),
                    _ => return Err(Errno::INVAL),
                };
                let drops_set_gid = setxattr_flags.contains(SetxattrFlags::ACL_KILL_SGID);
                let (name, value) = (named(name)?, value.to_vec());
                self.set_xattr(ticket, Setxattr { ino, name, value, mode, drops_set_gid })?;
                send(Reply::Done);
                Ok(())
            }
            Operation::Removexattr { name } => {
                let op = MetaOp::RemoveXattr { ino, name: any(name)? };
                match self.backend.meta(ticket, op) {
                    // Removing an absent list succeeds.
                    Err(Errno::NODATA) if is_list(name) => {}
                    Err(Errno::NODATA) => return named(name).and(Err(Errno::NODATA)),
                    done => drop(done?),
                }
                send(Reply::Done);
                Ok(())
            }
            _ => Err(Errno::NOSYS),
        }
    }

    /// The error when an attribute must both exist and not exist.
    fn neither(&self, ticket: &mut Ticket, ino: Ino, name: &[u8]) -> Errno {
        self.get_xattr(ticket, ino, name).map_or_else(|error| error, |_| Errno::EXIST)
    }

    fn set_xattr(&self, ticket: &mut Ticket, set: Setxattr) -> Result<(), Errno> {
        let (ino, kind) = (set.ino, AclKind::of(set.name.as_bytes()));
        let file = self.files().get(ino);
        let changes = || file.iter().for_each(|file| file.xattrs_change());
        changes();
        let done = self.backend.meta(ticket, MetaOp::SetXattr(set));
        changes();
        done?;
        if let Some(file) = file.filter(|_| kind == Some(AclKind::Access)) {
            // The mode has changed. If this fails, the file learns it with the next answer.
            let op = MetaOp::GetAttr { ino };
            if let Ok(told) = self.backend.attr(&mut self.backend.own_ticket(), op) {
                let _ = file.learn(told);
            }
        }
        Ok(())
    }

    /// Whether a file is believed to have no capabilities.
    pub(super) fn is_bare(&self, file: &File) -> bool {
        let believed = |Bare { asked, version }| match self.mode {
            Mode::Strict => false,
            Mode::CloseToOpen => {
                self.backend.behind.has_file(file.ino)
                    || self.leases.look().inode(file.ino, version)
            }
            Mode::Relaxed | Mode::OneWriter | Mode::ReadOnly => {
                RealClock::tick().since(asked) < BELIEVED
            }
        };
        file.bare().is_some_and(believed)
    }

    pub(super) fn get_xattr(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        name: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        if name == ATTRIBUTE && self.cached.is_some() {
            return self.ask_cache(ticket, ino);
        }
        let asked = RealClock::tick();
        let file = self.files().get(ino).filter(|_| name == CAPABILITY);
        if file.as_ref().is_some_and(|file| self.is_bare(file)) {
            return Err(Errno::NODATA);
        }
        let changes = file.as_ref().map_or(0, |file| file.xattr_changes());
        let op = MetaOp::GetXattr { ino, name: named(name)? };
        let Answered { answer, version, .. } = self.backend.ask(ticket, op)?;
        if let (Some(file), Err(MetaError::NoData)) = (&file, &answer) {
            file.note_bare(Bare { asked, version }, changes);
        }
        match answer? {
            MetaReply::Xattr(value) => Ok(value),
            _ => Err(unexpected()),
        }
    }
}
