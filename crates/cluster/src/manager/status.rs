//! State of the cluster, for operators: problems first, with advice.

use millpond_types::cluster::{
    ChainId, ChainVersion, ConfigVersion, DiskId, DiskState, LocalState, NodeId, NodeState,
    RoutingVersion, SlotProgress, TableSet, TargetId, TargetMove, TargetState, Term,
};
use millpond_types::ids::{SlotId, Uuid128};

use crate::planner::Progress;

/// Summary of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Its identity.
    pub cluster: Uuid128,
    /// The term of the primary that answers.
    pub term: Term,
    /// Addresses of that primary.
    pub primary: Vec<String>,
    /// The newest routing.
    pub routing: RoutingVersion,
    /// The newest configuration.
    pub config: ConfigVersion,
    /// Replicas of every chain of the default table.
    pub replicas: u8,
    /// Further tables.
    pub more: TableSet,
    /// Problems, worst first; empty when all is well.
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
    /// Progress of moves.
    pub progress: Progress,
    /// Work done to move slots.
    pub slots: SlotTotals,
    /// Bytes that syncing replicas still have to receive, as far as reported.
    pub behind_bytes: u64,
    /// Whether moves are paused.
    pub paused: bool,
    /// Number of connections that routing is pushed to.
    pub subscribers: usize,
}

/// Work of the nodes on slot moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotTotals {
    /// Chunks that the living nodes have copied to other chains, each since its start.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Copies and removals that failed and were tried again.
    pub failures: u64,
    /// Bytes copied per second, over the last half minute; 0 while unknown.
    pub bytes_per_second: u64,
    /// Estimated seconds until all moving and waiting slots have arrived, at the rate of the last
    /// half minute; `None` while unknown.
    pub seconds_left: Option<u64>,
}

/// A problem and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The problem.
    pub what: String,
    /// The remedy.
    pub advice: String,
}

/// Summary of a node.
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
    /// Whether it holds a lease.
    pub alive: bool,
    /// Milliseconds since its last heartbeat; `None` if there was none since this manager took
    /// over.
    pub silent_ms: Option<u64>,
    /// State set by the operator.
    pub state: NodeState,
    /// The routing it uses.
    pub routing: RoutingVersion,
    /// The configuration it uses.
    pub config: ConfigVersion,
    /// Requests it has queued.
    pub queue_depth: u32,
    /// Its replicas.
    pub targets: usize,
}

/// Summary of a disk.
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
    /// State set by operator and manager.
    pub state: DiskState,
    /// Its replicas.
    pub targets: usize,
}

/// Numbers of targets by their public state.
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
    /// Counts one more target.
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
    /// Continue after this one; `None` at the end.
    pub next: Option<ChainId>,
}

/// Summary of a chain.
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
    /// Number of slots whose writes it takes.
    pub slots: usize,
}

/// Summary of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetStatus {
    /// Its number.
    pub target: TargetId,
    /// The disk that holds it.
    pub disk: DiskId,
    /// The node that has the disk.
    pub node: NodeId,
    /// Its public state.
    pub state: TargetState,
    /// The last state reported by its node; `None` when unknown.
    pub local: Option<LocalState>,
    /// Bytes it holds, as last reported.
    pub used_bytes: u64,
    /// While it syncs: bytes still to come, as far as reported.
    pub behind_bytes: u64,
}

/// A slot that moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotStatus {
    /// The slot.
    pub slot: SlotId,
    /// The chain that it comes from.
    pub from: ChainId,
    /// The chain that takes its writes.
    pub to: ChainId,
    /// Its progress, if the head of the old chain has reported it.
    pub progress: Option<SlotProgress>,
}
