//! The whole cluster, its queue of future events, and the loop.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use millpond_chain::{Alarm, Payload};
use millpond_cluster::manager::AdminCommand;
use millpond_types::ChunkId;
use millpond_types::cluster::{ChainId, TargetId};

use crate::check::Operation;
use crate::client::Client;
use crate::clock::Clock;
use crate::disk::Stored;
use crate::files::{self, Files};
use crate::lost;
use crate::manager::Seat;
use crate::member::{Member, NodeDisk};
use crate::message::{Address, Item, Message, Time, ms};
use crate::nemesis::{Nemesis, Plan};
use crate::network::Network;
use crate::node::{Host, Node};
use crate::operator::Operator;
use crate::rng::Rng;
use crate::run::Mutation;
use crate::store::Store;

/// The trace of a run, as a hash and, on demand, as text.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) hash: u64,
    pub(crate) lines: Option<Vec<(Time, String)>>,
}

impl Trace {
    pub(crate) const fn add(&mut self, value: u64) {
        // FNV-1a over whole words, so that any difference shows.
        self.hash = (self.hash ^ value).wrapping_mul(0x0100_0000_01b3);
        self.hash ^= self.hash >> 29;
    }

    pub(crate) fn note(&mut self, time: Time, text: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push((time, text()));
        }
    }
}

/// Phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Faults happen.
    Chaos,
    /// The faults have ended; chains come back.
    Healing,
    /// All is whole, and no move may begin any more.
    Calming,
    /// Every chunk is read and written once more on every replica.
    Last,
    /// The last messages arrive.
    Settling,
    Over,
}

/// Counts of a run, to verify that a simulation exercises the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Events handled.
    pub events: u64,
    /// Operations of clients that ended.
    pub operations: u64,
    /// Operations with an unknown outcome.
    pub unknown: u64,
    /// Faults of all kinds.
    pub faults: u64,
    /// Chain versions made.
    pub versions: u64,
    /// Targets that were brought up to date.
    pub resyncs: u64,
    /// Chunks that targets had to be synced without.
    pub lost: u64,
    /// Replicas that moved from one disk to another.
    pub moves: u64,
    /// Managers that became primary.
    pub take_overs: u64,
    /// Operations that ended on chains of a table other than the default one.
    pub elsewhere: u64,
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
        self.lost += other.lost;
        self.moves += other.moves;
        self.take_overs += other.take_overs;
        self.elsewhere += other.elsewhere;
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
    pub(crate) managers: Vec<Seat>,
    pub(crate) store: Store,
    pub(crate) operator: Operator,
    pub(crate) clients: Vec<Client>,
    pub(crate) network: Network,
    pub(crate) history: BTreeMap<(ChainId, ChunkId), Vec<Operation>>,
    pub(crate) phase: Phase,
    pub(crate) phase_until: Time,
    pub(crate) nemesis: Nemesis,
    pub(crate) mutation: Option<Mutation>,
    pub(crate) stats: Stats,
    pub(crate) failure: Option<String>,
    /// Time when a chain that acknowledges from memory lost the memory of its last serving target.
    pub(crate) forgot: BTreeMap<ChainId, Time>,
    /// Whether operators have given their orders after the faults.
    pub(crate) orders_given: bool,
    /// The seed that the run follows from.
    pub(crate) seed: u64,
    /// Whether clients also work on cloned files.
    pub(crate) has_files: bool,
    pub(crate) files: Files,
}

impl World {
    pub(crate) fn new(seed: u64, mutation: Option<Mutation>, verbose: bool) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::new(&mut rng);
        let nodes = (0..plan.nodes).map(|n| node(n, &plan, &mut rng)).collect();
        let manager = match mutation {
            Some(Mutation::Manager(mutation)) => Some(mutation),
            _ => None,
        };
        let shape = (plan.replicas, plan.founders, plan.chains);
        let managers = (0..plan.managers)
            .map(|n| Seat::new(n, Clock::new(&mut rng, 0), shape, manager))
            .collect();
        let clients = (0..plan.clients).map(Client::new).collect();
        let mut plan = plan;
        if lost::wanted(seed) {
            plan.lose_chunks();
        }
        let mut world = Self {
            now: 0,
            queue: BinaryHeap::new(),
            items: BTreeMap::new(),
            numbered: 0,
            trace: Trace { hash: seed, lines: verbose.then(Vec::new) },
            nodes,
            hosts: BTreeMap::new(),
            managers,
            store: Store::new(plan.chains),
            operator: Operator::default(),
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
            orders_given: false,
            has_files: files::wanted(seed),
            seed,
            files: Files::default(),
            rng,
            plan,
        };
        world.build();
        world
    }

    fn build(&mut self) {
        for node in 0..self.plan.founders {
            self.start(node);
        }
        for manager in 0..self.plan.managers {
            self.after(ms(1 + manager as u64), Item::ManagerWake { manager, life: 0, turn: 0 });
        }
        self.first_orders();
        self.order_table();
        self.after(ms(20), Item::Operator);
        for client in 0..self.plan.clients {
            self.after(ms(3), Item::ClientWake { client, epoch: 0 });
        }
        // Mostly once the cluster has formed.
        let first = if self.rng.permille(200) { ms(500) } else { ms(2500) };
        self.after(first, Item::Nemesis);
        self.after(ms(100), Item::Phase);
    }

    pub(crate) fn tick_of(&self, node: usize) -> millpond_types::Tick {
        self.nodes[node].clock.read(self.now)
    }

    /// Schedules `item`.
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
            Alarm::Diverged(_) | Alarm::Impossible(_) | Alarm::Refused(..) => {
                self.violate(|| format!("{target:?} raised {alarm:?}"));
            }
            Alarm::StoreFailed | Alarm::Unrepairable(_) | Alarm::Lost(_) => {}
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
            Item::RestartTarget { target, life } => self.restart_target(target, life),
            Item::Beat { node, life, turn } => self.beat(node, life, turn),
            Item::PollAgain { node, life, call } => self.poll_again(node, life, call),
            Item::Leave { node, life } => self.leave(node, life),
            Item::ManagerWake { manager, life, turn } => self.manager_wake(manager, life, turn),
            Item::Transact { manager, life, id, request, heard } => {
                self.transact((manager, life, id), request, heard);
            }
            Item::Transacted { manager, life, id, reply } => {
                self.transacted((manager, life, id), reply);
            }
            Item::ProbeOver { manager, life, call } => self.probe_over(manager, life, call),
            Item::ManagerLeft { manager, life } => self.manager_left(manager, life),
            Item::Operator => self.operator_works(),
            Item::ClientWake { client, epoch } => self.client_wake(client, epoch),
            Item::Nemesis => self.strike(),
            Item::Hunt(node) => self.hunted(node),
            Item::Undo(undo) => self.undo(undo),
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

    fn on_phase(&mut self) {
        self.after(ms(100), Item::Phase);
        match self.phase {
            Phase::Chaos if self.now >= self.phase_until => {
                self.heal();
                self.phase = Phase::Healing;
                self.phase_until = self.now + ms(40_000);
            }
            Phase::Healing if self.is_whole() => {
                self.trace.note(self.now, || "all is whole: no more moves".to_owned());
                self.phase = Phase::Calming;
                let (name, value) = ("rebalance.paused".to_owned(), "true".to_owned());
                self.order_surely(AdminCommand::Set { name, value });
            }
            Phase::Calming if self.is_whole() && self.is_told() => {
                self.trace.note(self.now, || "all targets serve: last round".to_owned());
                self.phase = Phase::Last;
                self.phase_until = self.now + ms(30_000);
                self.script_last_round();
            }
            Phase::Last if self.clients.iter().all(Client::finished) => {
                self.phase = Phase::Settling;
                self.phase_until = self.now + ms(1500);
            }
            // The collector of tombstones may be working on a chunk.
            Phase::Settling
                if self.now >= self.phase_until
                    && (self.quiet() || self.now >= self.phase_until + ms(2000)) =>
            {
                self.agree();
                self.phase = Phase::Over;
            }
            Phase::Healing | Phase::Calming | Phase::Last if self.now >= self.phase_until => {
                if !self.waits_for_lost() {
                    let phase = self.phase;
                    self.violate(|| format!("no progress in phase {phase:?}"));
                }
                self.phase = Phase::Over;
            }
            _ => {}
        }
    }

    /// The existing members of all chains.
    fn members(&self) -> impl Iterator<Item = &Host> {
        let members = self.store.chains.values().flat_map(|record| &record.chain.targets);
        members.filter_map(|member| self.hosts.get(&member.target))
    }

    /// Whether no replica of a chain has anything in flight.
    fn quiet(&self) -> bool {
        self.members().all(|host| host.replica.busy_chunks() == 0)
    }

    /// Whether every chain has all its replicas, nothing moves, and all operators' commands are
    /// done.
    fn is_whole(&self) -> bool {
        let serves = millpond_types::cluster::TargetState::Serving;
        let whole = |record: &millpond_types::cluster::ChainRecord| {
            let targets = &record.chain.targets;
            let wanted = self.store.cluster.replicas_of(record.chain.id.table());
            let all = targets.len() == usize::from(wanted);
            all && record.moving.is_none() && targets.iter().all(|member| member.state == serves)
        };
        let tables = 1 + self.store.cluster.more.iter().count();
        self.orders_given
            && self.operator.finished()
            && self.store.chains.len() == self.plan.chains * tables
            && self.store.chains.values().all(whole)
    }

    /// Whether every node has the newest routing, in which no slot moves.
    fn is_told(&self) -> bool {
        let newest = self.store.head.routing;
        self.nodes.iter().filter(|node| node.life > 0).all(|node| {
            let routing = &node.member.routing;
            node.up && routing.version == newest && routing.moving.is_empty()
        })
    }

    /// Checks that chains agree byte by byte, and that nothing is left in flight.
    fn agree(&mut self) {
        let mut faults = Vec::new();
        for record in self.store.chains.values() {
            let mut first: Option<(TargetId, &Host)> = None;
            for member in &record.chain.targets {
                let Some(host) = self.hosts.get(&member.target) else {
                    faults.push(format!("{:?} is nowhere", member.target));
                    continue;
                };
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
        if let Some(fault) = faults.into_iter().next()
            && !self.waits_for_lost()
        {
            self.violate(|| fault);
        }
    }
}

/// The first chunk that two replicas hold differently. Damage is no difference: the next access
/// would repair it, or it is permanent, and it is never shown.
fn differ(a: &Host, b: &Host) -> Option<ChunkId> {
    let chunks = a.disk.chunks().keys().chain(b.disk.chunks().keys());
    let committed = |host: &Host, chunk: &ChunkId| {
        host.disk.chunks().get(chunk).and_then(|entry| entry.committed.clone())
    };
    let content = |stored: Stored| stored.bytes.map(|bytes| (bytes.clone(), bytes.crc()));
    chunks.copied().find(|chunk| match (committed(a, chunk), committed(b, chunk)) {
        (Some(a), Some(b)) if a.meta == b.meta => {
            !a.rotten && !b.rotten && content(a) != content(b)
        }
        (a, b) => a.is_some() || b.is_some(),
    })
}

fn node(number: usize, plan: &Plan, rng: &mut Rng) -> Node {
    let disk = |n| {
        let sizes = if plan.uneven { [1 << 40, 2 << 40] } else { [1 << 40; 2] };
        NodeDisk::new(number, n, sizes[(number + n) % 2])
    };
    let disks = (0..plan.disks).map(disk).collect();
    Node::new(Clock::new(rng, 0), disks, Member::new(number, 0, plan.managers))
}
