//! Values that belong to one process.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::generation;

/// A value that each process makes for itself. That of the parent is left as it is, for good: neither read nor dropped.
pub struct PerProcess<T> {
    /// What this process has, or one that it was forked from; null at first.
    current: AtomicPtr<Made<T>>,
    _owns: PhantomData<T>,
}

struct Made<T> {
    generation: u64,
    value: T,
}

impl<T> PerProcess<T> {
    /// Nothing yet.
    #[must_use]
    pub const fn empty() -> Self {
        Self { current: AtomicPtr::new(ptr::null_mut()), _owns: PhantomData }
    }

    /// The value of this process.
    #[must_use]
    pub fn new(value: T) -> Self {
        let made = Box::new(Made { generation: generation(), value });
        Self { current: AtomicPtr::new(Box::into_raw(made)), _owns: PhantomData }
    }

    #[expect(clippy::unused_self, reason = "what is given lives as long as this")]
    fn own(&self, made: *mut Made<T>) -> Option<&T> {
        // SAFETY: the pointer is null or from `Box::into_raw`. What was put in is freed by `drop` only, which no borrow
        // outlives, and never once another one took its place.
        let made = unsafe { made.as_ref() }?;
        (made.generation == generation()).then_some(&made.value)
    }
}

impl<T: Send + Sync> PerProcess<T> {
    /// The value that this process has made.
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        self.own(self.current.load(Ordering::Acquire))
    }

    /// The value of this process, made now if it has none. Of several threads that make one, one wins; the others' are
    /// dropped.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get_or_try<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        let mut seen = self.current.load(Ordering::Acquire);
        if let Some(value) = self.own(seen) {
            return Ok(value);
        }
        let new = Box::into_raw(Box::new(Made { generation: generation(), value: make()? }));
        loop {
            let done =
                self.current.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire);
            let Err(other) = done else {
                // SAFETY: put in just now, and freed by `drop` only. What was seen is the parent's, and stays.
                return Ok(unsafe { &(*new).value });
            };
            if let Some(value) = self.own(other) {
                // SAFETY: from `Box::into_raw` above, and not put in.
                drop(unsafe { Box::from_raw(new) });
                return Ok(value);
            }
            seen = other;
        }
    }

    /// The same of what cannot fail.
    pub fn get_or(&self, make: impl FnOnce() -> T) -> &T {
        let Ok(value) = self.get_or_try(|| Ok::<T, std::convert::Infallible>(make()));
        value
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let made = *self.current.get_mut();
        if self.own(made).is_some() {
            // SAFETY: not null, from `Box::into_raw`, and nobody borrows it any more.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::empty()
    }
}

impl<T: fmt::Debug + Send + Sync> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PerProcess").field(&self.get()).finish()
    }
}

/// A value of the process that made it. A child has not got it, and does not drop it.
pub struct OfProcess<T> {
    generation: u64,
    value: ManuallyDrop<T>,
}

impl<T> OfProcess<T> {
    /// The value of this process.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { generation: generation(), value: ManuallyDrop::new(value) }
    }

    /// Whether this process made it.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.generation == generation()
    }

    /// The value, if this process made it.
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        self.is_own().then_some(&*self.value)
    }

    /// The same, to change it.
    #[must_use]
    pub fn get_mut(&mut self) -> Option<&mut T> {
        if self.is_own() { Some(&mut self.value) } else { None }
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.is_own() {
            // SAFETY: it is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for OfProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OfProcess").field(&self.get()).finish()
    }
}
