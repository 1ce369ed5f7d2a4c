//! Fills the cache with whole files, in the background, within the mount's bandwidth.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::{RealClock, thread};
use millpond_fuse_wire::Device;
use millpond_fuse_wire::abi::InitFlags;
use millpond_types::Tick;
use millpond_types::meta::{Attr, MetaOp};
use parking_lot::{Condvar, Mutex};

use super::{Cache, Key};
use crate::budget::Way;
use crate::errno::Errno;
use crate::fs::Fs;

/// Number of threads that fetch, each one file at a time.
pub(crate) const FILLERS: usize = 2;
/// The largest piece in bytes of one call, so that several chains work on it. With a bandwidth
/// limit it is the bytes of a tenth of a second, so that requests of applications do not wait long.
const PIECE_MAX: u64 = 4 << 20;
const PIECE_MIN: u64 = 64 << 10;
/// The largest number of waiting files. Further ones are ordered again by their next open.
const WAITING_MAX: usize = 1024;
/// The pause after an error of the disk, or when it is full.
const PAUSE: Duration = Duration::from_secs(30);

/// A task for a file.
#[derive(Debug)]
enum Job {
    /// Fetches it.
    Fill(Key, Box<Attr>),
    /// Compares it with its checksums.
    Check(Key),
}

impl Job {
    const fn key(&self) -> Key {
        match self {
            Self::Fill(key, _) | Self::Check(key) => *key,
        }
    }
}

/// Waiting and running tasks.
#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Bytes fetched so far of each waiting or running file, and whether a request waits for it.
    coming: HashMap<Key, (Arc<AtomicU64>, bool)>,
    /// Errors of files that a request waits for.
    failed: HashMap<Key, String>,
    /// No file is fetched before this time.
    paused_until: Option<Tick>,
    ended: bool,
}

/// The tasks of a cache's threads.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    queue: Mutex<Queue>,
    ordered: Condvar,
}

/// The state of a requested file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It is cached.
    Cached,
    /// It is being fetched; this many bytes are cached.
    Coming(u64),
    /// Ask again later.
    Busy,
    /// It will not be cached, for this reason.
    Failed(String),
}

impl Jobs {
    /// Orders the fetch of a file; false when too many wait. `waits`: a caller will ask for the
    /// result.
    pub(super) fn order_fill(&self, key: Key, attr: Attr, waits: bool) -> bool {
        self.order(Job::Fill(key, Box::new(attr)), waits)
    }

    /// Orders the comparison of a file with its checksums.
    pub(super) fn order_check(&self, key: Key) {
        self.order(Job::Check(key), false);
    }

    fn order(&self, job: Job, waits: bool) -> bool {
        let mut queue = self.queue.lock();
        if let Some(coming) = queue.coming.get_mut(&job.key()) {
            coming.1 |= waits;
            return true;
        }
        let pauses = queue.paused_until.is_some_and(|until| RealClock::tick() < until);
        if queue.jobs.len() >= WAITING_MAX || queue.ended || (pauses && !waits) {
            return false;
        }
        queue.coming.insert(job.key(), (Arc::default(), waits));
        queue.jobs.push_back(job);
        drop(queue);
        self.ordered.notify_one();
        true
    }

    /// Bytes fetched so far of a file that is being fetched.
    fn coming(&self, key: Key) -> Option<u64> {
        self.queue.lock().coming.get(&key).map(|(bytes, _)| bytes.load(Ordering::Relaxed))
    }

    fn take_failure(&self, key: Key) -> Option<String> {
        self.queue.lock().failed.remove(&key)
    }

    fn next(&self) -> Option<(Job, Arc<AtomicU64>)> {
        let mut queue = self.queue.lock();
        while !queue.ended {
            if let Some(job) = queue.jobs.pop_front() {
                let bytes = queue.coming.get(&job.key()).map(|coming| Arc::clone(&coming.0));
                return Some((job, bytes.unwrap_or_default()));
            }
            self.ordered.wait(&mut queue);
        }
        None
    }

    fn done(&self, key: Key, failed: Option<&Failure>) {
        let mut queue = self.queue.lock();
        let waits = queue.coming.remove(&key).is_some_and(|(_, waits)| waits);
        let Some(failure) = failed else { return };
        if let Failure::Disk(_) = failure {
            queue.paused_until = Some(RealClock::tick().plus(PAUSE));
        }
        if waits {
            if queue.failed.len() >= WAITING_MAX {
                queue.failed.clear();
            }
            queue.failed.insert(key, failure.to_string());
        }
    }

    pub(super) fn end(&self) {
        let mut queue = self.queue.lock();
        queue.ended = true;
        queue.jobs.clear();
        drop(queue);
        self.ordered.notify_all();
    }
}

/// Why a file was not cached.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the cluster does not return its bytes (errno {0})")]
    Cluster(i32),
    #[error("cache folder: {0}")]
    Disk(#[from] io::Error),
    #[error("the file changed during the fetch")]
    Changed,
    #[error("the cache has no room: all files in it are open")]
    NoRoom,
    #[error("the mount is ending")]
    Ended,
}

impl From<Errno> for Failure {
    fn from(Errno(errno): Errno) -> Self {
        Self::Cluster(errno)
    }
}

impl Cache {
    /// Orders the fetch of a file that is not cached, for a caller that asks again for the result.
    pub(crate) fn ask(&self, attr: &Attr) -> Asked {
        let Some(key) = self.key(attr) else {
            // Its bytes come with its inode, or it has none.
            return Asked::Cached;
        };
        let (is_there, limit) = {
            let table = self.table.lock();
            (table.has(key), table.limit())
        };
        if is_there {
            return Asked::Cached;
        }
        if key.len > limit {
            return Asked::Failed("the file is larger than the cache (-o cache_size=)".to_owned());
        }
        if let Some(failed) = self.jobs.take_failure(key) {
            return Asked::Failed(failed);
        }
        if !self.jobs.order_fill(key, *attr, true) {
            return Asked::Busy;
        }
        Asked::Coming(self.jobs.coming(key).unwrap_or(0))
    }

    fn work(&self, fs: &Fs) {
        while let Some((job, bytes)) = self.jobs.next() {
            let key = job.key();
            let done = match job {
                Job::Fill(_, attr) => self.fill(fs, (key, &attr), &bytes),
                Job::Check(_) => {
                    if let Ok(file) = self.folder.open(key) {
                        self.check(key, &file);
                    }
                    Ok(())
                }
            };
            if let Err(failure) = &done {
                self.tell_failed(key, failure);
            }
            self.jobs.done(key, done.as_ref().err());
        }
    }

    fn tell_failed(&self, key: Key, failure: &Failure) {
        match failure {
            Failure::Ended => return,
            Failure::Disk(error) => tracing::warn!(
                "file {key} is not cached, and no other file is for {PAUSE:?}: {error}"
            ),
            _ => tracing::info!("file {key} is not cached: {failure}"),
        }
        self.numbers.failed.inc();
    }

    fn fill(&self, fs: &Fs, (key, attr): (Key, &Attr), there: &AtomicU64) -> Result<(), Failure> {
        if self.table.lock().has(key) {
            return Ok(());
        }
        if !self.evict_for(key.len) {
            return Err(Failure::NoRoom);
        }
        let filled = self.fetch(fs, (key, attr), there);
        let mut table = self.table.lock();
        table.give(key.len);
        table.add(key, Some(filled?));
        drop(table);
        self.numbers.filled.inc();
        self.numbers.filled_bytes.add(key.len);
        Ok(())
    }

    /// Fetches a file into the folder; returns its stamp there.
    fn fetch(
        &self,
        fs: &Fs,
        (key, attr): (Key, &Attr),
        there: &AtomicU64,
    ) -> Result<super::Stamp, Failure> {
        let mut unfinished = self.folder.begin(key)?;
        // For a clone, together with the base chunks.
        let chunks = fs.backend.chunks(attr)?.ok_or(Failure::Changed)?;
        let (bytes, piece) = (chunks.bytes(), piece_bytes(fs));
        let mut room = vec![0; usize::try_from(piece.min(key.len)).unwrap_or(0)];
        let mut at = 0;
        while at < key.len {
            let len = piece.min(key.len - at);
            fs.bandwidth.pass(Way::Read, len);
            if self.is_ended() {
                return Err(Failure::Ended);
            }
            let room = &mut room[..usize::try_from(len).unwrap_or(0)];
            fs.backend.read(bytes, at, room).map_err(Errno::from)?;
            unfinished.append(room)?;
            at += len;
            there.store(at, Ordering::Relaxed);
        }
        // Chunks of a removed or cut file read as zeros. A meta learns of the change before chunks
        // are removed, so the fetched bytes are valid only if the file's attributes still match.
        let now =
            fs.backend.attr(&mut fs.backend.own_ticket(), MetaOp::GetAttr { ino: attr.ino })?;
        if self.key(&now.attr) != Some(key) {
            return Err(Failure::Changed);
        }
        if self.is_ended() {
            return Err(Failure::Ended);
        }
        let stamp = unfinished.publish()?;
        Ok((stamp.inode, stamp.changed_ns))
    }
}

/// Bytes of one fetch.
fn piece_bytes(fs: &Fs) -> u64 {
    let budgets = fs.bandwidth.budgets;
    let limits = [budgets.bandwidth, budgets.read_bandwidth];
    let least = limits.into_iter().filter(|limit| *limit > 0).min();
    least.map_or(PIECE_MAX, |limit| (limit / 10).clamp(PIECE_MIN, PIECE_MAX))
}

/// Starts the threads of a mount that has a cache, and checks whether the kernel can read its files
/// by itself.
///
/// # Errors
/// When the system has no thread left.
pub(crate) fn start(fs: &Arc<Fs>, device: &Device, granted: InitFlags) -> io::Result<()> {
    let Some(cache) = &fs.cached else { return Ok(()) };
    cache.try_passthrough(device, granted);
    fs.ahead.memory().take(FILLERS as u64 * PIECE_MAX);
    for _ in 0..FILLERS {
        let (fs, cache) = (Arc::clone(fs), Arc::clone(cache));
        // Not joined: it may wait for the cluster for a minute.
        let _thread = thread("mp-cache", move || cache.work(&fs))?;
    }
    Ok(())
}
