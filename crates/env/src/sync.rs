//! Locks for code that runs in a forked child: their whole state is in the lock itself.
//!
//! The locks of `parking_lot` keep waiting threads in one table of the process. In a child that
//! table names threads that do not exist, in memory that new threads use, and the table's own locks
//! may be held for good. The locks of the standard library are words for the kernel's futexes. A
//! lock can be taken although a previous holder panicked.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{self, PoisonError, TryLockError};
use std::time::Duration;

/// A mutual exclusion.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// Result of [`Mutex::lock`].
#[derive(Debug)]
#[must_use = "the lock is given back when this is dropped"]
pub struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

/// A lock for many readers or one writer.
#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

/// Wakes threads that wait for a change of data under a [`Mutex`].
///
/// The thread that makes the change notifies after it held the lock: then every waiter is counted,
/// and without a waiter it costs no system call.
#[derive(Debug, Default)]
pub struct Condvar {
    woken: sync::Condvar,
    /// In a forked child it may count threads of the parent, which only costs that call.
    waiting: AtomicUsize,
}

impl<T> Mutex<T> {
    /// An unlocked mutex with this value.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Locks it, after waiting for it to be free.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Locks it if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(MutexGuard(Some(guard))),
            Err(TryLockError::Poisoned(held)) => Some(MutexGuard(Some(held.into_inner()))),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value; the exclusive borrow needs no lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("a guard is empty only while it waits")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("a guard is empty only while it waits")
    }
}

impl<T> RwLock<T> {
    /// An unlocked lock with this value.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    /// Locks it for reading, after waiting for any writer.
    pub fn read(&self) -> sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks it for writing, after waiting for it to be free.
    pub fn write(&self) -> sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value; the exclusive borrow needs no lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Condvar {
    /// Without waiters.
    #[must_use]
    pub const fn new() -> Self {
        Self { woken: sync::Condvar::new(), waiting: AtomicUsize::new(0) }
    }

    /// Unlocks, waits for a notification or for `time`, and locks again. May return early.
    ///
    /// # Panics
    /// Never: a guard is empty only while it waits, and nothing else can use it then.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) {
        let held = guard.0.take().expect("a guard is empty only while it waits");
        // Counted under the lock.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let waited = self.woken.wait_timeout(held, time).unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard.0 = Some(waited.0);
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.woken.notify_one();
        }
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.woken.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads in turns: a notification omitted by mistake because no waiter was counted would
    /// end here.
    #[test]
    fn whoever_waits_is_woken_at_every_change() {
        const TURNS: u32 = 20_000;
        let (turn, changed) = (Mutex::new(0), Condvar::new());
        let play = |mine: u32| {
            for n in (0..TURNS).filter(|n| n % 2 == mine) {
                let mut now = turn.lock();
                while *now != n {
                    let began = std::time::Instant::now();
                    changed.wait_for(&mut now, Duration::from_mins(1));
                    assert!(began.elapsed() < Duration::from_secs(50), "nobody woke it");
                }
                *now += 1;
                drop(now);
                changed.notify_one();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| play(0));
            scope.spawn(|| play(1));
        });
        assert_eq!(changed.waiting.load(Ordering::Relaxed), 0);
    }
}
