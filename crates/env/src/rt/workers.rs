//! Worker threads that do blocking disk calls for the fallback backend.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::op::{Action, FileRef, write_flags};
use super::remote::Remote;
use super::thread::{ThreadHandle, thread};
use crate::sys::{check, check_len};

/// Calls that one core keeps in the kernel at a time. More threads than a disk's useful queue depth
/// only switch contexts; further operations wait in the queue.
const THREADS_MAX: usize = 16;

struct Job {
    key: usize,
    action: Action,
}

// SAFETY: the addresses in an action belong to its operation, which the core neither touches nor
// frees until the job's result is back.
unsafe impl Send for Job {}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    stop: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

pub(super) struct Workers {
    shared: Arc<Shared>,
    remote: Arc<Remote>,
    threads: Vec<ThreadHandle<()>>,
}

impl Workers {
    pub(super) fn new(remote: Arc<Remote>) -> Self {
        Self { shared: Arc::default(), remote, threads: Vec::new() }
    }

    /// Queues a disk action; its result comes back through the mailbox.
    pub(super) fn push(&mut self, key: usize, action: Action) {
        let starving = {
            let mut queue = self.shared.queue.lock();
            queue.jobs.push_back(Job { key, action });
            queue.jobs.len() > queue.idle
        };
        if starving && self.threads.len() < THREADS_MAX {
            let (shared, remote) = (Arc::clone(&self.shared), Arc::clone(&self.remote));
            let name = format!("mp-disk-{}", self.threads.len());
            match thread(&name, move || work(&shared, &remote)) {
                Ok(handle) => self.threads.push(handle),
                // Without any thread the operations would never complete.
                Err(_) if self.threads.is_empty() => self.refuse_all(),
                Err(_) => {}
            }
        }
        self.shared.wake.notify_one();
    }

    fn refuse_all(&self) {
        let jobs = std::mem::take(&mut self.shared.queue.lock().jobs);
        self.remote.post(|mail| {
            mail.done.extend(jobs.iter().map(|job| (job.key, -libc::EAGAIN)));
        });
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.queue.lock().stop = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared, remote: &Remote) {
    loop {
        let job = {
            let mut queue = shared.queue.lock();
            loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                if queue.stop {
                    return;
                }
                queue.idle += 1;
                shared.wake.wait(&mut queue);
                queue.idle -= 1;
            }
        };
        let result = perform(job.action);
        remote.post(|mail| mail.done.push((job.key, result)));
    }
}

fn perform(action: Action) -> i32 {
    loop {
        let result = match perform_once(action) {
            Ok(result) => i32::try_from(result).unwrap_or(i32::MAX),
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        };
        if result != -libc::EINTR {
            return result;
        }
    }
}

fn offset_of(offset: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn perform_once(action: Action) -> io::Result<usize> {
    match action {
        Action::Read { file: FileRef { fd, .. }, into, len, offset, .. } => {
            let offset = offset_of(offset)?;
            // SAFETY: the operation owns `len` writable bytes at `into` (see `Job`).
            check_len(unsafe { libc::pread(fd, into.cast(), len as usize, offset) })
        }
        Action::Write { file: FileRef { fd, .. }, from, len, offset, durable, .. } => {
            let offset = offset_of(offset)?;
            let bytes = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len as usize };
            let flags = write_flags(durable);
            // SAFETY: the operation owns `len` readable bytes at `from` (see `Job`); a write
            // changes none of them.
            check_len(unsafe { libc::pwritev2(fd, &raw const bytes, 1, offset, flags) })
        }
        Action::Sync { file } => {
            // SAFETY: plain numbers.
            check(unsafe { libc::fdatasync(file.fd) }).map(|_| 0)
        }
        Action::Punch { file, offset, len } => {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            let (offset, len) = (offset_of(offset)?, offset_of(len)?);
            // SAFETY: plain numbers.
            check(unsafe { libc::fallocate(file.fd, mode, offset, len) }).map(|_| 0)
        }
        Action::Reserve { file, offset, len } => {
            let (offset, len) = (offset_of(offset)?, offset_of(len)?);
            // SAFETY: plain numbers.
            check(unsafe { libc::fallocate(file.fd, 0, offset, len) }).map(|_| 0)
        }
        _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
    }
}
