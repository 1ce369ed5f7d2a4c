//! Moves when disks come, go or change: as few as restore every disk's share.

use super::generate::Builder;
use super::peers::Peers;
use super::{Fleet, FleetDisk, Members, PlacementError, shares};
use millpond_types::Pcg;

/// Targets examined for one move: most fit, and the least crowded of some dozens is good.
const SAMPLES: usize = 24;

/// A replica that changes its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Index of the chain in the list.
    pub chain: u32,
    /// The disk it leaves; `None` when the chain lacks a replica.
    pub from: Option<u32>,
    /// The disk it comes to.
    pub to: u32,
}

/// Moves replicas until every disk has its share, and returns the moves in order. A disk without
/// capacity ends without replicas. `chains` is changed accordingly.
///
/// Each replica that needs another disk moves once, which is the minimum. The exception is a disk
/// for which every movable replica shares a failure domain with one that stays: then two are moved
/// for one, or, when that does not help either, the share is missed.
///
/// # Errors
/// [`PlacementError`].
pub fn rebalance(
    fleet: &Fleet,
    replicas: u8,
    chains: &mut [Members],
    seed: u64,
    progress: &mut dyn FnMut(u32),
) -> Result<Vec<Relocation>, PlacementError> {
    let Ok(count @ 1..) = u32::try_from(chains.len()) else { return Ok(Vec::new()) };
    let mut now = vec![0u32; fleet.disks.len()];
    chains.iter().flatten().for_each(|disk| now[*disk as usize] += 1);
    let want = shares(fleet, replicas, count, &now)?;
    let mut mover = Mover::new(fleet, (want, now), chains, seed);
    mover.fill(usize::from(replicas));
    mover.level(progress);
    Ok(mover.moves)
}

/// `more` chains beside the existing ones, on the disks that then lack most. A [`rebalance`] over
/// all of them does the rest.
///
/// # Errors
/// [`PlacementError`].
pub fn grow_chains(
    fleet: &Fleet,
    replicas: u8,
    chains: &[Members],
    more: u32,
    seed: u64,
) -> Result<Vec<Members>, PlacementError> {
    let mut now = vec![0u32; fleet.disks.len()];
    chains.iter().flatten().for_each(|disk| now[*disk as usize] += 1);
    let total = u32::try_from(chains.len()).unwrap_or(u32::MAX).saturating_add(more);
    let want = shares(fleet, replicas, total, &now)?;
    // The lack of chains decides; capacity only when the lacking disks are in too few domains.
    let largest = fleet.disks.iter().map(|disk| disk.capacity_bytes).max().unwrap_or(1).max(1);
    let lacking = fleet.disks.iter().zip(want.iter().zip(&now)).map(|(disk, (want, now))| {
        let lack = u64::from(want.saturating_sub(*now)) << 24;
        let part = u128::from(disk.capacity_bytes) * 1_024 / u128::from(largest);
        let part = u64::try_from(part).unwrap_or(1).max(u64::from(disk.capacity_bytes > 0));
        FleetDisk { capacity_bytes: lack + part, ..*disk }
    });
    let lacking = Fleet { disks: lacking.collect(), domains: fleet.domains };
    let lacks = shares(&lacking, replicas, more, &[])?;
    let peers = Peers::of(fleet.disks.len(), chains);
    let mut builder = Builder::resume(fleet, (want, lacks), peers, seed);
    Ok((1..=more).rev().map(|left| builder.chain(usize::from(replicas), left)).collect())
}

struct Mover<'a> {
    fleet: &'a Fleet,
    want: Vec<u32>,
    now: Vec<u32>,
    chains: &'a mut [Members],
    /// Chains of each disk.
    of_disk: Vec<Vec<u32>>,
    peers: Peers,
    pcg: Pcg,
    moves: Vec<Relocation>,
}

impl<'a> Mover<'a> {
    fn new(
        fleet: &'a Fleet,
        (want, now): (Vec<u32>, Vec<u32>),
        chains: &'a mut [Members],
        seed: u64,
    ) -> Self {
        let mut of_disk = vec![Vec::new(); fleet.disks.len()];
        for (n, members) in (0u32..).zip(chains.iter()) {
            for disk in members {
                of_disk[*disk as usize].push(n);
            }
        }
        let peers = Peers::of(fleet.disks.len(), chains);
        Self { fleet, want, now, chains, of_disk, peers, pcg: Pcg::new(seed, 1), moves: Vec::new() }
    }

    fn lack(&self, disk: u32) -> u32 {
        self.want[disk as usize].saturating_sub(self.now[disk as usize])
    }

    fn excess(&self, disk: u32) -> u32 {
        self.now[disk as usize].saturating_sub(self.want[disk as usize])
    }

    fn disks(&self, test: impl Fn(&Self, u32) -> u32) -> Vec<u32> {
        (0u32..).take(self.fleet.disks.len()).filter(|disk| test(self, *disk) > 0).collect()
    }

    /// Gives chains that lack replicas some on disks that lack chains.
    fn fill(&mut self, replicas: usize) {
        for chain in 0..self.chains.len() {
            while self.chains[chain].len() < replicas {
                let members = &self.chains[chain];
                let fits = |disk: &u32| {
                    !members.contains(disk) && !self.fleet.shares_domain(members, u32::MAX, *disk)
                };
                let Some(to) = self.fleet.usable().filter(fits).max_by_key(|disk| {
                    (self.lack(*disk), std::cmp::Reverse(self.now[*disk as usize]))
                }) else {
                    break;
                };
                self.relocate(u32::try_from(chain).unwrap_or(u32::MAX), None, to);
            }
        }
    }

    /// Lets every disk that lacks replicas take one from a disk with too many, round by round.
    fn level(&mut self, progress: &mut dyn FnMut(u32)) {
        let mut takers = self.disks(Self::lack);
        let mut givers = self.disks(Self::excess);
        while !takers.is_empty() && !givers.is_empty() {
            takers.retain(|taker| {
                givers.retain(|giver| self.excess(*giver) > 0);
                let moved = self.move_to(*taker, &givers);
                progress(u32::try_from(self.moves.len()).unwrap_or(u32::MAX));
                moved && self.lack(*taker) > 0
            });
            givers.retain(|giver| self.excess(*giver) > 0);
        }
    }

    /// Moves one replica to `to`. False when none is allowed.
    fn move_to(&mut self, to: u32, givers: &[u32]) -> bool {
        if givers.is_empty() {
            return false;
        }
        let found = self.sample(to, givers).or_else(|| self.search(to, givers));
        if let Some((chain, from)) = found {
            self.relocate(chain, Some(from), to);
            return true;
        }
        self.move_over_third(to, givers)
    }

    fn sample(&mut self, to: u32, givers: &[u32]) -> Option<(u32, u32)> {
        let mut best: Option<(u64, u32, u32)> = None;
        for _ in 0..SAMPLES {
            let from = givers[usize::try_from(self.pcg.below(givers.len() as u64)).ok()?];
            let chains = &self.of_disk[from as usize];
            let chain = chains[usize::try_from(self.pcg.below(chains.len() as u64)).ok()?];
            if !self.may_move(chain, from, to) {
                continue;
            }
            let stay: Members =
                self.chains[chain as usize].iter().copied().filter(|disk| *disk != from).collect();
            // A disk without a share, which is being emptied, goes first.
            let crowding = self.peers.crowding(&self.want, &stay, to);
            if best.is_none_or(|(least, ..)| crowding < least) {
                best = Some((crowding, chain, from));
            }
        }
        best.map(|(_, chain, from)| (chain, from))
    }

    fn search(&self, to: u32, givers: &[u32]) -> Option<(u32, u32)> {
        givers.iter().find_map(|from| {
            let chains = &self.of_disk[*from as usize];
            let chain = chains.iter().find(|chain| self.may_move(**chain, *from, to))?;
            Some((*chain, *from))
        })
    }

    /// Moves from `giver` to `third` and from `third` to `to`, when no direct move is allowed.
    fn move_over_third(&mut self, to: u32, givers: &[u32]) -> bool {
        for third in 0..u32::try_from(self.fleet.disks.len()).unwrap_or(u32::MAX) {
            if third == to || self.fleet.capacity(third) == 0 || givers.contains(&third) {
                continue;
            }
            let Some((chain, from)) = self.search(third, givers) else { continue };
            let chains = &self.of_disk[third as usize];
            let onward =
                chains.iter().find(|other| **other != chain && self.may_move(**other, third, to));
            if let Some(onward) = onward.copied() {
                self.relocate(onward, Some(third), to);
                self.relocate(chain, Some(from), third);
                return true;
            }
        }
        false
    }

    fn may_move(&self, chain: u32, from: u32, to: u32) -> bool {
        let members = &self.chains[chain as usize];
        !members.contains(&to) && !self.fleet.shares_domain(members, from, to)
    }

    fn relocate(&mut self, chain: u32, from: Option<u32>, to: u32) {
        let members = &mut self.chains[chain as usize];
        if let Some(from) = from {
            for other in members.iter().filter(|disk| **disk != from) {
                self.peers.remove(from, *other);
                self.peers.add(to, *other);
            }
            members.iter_mut().filter(|disk| **disk == from).for_each(|disk| *disk = to);
            self.of_disk[from as usize].retain(|listed| *listed != chain);
            self.now[from as usize] -= 1;
        } else {
            for other in members.iter() {
                self.peers.add(to, *other);
            }
            members.push(to);
        }
        self.of_disk[to as usize].push(chain);
        self.now[to as usize] += 1;
        self.moves.push(Relocation { chain, from, to });
    }
}
