//! `/dev/fuse`: requests in, replies out.

use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::abi::{
    BackingMap, DEFAULT_MAX_PAGES, DEV_IOC_BACKING_CLOSE, DEV_IOC_BACKING_OPEN, DEV_IOC_CLONE,
};
use crate::buffer::RequestBuffer;
use crate::reply::Reply;
use crate::request::ReplyTo;
use crate::ring::Answers;
use crate::waiter::Waiter;

/// Where the kernel's door is.
const PATH: &str = "/dev/fuse";
/// Pages of a request on kernels that do not say, before 6.13.
const MAX_PAGES_BEFORE_THE_SETTING: u32 = 256;
/// How many pieces one write may have, `UIO_MAXIOV`.
const PIECES_MAX: usize = 1024;

/// A descriptor of `/dev/fuse`, of a connection or still of none.
///
/// The connection lives while any descriptor of it is open in any process. Dropping the value
/// closes one; requests that were read through a cloned descriptor and have no reply then
/// fail with `ECONNABORTED`, unless another process holds that descriptor too.
///
/// Several threads may share one, but each gets fewer waits with a clone of its own.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
    /// Of a ring: answers go to its thread.
    answers: Option<Arc<Answers>>,
}

/// What a read brought.
#[derive(Debug)]
pub enum Received<'b> {
    /// The bytes of one request, for [`Request::decode`](crate::Request::decode).
    Request(&'b [u8]),
    /// The mount is gone: nothing will ever come.
    Unmounted,
    /// The caller's `stop` can be read, and no request was waiting.
    Stopped,
    /// Somebody aborted the connection: the mount is there and answers nothing. Told apart from
    /// [`Received::Unmounted`] only where `ABORT_ERROR` was granted.
    Aborted,
}

/// What became of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// The kernel has it.
    Sent,
    /// The kernel no longer waits: the caller was killed, the request was answered before, or
    /// the connection has ended.
    NotAwaited,
}

impl Device {
    /// Opens the device; the descriptor has no connection until a mount or a clone gives it one.
    ///
    /// # Errors
    /// `NotFound` where the kernel has no FUSE, `PermissionDenied`.
    pub fn open() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(PATH)?;
        Ok(Self::from_fd(file.into()))
    }

    /// Takes over a descriptor that another process opened.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd, answers: None }
    }

    /// The same connection, whose requests came by a ring.
    pub(crate) fn answering(&self, answers: Arc<Answers>) -> io::Result<Self> {
        Ok(Self { answers: Some(answers), ..Self::from_fd(self.fd.try_clone()?) })
    }

    pub(crate) fn raw(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// A second descriptor of the same connection, with a queue of its own.
    ///
    /// # Errors
    /// Those of [`Device::open`], and `InvalidInput` when this one has no connection.
    pub fn clone_device(&self) -> io::Result<Self> {
        let clone = Self::open()?;
        let mut from = self.fd.as_raw_fd().cast_unsigned();
        // SAFETY: the request reads one u32, which lives on this stack frame.
        let rc = unsafe { libc::ioctl(clone.fd.as_raw_fd(), ulong(DEV_IOC_CLONE), &raw mut from) };
        if rc < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(clone)
    }

    /// Waits for a request.
    ///
    /// Signals do not end the wait. On a descriptor that somebody made non-blocking it waits all
    /// the same.
    ///
    /// # Errors
    /// `InvalidInput` when the buffer is smaller than what INIT agreed on, `PermissionDenied`
    /// when the descriptor has no connection.
    pub fn read<'b>(&self, buffer: &'b mut RequestBuffer) -> io::Result<Received<'b>> {
        self.receive(buffer, None)
    }

    /// Where one thread waits for requests with [`Device::read_or_stop`], until `stop` can be read.
    ///
    /// Makes the descriptor non-blocking, in all processes that share it.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn waiter(&self, stop: BorrowedFd<'_>) -> io::Result<Waiter> {
        self.set_nonblocking()?;
        Waiter::new(self.fd.as_fd(), stop)
    }

    /// Waits for a request, or until the `stop` of the waiter can be read, whose bytes stay where they are: for
    /// a server that hands its connection on in good order. No request is lost on the way.
    ///
    /// It looks at `stop` only when no request is there, so that a busy server makes no further
    /// system call: look at a flag of your own between requests, and let `stop` wake who sleeps. A request
    /// that finds the thread waiting costs two more system calls than with [`Device::read`].
    ///
    /// # Errors
    /// Those of [`Device::read`].
    pub fn read_or_stop<'b>(
        &self,
        buffer: &'b mut RequestBuffer,
        waiter: &Waiter,
    ) -> io::Result<Received<'b>> {
        self.receive(buffer, Some(waiter))
    }

    fn receive<'b>(
        &self,
        buffer: &'b mut RequestBuffer,
        waiter: Option<&Waiter>,
    ) -> io::Result<Received<'b>> {
        let bytes = buffer.as_mut();
        loop {
            // SAFETY: the kernel writes at most `len` bytes to memory that is borrowed mutably.
            let got =
                unsafe { libc::read(self.fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
            if let Ok(got) = usize::try_from(got) {
                return Ok(Received::Request(&bytes[..got]));
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::ENODEV) => return Ok(Received::Unmounted),
                Some(libc::ECONNABORTED) => return Ok(Received::Aborted),
                // The request was interrupted between the queue and this thread, or we were.
                Some(libc::EINTR | libc::ENOENT) => {}
                Some(libc::EAGAIN) => {
                    let stopped = waiter.map_or_else(|| self.wait(), Waiter::wait)?;
                    if stopped {
                        return Ok(Received::Stopped);
                    }
                }
                _ => return Err(error),
            }
        }
    }

    /// Waits until there may be a request; nothing stops it.
    fn wait(&self) -> io::Result<bool> {
        self.poll(-1).map(|_| false)
    }

    /// Whether there may be a request now, for a thread that looks for the next one before it goes to sleep.
    #[must_use]
    pub fn has_request(&self) -> bool {
        // What is wrong with the descriptor, the read that follows says.
        self.poll(0).unwrap_or(true)
    }

    /// Whether it can be read, or has come to its end, within so many milliseconds; -1 for any time.
    fn poll(&self, timeout_ms: i32) -> io::Result<bool> {
        let mut entry = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives on this stack frame.
        let ready = unsafe { libc::poll(&raw mut entry, 1, timeout_ms) };
        if ready < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) };
        }
        Ok(ready > 0)
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        // SAFETY: reads and changes flags of the descriptor.
        let rc = unsafe {
            let flags = libc::fcntl(self.fd.as_raw_fd(), libc::F_GETFL);
            libc::fcntl(self.fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Answers a request with one system call; nothing of the reply is copied before it.
    ///
    /// # Errors
    /// `InvalidInput` when the reply does not fit the request (the caller of the file system then
    /// gets an `EIO`), or is in more than 1,023 pieces.
    ///
    /// # Panics
    /// [`Reply::Error`] with a number that is no errno, or 4 GiB of data.
    pub fn reply(&self, to: ReplyTo, reply: &Reply<'_>) -> io::Result<Delivered> {
        if let Some(answers) = &self.answers {
            return answers.put(to, reply);
        }
        let sent = reply.with_pieces(to, |pieces| self.write(pieces));
        match sent {
            Ok(()) => Ok(Delivered::Sent),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED) => Ok(Delivered::NotAwaited),
                _ => Err(error),
            },
        }
    }

    /// One message. The device takes it whole or not at all.
    pub(crate) fn write(&self, pieces: &[&[u8]]) -> io::Result<()> {
        const INLINE: usize = 4;
        let mut inline = [IoSlice::new(&[]); INLINE];
        let mut many = Vec::new();
        let slices: &[IoSlice<'_>] = if pieces.len() <= INLINE {
            for (slot, piece) in inline.iter_mut().zip(pieces) {
                *slot = IoSlice::new(piece);
            }
            &inline[..pieces.len()]
        } else {
            many.extend(pieces.iter().map(|piece| IoSlice::new(piece)));
            &many
        };
        if slices.len() > PIECES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let count = i32::try_from(slices.len()).expect("at most 1,024 pieces");
        loop {
            // SAFETY: `IoSlice` has the layout of `iovec`, and `count` of them live in `slices`.
            let sent = unsafe { libc::writev(self.fd.as_raw_fd(), slices.as_ptr().cast(), count) };
            if sent >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// Names a file that the kernel is to read and write by itself; the name is good for
    /// [`OpenOut::passthrough`](crate::abi::OpenOut::passthrough), and lives until
    /// [`Device::backing_close`], also when `file` is closed and in a process that takes the
    /// connection over.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_SYS_ADMIN` or where passthrough was not granted,
    /// `ELOOP` when the file lies on too many stacked file systems.
    pub fn backing_open(&self, file: BorrowedFd<'_>) -> io::Result<i32> {
        let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the request reads one `BackingMap`, which lives on this stack frame.
        let id = unsafe {
            libc::ioctl(self.fd.as_raw_fd(), ulong(DEV_IOC_BACKING_OPEN), &raw const map)
        };
        if id < 0 { Err(io::Error::last_os_error()) } else { Ok(id) }
    }

    /// Gives a name of [`Device::backing_open`] back. Files that are open through it stay so.
    ///
    /// # Errors
    /// `NotFound` when there is none of that name.
    pub fn backing_close(&self, id: i32) -> io::Result<()> {
        let id = id.cast_unsigned();
        // SAFETY: the request reads one u32, which lives on this stack frame.
        let rc = unsafe {
            libc::ioctl(self.fd.as_raw_fd(), ulong(DEV_IOC_BACKING_CLOSE), &raw const id)
        };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<Device> for OwnedFd {
    fn from(device: Device) -> Self {
        device.fd
    }
}

/// Whether the connection of a descriptor of `/dev/fuse` has ended: nothing will ever come.
#[must_use]
pub fn has_ended(device: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd { fd: device.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one entry, which lives on this stack frame.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    ready > 0 && poll.revents & libc::POLLERR != 0
}

/// Numbers of ioctls are words of the C library's own choice.
fn ulong(request: u32) -> libc::Ioctl {
    libc::Ioctl::from(request)
}

/// Pages that a request of this kernel may have: `fs.fuse.max_pages_limit`, or 256 where
/// the kernel is older than the setting.
#[must_use]
pub fn max_pages_limit() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit");
    let limit = text.ok().and_then(|text| text.trim().parse().ok());
    limit.unwrap_or(MAX_PAGES_BEFORE_THE_SETTING).max(DEFAULT_MAX_PAGES)
}
