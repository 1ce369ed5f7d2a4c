//! Routing: nodes, chains and slots under one version, and updates of a copy of it.

use std::collections::{BTreeMap, BTreeSet};

use super::{Chain, ChainId, NodeId, NodeState, RoutingVersion, SlotMap};
use crate::ids::{SlotId, Uuid128};

/// A node as clients and other nodes see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its identity.
    pub id: NodeId,
    /// `host:port` of every address that the node listens on; clients try all, in no preference.
    pub addresses: Vec<String>,
    /// The failure domain of the node (a rack, a power feed); its own name when none was given.
    pub domain: String,
    /// Whether the node is active or being emptied.
    pub state: NodeState,
    /// Whether it executes operations on the file namespace.
    pub meta: bool,
}

/// The chains that hold a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPlace {
    /// The chain that takes writes and is read first.
    pub chain: ChainId,
    /// While the slot moves: the chain that it leaves, read when the first chain does not have the
    /// chunk.
    pub old: Option<ChainId>,
}

/// A slot that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotChange {
    /// The slot.
    pub slot: SlotId,
    /// Its place now.
    pub place: SlotPlace,
}

/// Nodes, chains and slots under one version. Version 0 is an empty copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routing {
    /// The cluster of this routing; a copy never takes routing of another cluster.
    pub cluster: Uuid128,
    /// Grows with every change.
    pub version: RoutingVersion,
    /// The nodes.
    pub nodes: BTreeMap<NodeId, NodeInfo>,
    /// The chains.
    pub chains: BTreeMap<ChainId, Chain>,
    /// The chain of every slot; [`ChainId::NONE`] before the cluster has chains.
    pub slots: SlotMap,
    /// Moving slots, each with the chain that it leaves.
    pub moving: BTreeMap<SlotId, ChainId>,
}

impl Default for Routing {
    fn default() -> Self {
        Self {
            cluster: Uuid128::NIL,
            version: RoutingVersion(0),
            nodes: BTreeMap::new(),
            chains: BTreeMap::new(),
            slots: SlotMap::all(ChainId::NONE),
            moving: BTreeMap::new(),
        }
    }
}

/// The changes between two versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoutingDiff {
    /// Applies to this version and to every later one up to `to`: items are whole, never deltas.
    pub from: RoutingVersion,
    /// The version after the update.
    pub to: RoutingVersion,
    /// Nodes that are new or changed.
    pub nodes: Vec<NodeInfo>,
    /// Nodes that no longer exist.
    pub nodes_gone: Vec<NodeId>,
    /// Chains that are new or changed.
    pub chains: Vec<Chain>,
    /// Slots that changed place.
    pub slots: Vec<SlotChange>,
}

/// An update that the manager pushes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoutingUpdate {
    /// Everything: for a copy that is empty, too old, or of another cluster.
    Full(Box<Routing>),
    /// The changes, for a copy of this cluster.
    Diff(Uuid128, RoutingDiff),
}

impl RoutingUpdate {
    /// The version of a copy after this update.
    #[must_use]
    pub fn version(&self) -> RoutingVersion {
        match self {
            Self::Full(routing) => routing.version,
            Self::Diff(_, diff) => diff.to,
        }
    }
}

/// An update that does not fit the copy: the copy must subscribe again with its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// The versions between the copy's and the update's first one are missing.
    #[error(
        "routing {have:?} cannot apply a change from {from:?}: versions in between are missing"
    )]
    Gap {
        /// The copy's version.
        have: RoutingVersion,
        /// The first version that the update applies to.
        from: RoutingVersion,
    },
    /// The update is of another cluster.
    #[error("routing of cluster {theirs} does not apply to cluster {ours}")]
    Cluster {
        /// The copy's cluster.
        ours: Uuid128,
        /// The update's cluster.
        theirs: Uuid128,
    },
}

impl Routing {
    /// The place of a slot.
    #[must_use]
    pub fn place(&self, slot: SlotId) -> SlotPlace {
        SlotPlace { chain: self.slots.get(slot), old: self.moving.get(&slot).copied() }
    }

    /// Sets the place of a slot.
    pub fn set_place(&mut self, slot: SlotId, place: SlotPlace) {
        self.slots.set(slot, place.chain);
        match place.old {
            Some(old) => self.moving.insert(slot, old),
            None => self.moving.remove(&slot),
        };
    }

    /// Slots with another place than in `before`.
    #[must_use]
    pub fn slots_unlike(&self, before: &Self) -> BTreeSet<SlotId> {
        let mut slots: BTreeSet<SlotId> = self.slots.unlike(&before.slots).collect();
        for (one, other) in [(&self.moving, &before.moving), (&before.moving, &self.moving)] {
            let differs = |(slot, from): &(&SlotId, &ChainId)| other.get(slot) != Some(*from);
            slots.extend(one.iter().filter(differs).map(|(slot, _)| *slot));
        }
        slots
    }

    /// Applies an update to this copy; false when the copy was up to date, so updates may come
    /// twice and in any order. A chain never goes back to an older version.
    ///
    /// # Errors
    /// [`UpdateError`]; the copy is then unchanged.
    pub fn apply(&mut self, update: RoutingUpdate) -> Result<bool, UpdateError> {
        match update {
            RoutingUpdate::Full(routing) => {
                self.check_cluster(routing.cluster)?;
                let newer = routing.version > self.version;
                if newer {
                    *self = *routing;
                }
                Ok(newer)
            }
            RoutingUpdate::Diff(cluster, diff) => {
                self.check_cluster(cluster)?;
                self.apply_diff(diff)
            }
        }
    }

    fn check_cluster(&self, theirs: Uuid128) -> Result<(), UpdateError> {
        if self.version != RoutingVersion(0) && self.cluster != theirs {
            return Err(UpdateError::Cluster { ours: self.cluster, theirs });
        }
        Ok(())
    }

    fn apply_diff(&mut self, diff: RoutingDiff) -> Result<bool, UpdateError> {
        if diff.to <= self.version {
            return Ok(false);
        }
        if diff.from > self.version {
            return Err(UpdateError::Gap { have: self.version, from: diff.from });
        }
        for node in diff.nodes {
            self.nodes.insert(node.id, node);
        }
        for node in diff.nodes_gone {
            self.nodes.remove(&node);
        }
        for chain in diff.chains {
            self.chains.insert(chain.id, chain);
        }
        for change in diff.slots {
            self.set_place(change.slot, change.place);
        }
        self.version = diff.to;
        Ok(true)
    }
}
