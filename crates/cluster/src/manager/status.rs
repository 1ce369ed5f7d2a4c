//! How the cluster is, for operators: what is wrong first, and what to do.

use millpond_types::cluster::{
    ChainId, ChainVersion, ConfigVersion, DiskId, DiskState, LocalState, NodeId, NodeState,
    RoutingVersion, SlotProgress, TableSet, TargetId, TargetMove, TargetState, Term,
};
use millpond_types::ids::{SlotId, Uuid128};

use crate::planner::Progress;

/// The cluster at a glance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Its identity.
    pub cluster: Uuid128,
    /// The term of the primary that answers.
    pub term: Term,
    /// Where that primary is reached.
    pub primary: Vec<String>,
    /// The newest routing.
    pub routing: RoutingVersion,
    /// The newest configuration.
    pub config: ConfigVersion,
    /// Replicas of every chain of the cluster's own table.
    pub replicas: u8,
    /// Further tables.
    pub more: TableSet,
    /// What is wrong, worst first; empty when all is well.
    pub problems: Vec<Problem>,
    /// All nodes.
    pub nodes: Vec<NodeStatus>,
    /// All disks.
    pub disks: Vec<DiskStatus>,
    /// Chains with all replicas serving.
    pub chains_whole: usize,
    /// Chains that serve with fewer.
    pub chains_degraded: usize,
    /// Chains that do not serve.
    pub chains_down: usize,
    /// Targets of all chains, by state.
    pub targets: TargetCounts,
    /// How far moves are.
    pub progress: Progress,
    /// What was done to move slots.
    pub slots: SlotTotals,
    /// Bytes that syncing replicas still have to receive, as far as reported.
    pub behind_bytes: u64,
    /// Moves are paused.
    pub paused: bool,
    /// Connections that routing is pushed to.
    pub subscribers: usize,
}

/// What nodes do, and did, to move slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotTotals {
    /// Chunks that the nodes which live have copied to other chains, each since it started.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Copies and removals that failed, and were tried again.
    pub failures: u64,
    /// Bytes copied per second, over the last half minute; 0 while that is not known.
    pub bytes_per_second: u64,
    /// Seconds until all slots that move, or wait, have arrived, if all goes on as it did in the
    /// last half minute; none while that cannot be said.
    pub seconds_left: Option<u64>,
}

/// Something wrong, and what helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong.
    pub what: String,
    /// What to do.
    pub advice: String,
}

/// A node at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its identity.
    pub id: NodeId,
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
    /// Milliseconds since it was last heard; none since this manager took over.
    pub silent_ms: Option<u64>,
    /// What the operator wants of it.
    pub state: NodeState,
    /// The routing it runs.
    pub routing: RoutingVersion,
    /// The configuration it runs.
    pub config: ConfigVersion,
    /// Requests it has queued.
    pub queue_depth: u32,
    /// Its replicas.
    pub targets: usize,
}

/// A disk at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskStatus {
    /// Its identity.
    pub id: DiskId,
    /// Its node.
    pub node: NodeId,
    /// Bytes for chunks.
    pub capacity_bytes: u64,
    /// Bytes in use, as last reported.
    pub used_bytes: u64,
    /// False when it fails I/O, or its node is gone.
    pub healthy: bool,
    /// What is wanted of it.
    pub state: DiskState,
    /// Its replicas.
    pub targets: usize,
}

/// Targets by what the manager says of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

impl TargetCounts {
    /// Counts one more.
    pub fn add(&mut self, state: TargetState) {
        *match state {
            TargetState::Serving => &mut self.serving,
            TargetState::LastServing => &mut self.last_serving,
            TargetState::Syncing => &mut self.syncing,
            TargetState::Waiting => &mut self.waiting,
            TargetState::Offline => &mut self.offline,
        } += 1;
    }
}

/// Some chains, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainPage {
    /// The chains.
    pub chains: Vec<ChainStatus>,
    /// Ask for more behind this one; none at the end.
    pub next: Option<ChainId>,
}

/// A chain at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainStatus {
    /// Its number.
    pub id: ChainId,
    /// Its version.
    pub version: ChainVersion,
    /// Its members, head first.
    pub targets: Vec<TargetStatus>,
    /// The replica that moves.
    pub moving: Option<TargetMove>,
    /// Slots that it takes the writes of.
    pub slots: usize,
}

/// A target at a glance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetStatus {
    /// Its number.
    pub target: TargetId,
    /// The disk that holds it.
    pub disk: DiskId,
    /// The node that has the disk.
    pub node: NodeId,
    /// What the manager says of it.
    pub state: TargetState,
    /// What its node last said of it; none when that is not known.
    pub local: Option<LocalState>,
    /// Bytes it holds, as last reported.
    pub used_bytes: u64,
    /// While it syncs: bytes still to come, as far as reported.
    pub behind_bytes: u64,
}

/// A slot on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotStatus {
    /// The slot.
    pub slot: SlotId,
    /// The chain that it comes from.
    pub from: ChainId,
    /// The chain that takes its writes.
    pub to: ChainId,
    /// How far it is, if the head of the chain that it leaves has said so.
    pub progress: Option<SlotProgress>,
}
