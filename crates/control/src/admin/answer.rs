//! Answers to operators, as JSON.

use std::collections::BTreeMap;

use millpond_cluster::manager::{self, AdminAnswer};
use millpond_types::cluster::{
    ConfigRecord, DiskState, EventRecord, LocalState, NodeState, TargetMove, TargetState,
};
use serde::{Deserialize, Serialize};

/// Nodes and disks in one answer: about 2 MiB each, of the 5 MiB that a reply may have.
const NODES_SHOWN: usize = 4_000;
const DISKS_SHOWN: usize = 8_000;

/// The manager's answer, such as `{"answer":"refused","text":"there is no node …"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// Done, durably.
    Done {
        /// Result and consequences, in words.
        text: String,
    },
    /// Not done.
    Refused {
        /// Reason and remedy.
        text: String,
    },
    /// State of the cluster.
    Status(Box<Status>),
    /// A page of chains.
    Chains(ChainPage),
    /// The slots that move.
    Slots {
        /// In order.
        moving: Vec<Slot>,
    },
    /// The settings that were changed.
    Config(Config),
    /// A page of the event log; empty at its end.
    Events {
        /// Oldest first.
        events: Vec<Event>,
    },
    /// Another manager is primary.
    NotPrimary {
        /// Its addresses, if they are known.
        primary: Vec<String>,
    },
}

/// State of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Its identity.
    pub cluster: String,
    /// Term of the primary manager that answers.
    pub term: u64,
    /// Addresses of that manager.
    pub primary: Vec<String>,
    /// The newest routing.
    pub routing: u64,
    /// The newest configuration.
    pub config: u64,
    /// Replicas per chain of the cluster's own chain table; 0 before there are chains.
    pub replicas: u8,
    /// Other numbers of replicas with chains of their own.
    pub tables: Vec<u8>,
    /// Problems, worst first.
    pub problems: Vec<Problem>,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// Nodes left out of the answer for its size; live ones are left out first.
    pub nodes_left_out: usize,
    /// The disks.
    pub disks: Vec<Disk>,
    /// Disks left out of the answer for its size; healthy ones are left out first.
    pub disks_left_out: usize,
    /// Chains with all replicas serving.
    pub chains_whole: usize,
    /// Chains that serve with fewer.
    pub chains_degraded: usize,
    /// Chains that do not serve.
    pub chains_down: usize,
    /// Targets of all chains by state.
    pub targets: TargetCounts,
    /// Progress of moves.
    pub progress: Progress,
    /// Slot moves so far, and their pace.
    pub slots: SlotTotals,
    /// Bytes that syncing targets have yet to receive.
    pub behind_bytes: u64,
    /// Moves are paused.
    pub paused: bool,
    /// Connections that receive pushes of routing.
    pub subscribers: usize,
}

/// A problem.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// Description.
    pub what: String,
    /// Remedy.
    pub advice: String,
}

/// Targets by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetCounts {
    /// With all data.
    pub serving: usize,
    /// The last target with all data, now away.
    pub last_serving: usize,
    /// Being brought up to date.
    pub syncing: usize,
    /// Waiting for their turn.
    pub waiting: usize,
    /// Gone.
    pub offline: usize,
}

/// Progress of moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Chains still to make.
    pub chains_to_make: usize,
    /// Replicas that wait for their move.
    pub moves_waiting: usize,
    /// Replicas that move now.
    pub moves_running: usize,
    /// Slots that wait for their move.
    pub slots_waiting: usize,
    /// Slots that move now.
    pub slots_running: usize,
}

/// Slot moves so far, and their pace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlotTotals {
    /// Chunks that live nodes have copied to other chains, each since its start.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Failed copies and removals, each of which was retried.
    pub failures: u64,
    /// Bytes copied per second over the last half minute; 0 while unknown.
    pub bytes_per_second: u64,
    /// Seconds until all moving and waiting slots arrive at this pace; none while unknown.
    pub seconds_left: Option<u64>,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its identity.
    pub id: String,
    /// Its host.
    pub host: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Its failure domain.
    pub domain: String,
    /// The program version it runs.
    pub build: String,
    /// It holds a lease.
    pub alive: bool,
    /// Milliseconds since this primary last heard from it; none if it never did.
    pub silent_ms: Option<u64>,
    /// `active` or `draining`.
    pub state: String,
    /// The routing it runs.
    pub routing: u64,
    /// The configuration it runs.
    pub config: u64,
    /// Requests it has queued.
    pub queue_depth: u32,
    /// Its replicas.
    pub targets: usize,
}

/// A disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Disk {
    /// Its identity.
    pub id: String,
    /// Its node.
    pub node: String,
    /// Bytes for chunks.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// It accepts I/O, and its node is alive.
    pub healthy: bool,
    /// `active`, `draining`, `lost` (given up by the operator) or `missing` (away for longer than
    /// `repair.after`).
    pub state: String,
    /// Its replicas.
    pub targets: usize,
}

/// Some chains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChainPage {
    /// In the order of their numbers.
    pub chains: Vec<Chain>,
    /// The chain after which the next page starts; none at the end.
    pub next: Option<u32>,
}

/// A chain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Chain {
    /// Its number.
    pub id: u32,
    /// Its version.
    pub version: u32,
    /// Its members, head first.
    pub targets: Vec<Target>,
    /// The replica that moves.
    pub moving: Option<Move>,
    /// Slots that write to this chain.
    pub slots: usize,
}

/// A moving replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The target that joins.
    pub add: u32,
    /// The target that leaves.
    pub drop: Option<u32>,
}

/// A target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Target {
    /// Its number.
    pub target: u32,
    /// Its disk.
    pub disk: String,
    /// Its node.
    pub node: String,
    /// State according to the manager: `serving`, `lastsrv`, `syncing`, `waiting` or `offline`.
    pub state: String,
    /// State according to its node: `uptodate`, `online` or `offline`.
    pub local: Option<String>,
    /// Bytes it holds.
    pub used_bytes: u64,
    /// Bytes that it has yet to receive while it syncs.
    pub behind_bytes: u64,
}

/// A moving slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Slot {
    /// The slot.
    pub slot: u16,
    /// The source chain.
    pub from: u32,
    /// The destination chain, which takes its writes.
    pub to: u32,
    /// Chunks that the head of the source chain has copied to the destination.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Approximate progress, in thousandths; none before the first report of that head.
    pub through: Option<u16>,
}

/// The cluster's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Grows with every change.
    pub version: u64,
    /// Changed settings; all others have their defaults.
    pub values: BTreeMap<String, String>,
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// Its number.
    pub number: u64,
    /// When, in seconds since 1970-01-01 UTC.
    pub at: u32,
    /// The chain concerned.
    pub chain: Option<u32>,
    /// Description.
    pub text: String,
}

impl From<&AdminAnswer> for Answer {
    fn from(answer: &AdminAnswer) -> Self {
        match answer {
            AdminAnswer::Done(text) => Self::Done { text: text.clone() },
            AdminAnswer::Refused(text) => Self::Refused { text: text.clone() },
            AdminAnswer::Status(status) => Self::Status(Box::new(Status::from(&**status))),
            AdminAnswer::Chains(page) => Self::Chains(ChainPage {
                chains: page.chains.iter().map(Chain::from).collect(),
                next: page.next.map(|chain| chain.0),
            }),
            AdminAnswer::Slots(slots) => {
                Self::Slots { moving: slots.iter().map(Slot::from).collect() }
            }
            AdminAnswer::Config(config) => Self::Config(Config::from(config)),
            AdminAnswer::Events(events) => {
                Self::Events { events: events.iter().map(Event::from).collect() }
            }
            AdminAnswer::NotPrimary(primary) => Self::NotPrimary { primary: primary.clone() },
        }
    }
}

/// Returns at most `most` items and the number left out; items that are not `well` come first if
/// some do not fit.
fn shown<T>(mut all: Vec<T>, most: usize, well: impl Fn(&T) -> bool) -> (Vec<T>, usize) {
    let left_out = all.len().saturating_sub(most);
    if left_out > 0 {
        all.sort_by_key(well);
        all.truncate(most);
    }
    (all, left_out)
}

impl From<&manager::Status> for Status {
    fn from(status: &manager::Status) -> Self {
        let nodes = status.nodes.iter().map(Node::from).collect();
        let (nodes, nodes_left_out) = shown(nodes, NODES_SHOWN, |node| node.alive);
        let disks = status.disks.iter().map(Disk::from).collect();
        let (disks, disks_left_out) = shown(disks, DISKS_SHOWN, |disk| disk.healthy);
        let problem = |problem: &manager::Problem| Problem {
            what: problem.what.clone(),
            advice: problem.advice.clone(),
        };
        let (targets, progress) = (status.targets, status.progress);
        Self {
            cluster: status.cluster.to_string(),
            term: status.term.0,
            primary: status.primary.clone(),
            routing: status.routing.0,
            config: status.config.0,
            replicas: status.replicas,
            tables: status.more.iter().collect(),
            problems: status.problems.iter().map(problem).collect(),
            nodes,
            nodes_left_out,
            disks,
            disks_left_out,
            chains_whole: status.chains_whole,
            chains_degraded: status.chains_degraded,
            chains_down: status.chains_down,
            targets: TargetCounts {
                serving: targets.serving,
                last_serving: targets.last_serving,
                syncing: targets.syncing,
                waiting: targets.waiting,
                offline: targets.offline,
            },
            progress: Progress {
                chains_to_make: progress.chains_to_make,
                moves_waiting: progress.moves_waiting,
                moves_running: progress.moves_running,
                slots_waiting: progress.slots_waiting,
                slots_running: progress.slots_running,
            },
            slots: SlotTotals::from(status.slots),
            behind_bytes: status.behind_bytes,
            paused: status.paused,
            subscribers: status.subscribers,
        }
    }
}

impl From<&manager::NodeStatus> for Node {
    fn from(node: &manager::NodeStatus) -> Self {
        let state = match node.state {
            NodeState::Active => "active",
            NodeState::Draining => "draining",
        };
        Self {
            id: node.id.to_string(),
            host: node.host.clone(),
            addresses: node.addresses.clone(),
            domain: node.domain.clone(),
            build: node.build.clone(),
            alive: node.alive,
            silent_ms: node.silent_ms,
            state: state.to_owned(),
            routing: node.routing.0,
            config: node.config.0,
            queue_depth: node.queue_depth,
            targets: node.targets,
        }
    }
}

impl From<&manager::DiskStatus> for Disk {
    fn from(disk: &manager::DiskStatus) -> Self {
        let state = match disk.state {
            DiskState::Active => "active",
            DiskState::Draining => "draining",
            DiskState::Lost => "lost",
            DiskState::Missing => "missing",
        };
        Self {
            id: disk.id.to_string(),
            node: disk.node.to_string(),
            capacity_bytes: disk.capacity_bytes,
            used_bytes: disk.used_bytes,
            healthy: disk.healthy,
            state: state.to_owned(),
            targets: disk.targets,
        }
    }
}

impl From<&manager::ChainStatus> for Chain {
    fn from(chain: &manager::ChainStatus) -> Self {
        let moving = |it: TargetMove| Move { add: it.add.0, drop: it.drop.map(|target| target.0) };
        Self {
            id: chain.id.0,
            version: chain.version.0,
            targets: chain.targets.iter().map(Target::from).collect(),
            moving: chain.moving.map(moving),
            slots: chain.slots,
        }
    }
}

impl From<&manager::TargetStatus> for Target {
    fn from(target: &manager::TargetStatus) -> Self {
        let state = match target.state {
            TargetState::Serving => "serving",
            TargetState::LastServing => "lastsrv",
            TargetState::Syncing => "syncing",
            TargetState::Waiting => "waiting",
            TargetState::Offline => "offline",
        };
        let local = |local| match local {
            LocalState::UpToDate => "uptodate",
            LocalState::Online => "online",
            LocalState::Offline => "offline",
        };
        Self {
            target: target.target.0,
            disk: target.disk.to_string(),
            node: target.node.to_string(),
            state: state.to_owned(),
            local: target.local.map(|state| local(state).to_owned()),
            used_bytes: target.used_bytes,
            behind_bytes: target.behind_bytes,
        }
    }
}

impl From<&manager::SlotStatus> for Slot {
    fn from(slot: &manager::SlotStatus) -> Self {
        let told = slot.progress;
        Self {
            slot: slot.slot.0,
            from: slot.from.0,
            to: slot.to.0,
            chunks: told.map_or(0, |told| told.chunks),
            bytes: told.map_or(0, |told| told.bytes),
            through: told.map(|told| told.through),
        }
    }
}

impl From<manager::SlotTotals> for SlotTotals {
    fn from(slots: manager::SlotTotals) -> Self {
        let manager::SlotTotals { chunks, bytes, failures, bytes_per_second, seconds_left } = slots;
        Self { chunks, bytes, failures, bytes_per_second, seconds_left }
    }
}

impl From<&ConfigRecord> for Config {
    fn from(config: &ConfigRecord) -> Self {
        Self { version: config.version.0, values: config.values.clone() }
    }
}

impl From<&EventRecord> for Event {
    fn from(event: &EventRecord) -> Self {
        Self {
            number: event.number,
            at: event.at.0,
            chain: event.chain.map(|chain| chain.0),
            text: event.text.clone(),
        }
    }
}
