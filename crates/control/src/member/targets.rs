//! The member's interface to the targets on this node's disks.

use std::sync::Arc;

use millpond_types::cluster::{
    ConfigRecord, DiskReport, Grant, QuotaReport, Routing, SlotDone, SlotsMoved, TargetReport,
};
use millpond_types::wire::NamespaceTableReply;
use millpond_types::{ChunkIds, Tick};
use tokio::sync::Notify;

/// Content of the next heartbeat about a node's targets and disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetsReport {
    /// All targets.
    pub targets: Vec<TargetReport>,
    /// All disks.
    pub disks: Vec<DiskReport>,
    /// Slots that finished moving, reported until the routing shows it.
    pub slots_done: Vec<SlotDone>,
    /// Progress of other slots.
    pub slots_moved: SlotsMoved,
    /// Queued requests, as a measure of load.
    pub queue_depth: u32,
    /// Namespaces with a quota.
    pub quotas: Vec<QuotaReport>,
}

/// The targets on this node's disks, as the member drives them. The member's thread calls all
/// methods except [`Targets::changed`], one at a time, and waits for each: they must not block.
pub trait Targets: Send + Sync {
    /// Receives the naming of chunks in the cluster once the node is admitted. Called before any
    /// lease is granted, and again with the same value after every registration.
    fn admitted(&self, ids: ChunkIds);

    /// Receives the newest routing, after every change, in order.
    fn routing(&self, routing: &Arc<Routing>);

    /// Receives the lease granted on the heartbeat sent at `sent`, and the targets to retire.
    /// Called only with a lease longer than 0, once [`Targets::routing`] has received
    /// `grant.routing` or newer.
    fn granted(&self, sent: Tick, grant: &Grant);

    /// Returns the content of the next heartbeat. A target reported OFFLINE has stopped serving
    /// before this returns, and serves again only after a grant on a later report with another
    /// state.
    fn report(&self) -> TargetsReport;

    /// Notified when a heartbeat should leave at once.
    fn changed(&self) -> Arc<Notify>;

    /// Stops the node: once this returns no target serves any more, and reports say OFFLINE.
    fn leave(&self);

    /// Receives the cluster's namespaces, after every change.
    fn namespaces(&self, table: &NamespaceTableReply);

    /// Receives the cluster's configuration, after every change.
    fn config(&self, config: &ConfigRecord);
}
