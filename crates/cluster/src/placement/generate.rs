//! Chains for a fleet that has none.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::peers::Peers;
use super::{Fleet, Members, PlacementError, shares};
use millpond_types::Pcg;

/// Domains examined for one member. With fewer domains all are; in a larger fleet, a sample of this
/// size almost always contains an unused pair.
const CANDIDATES: usize = 8;
/// Fleets of up to this many domains are searched completely.
const SEARCH_WHOLE: usize = 64;

/// Makes `chains` chains of `replicas` disks each.
///
/// Every disk is in as many chains as [`shares()`] returns, no chain has two disks of one domain,
/// and pairs of disks meet as evenly as the greedy choice achieves. `progress` gets the number of
/// chains made.
///
/// # Errors
/// [`PlacementError`].
pub fn generate(
    fleet: &Fleet,
    replicas: u8,
    chains: u32,
    seed: u64,
    progress: &mut dyn FnMut(u32),
) -> Result<Vec<Members>, PlacementError> {
    let shares = shares(fleet, replicas, chains, &[])?;
    let mut builder = Builder::new(fleet, shares, seed);
    let mut made = Vec::with_capacity(chains as usize);
    for left in (1..=chains).rev() {
        made.push(builder.chain(usize::from(replicas), left));
        progress(chains - left + 1);
    }
    Ok(made)
}

pub(super) struct Builder<'a> {
    fleet: &'a Fleet,
    shares: Vec<u32>,
    /// Chains each disk still lacks.
    lacks: Vec<u32>,
    /// Disks of each domain.
    domains: Vec<Vec<u32>>,
    /// Chains each domain still lacks.
    domain_lacks: Vec<u32>,
    /// Domains by the chains they lack: a domain that lacks as many as there are chains left is in
    /// all of them.
    by_lack: BTreeSet<(Reverse<u32>, u32)>,
    pick: Fenwick,
    peers: Peers,
    heads: Vec<u32>,
    pcg: Pcg,
}

impl<'a> Builder<'a> {
    fn new(fleet: &'a Fleet, shares: Vec<u32>, seed: u64) -> Self {
        let peers = Peers::new(fleet.disks.len());
        let lacks = shares.clone();
        Self::resume(fleet, (shares, lacks), peers, seed)
    }

    /// Continues from existing chains: `lacks` is the number that each disk still needs.
    pub(super) fn resume(
        fleet: &'a Fleet,
        (shares, lacks): (Vec<u32>, Vec<u32>),
        peers: Peers,
        seed: u64,
    ) -> Self {
        let mut domains = vec![Vec::new(); fleet.domains as usize];
        let mut domain_lacks = vec![0u32; fleet.domains as usize];
        for disk in fleet.usable() {
            domains[fleet.domain(disk) as usize].push(disk);
            domain_lacks[fleet.domain(disk) as usize] += lacks[disk as usize];
        }
        let by_lack = (0u32..).zip(&domain_lacks).map(|(n, lack)| (Reverse(*lack), n)).collect();
        Self {
            fleet,
            pick: Fenwick::new(&domain_lacks),
            heads: vec![0; lacks.len()],
            shares,
            lacks,
            domains,
            domain_lacks,
            by_lack,
            peers,
            pcg: Pcg::new(seed, 0),
        }
    }

    /// Makes one chain; `left` chains are missing, this one included.
    pub(super) fn chain(&mut self, replicas: usize, left: u32) -> Members {
        let forced: Vec<u32> = self
            .by_lack
            .iter()
            .take_while(|(lack, _)| lack.0 >= left)
            .take(replicas)
            .map(|(_, domain)| *domain)
            .collect();
        let mut members = Members::with_capacity(replicas);
        for domain in forced {
            if let Some((_, disk)) = self.best_disk(domain, &members) {
                self.take(&mut members, disk);
            }
        }
        while members.len() < replicas {
            let Some(disk) = self.choose(&members) else { break };
            self.take(&mut members, disk);
        }
        for (i, a) in members.iter().enumerate() {
            for b in &members[i + 1..] {
                self.peers.add(*a, *b);
            }
        }
        self.put_head_first(&mut members);
        members
    }

    /// The disk that crowds the members least, among candidate domains drawn by the chains they
    /// lack.
    fn choose(&mut self, members: &[u32]) -> Option<u32> {
        let mut best: Option<(Score, u32)> = None;
        let mut consider = |builder: &mut Self, domain: u32| {
            let taken = members.iter().any(|member| builder.fleet.domain(*member) == domain);
            if taken || builder.domain_lacks[domain as usize] == 0 {
                return;
            }
            if let Some(found) = builder.best_disk(domain, members) {
                best = Some(best.map_or(found, |best| best.min(found)));
            }
        };
        if self.domains.len() <= SEARCH_WHOLE {
            for domain in 0..self.fleet.domains {
                consider(self, domain);
            }
        } else {
            // Members' own domains are drawn without success, so draw a few more times.
            for _ in 0..CANDIDATES + members.len() {
                let total = self.pick.total();
                if total == 0 {
                    break;
                }
                let at = self.pcg.below(total);
                let domain = self.pick.find(at);
                consider(self, domain);
            }
        }
        best.map(|(_, disk)| disk).or_else(|| self.any_disk(members))
    }

    /// Any disk that fits, when sampling found none.
    fn any_disk(&self, members: &[u32]) -> Option<u32> {
        self.fleet.usable().find(|disk| {
            let domain = self.fleet.domain(*disk);
            self.lacks[*disk as usize] > 0
                && members.iter().all(|member| self.fleet.domain(*member) != domain)
        })
    }

    fn best_disk(&mut self, domain: u32, members: &[u32]) -> Option<(Score, u32)> {
        let mut best: Option<(Score, u32)> = None;
        for disk in &self.domains[domain as usize] {
            let (lack, share) = (self.lacks[*disk as usize], self.shares[*disk as usize]);
            if lack == 0 {
                continue;
            }
            let crowding = self.peers.crowding(&self.shares, members, *disk);
            let done = u32::MAX - share_left(lack, share);
            let score = Score { crowding, done, tie: self.pcg.next_u64() };
            if best.is_none_or(|(least, _)| score < least) {
                best = Some((score, *disk));
            }
        }
        best
    }

    fn take(&mut self, members: &mut Members, disk: u32) {
        let domain = self.fleet.domain(disk);
        let lack = self.domain_lacks[domain as usize];
        self.by_lack.remove(&(Reverse(lack), domain));
        self.by_lack.insert((Reverse(lack - 1), domain));
        self.domain_lacks[domain as usize] = lack - 1;
        self.pick.decrement(domain);
        self.lacks[disk as usize] -= 1;
        members.push(disk);
    }

    /// Balances heads, which take the writes of clients: every disk leads its part of its chains.
    fn put_head_first(&mut self, members: &mut Members) {
        let head = (0..members.len()).min_by_key(|i| {
            let disk = members[*i] as usize;
            (u64::from(self.heads[disk]) << 32) / u64::from(self.shares[disk].max(1))
        });
        if let Some(head) = head {
            members.rotate_left(head);
            self.heads[members[0] as usize] += 1;
        }
    }
}

/// The lowest wins: least crowded, then furthest behind its share, then random.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Score {
    crowding: u64,
    done: u32,
    tie: u64,
}

/// `lack / share` as parts of 2^31.
fn share_left(lack: u32, share: u32) -> u32 {
    u32::try_from((u64::from(lack) << 31) / u64::from(share.max(1))).unwrap_or(u32::MAX)
}

/// Draws by weight in logarithmic time (P. M. Fenwick, "A New Data Structure for Cumulative
/// Frequency Tables", 1994).
struct Fenwick {
    sums: Vec<u64>,
}

impl Fenwick {
    fn new(weights: &[u32]) -> Self {
        let mut sums = vec![0; weights.len() + 1];
        for (i, weight) in (1..).zip(weights) {
            sums[i] += u64::from(*weight);
            let parent: usize = i + (i & i.wrapping_neg());
            if parent < sums.len() {
                sums[parent] += sums[i];
            }
        }
        Self { sums }
    }

    fn total(&self) -> u64 {
        let mut i = self.sums.len() - 1;
        let mut total = 0;
        while i > 0 {
            total += self.sums[i];
            i &= i - 1;
        }
        total
    }

    fn decrement(&mut self, index: u32) {
        let mut i = index as usize + 1;
        while i < self.sums.len() {
            self.sums[i] -= 1;
            i += i & i.wrapping_neg();
        }
    }

    /// The place whose range of weights holds `at`.
    fn find(&self, mut at: u64) -> u32 {
        let mut place = 0;
        let mut step = (self.sums.len() - 1).next_power_of_two();
        while step > 0 {
            if place + step < self.sums.len() && self.sums[place + step] <= at {
                place += step;
                at -= self.sums[place];
            }
            step /= 2;
        }
        u32::try_from(place).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::Fenwick;

    #[test]
    fn draws_follow_the_weights() {
        let weights = [3, 0, 1, 5, 0, 2, 7];
        let mut fenwick = Fenwick::new(&weights);
        let drawn = |fenwick: &Fenwick| {
            let mut counts = [0u32; 7];
            (0..fenwick.total()).for_each(|at| counts[fenwick.find(at) as usize] += 1);
            counts
        };
        assert_eq!(drawn(&fenwick), weights);
        fenwick.decrement(3);
        fenwick.decrement(0);
        assert_eq!(drawn(&fenwick), [2, 0, 1, 4, 0, 2, 7]);
    }
}
