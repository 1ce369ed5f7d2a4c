//! Names: lookups, creation, removal and renames.

use millpond_env::RealClock;
use millpond_fuse_wire::abi::{CreateIn, OpenOut, RenameFlags};
use millpond_fuse_wire::{Operation, Reply};
use millpond_types::meta::{
    Answered, Create, FileKind, Ino, MetaError, MetaOp, MetaReply, Name, Rename,
};

use super::{Fs, Send};
use crate::backend::{Ticket, Told, unexpected};
use crate::errno::Errno;
use crate::files::Bare;

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
                self.look_up(ticket, (ino, name), send)?;
            }
            Operation::Readlink => match self.backend.meta(ticket, MetaOp::ReadLink { ino })? {
                MetaReply::Target(target) => send(Reply::Data(&target)),
                _ => return Err(unexpected()),
            },
            Operation::Symlink { name, target } => {
                let wanted = new(ino, name, FileKind::Symlink, (0o777, None))?;
                self.make(ticket, Create { target: target.to_vec(), ..wanted }, send)?;
            }
            Operation::Mkdir { args, name } => {
                let mode = self.mode_of(args.mode, args.umask);
                let told = self.make_dir(ticket, new(ino, name, FileKind::Directory, mode)?)?;
                self.send_entry((ino, name), told, send);
            }
            Operation::Mknod { args, name } => {
                let kind = FileKind::from_mode(args.mode).unwrap_or(FileKind::Regular);
                let mode = self.mode_of(args.mode, args.umask);
                let wanted = new(ino, name, kind, mode)?;
                self.make(ticket, Create { rdev: args.rdev, ..wanted }, send)?;
            }
            Operation::Link { inode, name } => {
                let (old, name) = (Ino(*inode), Name::new(name)?);
                let told = self
                    .backend
                    .attr(ticket, MetaOp::Link { ino: old, parent: ino, name: name.clone() })?;
                self.send_entry((ino, name.as_bytes()), told, send);
            }
            Operation::Create { args, name } => self.create(ticket, (ino, name), args, send)?,
            Operation::Tmpfile { args, name } => {
                self.make_nameless(ticket, (ino, name), args, send)?;
            }
            Operation::Unlink { name } => {
                let name = Name::new(name)?;
                if !self.promise_unlink(ticket, ino, &name) {
                    self.backend.meta(ticket, MetaOp::Unlink { parent: ino, name, of: None })?;
                }
                send(Reply::Done);
            }
            Operation::Rmdir { name } => {
                let op = MetaOp::RemoveDir { parent: ino, name: Name::new(name)? };
                let done = self.backend.meta(ticket, op)?;
                if let (Some(delegations), MetaReply::Removed(removed)) =
                    (&self.backend.behind.delegations, done)
                {
                    delegations.gone(removed.ino);
                }
                send(Reply::Done);
            }
            Operation::Rename { new_parent, flags, name, new_name } => {
                let wanted = Rename {
                    parent: ino,
                    name: Name::new(name)?,
                    new_parent: Ino(*new_parent),
                    new_name: Name::new(new_name)?,
                    no_replace: flags.contains(RenameFlags::NOREPLACE),
                    exchange: flags.contains(RenameFlags::EXCHANGE),
                    whiteout: flags.contains(RenameFlags::WHITEOUT),
                };
                self.backend.meta(ticket, MetaOp::Rename(wanted))?;
                send(Reply::Done);
            }
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    /// The mode of a new inode. The umask is separate where a meta applies it, because a default
    /// access control list may take its place.
    pub(super) fn mode_of(&self, mode: u32, umask: u32) -> (u16, Option<u16>) {
        if self.acl {
            (permissions(mode), Some(permissions(umask & 0o777)))
        } else {
            (permissions(mode & !umask), None)
        }
    }

    /// Answers that a name does not exist, if that is known.
    fn look_up_born(&self, (parent, name): (Ino, &[u8]), send: Send<'_>) -> bool {
        let keeping = self.keeping();
        let since =
            self.backend.born.lacks(parent, name).filter(|at| keeping.believes(parent, *at));
        let Some(since) = since else { return false };
        let nothing = keeping.no_entry((parent, name), since);
        send(nothing.map_or(Reply::Error(libc::ENOENT), Reply::Entry));
        true
    }

    /// The inode of a name; NFS servers look up `.` and `..`.
    fn look_up(
        &self,
        ticket: &mut Ticket,
        (parent, name): (Ino, &[u8]),
        send: Send<'_>,
    ) -> Result<(), Errno> {
        let op = match name {
            b"." => MetaOp::GetAttr { ino: parent },
            b".." => {
                let dir = self.backend.attr(ticket, MetaOp::GetAttr { ino: parent })?;
                MetaOp::GetAttr { ino: dir.attr.parent }
            }
            name => MetaOp::Lookup { parent, name: Name::new(name)? },
        };
        let is_name = matches!(op, MetaOp::Lookup { .. });
        if is_name
            && !self.backend.behind.has_dir(parent)
            && self.look_up_born((parent, name), send)
        {
            return Ok(());
        }
        let before = self.backend.settled.all_changes();
        let Answered { answer, version, .. } = self.ask_for_name(ticket, (parent, name), op)?;
        let attr = match answer {
            Ok(MetaReply::Attr(attr)) => attr,
            Ok(MetaReply::Entry(entry)) => entry.attr,
            Ok(_) => return Err(unexpected()),
            Err(MetaError::NotFound) => {
                let keeping = self.keeping();
                let nothing = keeping.no_entry((parent, name), version);
                send(nothing.map_or(Reply::Error(libc::ENOENT), Reply::Entry));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let told = Told { attr, version };
        self.note_looked(told, before);
        self.send_entry((parent, name), told, send);
        Ok(())
    }

    /// Caches a meta's attributes of an inode, because the kernel may ask for its creation time.
    pub(super) fn note_looked(&self, told: Told, before: u64) {
        // Where promises are made everywhere, `settled` does not see new names as changes of a
        // directory.
        if !(told.attr.is_dir() && self.backend.behind.is_sole()) {
            self.backend.settled.note_looked(told, before);
        }
    }

    fn send_entry(&self, name: (Ino, &[u8]), told: Told, send: Send<'_>) {
        let keeping = self.keeping();
        send(Reply::Entry(keeping.entry(name, told)));
    }

    fn make(&self, ticket: &mut Ticket, wanted: Create, send: Send<'_>) -> Result<(), Errno> {
        let (parent, name) = (wanted.parent, wanted.name.clone());
        let told = self.backend.attr(ticket, MetaOp::Create(wanted))?;
        self.send_entry((parent, name.as_bytes()), told, send);
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
        let mode = self.mode_of(args.mode, args.umask);
        let wanted = new(parent, name, FileKind::Regular, mode)?;
        let wanted = Create { exclusive: flags & libc::O_EXCL != 0, ..wanted };
        let promised = self.promise_create(ticket, &wanted);
        let (told, is_new) = match promised {
            Some(told) => (told, told.attr.version == 0),
            None => self.create_now(ticket, wanted, args)?,
        };
        let asked = RealClock::tick();
        let file = self.files().open(ticket.unique(), told);
        if is_new {
            // The kernel asks before it writes; a new file has none.
            let version = told.version;
            file.note_bare(Bare { asked, version }, file.xattr_changes());
        }
        let flags = self.open_flags(told.attr);
        let keeping = self.keeping();
        let out = OpenOut::new(ticket.unique(), flags);
        send(Reply::Create(keeping.entry((parent, name), told), out));
        Ok(())
    }

    /// Has a meta make the file, or open the existing one; returns whether it is new.
    fn create_now(
        &self,
        ticket: &mut Ticket,
        wanted: Create,
        args: &CreateIn,
    ) -> Result<(Told, bool), Errno> {
        let (parent, name) = (wanted.parent, wanted.name.clone());
        let Answered { answer, version, .. } = self.backend.ask(ticket, MetaOp::Create(wanted))?;
        let MetaReply::Entry(entry) = answer? else { return Err(unexpected()) };
        let told = Told { attr: entry.attr, version };
        if !entry.created && args.flags.cast_signed() & libc::O_TRUNC != 0 {
            return Ok((self.cut_at_open(ticket, &told.attr, args.open_flags)?, false));
        }
        self.note_made(parent, &name, (told.attr, entry.created));
        Ok((told, entry.created))
    }
}

/// A create of a regular file that must not exist.
fn new(
    parent: Ino,
    name: &[u8],
    kind: FileKind,
    (mode, umask): (u16, Option<u16>),
) -> Result<Create, Errno> {
    let name = Name::new(name)?;
    let target = Vec::new();
    Ok(Create {
        parent,
        name,
        kind,
        mode,
        umask,
        rdev: 0,
        target,
        exclusive: true,
        promised: None,
        delegate: None,
    })
}
