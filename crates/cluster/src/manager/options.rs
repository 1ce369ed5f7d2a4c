//! Options of a manager.

use std::time::Duration;

use millpond_types::cluster::NodeId;
use millpond_types::ids::{ClusterSecret, Uuid128};
use millpond_types::limits::CHAINS_MAX;

/// Times of leases, and the identity of this manager.
#[derive(Clone, Debug)]
pub struct ManagerOptions {
    /// The node this manager runs in.
    pub me: NodeId,
    /// Its addresses, for nodes and clients that ask a standby.
    pub addresses: Vec<String>,
    /// The protocol version that nodes must speak.
    pub protocol: u8,
    /// Identity of the cluster, should this manager be the first ever; drawn at random by the
    /// shell.
    pub new_cluster: Uuid128,
    /// Seed of the placement of a new cluster.
    pub seed: u64,
    /// Key for the ids of a new cluster's chunks; drawn at random by the shell.
    pub secret: Option<ClusterSecret>,
    /// No other process has the store while this one does. The previous primary is dead, so this
    /// manager does not wait for the end of that lease. It does wait for the leases that the
    /// primary granted to nodes.
    pub is_alone: bool,
    /// Make chains automatically once this number of failure domains has registered.
    pub form: Option<Form>,
    /// Upper limit of the number of chains for every fleet; `CHAINS_MAX` leaves it to the
    /// placement. Few chains suit models of a cluster. Existing chains stay.
    pub chains_max: u32,
    /// Time that a primary stays primary after a renewal.
    pub lease: Duration,
    /// Time between renewals.
    pub renew: Duration,
    /// Time between a standby's checks of the lease.
    pub watch: Duration,
    /// Time that a node may serve after a heartbeat.
    pub node_lease: Duration,
    /// Silence of a node after which it is probed without a suspicion.
    pub probe_after: Duration,
    /// Largest difference of two clocks over the length of a lease. Subtracted by the holder of a
    /// lease, added by a process that waits for its end.
    pub margin: Duration,
    /// The deliberate bug of this manager.
    #[cfg(feature = "mutations")]
    pub mutation: Option<super::Mutation>,
}

/// When and how the first chains are made without an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Replicas of every chain.
    pub replicas: u8,
    /// Failure domains to wait for; at least as many as replicas.
    pub domains: u32,
}

impl ManagerOptions {
    /// The times of DESIGN section 5.
    #[must_use]
    pub fn new(me: NodeId) -> Self {
        Self {
            me,
            addresses: Vec::new(),
            protocol: millpond_types::wire::PROTOCOL_VERSION,
            new_cluster: Uuid128::NIL,
            seed: 0,
            secret: None,
            is_alone: false,
            form: None,
            chains_max: u32::try_from(CHAINS_MAX).unwrap_or(u32::MAX),
            lease: Duration::from_secs(5),
            renew: Duration::from_secs(1),
            watch: Duration::from_millis(500),
            node_lease: Duration::from_secs(2),
            probe_after: Duration::from_millis(700),
            margin: Duration::from_millis(250),
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
}
