//! Slots and new files by weight: the number of slots of each chain, and the slots that move.

use std::cmp::Reverse;

use super::{Fleet, Members};
use millpond_types::Pcg;
use millpond_types::limits::SLOTS;

/// Bytes that each chain may hold: the share of its tightest disk for one chain. Disks that are
/// being emptied do not count.
#[must_use]
pub fn chain_weights(fleet: &Fleet, chains: &[Members]) -> Vec<u64> {
    let mut counts = vec![0u64; fleet.disks.len()];
    chains.iter().flatten().for_each(|disk| counts[*disk as usize] += 1);
    chains
        .iter()
        .map(|members| {
            let rooms = members.iter().map(|disk| fleet.capacity(*disk) / counts[*disk as usize]);
            rooms.filter(|room| *room > 0).min().unwrap_or(1)
        })
        .collect()
}

/// Number of the 65,536 slots for each chain, by weight. `now` breaks rounding ties.
#[must_use]
pub fn slot_shares(weights: &[u64], now: &[u32]) -> Vec<u32> {
    let total: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    if total == 0 {
        return vec![0; weights.len()];
    }
    let mut rest = SLOTS as u64;
    let mut fractions = Vec::with_capacity(weights.len());
    let mut shares: Vec<u32> = weights
        .iter()
        .enumerate()
        .map(|(i, weight)| {
            let product = u128::from(*weight) * SLOTS as u128;
            let floor = u32::try_from(product / total).unwrap_or(u32::MAX);
            let stays = now.get(i).is_some_and(|now| *now > floor);
            fractions.push((Reverse(stays), Reverse(product % total), i));
            rest -= u64::from(floor);
            floor
        })
        .collect();
    fractions.sort_unstable();
    for (.., i) in fractions.iter().cycle() {
        if rest == 0 {
            break;
        }
        shares[*i] += 1;
        rest -= 1;
    }
    shares
}

/// True when slots should move: a chain has an eighth more or fewer than its share, or none.
#[must_use]
pub fn slots_are_off(shares: &[u32], now: &[u32]) -> bool {
    shares.iter().zip(now).any(|(want, have)| want.abs_diff(*have) > (*want / 8).max(1))
}

/// The slots that change chain so that every chain has its share: `now[slot]` is an index in
/// `shares`, or `u32::MAX` for none. The result is minimal.
#[must_use]
pub fn slot_moves(now: &[u32], shares: &[u32], seed: u64) -> Vec<(u16, u32)> {
    let mut counts = vec![0u32; shares.len()];
    for chain in now.iter().filter(|chain| **chain != u32::MAX) {
        counts[*chain as usize] += 1;
    }
    let mut takers: Vec<u32> = (0u32..)
        .zip(shares.iter().zip(&counts))
        .flat_map(|(chain, (want, have))| {
            std::iter::repeat_n(chain, want.saturating_sub(*have) as usize)
        })
        .collect();
    // Shuffled, so that neighboring slots do not all go to one chain.
    let mut pcg = Pcg::new(seed, 2);
    for last in (1..takers.len()).rev() {
        let other = usize::try_from(pcg.below(last as u64 + 1)).unwrap_or(last);
        takers.swap(last, other);
    }
    let mut moves = Vec::with_capacity(takers.len());
    for (slot, chain) in (0u16..=u16::MAX).zip(now) {
        let leaves = *chain == u32::MAX || counts[*chain as usize] > shares[*chain as usize];
        if leaves && let Some(to) = takers.pop() {
            if *chain != u32::MAX {
                counts[*chain as usize] -= 1;
            }
            moves.push((slot, to));
        }
    }
    moves
}

/// Draws chains for new files: the more free space, the likelier.
#[derive(Clone, Debug)]
pub struct ChainChoice {
    /// Running sums of free bytes.
    sums: Vec<u128>,
}

impl ChainChoice {
    /// From the free bytes of each chain: those of its fullest disk.
    #[must_use]
    pub fn new(free_bytes: &[u64]) -> Self {
        let sums = free_bytes
            .iter()
            .scan(0u128, |sum, free| {
                *sum += u128::from(*free);
                Some(*sum)
            })
            .collect();
        Self { sums }
    }

    /// The index of a chain with space, or `None` when all are full.
    pub fn pick(&self, pcg: &mut Pcg) -> Option<usize> {
        let total = *self.sums.last()?;
        if total == 0 {
            return None;
        }
        // Scaled to 64 bits, which is exact enough for a petabyte and for a chain without space.
        let shift = 128 - total.leading_zeros().min(64) - 64;
        let bound = u64::try_from(total >> shift).unwrap_or(u64::MAX).max(1);
        let at = u128::from(pcg.below(bound)) << shift;
        Some(self.sums.partition_point(|sum| *sum <= at))
    }
}
