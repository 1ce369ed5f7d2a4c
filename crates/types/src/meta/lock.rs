//! Locks on files: byte ranges as in fcntl(2), and the locks of flock(2).

use super::{Ino, LOCKS_MAX};
use crate::wire::{Reader, Record, WireError, Writer};

/// Namespace of locks: locks of different spaces do not conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LockSpace {
    /// Ranges of bytes, owned by a process (fcntl(2)).
    Posix = 1,
    /// The whole file, owned by an open file description (flock(2)).
    Flock = 2,
}

/// Kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LockKind {
    /// Shared: allows other read locks.
    Read = 1,
    /// Exclusive: allows no other lock.
    Write = 2,
    /// Removes the lock on the bytes.
    Unlock = 3,
}

/// A lock that an owner has or asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileLock {
    /// The space in which the lock conflicts with others.
    pub space: LockSpace,
    /// Kind of the lock.
    pub kind: LockKind,
    /// The owner, within its session: locks of one owner never conflict.
    pub owner: u64,
    /// The process id, reported to callers that ask for the conflicting lock.
    pub pid: u32,
    /// First byte.
    pub start: u64,
    /// Last byte; `u64::MAX` for all bytes after the first. Ignored for flock(2).
    pub end: u64,
}

/// A lock in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeldLock {
    /// The session of its owner: the lock ends with the session.
    pub session: u64,
    /// The lock.
    pub lock: FileLock,
}

/// The locks of an inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocksRecord {
    /// The locks in no particular order; those of one owner do not overlap.
    pub locks: Vec<HeldLock>,
}

impl FileLock {
    /// Encoded bytes.
    const BYTES: usize = 30;

    pub(super) fn encode(self, w: &mut Writer) {
        w.u8(self.space as u8);
        w.u8(self.kind as u8);
        w.u64(self.owner);
        w.u32(self.pid);
        w.u64(self.start);
        w.u64(self.end);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let space = match r.u8()? {
            1 => LockSpace::Posix,
            2 => LockSpace::Flock,
            _ => return Err(WireError::Field("space of a lock")),
        };
        let kind = match r.u8()? {
            1 => LockKind::Read,
            2 => LockKind::Write,
            3 => LockKind::Unlock,
            _ => return Err(WireError::Field("kind of a lock")),
        };
        let (owner, pid, start, end) = (r.u64()?, r.u32()?, r.u64()?, r.u64()?);
        if start > end {
            return Err(WireError::Field("range of a lock"));
        }
        Ok(Self { space, kind, owner, pid, start, end })
    }
}

impl HeldLock {
    /// Encoded bytes.
    const BYTES: usize = 8 + FileLock::BYTES;

    pub(super) fn encode(self, w: &mut Writer) {
        w.u64(self.session);
        self.lock.encode(w);
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { session: r.u64()?, lock: FileLock::decode(r)? })
    }
}

impl Record for LocksRecord {
    const KIND: u8 = 48;

    fn write_body(&self, w: &mut Writer) {
        w.count(self.locks.len());
        for lock in &self.locks {
            lock.encode(w);
        }
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let n = r.count(LOCKS_MAX, HeldLock::BYTES, "locks of an inode")?;
        Ok(Self { locks: (0..n).map(|_| HeldLock::decode(r)).collect::<Result<_, _>>()? })
    }
}

/// Encodes an inode and a lock on it.
pub(super) fn write_lock(w: &mut Writer, ino: Ino, lock: &FileLock) {
    w.u64(ino.0);
    lock.encode(w);
}
