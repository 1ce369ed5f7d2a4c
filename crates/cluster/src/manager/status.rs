//! How the cluster is, for operators: what is wrong first, and what to do.

use millpond_types::cluster::{
    ConfigVersion, DiskId, DiskState, NodeId, NodeState, RoutingVersion,
};
use millpond_types::ids::Uuid128;

use crate::planner::Progress;

/// The cluster at a glance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Its identity.
    pub cluster: Uuid128,
    /// The newest routing.
    pub routing: RoutingVersion,
    /// The newest configuration.
    pub config: ConfigVersion,
    /// Replicas of every chain.
    pub replicas: u8,
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
    /// How far moves are.
    pub progress: Progress,
    /// Bytes that syncing replicas still have to receive, as far as reported.
    pub behind_bytes: u64,
    /// Moves are paused.
    pub paused: bool,
    /// Connections that routing is pushed to.
    pub subscribers: usize,
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
