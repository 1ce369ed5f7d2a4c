//! Quality of a placement.

use super::peers::Peers;
use super::{Fleet, Members};

/// Least, mean, greatest and standard deviation of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The greatest.
    pub max: f64,
    /// The standard deviation.
    pub stddev: f64,
}

impl Spread {
    /// Spread of some numbers; all zero for none.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        #[expect(clippy::cast_precision_loss, reason = "counts of disks")]
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
        Self {
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            mean,
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            stddev: variance.sqrt(),
        }
    }
}

/// Load of the recovery of some failed disks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recovery {
    /// Replicas that were on the failed disks.
    pub replicas_lost: u32,
    /// Chains that have no replica left: their data is gone.
    pub chains_lost: u32,
    /// Disks that recovery reads from.
    pub peers: usize,
    /// The part of all recovery reads that the busiest of them serves.
    pub share_max: f64,
}

/// Load on the other disks when the replicas of `failed` disks are read from them: each of a
/// chain's remaining members serves an equal part.
#[must_use]
pub fn recovery(chains: &[Members], disks: usize, failed: &[u32]) -> Recovery {
    let mut dead = vec![false; disks];
    for disk in failed {
        dead[*disk as usize] = true;
    }
    let mut load = vec![0.0f64; disks];
    let mut found = Recovery::default();
    for members in chains {
        let alive: Vec<u32> =
            members.iter().copied().filter(|disk| !dead[*disk as usize]).collect();
        let lost = u32::try_from(members.len() - alive.len()).unwrap_or(u32::MAX);
        found.replicas_lost += lost;
        found.chains_lost += u32::from(alive.is_empty());
        for disk in &alive {
            #[expect(clippy::cast_precision_loss, reason = "members of one chain")]
            let part = f64::from(lost) / alive.len() as f64;
            load[*disk as usize] += part;
        }
    }
    let total: f64 = load.iter().sum();
    found.peers = load.iter().filter(|load| **load > 0.0).count();
    if total > 0.0 {
        found.share_max = load.iter().copied().fold(0.0, f64::max) / total;
    }
    found
}

/// [`recovery`] of every disk by itself, in one pass.
#[must_use]
pub fn recovery_of_each(chains: &[Members], disks: usize) -> Vec<Recovery> {
    let peers = Peers::of(disks, chains);
    let mut found = vec![Recovery::default(); disks];
    for members in chains {
        for disk in members {
            found[*disk as usize].replicas_lost += 1;
            found[*disk as usize].chains_lost += u32::from(members.len() == 1);
        }
    }
    for (disk, found) in (0u32..).zip(&mut found) {
        let counts = peers.row(disk).iter().map(|(_, count)| f64::from(*count));
        let total: f64 = counts.clone().sum();
        found.peers = peers.row(disk).len();
        if total > 0.0 {
            found.share_max = counts.fold(0.0, f64::max) / total;
        }
    }
    found
}

/// Chains of every disk.
#[must_use]
pub fn chains_per_disk(fleet: &Fleet, chains: &[Members]) -> Vec<u32> {
    let mut counts = vec![0u32; fleet.disks.len()];
    chains.iter().flatten().for_each(|disk| counts[*disk as usize] += 1);
    counts
}

/// Slots times replicas of every disk: its part of the data.
#[must_use]
pub fn slots_per_disk(fleet: &Fleet, chains: &[Members], slots: &[u32]) -> Vec<u64> {
    let mut held = vec![0u64; fleet.disks.len()];
    for (members, slots) in chains.iter().zip(slots) {
        for disk in members {
            held[*disk as usize] += u64::from(*slots);
        }
    }
    held
}
