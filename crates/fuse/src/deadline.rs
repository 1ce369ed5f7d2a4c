//! The deadline of a request of the kernel (`-o timeout`): the request is answered by then, even
//! when servers are gone.
//!
//! The deadline belongs to the thread that serves the request. Each wait of that thread ends by it:
//! a call to the cluster, a promise, the gate of a file. A late request gets `EIO`; a promise is in
//! the journal, and is kept when the cluster is back. The mount's own operations have no deadline.

use std::cell::Cell;
use std::time::Duration;

use millpond_env::RealClock;
use millpond_types::Tick;
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::errno::Errno;

/// How long one call to the cluster is retried: a dead node costs seconds, and a longer outage of
/// the cluster should be noticed.
const PATIENCE: Duration = Duration::from_mins(1);

thread_local! {
    static UNTIL: Cell<Option<Tick>> = const { Cell::new(None) };
}

/// A guard that lives while the thread serves a request.
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

/// The end of any wait of this thread.
pub(crate) fn until() -> Tick {
    UNTIL.get().unwrap_or(Tick(u64::MAX))
}

/// How long this thread waits for a call to the cluster.
pub(crate) fn patience() -> Duration {
    let left = UNTIL.get().map(|until| until.since(RealClock::tick()));
    left.map_or(PATIENCE, |left| left.min(PATIENCE))
}

/// Whether the deadline of this thread's request has passed.
pub(crate) fn is_over() -> bool {
    left().is_some_and(|left| left.is_zero())
}

/// The time left, if there is a deadline.
fn left() -> Option<Duration> {
    UNTIL.get().map(|until| until.since(RealClock::tick()))
}

/// Locks a mutex; fails when the deadline of this thread's request passes.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, Errno> {
    match left() {
        None => Ok(mutex.lock()),
        Some(left) => mutex.try_lock_for(left).ok_or(Errno::IO),
    }
}

/// Locks for shared access; fails in the same way.
pub(crate) fn read<T>(lock: &RwLock<T>) -> Result<RwLockReadGuard<'_, T>, Errno> {
    match left() {
        None => Ok(lock.read()),
        Some(left) => lock.try_read_for(left).ok_or(Errno::IO),
    }
}

/// Locks for exclusive access; fails in the same way.
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
