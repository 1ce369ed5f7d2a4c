//! The agent of every node of a cluster: it registers, keeps the node's lease, and has copies of
//! routing, namespaces and configuration, which this node's clients and other nodes are told from.

mod identity;
mod targets;

pub use identity::Identity;
pub use targets::{Targets, TargetsReport};
