//! Owners of file locks: locks are released at a close, and the next process of the mount knows
//! them too.
//!
//! A lock belongs to one open handle from grant to release. The kernel names an owner by a number:
//! a process for fcntl(2), an open file for flock(2) and `F_OFD_SETLK`. It reuses the number of an
//! open file as soon as that is closed, while the message of the close (RELEASE, which no caller
//! waits for) may be in flight. So an owner is identified by its number and the handle of its
//! locks, together with its ranges: a late message releases only the locks of its own handle. The
//! kernel does not tell which locks are those of `F_OFD_SETLK`. A process releases all of its own
//! at each close (FLUSH, which it waits for), so the locks left at a RELEASE are `F_OFD_SETLK`
//! locks.

use std::time::Duration;

use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::meta::{FileLock, Ino, LockSpace};
use parking_lot::{Mutex, MutexGuard};

use super::{Files, Table};
use crate::deadline;
use crate::errno::Errno;
use crate::journal::Entry;

/// The number of owners with remembered locks that could not be released.
const LEFT_MAX: usize = 1 << 12;
/// The number of separate ranges of one owner and handle; beyond it, the gaps between them count
/// too.
const RANGES_MAX: usize = 64;
/// The number of lock lanes: owners in different lanes change locks concurrently.
const LANES: usize = 1024;

/// The bytes of a lock, the last one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Bytes {
    pub(crate) const ALL: Self = Self { start: 0, end: u64::MAX };

    /// The bytes of a lock: the whole file for flock(2).
    pub(crate) const fn of(lock: &FileLock) -> Self {
        match lock.space {
            LockSpace::Flock => Self::ALL,
            LockSpace::Posix => Self { start: lock.start, end: lock.end },
        }
    }

    const fn holds(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Whether both form one range, or overlap.
    const fn touches(self, other: Self) -> bool {
        self.start <= other.end.saturating_add(1) && other.start <= self.end.saturating_add(1)
    }

    const fn overlaps(self, other: Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// The parts of this range before and after another one.
    fn without(self, other: Self) -> impl Iterator<Item = Self> {
        let Self { start, end } = self;
        let meets = self.overlaps(other);
        let before = Self { start, end: if meets { other.start.wrapping_sub(1) } else { end } };
        let behind = Self { start: other.end.wrapping_add(1), end };
        let has_before = !meets || start < other.start;
        let has_behind = meets && other.end < end;
        has_before.then_some(before).into_iter().chain(has_behind.then_some(behind))
    }
}

/// An owner that may have locks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) space: LockSpace,
    /// The kernel's number of the owner.
    pub(crate) number: u64,
    /// The open file of the locks; 0 for one that an earlier version opened.
    pub(crate) handle: u64,
}

impl Owner {
    /// Whether a meta treats both as the same owner.
    fn has_number_of(&self, other: &Self) -> bool {
        (self.space, self.number) == (other.space, other.number)
    }
}

/// The table's entry of an owner.
#[derive(Clone, Debug)]
pub(super) struct Locker {
    owner: Owner,
    /// The ranges that it may have locked, in no order.
    ranges: Vec<Bytes>,
    /// The owner no longer has the locks, but releasing them failed.
    is_left: bool,
    /// When a descriptor of its handle was closed, since its last lock request: the handle may be
    /// closed too, and that message in flight.
    closing: Option<Tick>,
}

impl Locker {
    const fn new(owner: Owner) -> Self {
        Self { owner, ranges: Vec::new(), is_left: false, closing: None }
    }

    fn entry(&self, ino: Ino) -> Entry {
        let Self { owner, is_left, .. } = *self;
        Entry::Locker { ino, owner, is_left, ranges: self.ranges.clone() }
    }

    fn add(&mut self, new: Bytes) {
        let mut new = new;
        self.ranges.retain(|range| {
            let joins = range.touches(new);
            if joins {
                new = Bytes { start: new.start.min(range.start), end: new.end.max(range.end) };
            }
            !joins
        });
        self.ranges.push(new);
        self.bound();
    }

    fn remove(&mut self, gone: Bytes) {
        let before = std::mem::take(&mut self.ranges);
        self.ranges = before.into_iter().flat_map(|range| range.without(gone)).collect();
        self.bound();
    }

    /// Limits the number of ranges.
    fn bound(&mut self) {
        if self.ranges.len() > RANGES_MAX {
            let start = self.ranges.iter().map(|range| range.start).min().unwrap_or(0);
            let end = self.ranges.iter().map(|range| range.end).max().unwrap_or(u64::MAX);
            self.ranges = vec![Bytes { start, end }];
        }
    }
}

impl Table {
    pub(super) fn locked_by(&mut self, ino: Ino, owner: Owner, bytes: Bytes) {
        let all = self.lockers.entry(ino).or_default();
        let at = all.iter().position(|locker| locker.owner == owner).unwrap_or_else(|| {
            all.push(Locker::new(owner));
            all.len() - 1
        });
        all[at].add(bytes);
    }

    /// Removes these bytes from all owners with this number, through any handle.
    pub(super) fn unlocked(&mut self, ino: Ino, owner: &Owner, bytes: Bytes) {
        self.change_lockers(ino, |all| {
            for locker in all.iter_mut().filter(|locker| locker.owner.has_number_of(owner)) {
                locker.remove(bytes);
            }
            all.retain(|locker| !locker.ranges.is_empty());
        });
    }

    pub(super) fn locker_gone(&mut self, ino: Ino, owner: &Owner) {
        self.change_lockers(ino, |all| all.retain(|locker| locker.owner != *owner));
    }

    fn change_lockers(&mut self, ino: Ino, change: impl FnOnce(&mut Vec<Locker>)) {
        let Some(all) = self.lockers.get_mut(&ino) else { return };
        change(all);
        if all.is_empty() {
            self.lockers.remove(&ino);
        }
    }

    /// Marks the locks of files that are no longer open as left: an earlier process saw them
    /// closed.
    pub(super) fn leave_locks(&mut self) {
        let open = &self.open;
        let closed = self.lockers.iter_mut().filter(|(ino, _)| !open.contains_key(ino));
        closed.flat_map(|(_, all)| all).for_each(|locker| locker.is_left = true);
    }

    pub(super) fn lock_entries(&self) -> impl Iterator<Item = Entry> {
        let all =
            self.lockers.iter().flat_map(|(ino, all)| all.iter().map(move |locker| (*ino, locker)));
        all.map(|(ino, locker)| locker.entry(ino))
    }

    pub(super) fn set_locker(
        &mut self,
        ino: Ino,
        owner: Owner,
        (is_left, ranges): (bool, Vec<Bytes>),
    ) {
        self.locker_gone(ino, &owner);
        let locker = Locker { ranges, is_left, ..Locker::new(owner) };
        self.lockers.entry(ino).or_default().push(locker);
    }

    /// Writes the current locks of an owner to the journal.
    fn note_locker(&mut self, ino: Ino, owner: &Owner) {
        let entry = self
            .lockers_of(ino)
            .find(|locker| locker.owner == *owner)
            .map(|locker| locker.entry(ino));
        self.note(&entry.unwrap_or(Entry::Unlocked { ino, owner: *owner }));
    }

    fn lockers_of(&self, ino: Ino) -> impl Iterator<Item = &Locker> {
        self.lockers.get(&ino).into_iter().flatten()
    }

    fn is_being_unlocked(&self, ino: Ino, owner: &Owner, time: Duration) -> bool {
        let now = RealClock::tick();
        let closes = |locker: &Locker| locker.closing.is_some_and(|at| now.since(at) < time);
        self.lockers_of(ino).any(|locker| closes(locker) && !locker.owner.has_number_of(owner))
    }
}

/// The possible locks of an owner before its request.
#[derive(Debug)]
pub(crate) struct Before(Option<Locker>);

impl Before {
    /// Whether it may have had some of these.
    pub(crate) fn had(&self, bytes: Bytes) -> bool {
        self.0
            .as_ref()
            .is_some_and(|locker| locker.ranges.iter().any(|range| range.overlaps(bytes)))
    }
}

/// Serializes changes of the locks of one number: an unlock by a meta and the note of it are one
/// step.
#[derive(Debug)]
pub(super) struct Lanes(Box<[Mutex<()>]>);

impl Default for Lanes {
    fn default() -> Self {
        Self((0..LANES).map(|_| Mutex::default()).collect())
    }
}

impl Files {
    /// Locks the lane of an owner: while the guard lives, no other thread changes locks of its
    /// number.
    ///
    /// # Errors
    /// `EIO` when the deadline of this thread's request has passed.
    pub(crate) fn lock_lane(&self, ino: Ino, owner: &Owner) -> Result<MutexGuard<'_, ()>, Errno> {
        let mixed = (ino.0 ^ owner.number.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let lane = usize::try_from(mixed >> 48).unwrap_or(0) % LANES;
        deadline::lock(&self.lanes.0[lane])
    }

    /// Notes that a lock is about to be requested. The caller has the lane.
    pub(crate) fn wants_lock(&self, ino: Ino, owner: Owner, bytes: Bytes) -> Before {
        let mut table = self.table.lock();
        let before = table.lockers_of(ino).find(|locker| locker.owner == owner).cloned();
        let has = |locker: &Locker| locker.ranges.iter().any(|range| range.holds(bytes));
        if !before.as_ref().is_some_and(has) {
            table.locked_by(ino, owner, bytes);
            table.note_locker(ino, &owner);
        }
        let lockers = table.lockers.get_mut(&ino).into_iter().flatten();
        lockers.filter(|locker| locker.owner == owner).for_each(|locker| locker.closing = None);
        Before(before)
    }

    /// Restores the owner's previous locks after a rejection.
    pub(crate) fn lock_refused(&self, ino: Ino, owner: &Owner, Before(before): Before) {
        let mut table = self.table.lock();
        table.locker_gone(ino, owner);
        if let Some(before) = before {
            table.lockers.entry(ino).or_default().push(before);
        }
        table.note_locker(ino, owner);
    }

    /// Notes that no owner of this number has locks of these bytes any more. The caller has the
    /// lane.
    pub(crate) fn unlocked(&self, ino: Ino, owner: &Owner, bytes: Bytes) {
        let mut table = self.table.lock();
        if table.lockers_of(ino).any(|locker| locker.owner.has_number_of(owner)) {
            table.unlocked(ino, owner, bytes);
            table.note(&Entry::UnlockedBytes { ino, owner: *owner, bytes });
        }
        drop(table);
        self.unlocked.notify_all();
    }

    /// Notes that a descriptor of a handle is being closed.
    pub(crate) fn note_closing(&self, ino: Ino, handle: u64) {
        let mut table = self.table.lock();
        let lockers = table.lockers.get_mut(&ino).into_iter().flatten();
        let now = RealClock::tick();
        lockers
            .filter(|locker| locker.owner.handle == handle)
            .for_each(|locker| locker.closing = Some(now));
    }

    /// Whether the handle of another owner with locks may have been closed within this time.
    pub(crate) fn is_being_unlocked(&self, ino: Ino, owner: &Owner, time: Duration) -> bool {
        self.table.lock().is_being_unlocked(ino, owner, time)
    }

    /// Waits until no such handle is being closed any more, for at most `time`.
    pub(crate) fn await_closes(&self, ino: Ino, owner: &Owner, time: Duration) {
        let until = RealClock::tick().plus(time);
        let mut table = self.table.lock();
        loop {
            let left = until.since(RealClock::tick());
            if left.is_zero() || !table.is_being_unlocked(ino, owner, time) {
                return;
            }
            self.unlocked.wait_for(&mut table, left);
        }
    }

    /// Whether an owner with this number may have locks of a file.
    pub(crate) fn may_have_locks(&self, ino: Ino, owner: &Owner) -> bool {
        self.table.lock().lockers_of(ino).any(|locker| locker.owner.has_number_of(owner))
    }

    /// Owners that may have locks through this closed handle; all owners after the last close.
    pub(crate) fn lockers_through(&self, ino: Ino, handle: u64) -> Vec<Owner> {
        let table = self.table.lock();
        let is_last = !table.open.contains_key(&ino);
        let through = |owner: &Owner| is_last || handle != 0 && owner.handle == handle;
        table.lockers_of(ino).map(|locker| locker.owner).filter(through).collect()
    }

    /// The ranges to unlock for an owner with a closed handle: everything of its number, or, if
    /// other handles share the number, its own ranges without theirs. Empty for an owner without
    /// locks. The caller has the lane.
    pub(crate) fn to_unlock(&self, ino: Ino, owner: &Owner) -> Vec<Bytes> {
        let table = self.table.lock();
        let Some(locker) = table.lockers_of(ino).find(|locker| locker.owner == *owner) else {
            return Vec::new();
        };
        let others: Vec<Bytes> = table
            .lockers_of(ino)
            .filter(|other| other.owner != *owner && other.owner.has_number_of(owner))
            .flat_map(|other| other.ranges.iter().copied())
            .collect();
        if others.is_empty() {
            return vec![Bytes::ALL];
        }
        let mut own = locker.ranges.clone();
        for other in others {
            own = own.into_iter().flat_map(|range| range.without(other)).collect();
        }
        own
    }

    /// Removes an owner without locks from a file. The caller has the lane.
    pub(crate) fn locker_gone(&self, ino: Ino, owner: &Owner) {
        let mut table = self.table.lock();
        if table.lockers_of(ino).any(|locker| locker.owner == *owner) {
            table.locker_gone(ino, owner);
            table.note(&Entry::Unlocked { ino, owner: *owner });
        }
        drop(table);
        self.unlocked.notify_all();
    }

    /// Marks the locks of a number as left, because they could not be released: those of one
    /// handle, or all.
    pub(crate) fn leave_locks(&self, ino: Ino, owner: &Owner, all: bool) {
        let mut table = self.table.lock();
        let left = table.lockers.values().flatten().filter(|locker| locker.is_left).count();
        if left >= LEFT_MAX {
            tracing::error!(
                "a lock of inode {ino} stays until this mount ends: too many locks could not be \
                 released"
            );
            return;
        }
        let of = |other: &Owner| other == owner || all && other.has_number_of(owner);
        let left: Vec<Owner> =
            table.lockers_of(ino).map(|locker| locker.owner).filter(of).collect();
        for owner in left {
            let lockers = table.lockers.get_mut(&ino).into_iter().flatten();
            lockers.filter(|locker| locker.owner == owner).for_each(|locker| locker.is_left = true);
            table.note_locker(ino, &owner);
        }
    }

    /// Owners of this number with locks that must still be released.
    pub(crate) fn left_of(&self, ino: Ino, owner: &Owner) -> Vec<Owner> {
        let table = self.table.lock();
        let left = table
            .lockers_of(ino)
            .filter(|locker| locker.is_left && locker.owner.has_number_of(owner));
        left.map(|locker| locker.owner).collect()
    }

    /// Whether an owner's locks must still be released.
    pub(crate) fn is_left(&self, ino: Ino, owner: &Owner) -> bool {
        self.table.lock().lockers_of(ino).any(|locker| locker.is_left && locker.owner == *owner)
    }

    /// All locks that must still be released.
    pub(crate) fn left_locks(&self) -> Vec<(Ino, Owner)> {
        let table = self.table.lock();
        let all = table.lockers.iter();
        let all = all.flat_map(|(ino, all)| all.iter().map(|locker| (*ino, locker)));
        all.filter(|(_, locker)| locker.is_left).map(|(ino, locker)| (ino, locker.owner)).collect()
    }
}
