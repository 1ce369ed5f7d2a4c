//! Quotas of namespaces: the part of a quota that the heads on each node may fill (RFC 0012).
//!
//! [`share`] is the rule. [`QuotaBook`] is the primary's knowledge: the usage that every node
//! reported and the limit that it uses. It gives a node only a part that no other node may still
//! believe to have.
//!
//! Invariant: grants made here never let the limits that nodes may use sum up to more than the
//! quota, whichever answers are lost.

use std::collections::BTreeMap;

use millpond_types::GroupId;
use millpond_types::cluster::{NodeId, QuotaLimit, QuotaReport, RoutingVersion};

/// Share of a quota that is divided by the slots that nodes head, independent of their usage: a
/// sixteenth. More would reserve room for nodes that do not need it, less would let shares follow
/// the usage more slowly.
const RESERVE_SHARE: u64 = 16;

/// A namespace's quota, and its total usage over all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whole {
    /// Bytes that the namespace may hold.
    pub quota: u64,
    /// Whether it evicts its own blocks.
    pub evicts: bool,
    /// Bytes that it holds.
    pub used: u64,
    /// Weights of all nodes together.
    pub weight: u64,
}

/// One node's part in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Bytes that it holds, part of [`Whole::used`].
    pub used: u64,
    /// Slots whose chains it heads, part of [`Whole::weight`].
    pub weight: u64,
}

/// `a * b / c`; 0 for a `c` of 0.
fn scaled(a: u64, b: u64, c: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    u64::try_from(product.checked_div(u128::from(c)).unwrap_or(0)).unwrap_or(u64::MAX)
}

/// The limit of a node's heads, in bytes. The limits of all nodes sum up to the quota at most.
///
/// It is the node's part of the usage, with a sixteenth of the quota counted as used by weight. So
/// it grows with a node's usage while others do not use theirs, and while all are at their limits,
/// shares tend towards the weights. A namespace that does not evict cannot take stored bytes back:
/// once it is nearly full, only the free part is shared.
#[must_use]
pub fn share(whole: Whole, part: Part) -> u64 {
    let Whole { quota, evicts, used, weight } = whole;
    let reserve = quota / RESERVE_SHARE;
    if !evicts && used <= quota && used > quota - reserve {
        return part.used + scaled(quota - used, part.weight, weight);
    }
    let held = part.used.saturating_add(scaled(reserve, part.weight, weight));
    scaled(quota, held, used.saturating_add(reserve)).min(quota)
}

/// Report of one node about one namespace.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    used: u64,
    /// The largest limit that the node may use.
    limit: u64,
    /// The routing of the report.
    at: RoutingVersion,
}

impl Entry {
    /// Bytes that no other node may fill.
    fn taken(&self) -> u64 {
        self.used.max(self.limit)
    }
}

/// One namespace.
#[derive(Debug, Default)]
struct Account {
    quota: u64,
    evicts: bool,
    entries: BTreeMap<NodeId, Entry>,
    /// Sums over the entries.
    used: u128,
    taken: u128,
    /// Number of entries of heads, reported under the routing that made them heads.
    settled: usize,
}

fn whole_number(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// The primary's knowledge of quotas. Lost with it, and learned again from heartbeats.
#[derive(Debug, Default)]
pub struct QuotaBook {
    accounts: BTreeMap<GroupId, Account>,
    /// Slots whose chains each node heads.
    weights: BTreeMap<NodeId, u64>,
    weight: u64,
    /// The routing version of these weights.
    since: RoutingVersion,
}

impl QuotaBook {
    /// Sets the number of slots whose chains each node heads, as of this routing. Nodes that are no
    /// longer `known` and head nothing are forgotten.
    pub fn heads(
        &mut self,
        weights: BTreeMap<NodeId, u64>,
        since: RoutingVersion,
        known: impl Fn(NodeId) -> bool,
    ) {
        self.weight = weights.values().sum();
        self.weights = weights;
        self.since = since;
        self.accounts.retain(|_, account| {
            account.entries.retain(|node, _| self.weights.contains_key(node) || known(*node));
            account.used = account.entries.values().map(|entry| u128::from(entry.used)).sum();
            account.taken = account.entries.values().map(|entry| u128::from(entry.taken())).sum();
            let settled = |(node, entry): &(&NodeId, &Entry)| {
                self.weights.contains_key(node) && entry.at >= since
            };
            account.settled = account.entries.iter().filter(settled).count();
            !account.entries.is_empty()
        });
    }

    /// Forgets a node that is gone, if it heads nothing.
    pub fn forget(&mut self, node: NodeId) {
        if self.weights.contains_key(&node) {
            // Its part stays reserved until others head its chains and report their usage.
            return;
        }
        self.accounts.retain(|_, account| {
            if let Some(entry) = account.entries.remove(&node) {
                account.used -= u128::from(entry.used);
                account.taken -= u128::from(entry.taken());
            }
            !account.entries.is_empty()
        });
    }

    /// Takes a node's report under this routing; returns its limits, for namespaces of which every
    /// head has reported its usage.
    pub fn hear(
        &mut self,
        node: NodeId,
        at: RoutingVersion,
        reports: &[QuotaReport],
    ) -> Vec<QuotaLimit> {
        // Namespaces missing in the report have been dropped there.
        let named = |group: &GroupId| reports.iter().any(|report| report.namespace == *group);
        let gone: Vec<GroupId> =
            self.accounts.keys().filter(|group| !named(group)).copied().collect();
        for group in gone {
            self.take_out(group, node);
        }
        reports.iter().filter_map(|report| self.hear_one(node, at, report)).collect()
    }

    /// Takes an entry out of its account; drops an account without any.
    fn take_out(&mut self, group: GroupId, node: NodeId) {
        let Some(account) = self.accounts.get_mut(&group) else { return };
        if let Some(old) = account.entries.remove(&node) {
            account.used -= u128::from(old.used);
            account.taken -= u128::from(old.taken());
            let counted = self.weights.contains_key(&node) && old.at >= self.since;
            account.settled -= usize::from(counted);
        }
        if account.entries.is_empty() {
            self.accounts.remove(&group);
        }
    }

    fn hear_one(
        &mut self,
        node: NodeId,
        at: RoutingVersion,
        report: &QuotaReport,
    ) -> Option<QuotaLimit> {
        let group = report.namespace;
        self.take_out(group, node);
        let heads = self.weights.contains_key(&node);
        let account = self.accounts.entry(group).or_default();
        (account.quota, account.evicts) = (report.quota_bytes, report.evicts);
        // One heartbeat of a node is in flight at a time: no earlier answer is applied after this
        // one.
        let mut entry = Entry { used: report.used_bytes, limit: report.limit_bytes, at };
        account.used += u128::from(entry.used);
        account.settled += usize::from(heads && at >= self.since);
        let whole = Whole {
            quota: account.quota,
            evicts: account.evicts,
            used: whole_number(account.used),
            weight: self.weight,
        };
        let weight = self.weights.get(&node).copied().unwrap_or(0);
        let wanted = share(whole, Part { used: entry.used, weight });
        // A part that others may still use is not granted twice. But bytes that the node has filled
        // are not taken from it for that: when usage exceeds the quota, all nodes give up their
        // part, not the one that reports first.
        let free = account.quota.saturating_sub(whole_number(account.taken));
        let filled = entry.used.min(entry.limit);
        let limit = wanted.min(free.max(filled));
        let knows = account.settled == self.weights.len() && at >= self.since;
        if knows {
            // The answer may be lost: until the node confirms it, it may use either limit.
            entry.limit = entry.limit.max(limit);
        }
        account.taken += u128::from(entry.taken());
        account.entries.insert(node, entry);
        knows.then_some(QuotaLimit { namespace: group, limit_bytes: limit })
    }
}

#[cfg(test)]
mod tests;
