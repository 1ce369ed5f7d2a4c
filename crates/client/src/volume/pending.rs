//! Submitted batches with outcomes that are fetched later: a queue and the threads that work on it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use millpond_env::{Mutex, OfProcess, PerProcess, thread};

use crate::error::ClientError;

/// Most batches that wait for a thread; a caller that submits another one blocks.
const QUEUE_MAX: usize = 256;

type Job = Box<dyn FnOnce() + Send>;

/// Threads that run submitted batches; each process has its own. They end when the queue is
/// dropped, after the batches in it.
#[derive(Debug)]
pub(super) struct Workers {
    count: usize,
    queue: PerProcess<SyncSender<Job>>,
}

/// A submitted batch. Dropping this does not stop the batch, but its outcome is lost. It belongs to
/// the process that submitted it: a child process never gets the outcome.
#[derive(Debug)]
pub struct Pending<T> {
    outcome: OfProcess<Receiver<Result<T, ClientError>>>,
}

impl<T> Pending<T> {
    /// The error in a child for a batch of its parent.
    #[must_use]
    pub fn of_parent() -> ClientError {
        let fix = "the operation was submitted before the fork and belongs to the parent process: \
                   submit it again here";
        ClientError::argument("batch", fix)
    }

    /// Waits for the batch to be done.
    ///
    /// # Errors
    /// The batch's.
    pub fn wait(self) -> Result<T, ClientError> {
        let outcome = self.outcome.get().ok_or_else(Self::of_parent)?;
        outcome.recv().unwrap_or(Err(ClientError::Closed))
    }

    /// Waits at most `time` for the batch; returns the outcome, once only, or none.
    ///
    /// # Errors
    /// The batch's.
    pub fn wait_for(&mut self, time: Duration) -> Option<Result<T, ClientError>> {
        let Some(outcome) = self.outcome.get() else { return Some(Err(Self::of_parent())) };
        match outcome.recv_timeout(time) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(ClientError::Closed)),
        }
    }

    /// The outcome, if the batch is done; returned once only.
    ///
    /// # Errors
    /// The batch's.
    pub fn poll(&mut self) -> Option<Result<T, ClientError>> {
        let Some(outcome) = self.outcome.get() else { return Some(Err(Self::of_parent())) };
        match outcome.try_recv() {
            Ok(outcome) => Some(outcome),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(ClientError::Closed)),
        }
    }
}

impl Workers {
    pub(super) fn start(count: usize) -> Result<Self, ClientError> {
        let workers = Self { count, queue: PerProcess::empty() };
        workers.queue().map(drop)?;
        Ok(workers)
    }

    fn queue(&self) -> Result<&SyncSender<Job>, ClientError> {
        self.queue.get_or_try(|| Self::threads(self.count))
    }

    fn threads(count: usize) -> Result<SyncSender<Job>, ClientError> {
        let (queue, jobs) = sync_channel::<Job>(QUEUE_MAX);
        let jobs = Arc::new(Mutex::new(jobs));
        for _ in 0..count {
            let jobs = Arc::clone(&jobs);
            let next = move || jobs.lock().recv();
            // The threads are not joined: one of them may drop the last handle of a volume.
            let run = move || {
                while let Ok(job) = next() {
                    job();
                }
            };
            let failed =
                |error| ClientError::argument("workers", format!("cannot start a thread: {error}"));
            drop(thread("mp-file", run).map_err(failed)?);
        }
        Ok(queue)
    }

    /// Runs a job in a thread; blocks while the queue is full.
    pub(super) fn submit<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> Result<T, ClientError> + Send + 'static,
    ) -> Pending<T> {
        let (done, outcome) = sync_channel(1);
        let outcome = OfProcess::new(outcome);
        let queue = match self.queue() {
            Ok(queue) => queue,
            Err(error) => {
                let _ = done.send(Err(error));
                return Pending { outcome };
            }
        };
        let job: Job = Box::new(move || {
            // The receiver may have been dropped.
            let _ = done.send(job());
        });
        // Without threads the outcome's sender is dropped, and the wait returns an error.
        let _ = queue.send(job);
        Pending { outcome }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_done_side_by_side_and_waited_for_in_any_order() {
        let workers = Workers::start(2).unwrap();
        let (open, gate) = sync_channel::<()>(0);
        let mut first = workers.submit(move || {
            let _ = gate.recv();
            Ok(1)
        });
        let second = workers.submit(|| Ok(2));
        assert_eq!(second.wait().unwrap(), 2);
        assert!(first.wait_for(Duration::from_millis(1)).is_none());
        open.send(()).unwrap();
        assert_eq!(first.wait_for(Duration::from_mins(1)).unwrap().unwrap(), 1);
        let mut failed = workers.submit(|| Err::<(), _>(ClientError::Closed));
        let outcome = loop {
            if let Some(outcome) = failed.poll() {
                break outcome;
            }
        };
        assert!(outcome.is_err());
    }
}
