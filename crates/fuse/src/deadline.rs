//! The deadline of a request of the kernel (`-o timeout`): the request is answered by then, also when servers are gone.
//!
//! The deadline belongs to the thread that serves the request. Each wait of that thread ends by it: a call of the cluster, a
//! promise, the gate of a file. A request that is late gets `EIO`; a promise is in the journal, and is kept when the cluster is
//! back. Work that a mount does by itself has no deadline.

use std::cell::Cell;
use std::time::Duration;

use millpond_env::RealClock;
use millpond_types::Tick;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::errno::Errno;

/// How long one call of the cluster is tried: a node that is gone costs seconds, a cluster that is gone for longer should be
/// noticed.
const PATIENCE: Duration = Duration::from_mins(1);

thread_local! {
    static UNTIL: Cell<Option<Tick>> = const { Cell::new(None) };
}

/// While this lives the thread serves a request.
#[derive(Debug)]
pub(crate) struct Serving;

impl Serving {
    pub(crate) fn within(timeout: Duration) -> Self {
        UNTIL.set(Some(RealClock::tick().plus(timeout)));
        Self
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        UNTIL.set(None);
    }
}

/// Until when this thread waits for anything.
pub(crate) fn until() -> Tick {
    UNTIL.get().unwrap_or(Tick(u64::MAX))
}

/// How long this thread waits for a call of the cluster.
pub(crate) fn patience() -> Duration {
    let left = UNTIL.get().map(|until| until.since(RealClock::tick()));
    left.map_or(PATIENCE, |left| left.min(PATIENCE))
}

/// Whether it is too late for the request that this thread serves.
pub(crate) fn is_over() -> bool {
    left().is_some_and(|left| left.is_zero())
}

/// Time that is left, if there is an end to it.
fn left() -> Option<Duration> {
    UNTIL.get().map(|until| until.since(RealClock::tick()))
}

/// Locks, or fails when it is too late for the request that this thread serves.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, Errno> {
    match left() {
        None => Ok(mutex.lock()),
        Some(left) => mutex.try_lock_for(left).ok_or(Errno::IO),
    }
}

/// The same of a lock that others share.
pub(crate) fn read<T>(lock: &RwLock<T>) -> Result<RwLockReadGuard<'_, T>, Errno> {
    match left() {
        None => Ok(lock.read()),
        Some(left) => lock.try_read_for(left).ok_or(Errno::IO),
    }
}

/// The same of one that nobody else has meanwhile.
pub(crate) fn write<T>(lock: &RwLock<T>) -> Result<RwLockWriteGuard<'_, T>, Errno> {
    match left() {
        None => Ok(lock.write()),
        Some(left) => lock.try_write_for(left).ok_or(Errno::IO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_serves_a_request_waits_so_long_and_others_wait_on() {
        let (mutex, gate) = (Mutex::new(()), RwLock::new(()));
        assert_eq!((until(), patience()), (Tick(u64::MAX), PATIENCE));
        let held = (lock(&mutex).unwrap(), read(&gate).unwrap());
        let serving = Serving::within(Duration::from_millis(20));
        assert!(patience() <= Duration::from_millis(20));
        assert_eq!(lock(&mutex).err(), Some(Errno::IO));
        assert_eq!(write(&gate).err(), Some(Errno::IO));
        assert!(read(&gate).is_ok());
        assert!(patience().is_zero(), "it is late");
        drop((serving, held));
        assert!(write(&gate).is_ok() && patience() == PATIENCE);
    }
}
