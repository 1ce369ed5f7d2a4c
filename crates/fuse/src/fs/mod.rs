//! The operations of the kernel.
//!
//! [`Fs::dispatch`] answers one request through the `send` it is given. The kernel sends an
//! operation that it can do without (`ENOSYS`) once and never again.

mod ahead;
mod append;
mod attrs;
mod blocks;
mod cached;
mod data;
mod dirs;
mod full;
mod holes;
mod locks;
mod nameless;
mod names;
mod ordered;
mod promises;
mod set_ids;
mod shared;
mod stored;
mod xattrs;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millpond_fuse_wire::abi::{self, EntryOut, InitFlags, Kstatfs};
use millpond_fuse_wire::{Device, Operation, Pages, Reply, Request};
use millpond_types::meta::{Attr, Ino, MetaOp, MetaReply, Usage};

use crate::backend::{Backend, Ticket, Told, unexpected};
use crate::errno::Errno;
use crate::files::{File, Files};
use crate::leases::{KEPT, Leases, Look};
use crate::notices::Notices;
use crate::options::{Mode, MountSpec};

pub(crate) use attrs::statx_of;
pub(crate) use blocks::Counted;
pub(crate) use full::Full;
pub(crate) use locks::Waiting;

/// Bytes of a block in `statfs`.
const BLOCK: u32 = 4096;
/// The preferred size of reads and writes in `stat`, in bytes: each costs a round trip where the
/// kernel caches nothing.
const PIECE: u32 = 64 << 10;
/// The number of free inodes in `statfs`: numbers have 64 bits.
const INODES_LEFT: u64 = 1 << 40;

/// How long a mount without change notifications uses a file's bytes after a meta's answer. Shorter
/// than the time for which metas keep bytes cut off elsewhere (`GARBAGE_KEEP_MS`), so that removed
/// bytes are never read.
const BELIEVED: Duration = Duration::from_secs(1);

/// The file system of one mount.
#[derive(Debug)]
pub(crate) struct Fs {
    pub(crate) backend: Backend,
    /// False on a mount that forgets the kernel's numbers of requests: resent requests are executed
    /// again. For the test that shows their purpose.
    pub(crate) remembers: bool,
    pub(crate) mode: Mode,
    /// Whether the kernel checks access control lists, and leaves the umask to metas.
    pub(crate) acl: bool,
    pub(crate) wake: crate::session::Wake,
    pub(crate) leases: Leases,
    /// The device for notifications to the kernel, once it is mounted.
    pub(crate) device: OnceLock<Arc<Device>>,
    pub(crate) watch: crate::watch::Watch,
    pub(crate) ahead: crate::ahead::Ahead,
    pub(crate) bandwidth: crate::budget::Bandwidth,
    pub(crate) cached: Option<Arc<crate::cached::Cache>>,
    pub(crate) notices: Notices,
    pub(crate) counted: Counted,
    pub(crate) full: Full,
    /// Whether access times are updated.
    pub(crate) relatime: bool,
    /// The time within which a request of the kernel is answered.
    pub(crate) timeout: Duration,
}

/// Cached state of a file that the kernel is to drop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stale {
    pub(crate) ino: Ino,
    pub(crate) pages: Pages,
    /// Its new state; `None` where that does not matter.
    pub(crate) now: Option<Told>,
}

/// An answer that is sent later.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Done,
    Written(u32),
    Failed(Errno),
}

impl Answer {
    pub(crate) const fn reply(self) -> Reply<'static> {
        match self {
            Self::Done => Reply::Done,
            Self::Written(bytes) => Reply::Written(bytes),
            Self::Failed(Errno(errno)) => Reply::Error(errno),
        }
    }
}

/// A request that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aside {
    /// It waits for a lock.
    Waits(Waiting),
    /// It is done, and answered once the kernel has dropped cached state.
    Drops(Stale, Answer),
}

/// Sends the answer to a request.
pub(crate) type Send<'s> = &'s mut dyn FnMut(Reply<'_>);

/// The features requested from the kernel.
pub(crate) fn wishes(spec: &MountSpec) -> InitFlags {
    let of_mode = match spec.mode {
        // The kernel then believes its own length and modification time of a file, and ignores
        // those of metas.
        Mode::OneWriter => InitFlags::WRITEBACK_CACHE.with(InitFlags::CACHE_SYMLINKS),
        Mode::ReadOnly => InitFlags::CACHE_SYMLINKS,
        Mode::Strict | Mode::CloseToOpen | Mode::Relaxed => InitFlags::AUTO_INVAL_DATA,
    };
    // In a directory with a default list the umask does not apply.
    let of_lists = InitFlags::POSIX_ACL.with(InitFlags::DONT_MASK);
    of_mode
        | if spec.acl { of_lists } else { InitFlags::NONE }
        | if spec.idmap { InitFlags::ALLOW_IDMAP } else { InitFlags::NONE }
        | InitFlags::ASYNC_READ
        | InitFlags::ATOMIC_O_TRUNC
        | InitFlags::DO_READDIRPLUS
        | InitFlags::READDIRPLUS_AUTO
        | InitFlags::ASYNC_DIO
        | InitFlags::PARALLEL_DIROPS
        | InitFlags::ABORT_ERROR
        | InitFlags::EXPORT_SUPPORT
        | InitFlags::HAS_EXPIRE_ONLY
        | InitFlags::DIRECT_IO_ALLOW_MMAP
        | InitFlags::HAS_RESEND
        | InitFlags::HANDLE_KILLPRIV_V2
        | InitFlags::POSIX_LOCKS
        | InitFlags::FLOCK_LOCKS
}

impl Fs {
    /// Answers one request, or hands it back if it must wait.
    pub(crate) fn dispatch(
        &self,
        request: &Request<'_>,
        scratch: &mut Vec<u8>,
        send: Send<'_>,
    ) -> Option<Aside> {
        let header = &request.header;
        let mut ticket = Ticket::of_request(request.unique(), header);
        if !self.remembers {
            ticket = ticket.forgetful(&self.backend.own_ticket());
        }
        let ino = Ino(header.nodeid);
        let done = match &request.operation {
            // The kernel's references are not counted, because no state depends on them. A slow
            // operation is answered when it is done, interrupted or not.
            Operation::Forget { .. }
            | Operation::BatchForget { .. }
            | Operation::NotifyReply { .. }
            | Operation::Interrupt { .. } => return None,
            Operation::Setlk(args) => self.set_lock_now(&mut ticket, ino, args, send),
            Operation::Setlkw(args) => self.begin_waiting(ino, args, send),
            Operation::Write { args, data } => self.write(&mut ticket, ino, (args, data), send),
            operation => {
                let done = self.answer(&mut ticket, ino, (operation, scratch), send);
                done.map(|()| None)
            }
        };
        match done {
            Ok(Some(aside)) => return Some(aside),
            Ok(None) => {}
            Err(Errno(errno)) => send(Reply::Error(errno)),
        }
        self.files().answered(request.unique());
        None
    }

    pub(crate) const fn files(&self) -> &Files {
        &self.backend.files
    }

    fn answer(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        (operation, scratch): (&Operation<'_>, &mut Vec<u8>),
        send: Send<'_>,
    ) -> Result<(), Errno> {
        match operation {
            Operation::Lookup { .. }
            | Operation::Symlink { .. }
            | Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. }
            | Operation::Readlink
            | Operation::Create { .. }
            | Operation::Tmpfile { .. } => self.on_name(ticket, ino, operation, send),
            Operation::Setxattr { .. }
            | Operation::Getxattr { .. }
            | Operation::Listxattr { .. }
            | Operation::Removexattr { .. } => self.on_xattr(ticket, ino, operation, send),
            Operation::Getattr(_) => self.get_attr(ticket, ino, send),
            Operation::Statx(_) => self.statx(ticket, ino, send),
            Operation::Lseek(args) => self.seek(ticket, ino, args, send),
            Operation::Setattr(args) => self.set_attr(ticket, ino, args, send),
            Operation::Open(args) => self.open(ticket, ino, *args, send),
            Operation::Read(args) => self.read(ticket, ino, (args, scratch), send),
            Operation::Flush(args) => self.flush(ino, *args, send),
            Operation::Fsync(_) => self.sync(ino, send),
            Operation::Release(args) => self.release(ticket, ino, args, send),
            Operation::Getlk(args) => self.get_lock(ticket, ino, args, send),
            Operation::Fallocate(args) => self.fallocate(ticket, ino, args, send),
            Operation::Opendir(args) => self.open_dir(ticket, ino, (args, send)),
            Operation::Readdir(args) => self.read_dir(ticket, ino, (args, false), send),
            Operation::Readdirplus(args) => self.read_dir(ticket, ino, (args, true), send),
            Operation::Releasedir(_) => {
                let _ = self.files().close(ticket.unique(), ino);
                send(Reply::Done);
                Ok(())
            }
            // Every change of a directory is durable before it is answered, except promises.
            Operation::Fsyncdir(_) => {
                self.backend.behind.wait_inode(ino)?;
                self.backend.behind.failure(ino)?;
                send(Reply::Done);
                Ok(())
            }
            Operation::Destroy | Operation::Syncfs => {
                self.backend.behind.wait_all()?;
                send(Reply::Done);
                Ok(())
            }
            Operation::Statfs => self.statfs(ticket, ino, send),
            _ => Err(Errno::NOSYS),
        }
    }

    fn statfs(&self, ticket: &mut Ticket, dir: Ino, send: Send<'_>) -> Result<(), Errno> {
        let usage = self.usage_at(ticket, dir)?;
        let free = usage.bytes_free / u64::from(BLOCK);
        send(Reply::Statfs(Kstatfs {
            blocks: usage.bytes / u64::from(BLOCK),
            bfree: free,
            bavail: free,
            files: usage.inodes + INODES_LEFT,
            ffree: INODES_LEFT,
            bsize: BLOCK,
            namelen: 255,
            frsize: BLOCK,
            ..Kstatfs::default()
        }));
        Ok(())
    }

    /// Usage of the nearest quota above an inode; of the volume where there is none, or the inode
    /// no longer exists.
    fn usage_at(&self, ticket: &mut Ticket, dir: Ino) -> Result<Usage, Errno> {
        match self.usage(ticket, MetaOp::UsageAt { dir }) {
            Err(Errno::STALE) => self.usage(ticket, MetaOp::Usage),
            told => told,
        }
    }

    fn usage(&self, ticket: &mut Ticket, op: MetaOp) -> Result<Usage, Errno> {
        match self.backend.meta(ticket, op)? {
            MetaReply::Usage(usage) => Ok(usage),
            _ => Err(unexpected()),
        }
    }

    /// Fails when there is no room for this many more bytes, by numbers up to a second old.
    fn check_room(&self, ticket: &mut Ticket, ino: Ino, more: u64) -> Result<(), Errno> {
        if more == 0 {
            return Ok(());
        }
        let here = self.usage_at(ticket, ino)?;
        if more <= here.bytes_free {
            return Ok(());
        }
        let pool = self.usage(ticket, MetaOp::Usage)?;
        match pool {
            // The usage is not known yet.
            Usage { bytes: 0, .. } => Ok(()),
            Usage { bytes_free, .. } if more > bytes_free => Err(Errno::NOSPC),
            _ => Err(Errno::DQUOT),
        }
    }

    /// A guard with the caching times for the kernel; answers must be sent while it lives.
    pub(crate) fn keeping(&self) -> Keeping<'_> {
        let look = (self.mode == Mode::CloseToOpen).then(|| self.leases.look());
        Keeping { fs: self, look }
    }

    /// Whether the cached state of a file is valid for the mount's mode.
    pub(crate) fn believes(&self, file: &File) -> bool {
        match self.mode {
            Mode::Strict => false,
            Mode::CloseToOpen => {
                self.backend.behind.has_file(file.ino)
                    || self.leases.look().inode(file.ino, file.version())
            }
            Mode::Relaxed | Mode::OneWriter | Mode::ReadOnly => file.is_fresh(BELIEVED),
        }
    }

    /// Whether no other client has changed an inode since a meta reported it, as far as the mount
    /// knows.
    pub(crate) fn holds(&self, told: &Told) -> bool {
        match self.mode {
            Mode::CloseToOpen => {
                self.backend.behind.has_file(told.attr.ino)
                    || self.leases.look().inode(told.attr.ino, told.version)
            }
            // The kernel believes that, too.
            Mode::OneWriter => true,
            Mode::Strict | Mode::Relaxed | Mode::ReadOnly => false,
        }
    }

    /// Attributes with this mount's writes that no meta knows of.
    pub(crate) fn here(&self, told: Told) -> Attr {
        self.files().get(told.attr.ino).map_or(told.attr, |file| file.learn(told))
    }
}

/// How long the kernel may cache its answers.
pub(crate) struct Keeping<'f> {
    fs: &'f Fs,
    /// In a mount with change notifications: the state it may believe. In others the mode decides.
    look: Option<Look<'f>>,
}

impl Keeping<'_> {
    fn time(&self, holds: impl FnOnce(&Look<'_>) -> bool) -> Duration {
        let leased = |look| if holds(look) { KEPT } else { Duration::ZERO };
        self.look.as_ref().map_or_else(|| self.fs.mode.kept(), leased)
    }

    /// For a name.
    fn time_of(&self, (dir, name): (Ino, &[u8]), version: u64) -> Duration {
        // A change after the end of the delegation happens after this look.
        let is_ours = |look: &Look<'_>| look.hears() && self.fs.backend.behind.has_dir(dir);
        self.time(|look| look.name(dir, name, version) || is_ours(look))
    }

    /// For an inode.
    fn time_of_inode(&self, ino: Ino, version: u64) -> Duration {
        let behind = &self.fs.backend.behind;
        let is_ours =
            |look: &Look<'_>| look.hears() && (behind.has_file(ino) || behind.has_dir(ino));
        self.time(|look| look.inode(ino, version) || is_ours(look))
    }

    /// Whether no other client has changed an inode since a version, as far as the mount knows.
    pub(crate) fn believes(&self, ino: Ino, version: u64) -> bool {
        self.look.as_ref().is_some_and(|look| look.inode(ino, version))
    }

    /// Attributes for the kernel, with their caching time.
    pub(crate) fn attr(&self, told: Told) -> (abi::Attr, Duration) {
        let attr = self.fs.here(told);
        // With bytes that no meta knows of, the kernel may not notice changes by other clients:
        // length and time are this mount's.
        if self.look.is_some() && !self.fs.files().is_untold(attr.ino) {
            self.fs.leases.tells(attr.ino, attr.version);
        }
        let Some(blocks) = self.fs.blocks(&attr) else {
            return (attr_out(&attr), Duration::ZERO);
        };
        let out = abi::Attr { blocks, ..attr_out(&attr) };
        (out, self.time_of_inode(attr.ino, told.version))
    }

    /// The kernel's entry for an inode under its name.
    pub(crate) fn entry(&self, (dir, name): (Ino, &[u8]), told: Told) -> EntryOut {
        let (attr, attr_kept) = self.attr(told);
        let kept = self.time_of((dir, name), told.version);
        EntryOut { nodeid: attr.ino, attr, ..times(kept, attr_kept) }
    }

    /// A negative entry, if the kernel may cache it.
    pub(crate) fn no_entry(&self, (dir, name): (Ino, &[u8]), version: u64) -> Option<EntryOut> {
        let kept = self.time_of((dir, name), version);
        (!kept.is_zero()).then(|| times(kept, Duration::ZERO))
    }
}

fn times(entry: Duration, attr: Duration) -> EntryOut {
    EntryOut {
        entry_valid: entry.as_secs(),
        attr_valid: attr.as_secs(),
        entry_valid_nsec: entry.subsec_nanos(),
        attr_valid_nsec: attr.subsec_nanos(),
        ..EntryOut::default()
    }
}

/// Converts attributes to the kernel's form.
pub(crate) fn attr_out(attr: &Attr) -> abi::Attr {
    let seconds = |secs: i64| secs.cast_unsigned();
    abi::Attr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.size.div_ceil(512),
        atime: seconds(attr.atime.secs),
        mtime: seconds(attr.mtime.secs),
        ctime: seconds(attr.ctime.secs),
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: attr.st_mode(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: PIECE,
        flags: abi::AttrFlags::NONE,
    }
}
