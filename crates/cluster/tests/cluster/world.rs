//! Managers, nodes and a store that execute all requests, unless a test breaks them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use millpond_cluster::manager::{
    AdminAnswer, AdminCommand, Effect, Effects, Event, Form, Manager, ManagerOptions, ProbeOutcome,
    Role, Session, Status, StoreReply, StoreRequest,
};
use millpond_types::cluster::{
    Chain, ChainId, ChainRecord, DiskId, DiskOffer, DiskReport, Heartbeat, HeartbeatAnswer,
    Incarnation, LocalState, NodeId, Refusal, Register, RegisterAnswer, Routing, RoutingUpdate,
    RoutingVersion, SlotDone, SlotsMoved, TargetId, TargetReport, TargetState, keys,
};
use millpond_types::ids::Uuid128;
use millpond_types::units::{Tick, UnixSeconds};
use millpond_types::wire::{PROTOCOL_VERSION, Record as _};

const TICK_MS: u64 = 25;
pub(crate) const TIB: u64 = 1 << 40;

pub(crate) fn uuid(n: u32) -> Uuid128 {
    let mut bytes = [7; 16];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    Uuid128(bytes)
}

pub(crate) fn node_id(n: u32) -> NodeId {
    NodeId(uuid(n))
}

pub(crate) fn disk_id(n: u32) -> DiskId {
    DiskId(uuid(n * 100))
}

/// Behavior of the store for the next transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreMode {
    Works,
    /// Executes nothing and does not answer in time.
    Fails,
    /// Executes the transaction, and the answer is lost.
    LosesAnswers,
}

#[expect(clippy::struct_excessive_bools, reason = "ways to break a node, each by itself")]
/// A server process. It acts on the messages it received: its routing copy and its lease are its
/// own.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) disks: Vec<DiskId>,
    pub(crate) address: String,
    pub(crate) domain: String,
    pub(crate) alive: bool,
    pub(crate) cut_off: bool,
    pub(crate) stopping: bool,
    pub(crate) bad_disks: BTreeSet<DiskId>,
    /// Disks that were reported to fail, with the number of the first heartbeat that reports them
    /// healthy: a node keeps its report until a lease is granted on the new one.
    given_up: BTreeMap<DiskId, u64>,
    pub(crate) registered: bool,
    pub(crate) refused: Option<Refusal>,
    pub(crate) lease_until: Tick,
    pub(crate) routing: Routing,
    pub(crate) config: millpond_types::cluster::ConfigRecord,
    pub(crate) retired: BTreeSet<TargetId>,
    /// Syncs are not finished while this is set.
    pub(crate) slow: bool,
    /// Its reports of slots; while there are any, no slot is done.
    pub(crate) moved: Option<SlotsMoved>,
    number: u64,
    sent: BTreeMap<u64, Tick>,
    next: Tick,
    manager: usize,
}

impl Node {
    /// The chains on which this process would answer a read right now.
    fn serves(&self, now: Tick) -> Vec<(ChainId, TargetId)> {
        if !self.alive || self.stopping || now >= self.lease_until {
            return Vec::new();
        }
        let mine = |chain: &Chain| {
            let found = chain.serving().find(|member| member.node == self.id)?;
            let works = !self.retired.contains(&found.target)
                && self.disks.contains(&found.disk)
                && !self.bad_disks.contains(&found.disk)
                && !self.given_up.contains_key(&found.disk);
            works.then_some((chain.id, found.target))
        };
        self.routing.chains.values().filter_map(mine).collect()
    }

    /// Makes the next heartbeat due now.
    pub(crate) fn say_now(&mut self) {
        self.next = Tick(0);
    }

    fn reports(&self) -> Vec<TargetReport> {
        let mut reports = Vec::new();
        for chain in self.routing.chains.values() {
            for member in chain.targets.iter().filter(|member| self.disks.contains(&member.disk)) {
                let local = match member.state {
                    _ if self.retired.contains(&member.target) => LocalState::Offline,
                    TargetState::Syncing if self.slow => LocalState::Online,
                    TargetState::Serving | TargetState::Syncing => LocalState::UpToDate,
                    _ => LocalState::Online,
                };
                reports.push(TargetReport {
                    target: member.target,
                    chain: chain.id,
                    at: chain.version,
                    local,
                    used_bytes: 0,
                    behind_bytes: 0,
                });
            }
        }
        reports
    }

    pub(crate) fn heartbeat(&mut self, now: Tick) -> Heartbeat {
        self.number += 1;
        self.sent.insert(self.number, now);
        self.given_up.extend(self.bad_disks.iter().map(|disk| (*disk, u64::MAX)));
        for (disk, since) in &mut self.given_up {
            if !self.bad_disks.contains(disk) {
                *since = self.number.min(*since);
            }
        }
        let done = self.routing.moving.iter().filter(|_| self.moved.is_none());
        let slots_done = done.map(|(slot, from)| SlotDone {
            slot: *slot,
            from: *from,
            to: self.routing.slots.get(*slot),
        });
        Heartbeat {
            node: self.id,
            incarnation: self.incarnation,
            number: self.number,
            routing: self.routing.version,
            config: self.config.version,
            stopping: self.stopping,
            targets: self.reports(),
            disks: self
                .disks
                .iter()
                .map(|disk| DiskReport {
                    disk: *disk,
                    capacity_bytes: TIB,
                    used_bytes: 0,
                    healthy: !self.bad_disks.contains(disk),
                })
                .collect(),
            slots_done: slots_done.collect(),
            slots_moved: self.moved.clone().unwrap_or_default(),
            queue_depth: 0,
            quotas: Vec::new(),
        }
    }

    pub(crate) fn register(&self) -> Register {
        Register {
            node: self.id,
            incarnation: self.incarnation,
            cluster: self.routing.cluster,
            addresses: vec![self.address.clone()],
            host: format!("host-of-{}", self.address),
            domain: self.domain.clone(),
            build: "test".to_owned(),
            protocol: PROTOCOL_VERSION,
            meta: false,
            disks: self
                .disks
                .iter()
                .map(|disk| DiskOffer { id: *disk, capacity_bytes: TIB })
                .collect(),
        }
    }
}

pub(crate) struct Seat {
    pub(crate) manager: Manager,
    /// It is stopped: nothing reaches it, and its clock runs on.
    pub(crate) frozen: bool,
    /// The store does not answer it.
    pub(crate) cut_off: bool,
}

pub(crate) struct World {
    pub(crate) now: Tick,
    pub(crate) store: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) store_mode: StoreMode,
    pub(crate) seats: Vec<Seat>,
    pub(crate) nodes: BTreeMap<u32, Node>,
    pub(crate) answers: Vec<AdminAnswer>,
    pub(crate) events: Vec<String>,
    pub(crate) commits: usize,
    next_incarnation: u64,
    chains: BTreeMap<ChainId, Chain>,
    queue: VecDeque<(usize, Event)>,
}

pub(crate) fn options(seat: u32, form: Option<Form>) -> ManagerOptions {
    ManagerOptions {
        addresses: vec![format!("manager-{seat}")],
        new_cluster: uuid(4_000 + seat),
        seed: 11,
        form,
        ..ManagerOptions::new(node_id(1_000 + seat))
    }
}

impl World {
    /// A number of managers, and nodes of one disk each.
    pub(crate) fn new(managers: u32, nodes: u32, replicas: u8) -> Self {
        let form = Some(Form { replicas, domains: nodes });
        let seat =
            |n| Seat { manager: Manager::new(options(n, form)), frozen: false, cut_off: false };
        let mut world = Self {
            now: Tick(1_000_000),
            store: BTreeMap::new(),
            store_mode: StoreMode::Works,
            seats: (0..managers).map(seat).collect(),
            nodes: BTreeMap::new(),
            answers: Vec::new(),
            events: Vec::new(),
            commits: 0,
            next_incarnation: 1,
            chains: BTreeMap::new(),
            queue: VecDeque::new(),
        };
        (1..=nodes).for_each(|n| world.add_node(n));
        world
    }

    /// A cluster that has formed and come to rest.
    pub(crate) fn formed(managers: u32, nodes: u32, replicas: u8) -> Self {
        let mut world = Self::new(managers, nodes, replicas);
        world.until(30_000, |world| world.is_whole(256, usize::from(replicas)));
        world
    }

    pub(crate) fn add_node(&mut self, n: u32) {
        let node = Node {
            id: node_id(n),
            incarnation: self.incarnation(),
            disks: vec![disk_id(n)],
            address: format!("10.0.0.{n}:7400"),
            domain: String::new(),
            alive: true,
            cut_off: false,
            stopping: false,
            bad_disks: BTreeSet::new(),
            given_up: BTreeMap::new(),
            registered: false,
            refused: None,
            lease_until: Tick(0),
            routing: Routing::default(),
            config: millpond_types::cluster::ConfigRecord::default(),
            retired: BTreeSet::new(),
            slow: false,
            moved: None,
            number: 0,
            sent: BTreeMap::new(),
            next: self.now,
            manager: 0,
        };
        self.nodes.insert(n, node);
    }

    pub(crate) fn incarnation(&mut self) -> Incarnation {
        self.next_incarnation += 1;
        Incarnation(self.next_incarnation)
    }

    pub(crate) fn node(&mut self, n: u32) -> &mut Node {
        self.nodes.get_mut(&n).unwrap()
    }

    pub(crate) fn kill(&mut self, n: u32) {
        self.node(n).alive = false;
    }

    /// Starts a new process in place of one that died.
    pub(crate) fn restart(&mut self, n: u32) {
        let incarnation = self.incarnation();
        let now = self.now;
        let node = self.node(n);
        (node.alive, node.stopping, node.registered) = (true, false, false);
        (node.incarnation, node.number, node.lease_until) = (incarnation, 0, Tick(0));
        (node.routing.version, node.next) = (RoutingVersion(0), now);
        node.routing.chains.clear();
        node.sent.clear();
        node.given_up.clear();
        node.retired.clear();
    }

    /// The seat of the primary that all others would find, if there is one.
    pub(crate) fn primary(&self) -> Option<usize> {
        let leads = |seat: &Seat| !seat.frozen && seat.manager.role() == Role::Primary;
        self.seats.iter().position(leads)
    }

    pub(crate) fn primary_manager(&self) -> &Manager {
        &self.seats[self.primary().expect("a primary")].manager
    }

    pub(crate) fn admin(&mut self, command: AdminCommand) -> AdminAnswer {
        let seat = self.primary().expect("a primary");
        let answers = self.answers.len();
        self.queue.push_back((seat, Event::Admin { from: Session(9_999), command }));
        self.until(5_000, |world| world.answers.len() > answers);
        self.answers.pop().unwrap()
    }

    pub(crate) fn status(&mut self) -> Status {
        let AdminAnswer::Status(status) = self.admin(AdminCommand::Status) else {
            panic!("no status");
        };
        *status
    }

    pub(crate) fn suspect(&mut self, n: u32) {
        let seat = self.primary().expect("a primary");
        self.queue.push_back((seat, Event::Suspect { node: node_id(n) }));
    }

    /// The chains in the store.
    pub(crate) fn stored_chains(&self) -> &BTreeMap<ChainId, Chain> {
        &self.chains
    }

    pub(crate) fn is_whole(&self, chains: usize, replicas: usize) -> bool {
        let whole =
            |chain: &Chain| chain.serving().count() == replicas && chain.targets.len() == replicas;
        let slots = self.primary().is_some_and(|seat| {
            let routing = self.seats[seat].manager.routing();
            routing.is_some_and(|r| r.slots.iter().all(|(_, chain)| chain != ChainId::NONE))
        });
        self.chains.len() == chains && slots && self.chains.values().all(whole)
    }

    pub(crate) fn serving_on(&self, n: u32) -> usize {
        let serves = |chain: &&Chain| chain.serving().any(|member| member.node == node_id(n));
        self.chains.values().filter(serves).count()
    }

    /// Runs until `done`, and returns the time that it took.
    pub(crate) fn until(&mut self, ms_max: u64, done: impl Fn(&Self) -> bool) -> Duration {
        let start = self.now;
        while !done(self) {
            let waited = self.now.since(start);
            assert!(waited < Duration::from_millis(ms_max), "not done after {waited:?}");
            self.tick();
        }
        self.now.since(start)
    }

    pub(crate) fn run(&mut self, ms: u64) {
        (0..ms.div_ceil(TICK_MS)).for_each(|_| self.tick());
    }

    fn tick(&mut self) {
        self.now = self.now.plus(Duration::from_millis(TICK_MS));
        for seat in 0..self.seats.len() {
            let due = self.seats[seat].manager.next_wake() <= self.clock(seat);
            if due && !self.seats[seat].frozen {
                let unix = UnixSeconds(u32::try_from(self.now.0 / 1_000_000).unwrap());
                self.queue.push_back((seat, Event::Timer { unix }));
            }
        }
        for n in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.beat(n);
        }
        self.deliver();
        self.check_reads();
    }

    /// The monotonic clock of a seat; those of different machines share only their rate.
    fn clock(&self, seat: usize) -> Tick {
        self.now.plus(Duration::from_secs(1_000 * seat as u64))
    }

    fn beat(&mut self, n: u32) {
        let (now, managers) = (self.now, self.seats.len());
        let node = self.node(n);
        if !node.alive || node.refused.is_some() || now < node.next {
            return;
        }
        node.next = now.plus(Duration::from_millis(if node.registered { 500 } else { 200 }));
        let event = if node.registered {
            Event::Heartbeat { from: session(n), heartbeat: node.heartbeat(now) }
        } else {
            Event::Register { from: session(n), register: node.register() }
        };
        // Unanswered, the next goes to the next manager.
        let seat = node.manager % managers;
        if !node.cut_off {
            self.queue.push_back((seat, event));
        }
    }

    /// Delivers a heartbeat to a manager after a long delay.
    pub(crate) fn arrives(&mut self, seat: usize, n: u32, heartbeat: Heartbeat) {
        self.queue.push_back((seat, Event::Heartbeat { from: session(n), heartbeat }));
        self.deliver();
        self.check_reads();
    }

    pub(crate) fn deliver(&mut self) {
        while let Some((seat, event)) = self.queue.pop_front() {
            let now = self.clock(seat);
            if self.seats[seat].frozen {
                self.turned_away(&event);
                continue;
            }
            let mut effects = Effects::new();
            self.seats[seat].manager.step(now, event, &mut effects);
            for effect in effects {
                self.carry_out(seat, effect);
            }
        }
    }

    /// A frozen manager answers nothing: the caller tries the next.
    fn turned_away(&mut self, event: &Event) {
        if let Event::Heartbeat { from, .. } | Event::Register { from, .. } = event {
            self.node(u32::try_from(from.0).unwrap()).manager += 1;
        }
    }

    fn carry_out(&mut self, seat: usize, effect: Effect) {
        match effect {
            Effect::Store { id, request } => {
                let reply = self.ask_store(seat, request);
                self.queue.push_back((seat, Event::Store { id, reply }));
            }
            Effect::Registered { to, answer } => self.enrolled(seat, to, answer),
            Effect::Beat { to, answer } => self.heard(seat, to, answer),
            Effect::Push { to, update } => self.pushed(seat, to, update),
            Effect::Probe { node, incarnation, .. } => {
                let outcome = self.look_for(node);
                self.queue.push_back((seat, Event::Probed { node, incarnation, outcome }));
            }
            Effect::AdminDone { answer, .. } => self.answers.push(answer),
            Effect::Happened(event) => self.events.push(event.text),
            Effect::Became(_) => {}
        }
    }

    fn look_for(&self, id: NodeId) -> ProbeOutcome {
        let Some(node) = self.nodes.values().find(|node| node.id == id) else {
            return ProbeOutcome::Unknown;
        };
        match (node.cut_off, node.alive) {
            (true, _) => ProbeOutcome::Unknown,
            (false, true) => ProbeOutcome::Alive(node.incarnation),
            (false, false) => ProbeOutcome::Gone,
        }
    }

    fn ask_store(&mut self, seat: usize, request: StoreRequest) -> StoreReply {
        if self.seats[seat].cut_off || self.store_mode == StoreMode::Fails {
            return StoreReply::Failed;
        }
        match request {
            StoreRequest::Get { keys } => {
                StoreReply::Values(keys.iter().map(|key| self.store.get(key).cloned()).collect())
            }
            StoreRequest::Scan { prefix, after, limit } => {
                let from = if after.is_empty() { prefix.clone() } else { after.clone() };
                let mut entries: Vec<_> = self
                    .store
                    .range(from..)
                    .filter(|(key, _)| **key != after)
                    .take_while(|(key, _)| key.starts_with(&prefix))
                    .take(limit + 1)
                    .map(|(key, value)| (key.clone(), value.clone()))
                    .collect();
                let more = entries.len() > limit;
                entries.truncate(limit);
                StoreReply::Page { entries, more }
            }
            StoreRequest::Commit { checks, writes } => {
                assert!(
                    checks.len() + writes.len() <= 128,
                    "etcd takes no more in one transaction"
                );
                if checks.iter().any(|(key, value)| self.store.get(key) != value.as_ref()) {
                    return StoreReply::Conflict;
                }
                self.commit(writes);
                match self.store_mode {
                    StoreMode::LosesAnswers => StoreReply::Failed,
                    _ => StoreReply::Committed,
                }
            }
        }
    }

    fn commit(&mut self, writes: Vec<(Vec<u8>, Option<Vec<u8>>)>) {
        self.commits += 1;
        for (key, value) in writes {
            match value {
                Some(value) => {
                    if key.starts_with(keys::CHAIN) {
                        self.chain_changes(ChainRecord::open(&value).unwrap().chain);
                    }
                    self.store.insert(key, value)
                }
                None => self.store.remove(&key),
            };
        }
        self.check_reads();
    }

    fn chain_changes(&mut self, chain: Chain) {
        if let Some(before) = self.chains.get(&chain.id) {
            assert!(chain.version.0 == before.version.0 + 1 || chain == *before, "{chain:?}");
        }
        let order: Vec<u8> = chain
            .targets
            .iter()
            .map(|member| match member.state {
                TargetState::Serving => 0,
                TargetState::Syncing => 1,
                _ => 2,
            })
            .collect();
        assert!(order.is_sorted(), "{chain:?}");
        self.chains.insert(chain.id, chain);
    }

    /// The promise behind linearizable reads: every node that would answer one is a serving member
    /// of the chain in the store. A member that was dropped could miss the writes since.
    fn check_reads(&self) {
        for node in self.nodes.values() {
            for (chain, target) in node.serves(self.now) {
                let member = self.chains[&chain].serving().any(|member| member.target == target);
                assert!(
                    member,
                    "node {} still reads target {} of {:?}, which is {:?}",
                    node.id, target.0, chain, self.chains[&chain]
                );
            }
        }
    }

    fn reached(&mut self, to: Session) -> Option<&mut Node> {
        let node = self.nodes.get_mut(&u32::try_from(to.0).ok()?)?;
        (node.alive && !node.cut_off).then_some(node)
    }

    fn enrolled(&mut self, seat: usize, to: Session, answer: RegisterAnswer) {
        let Some(node) = self.reached(to) else { return };
        match answer {
            RegisterAnswer::Accepted { cluster, .. } => {
                node.registered = true;
                node.next = Tick(0);
                if node.routing.version == RoutingVersion(0) {
                    node.routing.cluster = cluster;
                }
                let have = node.routing.version;
                self.queue.push_back((seat, Event::Subscribe { from: to, cluster, have }));
            }
            RegisterAnswer::Refused(refusal) => node.refused = Some(refusal),
            RegisterAnswer::Retry { .. } => {}
            RegisterAnswer::NotPrimary(_) => node.manager += 1,
        }
    }

    fn heard(&mut self, seat: usize, to: Session, answer: HeartbeatAnswer) {
        let now = self.now;
        let Some(node) = self.reached(to) else { return };
        match answer {
            HeartbeatAnswer::Granted(grant) => {
                let asked = node.sent.remove(&grant.number).expect("an answer to a heartbeat");
                let until = asked.plus(Duration::from_millis(u64::from(grant.lease_ms)));
                node.lease_until = node.lease_until.max(until);
                if grant.lease_ms > 0 {
                    node.given_up.retain(|_, since| *since > grant.number);
                }
                let before = node.retired.len();
                node.retired.extend(grant.retire);
                if node.retired.len() > before {
                    node.next = Tick(0);
                }
                if let Some(config) = grant.config {
                    node.config = config;
                }
                // Connected to another manager than before: subscribe there.
                if grant.routing > node.routing.version {
                    let (cluster, have) = (node.routing.cluster, node.routing.version);
                    self.queue.push_back((seat, Event::Subscribe { from: to, cluster, have }));
                }
            }
            HeartbeatAnswer::Refused { why: Refusal::Unregistered, .. } => node.registered = false,
            HeartbeatAnswer::Refused { why, .. } => {
                node.refused = Some(why);
                node.lease_until = Tick(0);
            }
            HeartbeatAnswer::NotPrimary(_) => {
                node.manager += 1;
                node.next = now.plus(Duration::from_millis(50)).min(node.next);
            }
        }
    }

    fn pushed(&mut self, seat: usize, to: Session, update: RoutingUpdate) {
        let Some(node) = self.reached(to) else { return };
        let changed = node.routing.apply(update);
        let (cluster, version) = (node.routing.cluster, node.routing.version);
        if changed.is_ok() {
            // The node's report changed with it.
            node.next = Tick(0);
            self.queue.push_back((seat, Event::Received { from: to, version }));
        } else {
            self.queue.push_back((seat, Event::Subscribe { from: to, cluster, have: version }));
        }
    }
}

fn session(n: u32) -> Session {
    Session(u64::from(n))
}
