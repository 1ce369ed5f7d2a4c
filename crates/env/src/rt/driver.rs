//! Operations in flight, over one of two backends with the same behavior.

use std::any::Any;
use std::task::Waker;

use millpond_types::Tick;
use slab::Slab;

use super::IoBackend;
use super::op::{Action, FileRef};
use super::poll::Poller;
use super::uring::Uring;
use crate::pool::Buf;

pub(super) enum State {
    Waiting(Option<Waker>),
    Done(i32),
    /// The future was dropped; its resources wait here for the kernel. Only dropped, never read.
    Abandoned(Box<dyn Any>),
}

pub(super) struct Entry {
    pub(super) state: State,
    pub(super) action: Action,
}

/// Work left by a turn of the driver until the driver is no longer borrowed: waking and dropping
/// may call back into it.
#[derive(Default)]
pub(super) struct Finished {
    pub(super) wakers: Vec<Waker>,
    pub(super) garbage: Vec<Box<dyn Any>>,
}

/// Longest sleep of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    No,
    Until(Tick),
}

/// The table of operations.
#[derive(Default)]
pub(super) struct Ops(Slab<Entry>);

impl Ops {
    pub(super) fn insert(&mut self, action: Action) -> usize {
        self.0.insert(Entry { state: State::Waiting(None), action })
    }

    pub(super) fn action(&self, key: usize) -> Action {
        self.0[key].action
    }

    /// Records the result of operation `key`.
    pub(super) fn complete(&mut self, key: usize, result: i32, finished: &mut Finished) {
        let entry = &mut self.0[key];
        match std::mem::replace(&mut entry.state, State::Done(result)) {
            State::Waiting(waker) => finished.wakers.extend(waker),
            State::Abandoned(resource) => {
                let action = self.0.remove(key).action;
                close_stray(action, result);
                finished.garbage.push(resource);
            }
            State::Done(_) => unreachable!("an operation completes once"),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn keys(&self) -> Vec<usize> {
        self.0.iter().map(|(key, _)| key).collect()
    }
}

/// Closes a connection that was accepted for a dropped future.
fn close_stray(action: Action, result: i32) {
    if matches!(action, Action::Accept { .. }) {
        drop(crate::sys::own(result));
    }
}

pub(super) enum Backend {
    Uring(Box<Uring>),
    Poll(Box<Poller>),
}

pub(super) struct Driver {
    ops: Ops,
    backend: Backend,
}

impl Driver {
    pub(super) fn new(backend: Backend) -> Self {
        Self { ops: Ops::default(), backend }
    }

    pub(super) const fn kind(&self) -> IoBackend {
        match self.backend {
            Backend::Uring(_) => IoBackend::Uring,
            Backend::Poll(_) => IoBackend::Threads,
        }
    }

    pub(super) fn submit(&mut self, action: Action) -> usize {
        let key = self.ops.insert(action);
        match &mut self.backend {
            Backend::Uring(uring) => uring.push(key, action),
            Backend::Poll(poller) => poller.start(key, action, &mut self.ops),
        }
        key
    }

    /// Queues two operations, the second after the first; `None` when the backend has no links.
    pub(super) fn submit_linked(&mut self, first: Action, then: Action) -> Option<(usize, usize)> {
        let Backend::Uring(uring) = &mut self.backend else { return None };
        let keys = (self.ops.insert(first), self.ops.insert(then));
        uring.push_linked((keys.0, first), (keys.1, then));
        Some(keys)
    }

    /// Returns the result of `key` and ends it, or returns `None` and remembers `waker`. A replaced
    /// waker is returned so that it is dropped outside the driver.
    pub(super) fn poll_op(&mut self, key: usize, waker: &Waker) -> (Option<i32>, Option<Waker>) {
        match &mut self.ops.0[key].state {
            State::Done(result) => {
                let result = *result;
                self.ops.0.remove(key);
                (Some(result), None)
            }
            State::Waiting(slot) => match slot {
                Some(known) if known.will_wake(waker) => (None, None),
                _ => (None, slot.replace(waker.clone())),
            },
            State::Abandoned(_) => unreachable!("an abandoned operation has no future"),
        }
    }

    /// Leaves `resource` with operation `key`, whose future was dropped, and asks the kernel to
    /// cancel.
    pub(super) fn abandon(
        &mut self,
        key: usize,
        resource: impl FnOnce() -> Box<dyn Any>,
        finished: &mut Finished,
    ) {
        let entry = &mut self.ops.0[key];
        match std::mem::replace(&mut entry.state, State::Waiting(None)) {
            State::Done(result) => {
                close_stray(self.ops.0.remove(key).action, result);
                finished.garbage.push(resource());
            }
            State::Waiting(waker) => {
                entry.state = State::Abandoned(resource());
                if let Some(waker) = waker {
                    finished.garbage.push(Box::new(waker));
                }
                match &mut self.backend {
                    Backend::Uring(uring) => uring.cancel(key),
                    Backend::Poll(poller) => poller.cancel(key, &mut self.ops, finished),
                }
            }
            State::Abandoned(_) => unreachable!("an operation is abandoned once"),
        }
    }

    /// One turn: submits queued operations, collects completed ones, sleeps when asked.
    pub(super) fn turn(&mut self, wait: Wait, finished: &mut Finished) {
        match &mut self.backend {
            Backend::Uring(uring) => uring.turn(wait, &mut self.ops, finished),
            Backend::Poll(poller) => poller.turn(wait, &mut self.ops, finished),
        }
    }

    /// The results that worker threads left in the mailbox.
    pub(super) fn complete_remote(&mut self, done: &[(usize, i32)], finished: &mut Finished) {
        for &(key, result) in done {
            self.ops.complete(key, result, finished);
        }
    }

    /// The registered-buffer index of `buf`.
    pub(super) fn fixed_index(&mut self, buf: &Buf) -> Option<u16> {
        match &mut self.backend {
            Backend::Uring(uring) => uring.fixed_index(buf),
            Backend::Poll(_) => None,
        }
    }

    pub(super) fn register_file(&mut self, fd: i32) -> FileRef {
        let slot = match &mut self.backend {
            Backend::Uring(uring) => uring.register_file(fd),
            Backend::Poll(_) => None,
        };
        FileRef { fd, slot }
    }

    pub(super) fn unregister_file(&mut self, slot: u32) {
        if let Backend::Uring(uring) = &mut self.backend {
            uring.unregister_file(slot);
        }
    }

    /// Forgets the descriptor `fd`, which is about to be closed.
    pub(super) fn forget_socket(&mut self, fd: i32) {
        if let Backend::Poll(poller) = &mut self.backend {
            poller.forget(fd);
        }
    }

    pub(super) fn buffers_registered(&self) -> bool {
        match &self.backend {
            Backend::Uring(uring) => uring.buffers_registered(),
            Backend::Poll(_) => false,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.ops.is_empty()
    }

    pub(super) fn cancel_all(&mut self, finished: &mut Finished) {
        for key in self.ops.keys() {
            match &mut self.backend {
                Backend::Uring(uring) => uring.cancel(key),
                Backend::Poll(poller) => poller.cancel(key, &mut self.ops, finished),
            }
        }
    }

    /// Gives up on operations that the kernel does not end: their memory is never freed.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.ops));
    }
}
