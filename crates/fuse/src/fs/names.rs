//! Names: looked up, made, removed, changed.

use millpond_fuse_wire::abi::{CreateIn, OpenOut, RenameFlags};
use millpond_fuse_wire::{Operation, Reply};
use millpond_types::meta::{Attr, Create, FileKind, Ino, MetaOp, MetaReply, Name, Rename, SetAttr};

use super::{Fs, Send};
use crate::backend::{Ticket, unexpected};
use crate::errno::Errno;

fn permissions(mode: u32) -> u16 {
    u16::try_from(mode & 0o7777).unwrap_or(0)
}

impl Fs {
    pub(super) fn on_name(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        operation: &Operation<'_>,
        send: Send<'_>,
    ) -> Result<(), Errno> {
        match operation {
            Operation::Lookup { name } => {
                let attr = self.look_up(ticket, ino, name)?;
                send(Reply::Entry(self.entry_out(&attr)));
            }
            Operation::Readlink => match self.backend.meta(ticket, MetaOp::ReadLink { ino })? {
                MetaReply::Target(target) => send(Reply::Data(&target)),
                _ => return Err(unexpected()),
            },
            Operation::Symlink { name, target } => {
                let wanted = new(ino, name, FileKind::Symlink, 0o777)?;
                self.make(ticket, Create { target: target.to_vec(), ..wanted }, send)?;
            }
            Operation::Mkdir { args, name } => {
                let mode = permissions(args.mode & !args.umask);
                self.make(ticket, new(ino, name, FileKind::Directory, mode)?, send)?;
            }
            Operation::Mknod { args, name } => {
                let kind = FileKind::from_mode(args.mode).unwrap_or(FileKind::Regular);
                let mode = permissions(args.mode & !args.umask);
                let wanted = new(ino, name, kind, mode)?;
                self.make(ticket, Create { rdev: args.rdev, ..wanted }, send)?;
            }
            Operation::Link { inode, name } => {
                let (old, name) = (Ino(*inode), Name::new(name)?);
                let op = MetaOp::Link { ino: old, parent: ino, name };
                let attr = self.backend.attr(ticket, op)?;
                send(Reply::Entry(self.entry_out(&attr)));
            }
            Operation::Create { args, name } => self.create(ticket, (ino, name), args, send)?,
            Operation::Unlink { name } => {
                let op = MetaOp::Unlink { parent: ino, name: Name::new(name)? };
                self.backend.meta(ticket, op)?;
                send(Reply::Done);
            }
            Operation::Rmdir { name } => {
                let op = MetaOp::RemoveDir { parent: ino, name: Name::new(name)? };
                self.backend.meta(ticket, op)?;
                send(Reply::Done);
            }
            Operation::Rename { new_parent, flags, name, new_name } => {
                if flags.contains(RenameFlags::WHITEOUT) {
                    return Err(Errno::INVAL);
                }
                let wanted = Rename {
                    parent: ino,
                    name: Name::new(name)?,
                    new_parent: Ino(*new_parent),
                    new_name: Name::new(new_name)?,
                    no_replace: flags.contains(RenameFlags::NOREPLACE),
                    exchange: flags.contains(RenameFlags::EXCHANGE),
                };
                self.backend.meta(ticket, MetaOp::Rename(wanted))?;
                send(Reply::Done);
            }
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    /// The inode of a name; `.` and `..` are asked for by NFS servers.
    fn look_up(&self, ticket: &mut Ticket, parent: Ino, name: &[u8]) -> Result<Attr, Errno> {
        match name {
            b"." => self.backend.attr(ticket, MetaOp::GetAttr { ino: parent }),
            b".." => {
                let dir = self.backend.attr(ticket, MetaOp::GetAttr { ino: parent })?;
                self.backend.attr(ticket, MetaOp::GetAttr { ino: dir.parent })
            }
            name => self.backend.attr(ticket, MetaOp::Lookup { parent, name: Name::new(name)? }),
        }
    }

    fn make(&self, ticket: &mut Ticket, wanted: Create, send: Send<'_>) -> Result<(), Errno> {
        let attr = self.backend.attr(ticket, MetaOp::Create(wanted))?;
        send(Reply::Entry(self.entry_out(&attr)));
        Ok(())
    }

    fn create(
        &self,
        ticket: &mut Ticket,
        (parent, name): (Ino, &[u8]),
        args: &CreateIn,
        send: Send<'_>,
    ) -> Result<(), Errno> {
        let flags = args.flags.cast_signed();
        let mode = permissions(args.mode & !args.umask);
        let wanted = new(parent, name, FileKind::Regular, mode)?;
        let wanted = Create { exclusive: flags & libc::O_EXCL != 0, ..wanted };
        let MetaReply::Entry(entry) = self.backend.meta(ticket, MetaOp::Create(wanted))? else {
            return Err(unexpected());
        };
        let mut attr = entry.attr;
        if !entry.created && flags & libc::O_TRUNC != 0 {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            attr = self.resize(ticket, attr.ino, set)?;
        }
        let _file = self.files().open(ticket.unique(), attr);
        send(Reply::Create(self.entry_out(&attr), OpenOut::new(0, self.open_flags())));
        Ok(())
    }
}

/// A regular name that must not be there.
fn new(parent: Ino, name: &[u8], kind: FileKind, mode: u16) -> Result<Create, Errno> {
    let name = Name::new(name)?;
    Ok(Create { parent, name, kind, mode, rdev: 0, target: Vec::new(), exclusive: true })
}
