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

/// The path of the FUSE device.
const PATH: &str = "/dev/fuse";
/// Pages of a request on kernels before 6.13, which have no setting for it.
const MAX_PAGES_BEFORE_THE_SETTING: u32 = 256;
/// The largest number of pieces of one write, `UIO_MAXIOV`.
const PIECES_MAX: usize = 1024;

/// A descriptor of `/dev/fuse`, with or without a connection.
///
/// The connection lives while any descriptor of it is open in any process. Dropping the value
/// closes one descriptor. Unanswered requests that were read through a cloned descriptor then fail
/// with `ECONNABORTED`, unless another process holds that descriptor too.
///
/// Several threads may share a descriptor, but each waits less with a clone of its own.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
    /// Only with a ring: answers go to the ring's thread.
    answers: Option<Arc<Answers>>,
}

/// The outcome of a read.
#[derive(Debug)]
pub enum Received<'b> {
    /// The bytes of one request, for [`Request::decode`](crate::Request::decode).
    Request(&'b [u8]),
    /// The mount is gone: no request will ever come.
    Unmounted,
    /// The caller's `stop` can be read, and no request was waiting.
    Stopped,
    /// Someone aborted the connection: the mount exists and answers nothing. Distinguished from
    /// [`Received::Unmounted`] only when `ABORT_ERROR` was granted.
    Aborted,
}

/// The outcome of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// The kernel has it.
    Sent,
    /// The kernel no longer waits: the caller was killed, the request was answered before, or the
    /// connection has ended.
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

    /// The same connection, for requests that came through a ring.
    pub(crate) fn answering(&self, answers: Arc<Answers>) -> io::Result<Self> {
        Ok(Self { answers: Some(answers), ..Self::from_fd(self.fd.try_clone()?) })
    }

    pub(crate) fn raw(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Opens a second descriptor of the same connection, with a queue of its own.
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
    /// Signals do not end the wait. It also waits on a descriptor that was made non-blocking.
    ///
    /// # Errors
    /// `InvalidInput` when the buffer is smaller than agreed in INIT, `PermissionDenied` when the
    /// descriptor has no connection.
    pub fn read<'b>(&self, buffer: &'b mut RequestBuffer) -> io::Result<Received<'b>> {
        self.receive(buffer, None)
    }

    /// Makes a [`Waiter`] for one thread, which waits for requests with [`Device::read_or_stop`]
    /// until `stop` is readable.
    ///
    /// Makes the descriptor non-blocking, in all processes that share it.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn waiter(&self, stop: BorrowedFd<'_>) -> io::Result<Waiter> {
        self.set_nonblocking()?;
        Waiter::new(self.fd.as_fd(), stop)
    }

    /// Waits for a request, or until the waiter's `stop` is readable. It does not read the bytes of
    /// `stop`.
    ///
    /// This is for a server that hands its connection over cleanly. No request is lost in the
    /// process.
    ///
    /// It polls `stop` only when no request is waiting, so a busy server makes no extra system
    /// call. Check a flag of your own between requests, and use `stop` to wake sleeping threads. A
    /// request that finds the thread waiting costs two more system calls than with
    /// [`Device::read`].
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
                // The request was interrupted between the queue and this thread, or a signal
                // arrived.
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

    /// Whether there may be a request now.
    ///
    /// For a thread that polls for the next one before it goes to sleep.
    #[must_use]
    pub fn has_request(&self) -> bool {
        // If the descriptor is broken, the read that follows returns the error.
        self.poll(0).unwrap_or(true)
    }

    /// Whether the descriptor becomes readable or ends within `timeout_ms`; -1 waits forever.
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

    /// Answers a request with one system call, without copying the reply.
    ///
    /// # Errors
    /// `InvalidInput` when the reply does not fit the request (the caller of the file system then
    /// gets an `EIO`), or has more than 1,023 pieces.
    ///
    /// # Panics
    /// [`Reply::Error`] with an invalid errno, or 4 GiB of data.
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

    /// Writes one message. The device takes all of it or nothing.
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

    /// Registers a file that the kernel then reads and writes by itself.
    ///
    /// The returned id is valid for [`OpenOut::passthrough`](crate::abi::OpenOut::passthrough)
    /// until [`Device::backing_close`], even after `file` is closed and in a process that takes the
    /// connection over.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_SYS_ADMIN` or when passthrough was not granted, `ELOOP` when
    /// the file lies on too many stacked file systems.
    pub fn backing_open(&self, file: BorrowedFd<'_>) -> io::Result<i32> {
        let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the request reads one `BackingMap`, which lives on this stack frame.
        let id = unsafe {
            libc::ioctl(self.fd.as_raw_fd(), ulong(DEV_IOC_BACKING_OPEN), &raw const map)
        };
        if id < 0 { Err(io::Error::last_os_error()) } else { Ok(id) }
    }

    /// Releases an id of [`Device::backing_open`]. Files opened through it stay open.
    ///
    /// # Errors
    /// `NotFound` when there is no such id.
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

/// Whether the connection of a descriptor of `/dev/fuse` has ended, so that no request will ever
/// come.
#[must_use]
pub fn has_ended(device: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd { fd: device.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one entry, which lives on this stack frame.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    ready > 0 && poll.revents & libc::POLLERR != 0
}

/// Converts an ioctl number to the type that the C library uses.
fn ulong(request: u32) -> libc::Ioctl {
    libc::Ioctl::from(request)
}

/// The largest number of pages of a request: `fs.fuse.max_pages_limit`, or 256 on kernels older
/// than the setting.
#[must_use]
pub fn max_pages_limit() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit");
    let limit = text.ok().and_then(|text| text.trim().parse().ok());
    limit.unwrap_or(MAX_PAGES_BEFORE_THE_SETTING).max(DEFAULT_MAX_PAGES)
}
