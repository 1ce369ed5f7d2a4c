//! Liveness: the primary's view of nodes, and its reaction when one falls silent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use millpond_types::cluster::{
    ChainId, ChainTarget, DiskId, DiskReport, Incarnation, NodeId, Routing, RoutingVersion,
    SlotDone, SlotsMoved, TargetId, TargetReport, TargetState,
};
use millpond_types::units::Tick;

use super::commit::InFlight;
use super::event::{AdminCommand, Effect, Event, Session};
use super::lease::Lease;
use super::mutation::mutated;
use super::pace::Pace;
use super::push::Publisher;
use super::quotas::Quotas;
use super::settings::Rules;
use super::state::State;
use super::{Cx, ManagerOptions, Next};
use crate::planner::Planner;
use crate::table::Report;

/// Shortest time between two probes of one node.
const PROBE_PAUSE: Duration = Duration::from_millis(200);

/// Interval between checks of absent disks.
const REPAIR_EVERY: Duration = Duration::from_secs(1);

/// Work that waits for its transaction.
#[derive(Debug)]
pub(super) enum Job {
    /// The first manager of all names the cluster.
    Found,
    /// An admitted registration.
    Register(Session, Box<millpond_types::cluster::Register>),
    /// An operator's command.
    Admin(Session, AdminCommand),
    /// A disk was away for too long.
    GiveUp(DiskId),
    /// Slots have moved.
    SlotsDone(Vec<SlotDone>),
    /// A text for the event log.
    Note(String),
}

/// The primary.
#[derive(Debug)]
pub(super) struct Primary {
    pub(super) lease: Lease,
    pub(super) state: State,
    pub(super) publisher: Publisher,
    pub(super) nodes: Nodes,
    pub(super) planner: Planner,
    pub(super) quotas: Quotas,
    /// Chains to evaluate, as something that concerns them changed.
    pub(super) dirty: BTreeSet<ChainId>,
    pub(super) jobs: VecDeque<Job>,
    pub(super) in_flight: Option<InFlight>,
    /// HEAD as stored.
    pub(super) head: Option<Vec<u8>>,
    pub(super) plan_at: Tick,
    pub(super) pace: Pace,
    /// Time of the next check of absent disks.
    repair_at: Tick,
}

/// State of nodes beyond the records. Lost with the primary, and learned again.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub(super) live: BTreeMap<NodeId, Live>,
    /// The routing version of each chain's last change.
    pub(super) changed_at: BTreeMap<ChainId, RoutingVersion>,
}

/// State of one node.
#[derive(Clone, Debug, Default)]
pub(super) struct Live {
    /// End of the time that it may serve: its lease, or one that a former primary may have granted.
    pub(super) lease_until: Tick,
    /// Time of its last heartbeat, if any since this primary took over or it registered.
    pub(super) heard: Option<Tick>,
    /// Time since which it is considered gone.
    pub(super) down: Option<Tick>,
    /// Number of its last heartbeat.
    pub(super) number: u64,
    pub(super) stopping: bool,
    pub(super) reports: BTreeMap<TargetId, TargetReport>,
    pub(super) disks: BTreeMap<DiskId, DiskReport>,
    pub(super) routing: RoutingVersion,
    pub(super) config: millpond_types::cluster::ConfigVersion,
    pub(super) queue_depth: u32,
    pub(super) slots_moved: SlotsMoved,
    /// It gets no lease before it applies this routing, which takes serving targets from it.
    pub(super) fence: RoutingVersion,
    /// Its reports before it applies this routing may be older than decisions of the previous
    /// primary: a heartbeat can be in flight for long, and its number orders only the heartbeats
    /// that this primary has received.
    pub(super) since: RoutingVersion,
    /// Time of its last probe.
    pub(super) probed: Option<Tick>,
    /// Time when a probe last found its process.
    pub(super) found: Option<Tick>,
    /// The process before this one.
    pub(super) previous: Option<Incarnation>,
    /// A process that wants its place, and since when.
    pub(super) contender: Option<(Incarnation, Tick)>,
    /// Disks that are being given up.
    pub(super) given_up: BTreeSet<DiskId>,
    /// Time since which a disk is reported to fail.
    pub(super) failing: BTreeMap<DiskId, Tick>,
}

/// A transaction that takes a serving target from a node is in flight.
pub(super) const FENCE_PENDING: RoutingVersion = RoutingVersion(u64::MAX);

impl Live {
    pub(super) fn is_up(&self) -> bool {
        self.down.is_none()
    }
}

impl Nodes {
    /// The report of a target, as input for the target-state table.
    pub(super) fn report(&self, chain: ChainId, member: &ChainTarget) -> Report {
        let Some(live) = self.live.get(&member.node).filter(|live| live.is_up()) else {
            return Report::OFFLINE;
        };
        let fails = live.disks.get(&member.disk).is_some_and(|disk| !disk.healthy);
        if live.stopping || fails {
            return Report::OFFLINE;
        }
        if let Some(report) = live.reports.get(&member.target) {
            return Report { local: report.local, at: report.at };
        }
        let changed = self.changed_at.get(&chain).copied().unwrap_or_default();
        let knows = live.heard.is_some() && live.routing >= changed;
        // A node that has not been heard, or does not have the routing yet, keeps its targets'
        // states; a state it does not have, it must report first.
        match member.state {
            TargetState::Serving | TargetState::Syncing if !knows => Report::ONLINE,
            _ => Report::OFFLINE,
        }
    }
}

impl Primary {
    pub(super) fn new(cx: &mut Cx<'_>, lease: Lease, state: State, head: Option<Vec<u8>>) -> Self {
        // The previous primary may have granted a lease up to the moment it lost its own.
        let former = cx.options.node_lease + cx.options.margin;
        let forgets = mutated!(cx.options, ForgetFormerLeases);
        let lease_until = cx.now.plus(if forgets { Duration::ZERO } else { former });
        // The targets that the previous primary took from nodes are not recorded: until a node has
        // the current routing, it may believe to serve targets that it lost while it was away.
        let fence = state.head.routing;
        let unheard = Live { lease_until, fence, since: fence, ..Live::default() };
        let live = state.nodes.keys().map(|node| (*node, unheard.clone()));
        let nodes = Nodes {
            live: live.collect(),
            changed_at: state.chains.keys().map(|id| (*id, state.head.routing)).collect(),
        };
        let mut jobs = VecDeque::new();
        if head.is_none() {
            jobs.push_back(Job::Found);
        }
        Self {
            publisher: Publisher::new(&state),
            // Chains are evaluated when their nodes are heard, or stay silent.
            dirty: BTreeSet::new(),
            planner: Planner::default(),
            quotas: Quotas::new(),
            in_flight: None,
            plan_at: cx.now,
            pace: Pace::default(),
            repair_at: cx.now,
            lease,
            state,
            nodes,
            jobs,
            head,
        }
    }

    pub(super) fn routing(&self) -> &Routing {
        self.publisher.routing()
    }

    pub(super) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(super) fn step(&mut self, cx: &mut Cx<'_>, event: Event) -> Next {
        if !self.lease.tick(cx) {
            return Next::Down;
        }
        match event {
            Event::Store { id, reply } => {
                let keeps = match self.lease.answered(cx, id, &reply) {
                    Some(renewed) => renewed,
                    None => self.store_answered(cx, id, &reply),
                };
                if !keeps {
                    return Next::Down;
                }
            }
            Event::Register { from, register } => self.register(cx, from, register),
            Event::Heartbeat { from, heartbeat } => self.heartbeat(cx, from, heartbeat),
            Event::Suspect { node } => self.probe(cx, node),
            Event::Probed { node, incarnation, outcome } => {
                self.probed(cx, node, incarnation, outcome);
            }
            Event::Subscribe { from, cluster, have } => {
                self.publisher.subscribe(cx, from, (cluster, have));
            }
            Event::Received { from, version } => self.publisher.received(cx, from, version),
            Event::Closed { from } => self.publisher.closed(from),
            Event::Admin { from, command } => self.admin(cx, from, command),
            Event::Timer { .. } | Event::Resign => {}
        }
        self.watch(cx);
        self.work(cx);
        Next::Stay
    }

    pub(super) fn next_wake(&self, options: &ManagerOptions) -> Tick {
        let live = self.nodes.live.values().filter(|live| live.is_up());
        let nodes = live.map(|live| match (live.heard, live.probed) {
            (Some(heard), probed) if probed.is_none_or(|probed| probed < heard) => {
                live.lease_until.min(heard.plus(options.probe_after))
            }
            _ => live.lease_until,
        });
        // While a transaction is in flight nothing new is planned.
        let work = self.in_flight.as_ref().map_or(self.plan_at, InFlight::next_wake);
        nodes.fold(self.lease.next_wake(), Tick::min).min(work).min(self.repair_at)
    }

    /// Handles nodes with an expired lease, silent nodes and disks that are away for long.
    fn watch(&mut self, cx: &mut Cx<'_>) {
        let mut gone = Vec::new();
        let mut silent = Vec::new();
        for (id, live) in &self.nodes.live {
            if !live.is_up() {
                continue;
            }
            let early = mutated!(cx.options, GoneEarly) && live.heard.is_some();
            let short = if early { cx.options.node_lease / 2 } else { Duration::ZERO };
            if cx.now.plus(short) >= live.lease_until {
                gone.push(*id);
            } else if let Some(heard) = live.heard
                && cx.now.since(heard) >= cx.options.probe_after
                && live.probed.is_none_or(|probed| probed < heard)
            {
                silent.push(*id);
            }
        }
        for node in gone {
            self.take_for_gone(cx, node, "its lease has run out");
        }
        for node in silent {
            self.probe(cx, node);
        }
        if cx.now >= self.repair_at {
            self.repair_at = cx.now.plus(REPAIR_EVERY);
            self.give_up_disks(cx);
        }
    }

    /// Considers a node gone: its targets become OFFLINE.
    pub(super) fn take_for_gone(&mut self, cx: &Cx<'_>, node: NodeId, why: &str) {
        let Some(live) = self.nodes.live.get_mut(&node).filter(|live| live.is_up()) else { return };
        live.down = Some(cx.now);
        live.reports.clear();
        self.quotas.forget(node);
        self.dirty.extend(self.state.chains_of(node));
        let host = self.state.nodes.get(&node).map_or("", |record| record.host.as_str());
        let chains = self.state.chains_of(node).count();
        let text =
            format!("node {node} on host '{host}' is gone ({why}): {chains} chains lose a replica");
        self.jobs.push_back(Job::Note(text));
    }

    /// Gives up disks that were away for longer than `repair.after`; their data is rebuilt
    /// elsewhere.
    fn give_up_disks(&mut self, cx: &Cx<'_>) {
        let after = Rules::of(&self.state.config).repair_after;
        let mut lost = Vec::new();
        for disk in self.state.disks.values() {
            let Some(live) = self.nodes.live.get_mut(&disk.node) else { continue };
            let since = live.down.or_else(|| live.failing.get(&disk.id).copied());
            let expired = since.is_some_and(|since| cx.now.since(since) >= after);
            let wanted = !disk.state.is_given_up();
            if expired && wanted && live.given_up.insert(disk.id) {
                lost.push(Job::GiveUp(disk.id));
            }
        }
        self.jobs.extend(lost);
    }

    /// Asks whether a node's process is alive, unless that was asked a moment ago.
    pub(super) fn probe(&mut self, cx: &mut Cx<'_>, node: NodeId) {
        let Some(record) = self.state.nodes.get(&node) else { return };
        let Some(live) = self.nodes.live.get_mut(&node) else { return };
        let lately = live.probed.is_some_and(|probed| cx.now.since(probed) < PROBE_PAUSE);
        if lately || !live.is_up() {
            return;
        }
        live.probed = Some(cx.now);
        cx.effects.push(Effect::Probe {
            node,
            incarnation: record.incarnation,
            addresses: record.addresses.clone(),
        });
    }
}

/// True for a report that differs from the one before.
pub(super) fn says_new(before: Option<&TargetReport>, now: &TargetReport) -> bool {
    before.is_none_or(|before| (before.local, before.at) != (now.local, now.at))
}
