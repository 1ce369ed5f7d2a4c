//! Requests of operators.

use millpond_cluster::manager::AdminCommand;
use millpond_types::SlotId;
use millpond_types::cluster::{ChainId, DiskId, NodeId, TargetId};
use millpond_types::ids::Uuid128;
use serde::{Deserialize, Serialize};

use super::AdminError;

/// A request, such as `{"command":"drain_node","node":"6f1c2a9e-…","on":true}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Command {
    /// Make the first chains.
    Form {
        /// Replicas of every chain.
        replicas: u8,
    },
    /// Change a setting.
    Set {
        /// Its name.
        name: String,
        /// Its value; empty for the default.
        value: String,
    },
    /// Empty a node, or stop emptying it.
    DrainNode {
        /// Its identity.
        node: String,
        /// Empty it.
        on: bool,
    },
    /// Empty a disk, or stop emptying it.
    DrainDisk {
        /// Its identity.
        disk: String,
        /// Empty it.
        on: bool,
    },
    /// Give a disk up: its replicas are rebuilt from the others.
    LoseDisk {
        /// Its identity.
        disk: String,
    },
    /// Forget a node that holds nothing and does not run.
    RemoveNode {
        /// Its identity.
        node: String,
    },
    /// Move one replica.
    MoveTarget {
        /// Its chain.
        chain: u32,
        /// Its target.
        target: u32,
        /// Identity of the disk that it goes to.
        disk: String,
    },
    /// Move a slot to another chain.
    MoveSlot {
        /// Its number.
        slot: u16,
        /// The chain that it goes to.
        chain: u32,
    },
    /// State of the cluster.
    Status {},
    /// A page of chains.
    Chains {
        /// Chains after this one; 0 for the first page.
        #[serde(default)]
        after: u32,
        /// Only chains with a member that does not serve or that moves.
        #[serde(default)]
        unhealthy: bool,
    },
    /// The slots that move.
    Slots {},
    /// The settings that were changed.
    Config {},
    /// A page of the event log, oldest first.
    Events {
        /// Events from this number on.
        #[serde(default)]
        from: u64,
    },
}

fn identity(field: &'static str, text: &str) -> Result<Uuid128, AdminError> {
    text.parse().map_err(|source| AdminError::Identity { field, source })
}

fn node_id(text: &str) -> Result<NodeId, AdminError> {
    identity("node", text).map(NodeId)
}

fn disk_id(text: &str) -> Result<DiskId, AdminError> {
    identity("disk", text).map(DiskId)
}

impl TryFrom<Command> for AdminCommand {
    type Error = AdminError;

    fn try_from(command: Command) -> Result<Self, AdminError> {
        Ok(match command {
            Command::Form { replicas } => Self::Form { replicas },
            Command::Set { name, value } => Self::Set { name, value },
            Command::DrainNode { node, on } => Self::DrainNode { node: node_id(&node)?, on },
            Command::DrainDisk { disk, on } => Self::DrainDisk { disk: disk_id(&disk)?, on },
            Command::LoseDisk { disk } => Self::LoseDisk { disk: disk_id(&disk)? },
            Command::RemoveNode { node } => Self::RemoveNode { node: node_id(&node)? },
            Command::MoveTarget { chain, target, disk } => Self::MoveTarget {
                chain: ChainId(chain),
                from: TargetId(target),
                to: disk_id(&disk)?,
            },
            Command::MoveSlot { slot, chain } => {
                Self::MoveSlot { slot: SlotId(slot), to: ChainId(chain) }
            }
            Command::Status {} => Self::Status,
            Command::Chains { after, unhealthy } => {
                Self::Chains { after: ChainId(after), unhealthy }
            }
            Command::Slots {} => Self::Slots,
            Command::Config {} => Self::Config,
            Command::Events { from } => Self::Events { from },
        })
    }
}
