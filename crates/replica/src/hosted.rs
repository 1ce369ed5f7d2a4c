//! One replica of this node: its state machine, and the order of operations on its store.
//!
//! Everything happens under one lock that is held for microseconds: an event goes in, and its
//! effects are carried out in their order. Work that waits for the disk continues as a task and
//! returns as an event. Changes of one chunk reach the engine one after the other.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use millpond_chain::{
    Alarm, Effect, Event, Identity, LocalReport, Peer, Replica, Reply, RequestId, Space,
    StageRequest, StoreAnswer, StoreError, StoreOp, Write,
};
use millpond_env::{RealClock, sleep, spawn};
use millpond_types::cluster::{Chain, ChainId, ChainVersion, LocalState, TargetId};
use millpond_types::limits::{DEDUP_KEEP_MS, EVICTED_KEEP_MS, LEASE_SKEW_PERCENT, PEER_LEASE_MS};
use millpond_types::{ChunkId, ChunkIds, SlotId, Tick};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

use super::attrs::Owner;
use super::blob::Blob;
use super::image::Image;
use super::job::{Ended, Job, Queue, Work};
use super::links::Links;
use super::quota::Quotas;
use super::store::Store;

/// Time after which a replica that stopped by itself is opened again.
const REOPEN_AFTER: Duration = Duration::from_secs(2);
/// Interval at which an operation on the whole store checks whether the changes before it have
/// ended.
const BARRIER_RETRY: Duration = Duration::from_millis(1);

/// State that all replicas of a node share.
#[derive(Debug)]
pub(super) struct Surroundings {
    pub(super) links: Arc<Links>,
    /// Notified when a heartbeat should leave.
    pub(super) changed: Arc<Notify>,
    /// Use and limits of namespaces on this node.
    pub(super) quotas: Quotas,
    /// Messages that no correct replica sends.
    pub(super) refused: AtomicU64,
    /// Naming of chunks. Nothing serves before the manager has sent it, with the registration.
    pub(super) ids: OnceLock<ChunkIds>,
}

impl Surroundings {
    /// Naming of chunks.
    pub(super) fn ids(&self) -> ChunkIds {
        self.ids.get().copied().unwrap_or(ChunkIds::UNKEYED)
    }
}

/// Operations that a disk can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskHealth {
    /// Further updates.
    Room,
    /// Only the updates under way.
    Full,
    /// None: its log cannot be written.
    Failed,
}

/// One replica of this node.
pub(super) struct Hosted {
    pub(super) chain: ChainId,
    pub(super) target: TargetId,
    /// Index of its disk.
    pub(super) disk: usize,
    pub(super) store: Store,
    pub(super) around: Arc<Surroundings>,
    state: Mutex<State>,
}

impl std::fmt::Debug for Hosted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hosted").field("target", &self.target).finish_non_exhaustive()
    }
}

pub(super) struct State {
    pub(super) replica: Replica<Blob>,
    /// The newest known description of the chain.
    pub(super) view: Chain,
    /// Counts restarts of the state machine: answers to an earlier life are dropped.
    life: u64,
    numbered: u64,
    waiting: HashMap<RequestId, oneshot::Sender<Reply<Blob>>>,
    events: VecDeque<Event<Blob>>,
    queues: HashMap<ChunkId, Queue>,
    /// Changes that were started and have not ended, in order.
    changing: BTreeSet<u64>,
    changes: u64,
    pub(super) image: Image,
    /// Slots that have left this chain, or are leaving it: clients' updates of them are refused.
    left: BTreeSet<SlotId>,
    retiring: bool,
    stopped: Option<Tick>,
    /// Until this time the replica honours grants of an earlier life, which it does not know.
    silent_until: Option<Tick>,
}

impl State {
    /// Whether clients' updates of the slot are refused.
    pub(super) fn has_left(&self, slot: SlotId) -> bool {
        self.left.contains(&slot)
    }

    /// Whether a commit, removal or unstaging of the chunk is on its way to the engine.
    pub(super) fn flipping(&self, chunk: ChunkId) -> bool {
        self.queues.get(&chunk).is_some_and(|queue| queue.jobs.iter().any(|(_, job)| job.flips()))
    }

    /// Whether a change of the chunk has yet to be counted: it is staged, or on its way to be
    /// committed.
    pub(super) fn is_uncounted(&self, chunk: ChunkId) -> bool {
        let commits = |(_, job): &(u64, Job)| job.flips() || job.puts();
        let comes = self.queues.get(&chunk).is_some_and(|queue| queue.jobs.iter().any(commits));
        comes || self.image.staged.contains(&chunk)
    }
}

/// A replica with earlier lives that ended by `since`.
fn replica(
    (chain, target): (ChainId, TargetId),
    saved: ChainVersion,
    since: Tick,
) -> Replica<Blob> {
    let identity = Identity {
        chain,
        target,
        saved,
        tombstone_keep_ms: DEDUP_KEEP_MS,
        evicted_keep_ms: EVICTED_KEEP_MS,
    };
    Replica::new(identity, since)
}

/// How long the giver of a peer lease honours it.
pub(super) const fn grant_longest() -> Duration {
    Duration::from_millis(PEER_LEASE_MS * (100 + LEASE_SKEW_PERCENT) as u64 / 100)
}

/// Time until which a replica with earlier lives that ended by `since` must not act on its
/// promotion, if that is not over: see `Leases` of the chain.
fn silent_until(since: Tick) -> Option<Tick> {
    let until = since.plus(grant_longest());
    Some(until).filter(|until| RealClock::tick() < *until)
}

impl Hosted {
    /// A replica on a disk with the contents found there; its earlier lives ended by `since`.
    pub(super) fn new(
        store: Store,
        (disk, image): (usize, Image),
        since: Tick,
        around: Arc<Surroundings>,
    ) -> Arc<Self> {
        let (chain, target) = (store.chain, store.target);
        let state = State {
            replica: replica((chain, target), image.saved, since),
            view: Chain { id: chain, ..Chain::default() },
            life: 0,
            numbered: 0,
            waiting: HashMap::new(),
            events: VecDeque::new(),
            queues: HashMap::new(),
            changing: BTreeSet::new(),
            changes: 0,
            image,
            left: BTreeSet::new(),
            retiring: false,
            stopped: None,
            silent_until: silent_until(since),
        };
        Arc::new(Self { chain, target, disk, store, around, state: Mutex::new(state) })
    }

    /// The state, for reads; events go through [`Self::step`].
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Passes an event to the state machine and carries out its effects.
    pub(super) fn step(self: &Arc<Self>, event: Event<Blob>) {
        let mut state = self.state.lock();
        state.events.push_back(event);
        self.drive(&mut state);
    }

    /// Takes a message from another replica.
    pub(super) fn peer(self: &Arc<Self>, from: TargetId, peer: Peer<Blob>) {
        self.step(Event::Peer(from, peer));
    }

    /// Takes a newer description of the chain from the manager.
    pub(super) fn routing(self: &Arc<Self>, chain: &Chain) {
        let mut state = self.state.lock();
        if chain.version <= state.view.version {
            return;
        }
        state.view = chain.clone();
        let heads = chain.serving().next().is_some_and(|head| head.target == self.target);
        state.image.counted.set_head(&self.around.quotas, heads);
        state.events.push_back(Event::Routing(chain.clone()));
        self.drive(&mut state);
    }

    /// Refuses clients' updates of a slot from now on; returns the chunks with updates under way.
    pub(super) fn leave(&self, slot: SlotId) -> BTreeSet<ChunkId> {
        let mut state = self.state.lock();
        state.left.insert(slot);
        state.replica.busy().collect()
    }

    /// Takes updates of a slot again that came back.
    pub(super) fn take_back(&self, slot: SlotId) {
        self.state.lock().left.remove(&slot);
    }

    /// Ends the replica, which is no longer a member of its chain; returns its image.
    pub(super) fn end_of_membership(&self) -> Image {
        let mut image = std::mem::take(&mut self.state().image);
        image.counted.set_head(&self.around.quotas, false);
        image
    }

    /// Sets whether the target should leave its chain.
    pub(super) fn retire(self: &Arc<Self>, wanted: bool) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.retiring, wanted) != wanted {
            state.events.push_back(Event::Retire(wanted));
            self.drive(&mut state);
        }
    }

    /// Sends a request to the replica and waits for its answer; none if `event` returns none, or
    /// the replica stopped.
    pub(super) async fn ask(
        self: &Arc<Self>,
        event: impl FnOnce(RequestId, &State) -> Option<Event<Blob>>,
    ) -> Option<Reply<Blob>> {
        let answer = {
            let mut state = self.state.lock();
            state.numbered += 1;
            let request = RequestId(state.numbered);
            let event = event(request, &state)?;
            let (sender, receiver) = oneshot::channel();
            state.waiting.insert(request, sender);
            state.events.push_back(event);
            self.drive(&mut state);
            receiver
        };
        answer.await.ok()
    }

    /// Advances time. `budget` bytes may be sent for resync; `excess` bytes should go from the
    /// disk, as this target's share of its excess.
    pub(super) fn tick(self: &Arc<Self>, budget: u64, (disk, excess): (DiskHealth, u64)) {
        let mut state = self.state.lock();
        if state.replica.stopped() {
            if disk == DiskHealth::Failed {
                return;
            }
            let now = RealClock::tick();
            let since = *state.stopped.get_or_insert(now);
            let idle = state.queues.is_empty();
            if now.since(since) < REOPEN_AFTER || !idle {
                return;
            }
            self.reopen(&mut state);
        }
        if disk == DiskHealth::Failed {
            state.events.push_back(Event::StoreFailed);
        }
        if state.silent_until.take_if(|until| *until <= RealClock::tick()).is_some() {
            self.around.changed.notify_one();
        }
        let space = Space { room: disk == DiskHealth::Room, excess };
        state.events.extend([Event::Space(space), Event::Budget { bytes: budget }, Event::Tick]);
        self.drive(&mut state);
    }

    fn reopen(self: &Arc<Self>, state: &mut State) {
        tracing::warn!(chain = self.chain.0, target = self.target.0, "replica reopened");
        state.life += 1;
        state.stopped = None;
        let now = RealClock::tick();
        state.silent_until = silent_until(now);
        state.waiting.clear();
        state.replica = replica((self.chain, self.target), state.image.saved, now);
        if state.retiring {
            state.events.push_back(Event::Retire(true));
        }
        let view = state.view.clone();
        state.events.push_back(Event::Routing(view));
    }

    /// Whether it stopped by itself.
    pub(super) fn is_stopped(&self) -> bool {
        self.state.lock().replica.stopped()
    }

    /// Whether it answers reads at this moment, and takes part in updates.
    pub(super) fn serves(&self) -> bool {
        let state = self.state.lock();
        state.silent_until.is_none() && state.replica.may_read(RealClock::tick())
    }

    /// Whether it is bringing another target up to date.
    pub(super) fn is_source(&self) -> bool {
        self.state.lock().replica.resync_progress().is_some_and(|progress| !progress.done)
    }

    /// Content of the next heartbeat.
    pub(super) fn report(&self) -> Option<(LocalReport, u64)> {
        let state = self.state.lock();
        let mut report = state.replica.local_report()?;
        // A promoted replica must act on it at once: until it does, no write passes the new tail.
        if state.silent_until.is_some() && report.state == LocalState::UpToDate {
            report.state = LocalState::Online;
        }
        Some((report, state.image.used_bytes))
    }

    fn drive(self: &Arc<Self>, state: &mut State) {
        let mut effects = Vec::new();
        while let Some(event) = state.events.pop_front() {
            // Read after the event was taken: a process that slept in between must not answer under
            // a lease that has ended.
            let now = RealClock::tick();
            state.replica.step(now, event, &mut effects);
            for effect in effects.drain(..) {
                self.perform(state, effect);
            }
        }
    }

    fn perform(self: &Arc<Self>, state: &mut State, effect: Effect<Blob>) {
        match effect {
            Effect::Reply(request, reply) => {
                if let Some(waiter) = state.waiting.remove(&request) {
                    let _gone = waiter.send(reply);
                }
            }
            // The caller learns that there will be no answer.
            Effect::Replaced(request) => drop(state.waiting.remove(&request)),
            Effect::Send(to, peer) => {
                let node = state.view.targets.iter().find(|member| member.target == to);
                if let Some(node) = node.map(|member| member.node) {
                    self.around.links.send(node, (self.chain, self.target, to), peer);
                }
            }
            Effect::Store(token, op) => {
                let job = Job::Store(token, state.life, op);
                self.begin(state, job);
            }
            Effect::Commit(chunk, version) => self.begin(state, Job::Commit(chunk, version)),
            Effect::Remove(chunk) => self.begin(state, Job::Remove(chunk)),
            Effect::Unstage(chunk) => self.begin(state, Job::Unstage(chunk)),
            // Routing is pushed; a replica that is ahead of this node's copy waits for it.
            Effect::NeedRouting(_) => {}
            Effect::Report(_) => self.around.changed.notify_one(),
            Effect::Alarm(alarm) => self.alarm(alarm),
        }
    }

    fn alarm(&self, alarm: Alarm) {
        let (chain, target) = (self.chain.0, self.target.0);
        match alarm {
            Alarm::StoreFailed => {
                tracing::error!(chain, target, "the disk failed: the replica stopped");
            }
            Alarm::Diverged(chunk) => tracing::error!(
                chain, target, %chunk,
                "replicas hold different bytes under one version: this replica stopped"
            ),
            Alarm::Impossible(state) => tracing::error!(
                chain,
                target,
                ?state,
                "the routing gives an impossible state: replica stopped"
            ),
            Alarm::Unrepairable(chunk) => tracing::error!(
                chain, target, %chunk,
                "a damaged chunk has no good copy: write it again or delete it"
            ),
            Alarm::Lost(chunk) => tracing::error!(
                chain, target, %chunk,
                "a chunk is lost: this replica continues without its bytes, and reads of it fail"
            ),
            Alarm::Refused(from, fault) => {
                let count = self.around.refused.fetch_add(1, Ordering::Relaxed) + 1;
                tracing::warn!(
                    chain,
                    target,
                    from = from.0,
                    fault,
                    count,
                    "rejected a message that no replica sends: another program has the nodes' \
                     secret, or that node is faulty"
                );
            }
        }
    }

    fn begin(self: &Arc<Self>, state: &mut State, job: Job) {
        let Some(chunk) = job.chunk() else { return self.begin_whole(state, job) };
        if let Some(queue) = state.queues.get_mut(&chunk) {
            let behind_flip = queue.jobs.iter().any(|(_, job)| job.flips());
            if !job.reads() || behind_flip {
                if !job.reads() {
                    state.changes += 1;
                    state.changing.insert(state.changes);
                }
                queue.jobs.push_back((state.changes, job));
                return;
            }
        }
        if job.reads() {
            let work = self.work(job);
            return self.run(state, None, work);
        }
        state.changes += 1;
        let number = state.changes;
        state.changing.insert(number);
        let running = Job::Running { flips: job.flips(), puts: job.puts() };
        state.queues.entry(chunk).or_default().jobs.push_back((number, running));
        let work = self.work(job);
        self.run(state, Some((chunk, number)), work);
    }

    /// Polls once under the lock, since most work does not wait; the rest continues as a task.
    fn run(self: &Arc<Self>, state: &mut State, queue: Option<(ChunkId, u64)>, mut work: Work) {
        match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(ended) => self.end(state, queue, ended),
            Poll::Pending => {
                let this = Arc::clone(self);
                spawn(async move {
                    let ended = work.await;
                    let mut state = this.state.lock();
                    this.end(&mut state, queue, ended);
                    this.drive(&mut state);
                })
                .detach();
            }
        }
    }

    fn work(self: &Arc<Self>, job: Job) -> Work {
        let store = self.store.clone();
        match job {
            Job::Store(token, life, StoreOp::Lookup(chunk)) => {
                let answer = Ok(store.entry(chunk));
                Box::pin(std::future::ready(Ended::Answered(token, life, answer)))
            }
            Job::Store(token, life, StoreOp::Label(chunk)) => {
                Box::pin(async move { Ended::Answered(token, life, store.label(chunk).await) })
            }
            Job::Store(token, life, StoreOp::StageLost(chunk, meta, label)) => {
                Box::pin(async move {
                    let staged = store.stage_lost(chunk, meta, label).await;
                    Ended::Staged(token, life, chunk, staged)
                })
            }
            Job::Store(token, life, StoreOp::Stage(request)) => {
                let (chunk, is_named) = (request.chunk, self.is_named_by_owner(&request));
                Box::pin(async move {
                    let staged = if is_named {
                        store.stage(request).await
                    } else {
                        Err(StoreError::Corrupt)
                    };
                    Ended::Staged(token, life, chunk, staged)
                })
            }
            Job::Store(token, life, StoreOp::Put(request)) => {
                let (chunk, is_named) = (request.chunk, self.is_named_by_owner(&request));
                Box::pin(async move {
                    let put =
                        if is_named { store.put(request).await } else { Err(StoreError::Corrupt) };
                    Ended::Put(token, life, chunk, put)
                })
            }
            Job::Store(token, life, StoreOp::Restore(chunk, meta, blob)) => Box::pin(async move {
                let restored = store.restore(chunk, meta, blob).await;
                Ended::Restored(token, life, (chunk, store.is_lost(chunk)), restored)
            }),
            Job::Store(token, life, StoreOp::Read(read)) => {
                Box::pin(async move { Ended::Answered(token, life, store.read(read).await) })
            }
            Job::Store(token, life, op) => {
                let this = Arc::clone(self);
                Box::pin(async move { Ended::Answered(token, life, this.whole(op).await) })
            }
            Job::Commit(chunk, version) => {
                Box::pin(async move { Ended::Committed(chunk, store.commit(chunk, version).await) })
            }
            Job::Remove(chunk) => Box::pin(async move {
                let held = store.held(chunk);
                let ids = [store.id(chunk), store.staged(chunk)];
                Ended::Removed(chunk, held, store.forget(&ids).await)
            }),
            Job::Unstage(chunk) => Box::pin(async move {
                Ended::Unstaged(chunk, store.forget(&[store.staged(chunk)]).await)
            }),
            Job::Running { .. } => unreachable!("this job was already started"),
        }
    }

    /// Whether the bytes to stage have the chunk id of their owner in this cluster: no peer can put
    /// a block in the place of a file's chunk, or either in the place of another one.
    fn is_named_by_owner(&self, request: &StageRequest<Blob>) -> bool {
        let (Write::Whole(blob) | Write::Part { bytes: blob, .. }) = &request.write else {
            return true;
        };
        let Some(ids) = self.around.ids.get() else { return true };
        let is = Owner::decode(&blob.block).is_ok_and(|owner| owner.id(*ids) == request.chunk);
        if !is {
            tracing::error!(
                chain = self.chain.0,
                target = self.target.0,
                chunk = %request.chunk,
                "rejected bytes with an owner that has another chunk id"
            );
        }
        is
    }

    fn end(self: &Arc<Self>, state: &mut State, queue: Option<(ChunkId, u64)>, ended: Ended) {
        self.note(state, ended);
        let Some((chunk, number)) = queue else { return };
        state.changing.remove(&number);
        let Some(waiting) = state.queues.get_mut(&chunk) else { return };
        waiting.jobs.pop_front();
        while let Some(waiting) = state.queues.get_mut(&chunk) {
            let Some((number, job)) = waiting.jobs.pop_front() else {
                state.queues.remove(&chunk);
                return;
            };
            let work = self.work_of(waiting, number, job, chunk);
            match work {
                (None, work) => self.run(state, None, work),
                (Some(place), work) => return self.run(state, Some(place), work),
            }
        }
    }

    /// Prepares the next job of a queue; a change keeps its place at the front while it runs.
    fn work_of(
        self: &Arc<Self>,
        queue: &mut Queue,
        number: u64,
        job: Job,
        chunk: ChunkId,
    ) -> (Option<(ChunkId, u64)>, Work) {
        if job.reads() {
            return (None, self.work(job));
        }
        let running = Job::Running { flips: job.flips(), puts: job.puts() };
        queue.jobs.push_front((number, running));
        (Some((chunk, number)), self.work(job))
    }

    /// Updates the image and passes the outcome to the state machine.
    fn note(&self, state: &mut State, ended: Ended) {
        let quotas = &self.around.quotas;
        let image = &mut state.image;
        match ended {
            Ended::Put(token, life, chunk, put) => {
                let answer = put.map(|(answer, flipped)| {
                    image.flipped(quotas, chunk, flipped);
                    answer
                });
                if life == state.life {
                    state.events.push_back(Event::Stored(token, answer));
                }
            }
            Ended::Answered(token, life, answer) => {
                if life == state.life {
                    state.events.push_back(Event::Stored(token, answer));
                }
            }
            Ended::Staged(token, life, chunk, answer) => {
                if answer.is_ok() {
                    image.staged.insert(chunk);
                }
                if life == state.life {
                    state.events.push_back(Event::Stored(token, answer));
                }
            }
            Ended::Restored(token, life, (chunk, lost), answer) => {
                if !lost {
                    image.lost.remove(&chunk);
                }
                if life == state.life {
                    state.events.push_back(Event::Stored(token, answer));
                }
            }
            Ended::Committed(chunk, Ok(Some(flipped))) => {
                image.staged.remove(&chunk);
                image.flipped(quotas, chunk, flipped);
            }
            Ended::Removed(chunk, held, Ok(())) => {
                image.used_bytes = image.used_bytes.saturating_sub(u64::from(held.len));
                image.counted.changed(quotas, held.group, held.len, 0);
                image.staged.remove(&chunk);
                image.committed.remove(&chunk);
                image.tombstones.remove(&chunk);
                image.lost.remove(&chunk);
            }
            Ended::Unstaged(chunk, Ok(())) => {
                image.staged.remove(&chunk);
            }
            Ended::Committed(_, Ok(None)) => {}
            Ended::Committed(_, Err(_))
            | Ended::Removed(_, _, Err(_))
            | Ended::Unstaged(_, Err(_)) => {
                state.events.push_back(Event::StoreFailed);
            }
        }
    }

    fn begin_whole(self: &Arc<Self>, state: &mut State, job: Job) {
        let Job::Store(token, life, op) = job else { return };
        if state.changing.is_empty()
            && let Some(page) = self.listed(&state.image, &op)
        {
            state.events.push_back(Event::Stored(token, Ok(page)));
            return;
        }
        let work = self.work(Job::Store(token, life, op));
        self.run_later(work);
    }

    /// Runs work that takes the lock itself and so must not be polled under it.
    fn run_later(self: &Arc<Self>, work: Work) {
        let this = Arc::clone(self);
        spawn(async move {
            let ended = work.await;
            let mut state = this.state.lock();
            this.end(&mut state, None, ended);
            this.drive(&mut state);
        })
        .detach();
    }

    /// The answer to an operation that lists chunks of the image.
    fn listed(&self, image: &Image, op: &StoreOp<Blob>) -> Option<StoreAnswer<Blob>> {
        match *op {
            StoreOp::List { after, until, max } => {
                Some(self.page(&image.committed, after, until, max))
            }
            StoreOp::ListLost(after, max) => Some(self.page(&image.lost, after, None, max)),
            StoreOp::ListTombstones(after, max) => {
                Some(self.page(&image.tombstones, after, None, max))
            }
            _ => None,
        }
    }

    fn page(
        &self,
        ids: &BTreeSet<ChunkId>,
        after: Option<ChunkId>,
        until: Option<ChunkId>,
        max: usize,
    ) -> StoreAnswer<Blob> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let bounds = (after.map_or(Unbounded, Excluded), until.map_or(Unbounded, Included));
        if after.zip(until).is_some_and(|(after, until)| after >= until) {
            return StoreAnswer::Page { items: Vec::new(), complete: true };
        }
        let mut found = ids.range(bounds);
        let mut items = Vec::with_capacity(max);
        for chunk in found.by_ref() {
            if let Some(meta) = self.store.meta(*chunk) {
                items.push((*chunk, meta));
            }
            if items.len() >= max {
                break;
            }
        }
        StoreAnswer::Page { items, complete: found.next().is_none() }
    }

    /// Waits for the changes started so far: committed versions are visible from then on.
    pub(super) async fn settled(&self) {
        let until = self.state.lock().changes;
        while self.state.lock().changing.first().is_some_and(|first| *first <= until) {
            sleep(BARRIER_RETRY).await;
        }
    }

    /// Runs an operation on all chunks, after the changes that were started before it.
    async fn whole(self: &Arc<Self>, op: StoreOp<Blob>) -> Result<StoreAnswer<Blob>, StoreError> {
        self.settled().await;
        if let Some(page) = self.listed(&self.state.lock().image, &op) {
            return Ok(page);
        }
        match op {
            StoreOp::ListStaged => {
                let staged: Vec<ChunkId> = self.state.lock().image.staged.iter().copied().collect();
                let meta = |chunk: ChunkId| Some((chunk, self.store.staged_meta(chunk)?));
                let items = staged.into_iter().filter_map(meta).collect();
                Ok(StoreAnswer::Page { items, complete: true })
            }
            StoreOp::DiscardStaged => {
                let staged: Vec<ChunkId> = self.state.lock().image.staged.iter().copied().collect();
                let ids: Vec<ChunkId> =
                    staged.iter().map(|chunk| self.store.staged(*chunk)).collect();
                let done = self.store.discard(&ids).await?;
                let image = &mut self.state.lock().image;
                for chunk in staged {
                    image.staged.remove(&chunk);
                }
                Ok(done)
            }
            StoreOp::Sync => self.store.sync().await,
            StoreOp::SaveVersion(version) => {
                let done = self.store.save(version).await?;
                self.state.lock().image.saved = version;
                Ok(done)
            }
            // Operations on one chunk.
            _ => Err(StoreError::Io),
        }
    }
}

#[cfg(test)]
impl Hosted {
    /// Blocks operations on the whole store as a change does; [`Self::end_change`] ends it.
    pub(super) fn begin_change(&self) -> u64 {
        let mut state = self.state.lock();
        state.changes += 1;
        let number = state.changes;
        state.changing.insert(number);
        number
    }

    /// Whether grants of an earlier life are waited for.
    pub(super) fn is_silent(&self) -> bool {
        self.state.lock().silent_until.is_some()
    }

    pub(super) fn end_change(&self, number: u64) {
        self.state.lock().changing.remove(&number);
    }
}
