//! Thin, checked wrappers of system calls, and facts about this machine.

mod machine;
mod process;
mod wait;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::fork::ProcessFd;

pub use machine::{
    FdLimit, boot_id, cpu_count, free_bytes, memory_limits, memory_total, pin_thread,
    raise_fd_limit, require_fd_limit,
};
pub use process::{
    ProcessId, ProcessSignal, begin_session, effective_gid, effective_uid, is_stuck_dying,
    supplementary_groups,
};
pub use wait::wait_readable;

/// The result of a system call that answers -1 on failure.
pub(crate) fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The result of a system call that answers a length or -1.
pub(crate) fn check_len(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

/// Takes ownership of a file descriptor that a system call just made.
pub(crate) fn own(result: i32) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the caller passes the fresh result of a call that makes a descriptor, so nothing else
    // owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A counter that wakes its poller (`eventfd`). May be shared with other processes.
#[derive(Debug)]
pub struct EventFd(ProcessFd);

impl EventFd {
    /// A non-blocking event at zero.
    ///
    /// # Errors
    /// When the process is out of file descriptors.
    pub fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes plain numbers.
        own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
            .map(|fd| Self(ProcessFd::kept(fd)))
    }

    /// Wraps an eventfd received from another process, for this process only ([`crate::fork`]).
    #[must_use]
    pub fn from_owned(fd: OwnedFd) -> Self {
        Self(ProcessFd::new(fd))
    }

    /// Wakes the poller. Never blocks; safe in a signal handler.
    pub fn notify(&self) {
        notify_raw(self.0.as_raw_fd());
    }

    /// Resets the event; true when it had been notified. Never blocks, whatever flags another owner
    /// of the event has set.
    #[must_use]
    pub fn take(&self) -> bool {
        let mut count = 0u64;
        let into = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
        // SAFETY: `into` names `count`, which is writable for its eight bytes.
        let got =
            unsafe { libc::preadv2(self.0.as_raw_fd(), &raw const into, 1, -1, libc::RWF_NOWAIT) };
        got == 8 && count > 0
    }
}

/// Adds one to the eventfd `fd`; a full counter already wakes, so every error is ignored.
pub(crate) fn notify_raw(fd: RawFd) {
    let one = 1u64;
    // SAFETY: `one` is readable for its eight bytes; a bad fd is an error, not undefined.
    let _ = unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
