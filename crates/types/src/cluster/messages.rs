//! What nodes and the manager say to each other.

use super::{
    ChainId, ChainVersion, ConfigRecord, ConfigVersion, DiskId, Incarnation, LocalState, NodeId,
    RoutingVersion, TargetId,
};
use crate::ids::{ClusterSecret, GroupId, SlotId, Uuid128};

/// A disk as its node offers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskOffer {
    /// Its identity, from its superblock.
    pub id: DiskId,
    /// Bytes for chunks.
    pub capacity_bytes: u64,
}

/// "Here I am": sent when a server starts, and again whenever what it says has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Register {
    /// The node's identity, from its disks.
    pub node: NodeId,
    /// This start of its process.
    pub incarnation: Incarnation,
    /// The cluster its disks belong to; nil for new ones.
    pub cluster: Uuid128,
    /// `host:port` of every address it listens on.
    pub addresses: Vec<String>,
    /// Its host's name, for messages.
    pub host: String,
    /// Its failure domain; empty for one of its own.
    pub domain: String,
    /// The version of the program.
    pub build: String,
    /// The protocol version it speaks.
    pub protocol: u8,
    /// Whether it has the meta role.
    pub meta: bool,
    /// Its disks.
    pub disks: Vec<DiskOffer>,
}

/// Why a node is not let in. The text names what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The manager does not know this process: register first.
    #[error("this process has not registered with the manager: register again")]
    Unregistered,
    /// Another process with this identity lives.
    #[error(
        "node {node} already runs on host '{host}' at {addresses}: two processes may not share one \
         identity; stop one of them, or give this one its own data folder"
    )]
    Running {
        /// The identity.
        node: NodeId,
        /// Where the other process runs.
        host: String,
        /// At which addresses.
        addresses: String,
    },
    /// A newer process with this identity has taken over.
    #[error("node {node} was started again on host '{host}': this process must stop")]
    Superseded {
        /// The identity.
        node: NodeId,
        /// Where the newer process runs.
        host: String,
    },
    /// Another node that lives has this disk.
    #[error("disk {disk} is in use by node {node} on host '{host}': a disk has one node")]
    DiskElsewhere {
        /// The disk.
        disk: DiskId,
        /// Who has it.
        node: NodeId,
        /// Where that runs.
        host: String,
    },
    /// The disks belong to another cluster.
    #[error("the data folder belongs to cluster {theirs}, this is cluster {ours}")]
    Cluster {
        /// The manager's cluster.
        ours: Uuid128,
        /// The node's cluster.
        theirs: Uuid128,
    },
    /// The protocol version is not one that this cluster speaks.
    #[error("protocol version {theirs} is not spoken here ({ours}): upgrade the older side")]
    Protocol {
        /// What the manager speaks.
        ours: u8,
        /// What the node speaks.
        theirs: u8,
    },
    /// Something in the message is out of bounds.
    #[error("'{0}' is not acceptable: see the limits in the documentation")]
    Field(String),
}

/// The answer to [`Register`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisterAnswer {
    /// Known from now on; heartbeats may begin.
    Accepted {
        /// The cluster, to be kept on the disks.
        cluster: Uuid128,
        /// The newest routing.
        routing: RoutingVersion,
        /// What the ids of chunks are keyed by, if the cluster has a secret.
        secret: Option<ClusterSecret>,
    },
    /// Not let in.
    Refused(Refusal),
    /// Not decided yet (the process before this one is being probed): ask again.
    Retry {
        /// After so many milliseconds.
        after_ms: u32,
    },
    /// Somebody else is primary, at these addresses if they are known.
    NotPrimary(Vec<String>),
}

/// How a target is.
///
/// OFFLINE is a promise: the target has stopped serving before this is said, and serves again only
/// after a lease was granted on a heartbeat that says otherwise. The manager may act on the first
/// word while the second is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetReport {
    /// The target.
    pub target: TargetId,
    /// Its chain.
    pub chain: ChainId,
    /// The version of the chain that the node goes by; a state is said of this version only.
    pub at: ChainVersion,
    /// Its state.
    pub local: LocalState,
    /// Bytes it holds.
    pub used_bytes: u64,
    /// While it syncs: bytes still to come, as far as known.
    pub behind_bytes: u64,
}

/// How a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskReport {
    /// The disk.
    pub disk: DiskId,
    /// Bytes for chunks.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// False when it refuses or fails I/O; then its targets have stopped, as with OFFLINE.
    pub healthy: bool,
}

/// A slot whose chunks have all arrived on its new chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotDone {
    /// The slot.
    pub slot: SlotId,
    /// Where it came from.
    pub from: ChainId,
    /// Where it is now.
    pub to: ChainId,
}

/// How far a slot that leaves a chain is, by the head of that chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotProgress {
    /// The slot.
    pub slot: SlotId,
    /// Chunks that this head copied to the new chain.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// About how much of the slot is through, in thousandths.
    pub through: u16,
}

/// What a node does, and did, to move slots from chains that it heads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotsMoved {
    /// Chunks copied to other chains since its process started.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Copies and removals that failed, and are tried again.
    pub failures: u64,
    /// Slots on their way, in order.
    pub moving: Vec<SlotProgress>,
}

/// What a node's heads hold of a namespace that has a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaReport {
    /// The namespace.
    pub namespace: GroupId,
    /// Bytes that the namespace may hold in the whole cluster, each value counted once.
    pub quota_bytes: u64,
    /// Whether it evicts its own blocks to stay within.
    pub evicts: bool,
    /// Bytes of its values on the chains that this node heads.
    pub used_bytes: u64,
    /// The limit that the node goes by.
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

/// "I live, and this is how I am": every 500 ms, and at once when something changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// Who.
    pub node: NodeId,
    /// Which process.
    pub incarnation: Incarnation,
    /// Grows with every heartbeat of this process; one that comes late is dropped. The node counts
    /// its lease from when it sent the heartbeat that was answered.
    pub number: u64,
    /// The routing it runs.
    pub routing: RoutingVersion,
    /// The configuration it runs.
    pub config: ConfigVersion,
    /// It is stopping: all its targets have stopped serving.
    pub stopping: bool,
    /// All its targets.
    pub targets: Vec<TargetReport>,
    /// All its disks.
    pub disks: Vec<DiskReport>,
    /// Slots that finished moving, said until the routing shows it.
    pub slots_done: Vec<SlotDone>,
    /// How far other slots are.
    pub slots_moved: SlotsMoved,
    /// Requests it has queued, as a measure of load.
    pub queue_depth: u32,
    /// All namespaces that have a quota, from a node with disks.
    pub quotas: Vec<QuotaReport>,
}

/// The answer to [`Heartbeat`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeartbeatAnswer {
    /// The lease goes on.
    Granted(Grant),
    /// This process must not serve.
    Refused {
        /// The heartbeat answered.
        number: u64,
        /// Why.
        why: Refusal,
    },
    /// Somebody else is primary, at these addresses if they are known.
    NotPrimary(Vec<String>),
}

/// A node lease and what the node should know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// The heartbeat answered.
    pub number: u64,
    /// Milliseconds for which the node may serve, from when it sent that heartbeat, by its own
    /// clock; it takes its own margin off.
    pub lease_ms: u32,
    /// The newest routing, which is pushed if the node has an older one.
    pub routing: RoutingVersion,
    /// The cluster's configuration, when the node runs an older one.
    pub config: Option<ConfigRecord>,
    /// Targets that are to stop serving and then be reported OFFLINE: their replacement serves.
    pub retire: Vec<TargetId>,
    /// The node's parts of quotas, for the chains that it heads by `routing`. One that is missing stays
    /// as it was: this manager has not heard of all heads yet.
    pub quotas: Vec<QuotaLimit>,
}
