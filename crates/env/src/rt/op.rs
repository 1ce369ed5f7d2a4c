//! A kernel operation as a future that owns its memory.

use std::any::Any;
use std::future::Future;
use std::os::fd::RawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::core::Core;

/// A file of a driver: its descriptor, and its slot in the ring's file table if it has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileRef {
    pub(crate) fd: RawFd,
    pub(crate) slot: Option<u32>,
}

/// A request to the kernel.
///
/// Addresses stay valid until the operation completes, because [`Op`] owns the memory (its
/// `resource`) and leaves it with the driver when it is dropped early.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Read {
        file: FileRef,
        into: *mut u8,
        len: u32,
        offset: u64,
        fixed: Option<u16>,
    },
    /// With `durable`, it completes once its own bytes are durable (`RWF_DSYNC`), not those of
    /// other writes.
    Write {
        file: FileRef,
        from: *const u8,
        len: u32,
        offset: u64,
        fixed: Option<u16>,
        durable: bool,
    },
    Sync {
        file: FileRef,
    },
    Punch {
        file: FileRef,
        offset: u64,
        len: u64,
    },
    /// Allocates space on the file system for a range of a file.
    Reserve {
        file: FileRef,
        offset: u64,
        len: u64,
    },
    Recv {
        fd: RawFd,
        into: *mut u8,
        len: u32,
        all: bool,
    },
    Send {
        fd: RawFd,
        from: *const u8,
        len: u32,
    },
    SendMsg {
        fd: RawFd,
        message: *const libc::msghdr,
    },
    Accept {
        fd: RawFd,
    },
    Connect {
        fd: RawFd,
        address: *const libc::sockaddr,
        len: u32,
    },
    Poll {
        fd: RawFd,
        events: i16,
    },
}

impl Action {
    /// Bytes of a disk transfer.
    pub(crate) const fn disk_bytes(&self) -> u32 {
        match self {
            Self::Read { len, .. } | Self::Write { len, .. } => *len,
            _ => 0,
        }
    }
}

/// The flags of a write (`pwritev2(2)`).
pub(super) const fn write_flags(durable: bool) -> i32 {
    if durable { libc::RWF_DSYNC } else { 0 }
}

/// An operation in flight. Resolves to the kernel's result (a count, or a negative error number)
/// and the memory.
///
/// Dropping it asks the kernel to cancel; the memory stays with the driver until the kernel has
/// released it.
pub(crate) struct Op<R: 'static> {
    core: Rc<Core>,
    key: usize,
    /// `None` once the result was returned.
    resource: Option<R>,
}

impl<R: 'static> Op<R> {
    /// Queues `action`.
    ///
    /// # Safety
    /// Every address in `action` points into heap or pool memory that `resource` owns (moving
    /// `resource` does not move it) and that nothing else uses in a conflicting way; descriptors in
    /// `action` are kept open by `resource`.
    pub(crate) unsafe fn start(core: &Rc<Core>, action: Action, resource: R) -> Self {
        let key = core.submit(action);
        Self { core: Rc::clone(core), key, resource: Some(resource) }
    }

    /// Queues `first` and `then`, where `then` starts only once `first` has fully succeeded.
    ///
    /// # Safety
    /// As for [`Op::start`].
    pub(crate) unsafe fn start_linked<S: 'static>(
        core: &Rc<Core>,
        first: (Action, R),
        then: (Action, S),
    ) -> (Self, Op<S>) {
        let (key, key_then) = core.submit_linked(first.0, then.0);
        (
            Self { core: Rc::clone(core), key, resource: Some(first.1) },
            Op { core: Rc::clone(core), key: key_then, resource: Some(then.1) },
        )
    }
}

// The resource is never pinned: only the memory that it points to has to stay in place.
impl<R: 'static> Unpin for Op<R> {}

impl<R: 'static> Future for Op<R> {
    type Output = (i32, R);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(self.resource.is_some(), "an operation was polled after it had completed");
        match self.core.poll_op(self.key, context.waker()) {
            Some(result) => {
                let resource = self.resource.take().expect("checked above");
                Poll::Ready((result, resource))
            }
            None => Poll::Pending,
        }
    }
}

impl<R: 'static> Drop for Op<R> {
    fn drop(&mut self) {
        if let Some(resource) = self.resource.take() {
            self.core.abandon(self.key, || Box::new(resource) as Box<dyn Any>);
        }
    }
}
