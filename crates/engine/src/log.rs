//! The log's queue, position and leadership; pure state, the I/O is in `commit`.
//!
//! One batch is in flight at a time. A caller that finds no leader leads: it writes one batch and
//! hands leadership to a waiter of the next. Leadership is a token that passes itself on when it is
//! dropped, and the batch in flight is kept here rather than in the leader's future, so a cancelled
//! caller never wedges the others: the next leader writes the same bytes to the same place again. A
//! dedicated committer task was rejected: it costs a wake-up per batch and needs an owner.

use std::collections::VecDeque;
use std::sync::Arc;

use millpond_env::{Buf, SharedBuf};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::engine::Freed;
use crate::error::EngineError;
use crate::format::record::{ChunkRecord, Record};
use crate::format::superblock::LogPosition;
use crate::index::Guard;
use crate::patch::Patching;

/// Effect of a committed record on the index.
#[derive(Debug)]
pub(crate) enum Apply {
    /// The chunk is replaced by this record; its bytes stay in memory.
    Install(Option<SharedBuf>),
    /// Fields of the chunk changed (pin, append, move); memory copy and lease stay.
    Update { drop_hot: bool },
    /// A chunk acknowledged from memory is now on the disk at this version.
    Clean(u64),
    /// The chunk is replaced by this patched one, and stays in memory.
    Patched(Box<Patching>),
    /// The chunk is removed.
    Remove,
    /// Memory shows the change already (the chunk was removed or replaced); its old slabs are
    /// freed.
    Release(Freed),
}

/// A record waiting for its batch.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) record: Record,
    pub(crate) apply: Apply,
    #[expect(dead_code, reason = "held until the record is applied, then dropped")]
    pub(crate) guard: Option<Guard>,
}

#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) pending: Pending,
    pub(crate) ticket: u64,
    done: Option<oneshot::Sender<Signal>>,
}

/// Message to a waiter.
#[derive(Debug)]
pub(crate) enum Signal {
    Done(Result<(), EngineError>),
    Lead(LeadToken),
}

/// A batch being written.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// The pointer block at the end of the old segment, when the log moves to another one.
    pub(crate) next_block: Option<(u64, SharedBuf)>,
    pub(crate) offset: u64,
    pub(crate) bytes: SharedBuf,
    pub(crate) records: Vec<Queued>,
    pub(crate) after: LogPosition,
    pub(crate) last_ticket: u64,
}

#[derive(Debug)]
pub(crate) struct LogState {
    pub(crate) queue: VecDeque<Queued>,
    next_ticket: u64,
    pub(crate) leading: bool,
    pub(crate) in_flight: Option<InFlight>,
    pub(crate) position: LogPosition,
    /// Segments of the log, oldest first.
    pub(crate) segments: VecDeque<u32>,
    pub(crate) buffer: Option<Buf>,
    pub(crate) failed: Option<Arc<str>>,
    /// Bytes written since the last checkpoint began.
    pub(crate) bytes: u64,
    pub(crate) epoch: u32,
}

/// The log of one engine.
#[derive(Debug)]
pub(crate) struct Log(pub(crate) Mutex<LogState>);

/// Records that may wait for a batch; beyond it callers get `Busy`.
const QUEUE_MAX: usize = 1 << 17;

/// The right to write the next batch.
#[derive(Debug)]
pub(crate) struct LeadToken {
    log: Arc<Log>,
}

impl Drop for LeadToken {
    fn drop(&mut self) {
        let next = {
            let mut state = self.log.0.lock();
            let waiter = state.next_waiter();
            state.leading = waiter.is_some();
            waiter
        };
        // A failed send drops the token inside it, which comes back here to try the next waiter.
        if let Some(waiter) = next {
            drop(waiter.send(Signal::Lead(Self { log: Arc::clone(&self.log) })));
        }
    }
}

impl LogState {
    fn next_waiter(&mut self) -> Option<oneshot::Sender<Signal>> {
        let flying = self.in_flight.iter_mut().flat_map(|b| &mut b.records);
        let mut all = flying.chain(&mut self.queue);
        all.find(|q| q.done.as_ref().is_some_and(|d| !d.is_closed()))?.done.take()
    }
}

/// How the caller of an enqueued record waits for its fate.
pub(crate) enum Wait {
    Lead(LeadToken),
    Follow(oneshot::Receiver<Signal>),
}

impl Log {
    pub(crate) fn new(
        position: LogPosition,
        segments: VecDeque<u32>,
        epoch: u32,
        buffer: Buf,
    ) -> Arc<Self> {
        Arc::new(Self(Mutex::new(LogState {
            queue: VecDeque::new(),
            next_ticket: 0,
            leading: false,
            in_flight: None,
            position,
            segments,
            buffer: Some(buffer),
            failed: None,
            bytes: 0,
            epoch,
        })))
    }

    pub(crate) fn check(&self) -> Result<(), EngineError> {
        match &self.0.lock().failed {
            Some(why) => Err(EngineError::ReadOnly(Arc::clone(why))),
            None => Ok(()),
        }
    }

    /// Checks that a record would be accepted now.
    ///
    /// # Errors
    /// `ReadOnly`; `Busy` when the queue is full.
    pub(crate) fn check_room(&self) -> Result<(), EngineError> {
        self.0.lock().check_room()
    }

    /// Queues a record without a waiter that memory shows already; it is written with the next
    /// batch.
    ///
    /// A caller that changes memory asks for room first: here it is too late to refuse. So the
    /// queue passes its bound by at most the number of callers between the two calls.
    pub(crate) fn enqueue_lazily(&self, pending: Pending) -> Result<(), EngineError> {
        let mut state = self.0.lock();
        if let Some(why) = &state.failed {
            return Err(EngineError::ReadOnly(Arc::clone(why)));
        }
        state.add(pending, None);
        Ok(())
    }

    /// The record that waits longest for a batch.
    pub(crate) fn oldest_waiting(&self) -> Option<u64> {
        self.0.lock().queue.front().map(|queued| queued.ticket)
    }

    /// Waits for the last record in the queue; `None` when every record is durable.
    pub(crate) fn follow_last(self: &Arc<Self>) -> Result<Option<(u64, Wait)>, EngineError> {
        let mut state = self.0.lock();
        if let Some(why) = &state.failed {
            return Err(EngineError::ReadOnly(Arc::clone(why)));
        }
        if state.queue.is_empty() && state.in_flight.is_none() {
            return Ok(None);
        }
        if !state.leading {
            state.leading = true;
            let token = LeadToken { log: Arc::clone(self) };
            return Ok(Some((state.next_ticket - 1, Wait::Lead(token))));
        }
        let (sender, receiver) = oneshot::channel();
        let LogState { queue, in_flight, .. } = &mut *state;
        let flying = in_flight.iter_mut().filter_map(|batch| batch.records.last_mut());
        let last = queue.back_mut().or(flying.last()).filter(|q| q.done.is_none());
        let ticket = if let Some(last) = last {
            last.done = Some(sender);
            last.ticket
        } else {
            // The last one has a waiter already: add a record without effect behind it.
            let record = Record::Delete(crate::recover::NOBODY);
            let apply = Apply::Release(Freed::default());
            state.add(Pending { record, apply, guard: None }, Some(sender))
        };
        Ok(Some((ticket, Wait::Follow(receiver))))
    }

    /// Takes the records that cannot be written now out of the queue. Records that memory shows
    /// already stay, in order, and are tried again; only their waiters get the error.
    pub(crate) fn take_failed(&self) -> (Vec<Queued>, Vec<oneshot::Sender<Signal>>) {
        let mut state = self.0.lock();
        let all = std::mem::take(&mut state.queue);
        let shown = |q: &Queued| matches!(q.pending.apply, Apply::Release(_));
        let (stay, failed): (VecDeque<_>, VecDeque<_>) = all.into_iter().partition(shown);
        state.queue = stay;
        let told = state.queue.iter_mut().filter_map(|q| q.done.take()).collect();
        (failed.into(), told)
    }

    /// Queues records; the last one's fate is the fate of all, as batches are in order.
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        pending: Vec<Pending>,
    ) -> Result<(u64, Wait), EngineError> {
        let mut state = self.0.lock();
        let mut ticket = 0;
        let count = pending.len();
        let lead = !state.leading;
        if state.queue.len() + count > QUEUE_MAX {
            return Err(EngineError::Busy("the log's queue is full"));
        }
        let mut wait = None;
        for (i, p) in pending.into_iter().enumerate() {
            let done = if i + 1 == count && !lead {
                let (sender, receiver) = oneshot::channel();
                wait = Some(receiver);
                Some(sender)
            } else {
                None
            };
            ticket = state.push(p, done)?;
        }
        if let Some(receiver) = wait {
            return Ok((ticket, Wait::Follow(receiver)));
        }
        state.leading = true;
        Ok((ticket, Wait::Lead(LeadToken { log: Arc::clone(self) })))
    }

    /// Leadership for the background, when records without waiters are queued.
    pub(crate) fn lead_if_idle(self: &Arc<Self>) -> Option<(u64, LeadToken)> {
        let mut state = self.0.lock();
        let idle = !state.leading && (!state.queue.is_empty() || state.in_flight.is_some());
        idle.then(|| {
            state.leading = true;
            (state.next_ticket - 1, LeadToken { log: Arc::clone(self) })
        })
    }

    pub(crate) fn poison(&self, why: &Arc<str>) -> Vec<Queued> {
        let mut state = self.0.lock();
        state.failed = Some(Arc::clone(why));
        let flying = state.in_flight.take().map(|b| b.records).unwrap_or_default();
        flying.into_iter().chain(state.queue.drain(..)).collect()
    }
}

impl LogState {
    fn push(
        &mut self,
        pending: Pending,
        done: Option<oneshot::Sender<Signal>>,
    ) -> Result<u64, EngineError> {
        self.check_room()?;
        Ok(self.add(pending, done))
    }

    fn check_room(&self) -> Result<(), EngineError> {
        if let Some(why) = &self.failed {
            return Err(EngineError::ReadOnly(Arc::clone(why)));
        }
        if self.queue.len() >= QUEUE_MAX {
            return Err(EngineError::Busy("the log's queue is full"));
        }
        Ok(())
    }

    fn add(&mut self, pending: Pending, done: Option<oneshot::Sender<Signal>>) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.queue.push_back(Queued { pending, ticket, done });
        ticket
    }
}

impl Queued {
    pub(crate) fn tell(self, result: &Result<(), EngineError>) -> Pending {
        if let Some(done) = self.done {
            drop(done.send(Signal::Done(result.clone())));
        }
        self.pending
    }

    pub(crate) fn record_for_log(&self) -> &Record {
        &self.pending.record
    }
}

impl Pending {
    pub(crate) fn put(record: ChunkRecord, apply: Apply, guard: Option<Guard>) -> Self {
        Self { record: Record::Put(record), apply, guard }
    }
}
