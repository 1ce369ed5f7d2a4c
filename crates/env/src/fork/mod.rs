//! State that a fork leaves to a child: memory, and nothing else.
//!
//! A child of `fork` has a copy of its parent's memory, the same open files, and one thread. Locks
//! that other threads held stay held for good, and messages on a socket or a ring used by both get
//! mixed up. So every object that communicates belongs to one process. [`generation`] distinguishes
//! processes without a system call: it grows in each child, before `fork` returns there.
//! [`PerProcess`] is a value that a child creates again, [`OfProcess`] one that a child lacks. Both
//! check the generation first and never touch the parent's value, not even to drop it.
//!
//! Files and memory go at once. A handler of `pthread_atfork` closes the descriptors of `ProcessFd`
//! in the child, replaces shared memory that the parent writes to by a private copy, and unmaps the
//! contents of memory that the parent only reads. So the child can never reach the parent's peers,
//! and a peer sees a connection end when the parent ends it.
//!
//! Absent on purpose: children that `fork` does not make. `vfork` and `posix_spawn` run no code of
//! ours before `exec`, which closes these files; `clone(2)` by hand, without `exec`, is not
//! supported.

mod fd;
mod owned;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) use fd::Mapped;
pub use fd::ProcessFd;
pub use owned::{OfProcess, PerProcess};

/// Number of forks between the first process that asked and this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);
static IS_NOTED: AtomicBool = AtomicBool::new(false);

/// A number that differs between this process and each process it was forked from, and between
/// those.
///
/// # Panics
/// When the system has no memory to install the handler, at the first call.
#[must_use]
pub fn generation() -> u64 {
    // Two threads may install it twice: then the number grows by two. A lock here could be held at
    // the time of a fork.
    if !IS_NOTED.load(Ordering::Acquire) {
        // SAFETY: the handler does what is allowed in a child: it writes atomics, and calls close
        // and mmap.
        let noted = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        assert_eq!(noted, 0, "no memory for a handler of forks");
        IS_NOTED.store(true, Ordering::Release);
    }
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    fd::leave_to_parent();
}

#[cfg(test)]
mod tests;
