//! How often two disks are in one chain, which determines the recovery after a failure.

use super::Members;

/// Counts of pairs, sparse: a disk meets some dozens of others.
#[derive(Clone, Debug)]
pub(super) struct Peers(Vec<Vec<(u32, u32)>>);

impl Peers {
    pub(super) fn new(disks: usize) -> Self {
        Self(vec![Vec::new(); disks])
    }

    pub(super) fn of(disks: usize, chains: &[Members]) -> Self {
        let mut peers = Self::new(disks);
        for members in chains {
            for (i, a) in members.iter().enumerate() {
                for b in &members[i + 1..] {
                    peers.add(*a, *b);
                }
            }
        }
        peers
    }

    /// Chains that have both disks.
    pub(super) fn count(&self, a: u32, b: u32) -> u32 {
        let row = &self.0[a as usize];
        row.binary_search_by_key(&b, |(peer, _)| *peer).map_or(0, |i| row[i].1)
    }

    /// The disks that share chains with `disk`, and the number for each.
    pub(super) fn row(&self, disk: u32) -> &[(u32, u32)] {
        &self.0[disk as usize]
    }

    pub(super) fn add(&mut self, a: u32, b: u32) {
        for (from, to) in [(a, b), (b, a)] {
            let row = &mut self.0[from as usize];
            match row.binary_search_by_key(&to, |(peer, _)| *peer) {
                Ok(i) => row[i].1 += 1,
                Err(i) => row.insert(i, (to, 1)),
            }
        }
    }

    pub(super) fn remove(&mut self, a: u32, b: u32) {
        for (from, to) in [(a, b), (b, a)] {
            let row = &mut self.0[from as usize];
            if let Ok(i) = row.binary_search_by_key(&to, |(peer, _)| *peer) {
                row[i].1 -= 1;
                if row[i].1 == 0 {
                    row.remove(i);
                }
            }
        }
    }

    /// The crowding that `disk` would add to `members`: its existing pairs with them, relative to
    /// the number expected from its number of chains. Lower is better.
    pub(super) fn crowding(&self, shares: &[u32], members: &[u32], disk: u32) -> u64 {
        members
            .iter()
            .map(|member| {
                let expected =
                    u64::from(shares[*member as usize]) * u64::from(shares[disk as usize]);
                (u64::from(self.count(disk, *member)) << 32) / expected.max(1)
            })
            .sum()
    }
}
