//! A chain of replicas over stores that answer at once, with messages that a test can hold back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millpond_chain::{
    Alarm, Content, Effect, Event, Identity, Lane, Meta, Op, Payload, Peer, PeerBody, ReadRequest,
    Replica, Reply, RequestId, StageRequest, StoreAnswer, StoreError, StoreOp, SyncBody, Tag,
    Token, UpdateRequest, Write,
};
use millpond_types::cluster::{
    Chain, ChainId, ChainTarget, ChainVersion, DiskId, LocalState, NodeId, TargetId, TargetState,
};
use millpond_types::{Ack, ChunkId, Crc32c, Tick};

pub(crate) const CHUNK: ChunkId = ChunkId(7);
const SEAL: ChunkId = ChunkId(99);

#[derive(Clone, Debug)]
pub(crate) struct Bytes(Vec<u8>);

impl Bytes {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl Payload for Bytes {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn crc(&self) -> Crc32c {
        Crc32c::of(&self.0)
    }
}

type Stored = (Meta, Option<Bytes>);

#[derive(Default)]
struct Store {
    committed: BTreeMap<ChunkId, Stored>,
    staged: BTreeMap<ChunkId, Stored>,
    /// Chunks whose committed bytes are damaged.
    damaged: BTreeSet<ChunkId>,
    /// Chunks whose staged version has no bytes.
    staged_lost: BTreeSet<ChunkId>,
    /// Chunks among `damaged` that the store knows to be lost.
    lost: BTreeSet<ChunkId>,
    /// Whether there is room for good bytes in place of damaged ones.
    room: bool,
    /// Error of all writes, if any.
    refuses: Option<StoreError>,
}

pub(crate) struct Cluster {
    replicas: BTreeMap<TargetId, Replica<Bytes>>,
    stores: BTreeMap<TargetId, Store>,
    states: BTreeMap<TargetId, LocalState>,
    chain: Chain,
    now: u64,
    events: VecDeque<(TargetId, Event<Bytes>)>,
    held: Vec<(TargetId, Event<Bytes>)>,
    hold_to: Option<TargetId>,
    hold_store: Option<TargetId>,
    slow_reads: Option<TargetId>,
    /// The target's answers of reads, which come last; and copies for it, which come a round later.
    slow: Vec<(TargetId, Event<Bytes>)>,
    late: Vec<(TargetId, Event<Bytes>)>,
    replies: BTreeMap<RequestId, Reply<Bytes>>,
    /// Attempts replaced by a retry.
    pub(crate) replaced: BTreeSet<RequestId>,
    requests: u64,
    leases: bool,
    /// Alarms that are no bugs.
    pub(crate) alarms: Vec<(u32, Alarm)>,
    /// Whether a test forges messages: alarms about those are no bugs.
    pub(crate) is_hostile: bool,
    /// Bytes per tick for resync.
    pub(crate) budget: u64,
    /// For each read in order: whether its shell might have answered it without a step.
    pub(crate) reads_at_once: Vec<bool>,
    /// Number of staged versions, over all replicas.
    pub(crate) staged: usize,
}

fn request(sequence: u64, op: Op<Bytes>) -> UpdateRequest<Bytes> {
    let crc = op.payload().map_or(Crc32c::EMPTY, Payload::crc);
    let tag = Tag { lane: Lane { client: 1, channel: 0 }, sequence };
    let version = ChainVersion(0);
    UpdateRequest {
        version,
        issued: version,
        tag,
        chunk: CHUNK,
        op,
        crc,
        durability: Ack::Disk,
        seal: None,
    }
}

pub(crate) fn replace(sequence: u64, bytes: &[u8]) -> UpdateRequest<Bytes> {
    request(sequence, Op::Replace(Bytes(bytes.to_vec())))
}

pub(crate) fn put(sequence: u64, bytes: &[u8]) -> UpdateRequest<Bytes> {
    request(sequence, Op::Put(Bytes(bytes.to_vec())))
}

/// The same request with [`SEAL`] as its seal.
pub(crate) fn unless_sealed(mut request: UpdateRequest<Bytes>) -> UpdateRequest<Bytes> {
    request.seal = Some(SEAL);
    request
}

/// The same request for another chunk.
pub(crate) fn of(chunk: u128, mut request: UpdateRequest<Bytes>) -> UpdateRequest<Bytes> {
    request.chunk = ChunkId(chunk);
    request
}

pub(crate) fn seal(client: u128) -> UpdateRequest<Bytes> {
    UpdateRequest { chunk: SEAL, ..by(client, request(1, Op::Seal(Bytes(Vec::new())))) }
}

pub(crate) fn unseal(client: u128) -> UpdateRequest<Bytes> {
    UpdateRequest { chunk: SEAL, ..by(client, remove(1)) }
}

/// A part of the chunk.
pub(crate) fn part(sequence: u64, offset: u32, bytes: &[u8]) -> UpdateRequest<Bytes> {
    request(sequence, Op::Write { offset, bytes: Bytes(bytes.to_vec()) })
}

pub(crate) fn remove(sequence: u64) -> UpdateRequest<Bytes> {
    request(sequence, Op::Remove)
}

pub(crate) fn probe() -> UpdateRequest<Bytes> {
    request(1, Op::Probe)
}

/// The operation of a server for a removal in a slot that moves here.
pub(crate) fn bury(sequence: u64) -> UpdateRequest<Bytes> {
    let mut request = request(sequence, Op::Bury);
    request.tag.lane = request.tag.lane.burial();
    request
}

pub(crate) fn import(bytes: &[u8]) -> UpdateRequest<Bytes> {
    by(9, request(1, Op::Import(Bytes(bytes.to_vec()))))
}

/// The same request by another client.
pub(crate) fn by(client: u128, mut request: UpdateRequest<Bytes>) -> UpdateRequest<Bytes> {
    request.tag.lane.client = client;
    request
}

pub(crate) const fn read() -> ReadRequest {
    ReadRequest { version: ChainVersion(0), chunk: CHUNK, offset: 0, len: u32::MAX }
}

pub(crate) const fn done(reply: &Reply<Bytes>) -> bool {
    matches!(reply, Reply::Done(_))
}

pub(crate) fn bytes(reply: &Reply<Bytes>) -> Vec<u8> {
    match reply {
        Reply::Data { bytes, .. } => bytes.0.clone(),
        other => panic!("no data: {other:?}"),
    }
}

fn identity(target: TargetId) -> Identity {
    Identity {
        chain: ChainId(1),
        target,
        saved: ChainVersion(0),
        tombstone_keep_ms: 120_000,
        evicted_keep_ms: 15_000,
    }
}

impl Cluster {
    /// A chain of `count` serving targets, brought up one after the other as a manager would.
    pub(crate) fn serving(count: u32) -> Self {
        let ids: Vec<TargetId> = (1..=count).map(TargetId).collect();
        let member = |(i, target): (usize, &TargetId)| ChainTarget {
            target: *target,
            disk: DiskId::default(),
            node: NodeId::default(),
            state: if i == 0 { TargetState::LastServing } else { TargetState::Waiting },
        };
        let targets = ids.iter().enumerate().map(member).collect();
        let mut cluster = Self {
            replicas: ids.iter().map(|id| (*id, Replica::new(identity(*id), Tick(0)))).collect(),
            stores: ids.iter().map(|id| (*id, Store::default())).collect(),
            states: BTreeMap::new(),
            chain: Chain { id: ChainId(1), version: ChainVersion(1), targets },
            now: 2_000_000,
            events: VecDeque::new(),
            held: Vec::new(),
            hold_to: None,
            hold_store: None,
            slow_reads: None,
            slow: Vec::new(),
            late: Vec::new(),
            replies: BTreeMap::new(),
            replaced: BTreeSet::new(),
            requests: 0,
            leases: true,
            alarms: Vec::new(),
            is_hostile: false,
            budget: 1 << 20,
            reads_at_once: Vec::new(),
            staged: 0,
        };
        cluster.publish();
        for (i, id) in ids.iter().enumerate() {
            if i > 0 {
                cluster.set(i, TargetState::Syncing);
                assert_eq!(cluster.states[id], LocalState::UpToDate, "{id:?} synced");
            }
            cluster.set(i, TargetState::Serving);
        }
        cluster
    }

    pub(crate) fn set(&mut self, member: usize, state: TargetState) {
        self.chain.targets[member].state = state;
        self.chain.version.0 += 1;
        self.publish();
        self.run();
    }

    /// Changes the state of a target and delivers it; the target moves behind all serving ones
    /// unless it serves.
    pub(crate) fn change(&mut self, target: u32, state: TargetState) {
        self.decide(target, state);
        self.run();
    }

    /// Changes the state of a target; the replicas hear of it next.
    pub(crate) fn decide(&mut self, target: u32, state: TargetState) {
        let targets = &mut self.chain.targets;
        let place = targets.iter().position(|member| member.target == TargetId(target)).unwrap();
        let mut member = targets.remove(place);
        member.state = state;
        let serves = |member: &ChainTarget| member.state == TargetState::Serving;
        let place = targets.iter().filter(|member| serves(member)).count();
        targets.insert(place, member);
        self.chain.version.0 += 1;
        self.publish();
    }

    fn publish(&mut self) {
        for target in self.replicas.keys() {
            self.events.push_back((*target, Event::Routing(self.chain.clone())));
        }
    }

    pub(crate) fn update(&mut self, target: u32, mut body: UpdateRequest<Bytes>) -> RequestId {
        body.version = self.chain.version;
        body.issued = self.chain.version;
        self.update_as_is(target, body)
    }

    pub(crate) fn update_as_is(&mut self, target: u32, body: UpdateRequest<Bytes>) -> RequestId {
        self.requests += 1;
        let request = RequestId(self.requests);
        self.events.push_back((TargetId(target), Event::Update(request, body)));
        request
    }

    pub(crate) fn read(&mut self, target: u32, mut body: ReadRequest) -> RequestId {
        self.requests += 1;
        body.version = self.chain.version;
        let request = RequestId(self.requests);
        self.events.push_back((TargetId(target), Event::Read(request, body)));
        request
    }

    /// Damages the committed bytes of a chunk; no replica has noticed yet.
    pub(crate) fn rot(&mut self, target: u32, chunk: u128) {
        let store = self.stores.get_mut(&TargetId(target)).unwrap();
        assert!(store.committed.contains_key(&ChunkId(chunk)), "it is there");
        store.damaged.insert(ChunkId(chunk));
    }

    /// The place that was damaged can be read again.
    pub(crate) fn unrot(&mut self, target: u32, chunk: u128) {
        self.stores.get_mut(&TargetId(target)).unwrap().damaged.remove(&ChunkId(chunk));
    }

    /// The committed version of a chunk as a target has it, and whether it has its bytes.
    pub(crate) fn held(&self, target: u32, chunk: u128) -> Option<(Meta, bool)> {
        let store = &self.stores[&TargetId(target)];
        let stored = store.committed.get(&ChunkId(chunk))?;
        Some((stored.0, !store.damaged.contains(&ChunkId(chunk))))
    }

    /// Makes a target's disk refuse all writes, or accept them again.
    pub(crate) fn refuse(&mut self, target: u32, why: Option<StoreError>) {
        self.stores.get_mut(&TargetId(target)).unwrap().refuses = why;
    }

    /// Gives a target's disk room for good bytes in place of damaged ones.
    pub(crate) fn make_room(&mut self, target: u32) {
        self.stores.get_mut(&TargetId(target)).unwrap().room = true;
    }

    /// Restarts the process of a target over its disk.
    pub(crate) fn restart(&mut self, target: u32, saved: ChainVersion) {
        let target = TargetId(target);
        let mut identity = identity(target);
        identity.saved = saved;
        self.replicas.insert(target, Replica::new(identity, Tick(self.now)));
        self.events.retain(|(to, _)| *to != target);
    }

    /// Makes the scrubber of a target find bad bytes.
    pub(crate) fn damage(&mut self, target: u32) {
        self.events.push_back((TargetId(target), Event::Damaged(CHUNK)));
    }

    /// Number of committed chunks of a target.
    pub(crate) fn chunks(&self, target: u32) -> usize {
        self.stores[&TargetId(target)].committed.len()
    }

    pub(crate) fn state(&self, target: u32) -> LocalState {
        self.states[&TargetId(target)]
    }

    pub(crate) fn replica(&self, target: u32) -> &Replica<Bytes> {
        &self.replicas[&TargetId(target)]
    }

    pub(crate) fn reply(&self, request: RequestId) -> Option<Reply<Bytes>> {
        self.replies.get(&request).cloned()
    }

    /// Runs until nothing is left to do; the answer must be there.
    pub(crate) fn settle(&mut self, request: RequestId) -> Reply<Bytes> {
        self.run();
        self.reply(request).expect("answered")
    }

    pub(crate) const fn hold_messages_to(&mut self, target: u32) {
        self.hold_to = Some(TargetId(target));
    }

    /// Delivers those of the held messages that `wanted` picks.
    pub(crate) fn deliver_held(&mut self, wanted: impl Fn(&PeerBody<Bytes>) -> bool) {
        let is_wanted = |event: &Event<Bytes>| matches!(event, Event::Peer(_, message) if wanted(&message.body));
        let (now, later) =
            std::mem::take(&mut self.held).into_iter().partition(|(_, e)| is_wanted(e));
        self.held = later;
        let now: Vec<(TargetId, Event<Bytes>)> = now;
        for (target, event) in now {
            self.step(target, event);
        }
    }

    pub(crate) fn release(&mut self) {
        self.hold_to = None;
        self.events.extend(std::mem::take(&mut self.held));
    }

    pub(crate) const fn hold_store_of(&mut self, target: u32) {
        self.hold_store = Some(TargetId(target));
    }

    /// Makes reads of a target's disk take as long as a tick, and copies sent to it longer.
    pub(crate) const fn slow_reads_of(&mut self, target: u32) {
        self.slow_reads = Some(TargetId(target));
    }

    pub(crate) fn release_store(&mut self) {
        self.hold_store = None;
        self.events.extend(std::mem::take(&mut self.held));
    }

    /// Lets time pass while no manager answers and peers do not hear each other either.
    pub(crate) const fn pass_without_leases(&mut self, ms: u64) {
        self.leases = false;
        self.now += ms * 1000;
    }

    pub(crate) fn run(&mut self) {
        let targets: BTreeSet<TargetId> = self.replicas.keys().copied().collect();
        // Long enough for a message that came too early to be sent again.
        for _ in 0..8 {
            if self.leases {
                self.now += 60_000;
            }
            for target in &targets {
                if self.leases {
                    let lease = Event::Lease { sent: Tick(self.now), version: self.chain.version };
                    self.step(*target, lease);
                    self.step(*target, Event::Budget { bytes: self.budget });
                    self.step(*target, Event::Tick);
                }
            }
            self.events.extend(std::mem::take(&mut self.late));
            self.deliver();
        }
    }

    /// Runs without time for anything to be sent again.
    pub(crate) fn deliver(&mut self) {
        while !self.events.is_empty() {
            while let Some((target, event)) = self.events.pop_front() {
                self.now += 10;
                self.step(target, event);
            }
            self.events.extend(std::mem::take(&mut self.slow));
        }
    }

    fn step(&mut self, target: TargetId, event: Event<Bytes>) {
        let mut effects = Vec::new();
        let now = Tick(self.now);
        let replica = self.replicas.get_mut(&target).unwrap();
        let at_once = match &event {
            Event::Read(_, read) => Some(replica.committed_now(now, read.chunk)),
            _ => None,
        };
        replica.step(now, event, &mut effects);
        if let Some(at_once) = at_once {
            let reads = |effect: &Effect<Bytes>| matches!(effect, Effect::Store(_, StoreOp::Read(read)) if read.version.is_none());
            assert_eq!(at_once, effects.iter().any(reads), "the shell may do what a step would");
            self.reads_at_once.push(at_once);
        }
        for effect in effects {
            self.act(target, effect);
        }
    }

    fn act(&mut self, target: TargetId, effect: Effect<Bytes>) {
        match effect {
            Effect::Reply(request, reply) => {
                self.replies.insert(request, reply);
            }
            Effect::Replaced(request) => {
                self.replaced.insert(request);
            }
            Effect::Send(to, message) => self.post(target, to, message),
            Effect::Store(token, op) => {
                self.staged += usize::from(matches!(op, StoreOp::Stage(_)));
                let slow = matches!(op, StoreOp::Read(_)) && self.slow_reads == Some(target);
                let answer = self.stores.get_mut(&target).unwrap().perform(op);
                if slow {
                    self.slow.push((target, Event::Stored(token, answer)));
                } else {
                    self.answer(target, token, answer);
                }
            }
            Effect::Commit(chunk, version) => {
                let store = self.stores.get_mut(&target).unwrap();
                let staged = store.staged.remove(&chunk).expect("staged before it is committed");
                assert_eq!(staged.0.version, version);
                store.committed.insert(chunk, staged);
                store.forget_damage(chunk);
                if store.staged_lost.remove(&chunk) {
                    store.damaged.insert(chunk);
                    store.lost.insert(chunk);
                }
            }
            Effect::Remove(chunk) => {
                let store = self.stores.get_mut(&target).unwrap();
                store.committed.remove(&chunk);
                store.forget_damage(chunk);
                store.staged.remove(&chunk);
            }
            Effect::Unstage(chunk) => {
                self.stores.get_mut(&target).unwrap().staged.remove(&chunk);
            }
            Effect::Report(report) => {
                self.states.insert(target, report.state);
            }
            Effect::NeedRouting(_) => {}
            Effect::Alarm(alarm @ (Alarm::Unrepairable(_) | Alarm::Lost(_))) => {
                self.alarms.push((target.0, alarm));
            }
            Effect::Alarm(alarm) if self.is_hostile => self.alarms.push((target.0, alarm)),
            Effect::Alarm(alarm) => panic!("{target:?} raised {alarm:?}"),
        }
    }

    /// Sends a message from a target of its own accord.
    pub(crate) fn say(&mut self, from: u32, to: u32, body: PeerBody<Bytes>) {
        let message = Peer { version: self.chain.version, body };
        self.events.push_back((TargetId(to), Event::Peer(TargetId(from), message)));
    }

    /// A source's message that a version is lost.
    pub(crate) fn lost_message(chunk: u128, expect: Option<Meta>, meta: Meta) -> PeerBody<Bytes> {
        let label = Bytes(Vec::new());
        PeerBody::Sync(SyncBody::Lost { chunk: ChunkId(chunk), expect, meta, label })
    }

    fn post(&mut self, from: TargetId, to: TargetId, message: Peer<Bytes>) {
        if !self.replicas.contains_key(&to) {
            return; // An answer to a forged message.
        }
        let copy = matches!(message.body, PeerBody::Fetched { .. });
        let event = Event::Peer(from, message);
        if copy && self.slow_reads == Some(to) {
            self.late.push((to, event));
        } else if self.hold_to == Some(to) {
            self.held.push((to, event));
        } else {
            self.events.push_back((to, event));
        }
    }

    fn answer(
        &mut self,
        target: TargetId,
        token: Token,
        answer: Result<StoreAnswer<Bytes>, StoreError>,
    ) {
        let staged = matches!(answer, Ok(StoreAnswer::Staged(_)) | Err(StoreError::NoSpace));
        let event = Event::Stored(token, answer);
        if staged && self.hold_store == Some(target) {
            self.held.push((target, event));
        } else {
            self.events.push_back((target, event));
        }
    }
}

impl Store {
    fn forget_damage(&mut self, chunk: ChunkId) {
        self.damaged.remove(&chunk);
        self.lost.remove(&chunk);
    }

    fn perform(&mut self, op: StoreOp<Bytes>) -> Result<StoreAnswer<Bytes>, StoreError> {
        Ok(match op {
            StoreOp::Lookup(chunk) => {
                let meta = self.committed.get(&chunk).map(|stored| stored.0);
                match meta.filter(|_| self.lost.contains(&chunk)) {
                    Some(lost) => StoreAnswer::Lost(lost),
                    None => StoreAnswer::Entry(meta),
                }
            }
            StoreOp::Stage(request) => self.stage(request)?,
            StoreOp::Put(request) => {
                let chunk = request.chunk;
                let known = [&self.committed, &self.staged].map(|all| all.contains_key(&chunk));
                assert_eq!(known, [false; 2], "it replaces nothing");
                let answer = self.stage(request)?;
                self.committed.extend(self.staged.remove_entry(&chunk));
                answer
            }
            StoreOp::StageLost(chunk, meta, label) => {
                assert!(label.0.is_empty(), "there are no bytes");
                self.staged.insert(chunk, (meta, Some(label)));
                self.staged_lost.insert(chunk);
                StoreAnswer::Staged(meta.content)
            }
            StoreOp::Label(chunk) => {
                let label = |stored: &Stored| (stored.0, Some(Bytes(Vec::new())));
                StoreAnswer::Bytes(self.committed.get(&chunk).map(label))
            }
            StoreOp::Read(read) => {
                let wanted = |stored: &&Stored| Some(stored.0.version) == read.version;
                let staged = self.staged.get(&read.chunk).filter(wanted);
                if staged.is_none() && self.damaged.contains(&read.chunk) {
                    return Err(StoreError::Corrupt);
                }
                StoreAnswer::Bytes(staged.or(self.committed.get(&read.chunk)).cloned())
            }
            StoreOp::List { .. } => {
                let items = self.committed.iter().map(|(chunk, stored)| (*chunk, stored.0));
                StoreAnswer::Page { items: items.collect(), complete: true }
            }
            StoreOp::ListLost(after, max) => {
                let behind = |chunk: &&ChunkId| after.is_none_or(|after| **chunk > after);
                let mut lost = self.lost.iter().filter(behind);
                let meta = |chunk: &ChunkId| (*chunk, self.committed[chunk].0);
                let items = lost.by_ref().take(max).map(meta).collect();
                StoreAnswer::Page { items, complete: lost.next().is_none() }
            }
            StoreOp::ListTombstones(..) | StoreOp::ListStaged => {
                StoreAnswer::Page { items: Vec::new(), complete: true }
            }
            StoreOp::DiscardStaged => {
                self.staged.clear();
                StoreAnswer::Done
            }
            StoreOp::Sync | StoreOp::SaveVersion(_) => StoreAnswer::Done,
            // In most of these tests the disk has no room for a restore.
            StoreOp::Restore(..) if !self.room => return Err(StoreError::NoSpace),
            StoreOp::Restore(chunk, meta, bytes) => {
                if self.committed.get(&chunk).is_some_and(|stored| stored.0 == meta) {
                    self.committed.insert(chunk, (meta, Some(bytes)));
                    self.forget_damage(chunk);
                }
                StoreAnswer::Done
            }
        })
    }

    fn stage(&mut self, request: StageRequest<Bytes>) -> Result<StoreAnswer<Bytes>, StoreError> {
        if let Some(why) = self.refuses {
            return Err(why);
        }
        let bytes = match request.write {
            Write::Whole(bytes) => Some(bytes),
            Write::Tombstone => None,
            Write::Part { .. } if self.damaged.contains(&request.chunk) => {
                return Err(StoreError::Corrupt);
            }
            Write::Part { offset, bytes } => {
                let old = self.committed.get(&request.chunk).and_then(|stored| stored.1.clone());
                let (mut all, from) = (old.map(|old| old.0).unwrap_or_default(), offset as usize);
                all.resize(all.len().max(from + bytes.0.len()), 0);
                all[from..from + bytes.0.len()].copy_from_slice(&bytes.0);
                Some(Bytes(all))
            }
            Write::Truncate { len } => {
                let old = self.committed.get(&request.chunk).and_then(|stored| stored.1.clone());
                let mut all = old.map(|old| old.0).unwrap_or_default();
                all.resize(len as usize, 0);
                Some(Bytes(all))
            }
            other @ Write::Collect => panic!("nothing is staged for it: {other:?}"),
        };
        let content = bytes.as_ref().map_or(Content::Tombstone, |bytes| Content::Data {
            len: u32::try_from(bytes.len()).unwrap(),
            crc: bytes.crc(),
        });
        let (version, written, tag) = (request.version, request.written, request.tag);
        self.staged.insert(request.chunk, (Meta { version, written, content, tag }, bytes));
        self.staged_lost.remove(&request.chunk);
        Ok(StoreAnswer::Staged(content))
    }
}
