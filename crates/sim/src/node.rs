//! Nodes: the shell round the state machines, over the model disk.

use std::collections::BTreeMap;

use millpond_chain::{Effect, Event, Identity, LocalReport, Mutation, Replica, RequestId, Token};
use millpond_types::cluster::{ChainId, ChainVersion, TargetId};
use millpond_types::limits::CHAIN_TICK_MS;
use millpond_types::{ChunkId, Tick};

use crate::bytes::Bytes;
use crate::clock::Clock;
use crate::disk::{Begun, Disk};
use crate::message::{Address, Item, Message, Time, ms};
use crate::world::World;

/// Tombstones are kept this long in a run; no message or retry is older.
const TOMBSTONE_KEEP_MS: u64 = 10_000;
/// Bytes of resync per tick: small, so that writes meet a resync under way.
const RESYNC_BYTES: u64 = 60;

/// One process.
pub(crate) struct Node {
    pub(crate) up: bool,
    pub(crate) life: u64,
    pub(crate) clock: Clock,
    /// Stopped (SIGSTOP) until then: what arrives waits.
    pub(crate) paused_until: Time,
    heartbeats: u64,
    asked_routing: Time,
}

impl Node {
    pub(crate) const fn new(clock: Clock) -> Self {
        Self { up: true, life: 0, clock, paused_until: 0, heartbeats: 0, asked_routing: 0 }
    }
}

/// One target: a replica and its disk.
pub(crate) struct Host {
    pub(crate) chain: ChainId,
    pub(crate) target: TargetId,
    pub(crate) replica: Replica<Bytes>,
    pub(crate) disk: Disk,
    /// Counts restarts: answers for an earlier life are dropped.
    pub(crate) life: u64,
    requests: BTreeMap<u64, (Address, u64)>,
    numbered: u64,
    report: Option<LocalReport>,
    retired: bool,
    room: bool,
    reopening: bool,
}

fn replica(
    (chain, target, saved): (ChainId, TargetId, ChainVersion),
    now: Tick,
    mutation: Option<Mutation>,
) -> Replica<Bytes> {
    let tombstone_keep_ms = TOMBSTONE_KEEP_MS;
    let mut replica = Replica::new(Identity { chain, target, saved, tombstone_keep_ms }, now);
    if let Some(mutation) = mutation {
        replica.mutate(mutation);
    }
    replica
}

impl Host {
    pub(crate) fn new(
        chain: ChainId,
        target: TargetId,
        now: Tick,
        mutation: Option<Mutation>,
    ) -> Self {
        Self {
            chain,
            target,
            replica: replica((chain, target, ChainVersion(0)), now, mutation),
            disk: Disk::new(),
            life: 0,
            requests: BTreeMap::new(),
            numbered: 0,
            report: None,
            retired: false,
            room: true,
            reopening: false,
        }
    }
}

impl World {
    /// Gives one event to a replica and does what it wants done.
    pub(crate) fn step(&mut self, target: TargetId, event: Event<Bytes>) {
        let node = self.node_of[&target];
        let now = self.tick_of(node);
        let mut effects = Vec::new();
        let host = self.hosts.get_mut(&target).expect("every target has a host");
        host.replica.step(now, event, &mut effects);
        for effect in effects {
            self.effect(node, target, effect);
        }
    }

    fn effect(&mut self, node: usize, target: TargetId, effect: Effect<Bytes>) {
        let host = self.hosts.get_mut(&target).expect("every target has a host");
        match effect {
            Effect::Reply(request, reply) => {
                if let Some((client, attempt)) = host.requests.remove(&request.0) {
                    let message = Message::Reply { attempt, reply };
                    self.send(Address::Node(node), client, message);
                }
            }
            Effect::Send(to, peer) => {
                self.trace.note(self.now, || format!("{} -> {} {peer:?}", target.0, to.0));
                let message = Message::Peer { from: target, to, peer: Box::new(peer) };
                let receiver = self.node_of[&to];
                self.send(Address::Node(node), Address::Node(receiver), message);
            }
            Effect::Store(token, op) => {
                self.trace.note(self.now, || format!("{} store {token:?} {op:?}", target.0));
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
            Effect::Commit(chunk, version) => host.disk.commit(chunk, version),
            Effect::Remove(chunk) => host.disk.remove(chunk),
            Effect::Unstage(chunk) => host.disk.unstage(chunk),
            Effect::NeedRouting(_) => self.ask_routing(node),
            Effect::Report(report) => {
                self.trace.note(self.now, || format!("{} reports {report:?}", target.0));
                host.report = Some(report);
                let life = self.nodes[node].life;
                self.heartbeat(node, life, false);
            }
            Effect::Alarm(alarm) => self.alarm(target, alarm),
        }
    }

    fn ask_routing(&mut self, node: usize) {
        if self.now < self.nodes[node].asked_routing + ms(20) {
            return;
        }
        self.nodes[node].asked_routing = self.now;
        for manager in 0..self.managers.len() {
            self.send(Address::Node(node), Address::Manager(manager), Message::RoutingAsk);
        }
    }

    /// The process runs; otherwise what comes later is put off or lost.
    fn running(&mut self, node: usize, item: impl FnOnce() -> Item) -> bool {
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
            let host = self.hosts.get_mut(&target).expect("every target has a host");
            let room = host.disk.room();
            let news = std::mem::replace(&mut host.room, room) != room;
            if news {
                self.step(target, Event::Space { room });
            }
            self.reopen_stopped(target);
            self.step(target, Event::Budget { bytes: RESYNC_BYTES });
            self.step(target, Event::Tick);
        }
    }

    /// A replica that stopped by itself gets another chance after a while.
    fn reopen_stopped(&mut self, target: TargetId) {
        let host = self.hosts.get_mut(&target).expect("every target has a host");
        if host.replica.stopped() && !host.reopening {
            host.reopening = true;
            let life = host.life;
            let delay = self.rng.between(ms(300), ms(3000));
            self.after(delay, Item::RestartTarget { target, life });
        }
    }

    pub(crate) fn targets_of(&self, node: usize) -> Vec<TargetId> {
        self.node_of.iter().filter(|(_, on)| **on == node).map(|(target, _)| *target).collect()
    }

    pub(crate) fn heartbeat(&mut self, node: usize, life: u64, regular: bool) {
        let item = Item::Heartbeat { node, life };
        if self.nodes[node].life != life {
            return;
        }
        if regular {
            if !self.running(node, || item.clone()) {
                return;
            }
            let delay = self.nodes[node].clock.true_time(500_000);
            self.after(delay, item);
        }
        let sent = self.tick_of(node);
        self.nodes[node].heartbeats += 1;
        let number = self.nodes[node].heartbeats;
        let targets = self.targets_of(node);
        let reports: Vec<LocalReport> =
            targets.iter().filter_map(|target| self.hosts[target].report).collect();
        for manager in 0..self.managers.len() {
            let message = Message::Heartbeat { life, number, sent, reports: reports.clone() };
            self.send(Address::Node(node), Address::Manager(manager), message);
        }
    }

    pub(crate) fn node_receives(&mut self, node: usize, from: Address, message: Message) {
        let copy = message.clone();
        if !self.running(node, || Item::Deliver(from, Address::Node(node), copy)) {
            return;
        }
        match message {
            Message::Peer { from, to, peer } => self.step(to, Event::Peer(from, *peer)),
            Message::Update { to, attempt, body } => {
                let request = self.request(to, from, attempt);
                self.step(to, Event::Update(request, *body));
            }
            Message::Read { to, attempt, body } => {
                let request = self.request(to, from, attempt);
                self.step(to, Event::Read(request, body));
            }
            Message::Routing(chains) => {
                for target in self.targets_of(node) {
                    let chain = self.hosts[&target].chain;
                    if let Some(chain) = chains.iter().find(|c| c.id == chain) {
                        self.step(target, Event::Routing(chain.clone()));
                    }
                }
            }
            Message::Alive { life, sent, versions, retire } => {
                if self.nodes[node].life == life {
                    self.alive(node, sent, &versions, &retire);
                }
            }
            Message::Reply { .. } | Message::Heartbeat { .. } | Message::RoutingAsk => {}
        }
    }

    fn alive(
        &mut self,
        node: usize,
        sent: Tick,
        versions: &[(ChainId, ChainVersion)],
        retire: &[TargetId],
    ) {
        for target in self.targets_of(node) {
            let host = self.hosts.get_mut(&target).expect("every target has a host");
            let chain = host.chain;
            let retired = retire.contains(&target);
            let news = std::mem::replace(&mut host.retired, retired) != retired;
            let known = host.report.map_or(ChainVersion(0), |report| report.version);
            if news {
                self.step(target, Event::Retire(retired));
            }
            let Some((_, version)) = versions.iter().find(|(id, _)| *id == chain) else { continue };
            if *version > known {
                self.ask_routing(node);
            }
            self.step(target, Event::Lease { sent, version: *version });
        }
    }

    fn request(&mut self, target: TargetId, from: Address, attempt: u64) -> RequestId {
        let host = self.hosts.get_mut(&target).expect("every target has a host");
        host.numbered += 1;
        host.requests.insert(host.numbered, (from, attempt));
        RequestId(host.numbered)
    }

    pub(crate) fn stored(&mut self, target: TargetId, life: u64, token: Token, begun: Begun) {
        let node = self.node_of[&target];
        let copy = begun.clone();
        if self.hosts[&target].life != life
            || !self.running(node, || Item::Stored { target, life, token, begun: copy })
        {
            return;
        }
        let host = self.hosts.get_mut(&target).expect("every target has a host");
        let result = host.disk.end(begun);
        self.step(target, Event::Stored(token, result));
    }

    pub(crate) fn store_failed(&mut self, target: TargetId, life: u64) {
        let node = self.node_of[&target];
        if self.hosts[&target].life == life && self.nodes[node].up {
            self.step(target, Event::StoreFailed);
        }
    }

    pub(crate) fn scrub(&mut self, target: TargetId, chunk: ChunkId) {
        let entry = self.hosts[&target].disk.chunks().get(&chunk);
        let rotten = entry.and_then(|e| e.committed.as_ref()).is_some_and(|s| s.rotten);
        if !rotten {
            return;
        }
        self.after(ms(700), Item::Scrub { target, chunk });
        if self.nodes[self.node_of[&target]].up {
            self.step(target, Event::Damaged(chunk));
        }
    }

    pub(crate) fn crash(&mut self, node: usize) {
        if !self.nodes[node].up {
            return;
        }
        self.trace.note(self.now, || format!("node {node} crashes"));
        self.nodes[node].up = false;
        self.nodes[node].paused_until = 0;
        for target in self.targets_of(node) {
            let host = self.hosts.get_mut(&target).expect("every target has a host");
            host.life += 1;
            host.disk.crash(&mut self.rng);
            host.requests.clear();
            self.check_survival(target);
        }
    }

    /// What any serving replica committed, and so may have shown, is on the disk of every other:
    /// whichever comes back first may have to bring the chain back.
    fn check_survival(&mut self, target: TargetId) {
        let crashed = &self.hosts[&target];
        let chain = &self.store.chains[&crashed.chain];
        let serves = |host: &&Host| {
            let acts = host.report.is_some_and(|report| report.version == chain.version);
            acts && chain.serving().any(|member| member.target == host.target)
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
        let life = self.nodes[node].life + 1;
        let clock = Clock::new(&mut self.rng, self.now);
        self.nodes[node] = Node { life, ..Node::new(clock) };
        for target in self.targets_of(node) {
            self.renew_replica(target);
        }
        self.after(ms(1), Item::NodeTick { node, life });
        self.after(ms(2), Item::Heartbeat { node, life });
    }

    fn renew_replica(&mut self, target: TargetId) {
        let now = self.tick_of(self.node_of[&target]);
        let host = self.hosts.get_mut(&target).expect("every target has a host");
        let identity = (host.chain, target, host.disk.saved());
        host.replica = replica(identity, now, self.mutation);
        host.report = None;
        host.retired = false;
        host.room = true;
        host.reopening = false;
        host.requests.clear();
    }

    /// A target whose store failed is opened again by its node.
    pub(crate) fn restart_target(&mut self, target: TargetId, life: u64) {
        let node = self.node_of[&target];
        if self.hosts[&target].life != life || !self.nodes[node].up {
            return;
        }
        self.trace.note(self.now, || format!("{} is opened again", target.0));
        let host = self.hosts.get_mut(&target).expect("every target has a host");
        host.life += 1;
        host.disk.failing = false;
        host.disk.crash(&mut self.rng);
        self.renew_replica(target);
    }
}
