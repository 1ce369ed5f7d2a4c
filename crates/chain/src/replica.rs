//! The state of the state machine and the entry point for events.

use std::collections::{BTreeMap, BTreeSet};

use millpond_types::cluster::{
    Chain, ChainId, ChainVersion, ChunkVersion, LocalState, TargetId, TargetState,
};
use millpond_types::limits::{CHAIN_QUEUE_MAX, CHAIN_RESEND_MS};
use millpond_types::{ChunkId, Tick};

use crate::collect::Collector;
use crate::credible;
use crate::dedup::Dedup;
use crate::event::{
    Alarm, Effect, Event, LocalReport, RequestId, StoreAnswer, StoreError, StoreOp, Token, Turn,
};
use crate::lease::Leases;
use crate::mend::Mend;
use crate::message::{Meta, Payload, Peer, PeerBody, Refusal, Reply, Space, Tag};
use crate::mutation::mutated;
use crate::read::Reading;
use crate::seal::Seals;
use crate::sink::Sink;
use crate::slot::{Slot, Waiting};
use crate::source::Source;
use crate::view::View;

/// Role of a replica in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Started, and not yet sure that the chain has noticed its absence.
    Down,
    /// Running, without a part in reads or writes.
    Idle,
    /// On its way from `Idle` to the state in the view: `SaveVersion`, then the staged versions.
    Entering,
    /// Takes part in writes, behind the last serving target.
    Syncing,
    /// Takes part in writes and, once joined, answers reads.
    Serving {
        /// No other replica answers tail queries in its place any more.
        joined: bool,
    },
    /// Stopped by itself; only a restart helps.
    Failed,
}

/// Purpose of a store operation.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    Lookup(ChunkId),
    Stage(ChunkId),
    Whole(ChunkId),
    Restore(ChunkId),
    Read(RequestId, ChunkId, Option<ChunkVersion>),
    Fetch(TargetId, ChunkId, u64),
    SendRead(ChunkId),
    SendLabel(ChunkId),
    Install(ChunkId),
    Recheck(ChunkId),
    LostList,
    SourceList(u64),
    SinkList,
    SinkSync,
    CollectList,
    SaveVersion,
    Discard,
    ListStaged,
}

/// Identity of a replica, and its saved state from before the start.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// The chain.
    pub chain: ChainId,
    /// The target that this replica is.
    pub target: TargetId,
    /// The last version that `StoreOp::SaveVersion` saved on the target's disk; 0 when none.
    pub saved: ChainVersion,
    /// How long tombstones are kept, in milliseconds; `limits::DEDUP_KEEP_MS` in production. No
    /// client's message may be in flight for longer.
    pub tombstone_keep_ms: u64,
    /// How long tombstones of a node's own removals are kept, in milliseconds;
    /// `limits::EVICTED_KEEP_MS` in production. No message between replicas may be in flight for
    /// longer.
    pub evicted_keep_ms: u64,
}

/// One replica of one chain. See the crate's documentation.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub struct Replica<P: Payload> {
    pub(crate) identity: Identity,
    pub(crate) mode: Mode,
    pub(crate) view: View,
    /// The newest known version, if it is not adopted yet.
    pub(crate) next: Option<Chain>,
    /// Whether it was the tail in the previous version.
    pub(crate) was_tail: bool,
    /// Time by which grants of an earlier life of this process have ended.
    pub(crate) silent_until: Tick,
    pub(crate) restarted: bool,
    pub(crate) retired: bool,
    pub(crate) retire_wanted: bool,
    pub(crate) slots: BTreeMap<ChunkId, Slot<P>>,
    pub(crate) jobs: BTreeMap<Token, Job>,
    /// Stages and installs in flight, including those without a waiter: the staged versions are
    /// known only once they have ended.
    pub(crate) storing: BTreeSet<Token>,
    pub(crate) names: u64,
    pub(crate) pendings: usize,
    /// `Ready` messages that overtook their `Forward`.
    pub(crate) early: BTreeMap<ChunkId, (ChunkVersion, Tick)>,
    pub(crate) reads: BTreeMap<u64, Reading>,
    pub(crate) dedup: Dedup,
    pub(crate) leases: Leases,
    pub(crate) asked_peers: Option<Tick>,
    pub(crate) asked_join: Option<Tick>,
    pub(crate) source: Option<Source<P>>,
    pub(crate) sink: Sink,
    pub(crate) seals: Seals<P>,
    /// Chunks with a committed version that is damaged here and, when the others were asked,
    /// everywhere.
    pub(crate) lost: BTreeMap<ChunkId, Meta>,
    pub(crate) mend: Option<Mend>,
    /// The replicas that took part in writes at the last search for lost chunks.
    pub(crate) mend_writers: BTreeSet<(TargetId, TargetState)>,
    pub(crate) collector: Collector,
    pub(crate) budget: i64,
    pub(crate) space: Space,
    pub(crate) space_below: Space,
    pub(crate) room_told: Option<(bool, Tick)>,
    pub(crate) reported: Option<LocalReport>,
    #[cfg(feature = "mutations")]
    pub(crate) mutation: Option<crate::mutation::Mutation>,
}

impl<P: Payload> Replica<P> {
    /// A replica whose process has just started at `now`. It first waits until the chain has
    /// noticed its absence.
    #[must_use]
    pub fn new(identity: Identity, now: Tick) -> Self {
        let nowhere = Chain { id: identity.chain, ..Chain::default() };
        Self {
            identity,
            mode: Mode::Down,
            view: View::new(nowhere, identity.target),
            next: None,
            was_tail: false,
            silent_until: Leases::silence_until(now),
            restarted: true,
            retired: false,
            retire_wanted: false,
            slots: BTreeMap::new(),
            jobs: BTreeMap::new(),
            storing: BTreeSet::new(),
            names: 0,
            pendings: 0,
            early: BTreeMap::new(),
            reads: BTreeMap::new(),
            dedup: Dedup::default(),
            leases: Leases::default(),
            asked_peers: None,
            asked_join: None,
            source: None,
            sink: Sink::default(),
            seals: Seals::default(),
            lost: BTreeMap::new(),
            mend: None,
            mend_writers: BTreeSet::new(),
            collector: Collector::default(),
            budget: 0,
            space: Space::AMPLE,
            space_below: Space::AMPLE,
            room_told: None,
            reported: None,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }

    /// Gives this replica one deliberate bug.
    #[cfg(feature = "mutations")]
    pub const fn mutate(&mut self, mutation: crate::mutation::Mutation) {
        self.mutation = Some(mutation);
    }

    /// Processes one event and appends the effects, in order.
    ///
    /// `now` is this process' monotonic clock, read after the event was taken from its queue: a
    /// process that slept in between must not answer under a lease that ended in the meantime.
    pub fn step(&mut self, now: Tick, event: Event<P>, effects: &mut Vec<Effect<P>>) {
        let turn = &mut Turn { now, effects };
        match event {
            Event::Routing(chain) => self.on_routing(chain, turn),
            Event::Lease { sent, version } => {
                let sent = if mutated!(self, LeaseFromAnswer) { now } else { sent };
                self.leases.manager_answered(sent, version, &self.view);
            }
            Event::Update(request, body) => self.on_update(request, body, turn),
            Event::Read(request, body) => self.on_read(request, body, turn),
            Event::Peer(from, message) => self.on_peer(from, message, turn),
            Event::Stored(token, result) => self.on_stored(token, result, turn),
            Event::StoreFailed => self.fail(Alarm::StoreFailed, turn),
            Event::Damaged(chunk) => self.on_damaged(chunk, turn),
            Event::Space(space) => self.space = space,
            Event::Budget { bytes } => {
                // An overdraft is paid off first; unused budget expires.
                let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
                self.budget = self.budget.saturating_add(bytes).min(bytes);
                self.source_send(turn);
            }
            Event::Retire(wanted) => {
                self.retire_wanted = wanted;
                // Once OFFLINE was reported the chain may continue without this replica at any
                // time, even before the replica hears of it: it must not read again in this
                // version.
                self.retired = wanted || self.retired && self.writes();
            }
            Event::Tick => self.on_tick(turn),
        }
        self.report(turn);
    }

    fn on_tick(&mut self, turn: &mut Turn<'_, P>) {
        self.try_adopt(turn);
        if !self.writes() {
            return;
        }
        self.lease_tick(turn);
        self.join_tick(turn);
        self.resend_forwards(turn);
        self.reads_tick(turn);
        self.repair_tick(turn);
        self.mend_tick(turn);
        self.drain_tick(turn);
        self.source_tick(turn);
        self.collect_tick(turn);
        self.room_tick(turn);
    }

    /// Whether it takes part in writes in the view's version.
    pub(crate) const fn writes(&self) -> bool {
        matches!(self.mode, Mode::Syncing | Mode::Serving { .. })
    }

    pub(crate) const fn serving(&self) -> bool {
        matches!(self.mode, Mode::Serving { .. })
    }

    /// Whether it may answer reads and tail queries now.
    pub(crate) fn reads_allowed(&self, now: Tick) -> bool {
        let joined = self.mode == Mode::Serving { joined: true }
            || mutated!(self, SkipJoin) && self.serving();
        joined && !self.retired && self.leases.valid(now, &self.view)
    }

    pub(crate) fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    pub(crate) fn store(&mut self, job: Job, op: StoreOp<P>, turn: &mut Turn<'_, P>) {
        let token = Token(self.name());
        if matches!(job, Job::Stage(_) | Job::Install(_) | Job::Restore(_)) {
            self.storing.insert(token);
        }
        self.jobs.insert(token, job);
        turn.emit(Effect::Store(token, op));
    }

    pub(crate) fn send(&self, to: TargetId, body: PeerBody<P>, turn: &mut Turn<'_, P>) {
        turn.emit(Effect::Send(to, Peer { version: self.view.version(), body }));
    }

    pub(crate) fn refuse(request: RequestId, why: Refusal, turn: &mut Turn<'_, P>) {
        turn.emit(Effect::Reply(request, Reply::Refused(why)));
    }

    /// Stops for good: the next heartbeat takes this target out of the chain.
    pub(crate) fn fail(&mut self, alarm: Alarm, turn: &mut Turn<'_, P>) {
        if self.mode == Mode::Failed {
            return;
        }
        turn.emit(Effect::Alarm(alarm));
        self.reset(turn);
        self.mode = Mode::Failed;
    }

    fn report(&mut self, turn: &mut Turn<'_, P>) {
        let state = match self.mode {
            Mode::Down | Mode::Failed => LocalState::Offline,
            _ if self.retired => LocalState::Offline,
            Mode::Idle | Mode::Entering => LocalState::Online,
            Mode::Syncing if !self.sink.done => LocalState::Online,
            Mode::Syncing | Mode::Serving { .. } => LocalState::UpToDate,
        };
        let Identity { chain, target, .. } = self.identity;
        let report = LocalReport { chain, target, state, version: self.view.version() };
        if self.reported != Some(report) {
            self.reported = Some(report);
            turn.emit(Effect::Report(report));
        }
    }

    /// The last report that this replica requested.
    #[must_use]
    pub const fn local_report(&self) -> Option<LocalReport> {
        self.reported
    }

    /// The version of the chain that this replica acts on; 0 when it knows none.
    #[must_use]
    pub const fn chain_version(&self) -> ChainVersion {
        self.view.version()
    }

    /// Whether it is the serving head in that version, to which updates go.
    #[must_use]
    pub fn is_head_serving(&self) -> bool {
        self.serving() && self.view.is_head()
    }

    /// Whether it may answer reads and tail queries now: serving, joined, not leaving, under a
    /// lease.
    #[must_use]
    pub fn may_read(&self, now: Tick) -> bool {
        self.reads_allowed(now)
    }

    /// Whether it may answer reads on the manager's lease, without any peer's grant.
    #[cfg(feature = "mutations")]
    #[must_use]
    pub fn leased_by_manager(&self, now: Tick) -> bool {
        self.reads_allowed(now) && self.leases.manager_valid(now)
    }

    /// Whether a version of the chunk is between stage and commit.
    #[cfg(feature = "mutations")]
    #[must_use]
    pub fn is_pending(&self, chunk: ChunkId) -> bool {
        self.slots.get(&chunk).is_some_and(|slot| slot.pending.is_some())
    }

    /// Whether the replica stopped by itself: the shell then reopens its store and makes a new
    /// replica.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.mode == Mode::Failed
    }

    /// True when an update of this tag was done here, may have been, or is in flight: a copy of it
    /// gets its answer even if the update itself would be refused now.
    #[must_use]
    pub fn knows(&self, chunk: ChunkId, tag: Tag, issued: ChainVersion) -> bool {
        let under_way = self.slots.get(&chunk).is_some_and(|slot| slot.has(tag));
        under_way || self.dedup.knows(tag) || issued < self.dedup.complete_since
    }

    /// The busy chunks, in order.
    pub fn busy(&self) -> impl Iterator<Item = ChunkId> {
        self.slots.keys().copied()
    }

    /// Whether the chain has continued without this target for good: its data may be deleted. A
    /// target's number is never used again, and the last version with this target is older than the
    /// current one.
    #[must_use]
    pub fn left(&self) -> bool {
        let version = self.view.version();
        version > self.identity.saved && self.view.state().is_none()
    }

    /// Number of busy chunks.
    #[must_use]
    pub fn busy_chunks(&self) -> usize {
        self.slots.len()
    }

    fn on_peer(&mut self, from: TargetId, message: Peer<P>, turn: &mut Turn<'_, P>) {
        if self.fenced(from, &message, turn) {
            return;
        }
        if let Some(fault) = credible::fault(&message.body) {
            return turn.emit(Effect::Alarm(Alarm::Refused(from, fault)));
        }
        match message.body {
            PeerBody::Forward { update, ready } => self.on_forward(from, update, ready, turn),
            PeerBody::Ready { chunk, version } => self.on_ready(from, chunk, version, turn),
            PeerBody::Ack { chunk, version, meta } => {
                self.on_ack(from, chunk, (version, meta), turn);
            }
            PeerBody::Stale => {}
            PeerBody::TailQuery { nonce, chunk } => self.on_tail_query(from, nonce, chunk, turn),
            PeerBody::TailAnswer { nonce, committed } => {
                self.on_tail_answer(nonce, committed, turn);
            }
            PeerBody::LeaseAsk { sent } => self.on_lease_ask(from, sent, turn),
            PeerBody::LeaseGrant { sent } => self.leases.peer_granted(from, sent),
            PeerBody::JoinAsk => self.on_join_ask(from, turn),
            PeerBody::JoinAnswer => self.on_join_answer(from),
            PeerBody::Fetch { nonce, chunk } => self.on_fetch(from, nonce, chunk, turn),
            PeerBody::Fetched { chunk, meta, bytes } => {
                self.on_fetched(from, chunk, (meta, bytes), turn);
            }
            PeerBody::NoCopy { nonce, chunk } => self.on_no_copy(from, nonce, chunk, turn),
            PeerBody::Room(space) => {
                if Some(from) == self.view.successor() {
                    self.space_below = space;
                }
            }
            PeerBody::Sync(body) => self.on_sync(from, body, turn),
        }
    }

    /// True when the message is not for the current version of the chain. A sender that is behind
    /// gets a notice; one that is ahead sends again once this replica caught up.
    fn fenced(&self, from: TargetId, message: &Peer<P>, turn: &mut Turn<'_, P>) -> bool {
        let mine = self.view.version();
        if message.version > mine {
            turn.emit(Effect::NeedRouting(message.version));
        } else if message.version < mine && !matches!(message.body, PeerBody::Stale) {
            self.send(from, PeerBody::Stale, turn);
        }
        if !self.writes() {
            return true;
        }
        message.version != mine && !mutated!(self, IgnoreChainVersion)
    }

    fn on_stored(
        &mut self,
        token: Token,
        result: Result<StoreAnswer<P>, StoreError>,
        turn: &mut Turn<'_, P>,
    ) {
        self.storing.remove(&token);
        let job = self.jobs.remove(&token);
        if result.as_ref().is_err_and(|why| *why == StoreError::Io) {
            return self.fail(Alarm::StoreFailed, turn);
        }
        let Some(job) = job else { return self.try_adopt(turn) };
        match (job, result) {
            (Job::Lookup(chunk), Ok(StoreAnswer::Entry(meta))) => {
                self.on_entry(chunk, (meta, false), turn);
            }
            (Job::Lookup(chunk), Ok(StoreAnswer::Lost(meta))) => {
                self.on_entry(chunk, (Some(meta), true), turn);
            }
            (Job::Stage(chunk), Ok(StoreAnswer::Staged(content))) => {
                self.on_staged(chunk, content, turn);
                self.adopt_after_put(turn);
            }
            (Job::Stage(chunk), Err(why)) => {
                self.on_stage_failed(chunk, why, turn);
                self.adopt_after_put(turn);
            }
            (Job::Whole(chunk), result) => self.on_whole(chunk, bytes_of(result), turn),
            (Job::Restore(chunk), Ok(_)) => self.on_restored(chunk, turn),
            // No room for the good bytes now; the scrubber, or the next read, finds the bad ones
            // again.
            (Job::Restore(chunk), Err(_)) => self.on_not_restored(chunk, turn),
            (Job::Read(request, chunk, wanted), result) => {
                self.on_bytes(request, (chunk, wanted), result, turn);
            }
            (Job::Fetch(to, chunk, nonce), result) => {
                self.on_copy_read((to, nonce), chunk, bytes_of(result).flatten(), turn);
            }
            (Job::SendRead(chunk), result) => self.on_send_read(chunk, result, turn),
            (Job::SendLabel(chunk), result) => {
                self.on_send_label(chunk, bytes_of(result).flatten(), turn);
            }
            (Job::Install(chunk), result) => self.on_installed(chunk, result.is_ok(), turn),
            (Job::SourceList(nonce), Ok(StoreAnswer::Page { items, complete })) => {
                self.on_source_page(nonce, items, complete, turn);
            }
            (Job::SinkList, Ok(StoreAnswer::Page { items, complete })) => {
                self.on_sink_page(items, complete, turn);
            }
            (Job::LostList, Ok(StoreAnswer::Page { items, complete })) => {
                self.on_lost_page(&items, complete, turn);
            }
            (Job::Recheck(chunk), result) => {
                self.on_rechecked(chunk, bytes_of(result).as_ref(), turn);
            }
            (Job::SinkSync, Ok(_)) => self.on_sink_synced(turn),
            (Job::CollectList, Ok(StoreAnswer::Page { items, complete })) => {
                self.on_collect_page(&items, complete, turn);
            }
            (Job::SaveVersion, Ok(_)) => self.on_version_saved(turn),
            (Job::Discard, Ok(_)) => self.on_discarded(turn),
            (Job::ListStaged, Ok(StoreAnswer::Page { items, .. })) => {
                self.on_staged_list(&items, turn);
            }
            // A store that cannot list, save or look up has failed.
            _ => self.fail(Alarm::StoreFailed, turn),
        }
    }

    /// The slot of a chunk; a new one first asks the store for the committed version.
    pub(crate) fn slot(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) -> &mut Slot<P> {
        let new = !self.slots.contains_key(&chunk);
        if new {
            self.store(Job::Lookup(chunk), StoreOp::Lookup(chunk), turn);
        }
        self.slots.entry(chunk).or_insert_with(Slot::new)
    }

    fn on_entry(
        &mut self,
        chunk: ChunkId,
        (meta, lost): (Option<Meta>, bool),
        turn: &mut Turn<'_, P>,
    ) {
        let Some(slot) = self.slots.get_mut(&chunk) else { return };
        assert!(!slot.known, "a chunk is looked up once");
        slot.known = true;
        (slot.committed, slot.lost) = (meta, lost);
        let committed = slot.committed_version();
        let mut questions = Vec::new();
        slot.queue.retain(|waiting| match waiting {
            Waiting::TailQuery(from, nonce) => {
                questions.push((*from, *nonce));
                false
            }
            _ => true,
        });
        for (from, nonce) in questions {
            self.answer_tail(from, nonce, committed, turn);
        }
        self.tell_of_seal(chunk, turn);
        self.pump(chunk, turn);
    }

    /// Puts `waiting` in the chunk's queue and starts it when the lock is free. False when the
    /// queue is full: then it is dropped.
    #[must_use]
    pub(crate) fn enqueue(
        &mut self,
        chunk: ChunkId,
        waiting: Waiting<P>,
        turn: &mut Turn<'_, P>,
    ) -> bool {
        let slot = self.slot(chunk, turn);
        if slot.queue.len() >= CHAIN_QUEUE_MAX {
            return false;
        }
        slot.queue.push_back(waiting);
        self.pump(chunk, turn);
        true
    }

    /// Starts the chunk's waiting operations until one holds its lock; forgets an idle slot.
    pub(crate) fn pump(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        while let Some(slot) = self.slots.get_mut(&chunk) {
            if slot.idle() {
                self.slots.remove(&chunk);
                return;
            }
            if slot.locked() {
                return;
            }
            let Some(waiting) = slot.queue.pop_front() else { return };
            match waiting {
                Waiting::Update(request, body) => self.begin_update(request, body, turn),
                Waiting::Forward(update) => self.begin_forward(update, turn),
                Waiting::TailQuery(from, nonce) => {
                    let committed = slot.committed_version();
                    self.answer_tail(from, nonce, committed, turn);
                }
                Waiting::Send => self.begin_send(chunk, turn),
                Waiting::Install(install) => self.begin_install(chunk, install, turn),
                Waiting::Collect(version) => self.begin_collect(chunk, version, turn),
            }
        }
    }

    /// Forgets everything in flight. Staged versions stay on the disk: the last serving target will
    /// need them.
    pub(crate) fn reset(&mut self, turn: &mut Turn<'_, P>) {
        let version = self.next.as_ref().map_or(self.view.version(), |next| next.version);
        for slot in std::mem::take(&mut self.slots).into_values() {
            let pending = slot.pending.and_then(|pending| pending.waiter);
            let queued = slot.queue.into_iter().filter_map(|waiting| match waiting {
                Waiting::Update(request, _) => Some(request),
                _ => None,
            });
            for request in pending.into_iter().chain(queued) {
                Self::refuse(request, Refusal::Stale(version), turn);
            }
        }
        for request in std::mem::take(&mut self.seals).into_requests() {
            Self::refuse(request, Refusal::Stale(version), turn);
        }
        for reading in std::mem::take(&mut self.reads).into_values() {
            Self::refuse(reading.request, Refusal::NotServing, turn);
        }
        self.pendings = 0;
        self.was_tail = false;
        self.retired = self.retire_wanted;
        self.early.clear();
        // Reads of the store that were allowed when they began are still answered.
        self.jobs.retain(|_, job| matches!(job, Job::Read(..)));
        self.source = None;
        self.sink = Sink::default();
        self.lost.clear();
        self.mend = None;
        self.mend_writers.clear();
        self.collector = Collector::default();
        self.space_below = Space::AMPLE;
        self.room_told = None;
        self.asked_join = None;
        self.leases.drop_held();
    }
}

/// Whether to send again a message that was sent at `sent`.
pub(crate) fn resend_due(sent: Option<Tick>, now: Tick) -> bool {
    sent.is_none_or(|sent| now.since(sent).as_millis() >= u128::from(CHAIN_RESEND_MS))
}

/// Result of a read of the store: a version and, unless it is a tombstone, its bytes.
pub(crate) type Found<P> = Option<(Meta, Option<P>)>;

/// The answer of a read; `None` when it failed.
pub(crate) fn bytes_of<P>(result: Result<StoreAnswer<P>, StoreError>) -> Option<Found<P>> {
    match result {
        Ok(StoreAnswer::Bytes(found)) => Some(found),
        _ => None,
    }
}
