//! Who may have locks of files: they give them back when they close them, and the next process of the mount knows of
//! them too.
//!
//! The kernel says at each close which process it was, and that one gives all its locks of fcntl(2) back. Locks of an
//! open file (`F_OFD_SETLK`) come as those of an owner that no close names: they go with the descriptor (`fh`) through
//! which they were taken, or with the last one.

use millpond_types::meta::{Ino, LockSpace};

use super::{Files, Table};
use crate::journal::Entry;

/// Locks that could not be given back are remembered of so many owners.
const LEFT_MAX: usize = 1 << 12;

/// Somebody who may have locks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) space: LockSpace,
    /// The kernel's number of it.
    pub(crate) number: u64,
    /// The open file through which the last lock came; 0 of one that an earlier version opened.
    pub(crate) handle: u64,
}

impl Owner {
    pub(crate) fn is(&self, other: &Self) -> bool {
        (self.space, self.number) == (other.space, other.number)
    }
}

/// The same, as the table has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Locker {
    owner: Owner,
    /// What it had could not be given back, and it does not have it any more.
    is_left: bool,
}

impl Table {
    pub(super) fn locked_by(&mut self, ino: Ino, owner: Owner) {
        let all = self.lockers.entry(ino).or_default();
        match all.iter_mut().find(|it| it.owner.is(&owner)) {
            Some(known) => known.owner = owner,
            None => all.push(Locker { owner, is_left: false }),
        }
    }

    pub(super) fn unlocked(&mut self, ino: Ino, owner: &Owner) -> bool {
        let Some(all) = self.lockers.get_mut(&ino) else { return false };
        let before = all.len();
        all.retain(|it| !it.owner.is(owner));
        let is_gone = all.len() < before;
        if all.is_empty() {
            self.lockers.remove(&ino);
        }
        is_gone
    }

    /// Owners of locks of files that nobody has open any more have closed them in an earlier process.
    pub(super) fn leave_locks(&mut self) {
        let open = &self.open;
        let closed = self.lockers.iter_mut().filter(|(ino, _)| !open.contains_key(ino));
        closed.flat_map(|(_, all)| all).for_each(|it| it.is_left = true);
    }

    pub(super) fn lock_entries(&self) -> impl Iterator<Item = Entry> {
        let all = self.lockers.iter().flat_map(|(ino, all)| all.iter().map(move |it| (*ino, it)));
        all.map(|(ino, it)| Entry::LockedBy { ino, owner: it.owner })
    }
}

impl Files {
    /// Somebody is about to lock an open file.
    pub(crate) fn note_locked(&self, ino: Ino, owner: Owner) {
        let mut table = self.table.lock();
        let Some(open) = table.open.get_mut(&ino) else { return };
        if !std::mem::replace(&mut open.locked, true) {
            table.note(&Entry::Locked { ino });
        }
        let known = table.lockers.get(&ino).is_some_and(|all| {
            // What it has left is given back before it gets more.
            all.iter().any(|it| it.owner == owner)
        });
        if !known {
            table.locked_by(ino, owner);
            table.note(&Entry::LockedBy { ino, owner });
        }
    }

    /// Whether somebody may have a lock of a file that is open.
    pub(crate) fn is_locked(&self, ino: Ino) -> bool {
        self.table.lock().open.get(&ino).is_some_and(|open| open.locked)
    }

    /// Who may have locks of a file and has them no longer, now that this open file of it was closed: who took them
    /// through it, and all when it was the last one.
    pub(crate) fn lockers_gone(&self, ino: Ino, handle: u64) -> Vec<Owner> {
        let table = self.table.lock();
        let all = !table.open.contains_key(&ino);
        let gone = |owner: &Owner| all || handle != 0 && owner.handle == handle;
        let lockers = table.lockers.get(&ino).into_iter().flatten();
        lockers.map(|it| it.owner).filter(gone).collect()
    }

    /// An owner has no lock of a file any more.
    pub(crate) fn unlocked(&self, ino: Ino, owner: &Owner) {
        let mut table = self.table.lock();
        if table.unlocked(ino, owner) {
            table.note(&Entry::Unlocked { ino, owner: *owner });
        }
    }

    /// The locks of an owner could not be given back, and are nobody's.
    pub(crate) fn leave_lock(&self, ino: Ino, owner: Owner) {
        let mut table = self.table.lock();
        let left = table.lockers.values().flatten().filter(|it| it.is_left).count();
        if left >= LEFT_MAX {
            tracing::error!("a lock of inode {ino} stays until this mount ends: too many do");
            return;
        }
        table.locked_by(ino, owner);
        table.note(&Entry::LockedBy { ino, owner });
        let all = table.lockers.get_mut(&ino).into_iter().flatten();
        all.filter(|it| it.owner.is(&owner)).for_each(|it| it.is_left = true);
    }

    /// Whether the locks that an owner has given up are still to be given back.
    pub(crate) fn has_left(&self, ino: Ino, owner: &Owner) -> bool {
        let table = self.table.lock();
        let mut all = table.lockers.get(&ino).into_iter().flatten();
        all.any(|it| it.is_left && it.owner.is(owner))
    }

    /// All locks that are to be given back.
    pub(crate) fn left_locks(&self) -> Vec<(Ino, Owner)> {
        let table = self.table.lock();
        let all = table.lockers.iter();
        let all = all.flat_map(|(ino, all)| all.iter().map(|it| (*ino, *it)));
        all.filter(|(_, it)| it.is_left).map(|(ino, it)| (ino, it.owner)).collect()
    }
}
