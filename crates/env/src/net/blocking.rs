//! Blocking connections, for clients that have threads and no event loop.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_types::Tick;

use super::addr::{
    PeerAddr, PeerCredentials, RawAddr, credentials_of, peer_of, set_nodelay, set_nonblocking,
    set_option, stream_socket,
};
use super::fds;
use crate::clock::RealClock;
use crate::fork::ProcessFd;
use crate::sys::{check, check_len};

/// Memory outside Rust's view: a Python array, a tensor, a mapping that another process writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct RawSegment {
    /// Address of the first byte.
    pub addr: *mut u8,
    /// Bytes.
    pub len: usize,
}

const _: () = assert!(size_of::<RawSegment>() == size_of::<libc::iovec>());
const _: () = assert!(align_of::<RawSegment>() == align_of::<libc::iovec>());
const _: () =
    assert!(std::mem::offset_of!(RawSegment, len) == std::mem::offset_of!(libc::iovec, iov_len));

// SAFETY: a segment is an address and a length; the code that dereferences it takes on the duty.
unsafe impl Send for RawSegment {}
// SAFETY: as above.
unsafe impl Sync for RawSegment {}

/// Pieces the kernel takes in one call (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// A TCP or unix connection with blocking calls that end at a deadline. Nagle's algorithm is off.
///
/// One thread may send while another receives. A connection made here belongs to this process only
/// ([`crate::fork`]).
#[derive(Debug)]
pub struct BlockingStream {
    fd: ProcessFd,
    /// The socket's own time limits in microseconds, per direction; zero means none set. A blocking
    /// call sets them only when they are off by more than half, so a steady stream of calls with
    /// similar deadlines costs one system call each.
    limits: [AtomicU64; 2],
}

#[derive(Clone, Copy)]
enum Direction {
    Receive,
    Send,
}

fn timed_out() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

impl BlockingStream {
    /// Connects over TCP.
    ///
    /// # Errors
    /// `TimedOut` after `timeout`; `ConnectionRefused` and other system errors.
    pub fn connect_tcp(addr: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = Self::connect(&RawAddr::tcp(addr), timeout)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Connects to a unix socket.
    ///
    /// # Errors
    /// `TimedOut` after `timeout`; `NotFound`, `ConnectionRefused` and other system errors.
    pub fn connect_unix(path: &Path, timeout: Duration) -> io::Result<Self> {
        Self::connect(&RawAddr::unix(path)?, timeout)
    }

    fn connect(addr: &RawAddr, timeout: Duration) -> io::Result<Self> {
        let deadline = RealClock::tick().plus(timeout);
        let socket = stream_socket(addr.family())?;
        set_nonblocking(&socket, true)?;
        let stream = Self::of(ProcessFd::new(socket));
        loop {
            // SAFETY: `addr` is an address of its own length.
            let result =
                check(unsafe { libc::connect(stream.as_raw_fd(), addr.as_ptr(), addr.len()) });
            let Err(error) = result else { break };
            match error.raw_os_error() {
                Some(libc::EISCONN) => break,
                Some(libc::EINPROGRESS | libc::EALREADY | libc::EINTR) => {
                    stream.wait(libc::POLLOUT, deadline)?;
                }
                // The queue of a unix listener is full; there is no event to wait for.
                Some(libc::EAGAIN) => {
                    if RealClock::tick() >= deadline {
                        return Err(timed_out());
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                _ => return Err(error),
            }
        }
        set_nonblocking(&stream.fd, false)?;
        Ok(stream)
    }

    /// Takes a connected, blocking socket.
    #[must_use]
    pub const fn from_owned_fd(fd: OwnedFd) -> Self {
        Self::of(ProcessFd::kept(fd))
    }

    const fn of(fd: ProcessFd) -> Self {
        Self { fd, limits: [AtomicU64::new(0), AtomicU64::new(0)] }
    }

    /// Waits for `events` until `deadline`.
    fn wait(&self, events: i16, deadline: Tick) -> io::Result<()> {
        loop {
            let left = deadline.since(RealClock::tick());
            let mut poll = libc::pollfd { fd: self.as_raw_fd(), events, revents: 0 };
            let millis = i32::try_from(left.as_micros().div_ceil(1_000)).unwrap_or(i32::MAX);
            // SAFETY: one writable pollfd.
            match check(unsafe { libc::poll(&raw mut poll, 1, millis) }) {
                Ok(0) if RealClock::tick() >= deadline => return Err(timed_out()),
                Ok(0) => {}
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sets the socket's own time limit so that a blocking call ends at about `deadline`, never
    /// later; a call that ends early is repeated.
    fn limit(&self, direction: Direction, deadline: Tick) -> io::Result<()> {
        let left = deadline.since(RealClock::tick());
        let left = u64::try_from(left.as_micros()).unwrap_or(u64::MAX).min(1 << 40);
        if left == 0 {
            return Err(timed_out());
        }
        let (known, option) = match direction {
            Direction::Receive => (&self.limits[0], libc::SO_RCVTIMEO),
            Direction::Send => (&self.limits[1], libc::SO_SNDTIMEO),
        };
        let set = known.load(Ordering::Relaxed);
        if set > left / 2 && set <= left {
            return Ok(());
        }
        let time = libc::timeval {
            tv_sec: libc::time_t::try_from(left / 1_000_000).unwrap_or(libc::time_t::MAX),
            tv_usec: libc::suseconds_t::try_from(left % 1_000_000).unwrap_or(0),
        };
        set_option(self.as_raw_fd(), libc::SOL_SOCKET, option, &time)?;
        known.store(left, Ordering::Relaxed);
        Ok(())
    }

    /// Repeats `call` until it moves bytes, fails, or `deadline` passes.
    fn blocking(
        &self,
        direction: Direction,
        deadline: Tick,
        mut call: impl FnMut(RawFd) -> isize,
    ) -> io::Result<usize> {
        loop {
            self.limit(direction, deadline)?;
            match check_len(call(self.as_raw_fd())) {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                other => return other,
            }
        }
    }

    /// Sends all of `parts`, in order.
    ///
    /// # Errors
    /// `TimedOut` at `deadline`, with an unknown part sent: close the connection then.
    pub fn send_vectored(&self, parts: &[IoSlice<'_>], deadline: Tick) -> io::Result<()> {
        // IoSlice has the layout of iovec, by its documentation.
        let left = parts
            .iter()
            .filter(|part| !part.is_empty())
            .map(|part| libc::iovec {
                iov_base: part.as_ptr().cast_mut().cast(),
                iov_len: part.len(),
            })
            .collect();
        self.send_pieces(left, deadline)
    }

    /// Sends raw memory, all of it.
    ///
    /// # Errors
    /// As for [`BlockingStream::send_vectored`].
    ///
    /// # Safety
    /// Every segment is readable for its length until the call returns.
    pub unsafe fn send_raw(&self, parts: &[RawSegment], deadline: Tick) -> io::Result<()> {
        let left = parts
            .iter()
            .filter(|part| part.len > 0)
            .map(|part| libc::iovec { iov_base: part.addr.cast(), iov_len: part.len })
            .collect();
        self.send_pieces(left, deadline)
    }

    /// Sends every piece; callers guarantee that the memory is readable until this returns.
    fn send_pieces(&self, mut left: Vec<libc::iovec>, deadline: Tick) -> io::Result<()> {
        let mut next = 0;
        while next < left.len() {
            let sent = self.send_message(&mut left[next..], deadline)?;
            next += consume(&mut left[next..], sent);
        }
        Ok(())
    }

    fn send_message(&self, iov: &mut [libc::iovec], deadline: Tick) -> io::Result<usize> {
        // SAFETY: an all-zero msghdr is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = iov.as_mut_ptr();
        message.msg_iovlen = iov.len().min(PIECES_MAX) as _;
        self.blocking(Direction::Send, deadline, |fd| {
            // SAFETY: the pieces are readable for the length of the call, by this function's
            // callers.
            unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL) }
        })
    }

    /// Receives some bytes; 0 at the end of the stream.
    ///
    /// # Errors
    /// `TimedOut` at `deadline`.
    pub fn recv(&self, into: &mut [u8], deadline: Tick) -> io::Result<usize> {
        self.blocking(Direction::Receive, deadline, |fd| {
            // SAFETY: `into` is writable for its length.
            unsafe { libc::recv(fd, into.as_mut_ptr().cast(), into.len(), 0) }
        })
    }

    /// Fills `into`.
    ///
    /// # Errors
    /// `TimedOut` at `deadline`; `UnexpectedEof` when the peer ends the stream first.
    pub fn recv_exact(&self, into: &mut [u8], deadline: Tick) -> io::Result<()> {
        let segment = RawSegment { addr: into.as_mut_ptr(), len: into.len() };
        // SAFETY: the segment is exactly `into`.
        unsafe { self.recv_exact_raw(&[segment], deadline) }
    }

    /// Receives some bytes into `parts`, in order; 0 at the end of the stream.
    ///
    /// # Errors
    /// `TimedOut` at `deadline`.
    pub fn recv_vectored(&self, parts: &mut [IoSliceMut<'_>], deadline: Tick) -> io::Result<usize> {
        let segments: Vec<RawSegment> = parts
            .iter_mut()
            .map(|part| RawSegment { addr: part.as_mut_ptr(), len: part.len() })
            .collect();
        // SAFETY: the segments are exactly `parts`.
        unsafe { self.recv_raw(&segments, deadline) }
    }

    /// Receives some bytes into raw memory, in order; 0 at the end of the stream.
    ///
    /// # Errors
    /// `TimedOut` at `deadline`.
    ///
    /// # Safety
    /// Every segment is writable for its length until the call returns.
    pub unsafe fn recv_raw(&self, parts: &[RawSegment], deadline: Tick) -> io::Result<usize> {
        self.recv_message(parts, deadline, 0)
    }

    /// Fills raw memory.
    ///
    /// # Errors
    /// `TimedOut` at `deadline`; `UnexpectedEof` when the peer ends the stream first.
    ///
    /// # Safety
    /// Every segment is writable for its length until the call returns.
    pub unsafe fn recv_exact_raw(&self, parts: &[RawSegment], deadline: Tick) -> io::Result<()> {
        let mut left: Vec<libc::iovec> = parts
            .iter()
            .filter(|part| part.len > 0)
            .map(|part| libc::iovec { iov_base: part.addr.cast(), iov_len: part.len })
            .collect();
        let mut next = 0;
        while next < left.len() {
            let rest: &[libc::iovec] = &left[next..];
            // SAFETY: a segment has the layout of an iovec (asserted above).
            let rest = unsafe {
                std::slice::from_raw_parts(rest.as_ptr().cast::<RawSegment>(), rest.len())
            };
            let got = self.recv_message(rest, deadline, libc::MSG_WAITALL)?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            next += consume(&mut left[next..], got);
        }
        Ok(())
    }

    fn recv_message(&self, parts: &[RawSegment], deadline: Tick, flags: i32) -> io::Result<usize> {
        // SAFETY: an all-zero msghdr is valid.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_ptr().cast_mut().cast();
        message.msg_iovlen = parts.len().min(PIECES_MAX) as _;
        self.blocking(Direction::Receive, deadline, |fd| {
            // SAFETY: a segment has the layout of an iovec (asserted above); the memory is
            // writable for the length of the call, by this function's callers.
            unsafe { libc::recvmsg(fd, &raw mut message, flags) }
        })
    }

    /// Receives some bytes and the descriptors that came with them (unix sockets).
    ///
    /// # Errors
    /// `TimedOut` at `deadline`; `InvalidData` for too many descriptors.
    pub fn recv_fds(&self, into: &mut [u8], deadline: Tick) -> io::Result<(usize, Vec<OwnedFd>)> {
        let mut fds = Vec::new();
        loop {
            self.limit(Direction::Receive, deadline)?;
            match fds::try_recv(self.as_raw_fd(), into, &mut fds, 0) {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                other => return other.map(|got| (got, fds)),
            }
        }
    }

    /// Sends `bytes` with `fds` attached to the first of them (unix sockets).
    ///
    /// # Errors
    /// As for [`BlockingStream::send_vectored`]; `InvalidInput` for no byte or too many
    /// descriptors.
    pub fn send_fds(&self, bytes: &[u8], fds: &[BorrowedFd<'_>], deadline: Tick) -> io::Result<()> {
        self.limit(Direction::Send, deadline)?;
        let sent = fds::try_send(self.as_raw_fd(), bytes, fds, 0)?;
        self.send_vectored(&[IoSlice::new(&bytes[sent..])], deadline)
    }

    /// Turns Nagle's algorithm off (`on`) or on; no effect on unix sockets.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        set_nodelay(self.as_raw_fd(), on)
    }

    /// Waits until there is something to receive; false when `timeout` passed first.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn poll_readable(&self, timeout: Duration) -> io::Result<bool> {
        match self.wait(libc::POLLIN, RealClock::tick().plus(timeout)) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Address of the peer.
    ///
    /// # Errors
    /// `NotConnected` when the peer is gone already.
    pub fn peer_addr(&self) -> io::Result<PeerAddr> {
        peer_of(self.as_raw_fd())
    }

    /// The process at the other end (unix sockets), as the kernel recorded it at the connect.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn peer_credentials(&self) -> io::Result<PeerCredentials> {
        credentials_of(self.as_raw_fd())
    }

    /// Ends one or both directions, and blocking calls of other threads with them.
    ///
    /// # Errors
    /// `NotConnected` when the peer is gone already.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        // SAFETY: plain numbers.
        check(unsafe { libc::shutdown(self.as_raw_fd(), how) }).map(drop)
    }
}

impl AsFd for BlockingStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for BlockingStream {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Takes `count` bytes off the front of `iov`; returns the number of used-up entries.
fn consume(iov: &mut [libc::iovec], mut count: usize) -> usize {
    for (index, entry) in iov.iter_mut().enumerate() {
        if count < entry.iov_len {
            entry.iov_base = entry.iov_base.wrapping_byte_add(count);
            entry.iov_len -= count;
            return index;
        }
        count -= entry.iov_len;
    }
    assert!(count == 0, "the kernel moved more bytes than asked");
    iov.len()
}
