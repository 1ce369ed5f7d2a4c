//! The mailbox through which other threads reach a core.

use std::future::Future;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::task::Task;
use crate::error::EnvError;
use crate::sys::EventFd;

type Job = Box<dyn FnOnce() + Send>;

/// Messages that other threads left for a core.
#[derive(Default)]
pub(super) struct Mail {
    pub(super) woken: Vec<Arc<Task>>,
    pub(super) jobs: Vec<Job>,
    /// Results of worker threads: operation and result.
    pub(super) done: Vec<(usize, i32)>,
    closed: bool,
}

pub(super) struct Remote {
    mail: Mutex<Mail>,
    /// Set after mail was added, cleared before it is taken out.
    waiting: AtomicBool,
    /// Set while the core sleeps or is about to.
    asleep: AtomicBool,
    event: EventFd,
}

impl Remote {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            mail: Mutex::default(),
            waiting: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            event: EventFd::new()?,
        })
    }

    pub(super) fn event_fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    pub(super) fn reset_event(&self) {
        let _ = self.event.take();
    }

    /// Adds mail and wakes the core if it sleeps; false when the core has ended.
    pub(super) fn post(&self, put: impl FnOnce(&mut Mail)) -> bool {
        {
            let mut mail = self.mail.lock();
            if mail.closed {
                return false;
            }
            put(&mut mail);
        }
        // Pairs with `prepare_sleep`: either the core sees `waiting`, or this thread sees `asleep`.
        self.waiting.store(true, Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.event.notify();
        }
        true
    }

    pub(super) fn has_mail(&self) -> bool {
        self.waiting.load(Ordering::Acquire)
    }

    /// Takes all mail added since the last call.
    pub(super) fn take(&self, into: &mut Mail) {
        self.waiting.store(false, Ordering::SeqCst);
        let mut mail = self.mail.lock();
        std::mem::swap(&mut mail.woken, &mut into.woken);
        std::mem::swap(&mut mail.jobs, &mut into.jobs);
        std::mem::swap(&mut mail.done, &mut into.done);
    }

    /// Announces that the core is about to sleep; false when there is mail to read first.
    pub(super) fn prepare_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) {
            self.asleep.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    pub(super) fn end_sleep(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Refuses mail from now on and drops the rest.
    pub(super) fn close(&self) {
        let mut mail = self.mail.lock();
        mail.closed = true;
        let rest = (std::mem::take(&mut mail.woken), std::mem::take(&mut mail.jobs));
        drop(mail);
        drop(rest);
    }
}

/// Handle of a core for any thread.
#[derive(Clone)]
pub struct Handle {
    pub(super) remote: Arc<Remote>,
}

impl Handle {
    /// Runs `make` on the core and spawns the future it returns there.
    ///
    /// # Errors
    /// [`EnvError::Closed`] when the core's runtime is gone.
    pub fn spawn_on<F, M>(&self, make: M) -> Result<(), EnvError>
    where
        F: Future<Output = ()> + 'static,
        M: FnOnce() -> F + Send + 'static,
    {
        self.post_job(Box::new(move || super::spawn(make()).detach()))
    }

    pub(crate) fn post_job(&self, job: Job) -> Result<(), EnvError> {
        if self.remote.post(|mail| mail.jobs.push(job)) { Ok(()) } else { Err(EnvError::Closed) }
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}
