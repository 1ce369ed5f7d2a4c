//! `.stats` and `.accesslog` in the root of a mount: no meta knows of them, and no listing contains
//! them.
//!
//! In the root these names refer to the virtual files, even if real files of these names exist; to
//! reach the real files, mount with `-o nowatch`.

use std::collections::HashMap;
use std::sync::Arc;

use millpond_fuse_wire::abi::{Attr, AttrOut, EntryOut, OpenFlags, OpenOut, ReadIn, StatxOut};
use millpond_fuse_wire::{Device, Operation, Reply, Request};
use millpond_types::meta::{Ino, MetaError, MetaOp, Name};
use parking_lot::Mutex;

use super::log::{Asker, Taken};
use super::{Shown, Watch, page};
use crate::errno::Errno;
use crate::fs::{Fs, statx_of};
use crate::options::Mode;
use crate::worker::send;

/// Their inode numbers: metas count up from 1, and will not reach these.
const STATS: Ino = Ino(0x7fff_ffff_ffff_ff01);
const ACCESS_LOG: Ino = Ino(0x7fff_ffff_ffff_ff02);
/// The files with their names and permissions. Lines of the log contain names of files that its
/// reader may have no access to.
const FILES: [(Ino, &str, u32); 2] = [(STATS, ".stats", 0o444), (ACCESS_LOG, ".accesslog", 0o400)];
/// The largest number of open descriptors of `.stats`.
const SNAPSHOTS_MAX: usize = 64;
/// The preferred size of reads in `stat`, in bytes.
const PIECE_BYTES: u32 = 128 << 10;

/// The text of `.stats` at the open of each descriptor.
#[derive(Debug, Default)]
pub(super) struct Snapshots(Mutex<HashMap<u64, Arc<str>>>);

fn named(name: &[u8]) -> Option<Ino> {
    FILES.iter().find(|(_, own, _)| own.as_bytes() == name).map(|(ino, _, _)| *ino)
}

fn is_virtual(ino: u64) -> bool {
    FILES.iter().any(|(own, _, _)| own.0 == ino)
}

/// The request for a virtual file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    /// A lookup of its name.
    Find(Ino),
    /// An operation on the inode itself.
    Use(Ino),
    /// A create of its name.
    Make,
    /// A removal, rename or link of it.
    Change,
}

/// Classifies a request; `None` when it concerns other files, as nearly all do.
fn wish(request: &Request<'_>) -> Option<Wish> {
    let node = request.header.nodeid;
    if is_virtual(node) {
        return Some(Wish::Use(Ino(node)));
    }
    let root = node == Ino::ROOT.0;
    let reserved = |name: &[u8]| root && named(name).is_some();
    match &request.operation {
        Operation::Lookup { name } if root => named(name).map(Wish::Find),
        Operation::Create { name, .. }
        | Operation::Mknod { name, .. }
        | Operation::Mkdir { name, .. }
        | Operation::Symlink { name, .. }
            if reserved(name) =>
        {
            Some(Wish::Make)
        }
        Operation::Unlink { name } | Operation::Rmdir { name } if reserved(name) => {
            Some(Wish::Change)
        }
        Operation::Rename { name, new_parent, new_name, .. } => {
            let onto = *new_parent == Ino::ROOT.0 && named(new_name).is_some();
            (reserved(name) || onto).then_some(Wish::Change)
        }
        Operation::Link { inode, .. } if is_virtual(*inode) => Some(Wish::Change),
        Operation::Link { name, .. } if reserved(name) => Some(Wish::Make),
        _ => None,
    }
}

/// How long the kernel caches entries of virtual files, in seconds and nanoseconds.
fn kept(mode: Mode) -> (u64, u32) {
    let kept = mode.kept();
    (kept.as_secs(), kept.subsec_nanos())
}

impl Fs {
    /// Answers a request about a virtual file; false when it concerns another file.
    pub(crate) fn serve_virtual(&self, request: &Request<'_>, device: &Arc<Device>) -> bool {
        if !self.watch.shown {
            return false;
        }
        let Some(wish) = wish(request) else { return false };
        let to = request.reply_to();
        let answer = |reply: Reply<'_>| send(device, to, &reply);
        match wish {
            Wish::Find(ino) => answer(Reply::Entry(self.virtual_entry(ino))),
            Wish::Make => answer(Reply::Error(libc::EEXIST)),
            Wish::Change => answer(Reply::Error(libc::EPERM)),
            Wish::Use(ino) => {
                if !request.opcode().wants_reply() {
                    return true;
                }
                if let Err(Errno(errno)) = self.use_virtual(ino, request, device) {
                    answer(Reply::Error(errno));
                }
            }
        }
        true
    }

    fn virtual_entry(&self, ino: Ino) -> EntryOut {
        let (secs, nanos) = kept(self.mode);
        EntryOut {
            nodeid: ino.0,
            generation: 0,
            entry_valid: secs,
            attr_valid: secs,
            entry_valid_nsec: nanos,
            attr_valid_nsec: nanos,
            attr: self.watch.attr(ino),
        }
    }

    fn use_virtual(
        &self,
        ino: Ino,
        request: &Request<'_>,
        device: &Arc<Device>,
    ) -> Result<(), Errno> {
        let to = request.reply_to();
        let answer = |reply: Reply<'_>| send(device, to, &reply);
        match &request.operation {
            Operation::Lookup { name: b"." } => answer(Reply::Entry(self.virtual_entry(ino))),
            Operation::Getattr(_) => {
                let (attr_valid, attr_valid_nsec) = kept(self.mode);
                let attr = self.watch.attr(ino);
                answer(Reply::Attr(AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr }));
            }
            Operation::Statx(_) => {
                let stat = statx_of(self.watch.attr(ino), None);
                answer(Reply::Statx(&StatxOut::new(stat, self.mode.kept())));
            }
            Operation::Open(args) => {
                let flags = args.flags.cast_signed();
                if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0 {
                    return Err(Errno(libc::EPERM));
                }
                // The kernel's number of the request: no other descriptor of the mount has it, nor
                // will a descriptor that a later process opens.
                let handle = request.unique();
                answer(Reply::Open(self.open_virtual(ino, handle)?));
            }
            Operation::Read(args) if ino == STATS => {
                let text = self.snapshot(args)?;
                let from = usize::try_from(args.offset).unwrap_or(usize::MAX).min(text.len());
                let end = from.saturating_add(args.size as usize).min(text.len());
                answer(Reply::Data(&text.as_bytes()[from..end]));
            }
            Operation::Read(args) => {
                let waits = args.flags.cast_signed() & libc::O_NONBLOCK == 0;
                let asker = || Asker { unique: request.unique(), to, device: Arc::clone(device) };
                let wanted = (args.size as usize, waits);
                match self.watch.log.read(args.fh, wanted, asker) {
                    Taken::Lines(lines) => answer(Reply::Data(&lines)),
                    Taken::Nothing => return Err(Errno(libc::EAGAIN)),
                    Taken::Interrupted => return Err(Errno(libc::EINTR)),
                    Taken::Later => {}
                }
            }
            Operation::Release(args) => {
                self.watch.log.close(args.fh);
                self.watch.snapshots.0.lock().remove(&args.fh);
                answer(Reply::Done);
            }
            Operation::Flush(_) | Operation::Fsync(_) => answer(Reply::Done),
            Operation::Setattr(_) => return Err(Errno(libc::EPERM)),
            // An errno that does not disable the operation: other files have holes.
            Operation::Lseek(_) => return Err(Errno::INVAL),
            // As with every file of a mount: the kernel then stops sending it.
            Operation::Poll(_) => return Err(Errno::NOSYS),
            _ => return Err(Errno::NOTSUP),
        }
        Ok(())
    }

    fn open_virtual(&self, ino: Ino, handle: u64) -> Result<OpenOut, Errno> {
        let busy = Errno(libc::EBUSY);
        // Nothing needs a flush. A program that starts another one closes its descriptors on the
        // way, which must not wait for a mount with an unreachable cluster.
        let flags = OpenFlags::DIRECT_IO | OpenFlags::NOFLUSH;
        if ino == ACCESS_LOG {
            let flags = flags | OpenFlags::NONSEEKABLE | OpenFlags::STREAM;
            let open = self.watch.log.open(handle);
            return if open { Ok(OpenOut::new(handle, flags)) } else { Err(busy) };
        }
        let text = self.stats();
        let mut snapshots = self.watch.snapshots.0.lock();
        if snapshots.len() >= SNAPSHOTS_MAX && !snapshots.contains_key(&handle) {
            return Err(busy);
        }
        snapshots.insert(handle, text);
        Ok(OpenOut::new(handle, flags))
    }

    fn stats(&self) -> Arc<str> {
        let shown = Shown { mount: self.watch.mount.clone(), picture: Some(self.picture()) };
        page(&[shown]).into()
    }

    /// The text as of the open. That of an earlier process is gone: its reader must start over.
    fn snapshot(&self, args: &ReadIn) -> Result<Arc<str>, Errno> {
        if let Some(text) = self.watch.snapshots.0.lock().get(&args.fh) {
            return Ok(Arc::clone(text));
        }
        if args.offset > 0 {
            return Err(Errno(libc::ESTALE));
        }
        self.open_virtual(STATS, args.fh)?;
        self.watch.snapshots.0.lock().get(&args.fh).cloned().ok_or(Errno::IO)
    }

    /// Warns in the log when the virtual files hide files of a user.
    pub(crate) fn warn_of_hidden(&self) {
        if !self.watch.shown {
            return;
        }
        for (_, name, _) in FILES {
            let ticket = &mut self.backend.own_ticket();
            let Ok(own) = Name::new(name.as_bytes()) else { continue };
            let op = MetaOp::Lookup { parent: Ino::ROOT, name: own };
            match self.backend.meta(ticket, op) {
                Err(errno) if errno == Errno::from(MetaError::NotFound) => {}
                Err(Errno(errno)) => tracing::warn!("cannot look for a file {name}: errno {errno}"),
                Ok(_) => tracing::warn!(
                    "{}/{name} is hidden by the mount's own file of that name: mount with -o \
                     nowatch to see it",
                    self.watch.mount
                ),
            }
        }
    }
}

impl Watch {
    /// Whether a virtual file has this name.
    pub(crate) fn hides(&self, dir: Ino, name: &[u8]) -> bool {
        self.shown && dir == Ino::ROOT && named(name).is_some()
    }

    fn attr(&self, ino: Ino) -> Attr {
        let permissions = FILES.iter().find(|(own, _, _)| *own == ino).map_or(0, |file| file.2);
        let (seconds, nanos) = (self.since.secs.cast_unsigned(), self.since.nanos);
        Attr {
            ino: ino.0,
            atime: seconds,
            mtime: seconds,
            ctime: seconds,
            atimensec: nanos,
            mtimensec: nanos,
            ctimensec: nanos,
            mode: libc::S_IFREG | permissions,
            nlink: 1,
            uid: self.owner,
            blksize: PIECE_BYTES,
            ..Attr::default()
        }
    }
}
