//! A chain of replicas over stores that answer at once, with messages that a test can hold back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millpond_chain::{
    Content, Effect, Event, Identity, Lane, Meta, Op, Payload, Peer, PeerBody, ReadRequest,
    Replica, Reply, RequestId, StoreAnswer, StoreError, StoreOp, Tag, Token, UpdateRequest, Write,
};
use millpond_types::cluster::{
    Chain, ChainId, ChainTarget, ChainVersion, DiskId, LocalState, NodeId, TargetId, TargetState,
};
use millpond_types::{Ack, ChunkId, Crc32c, Tick};

const CHUNK: ChunkId = ChunkId(7);
const SEAL: ChunkId = ChunkId(99);

#[derive(Clone, Debug)]
pub(crate) struct Bytes(Vec<u8>);

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
    replies: BTreeMap<RequestId, Reply<Bytes>>,
    /// Attempts that a retry took the place of.
    pub(crate) replaced: BTreeSet<RequestId>,
    requests: u64,
    leases: bool,
    /// Bytes per tick for resync.
    pub(crate) budget: u64,
    /// For each read in order: its shell might have answered it without a step.
    pub(crate) reads_at_once: Vec<bool>,
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

/// The same, unless the seal is there.
pub(crate) fn unless_sealed(mut request: UpdateRequest<Bytes>) -> UpdateRequest<Bytes> {
    request.seal = Some(SEAL);
    request
}

/// The same of another chunk.
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

pub(crate) fn remove(sequence: u64) -> UpdateRequest<Bytes> {
    request(sequence, Op::Remove)
}

pub(crate) fn probe() -> UpdateRequest<Bytes> {
    request(1, Op::Probe)
}

/// What a server makes of a removal in a slot that moves here.
pub(crate) fn bury(sequence: u64) -> UpdateRequest<Bytes> {
    let mut request = request(sequence, Op::Bury);
    request.tag.lane = request.tag.lane.burial();
    request
}

pub(crate) fn import(bytes: &[u8]) -> UpdateRequest<Bytes> {
    by(9, request(1, Op::Import(Bytes(bytes.to_vec()))))
}

/// The same by another client.
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

impl Cluster {
    /// A chain of so many serving targets, brought up one after the other as a manager would.
    pub(crate) fn serving(count: u32) -> Self {
        let ids: Vec<TargetId> = (1..=count).map(TargetId).collect();
        let identity = |target| Identity {
            chain: ChainId(1),
            target,
            saved: ChainVersion(0),
            tombstone_keep_ms: 120_000,
            evicted_keep_ms: 15_000,
        };
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
            replies: BTreeMap::new(),
            replaced: BTreeSet::new(),
            requests: 0,
            leases: true,
            budget: 1 << 20,
            reads_at_once: Vec::new(),
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
    }

    fn publish(&mut self) {
        for target in self.replicas.keys() {
            self.events.push_back((*target, Event::Routing(self.chain.clone())));
        }
        self.run();
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

    /// Chunks that a target has, committed.
    /// The scrubber of a target meets bad bytes.
    pub(crate) fn damage(&mut self, target: u32) {
        self.events.push_back((TargetId(target), Event::Damaged(CHUNK)));
    }

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

    /// Lets those of the held messages through that `wanted` picks.
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

    pub(crate) fn release_store(&mut self) {
        self.hold_store = None;
        self.events.extend(std::mem::take(&mut self.held));
    }

    /// Time passes and no manager answers; peers do not hear each other either.
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
            while let Some((target, event)) = self.events.pop_front() {
                self.now += 10;
                self.step(target, event);
            }
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
            Effect::Store(token, StoreOp::Restore(..)) => {
                // Disks are full when somebody wants to restore in these tests.
                let event = Event::Stored(token, Err(StoreError::NoSpace));
                self.events.push_back((target, event));
            }
            Effect::Store(token, op) => {
                let answer = self.stores.get_mut(&target).unwrap().perform(op);
                self.answer(target, token, answer);
            }
            Effect::Commit(chunk, version) => {
                let store = self.stores.get_mut(&target).unwrap();
                let staged = store.staged.remove(&chunk).expect("staged before it is committed");
                assert_eq!(staged.0.version, version);
                store.committed.insert(chunk, staged);
            }
            Effect::Remove(chunk) => {
                let store = self.stores.get_mut(&target).unwrap();
                store.committed.remove(&chunk);
                store.staged.remove(&chunk);
            }
            Effect::Unstage(chunk) => {
                self.stores.get_mut(&target).unwrap().staged.remove(&chunk);
            }
            Effect::Report(report) => {
                self.states.insert(target, report.state);
            }
            Effect::NeedRouting(_) => {}
            Effect::Alarm(alarm) => panic!("{target:?} raised {alarm:?}"),
        }
    }

    fn post(&mut self, from: TargetId, to: TargetId, message: Peer<Bytes>) {
        let event = Event::Peer(from, message);
        if self.hold_to == Some(to) {
            self.held.push((to, event));
        } else {
            self.events.push_back((to, event));
        }
    }

    fn answer(&mut self, target: TargetId, token: Token, answer: StoreAnswer<Bytes>) {
        let staged = matches!(answer, StoreAnswer::Staged(_));
        let event = Event::Stored(token, Ok(answer));
        if staged && self.hold_store == Some(target) {
            self.held.push((target, event));
        } else {
            self.events.push_back((target, event));
        }
    }
}

impl Store {
    fn perform(&mut self, op: StoreOp<Bytes>) -> StoreAnswer<Bytes> {
        match op {
            StoreOp::Lookup(chunk) => {
                StoreAnswer::Entry(self.committed.get(&chunk).map(|stored| stored.0))
            }
            StoreOp::Stage(request) => {
                let bytes = match request.write {
                    Write::Whole(bytes) => Some(bytes),
                    Write::Tombstone => None,
                    other => panic!("these tests write whole chunks: {other:?}"),
                };
                let content = bytes.as_ref().map_or(Content::Tombstone, |bytes| Content::Data {
                    len: u32::try_from(bytes.len()).unwrap(),
                    crc: bytes.crc(),
                });
                let (version, written, tag) = (request.version, request.written, request.tag);
                self.staged.insert(request.chunk, (Meta { version, written, content, tag }, bytes));
                StoreAnswer::Staged(content)
            }
            StoreOp::Read(read) => {
                let wanted = |stored: &&Stored| Some(stored.0.version) == read.version;
                let staged = self.staged.get(&read.chunk).filter(wanted);
                StoreAnswer::Bytes(staged.or(self.committed.get(&read.chunk)).cloned())
            }
            StoreOp::List { .. } => {
                let items = self.committed.iter().map(|(chunk, stored)| (*chunk, stored.0));
                StoreAnswer::Page { items: items.collect(), complete: true }
            }
            StoreOp::ListTombstones(..) | StoreOp::ListStaged => {
                StoreAnswer::Page { items: Vec::new(), complete: true }
            }
            StoreOp::DiscardStaged | StoreOp::Sync | StoreOp::SaveVersion(_) => StoreAnswer::Done,
            StoreOp::Restore(..) => unreachable!("disks are full"),
        }
    }
}
