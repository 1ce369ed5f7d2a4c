//! Requests that wait for a lock, and the thread that tries them again.

use std::sync::Arc;
use std::time::Duration;

use millpond_fuse_wire::{Device, Reply, ReplyTo};
use parking_lot::{Condvar, Mutex};

use crate::early::Early;
use crate::errno::Errno;
use crate::fs::{Fs, Waiting};
use crate::watch::Started;
use crate::worker::send;

/// Pauses between attempts: short at first, since locks are mostly held for a moment.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// A request that waits.
#[derive(Debug)]
struct Waiter {
    waiting: Waiting,
    started: Started,
    to: ReplyTo,
    device: Arc<Device>,
}

impl Waiter {
    fn answer(self, fs: &Fs, reply: &Reply<'_>) {
        fs.watch.end(self.started, Some(reply));
        send(&self.device, self.to, reply);
    }
}

#[derive(Debug, Default)]
struct Queue {
    waiters: Vec<Waiter>,
    early: Early,
    ended: bool,
}

/// The requests of a mount that wait. When the process ends they are forgotten: the kernel sends them
/// again to the next one.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Waiters {
    /// Has a request wait, unless its caller does not want to any longer.
    pub(crate) fn add(
        &self,
        fs: &Fs,
        waiting: Waiting,
        started: Started,
        (to, device): (ReplyTo, Arc<Device>),
    ) {
        let waiter = Waiter { waiting, started, to, device };
        let mut queue = self.queue.lock();
        if queue.early.take(waiter.waiting.unique) {
            drop(queue);
            return waiter.answer(fs, &Reply::Error(libc::EINTR));
        }
        queue.waiters.push(waiter);
        self.changed.notify_one();
    }

    /// The caller of a request does not want to wait any longer.
    pub(crate) fn interrupt(&self, fs: &Fs, unique: u64) {
        let mut queue = self.queue.lock();
        let found = queue.waiters.iter().position(|waiter| waiter.waiting.unique == unique);
        let Some(waiter) = found.map(|at| queue.waiters.swap_remove(at)) else {
            return queue.early.note(unique);
        };
        drop(queue);
        waiter.answer(fs, &Reply::Error(libc::EINTR));
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.queue.lock().ended = true;
        self.changed.notify_one();
    }

    /// Tries until [`Waiters::end`].
    pub(crate) fn run(&self, fs: &Fs) {
        let mut pause = PAUSE_MIN;
        loop {
            let tried: Vec<Waiting> = {
                let mut queue = self.queue.lock();
                while queue.waiters.is_empty() && !queue.ended {
                    self.changed.wait(&mut queue);
                    pause = PAUSE_MIN;
                }
                if !queue.ended {
                    self.changed.wait_for(&mut queue, pause);
                }
                if queue.ended {
                    return;
                }
                queue.waiters.iter().map(|waiter| waiter.waiting).collect()
            };
            pause = (pause * 2).min(PAUSE_MAX);
            for waiting in tried {
                if let Some(done) = fs.try_again(&waiting) {
                    self.answer(fs, &waiting, done);
                }
            }
        }
    }

    fn answer(&self, fs: &Fs, waiting: &Waiting, done: Result<(), Errno>) {
        let mut queue = self.queue.lock();
        let at = queue.waiters.iter().position(|other| other.waiting.unique == waiting.unique);
        let Some(waiter) = at.map(|at| queue.waiters.swap_remove(at)) else {
            drop(queue);
            // Interrupted meanwhile: nobody would give the lock back.
            if done.is_ok() {
                fs.give_back(waiting);
            }
            return;
        };
        drop(queue);
        match done {
            Ok(()) => waiter.answer(fs, &Reply::Done),
            Err(Errno(errno)) => waiter.answer(fs, &Reply::Error(errno)),
        }
    }
}
