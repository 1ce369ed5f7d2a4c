//! What the member needs of the disks' targets.

use std::sync::Arc;

use millpond_types::cluster::{
    ConfigRecord, DiskReport, Grant, QuotaReport, Routing, SlotDone, SlotsMoved, TargetReport,
};
use millpond_types::wire::NamespaceTableReply;
use millpond_types::{ChunkIds, Tick};
use tokio::sync::Notify;

/// What the next heartbeat says of a node's targets and disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetsReport {
    /// All targets.
    pub targets: Vec<TargetReport>,
    /// All disks.
    pub disks: Vec<DiskReport>,
    /// Slots that finished moving, said until the routing shows it.
    pub slots_done: Vec<SlotDone>,
    /// How far other slots are.
    pub slots_moved: SlotsMoved,
    /// Requests queued, as a measure of load.
    pub queue_depth: u32,
    /// Namespaces that have a quota.
    pub quotas: Vec<QuotaReport>,
}

/// The targets on this node's disks, as the member drives them. Its thread calls everything but
/// [`Targets::changed`], one call at a time, and waits for each: they must not block.
pub trait Targets: Send + Sync {
    /// The node was let in: how the cluster names chunks. Called before any lease is granted, and
    /// again with the same after every registration.
    fn admitted(&self, ids: ChunkIds);

    /// The newest routing, after every change, in order.
    fn routing(&self, routing: &Arc<Routing>);

    /// A lease was granted on the heartbeat sent at `sent`, and also what is to retire. Only called
    /// with a lease longer than 0, once [`Targets::routing`] has had `grant.routing` or newer.
    fn granted(&self, sent: Tick, grant: &Grant);

    /// What the next heartbeat says. A target said to be OFFLINE here has stopped serving before
    /// this returns, and serves again only after a grant on a later report that says otherwise.
    fn report(&self) -> TargetsReport;

    /// Notified when a heartbeat should leave at once.
    fn changed(&self) -> Arc<Notify>;

    /// The node stops: when this returns no target serves any more, and reports say OFFLINE.
    fn leave(&self);

    /// The cluster's namespaces, after every change.
    fn namespaces(&self, table: &NamespaceTableReply);

    /// The cluster's configuration, after every change.
    fn config(&self, config: &ConfigRecord);
}
