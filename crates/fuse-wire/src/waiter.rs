//! A thread that waits for requests together with others.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Marks an event of the caller's `stop`.
const STOP: u64 = 1;

/// One thread's wait for requests of a connection, until its `stop` is readable.
///
/// All descriptors of a connection share a queue, and a request wakes every poller: of 16 threads,
/// 15 wake for nothing. With `EPOLLEXCLUSIVE` the kernel wakes one thread for a request, the first
/// waiting in order of registration, so that a light load stays with few threads and their caches
/// (`epoll_ctl(2)`, Linux 4.5).
#[derive(Debug)]
pub struct Waiter {
    epoll: OwnedFd,
}

impl Waiter {
    pub(crate) fn new(device: BorrowedFd<'_>, stop: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: takes no memory.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let this = Self { epoll };
        this.add(device, libc::EPOLLIN | libc::EPOLLEXCLUSIVE, 0)?;
        this.add(stop, libc::EPOLLIN, STOP)?;
        Ok(this)
    }

    fn add(&self, fd: BorrowedFd<'_>, events: i32, tag: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events.cast_unsigned(), u64: tag };
        let (epoll, fd) = (self.epoll.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: reads one event, which lives on this stack frame.
        let rc = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits until there may be a request; true when `stop` is readable.
    pub(crate) fn wait(&self) -> io::Result<bool> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 2];
        // SAFETY: the kernel writes at most two events, which live on this stack frame.
        let ready = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), 2, -1) };
        let Ok(ready) = usize::try_from(ready) else {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) };
        };
        Ok(events[..ready].iter().any(|event| event.u64 == STOP))
    }
}
