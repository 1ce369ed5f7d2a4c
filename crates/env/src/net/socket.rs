//! A socket of one core.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use super::addr::set_nonblocking;
use crate::rt::IoBackend;
use crate::rt::core::{Core, current};

/// An open socket and its core. Operations in flight hold a count, so the descriptor closes after
/// the last of them.
pub(super) struct Socket {
    pub(super) core: Rc<Core>,
    /// Absent only while it is being dropped or handed on.
    fd: Option<OwnedFd>,
}

impl Socket {
    /// Takes a socket on this core. `io_uring` waits by itself only on blocking sockets, epoll
    /// needs non-blocking ones.
    pub(super) fn adopt(fd: OwnedFd) -> io::Result<Rc<Self>> {
        let core = current();
        set_nonblocking(&fd, core.backend() == IoBackend::Threads)?;
        Ok(Rc::new(Self { core, fd: Some(fd) }))
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_ref().expect("a socket has its descriptor until it is dropped").as_raw_fd()
    }

    /// Takes the descriptor off this core.
    pub(super) fn release(mut self) -> OwnedFd {
        self.core.forget_socket(self.fd());
        self.fd.take().expect("a socket has its descriptor until it is dropped")
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(fd) = &self.fd {
            self.core.forget_socket(fd.as_raw_fd());
        }
    }
}
