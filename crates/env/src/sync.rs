//! Locks for code that a child of a fork runs: all that they know lies in themselves.
//!
//! Those of `parking_lot` keep waiting threads in one table of the process. In a child that table names threads that are not
//! there, in memory that new threads use, and its own locks may be held for good. Those of the standard library are
//! words of the kernel's futexes. A lock whose holder panicked is taken all the same.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{self, PoisonError, TryLockError};
use std::time::Duration;

/// A mutual exclusion.
#[derive(Debug, Default)]
pub struct Mutex<T>(sync::Mutex<T>);

/// What [`Mutex::lock`] gives.
#[derive(Debug)]
#[must_use = "the lock is given back when this is dropped"]
pub struct MutexGuard<'a, T>(Option<sync::MutexGuard<'a, T>>);

/// A lock for many readers or one writer.
#[derive(Debug, Default)]
pub struct RwLock<T>(sync::RwLock<T>);

/// Wakes threads that wait for a change of what a [`Mutex`] holds. Whoever makes the change wakes them after it had the lock:
/// then nobody waits whom it did not count, and without any it costs no system call.
#[derive(Debug, Default)]
pub struct Condvar {
    woken: sync::Condvar,
    /// In a child of a fork it may count threads of the parent, which costs that call.
    waiting: AtomicUsize,
}

impl<T> Mutex<T> {
    /// A free one.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    /// Waits for it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Takes it if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(MutexGuard(Some(guard))),
            Err(TryLockError::Poisoned(held)) => Some(MutexGuard(Some(held.into_inner()))),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// What it holds, of which nobody else can have a borrow.
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
    /// A free one.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }

    /// Waits until nobody writes.
    pub fn read(&self) -> sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is free.
    pub fn write(&self) -> sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it holds, of which nobody else can have a borrow.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Condvar {
    /// One that nobody waits for.
    #[must_use]
    pub const fn new() -> Self {
        Self { woken: sync::Condvar::new(), waiting: AtomicUsize::new(0) }
    }

    /// Gives the lock back, waits to be woken or for `time`, and takes it again. May return early.
    ///
    /// # Panics
    /// Never: only a guard that waits already is empty, and nobody else has that.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) {
        let held = guard.0.take().expect("a guard is empty only while it waits");
        // Counted under the lock.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let waited = self.woken.wait_timeout(held, time).unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard.0 = Some(waited.0);
    }

    /// Wakes one that waits.
    pub fn notify_one(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.woken.notify_one();
        }
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.woken.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two threads in turns: a wake that is left out because nobody seems to wait would end here.
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
