//! Who a node of a cluster is.

use millpond_types::Uuid128;
use millpond_types::cluster::{Incarnation, NodeId};

/// Who this process is in its cluster. Fixed from the start to the end of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The node, by what is on its disks.
    pub node: NodeId,
    /// This start of its process.
    pub incarnation: Incarnation,
    /// The cluster.
    pub cluster: Uuid128,
    /// `host:port` of every address it is reached at.
    pub addresses: Vec<String>,
    /// The host's name.
    pub host: String,
    /// Its failure domain; empty for one of its own.
    pub domain: String,
}
