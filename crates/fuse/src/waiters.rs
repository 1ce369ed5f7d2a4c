//! Requests that wait for a lock, and the thread that retries them.

use std::sync::Arc;
use std::time::Duration;

use millpond_fuse_wire::Reply;
use parking_lot::{Condvar, Mutex};

use crate::early::Early;
use crate::errno::Errno;
use crate::fs::{Answer, Fs, Waiting};
use crate::worker::Unanswered;

/// Pauses between attempts: short at first, since locks are mostly held briefly.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// A waiting request.
#[derive(Debug)]
struct Waiter {
    waiting: Waiting,
    request: Unanswered,
    /// An attempt is in progress: its result is the answer, even if the caller no longer waits.
    is_tried: bool,
    is_interrupted: bool,
}

#[derive(Debug, Default)]
struct Queue {
    waiters: Vec<Waiter>,
    early: Early,
    ended: bool,
}

impl Queue {
    fn place_of(&self, unique: u64) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.request.unique == unique)
    }
}

/// The waiting requests of a mount. They are dropped when the process ends: the kernel resends them
/// to the next one.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Waiters {
    /// Makes a request wait, unless it was interrupted already.
    pub(crate) fn add(&self, fs: &Fs, waiting: Waiting, request: Unanswered) {
        let mut queue = self.queue.lock();
        if queue.early.take(request.unique) {
            drop(queue);
            return request.answer(fs, &Reply::Error(waiting.interrupted()));
        }
        let (is_tried, is_interrupted) = (false, false);
        queue.waiters.push(Waiter { waiting, request, is_tried, is_interrupted });
        self.changed.notify_one();
    }

    /// Interrupts a waiting request.
    pub(crate) fn interrupt(&self, fs: &Fs, unique: u64) {
        let mut queue = self.queue.lock();
        let Some(at) = queue.place_of(unique) else { return queue.early.note(unique) };
        if queue.waiters[at].is_tried {
            queue.waiters[at].is_interrupted = true;
            return;
        }
        let Waiter { waiting, request, .. } = queue.waiters.swap_remove(at);
        drop(queue);
        request.answer(fs, &Reply::Error(waiting.interrupted()));
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.queue.lock().ended = true;
        self.changed.notify_one();
    }

    /// Retries until [`Waiters::end`].
    pub(crate) fn run(&self, fs: &Arc<Fs>) {
        let mut pause = PAUSE_MIN;
        loop {
            let all: Vec<u64> = {
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
                queue.waiters.iter().map(|waiter| waiter.request.unique).collect()
            };
            pause = (pause * 2).min(PAUSE_MAX);
            for unique in all {
                self.try_one(fs, unique);
            }
        }
    }

    fn try_one(&self, fs: &Arc<Fs>, unique: u64) {
        let begin = |queue: &mut Queue| {
            let at = queue.place_of(unique)?;
            queue.waiters[at].is_tried = true;
            Some(queue.waiters[at].waiting)
        };
        // Interrupted in the meantime.
        let Some(waiting) = begin(&mut self.queue.lock()) else { return };
        let done = fs.try_again(&waiting);
        let mut queue = self.queue.lock();
        let Some(at) = queue.place_of(unique) else { return };
        if done.is_none() && !queue.waiters[at].is_interrupted {
            queue.waiters[at].is_tried = false;
            return;
        }
        let Waiter { request, .. } = queue.waiters.swap_remove(at);
        drop(queue);
        match done {
            Some(Ok(None)) => request.answer(fs, &Reply::Done),
            Some(Ok(Some(stale))) => request.after_drop(fs, stale, Answer::Done),
            Some(Err(Errno(errno))) => request.answer(fs, &Reply::Error(errno)),
            None => request.answer(fs, &Reply::Error(waiting.interrupted())),
        }
    }
}
