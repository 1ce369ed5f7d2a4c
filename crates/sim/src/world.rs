//! The whole cluster, its queue of things to come, and the loop.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use millpond_chain::{Alarm, Mutation, Payload};
use millpond_types::ChunkId;
use millpond_types::cluster::{ChainId, TargetId};

use crate::check::Operation;
use crate::client::Client;
use crate::clock::Clock;
use crate::manager::{Manager, Store};
use crate::message::{Address, Item, Message, Time, ms};
use crate::nemesis::{Nemesis, Plan};
use crate::network::Network;
use crate::node::{Host, Node};
use crate::rng::Rng;

/// What happened, as a number and, on demand, as text.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) hash: u64,
    pub(crate) lines: Option<Vec<(Time, String)>>,
}

impl Trace {
    pub(crate) const fn add(&mut self, value: u64) {
        // FNV-1a over whole words: any difference shows.
        self.hash = (self.hash ^ value).wrapping_mul(0x0100_0000_01b3);
        self.hash ^= self.hash >> 29;
    }

    pub(crate) fn note(&mut self, time: Time, text: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push((time, text()));
        }
    }
}

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Faults happen.
    Chaos,
    /// They have ended; chains come back.
    Healing,
    /// Every chunk is read and written once more on every replica.
    Last,
    /// The last messages arrive.
    Settling,
    Over,
}

/// Counts of a run, to see that a simulation does what it should.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Events handled.
    pub events: u64,
    /// Operations of clients that ended.
    pub operations: u64,
    /// Operations whose outcome stayed unknown.
    pub unknown: u64,
    /// Faults of all kinds.
    pub faults: u64,
    /// Chain versions made.
    pub versions: u64,
    /// Targets that were brought up to date.
    pub resyncs: u64,
    /// Histories that the checker gave up.
    pub too_hard: u64,
}

impl Stats {
    /// Adds the counts of another run.
    pub const fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.operations += other.operations;
        self.unknown += other.unknown;
        self.faults += other.faults;
        self.versions += other.versions;
        self.resyncs += other.resyncs;
        self.too_hard += other.too_hard;
    }
}

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    items: BTreeMap<u64, Item>,
    numbered: u64,
    pub(crate) trace: Trace,
    pub(crate) plan: Plan,
    pub(crate) nodes: Vec<Node>,
    pub(crate) hosts: BTreeMap<TargetId, Host>,
    pub(crate) node_of: BTreeMap<TargetId, usize>,
    pub(crate) managers: Vec<Manager>,
    pub(crate) store: Store,
    pub(crate) clients: Vec<Client>,
    pub(crate) network: Network,
    pub(crate) history: BTreeMap<(ChainId, ChunkId), Vec<Operation>>,
    pub(crate) phase: Phase,
    pub(crate) phase_until: Time,
    pub(crate) nemesis: Nemesis,
    pub(crate) mutation: Option<Mutation>,
    pub(crate) stats: Stats,
    pub(crate) failure: Option<String>,
    /// When a chain that acknowledges from memory lost the memory of its last serving target.
    pub(crate) forgot: BTreeMap<ChainId, Time>,
    /// A damaged chunk had no good copy left: nothing is promised about its chain's progress.
    pub(crate) beyond_repair: bool,
}

impl World {
    pub(crate) fn new(seed: u64, mutation: Option<Mutation>, verbose: bool) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::new(&mut rng);
        let nodes = (0..plan.nodes).map(|_| Node::new(Clock::new(&mut rng, 0))).collect();
        let managers = (0..plan.managers).map(|n| Manager::new(n, Clock::new(&mut rng, 0)));
        let managers = managers.collect();
        let clients = (0..plan.clients).map(Client::new).collect();
        let mut world = Self {
            now: 0,
            queue: BinaryHeap::new(),
            items: BTreeMap::new(),
            numbered: 0,
            trace: Trace { hash: seed, lines: verbose.then(Vec::new) },
            nodes,
            hosts: BTreeMap::new(),
            node_of: BTreeMap::new(),
            managers,
            store: Store::default(),
            clients,
            network: Network::new(plan.nodes, plan.managers, plan.clients),
            history: BTreeMap::new(),
            phase: Phase::Chaos,
            phase_until: plan.chaos,
            nemesis: Nemesis::default(),
            mutation,
            stats: Stats::default(),
            failure: None,
            forgot: BTreeMap::new(),
            beyond_repair: false,
            rng,
            plan,
        };
        world.build();
        world
    }

    fn build(&mut self) {
        for chain in 0..self.plan.chains {
            let id = ChainId(u32::try_from(chain).expect("few chains") + 1);
            let first = self.rng.index(self.plan.nodes);
            let mut targets = Vec::new();
            // One more than the chain has: a spare for changes of membership.
            for i in 0..=self.plan.replicas {
                let node = (first + i) % self.plan.nodes;
                let target = TargetId(id.0 * 10 + u32::try_from(i).expect("few replicas"));
                self.node_of.insert(target, node);
                targets.push((target, node));
                let host = Host::new(id, target, self.tick_of(node), self.mutation);
                self.hosts.insert(target, host);
            }
            self.store.create(id, &targets[..self.plan.replicas]);
        }
        for node in 0..self.plan.nodes {
            self.after(ms(1), Item::NodeTick { node, life: 0 });
            self.after(ms(2), Item::Heartbeat { node, life: 0 });
        }
        for manager in 0..self.plan.managers {
            self.after(ms(1 + manager as u64), Item::ManagerTick { manager, life: 0 });
        }
        for client in 0..self.plan.clients {
            self.after(ms(3), Item::ClientWake { client, epoch: 0 });
        }
        self.after(ms(500), Item::Nemesis);
        self.after(ms(100), Item::Phase);
    }

    pub(crate) fn tick_of(&self, node: usize) -> millpond_types::Tick {
        self.nodes[node].clock.read(self.now)
    }

    /// `item` will happen.
    pub(crate) fn after(&mut self, delay: Time, item: Item) {
        self.numbered += 1;
        self.queue.push(Reverse((self.now + delay, self.numbered)));
        self.items.insert(self.numbered, item);
    }

    pub(crate) fn send(&mut self, from: Address, to: Address, message: Message) {
        for (delay, message) in self.network.carry(from, to, message, &mut self.rng) {
            self.after(delay, Item::Deliver(from, to, message));
        }
    }

    pub(crate) fn violate(&mut self, what: impl FnOnce() -> String) {
        if self.failure.is_none() {
            let what = what();
            self.trace.note(self.now, || format!("VIOLATION {what}"));
            self.failure = Some(what);
        }
    }

    pub(crate) fn alarm(&mut self, target: TargetId, alarm: Alarm) {
        self.trace.note(self.now, || format!("{target:?} alarm {alarm:?}"));
        match alarm {
            Alarm::Diverged(_) | Alarm::Impossible(_) => {
                self.violate(|| format!("{target:?} raised {alarm:?}"));
            }
            Alarm::StoreFailed | Alarm::Unrepairable(_) => {}
        }
    }

    /// Runs until the end or the first violation.
    pub(crate) fn run(&mut self) {
        while self.failure.is_none() && self.phase != Phase::Over {
            let Some(Reverse((time, number))) = self.queue.pop() else { return };
            let item = self.items.remove(&number).expect("queued once");
            self.now = time;
            self.stats.events += 1;
            self.trace.add(time);
            self.happen(item);
        }
    }

    fn happen(&mut self, item: Item) {
        match item {
            Item::Deliver(from, to, message) => self.deliver(from, to, message),
            Item::Stored { target, life, token, begun } => self.stored(target, life, token, begun),
            Item::StoreFailed { target, life } => self.store_failed(target, life),
            Item::Scrub { target, chunk } => self.scrub(target, chunk),
            Item::NodeTick { node, life } => self.node_tick(node, life),
            Item::Heartbeat { node, life } => self.heartbeat(node, life, true),
            Item::RestartTarget { target, life } => self.restart_target(target, life),
            Item::ManagerTick { manager, life } => self.manager_tick(manager, life),
            Item::ClientWake { client, epoch } => self.client_wake(client, epoch),
            Item::Nemesis => self.strike(),
            Item::Hunt(node) => self.hunted(node),
            Item::Undo(undo) => self.undo(undo),
            Item::Probe { node, life } => self.probe(node, life),
            Item::Phase => self.on_phase(),
        }
    }

    fn deliver(&mut self, from: Address, to: Address, message: Message) {
        match to {
            Address::Node(node) => self.node_receives(node, from, message),
            Address::Manager(manager) => self.manager_receives(manager, from, message),
            Address::Client(client) => self.client_receives(client, message),
        }
    }

    fn manager_tick(&mut self, manager: usize, life: u64) {
        let m = &mut self.managers[manager];
        if m.life != life {
            return;
        }
        self.after(ms(100), Item::ManagerTick { manager, life });
        let m = &mut self.managers[manager];
        if !m.up {
            return;
        }
        let now = m.clock.read(self.now);
        m.renew(&mut self.store, now);
        self.manager_decides(manager);
    }

    fn manager_decides(&mut self, manager: usize) {
        let m = &self.managers[manager];
        let now = m.clock.read(self.now);
        let before: Vec<_> = self.store.chains.values().cloned().collect();
        let changed = m.decide(&mut self.store, now, &self.node_of);
        for chain in changed {
            self.stats.versions += 1;
            self.trace.add(u64::from(chain.version.0) << 8 | u64::from(chain.id.0));
            self.trace.note(self.now, || {
                let states: Vec<String> =
                    chain.targets.iter().map(|m| format!("{}:{:?}", m.target.0, m.state)).collect();
                format!("manager {manager}: {:?} {:?} {states:?}", chain.id, chain.version)
            });
            self.note_changes(&before, &chain);
            self.hunt(&chain);
            let nodes: Vec<usize> = self
                .hosts
                .values()
                .filter(|h| h.chain == chain.id)
                .map(|h| h.target)
                .map(|t| self.node_of[&t])
                .collect();
            for node in nodes {
                // News that is lost just now is what leaves one replica behind.
                if self.phase == Phase::Chaos && self.rng.permille(self.plan.hunt / 3) {
                    continue;
                }
                let message = Message::Routing(vec![chain.clone()]);
                self.send(Address::Manager(manager), Address::Node(node), message);
            }
            for client in 0..self.clients.len() {
                let message = Message::Routing(vec![chain.clone()]);
                self.send(Address::Manager(manager), Address::Client(client), message);
            }
        }
    }

    fn note_changes(
        &mut self,
        before: &[millpond_types::cluster::Chain],
        chain: &millpond_types::cluster::Chain,
    ) {
        use millpond_types::cluster::TargetState::{LastServing, Serving, Syncing};
        let Some(old) = before.iter().find(|old| old.id == chain.id) else { return };
        for member in chain.serving() {
            let was = old.targets.iter().find(|m| m.target == member.target).map(|m| m.state);
            if was == Some(Syncing) {
                self.stats.resyncs += 1;
            }
            if was == Some(LastServing) && self.plan.memory && chain.version.0 > 2 {
                self.forgot.entry(chain.id).or_insert(self.now);
            }
            debug_assert_eq!(member.state, Serving, "serving() gives serving ones");
        }
    }

    fn manager_receives(&mut self, manager: usize, from: Address, message: Message) {
        let m = &mut self.managers[manager];
        if !m.up {
            return;
        }
        let now = m.clock.read(self.now);
        match (message, from) {
            (Message::Heartbeat { life, number, sent, reports }, Address::Node(node)) => {
                let told = m.heartbeat(node, (life, number), reports, (&self.store, now));
                if let Some((versions, retire)) = told {
                    let answer = Message::Alive { life, sent, versions, retire };
                    self.send(Address::Manager(manager), from, answer);
                    self.manager_decides(manager);
                }
            }
            (Message::RoutingAsk, _) if !m.cut => {
                let chains = self.store.chains.values().cloned().collect();
                self.send(Address::Manager(manager), from, Message::Routing(chains));
            }
            _ => {}
        }
    }

    fn probe(&mut self, node: usize, life: u64) {
        // The host answers that nothing listens there, or the process is another one by now.
        if self.nodes[node].up && self.nodes[node].life == life {
            return;
        }
        for manager in 0..self.managers.len() {
            if self.managers[manager].up {
                self.managers[manager].gone(node, life);
                self.manager_decides(manager);
            }
        }
    }

    fn on_phase(&mut self) {
        self.after(ms(100), Item::Phase);
        match self.phase {
            Phase::Chaos if self.now >= self.phase_until => {
                self.heal();
                self.phase = Phase::Healing;
                self.phase_until = self.now + ms(40_000);
            }
            Phase::Healing if self.all_serving() => {
                self.trace.note(self.now, || "all targets serve: last round".to_owned());
                self.phase = Phase::Last;
                self.phase_until = self.now + ms(30_000);
                self.script_last_round();
            }
            Phase::Last if self.clients.iter().all(Client::finished) => {
                self.phase = Phase::Settling;
                self.phase_until = self.now + ms(1500);
            }
            // The collector of tombstones may just be looking at a chunk.
            Phase::Settling
                if self.now >= self.phase_until
                    && (self.quiet() || self.now >= self.phase_until + ms(2000)) =>
            {
                self.agree();
                self.phase = Phase::Over;
            }
            Phase::Healing | Phase::Last if self.now >= self.phase_until => {
                self.look_for_lost_chunks();
                if !self.beyond_repair {
                    let phase = self.phase;
                    self.violate(|| format!("no progress in phase {phase:?}"));
                }
                self.phase = Phase::Over;
            }
            _ => {}
        }
    }

    /// No replica of a chain has anything under way.
    fn quiet(&self) -> bool {
        let members = self.store.chains.values().flat_map(|chain| &chain.targets);
        let mut replicas = members.map(|member| &self.hosts[&member.target].replica);
        replicas.all(|replica| replica.busy_chunks() == 0)
    }

    fn all_serving(&self) -> bool {
        let serves = millpond_types::cluster::TargetState::Serving;
        let chains = self.store.chains.values();
        self.store.retiring.is_empty()
            && chains.flat_map(|chain| &chain.targets).all(|member| member.state == serves)
    }

    /// Chains agree byte by byte, and nothing is left under way.
    fn agree(&mut self) {
        let mut faults = Vec::new();
        for chain in self.store.chains.values() {
            let mut first: Option<(TargetId, &Host)> = None;
            for member in &chain.targets {
                let host = &self.hosts[&member.target];
                let staged = host.disk.chunks().values().any(|entry| entry.staged.is_some());
                if staged || host.replica.busy_chunks() > 0 {
                    faults.push(format!("{:?} has work left after quiescence", member.target));
                }
                let Some((other, reference)) = first else {
                    first = Some((member.target, host));
                    continue;
                };
                if let Some(chunk) = differ(host, reference) {
                    faults.push(format!("{:?} and {other:?} differ in {chunk:?}", member.target));
                }
            }
        }
        self.look_for_lost_chunks();
        if let Some(fault) = faults.into_iter().next()
            && !self.beyond_repair
        {
            self.violate(|| fault);
        }
    }

    /// A damaged chunk without a good copy anywhere in its chain.
    fn look_for_lost_chunks(&mut self) {
        for chain in self.store.chains.values() {
            for member in &chain.targets {
                for (chunk, entry) in self.hosts[&member.target].disk.chunks() {
                    let Some(bad) = entry.committed.as_ref().filter(|stored| stored.rotten) else {
                        continue;
                    };
                    // Only those that take part in writes can be asked for a copy.
                    let good = chain.writing().any(|other| {
                        let entry = self.hosts[&other.target].disk.chunks().get(chunk);
                        let copy = entry.and_then(|entry| entry.committed.as_ref());
                        copy.is_some_and(|copy| copy.meta == bad.meta && !copy.rotten)
                    });
                    self.beyond_repair |= !good;
                }
            }
        }
    }
}

/// The first chunk that two replicas hold differently. Damage that nobody has met yet is
/// not a difference: it would be repaired by who meets it.
fn differ(a: &Host, b: &Host) -> Option<ChunkId> {
    let chunks = a.disk.chunks().keys().chain(b.disk.chunks().keys());
    let content = |host: &Host, chunk: &ChunkId| {
        let entry = host.disk.chunks().get(chunk)?;
        let stored = entry.committed.as_ref()?;
        Some((stored.meta, stored.bytes.as_ref().map(|bytes| (bytes.clone(), bytes.crc()))))
    };
    chunks.copied().find(|chunk| content(a, chunk) != content(b, chunk))
}
