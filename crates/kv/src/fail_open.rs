//! A store that never fails: late or failed reads are misses, late or failed writes are dropped and
//! counted. An engine must never be stopped by its cache.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use millpond_client::{ClientError, ErrorKind, GetOutcome, Room, Value};
use millpond_env::{Clock, Mutex, MutexGuard, PerProcess};
use millpond_types::Tick;
use millpond_types::wire::ItemStatus;

use crate::store::{Batch, BlockStore};

/// When to stop trying, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct FailOpenOptions {
    /// When a call that names no deadline ends at the latest.
    pub deadline: Duration,
    /// Failures in a row after which the store is considered down.
    pub failures_max: u32,
    /// First pause without attempts; doubles up to `pause_max`.
    pub pause: Duration,
    /// Longest pause.
    pub pause_max: Duration,
    /// How long writes are dropped after a write or read met back-pressure.
    pub write_pause: Duration,
    /// Concurrent writes; more are dropped, so that reads find a free connection.
    pub writes_max: usize,
}

impl Default for FailOpenOptions {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(1),
            failures_max: 2,
            pause: Duration::from_millis(100),
            pause_max: Duration::from_secs(5),
            write_pause: Duration::from_millis(50),
            writes_max: 2,
        }
    }
}

/// Losses by failing open, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailOpenCounters {
    /// Keys answered as absent because the store was late, down or refused.
    pub reads_failed: u64,
    /// Values dropped.
    pub writes_dropped: u64,
    /// Times the store was considered down.
    pub outages: u64,
}

#[derive(Debug, Default)]
struct Breaker {
    failures: u32,
    pause: Duration,
    closed_until: Tick,
    writes_closed_until: Tick,
    last_error: Option<String>,
}

/// State of the calls of one process. A forked child starts with new state, so it does not wait for
/// calls of its parent.
#[derive(Debug, Default)]
struct Now {
    breaker: Mutex<Breaker>,
    writes: AtomicUsize,
}

/// Wraps a store so that no call fails and none is attempted while it is down.
#[derive(Debug)]
pub struct FailOpen<S, C> {
    store: S,
    clock: C,
    options: FailOpenOptions,
    now: PerProcess<Now>,
    reads_failed: AtomicU64,
    writes_dropped: AtomicU64,
    outages: AtomicU64,
}

impl<S: BlockStore, C: Clock> FailOpen<S, C> {
    /// Wraps `store`.
    pub fn new(store: S, clock: C, options: FailOpenOptions) -> Self {
        Self {
            store,
            clock,
            options,
            now: PerProcess::default(),
            reads_failed: AtomicU64::new(0),
            writes_dropped: AtomicU64::new(0),
            outages: AtomicU64::new(0),
        }
    }

    /// The store inside, with calls that may fail.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// The losses so far.
    pub fn counters(&self) -> FailOpenCounters {
        FailOpenCounters {
            reads_failed: self.reads_failed.load(Ordering::Relaxed),
            writes_dropped: self.writes_dropped.load(Ordering::Relaxed),
            outages: self.outages.load(Ordering::Relaxed),
        }
    }

    /// Whether calls are attempted now.
    pub fn is_up(&self) -> bool {
        self.clock.now() >= self.breaker().closed_until
    }

    /// The reason of the last failure; for people, who see no error otherwise.
    pub fn last_error(&self) -> Option<String> {
        self.breaker().last_error.clone()
    }

    fn now(&self) -> &Now {
        self.now.get_or(Now::default)
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.now().breaker.lock()
    }

    fn note(&self, error: Option<&ClientError>) {
        let mut breaker = self.breaker();
        let Some(error) = error else {
            breaker.failures = 0;
            breaker.pause = Duration::ZERO;
            return;
        };
        breaker.last_error = Some(error.to_string());
        let now = self.clock.now();
        let back_pressure = error.retry_after().max(self.options.write_pause);
        breaker.writes_closed_until = now.plus(back_pressure);
        match error.kind() {
            // The store works; only this call, or writing, does not.
            ErrorKind::Busy
            | ErrorKind::NoSpace
            | ErrorKind::ReadOnly
            | ErrorKind::InvalidArgument => return,
            _ => {}
        }
        breaker.failures += 1;
        if breaker.failures >= self.options.failures_max {
            if breaker.pause.is_zero() {
                self.outages.fetch_add(1, Ordering::Relaxed);
            }
            let doubled = (breaker.pause * 2).max(self.options.pause);
            breaker.pause = doubled.min(self.options.pause_max);
            breaker.closed_until = now.plus(breaker.pause);
        }
    }

    fn read<T>(
        &self,
        keys: usize,
        otherwise: T,
        call: impl FnOnce() -> Result<T, ClientError>,
    ) -> T {
        if self.is_up() {
            let result = call();
            self.note(result.as_ref().err());
            if let Ok(answer) = result {
                return answer;
            }
        }
        self.reads_failed.fetch_add(keys as u64, Ordering::Relaxed);
        otherwise
    }

    /// Runs a call and returns its error to the caller; it counts like any other.
    ///
    /// # Errors
    /// Those of the call.
    pub fn attempt<T>(
        &self,
        call: impl FnOnce(&S) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let result = call(&self.store);
        self.note(result.as_ref().err());
        result
    }

    /// The batch with a deadline: the caller's, or the default.
    fn timed<'a>(&self, batch: Batch<'a>) -> Batch<'a> {
        Batch { deadline: batch.deadline.or(Some(self.options.deadline)), ..batch }
    }

    /// Reads values; failed ones are `Late`.
    pub fn get(&self, batch: Batch<'_>, rooms: &mut [Room<'_>]) -> Vec<GetOutcome> {
        let (batch, keys) = (self.timed(batch), batch.keys.len());
        self.read(keys, vec![GetOutcome::Late; keys], || self.store.get(batch, rooms))
    }

    /// Counts the leading keys that are present; none when the store does not answer.
    pub fn match_prefix(&self, batch: Batch<'_>, lease_ms: u32) -> usize {
        let batch = self.timed(batch);
        self.read(batch.keys.len(), 0, || self.store.match_prefix(batch, lease_ms))
    }

    /// Returns which keys are present; none when the store does not answer.
    pub fn contains(&self, batch: Batch<'_>) -> Vec<bool> {
        let (batch, keys) = (self.timed(batch), batch.keys.len());
        self.read(keys, vec![false; keys], || self.store.contains(batch))
    }

    /// Marks keys as recently used; true for none when the store does not answer.
    pub fn touch(&self, batch: Batch<'_>) -> Vec<bool> {
        let (batch, keys) = (self.timed(batch), batch.keys.len());
        self.read(keys, vec![false; keys], || self.store.touch(batch))
    }

    /// Removes keys; true for none when the store does not answer, and they may still be there: a
    /// program that must know uses a store that may fail.
    pub fn delete(&self, batch: Batch<'_>) -> Vec<bool> {
        let (batch, keys) = (self.timed(batch), batch.keys.len());
        self.read(keys, vec![false; keys], || self.store.delete(batch))
    }

    /// Stores values; dropped ones are `Late`.
    pub fn put(&self, batch: Batch<'_>, values: &[Value<'_>]) -> Vec<ItemStatus> {
        let result = self.try_put(self.timed(batch), values);
        let statuses = result.unwrap_or_else(|| vec![ItemStatus::Late; batch.keys.len()]);
        let kept = |status: &&ItemStatus| matches!(status, ItemStatus::Ok | ItemStatus::Exists);
        let dropped = statuses.len() - statuses.iter().filter(kept).count();
        self.writes_dropped.fetch_add(dropped as u64, Ordering::Relaxed);
        if statuses.iter().any(|status| matches!(status, ItemStatus::Busy)) {
            let until = self.clock.now().plus(self.options.write_pause);
            self.breaker().writes_closed_until = until;
        }
        statuses
    }

    fn try_put(&self, batch: Batch<'_>, values: &[Value<'_>]) -> Option<Vec<ItemStatus>> {
        if !self.is_up() || self.clock.now() < self.breaker().writes_closed_until {
            return None;
        }
        let writes = &self.now().writes;
        if writes.fetch_add(1, Ordering::AcqRel) >= self.options.writes_max {
            writes.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        let result = self.store.put(batch, values);
        writes.fetch_sub(1, Ordering::AcqRel);
        self.note(result.as_ref().err());
        result.ok()
    }
}

/// The same for callers of any store: no call returns an error.
impl<S: BlockStore, C: Clock> BlockStore for FailOpen<S, C> {
    fn put(&self, batch: Batch<'_>, values: &[Value<'_>]) -> Result<Vec<ItemStatus>, ClientError> {
        Ok(Self::put(self, batch, values))
    }

    fn get(
        &self,
        batch: Batch<'_>,
        rooms: &mut [Room<'_>],
    ) -> Result<Vec<GetOutcome>, ClientError> {
        Ok(Self::get(self, batch, rooms))
    }

    fn contains(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        Ok(Self::contains(self, batch))
    }

    fn match_prefix(&self, batch: Batch<'_>, lease_ms: u32) -> Result<usize, ClientError> {
        Ok(Self::match_prefix(self, batch, lease_ms))
    }

    fn touch(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        Ok(Self::touch(self, batch))
    }

    fn delete(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        Ok(Self::delete(self, batch))
    }

    /// The losses so far; the counters of the store inside may need it to answer.
    fn stats(&self) -> Result<Vec<(String, u64)>, ClientError> {
        let FailOpenCounters { reads_failed, writes_dropped, outages } = self.counters();
        Ok(vec![
            ("reads_failed".to_owned(), reads_failed),
            ("writes_dropped".to_owned(), writes_dropped),
            ("outages".to_owned(), outages),
        ])
    }
}
