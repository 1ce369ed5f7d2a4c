//! Locks on files, kept by the metas, so that they hold between mounts.
//!
//! A blocking lock request is tried at once. When another lock conflicts, the request is handed
//! back as [`Waiting`], and a thread of the mount retries it: a thread that serves requests must
//! not wait, because the unlock it waits for is a request too.
//!
//! A waiting process gets the lock even if it no longer wants it when it is granted, and receives
//! the result. If a close cannot release its locks, a thread of the mount, and the next process,
//! repeat the release until it succeeds.

use millpond_fuse_wire::abi::{FileLock as KernelLock, FlushIn, LkIn, LockFlags, ReleaseIn};
use std::time::Duration;

use millpond_env::RealClock;
use millpond_fuse_wire::Reply;
use millpond_types::Tick;
use millpond_types::meta::{FileLock, Ino, LockKind, LockSpace, MetaError, MetaOp, MetaReply};
use parking_lot::MutexGuard;

use super::{Answer, Aside, Fs, Send, Stale};
use crate::backend::{Ticket, unexpected};
use crate::errno::Errno;
use crate::files::{LockBytes, Owner};

/// A lock that a request waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    ino: Ino,
    lock: FileLock,
    /// The open file of the request.
    handle: u64,
    /// The time at which it is rejected, if any.
    until: Option<Tick>,
}

impl Waiting {
    /// The errno of an interrupt; a non-blocking request gets that another lock conflicts.
    pub(crate) const fn interrupted(&self) -> i32 {
        if self.until.is_some() { libc::EAGAIN } else { libc::EINTR }
    }
}

/// How long a non-blocking lock request, or a query of an owner, waits for a close of this mount
/// that was answered while its locks are being released: no caller waits for that release, and a
/// local file system releases at once.
const CLOSES_WITHIN: Duration = Duration::from_millis(250);

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

impl Fs {
    pub(super) fn get_lock(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        args: &LkIn,
        send: Send<'_>,
    ) -> Result<(), Errno> {
        let lock = wanted(args)?;
        let owner = Owner { space: lock.space, number: lock.owner, handle: args.fh };
        let mut in_the_way = || match self.backend.meta(ticket, MetaOp::GetLock { ino, lock })? {
            MetaReply::Lock(held) => Ok(held),
            _ => Err(unexpected()),
        };
        // The release may finish between the meta's answer and another check.
        let is_being_unlocked = self.files().is_being_unlocked(ino, &owner, CLOSES_WITHIN);
        let mut held = in_the_way()?;
        if held.is_some() && is_being_unlocked {
            self.files().await_closes(ino, &owner, CLOSES_WITHIN);
            held = in_the_way()?;
        }
        let free = KernelLock { kind: libc::F_UNLCK.cast_unsigned(), ..KernelLock::default() };
        send(Reply::Lock(held.map_or(free, |held| kernel_lock(&held.lock))));
        Ok(())
    }

    /// Locks or unlocks, or reports a conflict.
    pub(super) fn set_lock_now(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        args: &LkIn,
        send: Send<'_>,
    ) -> Result<Option<Aside>, Errno> {
        let (lock, handle) = (wanted(args)?, args.fh);
        let owner = Owner { space: lock.space, number: lock.owner, handle };
        if lock.kind == LockKind::Unlock {
            let told = self.before_lock(ino);
            // Both steps run even if one fails.
            let unlocked = self.set_lock(ticket, ino, (lock, handle));
            told.and(unlocked.map(drop))?;
            send(Reply::Done);
            return Ok(None);
        }
        self.before_lock(ino)?;
        // The release may finish between the meta's answer and another check.
        let is_being_unlocked = self.files().is_being_unlocked(ino, &owner, CLOSES_WITHIN);
        match self.set_and_see(ticket, ino, (lock, handle)) {
            Ok(Some(stale)) => return Ok(Some(Aside::Drops(stale, Answer::Done))),
            Ok(None) => send(Reply::Done),
            Err(error) if is_being_unlocked && error == MetaError::Again.into() => {
                let until = Some(RealClock::tick().plus(CLOSES_WITHIN));
                return Ok(Some(Aside::Waits(Waiting { ino, lock, handle, until })));
            }
            Err(error) => return Err(error),
        }
        Ok(None)
    }

    /// Locks; returns the cached bytes that the kernel must drop before it gets the answer.
    fn set_and_see(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        (lock, handle): (FileLock, u64),
    ) -> Result<Option<Stale>, Errno> {
        let had_some = self.set_lock(ticket, ino, (lock, handle))?;
        let seen = self.after_lock(ino);
        if seen.is_err() && !had_some {
            // A caller that gets an error assumes that it has only its earlier locks.
            let unlock = FileLock { kind: LockKind::Unlock, ..lock };
            let done = self.set_lock(&mut self.backend.own_ticket(), ino, (unlock, handle));
            if done.is_err() {
                let owner = Owner { space: lock.space, number: lock.owner, handle };
                self.files().leave_locks(ino, &owner, false);
            }
        }
        seen
    }

    /// Has a meta lock or unlock a range; returns whether the owner may have had some of it before.
    /// Changes of one owner are serialized.
    fn set_lock(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        (lock, handle): (FileLock, u64),
    ) -> Result<bool, Errno> {
        let owner = Owner { space: lock.space, number: lock.owner, handle };
        let bytes = LockBytes::of(&lock);
        let files = self.files();
        let _lane = files.lock_lane(ino, &owner)?;
        // Its number's earlier left locks would be released together with the new one.
        for left in files.left_of(ino, &owner) {
            self.unlock_in_lane(ino, &left)?;
        }
        if lock.kind == LockKind::Unlock {
            self.backend.meta(ticket, MetaOp::SetLock { ino, lock })?;
            files.unlocked(ino, &owner, bytes);
            return Ok(true);
        }
        // Noted before: a close after a crash must release it.
        let before = files.wants_lock(ino, owner, bytes);
        let done = self.backend.meta(ticket, MetaOp::SetLock { ino, lock });
        match done {
            Ok(_) => Ok(before.had(bytes)),
            // It may have been executed.
            Err(Errno::IO) => Err(Errno::IO),
            Err(refusal) => {
                files.lock_refused(ino, &owner, before);
                Err(refusal)
            }
        }
    }

    /// Tries a blocking lock; hands it back when it must continue to wait.
    pub(super) fn begin_waiting(
        &self,
        ino: Ino,
        args: &LkIn,
        send: Send<'_>,
    ) -> Result<Option<Aside>, Errno> {
        let waiting = Waiting { ino, lock: wanted(args)?, handle: args.fh, until: None };
        self.before_lock(ino)?;
        match self.try_again(&waiting) {
            None => return Ok(Some(Aside::Waits(waiting))),
            Some(Ok(Some(stale))) => return Ok(Some(Aside::Drops(stale, Answer::Done))),
            Some(Ok(None)) => send(Reply::Done),
            Some(Err(error)) => return Err(error),
        }
        Ok(None)
    }

    /// Retries; `None` when another lock still conflicts.
    pub(crate) fn try_again(&self, waiting: &Waiting) -> Option<Result<Option<Stale>, Errno>> {
        let Waiting { ino, lock, handle, .. } = *waiting;
        let done = self.set_and_see(&mut self.backend.own_ticket(), ino, (lock, handle));
        let is_over = waiting.until.is_some_and(|until| RealClock::tick() >= until);
        let goes_on = !is_over && matches!(done, Err(error) if error == MetaError::Again.into());
        (!goes_on).then_some(done)
    }

    /// Releases all POSIX locks of a process when it closes a descriptor of the file (fcntl(2)).
    pub(super) fn unlock_at_flush(&self, ino: Ino, args: FlushIn) -> Result<(), Errno> {
        let (space, number, handle) = (LockSpace::Posix, args.lock_owner, args.fh);
        let (owner, files) = (Owner { space, number, handle }, self.files());
        if !files.may_have_locks(ino, &owner) {
            return Ok(());
        }
        let lane = files.lock_lane(ino, &owner);
        let unlock = |_: &MutexGuard<'_, ()>| self.unlock(ino, &owner, &[LockBytes::ALL]);
        // Held until the result is noted, too.
        let done = lane.as_ref().map_err(|late| *late).and_then(unlock);
        match done {
            Ok(()) => files.unlocked(ino, &owner, LockBytes::ALL),
            Err(_) => files.leave_locks(ino, &owner, true),
        }
        done
    }

    /// Releases the locks of an open file at its close: those of flock(2) and of `F_OFD_SETLK`. The
    /// close was counted.
    pub(super) fn unlock_at_release(&self, ino: Ino, args: &ReleaseIn) -> Result<(), Errno> {
        let files = self.files();
        let mut done = Ok(());
        for owner in files.lockers_through(ino, args.fh) {
            // Each failed one is retried, regardless of the others.
            let unlocked = match files.lock_lane(ino, &owner) {
                Ok(_lane) => self.unlock_in_lane(ino, &owner),
                Err(late) => {
                    files.leave_locks(ino, &owner, false);
                    Err(late)
                }
            };
            done = done.and(unlocked);
        }
        done
    }

    /// Releases an owner's locks through its handle; the owner loses them even if that fails. The
    /// caller has the lane.
    fn unlock_in_lane(&self, ino: Ino, owner: &Owner) -> Result<(), Errno> {
        let files = self.files();
        let done = self.unlock(ino, owner, &files.to_unlock(ino, owner));
        match done {
            Ok(()) => files.locker_gone(ino, owner),
            Err(_) => files.leave_locks(ino, owner, false),
        }
        done
    }

    fn unlock(&self, ino: Ino, owner: &Owner, all: &[LockBytes]) -> Result<(), Errno> {
        for LockBytes { start, end } in all.iter().copied() {
            let (space, kind) = (owner.space, LockKind::Unlock);
            let lock = FileLock { space, kind, owner: owner.number, pid: 0, start, end };
            let op = MetaOp::SetLock { ino, lock };
            match self.backend.meta(&mut self.backend.own_ticket(), op) {
                // Its locks went with the session or with the file.
                Ok(_) | Err(Errno::STALE) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Releases left locks, until a meta does not answer.
    pub(crate) fn unlock_left(&self) {
        for (ino, owner) in self.files().left_locks() {
            let Ok(_lane) = self.files().lock_lane(ino, &owner) else { return };
            // Another thread may have done it in the meantime.
            if !self.files().is_left(ino, &owner) {
                continue;
            }
            if let Err(Errno(errno)) = self.unlock_in_lane(ino, &owner) {
                tracing::warn!("a lock of inode {ino} could not be released yet: errno {errno}");
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
