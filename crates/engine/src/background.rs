//! Background work: write-behind, eviction, expiry, compaction, checkpoints, scrub.
//!
//! It is one future, owned by its caller; dropping it stops the work. Each round is also a method
//! of its own, so that tests drive it without a clock.

use std::time::Duration;

use futures_util::future::join_all;
use millpond_env::Disk;
use millpond_types::ChunkId;
use millpond_types::limits::PAGE_BYTES;

use crate::engine::{Cursor, Engine, HOT_SHARE, Inner};
use crate::error::{EngineError, ErrorKind};
use crate::index::{HOT_BYTES_PER_CHUNK, SHARDS};
use crate::space::Space;

/// Pause between rounds of housekeeping.
const ROUND: Duration = Duration::from_millis(200);
/// Shards checked for expired chunks per round: all of them within 3.2 s.
const EXPIRE_SHARDS: usize = 4;
/// Pause after a failed write-behind before the next try.
const RETRY: Duration = Duration::from_millis(100);
/// Shortest wait of a promotion or a lazy deletion for another caller's flush; the longest is twice
/// that.
const LAZY: Duration = Duration::from_millis(5);
/// Pause of a read-only engine between checks of its queues.
const READ_ONLY_PAUSE: Duration = Duration::from_secs(5);
/// Free segments below which compaction starts.
const COMPACT_BELOW: usize = 8;
/// Segments emptied per round.
const COMPACT_SEGMENTS: usize = 4;

impl<D: Disk> Engine<D> {
    /// Runs the background work of this engine until dropped. Needs a `Runtime`.
    pub async fn run_background(&self) {
        let loops: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> = vec![
            Box::pin(self.0.write_behind_loop()),
            Box::pin(self.0.lazy_loop()),
            Box::pin(self.0.housekeeping_loop()),
            Box::pin(self.scrub_loop()),
        ];
        join_all(loops).await;
    }

    /// Makes all writes, promotions and deletions before the call durable; later ones may stay
    /// volatile.
    ///
    /// # Errors
    /// As for a durable write.
    pub async fn flush(&self) -> Result<(), EngineError> {
        self.0.flush_dirty().await?;
        self.0.barrier().await
    }

    /// One round of housekeeping: expiry, eviction, compaction, checkpoint when due.
    ///
    /// # Errors
    /// Those of the log and the disk.
    pub async fn maintain(&self) -> Result<(), EngineError> {
        (0..SHARDS).for_each(|at| self.0.expire_shard(at));
        self.0.housekeep().await
    }

    /// Flushes everything and writes a checkpoint, so that the next open is quick and replays
    /// nothing.
    ///
    /// # Errors
    /// As for a durable write.
    pub async fn shutdown(&self) -> Result<(), EngineError> {
        self.flush().await?;
        self.0.checkpoint().await
    }

    /// Reads and checks every chunk once; returns the number of bad chunks.
    ///
    /// # Errors
    /// `Io` and `Busy` end the pass; a bad chunk does not.
    pub async fn scrub_pass(&self) -> Result<u64, EngineError> {
        let mut bad = 0;
        let mut cursor = Some(Cursor::default());
        while let Some(at) = cursor {
            let (page, next) = self.scan(None, at, 256);
            for (info, _) in page {
                bad += u64::from(self.scrub_one(info.id).await?);
                self.0.metrics.scrubbed_bytes.add(u64::from(info.len));
            }
            cursor = next;
        }
        Ok(bad)
    }

    async fn scrub_one(&self, id: ChunkId) -> Result<bool, EngineError> {
        match self.verify(id).await {
            Ok(sound) => Ok(sound == Some(false)),
            Err(EngineError::Corrupt(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Reads all chunks within the scrub period, at most at the configured rate.
    async fn scrub_loop(&self) {
        let inner = &self.0;
        let period = inner.options.scrub_period;
        let rate_max = inner.options.scrub_bytes_per_second.0;
        let mut cursor = Cursor::default();
        loop {
            let used = inner.space.lock().used_bytes();
            let rate = (used / period.as_secs().max(1)).clamp(1, rate_max);
            let (page, next) = self.scan(None, cursor, 1);
            cursor = next.unwrap_or_default();
            let mut bytes = 0;
            for (info, _) in page {
                if let Err(error) = self.scrub_one(info.id).await {
                    tracing::warn!(%error, chunk = %info.id, "scrubbing failed");
                }
                inner.metrics.scrubbed_bytes.add(u64::from(info.len));
                bytes += u64::from(info.len.max(4096));
            }
            let micros = bytes.saturating_mul(1_000_000) / rate;
            // An empty disk is checked once a second.
            let pause = Duration::from_micros(micros.max(1000));
            millpond_env::sleep(if bytes == 0 { Duration::from_secs(1) } else { pause }).await;
        }
    }
}

impl<D: Disk> Inner<D> {
    async fn write_behind_loop(&self) {
        loop {
            let worked = match self.flush_batch().await {
                Ok(worked) => worked,
                Err(error) => {
                    self.pause_after(&error, "write-behind failed; trying again").await;
                    false
                }
            };
            if worked {
                continue;
            }
            // Deletes and evictions without a waiter.
            if let Err(error) = self.drive().await {
                self.pause_after(&error, "log write failed").await;
            }
            if self.dirty_queue.lock().is_empty() {
                self.wake_background.notified().await;
            }
        }
    }

    /// Flushes records without a waiter, after a pause in which another caller's flush may take
    /// them.
    async fn lazy_loop(&self) {
        loop {
            let Some(oldest) = self.log.oldest_waiting() else {
                self.wake_lazy.notified().await;
                continue;
            };
            millpond_env::sleep(LAZY).await;
            if self.log.oldest_waiting() != Some(oldest) {
                // Another caller's flush took it; the records that wait now came later.
                continue;
            }
            if let Err(error) = self.drive().await {
                self.pause_after(&error, "log write failed").await;
            }
        }
    }

    /// Logs an error, except one of a read-only engine, and waits before the next attempt.
    async fn pause_after(&self, error: &EngineError, what: &'static str) {
        if error.kind() == ErrorKind::ReadOnly {
            // It was logged when it happened, and only a restart helps.
            return millpond_env::sleep(READ_ONLY_PAUSE).await;
        }
        tracing::error!(%error, "{what}");
        millpond_env::sleep(RETRY).await;
    }

    async fn housekeeping_loop(&self) {
        let mut shard = 0;
        let mut idle_since = None;
        loop {
            millpond_env::sleep(ROUND).await;
            for _ in 0..EXPIRE_SHARDS {
                self.expire_shard(shard % SHARDS);
                shard += 1;
            }
            if let Err(error) = self.housekeep().await {
                self.pause_after(&error, "housekeeping failed").await;
                continue;
            }
            self.seal_when_idle(&mut idle_since).await;
        }
    }

    /// Appends a batch without data after a quiet round, behind the last batch with data.
    ///
    /// A restart then knows that the flush of the data batch completed, so bad data in it is
    /// damage, not the result of a crash.
    async fn seal_when_idle(&self, sealed: &mut Option<u64>) {
        let sequence = self.log.0.lock().position.sequence;
        match *sealed {
            // Unchanged for one round and not sealed yet.
            Some(seen) if seen == sequence => {
                if self.begin_epoch(Vec::new()).await.is_ok() {
                    // Marks the seal itself as seen, with a value no later sequence has.
                    *sealed = Some(u64::MAX - self.log.0.lock().position.sequence);
                }
            }
            Some(seen) if seen == u64::MAX - sequence => {}
            _ => *sealed = Some(sequence),
        }
    }

    /// Eviction, compaction and checkpoints, each when due.
    async fn housekeep(&self) -> Result<(), EngineError> {
        self.drain_quarantine();
        self.sweep_groups();
        self.keep_headroom();
        self.drive().await?;
        self.evict_to_low().await?;
        let free = self.space.lock().free_segments();
        if free == 0 {
            // Each patched chunk holds two slabs until it is folded.
            self.fold_soon(usize::MAX);
        }
        if free < COMPACT_BELOW {
            self.compact_once(COMPACT_SEGMENTS).await?;
        }
        self.take_room(Space::stock_lacks_room).await?;
        let is_short = self.space.lock().is_short();
        let log_bytes_max = self.options.checkpoint_log_bytes.0;
        // Segments that the log frees become room for chunks.
        let log_bytes_max =
            if is_short { log_bytes_max.min(self.segment_bytes) } else { log_bytes_max };
        if self.log.0.lock().bytes >= log_bytes_max {
            self.checkpoint().await?;
        }
        match self.prepare_segment().await {
            // The log takes an unprepared segment; the next round tries again.
            Err(error) if error.kind() == ErrorKind::Busy => Ok(()),
            done => done,
        }
    }

    /// Keeps a share of the pool free, so that requests rarely have to reclaim memory themselves.
    ///
    /// Also keeps most of the index's memory for chunks that are only on the disk: a small chunk in
    /// memory takes as much again there.
    fn keep_headroom(&self) {
        let capacity = self.pool.capacity();
        let target = capacity / 1000 * (1000 - self.options.pool_headroom as usize);
        let used = self.pool.used();
        let hot_max = self.options.index_bytes_max.0 / HOT_SHARE / HOT_BYTES_PER_CHUNK as u64;
        let hot = self.index.hot_len();
        let many = hot.saturating_sub(usize::try_from(hot_max).unwrap_or(usize::MAX));
        let each = (used / hot.max(1)).max(PAGE_BYTES);
        let over = used.saturating_sub(target).max(many * each);
        if over > 0 {
            self.reclaim(over);
        }
    }
}
