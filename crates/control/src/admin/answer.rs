//! What operators are told.

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
        /// What follows.
        text: String,
    },
    /// Not done.
    Refused {
        /// Why, and what to do.
        text: String,
    },
    /// How the cluster is.
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
    /// A page of the log; empty at its end.
    Events {
        /// Oldest first.
        events: Vec<Event>,
    },
    /// Somebody else is primary.
    NotPrimary {
        /// At these addresses, if they are known.
        primary: Vec<String>,
    },
}

/// How the cluster is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Its identity.
    pub cluster: String,
    /// Term of the primary manager that answers.
    pub term: u64,
    /// Where that one is reached.
    pub primary: Vec<String>,
    /// The newest routing.
    pub routing: u64,
    /// The newest configuration.
    pub config: u64,
    /// Replicas of the chains of all that asks for no others; 0 before there are chains.
    pub replicas: u8,
    /// Other numbers of replicas that there are chains of.
    pub tables: Vec<u8>,
    /// What is wrong, worst first.
    pub problems: Vec<Problem>,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// Nodes that are all right and did not fit the answer.
    pub nodes_left_out: usize,
    /// The disks.
    pub disks: Vec<Disk>,
    /// Disks that are all right and did not fit the answer.
    pub disks_left_out: usize,
    /// Chains with all replicas serving.
    pub chains_whole: usize,
    /// Chains that serve with fewer.
    pub chains_degraded: usize,
    /// Chains that do not serve.
    pub chains_down: usize,
    /// Targets of all chains by state.
    pub targets: TargetCounts,
    /// How far moves are.
    pub progress: Progress,
    /// What was done to move slots.
    pub slots: SlotTotals,
    /// Bytes that syncing targets still have to receive.
    pub behind_bytes: u64,
    /// Moves are paused.
    pub paused: bool,
    /// Connections that routing is pushed to.
    pub subscribers: usize,
}

/// Something wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub advice: String,
}

/// Targets by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetCounts {
    /// With all data.
    pub serving: usize,
    /// The last with all data, and away.
    pub last_serving: usize,
    /// Being brought up to date.
    pub syncing: usize,
    /// Waiting for their turn.
    pub waiting: usize,
    /// Gone.
    pub offline: usize,
}

/// How far moves are.
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

/// What nodes do, and did, to move slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SlotTotals {
    /// Chunks that the nodes which live have copied to other chains, each since it started.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Copies and removals that failed, and were tried again.
    pub failures: u64,
    /// Bytes copied per second, over the last half minute; 0 while that is not known.
    pub bytes_per_second: u64,
    /// Seconds until all slots that move, or wait, have arrived at this pace; none while that
    /// cannot be said.
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
    /// Milliseconds since it was last heard, if it was by this primary.
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
    /// It takes I/O, and its node is there.
    pub healthy: bool,
    /// `active`, `draining`, `lost` (given up by the operator) or `missing` (away for longer than `repair.after`).
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
    /// Ask for more behind this one.
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
    /// Slots that it takes the writes of.
    pub slots: usize,
}

/// A replica on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The target that comes.
    pub add: u32,
    /// The target that goes.
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
    /// `serving`, `lastsrv`, `syncing`, `waiting` or `offline`: what the manager says.
    pub state: String,
    /// `uptodate`, `online` or `offline`: what its node says.
    pub local: Option<String>,
    /// Bytes it holds.
    pub used_bytes: u64,
    /// Bytes still to come while it syncs.
    pub behind_bytes: u64,
}

/// A slot on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Slot {
    /// The slot.
    pub slot: u16,
    /// The chain it comes from.
    pub from: u32,
    /// The chain that takes its writes.
    pub to: u32,
    /// Chunks that the head of the first one has copied to the other.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// About how much of it is through, in thousandths; none before that head has said anything.
    pub through: Option<u16>,
}

/// The cluster's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Grows with every change.
    pub version: u64,
    /// What was set; other settings have their defaults.
    pub values: BTreeMap<String, String>,
}

/// Something that happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// Its number.
    pub number: u64,
    /// When, in seconds since 1970-01-01 UTC.
    pub at: u32,
    /// The chain concerned.
    pub chain: Option<u32>,
    /// What, in words.
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

/// At most `most`, those that are not `well` first, else in order; and how many were left out.
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
