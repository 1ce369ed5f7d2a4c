//! Hashes concurrent bodies side by side: otherwise MD5 is most of the work of a large PUT.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millpond_md5::{BLOCK, Beside, LANES, Md5, WORTH};
use parking_lot::{Condvar, Mutex, MutexGuard};
use s3s::{S3Error, S3Result};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

/// Blocks of each body that are hashed before others may join: 32 KiB.
const STRIDE: usize = 512;
/// How long hashing waits for expected bodies.
const PATIENCE: Duration = Duration::from_millis(8);
/// After a wait without success, this many waits are skipped: the expected bodies may arrive
/// slowly.
const VAIN: u32 = 32;

/// The queue of body pieces to hash, and the threads that hash them.
pub(crate) struct Together {
    queue: Mutex<Queue>,
    /// Signalled when as many pieces are queued as a thread waits for.
    enough: Condvar,
    /// Number of large bodies being received.
    coming: AtomicUsize,
    beside: Beside,
    workers_max: usize,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    workers: usize,
    /// Number of waits still to skip.
    vain: u32,
}

/// A piece of a body.
struct Job {
    md5: Md5,
    bytes: Arc<Vec<u8>>,
    is_small: bool,
    done: oneshot::Sender<Md5>,
}

/// A large body being received.
pub(crate) struct Coming(Arc<Together>);

impl Drop for Coming {
    fn drop(&mut self) {
        self.0.coming.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A piece being hashed: its whole blocks begin at byte `from`, and `done` of them are hashed.
struct Lane {
    job: Job,
    from: usize,
    done: usize,
}

impl Lane {
    fn new(mut job: Job) -> Self {
        let from = job.bytes.len() - job.md5.fill(&job.bytes).len();
        Self { job, from, done: 0 }
    }

    /// The hash, and the remaining blocks.
    fn left(&mut self) -> (&mut Md5, &[[u8; BLOCK]]) {
        let blocks = self.job.bytes[self.from..].as_chunks::<BLOCK>().0;
        (&mut self.job.md5, &blocks[self.done..])
    }

    fn is_done(&self) -> bool {
        self.from + self.done * BLOCK + BLOCK > self.job.bytes.len()
    }

    /// Returns the hash, which now covers the piece; bytes short of a block are kept for later.
    fn end(self) {
        let Job { mut md5, bytes, done, .. } = self.job;
        md5.keep(&bytes[self.from + self.done * BLOCK..]);
        drop(bytes);
        // The receiver is gone if the request was given up.
        let _ = done.send(md5);
    }
}

/// Counts a thread, even if it panics.
struct Worker(Arc<Together>);

impl Drop for Worker {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.queue.lock().workers -= 1;
        }
    }
}

impl Together {
    pub(crate) fn new() -> Self {
        let workers_max = std::thread::available_parallelism().map_or(1, usize::from);
        let (queue, enough, coming, beside) = Default::default();
        Self { queue, enough, coming, beside, workers_max }
    }

    /// Announces a large body: others wait to be hashed beside it, if it arrives soon.
    pub(crate) fn expect(self: &Arc<Self>) -> Coming {
        self.coming.fetch_add(1, Ordering::Relaxed);
        Coming(Arc::clone(self))
    }

    /// Adds a piece of a body to its hash, on another thread.
    ///
    /// # Errors
    /// `InternalError` when that thread has panicked.
    pub(crate) async fn update(self: Arc<Self>, md5: Md5, bytes: Arc<Vec<u8>>) -> S3Result<Md5> {
        self.hashed(md5, bytes, false).await
    }

    async fn hashed(
        self: Arc<Self>,
        md5: Md5,
        bytes: Arc<Vec<u8>>,
        is_small: bool,
    ) -> S3Result<Md5> {
        let (done, hashed) = oneshot::channel();
        self.push(Job { md5, bytes, is_small, done });
        hashed.await.map_err(S3Error::internal_error)
    }

    /// Adds a small body to its hash: on this thread if nothing else is being hashed, since another
    /// thread costs more.
    ///
    /// # Errors
    /// As [`Together::update`].
    pub(crate) async fn update_small(
        self: Arc<Self>,
        mut md5: Md5,
        bytes: &Arc<Vec<u8>>,
        is_alone: bool,
    ) -> S3Result<Md5> {
        if !is_alone {
            return self.hashed(md5, Arc::clone(bytes), true).await;
        }
        md5.update(bytes);
        Ok(md5)
    }

    fn push(self: &Arc<Self>, job: Job) {
        let mut queue = self.queue.lock();
        queue.waiting.push_back(job);
        // Another thread only if the piece does not fit beside those being hashed.
        let is_needed = queue.workers == 0 || queue.waiting.len() >= LANES;
        if is_needed && queue.workers < self.workers_max {
            queue.workers += 1;
            let worker = Worker(Arc::clone(self));
            spawn_blocking(move || worker.0.work());
        } else if self.is_enough(&queue) {
            self.enough.notify_one();
        }
    }

    /// Waits for more bodies, unless a recent wait was without success.
    fn wait(&self, queue: &mut MutexGuard<'_, Queue>) {
        if queue.vain > 0 {
            queue.vain -= 1;
            return;
        }
        self.enough.wait_for(queue, PATIENCE);
        if queue.waiting.len() < WORTH {
            queue.vain = VAIN;
        }
    }

    /// Whether waiting for more would gain nothing.
    fn is_enough(&self, queue: &Queue) -> bool {
        let coming = self.coming.load(Ordering::Relaxed).min(LANES);
        coming < WORTH
            || queue.waiting.len() >= coming
            || queue.waiting.iter().any(|job| job.is_small)
    }

    fn work(&self) {
        let mut lanes: Vec<Lane> = Vec::with_capacity(LANES);
        loop {
            let mut queue = self.queue.lock();
            if lanes.is_empty() && !queue.waiting.is_empty() && !self.is_enough(&queue) {
                self.wait(&mut queue);
            }
            let count = (LANES - lanes.len()).min(queue.waiting.len());
            let new: Vec<Job> = queue.waiting.drain(..count).collect();
            if new.is_empty() && lanes.is_empty() {
                // Under the same lock: a later push starts another thread.
                queue.workers -= 1;
                return;
            }
            drop(queue);
            lanes.extend(new.into_iter().map(Lane::new));
            self.stride(&mut lanes);
            let (ended, rest) = lanes.into_iter().partition(Lane::is_done);
            lanes = rest;
            ended.into_iter().for_each(Lane::end);
        }
    }

    /// Hashes the same number of blocks of every piece: as many as the shortest has.
    fn stride(&self, lanes: &mut [Lane]) {
        let mut bodies: Vec<(&mut Md5, &[[u8; BLOCK]])> =
            lanes.iter_mut().map(Lane::left).collect();
        for (_, blocks) in &mut bodies {
            *blocks = &blocks[..blocks.len().min(STRIDE)];
        }
        let count = self.beside.blocks(&mut bodies);
        for lane in lanes {
            lane.done += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use s3s::crypto::Checksum as _;

    use super::*;

    /// The hash according to another implementation.
    fn known(bytes: &[u8]) -> [u8; 16] {
        let mut md5 = s3s::crypto::Md5::new();
        md5.update(bytes);
        md5.finalize()
    }

    fn bytes(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|at| ((at * 31 + seed * 7) ^ (at >> 7)).to_le_bytes()[0]).collect()
    }

    /// Bodies of many lengths in pieces of many lengths, all at once.
    #[test]
    fn bodies_beside_each_other_have_their_own_hashes() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build();
        let together = Arc::new(Together::new());
        let lens = [0, 1, 63, 64, 65, 1_000, 4_096, 100_000, 333_333, 1 << 20];
        let hash = |seed: usize| {
            let together = Arc::clone(&together);
            async move {
                let body = bytes(lens[seed % lens.len()], seed);
                let mut md5 = Md5::new();
                let piece = [1 << 20, 7, 64, 100, 40_000][seed % 5];
                for piece in body.chunks(piece.max(body.len() / 50)) {
                    let piece = Arc::new(piece.to_vec());
                    md5 = Arc::clone(&together).update(md5, piece).await.unwrap();
                }
                assert_eq!(md5.finish(), known(&body), "body {seed}");
            }
        };
        let runtime = runtime.unwrap();
        let all: Vec<_> = (0..100).map(|seed| runtime.spawn(hash(seed))).collect();
        runtime.block_on(async {
            for one in all {
                one.await.unwrap();
            }
        });
        drop(runtime);
        assert_eq!(together.queue.lock().workers, 0);
    }

    /// Expected bodies are waited for, but not repeatedly when none arrives.
    #[test]
    fn who_waits_in_vain_does_not_wait_for_a_while() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let together = Arc::new(Together::new());
        let hash = || {
            let body = Arc::new(bytes(1_000, 1));
            runtime.block_on(Arc::clone(&together).update(Md5::new(), body)).unwrap();
            together.queue.lock().vain
        };
        assert_eq!(hash(), 0, "nobody else is on the way");
        let coming = [(); WORTH].map(|()| together.expect());
        assert_eq!(hash(), VAIN);
        assert_eq!(hash(), VAIN - 1);
        drop(coming);
        assert_eq!((hash(), together.coming.load(Ordering::Relaxed)), (VAIN - 1, 0));
        together.queue.lock().vain = 0;
        let _coming = [(); WORTH].map(|()| together.expect());
        let all = (0..WORTH).map(|seed| {
            let body = Arc::new(bytes(100_000, seed));
            runtime.spawn(Arc::clone(&together).update(Md5::new(), body))
        });
        let all: Vec<_> = all.collect();
        runtime.block_on(async {
            for (seed, one) in all.into_iter().enumerate() {
                let md5 = one.await.unwrap().unwrap();
                assert_eq!(md5.finish(), known(&bytes(100_000, seed)));
            }
        });
        assert_eq!(together.queue.lock().vain, 0, "they came");
    }
}
