//! Locks on files, kept by the metas, so that they hold between mounts.
//!
//! A lock that is waited for is tried at once; when it is in another's way the request is handed back
//! as [`Waiting`], and a thread of the mount tries it again and again: a thread that serves requests
//! must not wait, because the unlock it waits for is a request too.
//!
//! What a close gives back and no meta takes back is repeated, by a thread of the mount and by the next process,
//! until one does.

use millpond_fuse_wire::abi::{
    FileLock as KernelLock, FlushIn, LkIn, LockFlags, ReleaseFlags, ReleaseIn,
};
use millpond_fuse_wire::{Operation, Reply};
use millpond_types::meta::{FileLock, Ino, LockKind, LockSpace, MetaError, MetaOp, MetaReply};

use super::{Fs, Send};
use crate::backend::{Ticket, unexpected};
use crate::errno::Errno;
use crate::files::Owner;

/// A lock that a request waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// The kernel's number of the request.
    pub(crate) unique: u64,
    ino: Ino,
    lock: FileLock,
    /// The open file through which it is wanted.
    handle: u64,
}

fn wanted(args: &LkIn) -> Result<FileLock, Errno> {
    let kind = match args.lk.kind.cast_signed() {
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        libc::F_UNLCK => LockKind::Unlock,
        _ => return Err(Errno::INVAL),
    };
    let flock = args.lk_flags.contains(LockFlags::FLOCK);
    let space = if flock { LockSpace::Flock } else { LockSpace::Posix };
    // The kernel's last byte of "all of it".
    let end = if args.lk.end >= i64::MAX.cast_unsigned() { u64::MAX } else { args.lk.end };
    Ok(FileLock { space, kind, owner: args.owner, pid: args.lk.pid, start: args.lk.start, end })
}

/// All that an owner has of a file.
const fn nothing(Owner { space, number, .. }: Owner) -> FileLock {
    FileLock { space, kind: LockKind::Unlock, owner: number, pid: 0, start: 0, end: u64::MAX }
}

impl Fs {
    pub(super) fn on_lock(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        operation: &Operation<'_>,
        send: Send<'_>,
    ) -> Result<(), Errno> {
        match operation {
            Operation::Getlk(args) => {
                let op = MetaOp::GetLock { ino, lock: wanted(args)? };
                let MetaReply::Lock(held) = self.backend.meta(ticket, op)? else {
                    return Err(unexpected());
                };
                let free =
                    KernelLock { kind: libc::F_UNLCK.cast_unsigned(), ..KernelLock::default() };
                send(Reply::Lock(held.map_or(free, |held| kernel_lock(&held.lock))));
            }
            Operation::Setlk(args) => {
                self.set_lock(ticket, ino, (wanted(args)?, args.fh))?;
                send(Reply::Done);
            }
            _ => return Err(Errno::NOSYS),
        }
        Ok(())
    }

    fn set_lock(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        (lock, handle): (FileLock, u64),
    ) -> Result<(), Errno> {
        let owner = Owner { space: lock.space, number: lock.owner, handle };
        // What it gave up before would go with what it gets now.
        self.unlock_left_of(ino, owner)?;
        if lock.kind != LockKind::Unlock {
            // Noted before: a close that comes after a crash must give it back.
            self.files().note_locked(ino, owner);
        }
        self.backend.meta(ticket, MetaOp::SetLock { ino, lock })?;
        Ok(())
    }

    /// Tries a lock that is waited for; hands it back when it must go on waiting.
    pub(super) fn begin_waiting(
        &self,
        unique: u64,
        ino: Ino,
        args: &LkIn,
        send: Send<'_>,
    ) -> Option<Waiting> {
        match wanted(args) {
            Ok(lock) => {
                let waiting = Waiting { unique, ino, lock, handle: args.fh };
                match self.try_again(&waiting) {
                    Some(Ok(())) => send(Reply::Done),
                    Some(Err(Errno(errno))) => send(Reply::Error(errno)),
                    None => return Some(waiting),
                }
            }
            Err(Errno(errno)) => send(Reply::Error(errno)),
        }
        None
    }

    /// Tries once more; nothing when the lock is still in another's way.
    pub(crate) fn try_again(&self, waiting: &Waiting) -> Option<Result<(), Errno>> {
        let Waiting { ino, lock, handle, .. } = *waiting;
        let done = self.set_lock(&mut self.backend.own_ticket(), ino, (lock, handle));
        (done != Err(Errno::from(MetaError::Again))).then_some(done)
    }

    /// Gives back a lock that nobody waits for any more.
    pub(crate) fn give_back(&self, waiting: &Waiting) {
        let lock = FileLock { kind: LockKind::Unlock, ..waiting.lock };
        let op = MetaOp::SetLock { ino: waiting.ino, lock };
        if let Err(Errno(errno)) = self.backend.meta(&mut self.backend.own_ticket(), op) {
            tracing::warn!("a lock that nobody waits for could not be given back: errno {errno}");
        }
    }

    /// Whoever closes a descriptor of a file gives up all its POSIX locks of it (fcntl(2)).
    pub(super) fn unlock_at_flush(&self, ino: Ino, args: FlushIn) -> Result<(), Errno> {
        if !self.files().is_locked(ino) {
            return Ok(());
        }
        let (space, number, handle) = (LockSpace::Posix, args.lock_owner, args.fh);
        self.unlock(ino, Owner { space, number, handle })
    }

    /// The last descriptor of an open file gives up its locks of flock(2) and of `F_OFD_SETLK`. The close was counted.
    pub(super) fn unlock_at_release(&self, ino: Ino, args: &ReleaseIn) -> Result<(), Errno> {
        let mut gone = self.files().lockers_gone(ino, args.fh);
        let (space, number, handle) = (LockSpace::Flock, args.lock_owner, args.fh);
        let flock = Owner { space, number, handle };
        let is_flock = args.release_flags.contains(ReleaseFlags::FLOCK_UNLOCK);
        if is_flock && !gone.iter().any(|it| it.is(&flock)) {
            gone.push(flock);
        }
        let mut done = Ok(());
        for owner in gone {
            // Each that fails is tried again, whatever becomes of the others.
            done = done.and(self.unlock(ino, owner));
        }
        done
    }

    /// Gives back all that an owner has of a file, which it does not have any more whether that works or not.
    fn unlock(&self, ino: Ino, owner: Owner) -> Result<(), Errno> {
        // A thread that does it at this moment ends first.
        let left = self.files().has_left(ino, &owner);
        let _alone = left.then(|| self.files().unlocking.lock());
        let done = self.unlock_once(ino, owner);
        if done.is_err() {
            self.files().leave_lock(ino, owner);
        }
        done
    }

    fn unlock_once(&self, ino: Ino, owner: Owner) -> Result<(), Errno> {
        let op = MetaOp::SetLock { ino, lock: nothing(owner) };
        match self.backend.meta(&mut self.backend.own_ticket(), op) {
            // With the session, or with the file, its locks have gone.
            Ok(_) | Err(Errno::STALE) => {
                self.files().unlocked(ino, &owner);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Gives back what an owner left of a file, if it did.
    fn unlock_left_of(&self, ino: Ino, owner: Owner) -> Result<(), Errno> {
        if !self.files().has_left(ino, &owner) {
            return Ok(());
        }
        let _alone = self.files().unlocking.lock();
        // Somebody else may have done it meanwhile.
        if self.files().has_left(ino, &owner) { self.unlock_once(ino, owner) } else { Ok(()) }
    }

    /// Gives back locks that could not be given back before, until a meta does not answer again.
    pub(crate) fn unlock_left(&self) {
        for (ino, owner) in self.files().left_locks() {
            if let Err(Errno(errno)) = self.unlock_left_of(ino, owner) {
                tracing::warn!("a lock of inode {ino} could not be given back yet: errno {errno}");
                return;
            }
        }
    }
}

fn kernel_lock(lock: &FileLock) -> KernelLock {
    let kind = match lock.kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    let end = lock.end.min(i64::MAX.cast_unsigned());
    KernelLock { start: lock.start, end, kind: kind.cast_unsigned(), pid: lock.pid }
}
