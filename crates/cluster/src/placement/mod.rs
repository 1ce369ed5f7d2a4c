//! Which disks form chains, and which replicas move when disks come and go. `docs/placement.md`
//! describes it.
//!
//! Works on numbers: a [`Fleet`] lists disks with capacity and failure domain, a chain is a list of
//! places in it. Integers only, and [`crate::Pcg`] for ties, so that the result is the same on
//! every build.

mod generate;
mod measure;
mod peers;
mod rebalance;
mod shares;
mod slots;

pub use generate::generate;
pub use measure::{Recovery, Spread, chains_per_disk, recovery, recovery_of_each, slots_per_disk};
pub use rebalance::{Relocation, grow_chains, rebalance};
pub use shares::{chain_count, chains_to_add, shares};
pub use slots::{ChainChoice, chain_weights, slot_moves, slot_shares, slots_are_off};

/// A disk as placement sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetDisk {
    /// Number of its failure domain, below [`Fleet::domains`].
    pub domain: u32,
    /// Bytes it may hold; 0 for a disk to be emptied.
    pub capacity_bytes: u64,
}

/// The disks that chains are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// In an order that the caller keeps: chains name places in it.
    pub disks: Vec<FleetDisk>,
    /// Number of failure domains.
    pub domains: u32,
}

/// A chain as places in [`Fleet::disks`], head first.
pub type Members = Vec<u32>;

/// Reason why chains cannot be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// Fewer failure domains than replicas.
    #[error(
        "{replicas} replicas need as many failure domains with space, but there are {domains}: add \
         nodes, lower the number of replicas, or give nodes of one rack failure domains of their \
         own"
    )]
    Domains {
        /// Replicas of each chain.
        replicas: u8,
        /// Domains that have any capacity.
        domains: usize,
    },
    /// Zero replicas or zero chains.
    #[error("a chain needs at least one replica, and a cluster at least one chain")]
    Nothing,
}

impl Fleet {
    pub(crate) fn domain(&self, disk: u32) -> u32 {
        self.disks[disk as usize].domain
    }

    pub(crate) fn capacity(&self, disk: u32) -> u64 {
        self.disks[disk as usize].capacity_bytes
    }

    /// Numbers of the disks with capacity.
    pub(crate) fn usable(&self) -> impl Iterator<Item = u32> {
        (0u32..).zip(&self.disks).filter(|(_, disk)| disk.capacity_bytes > 0).map(|(n, _)| n)
    }

    /// True when some member other than `but` shares the failure domain of `disk`.
    pub(crate) fn shares_domain(&self, members: &[u32], but: u32, disk: u32) -> bool {
        let domain = self.domain(disk);
        members.iter().any(|member| *member != but && self.domain(*member) == domain)
    }
}

#[cfg(test)]
mod tests;
