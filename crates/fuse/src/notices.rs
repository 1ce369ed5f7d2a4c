//! Threads that make the kernel drop cached entries.
//!
//! Dropping a page waits until it is no longer read or written back, and dropping a name waits for
//! operations in its directory: for a request that some thread of the mount has to answer. So no
//! thread that serves requests may wait for that, nor a thread that such threads wait for. It is
//! done here, by threads that hold no lock while they wait, except those of each other. One of them
//! works and another one watches; when the first blocks in the kernel, the second continues.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use millpond_env::{RealClock, thread};
use millpond_types::Tick;
use parking_lot::{Condvar, Mutex};

/// The largest number of jobs blocked in the kernel; further jobs wait for one of them.
const THREADS_MAX: usize = 64;
/// A job that has waited this long for the working threads goes to another thread.
const HELP: Duration = Duration::from_millis(1);
/// A thread without work ends after this time, except the last one that watches.
const IDLE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Tick, Job)>,
    threads: usize,
    /// Number of threads with a job.
    busy: usize,
    is_ended: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// The threads of a mount. After this is dropped they finish their jobs, and end.
pub(crate) struct Notices(Arc<Shared>);

impl std::fmt::Debug for Notices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let queue = self.0.queue.lock();
        let (threads, jobs) = (queue.threads, queue.jobs.len());
        f.debug_struct("Notices").field("threads", &threads).field("jobs", &jobs).finish()
    }
}

impl Notices {
    /// Starts the first thread.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub(crate) fn start() -> std::io::Result<Self> {
        let this = Self(Arc::default());
        this.0.queue.lock().threads = 1;
        start_one(&this.0)?;
        Ok(this)
    }

    /// Queues a job for a thread, without blocking.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut queue = self.0.queue.lock();
        queue.jobs.push_back((RealClock::tick(), Box::new(job)));
        // For the case that an earlier start of a thread failed.
        let is_unwatched = queue.takes_another();
        drop(queue);
        self.0.changed.notify_one();
        if is_unwatched {
            watch(&self.0);
        }
    }
}

impl Queue {
    /// Whether no thread watches, and one is to be started; it counts from now on.
    fn takes_another(&mut self) -> bool {
        let is_short = self.busy >= self.threads && self.threads < THREADS_MAX;
        self.threads += usize::from(is_short);
        is_short
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        self.0.queue.lock().is_ended = true;
        self.0.changed.notify_all();
    }
}

fn start_one(shared: &Arc<Shared>) -> std::io::Result<()> {
    let shared = Arc::clone(shared);
    // Not joined: it may be blocked in the kernel.
    let _runs = thread("mp-notices", move || work(&shared))?;
    Ok(())
}

/// Starts a thread that was counted.
fn watch(shared: &Arc<Shared>) {
    if let Err(error) = start_one(shared) {
        shared.queue.lock().threads -= 1;
        tracing::warn!(
            "notices to the kernel have to wait for each other: cannot start a thread: {error}"
        );
    }
}

fn work(shared: &Arc<Shared>) {
    let mut queue = shared.queue.lock();
    // A thread that has just finished a job takes the next one.
    let mut is_warm = false;
    loop {
        let waited = queue.jobs.front().map(|(since, _)| RealClock::tick().since(*since));
        match waited {
            Some(waited) if is_warm || queue.busy == 0 || waited >= HELP => {
                let Some((_, job)) = queue.jobs.pop_front() else { continue };
                queue.busy += 1;
                let is_unwatched = queue.takes_another();
                drop(queue);
                if is_unwatched {
                    watch(shared);
                }
                job();
                is_warm = true;
                queue = shared.queue.lock();
                queue.busy -= 1;
            }
            Some(waited) => drop(shared.changed.wait_for(&mut queue, HELP.saturating_sub(waited))),
            None if queue.is_ended => break,
            None => {
                is_warm = false;
                let is_late = shared.changed.wait_for(&mut queue, IDLE).timed_out();
                let others = queue.threads - queue.busy - 1;
                if is_late && queue.jobs.is_empty() && others > 0 {
                    break;
                }
            }
        }
    }
    queue.threads -= 1;
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_job_waits_for_none_before_it() {
        let notices = Notices::start().unwrap();
        let (said, heard) = channel();
        let mut held = Vec::new();
        for n in 0..10 {
            let (let_go, waits) = channel::<()>();
            held.push(let_go);
            let said = said.clone();
            notices.run(move || {
                said.send(n).unwrap();
                let _ = waits.recv();
                said.send(n + 100).unwrap();
            });
        }
        let patience = Duration::from_secs(20);
        let mut begun: Vec<i32> = (0..10).map(|_| heard.recv_timeout(patience).unwrap()).collect();
        begun.sort_unstable();
        assert_eq!(begun, (0..10).collect::<Vec<_>>());
        // Idle watchers end, except one.
        assert!(heard.recv_timeout(IDLE + Duration::from_secs(2)).is_err());
        notices.run(move || said.send(50).unwrap());
        assert_eq!(heard.recv_timeout(patience), Ok(50));
        drop(notices);
        drop(held);
        assert_eq!((0..10).filter(|_| heard.recv_timeout(patience).is_ok()).count(), 10);
    }
}
