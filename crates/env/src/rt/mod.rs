//! The loop of one core: a single-threaded executor over `io_uring`, or over epoll and threads.
//!
//! Reading order: `op` (requests to the kernel), `driver` (operations in flight), `uring` and
//! `poll` (the two backends), `task` and `remote` (wakers, also from other cores), `core` (the
//! loop).

pub(crate) mod core;
mod driver;
pub(crate) mod op;
mod poll;
mod remote;
mod task;
#[cfg(test)]
pub(crate) mod tests;
mod thread;
mod timer;
mod uring;
mod workers;

use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

pub use remote::Handle;
pub use task::{JoinError, JoinHandle};
pub use thread::{ThreadHandle, thread};
pub use timer::{Elapsed, Sleep, sleep, sleep_until, timeout, yield_now};

use self::core::{Core, current};
use crate::error::EnvError;
use crate::pool::BufferPool;
use driver::{Backend, Driver};
use op::{Action, Op};
use poll::Poller;
use remote::Remote;
use uring::Uring;

/// Interface of a runtime to the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoBackend {
    /// `io_uring` if the kernel allows it, otherwise threads.
    #[default]
    Auto,
    /// `io_uring`; an error where it is forbidden.
    Uring,
    /// epoll for sockets and worker threads for disks.
    Threads,
}

/// Options of a runtime.
#[derive(Clone, Debug)]
pub struct RuntimeOptions {
    /// Interface to the kernel.
    pub io: IoBackend,
    /// Operations queued before the loop must enter the kernel, 1 to 32768. More may be in flight.
    pub ring_entries: u32,
    /// Pools whose memory is registered with the ring. Costs their whole size in locked memory;
    /// when the limit (`ulimit -l`) is too low, everything still works, but slower.
    pub pools: Vec<BufferPool>,
    /// Time that a loop polls for work before it sleeps, if recent work came within that time; an
    /// idle loop uses no processor. Zero disables polling.
    pub busy_poll: Duration,
}

impl Default for RuntimeOptions {
    fn default() -> Self {
        Self {
            io: IoBackend::Auto,
            ring_entries: 1024,
            pools: Vec::new(),
            busy_poll: Duration::ZERO,
        }
    }
}

/// The loop of one core. It stays on the thread that made it.
///
/// Dropping it drops its tasks and waits until the kernel has released their memory.
pub struct Runtime {
    core: Rc<Core>,
    fallback_reason: Option<io::Error>,
}

impl Runtime {
    /// Makes a loop for this thread.
    ///
    /// # Errors
    /// [`EnvError::Config`] for a bad ring size; [`EnvError::Os`] when the kernel refuses the
    /// backend, or both backends for [`IoBackend::Auto`].
    #[expect(clippy::needless_pass_by_value, reason = "options are made for one runtime")]
    pub fn new(options: RuntimeOptions) -> Result<Self, EnvError> {
        if !(1..=32_768).contains(&options.ring_entries) {
            return Err(EnvError::Config {
                field: "ring_entries",
                fix: format!("{}: use 1 to 32768", options.ring_entries),
            });
        }
        let remote =
            Remote::new().map_err(|error| EnvError::os("making an event descriptor", error))?;
        let remote = Arc::new(remote);
        let (backend, fallback_reason) = choose(&options, &remote)?;
        let core = Core::new(Driver::new(backend), remote, options.busy_poll);
        Ok(Self { core: Rc::new(core), fallback_reason })
    }

    /// Runs `future` to its end, and the spawned tasks until then.
    ///
    /// # Panics
    /// Inside another `block_on` of the same thread; and when a task panics, with its panic.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.core.block_on(future)
    }

    /// Handle of this loop for other threads.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle { remote: Arc::clone(self.core.remote()) }
    }

    /// The backend in use: never [`IoBackend::Auto`].
    #[must_use]
    pub fn backend(&self) -> IoBackend {
        self.core.backend()
    }

    /// Why [`IoBackend::Auto`] did not get `io_uring`, for the log.
    #[must_use]
    pub const fn fallback_reason(&self) -> Option<&io::Error> {
        self.fallback_reason.as_ref()
    }

    /// True when the pools are registered with the ring. False on the fallback, or when the limit
    /// on locked memory is too low.
    #[must_use]
    pub fn buffers_registered(&self) -> bool {
        self.core.buffers_registered()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.core.end();
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("backend", &self.backend()).finish_non_exhaustive()
    }
}

fn choose(
    options: &RuntimeOptions,
    remote: &Arc<Remote>,
) -> Result<(Backend, Option<io::Error>), EnvError> {
    let threads = || match Poller::new(Arc::clone(remote)) {
        Ok(poller) => Ok(Backend::Poll(Box::new(poller))),
        Err(error) => Err(EnvError::os("making an epoll instance", error)),
    };
    if options.io == IoBackend::Threads {
        return Ok((threads()?, None));
    }
    match Uring::new(options.ring_entries, &options.pools, Arc::clone(remote)) {
        Ok(uring) => Ok((Backend::Uring(Box::new(uring)), None)),
        Err(error) if options.io == IoBackend::Auto => Ok((threads()?, Some(error))),
        Err(error) => Err(EnvError::os(
            "setting up io_uring (use `io = \"threads\"` or \"auto\" where it is forbidden)",
            error,
        )),
    }
}

/// Spawns a task on this core. Dropping the handle detaches it.
///
/// # Panics
/// Outside `Runtime::block_on`.
pub fn spawn<F: Future + 'static>(future: F) -> JoinHandle<F::Output> {
    current().spawn(future)
}

/// A handle to this core's loop.
///
/// # Panics
/// Outside `Runtime::block_on`.
#[must_use]
pub fn current_handle() -> Handle {
    current().handle()
}

/// Waits until `fd` can be read, or its other end closes. One waiter per descriptor at a time.
///
/// # Errors
/// Errors of the kernel, `EBADF` for instance.
pub async fn readable(fd: BorrowedFd<'_>) -> io::Result<()> {
    poll_fd(fd, libc::POLLIN).await
}

/// Waits until `fd` can be written, or its other end closes. One waiter per descriptor at a time.
///
/// # Errors
/// Errors of the kernel, `EBADF` for instance.
pub async fn writable(fd: BorrowedFd<'_>) -> io::Result<()> {
    poll_fd(fd, libc::POLLOUT).await
}

async fn poll_fd(fd: BorrowedFd<'_>, events: i16) -> io::Result<()> {
    let action = Action::Poll { fd: fd.as_raw_fd(), events };
    // SAFETY: the action points to no memory. When the future is dropped, the kernel holds its own
    // reference to the file, and the poller takes the descriptor out of its set.
    let (result, ()) = unsafe { Op::start(&current(), action, ()) }.await;
    result_of(result).map(drop)
}

/// A kernel result as a count or an error.
pub(crate) fn result_of(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}
