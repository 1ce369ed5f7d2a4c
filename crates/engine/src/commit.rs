//! Group commit: writing batches and applying them.

use std::sync::Arc;

use millpond_env::{Buf, Disk, SharedBuf};
use millpond_types::limits::PAGE_BYTES;

use crate::engine::{Freed, Inner, Reserved};
use crate::error::EngineError;
use crate::format::batch::{self, BATCH_BYTES_MAX, BatchHeader, HEADER_BYTES};
use crate::format::codec::Writer;
use crate::format::record::{ChunkRecord, Record};
use crate::format::superblock::LogPosition;
use crate::index::{Unlogged, weight};
use crate::log::{Apply, InFlight, LeadToken, LogState, Pending, Queued, Signal, Wait};
use crate::space::Space;

/// Each segment of the log keeps its last page for the pointer to the next one.
const POINTER_BYTES: u64 = PAGE_BYTES as u64;

/// Work of the leader.
struct Job {
    next_block: Option<(u64, SharedBuf)>,
    offset: u64,
    bytes: SharedBuf,
    last_ticket: u64,
}

impl<D: Disk> Inner<D> {
    /// Makes records and all data written before them durable, and applies them.
    ///
    /// Dropping the future leaves the records queued; they may still be committed.
    pub(crate) async fn commit(&self, pending: Vec<Pending>) -> Result<(), EngineError> {
        self.commit_with(pending, Vec::new()).await
    }

    /// Like [`Inner::commit`], for records that name new slabs; a record that the log rejects gives
    /// its slab back.
    pub(crate) async fn commit_with(
        &self,
        pending: Vec<Pending>,
        slabs: Vec<Reserved<'_, D>>,
    ) -> Result<(), EngineError> {
        if pending.is_empty() {
            return Ok(());
        }
        let started = self.clock.now();
        let (ticket, wait) = self.log.enqueue(pending)?;
        for slab in slabs {
            slab.keep();
        }
        let result = self.decided(ticket, wait).await;
        self.metrics.commit_wait.observe(self.clock.now().since(started));
        result
    }

    /// Waits until every record queued so far is durable. Writes nothing when all are.
    pub(crate) async fn barrier(&self) -> Result<(), EngineError> {
        match self.log.follow_last()? {
            Some((ticket, wait)) => self.decided(ticket, wait).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn decided(&self, ticket: u64, wait: Wait) -> Result<(), EngineError> {
        match wait {
            Wait::Lead(token) => self.lead(token, ticket).await,
            Wait::Follow(receiver) => match receiver.await {
                Ok(Signal::Done(result)) => result,
                Ok(Signal::Lead(token)) => self.lead(token, ticket).await,
                Err(_) => Err(EngineError::Busy("the engine is closing")),
            },
        }
    }

    /// Writes batches until `ticket` is decided, then hands leadership on.
    pub(crate) async fn lead(&self, token: LeadToken, ticket: u64) -> Result<(), EngineError> {
        // Callers woken together reach the log together: let them catch up once.
        crate::tasks::yield_once().await;
        loop {
            // Without room the log continues while it has segments; `take_job` reports when it has
            // none.
            if let Err(error) = self.take_room(Space::log_lacks_room).await {
                tracing::error!(%error, "cannot get space for the log");
            }
            let job = match self.take_job() {
                Ok(Some(job)) => job,
                Ok(None) => break,
                Err(error) => {
                    self.fail_queue(&error);
                    return Err(error);
                }
            };
            let started = self.clock.now();
            let written = self.write_job(&job).await;
            self.metrics.log_flush.observe(self.clock.now().since(started));
            let last = job.last_ticket;
            match written {
                Ok(()) => self.finish(job),
                Err(error) => return Err(self.poison(&error)),
            }
            if last >= ticket {
                break;
            }
        }
        drop(token);
        Ok(())
    }

    /// Opens an epoch of the log: makes the recovered end durable, and undoes a half-completed last
    /// flush.
    ///
    /// The undo must be logged: a later replay would no longer see that batch as the last.
    pub(crate) async fn begin_epoch(&self, undo: Vec<Record>) -> Result<(), EngineError> {
        let mut records = undo;
        // An epoch begins with at least one batch, which flushes everything that was replayed.
        records.push(Record::Delete(crate::recover::NOBODY));
        let pending = records.into_iter().map(|record| {
            let apply = Apply::Release(Freed::default());
            Pending { record, apply, guard: None }
        });
        self.commit(pending.collect()).await
    }

    async fn write_job(&self, job: &Job) -> std::io::Result<()> {
        if let Some((offset, block)) = &job.next_block {
            self.disk.write(*offset, block.clone()).await?;
        }
        self.disk.write_sync(job.offset, job.bytes.clone()).await
    }

    fn take_job(&self) -> Result<Option<Job>, EngineError> {
        let mut state = self.log.0.lock();
        if state.in_flight.is_none() {
            if state.queue.is_empty() {
                return Ok(None);
            }
            let batch = self.prepare(&mut state)?;
            state.in_flight = Some(batch);
        }
        Ok(state.in_flight.as_ref().map(|b| Job {
            next_block: b.next_block.clone(),
            offset: b.offset,
            bytes: b.bytes.clone(),
            last_ticket: b.last_ticket,
        }))
    }

    /// Encodes the next batch at the log's position, moving to a new segment when it is full.
    fn prepare(&self, state: &mut LogState) -> Result<InFlight, EngineError> {
        let limit = usize::try_from(self.segment_bytes / 2).unwrap_or(BATCH_BYTES_MAX);
        let limit = limit.min(BATCH_BYTES_MAX);
        let (mut count, mut bytes) = (0, HEADER_BYTES);
        for q in &state.queue {
            let len = q.record_for_log().encoded_len();
            if bytes + len > limit {
                break;
            }
            (count, bytes) = (count + 1, bytes + len);
        }
        let padded = bytes.next_multiple_of(PAGE_BYTES);
        let mut at = state.position;
        let mut next_block = None;
        let mut buf = self.log_buffer(state, padded)?;
        if u64::from(at.offset) + padded as u64 + POINTER_BYTES > self.segment_bytes {
            match self.next_segment(state) {
                Ok((block, moved)) => (next_block, at) = (Some(block), moved),
                Err(error) => {
                    state.buffer = Some(buf);
                    return Err(error);
                }
            }
        }
        let records: Vec<Queued> = state.queue.drain(..count).collect();
        let mut w = Writer::new(&mut buf.as_full_mut()[HEADER_BYTES..]);
        for queued in &records {
            queued.record_for_log().encode(&mut w);
        }
        let header = self.header(state, at.sequence, (count, bytes));
        batch::seal(self.salt, &header, buf.as_full_mut());
        buf.set_len(padded);
        state.bytes += padded as u64;
        let padded = u32::try_from(padded).unwrap_or(u32::MAX);
        Ok(InFlight {
            next_block,
            offset: self.segment_offset(at.segment) + u64::from(at.offset),
            bytes: buf.freeze(),
            last_ticket: records.last().map_or(0, |q| q.ticket),
            records,
            after: LogPosition {
                segment: at.segment,
                offset: at.offset + padded,
                sequence: at.sequence + 1,
            },
        })
    }

    fn header(
        &self,
        state: &LogState,
        sequence: u64,
        (count, bytes): (usize, usize),
    ) -> BatchHeader {
        BatchHeader {
            sequence,
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            records: u32::try_from(count).unwrap_or(u32::MAX),
            next_version: self.versions.load(std::sync::atomic::Ordering::Relaxed),
            epoch: state.epoch,
        }
    }

    /// Takes a segment and makes the block that points to it.
    ///
    /// The block needs no flush of its own: without it the batch after it is never found, and the
    /// flush of that batch covers both.
    fn next_segment(
        &self,
        state: &mut LogState,
    ) -> Result<((u64, SharedBuf), LogPosition), EngineError> {
        let mut buf = self.pool_buf(PAGE_BYTES)?;
        let segment = self.space.lock().alloc_segment(true).ok_or(EngineError::NoSpace)?;
        let at = state.position;
        let record = Record::Next(segment);
        record.encode(&mut Writer::new(&mut buf.as_full_mut()[HEADER_BYTES..]));
        let header = self.header(state, at.sequence, (1, HEADER_BYTES + record.encoded_len()));
        batch::seal(self.salt, &header, buf.as_full_mut());
        let offset = self.segment_offset(at.segment) + u64::from(at.offset);
        state.segments.push_back(segment);
        // The pointer block is written even if this batch cannot be made after all.
        let moved = LogPosition { segment, offset: 0, sequence: at.sequence + 1 };
        Ok(((offset, buf.freeze()), moved))
    }

    fn log_buffer(&self, state: &mut LogState, len: usize) -> Result<Buf, EngineError> {
        match state.buffer.take() {
            Some(buf) if buf.capacity() >= len => Ok(buf),
            _ => self.pool_buf(len.max(BATCH_BYTES_MAX)).or_else(|_| self.pool_buf(len)),
        }
    }

    fn finish(&self, job: Job) {
        let records = {
            let mut state = self.log.0.lock();
            state.in_flight.as_mut().map(|b| std::mem::take(&mut b.records)).unwrap_or_default()
        };
        // Applied before the position advances: a checkpoint that begins at the position must find
        // everything before it in the index.
        let mut pendings = Vec::with_capacity(records.len());
        for queued in records {
            let (queued, freed) = self.apply(queued);
            pendings.push(queued);
            self.release_all(freed);
        }
        {
            let mut state = self.log.0.lock();
            if let Some(b) = state.in_flight.take() {
                state.position = b.after;
                drop(b);
            }
            if state.buffer.is_none() {
                state.buffer = job.bytes.try_unique().ok();
            }
        }
        self.note_clean();
        self.metrics.commits.inc();
        self.metrics.commit_records.add(pendings.len() as u64);
        for queued in pendings {
            // The guard is dropped with the pending record, after its waiter has its result.
            drop(queued.tell(&Ok(())));
        }
    }

    fn fail_queue(&self, error: &EngineError) {
        let (failed, told) = self.log.take_failed();
        for waiter in told {
            drop(waiter.send(Signal::Done(Err(error.clone()))));
        }
        for queued in failed {
            let pending = queued.tell(&Err(error.clone()));
            if let Apply::Patched(patching) = &pending.apply {
                self.release(patching.base.record.location);
            }
            // The slab of a record that never reached the log has no owner.
            if let Record::Patch(p) = &pending.record {
                self.release(p.to.location);
            }
            if let Record::Put(c) = &pending.record
                && !matches!(pending.apply, Apply::Clean(_))
                && self.index.location(c.id) != Some(c.location)
            {
                self.release(c.location);
            }
        }
    }

    /// Makes the engine read-only: a failed flush proves nothing about later ones (Rebello et al.,
    /// "Can Applications Recover from fsync Failures?", ATC 2020).
    pub(crate) fn poison(&self, error: &std::io::Error) -> EngineError {
        let why: Arc<str> = error.to_string().into();
        tracing::error!(%error, "log write failed; the engine is read-only until it is reopened");
        let error = EngineError::ReadOnly(Arc::clone(&why));
        for queued in self.log.poison(&why) {
            drop(queued.tell(&Err(error.clone())));
        }
        error
    }

    /// Applies a committed record to the index; returns the slabs to free.
    pub(crate) fn apply(&self, mut queued: Queued) -> (Queued, Freed) {
        let apply = std::mem::replace(&mut queued.pending.apply, Apply::Remove);
        let freed = match (&queued.pending.record, apply) {
            (Record::Put(c), Apply::Install(bytes)) => self.install(c, bytes),
            (Record::Put(c), Apply::Update { drop_hot }) => self.update(c, drop_hot),
            (Record::Put(c), Apply::Clean(version)) => self.clean(c, version),
            (Record::Patch(p), Apply::Patched(patching)) => self.install_patched(p, *patching),
            (_, Apply::Release(freed)) => freed,
            (Record::Delete(id), _) => {
                let mut shard = self.index.shard(*id);
                let removed = shard.find(*id).map(|slot| shard.remove(slot));
                drop(shard);
                removed.map(|r| self.give_up(r)).unwrap_or_default()
            }
            _ => Freed::default(),
        };
        (queued, freed)
    }

    fn install(&self, c: &ChunkRecord, bytes: Option<SharedBuf>) -> Freed {
        let mut shard = self.index.shard(c.id);
        let old = shard.find(c.id).map(|slot| shard.remove(slot));
        let slot = shard.insert(c);
        if let Some(bytes) = bytes {
            shard.set_hot(slot, bytes, false);
        }
        drop(shard);
        old.map(|r| self.give_up(r)).unwrap_or_default()
    }

    fn update(&self, c: &ChunkRecord, drop_hot: bool) -> Freed {
        let mut shard = self.index.shard(c.id);
        let Some(slot) = shard.find(c.id) else { return Freed::default() };
        let old = shard.entry(slot).location();
        shard.update(slot, c);
        if drop_hot {
            shard.take_hot(slot);
        }
        let slabs = if old == c.location { Vec::new() } else { vec![old] };
        Freed { slabs, below: None }
    }

    fn clean(&self, c: &ChunkRecord, version: u64) -> Freed {
        let mut shard = self.index.shard(c.id);
        let Some(slot) = shard.find(c.id) else { return Freed::default() };
        if shard.entry(slot).version() != version {
            return Freed::default();
        }
        let Some(hot) = shard.hot.get_mut(&slot) else { return Freed::default() };
        hot.dirty = false;
        let Unlogged { previous, patched: below, promoted_from } = hot.take_unlogged();
        if c.len == 0 {
            // It has no bytes to keep in memory; the request's buffer may hold a page of the pool.
            shard.take_hot(slot);
        }
        drop(shard);
        self.dirty.sub(weight(c.len));
        self.promoted.done(promoted_from);
        if below.is_some() {
            self.metrics.folds.inc();
        }
        let base = below.as_ref().map(|base| base.record.location);
        let slabs = previous.map(|p| p.location).into_iter().chain(base).collect();
        Freed { slabs, below }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use millpond_env::disk::block_on;
    use millpond_env::{BufferPool, FakeClock, FakeDisk, PoolOptions};
    use millpond_types::{Ack, ByteSize, ChunkId, Crc32c, GroupId, Tick, Uuid128};

    use super::*;
    use crate::engine::Engine;
    use crate::error::ErrorKind;
    use crate::options::{EngineOptions, FormatOptions};
    use crate::write::{WriteMode, WriteRequest};

    /// An engine on a new disk with room for `data` bytes.
    pub(crate) fn engine(data: u64) -> Engine<FakeDisk> {
        let disk = FakeDisk::new((64 << 10) + data);
        let pool = BufferPool::new(PoolOptions::new(16 << 20)).unwrap();
        let options = FormatOptions {
            segment_bytes: ByteSize::mib(1),
            ..FormatOptions::new(Uuid128([1; 16]), Uuid128([2; 16]))
        };
        block_on(Engine::format(&disk, &pool, options)).unwrap();
        let clock = Arc::new(FakeClock::new(Tick(0), 1_700_000_000_000));
        block_on(Engine::open(disk, pool, clock, EngineOptions::default())).unwrap()
    }

    fn bytes(engine: &Engine<FakeDisk>, len: usize) -> SharedBuf {
        let mut buf = engine.alloc(len).unwrap();
        buf.as_full_mut().fill(7);
        buf.set_len(len);
        buf.freeze()
    }

    fn put(engine: &Engine<FakeDisk>, id: u128) -> Result<(), EngineError> {
        let bytes = bytes(engine, 4000);
        let request = WriteRequest {
            crc: Crc32c::of(&bytes),
            bytes,
            attrs: b"",
            group: GroupId(1),
            priority: 1,
            expires: None,
            evictable: false,
            mode: WriteMode::Replace,
            ack: Ack::Disk,
        };
        block_on(engine.write(ChunkId(id), request)).map(|_| ())
    }

    /// Fills the log's queue with records without effect.
    fn fill(engine: &Engine<FakeDisk>) {
        while engine.0.log.check_room().is_ok() {
            let record = Record::Delete(crate::recover::NOBODY);
            let apply = Apply::Release(Freed::default());
            engine.0.log.enqueue_lazily(Pending { record, apply, guard: None }).unwrap();
        }
    }

    #[test]
    fn what_a_full_log_does_not_take_keeps_no_slab() {
        let engine = engine(24 << 20);
        (0..300).for_each(|id| put(&engine, id).unwrap());
        let gone: Vec<ChunkId> = (0..300).filter(|id| id % 10 != 0).map(ChunkId).collect();
        assert_eq!(block_on(engine.delete(&gone, Ack::Disk)).unwrap(), gone.len());
        let used = engine.stats().used_bytes;
        fill(&engine);
        let busy = |done: Result<(), EngineError>| {
            assert_eq!(done.unwrap_err().kind(), ErrorKind::Busy);
            assert_eq!(engine.stats().used_bytes, used, "a slab without an owner");
        };
        for _ in 0..3 {
            busy(put(&engine, 1000));
            let more = bytes(&engine, 9000);
            busy(block_on(engine.append(ChunkId(0), 4000, more)).map(|_| ()));
            busy(block_on(engine.0.compact_once(4)).map(|_| ()));
        }
        // Once there is room again, everything works as before.
        block_on(engine.flush()).unwrap();
        assert!(block_on(engine.0.compact_once(4)).unwrap() > 0);
        assert_eq!(engine.stats().used_bytes, used);
        put(&engine, 1000).unwrap();
        assert!(engine.stats().used_bytes > used);
    }
}
