//! Tasks: their wakers and the handles that wait for them.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::core;
use super::remote::Remote;

/// The part of a task that any thread may hold: its waker. The future itself never leaves its core.
pub(super) struct Task {
    pub(super) remote: Arc<Remote>,
    /// Place in the core's table; [`super::core::MAIN`] for the future of `block_on`.
    pub(super) key: usize,
    /// In a queue already.
    queued: AtomicBool,
    /// The future is to be dropped.
    aborted: AtomicBool,
    /// The future is gone: a late wake does nothing.
    ended: AtomicBool,
}

impl Task {
    pub(super) fn new(remote: Arc<Remote>, key: usize) -> Self {
        Self {
            remote,
            key,
            queued: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// Puts the task in the queue of its core, once.
    pub(super) fn schedule(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        if !core::push_ready(self) {
            self.remote.post(|mail| mail.woken.push(Arc::clone(self)));
        }
    }

    pub(super) fn unqueue(&self) {
        self.queued.store(false, Ordering::Release);
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.schedule();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        self.schedule();
    }
}

/// The task was aborted, or its runtime ended first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the task was aborted before it finished")]
pub struct JoinError;

enum Outcome<T> {
    Running(Option<Waker>),
    Finished(T),
    Gone,
}

/// Waits for a task of the same core. Dropping it lets the task continue.
pub struct JoinHandle<T> {
    outcome: Rc<RefCell<Outcome<T>>>,
    task: Arc<Task>,
}

impl<T> JoinHandle<T> {
    /// Drops the task's future at its next turn; waiting for it then gives [`JoinError`].
    pub fn abort(&self) {
        self.task.aborted.store(true, Ordering::Relaxed);
        self.task.schedule();
    }

    /// True once the task has finished or was aborted.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        !matches!(*self.outcome.borrow(), Outcome::Running(_))
    }

    /// Lets the task continue unobserved; an explicit form of dropping the handle.
    pub fn detach(self) {}
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut outcome = self.outcome.borrow_mut();
        if let Outcome::Running(waker) = &mut *outcome {
            let replaced = waker.replace(context.waker().clone());
            drop(outcome);
            drop(replaced);
            return Poll::Pending;
        }
        match std::mem::replace(&mut *outcome, Outcome::Gone) {
            Outcome::Finished(value) => Poll::Ready(Ok(value)),
            Outcome::Gone | Outcome::Running(_) => Poll::Ready(Err(JoinError)),
        }
    }
}

/// Reports the end of a task to its handle, also when its future is dropped half-way.
struct Reporter<T>(Rc<RefCell<Outcome<T>>>);

impl<T> Reporter<T> {
    fn report(&self, new: Outcome<T>) {
        let old = std::mem::replace(&mut *self.0.borrow_mut(), new);
        if let Outcome::Running(Some(waker)) = old {
            waker.wake();
        }
    }
}

impl<T> Drop for Reporter<T> {
    fn drop(&mut self) {
        if matches!(*self.0.borrow(), Outcome::Running(_)) {
            self.report(Outcome::Gone);
        }
    }
}

/// Wraps `future` so that a handle learns its outcome; returns also a function that makes the
/// handle.
pub(super) fn joinable<F>(
    future: F,
) -> (impl Future<Output = ()> + 'static, impl FnOnce(Arc<Task>) -> JoinHandle<F::Output>)
where
    F: Future + 'static,
{
    let outcome = Rc::new(RefCell::new(Outcome::Running(None)));
    let reporter = Reporter(Rc::clone(&outcome));
    let wrapped = async move {
        let value = future.await;
        reporter.report(Outcome::Finished(value));
    };
    (wrapped, move |task| JoinHandle { outcome, task })
}
