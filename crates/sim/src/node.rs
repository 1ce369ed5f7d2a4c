//! Nodes: the shell around the state machines, over the model disk.

use std::collections::{BTreeMap, BTreeSet};

use millpond_chain::{
    Effect, Event, Identity, Mutation, Refusal, Replica, Reply, RequestId, Space, StoreOp, Token,
};
use millpond_types::cluster::{Chain, ChainId, ChainVersion, DiskId, TargetId};
use millpond_types::limits::CHAIN_TICK_MS;
use millpond_types::{ChunkId, Tick, Uuid128};

use crate::bytes::Bytes;
use crate::clock::Clock;
use crate::disk::{Begun, Disk, Stored};
use crate::member::{Member, NodeDisk, node_at, node_id};
use crate::message::{Address, Item, Message, Time, ms};
use crate::world::World;

/// Time that tombstones are kept in a run; no message or retry is older.
const TOMBSTONE_KEEP_MS: u64 = 10_000;
/// Time that tombstones of evictions are kept: longer than messages between replicas live, shorter
/// than retries.
const EVICTED_KEEP_MS: u64 = 3_000;
/// Bytes of resync per tick: few, so that writes meet a resync in progress.
const RESYNC_BYTES: u64 = 60;

/// A server: its disks, and the process on it.
pub(crate) struct Node {
    pub(crate) up: bool,
    pub(crate) life: u64,
    pub(crate) clock: Clock,
    /// Stopped (SIGSTOP) until then: arriving messages wait.
    pub(crate) paused_until: Time,
    /// Whether the machine is off: then connections are not even refused.
    pub(crate) dark: bool,
    pub(crate) disks: Vec<NodeDisk>,
    /// The cluster that its disks belong to.
    pub(crate) cluster: Uuid128,
    pub(crate) member: Member,
}

impl Node {
    pub(crate) fn new(clock: Clock, disks: Vec<NodeDisk>, member: Member) -> Self {
        let cluster = Uuid128::NIL;
        let (up, life, paused_until, dark) = (false, 0, 0, true);
        Self { up, life, clock, paused_until, dark, disks, cluster, member }
    }
}

/// One target: a replica and its data on disk.
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub(crate) struct Host {
    pub(crate) chain: ChainId,
    pub(crate) target: TargetId,
    pub(crate) node: usize,
    /// The disk it is on.
    pub(crate) on: DiskId,
    pub(crate) replica: Replica<Bytes>,
    pub(crate) disk: Disk,
    /// Counts restarts: answers for an earlier life are dropped.
    pub(crate) life: u64,
    /// Whether the routing of this process has named it. Until then it is only data on a disk.
    pub(crate) open: bool,
    /// The chain in the node's routing.
    pub(crate) view: Chain,
    /// The last version of the chain for which it reported, while it synced, that it was up to
    /// date.
    pub(crate) up_to_date: Option<ChainVersion>,
    requests: BTreeMap<u64, (Address, u64)>,
    numbered: u64,
    retiring: bool,
    room: bool,
    reopening: bool,
}

fn replica(
    (chain, target, saved): (ChainId, TargetId, ChainVersion),
    now: Tick,
    mutation: Option<Mutation>,
) -> Replica<Bytes> {
    let identity = Identity {
        chain,
        target,
        saved,
        tombstone_keep_ms: TOMBSTONE_KEEP_MS,
        evicted_keep_ms: EVICTED_KEEP_MS,
    };
    let mut replica = Replica::new(identity, now);
    if let Some(mutation) = mutation {
        replica.mutate(mutation);
    }
    replica
}

impl World {
    /// Passes one event to a replica and executes its effects.
    pub(crate) fn step(&mut self, target: TargetId, event: Event<Bytes>) {
        let Some(host) = self.hosts.get_mut(&target).filter(|host| host.open) else { return };
        let node = host.node;
        let now = self.nodes[node].clock.read(self.now);
        let mut effects = Vec::new();
        host.replica.step(now, event, &mut effects);
        for effect in effects {
            self.effect(node, target, effect);
        }
    }

    fn effect(&mut self, node: usize, target: TargetId, effect: Effect<Bytes>) {
        let Some(host) = self.hosts.get_mut(&target) else { return };
        match effect {
            Effect::Reply(request, reply) => {
                if let Some((client, attempt)) = host.requests.remove(&request.0) {
                    let message = Message::Reply { attempt, reply };
                    self.send(Address::Node(node), client, message);
                }
            }
            Effect::Replaced(request) => drop(host.requests.remove(&request.0)),
            Effect::Send(to, peer) => {
                let member = host.view.targets.iter().find(|member| member.target == to);
                let Some(receiver) = member.and_then(|member| node_at(member.node)) else {
                    return;
                };
                self.trace.note(self.now, || format!("{} -> {} {peer:?}", target.0, to.0));
                let message = Message::Peer { from: target, to, peer: Box::new(peer) };
                self.send(Address::Node(node), Address::Node(receiver), message);
            }
            Effect::Store(token, op) => {
                self.trace.note(self.now, || format!("{} store {token:?} {op:?}", target.0));
                if let StoreOp::StageLost(chunk, meta, _) = op {
                    self.judge_loss(target, chunk, meta);
                }
                let Some(host) = self.hosts.get_mut(&target) else { return };
                let begun = host.disk.begin(op, &mut self.rng);
                let slow = if host.disk.slow { 40 } else { 1 };
                let delay = slow
                    * if self.rng.permille(50) {
                        self.rng.between(500, 6000)
                    } else {
                        self.rng.between(20, 400)
                    };
                let life = host.life;
                self.after(delay, Item::Stored { target, life, token, begun });
            }
            Effect::Commit(chunk, version) => {
                host.disk.commit(chunk, version);
                let entry = host.disk.chunks().get(&chunk);
                if entry
                    .and_then(|entry| entry.committed.as_ref())
                    .is_some_and(|stored| stored.lost)
                {
                    // A target with a good copy may come back.
                    self.after(ms(700), Item::Scrub { target, chunk });
                }
            }
            Effect::Remove(chunk) => host.disk.remove(chunk),
            Effect::Unstage(chunk) => host.disk.unstage(chunk),
            // Routing is pushed; a replica that is ahead of this node's copy waits for it.
            Effect::NeedRouting(_) => {}
            Effect::Report(report) => {
                self.trace.note(self.now, || format!("{} reports {report:?}", target.0));
                self.hurry(node);
            }
            Effect::Alarm(alarm) => self.alarm(target, alarm),
        }
    }

    /// Whether the process runs; otherwise the item is delayed or lost.
    pub(crate) fn running(&mut self, node: usize, item: impl FnOnce() -> Item) -> bool {
        let paused_until = self.nodes[node].paused_until;
        if self.nodes[node].up && self.now < paused_until {
            self.after(paused_until - self.now, item());
            return false;
        }
        self.nodes[node].up
    }

    pub(crate) fn node_tick(&mut self, node: usize, life: u64) {
        let item = Item::NodeTick { node, life };
        if self.nodes[node].life != life || !self.running(node, || item.clone()) {
            return;
        }
        let delay = self.nodes[node].clock.true_time(CHAIN_TICK_MS * 1000);
        self.after(delay, item);
        for target in self.targets_of(node) {
            let Some(host) = self.hosts.get_mut(&target) else { continue };
            let room = host.disk.room();
            let news = std::mem::replace(&mut host.room, room) != room;
            if news {
                self.step(target, Event::Space(Space { room, ..Space::AMPLE }));
            }
            self.reopen_stopped(target);
            self.step(target, Event::Budget { bytes: RESYNC_BYTES });
            self.step(target, Event::Tick);
        }
    }

    /// Reopens a replica that stopped by itself, after a while.
    fn reopen_stopped(&mut self, target: TargetId) {
        let Some(host) = self.hosts.get_mut(&target) else { return };
        if host.replica.stopped() && !host.reopening {
            host.reopening = true;
            let life = host.life;
            let delay = self.rng.between(ms(300), ms(3000));
            self.after(delay, Item::RestartTarget { target, life });
        }
    }

    /// The open targets of a node.
    pub(crate) fn targets_of(&self, node: usize) -> Vec<TargetId> {
        let mine = self.hosts.values().filter(|host| host.node == node && host.open);
        mine.map(|host| host.target).collect()
    }

    pub(crate) fn node_receives(&mut self, node: usize, from: Address, message: Message) {
        if let Message::Hello { call } = message {
            return self.greet(node, from, call);
        }
        let paused_until = self.nodes[node].paused_until;
        if !self.nodes[node].up || self.now < paused_until {
            if self.nodes[node].up {
                let item = Item::Deliver(from, Address::Node(node), message);
                self.after(paused_until - self.now, item);
            }
            return;
        }
        match message {
            Message::Peer { from, to, peer } if self.is_here(node, to) => {
                self.step(to, Event::Peer(from, *peer));
            }
            Message::Update { to, attempt, body } => {
                if let Some(request) = self.request(node, to, (from, attempt)) {
                    self.step(to, Event::Update(request, *body));
                }
            }
            Message::Read { to, attempt, body } => {
                if let Some(request) = self.request(node, to, (from, attempt)) {
                    self.step(to, Event::Read(request, body));
                }
            }
            Message::Registered { call, answer } => self.registered(node, call, answer),
            Message::Beat { call, answer } => self.beat_answered(node, call, *answer),
            Message::Push { call, update } => self.pushed(node, call, update),
            Message::NewsAsk { have } => self.news_asked(node, from, have),
            Message::Suspect(_) => {
                let seat = self.nodes[node].member.seat();
                self.send(Address::Node(node), Address::Manager(seat), message);
            }
            _ => {}
        }
    }

    /// A machine without a process refuses the connection, unless it is off.
    fn greet(&mut self, node: usize, from: Address, call: u64) {
        let n = &self.nodes[node];
        let found = n.up.then(|| n.member.incarnation());
        let silent = if n.up { self.now < n.paused_until } else { n.dark };
        if !silent {
            self.send(Address::Node(node), from, Message::Greeting { call, found });
        }
    }

    fn is_here(&self, node: usize, target: TargetId) -> bool {
        self.hosts.get(&target).is_some_and(|host| host.node == node && host.open)
    }

    fn request(
        &mut self,
        node: usize,
        target: TargetId,
        (from, attempt): (Address, u64),
    ) -> Option<RequestId> {
        if !self.is_here(node, target) {
            let reply = Reply::Refused(Refusal::NotServing);
            self.send(Address::Node(node), from, Message::Reply { attempt, reply });
            return None;
        }
        let host = self.hosts.get_mut(&target)?;
        host.numbered += 1;
        host.requests.insert(host.numbered, (from, attempt));
        Some(RequestId(host.numbered))
    }

    /// Updates this node's replicas to its routing.
    pub(crate) fn apply_routing(&mut self, node: usize) {
        let me = node_id(node);
        let routing = &self.nodes[node].member.routing;
        let disks = &self.nodes[node].disks;
        let here = |disk: DiskId| disks.iter().any(|mine| mine.id == disk);
        let mine: Vec<(TargetId, DiskId, Chain)> = routing
            .chains
            .values()
            .flat_map(|chain| chain.targets.iter().map(move |member| (member, chain)))
            .filter(|(member, _)| member.node == me && here(member.disk))
            .map(|(member, chain)| (member.target, member.disk, chain.clone()))
            .collect();
        let chains: BTreeMap<ChainId, Chain> =
            routing.chains.iter().map(|(id, chain)| (*id, chain.clone())).collect();
        for (target, disk, chain) in &mine {
            self.open(node, (*target, *disk), chain.id);
            if self.nodes[node].member.stopping {
                self.retire(*target, true);
            }
            self.describe(*target, chain);
        }
        let named: BTreeSet<TargetId> = mine.iter().map(|(target, ..)| *target).collect();
        let others = self.hosts.values().filter(|host| host.node == node);
        let gone: Vec<TargetId> =
            others.map(|host| host.target).filter(|target| !named.contains(target)).collect();
        for target in gone {
            let chain = self.hosts[&target].chain;
            if let Some(chain) = chains.get(&chain) {
                self.describe(target, chain);
            }
            self.trace.note(self.now, || format!("{} left its chain", target.0));
            self.hosts.remove(&target);
        }
    }

    /// Opens a replica for a target that routing names, over the data on its disk: from an earlier
    /// process, or from an earlier target of the same chain that this node has not heard of since.
    fn open(&mut self, node: usize, (target, on): (TargetId, DiskId), chain: ChainId) {
        let now = self.tick_of(node);
        let failing = self.nodes[node].disks.iter().any(|disk| disk.id == on && disk.dead);
        if !self.hosts.contains_key(&target) {
            let found = self
                .hosts
                .values()
                .find(|host| (host.node, host.on, host.chain) == (node, on, chain) && !host.open);
            let found = found.map(|host| host.target);
            let found = found.and_then(|found| self.hosts.remove(&found));
            let mut disk = found.map_or_else(Disk::new, |found| found.disk.inherited());
            disk.failing |= failing;
            let host = Host {
                chain,
                target,
                node,
                on,
                replica: replica((chain, target, ChainVersion(0)), now, self.replica_mutation()),
                disk,
                life: 0,
                open: true,
                view: Chain { id: chain, ..Chain::default() },
                up_to_date: None,
                requests: BTreeMap::new(),
                numbered: 0,
                retiring: false,
                room: true,
                reopening: false,
            };
            self.hosts.insert(target, host);
        } else if !self.hosts[&target].open {
            self.renew_replica(target);
        }
    }

    /// Passes on a newer description of the chain.
    fn describe(&mut self, target: TargetId, chain: &Chain) {
        let Some(host) = self.hosts.get_mut(&target) else { return };
        if chain.version > host.view.version {
            host.view = chain.clone();
            self.step(target, Event::Routing(chain.clone()));
        }
    }

    /// Sets whether the target must leave its chain.
    pub(crate) fn retire(&mut self, target: TargetId, wanted: bool) {
        let Some(host) = self.hosts.get_mut(&target) else { return };
        if std::mem::replace(&mut host.retiring, wanted) != wanted {
            self.step(target, Event::Retire(wanted));
        }
    }

    pub(crate) fn stored(&mut self, target: TargetId, life: u64, token: Token, begun: Begun) {
        let Some(host) = self.hosts.get(&target).filter(|host| host.life == life) else { return };
        let (node, copy) = (host.node, begun.clone());
        if !host.open || !self.running(node, || Item::Stored { target, life, token, begun: copy }) {
            return;
        }
        let Some(host) = self.hosts.get_mut(&target) else { return };
        let result = host.disk.end(begun);
        self.step(target, Event::Stored(token, result));
    }

    pub(crate) fn store_failed(&mut self, target: TargetId, life: u64) {
        let Some(host) = self.hosts.get(&target) else { return };
        if host.life == life && self.nodes[host.node].up {
            self.step(target, Event::StoreFailed);
        }
    }

    pub(crate) fn scrub(&mut self, target: TargetId, chunk: ChunkId) {
        let Some(host) = self.hosts.get(&target) else { return };
        let up = self.nodes[host.node].up;
        let entry = host.disk.chunks().get(&chunk);
        let rotten = entry.and_then(|e| e.committed.as_ref()).is_some_and(|s| s.rotten);
        if !rotten {
            return;
        }
        self.after(ms(700), Item::Scrub { target, chunk });
        if up {
            self.step(target, Event::Damaged(chunk));
        }
    }

    /// Ends the process; a machine that is dark does not even refuse connections.
    pub(crate) fn crash(&mut self, node: usize, dark: bool) {
        if !self.nodes[node].up {
            return;
        }
        self.trace.note(self.now, || format!("node {node} crashes"));
        self.nodes[node].up = false;
        self.nodes[node].paused_until = 0;
        self.nodes[node].dark = dark;
        for target in self.targets_of(node) {
            let Some(host) = self.hosts.get_mut(&target) else { continue };
            host.life += 1;
            host.disk.crash(&mut self.rng);
            host.requests.clear();
            self.check_survival(target);
        }
        for host in self.hosts.values_mut().filter(|host| host.node == node) {
            host.open = false;
        }
    }

    /// Checks that every version that a serving replica committed, and so may have shown, is on the
    /// disk of every other: whichever comes back first may have to bring the chain back.
    fn check_survival(&mut self, target: TargetId) {
        let crashed = &self.hosts[&target];
        let Some(chain) = self.store.chains.get(&crashed.chain).map(|record| &record.chain) else {
            return;
        };
        let serves = |host: &&Host| {
            let acts = host.replica.local_report();
            acts.is_some_and(|report| report.version == chain.version)
                && chain.serving().any(|member| member.target == host.target)
        };
        if self.plan.memory || !serves(&crashed) {
            return;
        }
        let mut lost = None;
        for other in self.hosts.values().filter(|host| host.chain == chain.id).filter(serves) {
            for (chunk, entry) in other.disk.chunks() {
                let Some(shown) = entry.committed.as_ref().filter(|s| s.bytes.is_some()) else {
                    continue;
                };
                // For a disk that crashed at the same moment, the state after recovery counts:
                // others may have removed the chunk and forgotten that already.
                let newer = |s: &Stored| s.bytes.is_none() && s.meta.version > shown.meta.version;
                if !other.open && entry.staged.as_ref().is_some_and(newer) {
                    continue;
                }
                let kept = crashed.disk.chunks().get(chunk).map(|kept| {
                    [&kept.committed, &kept.staged]
                        .map(|s| s.as_ref().map(|s| s.meta.version))
                        .into_iter()
                        .max()
                });
                if kept.flatten().flatten() < Some(shown.meta.version) {
                    lost = Some((other.target, *chunk, shown.meta.version));
                }
            }
        }
        if let Some((other, chunk, version)) = lost {
            self.violate(|| {
                format!("{target:?} lost {chunk:?} {version:?}, committed at {other:?}")
            });
        }
    }

    pub(crate) fn start(&mut self, node: usize) {
        if self.nodes[node].up {
            return;
        }
        self.trace.note(self.now, || format!("node {node} starts"));
        let clock = Clock::new(&mut self.rng, self.now);
        let managers = self.managers.len();
        let n = &mut self.nodes[node];
        n.life += 1;
        let life = n.life;
        (n.up, n.dark, n.paused_until, n.clock) = (true, false, 0, clock);
        n.member = Member::new(node, life, managers);
        for disk in &mut n.disks {
            disk.dead = false;
        }
        for host in self.hosts.values_mut().filter(|host| host.node == node) {
            host.disk.failing = false;
        }
        self.after(ms(1), Item::NodeTick { node, life });
        self.after(ms(2), Item::Beat { node, life, turn: 0 });
    }

    /// Replaces the replica by a new process or attempt over the same disk.
    fn renew_replica(&mut self, target: TargetId) {
        let node = self.hosts[&target].node;
        let (now, mutation) = (self.tick_of(node), self.replica_mutation());
        let Some(host) = self.hosts.get_mut(&target) else { return };
        let identity = (host.chain, target, host.disk.saved());
        host.replica = replica(identity, now, mutation);
        host.open = true;
        host.view = Chain { id: host.chain, ..Chain::default() };
        host.retiring = false;
        host.room = true;
        host.reopening = false;
        host.requests.clear();
    }

    fn replica_mutation(&self) -> Option<Mutation> {
        match self.mutation {
            Some(crate::Mutation::Replica(mutation)) => Some(mutation),
            _ => None,
        }
    }

    /// Reopens a target whose store failed.
    pub(crate) fn restart_target(&mut self, target: TargetId, life: u64) {
        let Some(host) = self.hosts.get_mut(&target) else { return };
        let node = host.node;
        let dead = self.nodes[node].disks.iter().any(|disk| disk.id == host.on && disk.dead);
        if host.life != life || !self.nodes[node].up || !host.open {
            return;
        }
        if dead {
            host.reopening = false;
            return;
        }
        host.life += 1;
        host.disk.failing = false;
        host.disk.crash(&mut self.rng);
        let (view, retiring) = (host.view.clone(), host.retiring);
        self.trace.note(self.now, || format!("{} is opened again", target.0));
        self.renew_replica(target);
        self.retire(target, retiring);
        self.describe(target, &view);
    }
}
