//! Messages between nodes and the manager.

use super::{
    ChainId, ChainVersion, ConfigRecord, ConfigVersion, DiskId, Incarnation, LocalState, NodeId,
    RoutingVersion, TargetId,
};
use crate::ids::{ClusterSecret, GroupId, SlotId, Uuid128};

/// A disk that its node offers to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOffer {
    /// Its identity, from its superblock.
    pub id: DiskId,
    /// Bytes for chunks.
    pub capacity_bytes: u64,
}

/// Registration of a process: sent when a server starts, and again whenever a field has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Register {
    /// The node's identity, from its disks.
    pub node: NodeId,
    /// The incarnation of its process.
    pub incarnation: Incarnation,
    /// The cluster its disks belong to; nil for new ones.
    pub cluster: Uuid128,
    /// `host:port` of every address that the node listens on.
    pub addresses: Vec<String>,
    /// Its host's name, for messages.
    pub host: String,
    /// Its failure domain; empty if the node is a domain by itself.
    pub domain: String,
    /// The version of the program.
    pub build: String,
    /// The protocol version of the node.
    pub protocol: u8,
    /// Whether it has the meta role.
    pub meta: bool,
    /// Its disks.
    pub disks: Vec<DiskOffer>,
}

/// Why the manager rejects a node. The text says how to fix it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The manager does not know this process: it must register first.
    #[error("this process has not registered with the manager: register again")]
    Unregistered,
    /// Another live process has this identity.
    #[error(
        "node {node} already runs on host '{host}' at {addresses}: two processes cannot share one \
         identity; stop one of them, or give this one its own data folder"
    )]
    Running {
        /// The identity.
        node: NodeId,
        /// Host of the other process.
        host: String,
        /// Addresses of the other process.
        addresses: String,
    },
    /// A newer process with this identity has taken over.
    #[error("node {node} was started again on host '{host}': this process must stop")]
    Superseded {
        /// The identity.
        node: NodeId,
        /// Host of the newer process.
        host: String,
    },
    /// Another live node has this disk.
    #[error(
        "disk {disk} is in use by node {node} on host '{host}': a disk belongs to one node only"
    )]
    DiskElsewhere {
        /// The disk.
        disk: DiskId,
        /// The node that has it.
        node: NodeId,
        /// Host of that node.
        host: String,
    },
    /// The disks belong to another cluster.
    #[error("the data folder belongs to cluster {theirs}, but this is cluster {ours}")]
    Cluster {
        /// The manager's cluster.
        ours: Uuid128,
        /// The node's cluster.
        theirs: Uuid128,
    },
    /// This cluster does not support the protocol version.
    #[error("protocol version {theirs} is not supported here ({ours} is): upgrade the older side")]
    Protocol {
        /// Version of the manager.
        ours: u8,
        /// Version of the node.
        theirs: u8,
    },
    /// The named field of the message is out of bounds.
    #[error("'{0}' is not valid: see the limits in the documentation")]
    Field(String),
}

/// The answer to [`Register`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterAnswer {
    /// The node is registered; heartbeats may begin.
    Accepted {
        /// The cluster's identity, for the node to store on its disks.
        cluster: Uuid128,
        /// The newest routing.
        routing: RoutingVersion,
        /// The secret that keys the ids of chunks, if the cluster has one.
        secret: Option<ClusterSecret>,
    },
    /// The manager rejects the node.
    Refused(Refusal),
    /// No decision yet, because the manager still probes the previous process: ask again.
    Retry {
        /// Pause before the next attempt, in milliseconds.
        after_ms: u32,
    },
    /// Another manager is primary, at these addresses if they are known.
    NotPrimary(Vec<String>),
}

/// State of a target.
///
/// OFFLINE is a promise: the target stopped serving before the node reported it, and serves again
/// only after the manager grants a lease on a heartbeat with another state. So the manager may act
/// on an OFFLINE report even while a newer report is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetReport {
    /// The target.
    pub target: TargetId,
    /// Its chain.
    pub chain: ChainId,
    /// The chain version of which the node reports; the state holds for this version only.
    pub at: ChainVersion,
    /// Its state.
    pub local: LocalState,
    /// Bytes it holds.
    pub used_bytes: u64,
    /// While it syncs: bytes still to be copied, as far as known.
    pub behind_bytes: u64,
}

/// State of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskReport {
    /// The disk.
    pub disk: DiskId,
    /// Bytes for chunks.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// False when the disk rejects or fails I/O. Its targets have then stopped, as with OFFLINE.
    pub healthy: bool,
}

/// A moved slot: all its chunks have arrived on its new chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotDone {
    /// The slot.
    pub slot: SlotId,
    /// The chain that it left.
    pub from: ChainId,
    /// The chain that has it now.
    pub to: ChainId,
}

/// Progress of a slot that leaves a chain, as reported by the head of that chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotProgress {
    /// The slot.
    pub slot: SlotId,
    /// Chunks that this head copied to the new chain.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Estimate of the finished part of the slot, in thousandths.
    pub through: u16,
}

/// Past and present work of a node to move slots away from chains that it heads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotsMoved {
    /// Chunks copied to other chains since its process started.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Copies and removals that failed; the node tries them again.
    pub failures: u64,
    /// Slots that move now, in order.
    pub moving: Vec<SlotProgress>,
}

/// Usage of a namespace with a quota on the chains that one node heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaReport {
    /// The namespace.
    pub namespace: GroupId,
    /// Bytes that the namespace may hold in the whole cluster, each value counted once.
    pub quota_bytes: u64,
    /// Whether the namespace evicts its own blocks to stay within the quota.
    pub evicts: bool,
    /// Bytes of its values on the chains that this node heads.
    pub used_bytes: u64,
    /// The limit that the node enforces now.
    pub limit_bytes: u64,
}

/// A node's part of a namespace's quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimit {
    /// The namespace.
    pub namespace: GroupId,
    /// Bytes that the chains headed by the node may hold of it.
    pub limit_bytes: u64,
}

/// Report of a live node: sent every 500 ms, and at once when something changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// The node.
    pub node: NodeId,
    /// Its process.
    pub incarnation: Incarnation,
    /// Grows with every heartbeat of this process; the manager drops one that arrives late. The
    /// node counts its lease from the time it sent the answered heartbeat.
    pub number: u64,
    /// The routing version in use.
    pub routing: RoutingVersion,
    /// The configuration version in use.
    pub config: ConfigVersion,
    /// The node is stopping: all its targets have stopped serving.
    pub stopping: bool,
    /// All its targets.
    pub targets: Vec<TargetReport>,
    /// All its disks.
    pub disks: Vec<DiskReport>,
    /// Slots that finished moving, repeated until the routing shows it.
    pub slots_done: Vec<SlotDone>,
    /// Progress of the slots that still move.
    pub slots_moved: SlotsMoved,
    /// Queued requests, as a measure of load.
    pub queue_depth: u32,
    /// All namespaces with a quota, from a node with disks.
    pub quotas: Vec<QuotaReport>,
}

/// The answer to [`Heartbeat`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeartbeatAnswer {
    /// The manager renews the lease.
    Granted(Grant),
    /// This process must not serve.
    Refused {
        /// The answered heartbeat.
        number: u64,
        /// The reason.
        why: Refusal,
    },
    /// Another manager is primary, at these addresses if they are known.
    NotPrimary(Vec<String>),
}

/// A node lease, and news for the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The answered heartbeat.
    pub number: u64,
    /// Lease in milliseconds: the node may serve for this long after it sent that heartbeat, by its
    /// own clock. The node subtracts its own margin.
    pub lease_ms: u32,
    /// The newest routing version; the manager pushes the routing to a node with an older one.
    pub routing: RoutingVersion,
    /// The cluster's configuration, when the node runs an older one.
    pub config: Option<ConfigRecord>,
    /// Targets that the node must stop and then report OFFLINE, because their replacements serve.
    pub retire: Vec<TargetId>,
    /// The node's parts of quotas, for the chains that it heads by `routing`. A namespace that is
    /// missing keeps its limit: this manager has not received reports of all heads yet.
    pub quotas: Vec<QuotaLimit>,
}
