//! Managers: one primary by a lease in a serializable store, standbys, the target-state table.
//!
//! The table itself is `millpond_cluster::next_chain`, the production code. Here are only the
//! processes around it: leases, heartbeats, silence, routing.

use std::collections::{BTreeMap, BTreeSet};

use millpond_chain::LocalReport;
use millpond_cluster::{Report, next_chain};
use millpond_types::Tick;
use millpond_types::cluster::{
    Chain, ChainId, ChainTarget, ChainVersion, DiskId, NodeId, TargetId, TargetState,
};
use millpond_types::limits::{LEASE_SKEW_PERCENT, NODE_LEASE_MS};

use crate::clock::Clock;

/// The primary's lease in the store, in milliseconds (DESIGN section 5).
const PRIMARY_LEASE_MS: u64 = 5000;
/// The primary renews this often, in milliseconds.
const RENEW_MS: u64 = 1000;

/// What all managers share: the transactional store. Its transactions are serializable, so
/// each is one function here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    /// The primary, and how often it has renewed its lease.
    primary: Option<(usize, u64)>,
    pub(crate) chains: BTreeMap<ChainId, Chain>,
    /// Targets that an operator wants out.
    pub(crate) retiring: BTreeSet<TargetId>,
}

#[derive(Clone, Debug)]
struct Heard {
    at: Tick,
    life: u64,
    number: u64,
    reports: Vec<LocalReport>,
}

#[derive(Clone, Debug)]
pub(crate) struct Manager {
    number: usize,
    pub(crate) up: bool,
    pub(crate) life: u64,
    pub(crate) clock: Clock,
    /// Cannot reach the store.
    pub(crate) cut: bool,
    /// Primary until then, by the own clock.
    until: Option<Tick>,
    /// Nobody is declared dead before: leases given by the primary before may still run.
    learn_until: Tick,
    renewed: Tick,
    /// The lease as last seen, and when it last changed.
    seen: (Option<(usize, u64)>, Tick),
    heard: BTreeMap<usize, Heard>,
}

const fn after(tick: Tick, ms: u64, percent: u32) -> Tick {
    Tick(tick.0 + ms * 10 * percent as u64)
}

/// What a node is told: chain versions as of now, and who shall leave.
pub(crate) type Told = (Vec<(ChainId, ChainVersion)>, Vec<TargetId>);

impl Manager {
    pub(crate) const fn new(number: usize, clock: Clock) -> Self {
        Self {
            number,
            up: true,
            life: 0,
            clock,
            cut: false,
            until: None,
            learn_until: Tick(0),
            renewed: Tick(0),
            seen: (None, Tick(0)),
            heard: BTreeMap::new(),
        }
    }

    /// The process starts again and knows nothing.
    pub(crate) fn restart(&mut self, clock: Clock) {
        *self = Self { life: self.life + 1, cut: self.cut, ..Self::new(self.number, clock) };
    }

    fn primary(&self, now: Tick) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Takes or keeps the lease.
    pub(crate) fn renew(&mut self, store: &mut Store, now: Tick) {
        if self.cut {
            return;
        }
        if store.primary != self.seen.0 {
            self.seen = (store.primary, now);
        }
        let mine = store.primary.is_some_and(|(holder, _)| holder == self.number);
        let held = mine && self.until.is_some();
        let silent = now >= after(self.seen.1, PRIMARY_LEASE_MS, 100 + LEASE_SKEW_PERCENT);
        let due = now >= after(self.renewed, RENEW_MS, 100);
        if !held && (store.primary.is_none() || silent) {
            // A new primary learns who is alive before it declares anybody dead.
            self.learn_until = after(now, NODE_LEASE_MS, 100 + 2 * LEASE_SKEW_PERCENT);
            self.heard.clear();
        } else if !(held && due) {
            if !mine {
                self.until = None;
            }
            return;
        }
        let count = store.primary.map_or(0, |(_, count)| count) + 1;
        store.primary = Some((self.number, count));
        self.seen = (store.primary, now);
        self.renewed = now;
        self.until = Some(after(now, PRIMARY_LEASE_MS, 100 - LEASE_SKEW_PERCENT));
    }

    /// A node is alive. Returns what it is told, if this manager may tell anything.
    pub(crate) fn heartbeat(
        &mut self,
        node: usize,
        id: (u64, u64),
        reports: Vec<LocalReport>,
        (store, now): (&Store, Tick),
    ) -> Option<Told> {
        if !self.primary(now) {
            return None;
        }
        let (life, number) = id;
        let old = self.heard.get(&node).is_some_and(|h| (h.life, h.number) >= (life, number));
        if !old {
            self.heard.insert(node, Heard { at: now, life, number, reports });
        }
        let versions = store.chains.values().map(|chain| (chain.id, chain.version)).collect();
        Some((versions, store.retiring.iter().copied().collect()))
    }

    /// The node's process is known to be gone.
    pub(crate) fn gone(&mut self, node: usize, life: u64) {
        if self.heard.get(&node).is_some_and(|heard| heard.life <= life) {
            self.heard.remove(&node);
        }
    }

    /// Applies the table once; returns the chains that changed.
    pub(crate) fn decide(
        &self,
        store: &mut Store,
        now: Tick,
        node_of: &BTreeMap<TargetId, usize>,
    ) -> Vec<Chain> {
        let fenced = store.primary.is_none_or(|(holder, _)| holder != self.number);
        if self.cut || fenced || !self.primary(now) || now < self.learn_until {
            return Vec::new();
        }
        let mut changed = Vec::new();
        let Store { chains, retiring, .. } = store;
        for chain in chains.values_mut() {
            let reports: Vec<Report> = chain
                .targets
                .iter()
                .map(|member| self.report(member.target, node_of[&member.target], now))
                .collect();
            if let Some(next) = next_chain(chain, &reports) {
                *chain = next;
                changed.push(chain.clone());
            } else if let Some(next) = without_retired(chain, retiring) {
                *chain = next;
                changed.push(chain.clone());
            }
        }
        changed
    }

    fn report(&self, target: TargetId, node: usize, now: Tick) -> Report {
        let Some(heard) = self.heard.get(&node) else { return Report::OFFLINE };
        if now >= after(heard.at, NODE_LEASE_MS, 100 + LEASE_SKEW_PERCENT) {
            return Report::OFFLINE;
        }
        let report = heard.reports.iter().find(|report| report.target == target);
        report.map_or(Report::OFFLINE, |report| Report { local: report.state, at: report.version })
    }
}

/// The chain without a target that left: it serves no more and another does. When the leaving
/// one turns out to be the last, it has to stay.
fn without_retired(chain: &Chain, retiring: &mut BTreeSet<TargetId>) -> Option<Chain> {
    let member = chain.targets.iter().find(|member| retiring.contains(&member.target))?;
    if member.state == TargetState::LastServing {
        retiring.remove(&member.target);
        return None;
    }
    let out = matches!(member.state, TargetState::Offline | TargetState::Waiting);
    if !out || chain.serving().next().is_none() {
        return None;
    }
    let target = member.target;
    let mut next = chain.clone();
    next.targets.retain(|member| member.target != target);
    next.version.0 += 1;
    retiring.remove(&target);
    Some(next)
}

impl Store {
    /// A new chain: nobody has data, so any may be the one that had it last.
    pub(crate) fn create(&mut self, id: ChainId, targets: &[(TargetId, usize)]) {
        let member = |(i, (target, node)): (usize, &(TargetId, usize))| ChainTarget {
            target: *target,
            disk: DiskId::default(),
            node: NodeId(millpond_types::Uuid128([u8::try_from(*node).expect("few nodes"); 16])),
            state: if i == 0 { TargetState::LastServing } else { TargetState::Offline },
        };
        let targets = targets.iter().enumerate().map(member).collect();
        self.chains.insert(id, Chain { id, version: ChainVersion(1), targets });
    }

    /// An operator adds a target.
    pub(crate) fn add(&mut self, id: ChainId, target: TargetId, node: usize) {
        let Some(chain) = self.chains.get_mut(&id) else { return };
        if chain.targets.iter().any(|member| member.target == target) {
            return;
        }
        chain.targets.push(ChainTarget {
            target,
            disk: DiskId::default(),
            node: NodeId(millpond_types::Uuid128([u8::try_from(node).expect("few nodes"); 16])),
            state: TargetState::Offline,
        });
        chain.version.0 += 1;
    }
}
