//! Resync, the sending side: the last serving target brings the syncing one up to date.
//!
//! New writes reach the syncing target through the chain from the first moment, so only older
//! versions have to be compared. The source sends its list page by page, the sink answers with the
//! differences, and each is sent under the chunk's lock here, so that no write of it is in flight
//! then. The sink applies it only if its chunk is still as it reported, so late copies of messages
//! do no harm.

use std::collections::{BTreeMap, VecDeque};

use millpond_types::cluster::TargetId;
use millpond_types::limits::{RESYNC_JOBS_MAX, RESYNC_PAGE_CHUNKS};
use millpond_types::{ChunkId, Tick};

use crate::event::{ReadOp, StoreAnswer, StoreError, StoreOp, Turn};
use crate::message::{Meta, Payload, PeerBody, SyncBody};
use crate::mutation::mutated;
use crate::replica::{Found, Job, Replica, bytes_of, resend_due};
use crate::slot::{Install, Lock, Waiting};

/// The event that the source waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// The sink's progress.
    Hello,
    /// The local store's list.
    Listing,
    /// The sink's comparison.
    Comparing(Vec<(ChunkId, Meta)>),
    /// Transfers in flight.
    Sending,
    /// The sink to make everything durable.
    Finish,
    Done,
}

/// The transfer of one chunk.
#[derive(Clone, Debug)]
struct SendJob<P> {
    expect: Option<Meta>,
    /// Whether the chunk is locked and its bytes are read, so that it can be sent.
    ready: bool,
    bytes: Option<P>,
    /// Whether the bytes are lost: then these are the label alone.
    lost: bool,
    sent: Option<Tick>,
}

#[derive(Clone, Debug)]
pub(crate) struct Source<P> {
    sink: TargetId,
    phase: Phase,
    nonce: u64,
    /// All chunks up to here are equal.
    cursor: Option<ChunkId>,
    /// End of the page under way; `None` is the end of all chunks.
    until: Option<ChunkId>,
    sent: Option<Tick>,
    todo: VecDeque<(ChunkId, Option<Meta>)>,
    jobs: BTreeMap<ChunkId, SendJob<P>>,
    /// Chunks of the page that are damaged here in these versions, and of which all others reported
    /// no good copy.
    lost: BTreeMap<ChunkId, Meta>,
}

/// Progress of a resync, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResyncProgress {
    /// The target being brought up to date.
    pub sink: TargetId,
    /// All chunks up to this one are equal.
    pub cursor: Option<ChunkId>,
    /// Whether the sink has all chunks.
    pub done: bool,
}

impl<P: Payload> Replica<P> {
    /// The resync that this replica is the source of.
    #[must_use]
    pub fn resync_progress(&self) -> Option<ResyncProgress> {
        let source = self.source.as_ref()?;
        let done = source.phase == Phase::Done;
        Some(ResyncProgress { sink: source.sink, cursor: source.cursor, done })
    }

    /// Starts for a new version of the chain, at the position that the sink reports.
    pub(crate) fn source_restart(&mut self, turn: &mut Turn<'_, P>) {
        let mine =
            |job: &Job| matches!(job, Job::SourceList(_) | Job::SendRead(_) | Job::SendLabel(_));
        self.jobs.retain(|_, job| !mine(job));
        let sink = self.view.syncing().filter(|_| self.view.is_tail());
        self.source = sink.map(|sink| Source {
            sink,
            phase: Phase::Hello,
            nonce: 0,
            cursor: None,
            until: None,
            sent: None,
            todo: VecDeque::new(),
            jobs: BTreeMap::new(),
            lost: BTreeMap::new(),
        });
        self.source_tick(turn);
    }

    fn source_say(&self, body: SyncBody<P>, turn: &mut Turn<'_, P>) {
        if let Some(source) = &self.source {
            self.send(source.sink, PeerBody::Sync(body), turn);
        }
    }

    pub(crate) fn on_sync(&mut self, from: TargetId, body: SyncBody<P>, turn: &mut Turn<'_, P>) {
        let sink = self.source.as_ref().is_some_and(|source| source.sink == from);
        let source =
            self.view.predecessor() == Some(from) && self.mode == crate::replica::Mode::Syncing;
        match body {
            SyncBody::Progress { cursor, done } if sink => self.on_progress(cursor, done, turn),
            SyncBody::Differ { nonce, until, items } if sink => {
                self.on_differ(nonce, until, items, turn);
            }
            SyncBody::Has { chunk, meta } if sink => self.on_has(chunk, meta, turn),
            SyncBody::Hello if source => self.on_hello(turn),
            SyncBody::List { nonce, after, until, items } if source => {
                self.on_list((nonce, after, until), items, turn);
            }
            SyncBody::Put { chunk, expect, meta, bytes } if source => {
                self.on_put(chunk, Install { expect, meta, bytes, lost: false }, turn);
            }
            SyncBody::Lost { chunk, expect, meta, label } if source => {
                let (meta, bytes) = (Some(meta), Some(label));
                self.on_put(chunk, Install { expect, meta, bytes, lost: true }, turn);
            }
            SyncBody::Finish { lanes, complete_since } if source => {
                self.on_finish(&lanes, complete_since, turn);
            }
            _ => {}
        }
    }

    fn on_progress(&mut self, cursor: Option<ChunkId>, done: bool, turn: &mut Turn<'_, P>) {
        let Some(source) = &mut self.source else { return };
        match source.phase {
            Phase::Hello | Phase::Finish if done => source.phase = Phase::Done,
            Phase::Hello => {
                source.cursor = cursor;
                self.list_next(turn);
            }
            _ => {}
        }
    }

    fn list_next(&mut self, turn: &mut Turn<'_, P>) {
        let nonce = self.name();
        let Some(source) = &mut self.source else { return };
        source.nonce = nonce;
        source.phase = Phase::Listing;
        let after = source.cursor;
        let list = StoreOp::List { after, until: None, max: RESYNC_PAGE_CHUNKS };
        self.store(Job::SourceList(nonce), list, turn);
    }

    pub(crate) fn on_source_page(
        &mut self,
        nonce: u64,
        items: Vec<(ChunkId, Meta)>,
        complete: bool,
        turn: &mut Turn<'_, P>,
    ) {
        let Some(source) = &mut self.source else { return };
        if source.nonce != nonce || source.phase != Phase::Listing {
            return;
        }
        source.until = if complete { None } else { items.last().map(|(chunk, _)| *chunk) };
        source.phase = Phase::Comparing(items);
        source.sent = None;
        self.source_tick(turn);
    }

    fn on_differ(
        &mut self,
        nonce: u64,
        until: Option<ChunkId>,
        items: Vec<(ChunkId, Option<Meta>)>,
        turn: &mut Turn<'_, P>,
    ) {
        let Some(source) = &mut self.source else { return };
        if source.nonce != nonce || !matches!(source.phase, Phase::Comparing(_)) {
            return;
        }
        source.until = until;
        source.todo = items.into();
        source.lost.clear();
        source.phase = Phase::Sending;
        self.source_send(turn);
    }

    /// Starts as many transfers as bounds and budget allow, and continues when the page is done.
    pub(crate) fn source_send(&mut self, turn: &mut Turn<'_, P>) {
        // Chunks put back during this call have their turn with the next one.
        let mut turns = self.source.as_ref().map_or(0, |source| source.todo.len());
        loop {
            let budget = self.budget > 0;
            let Some(source) = &mut self.source else { return };
            if source.phase != Phase::Sending {
                return;
            }
            if source.todo.is_empty() && source.jobs.is_empty() {
                source.cursor = source.until;
                if source.until.is_some() {
                    return self.list_next(turn);
                }
                // The sink may be promoted after this: it must have all versions that the previous
                // tail may have committed.
                if self.slots.values().any(crate::slot::Slot::inherited) {
                    return;
                }
                source.phase = Phase::Finish;
                source.sent = None;
                return self.source_tick(turn);
            }
            if !budget || turns == 0 || source.jobs.len() >= RESYNC_JOBS_MAX {
                return;
            }
            turns -= 1;
            let Some((chunk, expect)) = source.todo.pop_front() else { return };
            let job = SendJob { expect, ready: false, bytes: None, lost: false, sent: None };
            source.jobs.insert(chunk, job);
            if mutated!(self, ResyncSkipsLocked)
                && self.slots.get(&chunk).is_some_and(crate::slot::Slot::locked)
            {
                self.end_job(chunk);
            } else if !self.enqueue(chunk, Waiting::Send, turn) {
                self.put_back(chunk);
                return;
            }
        }
    }

    fn end_job(&mut self, chunk: ChunkId) {
        if let Some(source) = &mut self.source {
            source.jobs.remove(&chunk);
        }
    }

    /// Postpones a chunk that is too busy, or damaged here and under repair.
    fn put_back(&mut self, chunk: ChunkId) {
        if let Some(source) = &mut self.source
            && let Some(job) = source.jobs.remove(&chunk)
        {
            source.todo.push_back((chunk, job.expect));
        }
    }

    /// Locks the free chunk and gets its bytes.
    pub(crate) fn begin_send(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        let Some(slot) = self.slots.get_mut(&chunk) else { return };
        let Some(source) = &mut self.source else { return };
        let Some(job) = source.jobs.get_mut(&chunk) else { return };
        if job.expect == slot.committed {
            self.end_job(chunk);
            return self.source_send(turn);
        }
        if slot.repair.is_some() {
            // Good bytes may be arriving here, and could not be installed under this lock.
            return self.put_back(chunk);
        }
        slot.lock = Some(Lock::Send);
        if slot.committed.is_some_and(|meta| meta.data().is_some()) {
            let read = ReadOp { chunk, version: None, offset: 0, len: u32::MAX };
            self.store(Job::SendRead(chunk), StoreOp::Read(read), turn);
        } else {
            job.ready = true;
            self.put_chunk(chunk, turn);
        }
    }

    pub(crate) fn on_send_read(
        &mut self,
        chunk: ChunkId,
        result: Result<StoreAnswer<P>, StoreError>,
        turn: &mut Turn<'_, P>,
    ) {
        let found = bytes_of(result).flatten();
        if let Some((meta, Some(_))) = &found {
            self.on_whole_read(chunk, meta);
        }
        let unasked = mutated!(self, LostUnasked);
        let Some(slot) = self.slots.get(&chunk) else { return };
        let Some(source) = &mut self.source else { return };
        let Some(job) = source.jobs.get_mut(&chunk) else { return };
        if let Some((_, Some(bytes))) = found {
            self.budget =
                self.budget.saturating_sub(i64::try_from(bytes.len()).unwrap_or(i64::MAX));
            job.ready = true;
            job.bytes = Some(bytes);
            return self.put_chunk(chunk, turn);
        }
        if unasked || source.lost.get(&chunk) == slot.committed.as_ref() {
            return self.store(Job::SendLabel(chunk), StoreOp::Label(chunk), turn);
        }
        // Damaged here. It stays on the list: others are asked for a copy first.
        self.put_back(chunk);
        self.unlock_send(chunk, turn);
        self.on_damaged(chunk, turn);
    }

    /// Notes that all others reported no good copy of a chunk that is damaged here: if it is due
    /// for transfer, it is sent as lost.
    pub(crate) fn note_lost(&mut self, chunk: ChunkId) {
        if mutated!(self, LostHoldsResync) {
            return;
        }
        let committed = self.slots.get(&chunk).and_then(|slot| slot.committed);
        let (Some(source), Some(meta)) = (&mut self.source, committed) else { return };
        if source.todo.iter().any(|(waits, _)| *waits == chunk) {
            source.lost.insert(chunk, meta);
        }
    }

    /// Discards earlier reports of lost copies, after a new search or good bytes.
    pub(crate) fn forget_lost(&mut self, chunk: ChunkId) {
        if let Some(source) = &mut self.source {
            source.lost.remove(&chunk);
        }
    }

    pub(crate) fn on_send_label(
        &mut self,
        chunk: ChunkId,
        found: Found<P>,
        turn: &mut Turn<'_, P>,
    ) {
        let Some(source) = &mut self.source else { return };
        let Some(job) = source.jobs.get_mut(&chunk) else { return };
        if let Some((_, Some(label))) = found {
            (job.ready, job.lost) = (true, true);
            job.bytes = Some(label);
            return self.put_chunk(chunk, turn);
        }
        self.put_back(chunk);
        self.unlock_send(chunk, turn);
    }

    fn unlock_send(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        // The chunk may not be locked, as the sink chooses the time of this message.
        if let Some(slot) = self.slots.get_mut(&chunk)
            && slot.lock == Some(Lock::Send)
        {
            slot.lock = None;
            self.pump(chunk, turn);
        }
    }

    fn put_chunk(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        let Some(slot) = self.slots.get(&chunk) else { return };
        let Some(source) = &mut self.source else { return };
        let Some(job) = source.jobs.get_mut(&chunk) else { return };
        job.sent = Some(turn.now);
        let (expect, bytes) = (job.expect, job.bytes.clone());
        let body = match (job.lost, slot.committed, bytes) {
            (true, Some(meta), Some(label)) => SyncBody::Lost { chunk, expect, meta, label },
            (_, meta, bytes) => SyncBody::Put { chunk, expect, meta, bytes },
        };
        self.source_say(body, turn);
    }

    /// Handles the sink's report of its state: the wanted one, or another than it reported before.
    fn on_has(&mut self, chunk: ChunkId, meta: Option<Meta>, turn: &mut Turn<'_, P>) {
        let Some(slot) = self.slots.get(&chunk) else { return };
        let committed = slot.committed;
        let Some(source) = &mut self.source else { return };
        let Some(job) = source.jobs.get_mut(&chunk).filter(|job| job.ready) else { return };
        if meta == committed {
            self.end_job(chunk);
            self.unlock_send(chunk, turn);
            return self.source_send(turn);
        }
        if job.expect != meta {
            job.expect = meta;
            self.put_chunk(chunk, turn);
        }
    }

    pub(crate) fn source_tick(&mut self, turn: &mut Turn<'_, P>) {
        let now = turn.now;
        let Some(source) = &mut self.source else { return };
        let late = |job: &SendJob<P>| job.ready && resend_due(job.sent, now);
        let again: Vec<ChunkId> =
            source.jobs.iter().filter(|(_, job)| late(job)).map(|(chunk, _)| *chunk).collect();
        if resend_due(source.sent, now) {
            source.sent = Some(now);
            let body = match &source.phase {
                Phase::Hello => Some(SyncBody::Hello),
                Phase::Comparing(items) => Some(SyncBody::List {
                    nonce: source.nonce,
                    after: source.cursor,
                    until: source.until,
                    items: items.clone(),
                }),
                Phase::Finish => Some(SyncBody::Finish {
                    lanes: self.dedup.snapshot(),
                    complete_since: self.dedup.complete_since,
                }),
                Phase::Listing | Phase::Sending | Phase::Done => None,
            };
            if let Some(body) = body {
                self.source_say(body, turn);
            }
        }
        for chunk in again {
            self.put_chunk(chunk, turn);
        }
        self.source_send(turn);
    }
}
