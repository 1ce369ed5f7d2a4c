//! The membership of a node in its cluster, as in `control/src/member`: registration, heartbeats,
//! leases, and requests for routing.

use std::collections::BTreeMap;
use std::sync::Arc;

use millpond_chain::Event;
use millpond_types::cluster::{
    Chain, ConfigRecord, DiskId, DiskOffer, DiskReport, Grant, Heartbeat, HeartbeatAnswer,
    Incarnation, LocalState, NodeId, Refusal, Register, RegisterAnswer, Routing, RoutingUpdate,
    RoutingVersion, SlotDone, SlotsMoved, TargetReport, TargetState,
};
use millpond_types::wire::PROTOCOL_VERSION;
use millpond_types::{Tick, Uuid128};

use crate::manager::manager_at;
use crate::message::{Address, Item, Message, Time, ms};
use crate::node::Host;
use crate::world::World;

/// Time between two heartbeats, by the node's clock.
const BEAT: u64 = 500_000;
/// Shortest time between heartbeats caused by changes.
const BEAT_PAUSE: Time = ms(10);
/// Time after which an unanswered heartbeat counts as lost.
const BEAT_MAX: u64 = 900_000;
/// Longest wait for a registration. In production it is 4 s over a connection that loses nothing.
const REGISTER_MAX: u64 = 1_500_000;
/// Time for which a failed manager is not followed again when a standby still names it.
const SHUN: Time = ms(1500);
/// Pause after every manager was tried.
const ROUND_PAUSE: Time = ms(50);
/// Time after which an unanswered request for routing is repeated: the connections of production
/// lose nothing, or break.
const POLL_MAX: u64 = 600_000;
/// Longest wait of a clean stop for others to take over.
const LEAVE_MAX: Time = ms(2000);
/// Most clients that wait for routing at one node.
const WAITERS_MAX: usize = 16;

/// The permanent id of a node.
pub(crate) fn node_id(number: usize) -> NodeId {
    NodeId(Uuid128([u8::try_from(number + 1).expect("few nodes"); 16]))
}

/// The node with an id.
pub(crate) fn node_at(id: NodeId) -> Option<usize> {
    usize::from(id.0.0[0]).checked_sub(1)
}

/// A disk of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeDisk {
    pub(crate) id: DiskId,
    pub(crate) capacity_bytes: u64,
    /// Whether it fails until the server is started again.
    pub(crate) dead: bool,
}

impl NodeDisk {
    pub(crate) fn new(node: usize, number: usize, capacity_bytes: u64) -> Self {
        let mut bytes = [0xd0; 16];
        bytes[0] = u8::try_from(node + 1).expect("few nodes");
        bytes[1] = u8::try_from(number).expect("few disks");
        Self { id: DiskId(Uuid128(bytes)), capacity_bytes, dead: false }
    }
}

/// The unanswered request to a manager.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Register,
    Beat { sent: Tick, stopping: bool },
}

/// The membership of one process.
#[derive(Debug)]
pub(crate) struct Member {
    incarnation: Incarnation,
    pub(crate) registered: bool,
    /// The manager in use, and the next one to try.
    seat: usize,
    next: usize,
    shunned: BTreeMap<usize, Time>,
    asked: Option<(u64, Asked)>,
    calls: u64,
    poll: u64,
    /// Wake-ups of another turn are void.
    turn: u64,
    hurry: bool,
    sent_at: Time,
    number: u64,
    config: ConfigRecord,
    pending: Option<(Tick, Grant)>,
    pub(crate) routing: Routing,
    chains: Arc<Vec<Chain>>,
    pub(crate) stopping: bool,
    waiters: Vec<(Address, RoutingVersion)>,
}

impl Member {
    pub(crate) fn new(node: usize, life: u64, managers: usize) -> Self {
        Self {
            incarnation: Incarnation((node as u64 + 1) << 32 | (life + 1)),
            registered: false,
            seat: node % managers,
            next: node + 1,
            shunned: BTreeMap::new(),
            asked: None,
            // Answers to the previous process must not match this one's calls: connections end with
            // their process.
            calls: life << 32,
            poll: life << 32,
            turn: 0,
            hurry: false,
            sent_at: 0,
            number: 0,
            config: ConfigRecord::default(),
            pending: None,
            routing: Routing::default(),
            chains: Arc::default(),
            stopping: false,
            waiters: Vec::new(),
        }
    }

    /// The manager in use.
    pub(crate) const fn seat(&self) -> usize {
        self.seat
    }

    pub(crate) const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }
}

impl World {
    /// Sends the node's next message to its manager, or handles an overdue answer.
    pub(crate) fn beat(&mut self, node: usize, life: u64, turn: u64) {
        let n = &self.nodes[node];
        let void = n.life != life || n.member.turn != turn;
        if void || !self.running(node, || Item::Beat { node, life, turn }) {
            return;
        }
        if self.nodes[node].member.asked.take().is_some() {
            return self.turn_to(node, true, &[]);
        }
        self.speak(node);
    }

    fn wake_member(&mut self, node: usize, delay: Time) {
        let n = &mut self.nodes[node];
        n.member.turn += 1;
        let (life, turn) = (n.life, n.member.turn);
        self.after(delay, Item::Beat { node, life, turn });
    }

    fn speak(&mut self, node: usize) {
        let sent = self.tick_of(node);
        let n = &mut self.nodes[node];
        let member = &mut n.member;
        member.calls += 1;
        member.sent_at = self.now;
        member.hurry = false;
        let (call, to, stopping) = (member.calls, member.seat, member.stopping);
        let (message, patience) = if member.registered {
            member.number += 1;
            member.asked = Some((call, Asked::Beat { sent, stopping }));
            let heartbeat = Box::new(self.heartbeat(node));
            (Message::Heartbeat { call, heartbeat }, BEAT_MAX)
        } else {
            member.asked = Some((call, Asked::Register));
            let register = Box::new(self.introduction(node));
            (Message::Register { call, register }, REGISTER_MAX)
        };
        self.send(Address::Node(node), Address::Manager(to), message);
        let patience = self.nodes[node].clock.true_time(patience);
        self.wake_member(node, patience);
    }

    fn introduction(&self, node: usize) -> Register {
        let n = &self.nodes[node];
        let offer =
            |disk: &NodeDisk| DiskOffer { id: disk.id, capacity_bytes: disk.capacity_bytes };
        Register {
            node: node_id(node),
            incarnation: n.member.incarnation,
            cluster: n.cluster,
            addresses: vec![format!("node-{node}")],
            host: format!("host-{node}"),
            domain: String::new(),
            build: "sim".to_owned(),
            protocol: PROTOCOL_VERSION,
            meta: false,
            disks: n.disks.iter().map(offer).collect(),
        }
    }

    fn heartbeat(&mut self, node: usize) -> Heartbeat {
        let mut targets = Vec::new();
        let mut alive: BTreeMap<DiskId, bool> = BTreeMap::new();
        let mut heads = Vec::new();
        for host in self.hosts.values_mut().filter(|host| host.node == node && host.open) {
            *alive.entry(host.on).or_default() |= !host.replica.stopped();
            if host.replica.is_head_serving() {
                heads.push(host.chain);
            }
            let Some(report) = host.replica.local_report() else { continue };
            let syncs = report.state == LocalState::UpToDate
                && host.view.targets.iter().any(|member| {
                    member.target == host.target && member.state == TargetState::Syncing
                });
            if syncs && report.version == host.view.version {
                host.up_to_date = Some(report.version);
            }
            targets.push(TargetReport {
                target: host.target,
                chain: host.chain,
                at: report.version,
                local: report.state,
                used_bytes: host.disk.used() as u64,
                behind_bytes: 0,
            });
        }
        let n = &self.nodes[node];
        let member = &n.member;
        // A disk is reported as failed once its targets have stopped, not before.
        let failed =
            |disk: &NodeDisk| disk.dead && !alive.get(&disk.id).is_some_and(|alive| *alive);
        let moving = member.routing.moving.iter();
        let slots_done = moving.filter(|(_, from)| heads.contains(from)).map(|(slot, from)| {
            SlotDone { slot: *slot, from: *from, to: member.routing.slots.get(*slot) }
        });
        Heartbeat {
            node: node_id(node),
            incarnation: member.incarnation,
            number: member.number,
            routing: member.routing.version,
            config: member.config.version,
            stopping: member.stopping,
            targets,
            disks: n
                .disks
                .iter()
                .map(|disk| DiskReport {
                    disk: disk.id,
                    capacity_bytes: disk.capacity_bytes,
                    used_bytes: 0,
                    healthy: !failed(disk),
                })
                .collect(),
            slots_done: slots_done.collect(),
            slots_moved: SlotsMoved::default(),
            queue_depth: 0,
            quotas: Vec::new(),
        }
    }

    /// Makes the next heartbeat due now, after a change.
    pub(crate) fn hurry(&mut self, node: usize) {
        let member = &mut self.nodes[node].member;
        member.hurry = true;
        if member.asked.is_none() && member.registered {
            let at = (member.sent_at + BEAT_PAUSE).max(self.now);
            self.wake_member(node, at - self.now);
        }
    }

    /// Waits for the time of the next heartbeat.
    fn rest(&mut self, node: usize) {
        if self.nodes[node].member.hurry {
            return self.hurry(node);
        }
        let beat = self.nodes[node].clock.true_time(BEAT);
        let at = (self.nodes[node].member.sent_at + beat).max(self.now);
        self.wake_member(node, at - self.now);
    }

    /// Switches to the next manager: the one in use did not answer, or is not primary and names
    /// others.
    fn turn_to(&mut self, node: usize, failed: bool, named: &[String]) {
        let (now, count) = (self.now, self.managers.len());
        let member = &mut self.nodes[node].member;
        let before = member.seat;
        if failed {
            member.shunned.insert(before, now + SHUN);
        }
        member.shunned.retain(|_, until| now < *until);
        let named = named.iter().filter_map(|address| manager_at(address));
        let follow = named.into_iter().find(|m| *m != before && !member.shunned.contains_key(m));
        let mut pause = 0;
        member.seat = follow.unwrap_or_else(|| {
            member.next += 1;
            if member.next.is_multiple_of(count) {
                pause = ROUND_PAUSE;
            }
            member.next % count
        });
        if member.seat != before {
            self.ask_news(node);
        }
        self.wake_member(node, pause.max(200));
    }

    pub(crate) fn registered(&mut self, node: usize, call: u64, answer: RegisterAnswer) {
        let member = &mut self.nodes[node].member;
        if member.asked.take_if(|(asked, _)| *asked == call).is_none() {
            return;
        }
        match answer {
            RegisterAnswer::Accepted { cluster, .. } => {
                member.registered = true;
                self.nodes[node].cluster = cluster;
                self.ask_news(node);
                self.speak(node);
            }
            RegisterAnswer::Retry { after_ms } => self.wake_member(node, ms(u64::from(after_ms))),
            RegisterAnswer::NotPrimary(at) => self.turn_to(node, false, &at),
            RegisterAnswer::Refused(why) => self.refused_by_manager(node, &why),
        }
    }

    /// Stops the refused process; its supervisor starts it again.
    fn refused_by_manager(&mut self, node: usize, why: &Refusal) {
        self.trace.note(self.now, || format!("node {node} is refused: {why}"));
        self.crash(node, false);
        let pause = self.rng.between(ms(100), ms(1500));
        self.after(pause, Item::Undo(crate::nemesis::Undo::Start(node)));
    }

    pub(crate) fn beat_answered(&mut self, node: usize, call: u64, answer: HeartbeatAnswer) {
        let member = &mut self.nodes[node].member;
        let Some((_, Asked::Beat { sent, stopping })) =
            member.asked.take_if(|(asked, _)| *asked == call)
        else {
            return;
        };
        match answer {
            HeartbeatAnswer::Granted(grant) => {
                self.granted(node, sent, grant);
                if stopping {
                    self.leave_when_free(node);
                }
                self.rest(node);
            }
            HeartbeatAnswer::Refused { why: Refusal::Unregistered, .. } => {
                member.registered = false;
                self.speak(node);
            }
            HeartbeatAnswer::Refused { why, .. } => self.refused_by_manager(node, &why),
            HeartbeatAnswer::NotPrimary(at) => self.turn_to(node, false, &at),
        }
    }

    fn granted(&mut self, node: usize, sent: Tick, mut grant: Grant) {
        let member = &mut self.nodes[node].member;
        if let Some(config) = grant.config.take() {
            member.config = config;
        }
        self.trace.note(self.now, || {
            let (routing, lease_ms) = (grant.routing.0, grant.lease_ms);
            format!("node {node} is granted {lease_ms} ms of {sent:?} for routing {routing}")
        });
        member.pending = Some((sent, grant));
        self.pass_lease_on(node);
    }

    /// Passes the lease to the replicas once they have the routing that it was granted for.
    fn pass_lease_on(&mut self, node: usize) {
        let member = &mut self.nodes[node].member;
        let version = member.routing.version;
        let Some((sent, grant)) = member.pending.take_if(|(_, grant)| grant.routing <= version)
        else {
            return;
        };
        // Too late for a process that stops: it has reported that nothing serves here.
        if grant.lease_ms == 0 || member.stopping {
            return;
        }
        let now = self.nodes[node].clock.read(self.now);
        self.trace.note(self.now, || {
            let (age, version) = (now.since(sent), grant.routing.0);
            format!("node {node} has a lease of {age:?} ago, for routing {version}")
        });
        for target in self.targets_of(node) {
            self.retire(target, grant.retire.contains(&target));
            let Some(host) = self.hosts.get(&target) else { continue };
            let version = host.view.version;
            self.step(target, Event::Lease { sent, version });
        }
    }

    /// Whether a read at this replica may be answered under the manager's lease.
    pub(crate) fn may_read_by_manager(&self, host: &Host) -> bool {
        let n = &self.nodes[host.node];
        n.up && host.open && host.replica.leased_by_manager(n.clock.read(self.now))
    }

    /// Asks the manager in use for routing newer than the local copy.
    pub(crate) fn ask_news(&mut self, node: usize) {
        let n = &mut self.nodes[node];
        // Before it knows its cluster, no routing can be its own.
        if n.cluster == Uuid128::NIL {
            return;
        }
        let member = &mut n.member;
        member.poll += 1;
        let (call, seat, life) = (member.poll, member.seat, n.life);
        let (cluster, have) = (member.routing.cluster, member.routing.version);
        self.send(
            Address::Node(node),
            Address::Manager(seat),
            Message::Poll { call, cluster, have },
        );
        let delay = self.nodes[node].clock.true_time(POLL_MAX);
        self.after(delay, Item::PollAgain { node, life, call });
    }

    pub(crate) fn poll_again(&mut self, node: usize, life: u64, call: u64) {
        let n = &self.nodes[node];
        let void = n.life != life || n.member.poll != call;
        if !void && self.running(node, || Item::PollAgain { node, life, call }) {
            self.ask_news(node);
        }
    }

    pub(crate) fn pushed(&mut self, node: usize, call: u64, update: RoutingUpdate) {
        let cluster = self.nodes[node].cluster;
        let member = &mut self.nodes[node].member;
        // An answer to an earlier attempt counts as well: it may only be late.
        let newest = member.poll == call;
        let ours = !matches!(&update, RoutingUpdate::Full(routing) if routing.cluster != cluster);
        let changed = ours && matches!(member.routing.apply(update), Ok(true));
        if changed {
            member.chains = Arc::new(member.routing.chains.values().cloned().collect());
            let version = member.routing.version;
            self.trace.note(self.now, || format!("node {node} has routing {}", version.0));
            self.apply_routing(node);
            self.pass_lease_on(node);
            self.tell_waiters(node);
            // The manager waits for the report that this node uses it.
            self.hurry(node);
            if self.nodes[node].member.stopping {
                self.leave_when_free(node);
            }
        }
        if newest {
            self.ask_news(node);
        }
    }

    /// Answers a client's request for newer routing: at once if there is any, otherwise with the
    /// next update.
    pub(crate) fn news_asked(&mut self, node: usize, from: Address, have: RoutingVersion) {
        let member = &mut self.nodes[node].member;
        member.waiters.retain(|(client, _)| *client != from);
        member.waiters.push((from, have));
        if member.waiters.len() > WAITERS_MAX {
            member.waiters.remove(0);
        }
        self.tell_waiters(node);
    }

    fn tell_waiters(&mut self, node: usize) {
        let member = &mut self.nodes[node].member;
        let version = member.routing.version;
        let told: Vec<_> = member.waiters.extract_if(.., |(_, have)| *have < version).collect();
        for (client, _) in told {
            let chains = Arc::clone(&self.nodes[node].member.chains);
            self.send(Address::Node(node), client, Message::News { version, chains });
        }
    }

    /// Begins a clean stop: nothing serves from here on.
    pub(crate) fn leaves(&mut self, node: usize) {
        if !self.nodes[node].up || self.nodes[node].member.stopping {
            return;
        }
        self.trace.note(self.now, || format!("node {node} stops"));
        self.nodes[node].member.stopping = true;
        for target in self.targets_of(node) {
            self.retire(target, true);
        }
        self.hurry(node);
        let life = self.nodes[node].life;
        self.after(LEAVE_MAX, Item::Leave { node, life });
    }

    /// Ends a stopping process once the routing sends no client here any more.
    fn leave_when_free(&mut self, node: usize) {
        let me = node_id(node);
        let busy = |state| matches!(state, TargetState::Serving | TargetState::Syncing);
        let mut members = self.nodes[node].member.chains.iter().flat_map(|chain| &chain.targets);
        if !members.any(|member| member.node == me && busy(member.state)) {
            let life = self.nodes[node].life;
            self.leave(node, life);
        }
    }

    pub(crate) fn leave(&mut self, node: usize, life: u64) {
        let n = &self.nodes[node];
        if n.life == life && n.member.stopping && self.running(node, || Item::Leave { node, life })
        {
            self.crash(node, false);
            let down = self.length(ms(6000));
            self.after(down, Item::Undo(crate::nemesis::Undo::Start(node)));
        }
    }
}
