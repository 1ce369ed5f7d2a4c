//! Values that belong to one process.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::generation;

/// A value that each process creates for itself. The parent's value is left alone for good: neither
/// read nor dropped.
pub struct PerProcess<T> {
    /// The value of this process or of an ancestor; null at first.
    current: AtomicPtr<Made<T>>,
    _owns: PhantomData<T>,
}

struct Made<T> {
    generation: u64,
    value: T,
}

impl<T> PerProcess<T> {
    /// Without a value.
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
        // SAFETY: the pointer is null or from `Box::into_raw`. An installed value is freed by
        // `drop` only, which no borrow outlives, and never after another one replaced it.
        let made = unsafe { made.as_ref() }?;
        (made.generation == generation()).then_some(&made.value)
    }
}

impl<T: Send + Sync> PerProcess<T> {
    /// The value that this process has made, if any.
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        self.own(self.current.load(Ordering::Acquire))
    }

    /// The value of this process, made now if it has none. When several threads make one, one wins;
    /// the others' are dropped.
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
                // SAFETY: installed just now, and freed by `drop` only. The value seen before is
                // the parent's, and stays.
                return Ok(unsafe { &(*new).value });
            };
            if let Some(value) = self.own(other) {
                // SAFETY: from `Box::into_raw` above, and not installed.
                drop(unsafe { Box::from_raw(new) });
                return Ok(value);
            }
            seen = other;
        }
    }

    /// Like [`Self::get_or_try`], with a `make` that cannot fail.
    pub fn get_or(&self, make: impl FnOnce() -> T) -> &T {
        let Ok(value) = self.get_or_try(|| Ok::<T, std::convert::Infallible>(make()));
        value
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let made = *self.current.get_mut();
        if self.own(made).is_some() {
            // SAFETY: not null, from `Box::into_raw`, and no borrow of it is left.
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

/// A value of the process that made it. A child can neither get it nor drop it.
pub struct OfProcess<T> {
    generation: u64,
    value: ManuallyDrop<T>,
}

impl<T> OfProcess<T> {
    /// Wraps a value of this process.
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

    /// The value for changes, if this process made it.
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
