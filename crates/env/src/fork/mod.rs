//! What a fork leaves to a child: memory, and nothing else.
//!
//! A child of `fork` has a copy of its parent's memory, the same open files, and one thread. Locks that other threads
//! held stay held for good, and a socket or a ring that both use mixes their messages up. So everything that talks to
//! others belongs to one process. [`generation`] tells processes apart without a system call: it grows in each child,
//! before `fork` returns there. [`PerProcess`] is a value that a child makes anew, [`OfProcess`] one that it has not.
//! Both look at the generation first and touch nothing of the parent's, not even to drop it.
//!
//! Files and memory go at once: a handler of `pthread_atfork` closes in the child what `ProcessFd` holds, and
//! replaces shared memory that the parent writes to by a private copy, and memory that the parent only reads by none.
//! So the child can never reach the parent's peers, and the peer sees that a connection ends when the parent ends it.
//!
//! Absent on purpose: children that `fork` does not make. `vfork` and `posix_spawn` run nothing of ours before `exec`,
//! which closes these files; `clone(2)` by hand, without `exec`, is not supported.

mod fd;
mod owned;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) use fd::Mapped;
pub use fd::ProcessFd;
pub use owned::{OfProcess, PerProcess};

/// How many forks lie between the first process that asked and this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);
static IS_NOTED: AtomicBool = AtomicBool::new(false);

/// A number that this process shares with no process that it was forked from, nor they with each other.
///
/// # Panics
/// When the system has no memory to note the handler in, at the first call.
#[must_use]
pub fn generation() -> u64 {
    // Two threads may note it twice: then it grows by two. A lock here could be held at the time of a fork.
    if !IS_NOTED.load(Ordering::Acquire) {
        // SAFETY: the handler does what is allowed in a child: it writes atomics, and calls close and mmap.
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
