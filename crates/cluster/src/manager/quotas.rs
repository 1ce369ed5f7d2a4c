//! Quotas of namespaces, as the primary shares them out.

use std::collections::BTreeMap;

use millpond_types::cluster::{ChainId, NodeId, QuotaLimit, QuotaReport, RoutingVersion};

use super::primary::{Live, Primary};
use super::state::State;
use crate::quota::QuotaBook;

/// The book, and the heads that it counts by.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    book: QuotaBook,
    heads: BTreeMap<ChainId, NodeId>,
    /// The routing version since which the heads are the same.
    since: RoutingVersion,
    /// Chains or slots have changed since the heads were looked up; the next quota looks them up.
    stale: bool,
}

impl Quotas {
    /// Without any node.
    pub(super) fn new() -> Self {
        Self { stale: true, ..Self::default() }
    }

    /// Notes that chains or slots have changed.
    pub(super) fn changed(&mut self) {
        self.stale = true;
    }

    /// Forgets a node that is considered gone.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.book.forget(node);
    }

    fn look_up(&mut self, state: &State, is_up: impl Fn(NodeId) -> bool) {
        self.stale = false;
        let head = |(id, record): (&ChainId, &millpond_types::cluster::ChainRecord)| {
            record.chain.serving().next().map(|head| (*id, head.node))
        };
        let heads: BTreeMap<ChainId, NodeId> = state.chains.iter().filter_map(head).collect();
        if heads != self.heads {
            self.since = state.head.routing;
            self.heads = heads;
        }
        // Slots are on chains of the default table.
        let own = || self.heads.range(ChainId::all_of(0));
        let last = own().next_back().map_or(0, |(chain, _)| chain.number() as usize);
        let mut slots = vec![0_u64; last + 1];
        for place in &state.slots {
            if let Some(slots) = slots.get_mut(place.chain.0 as usize) {
                *slots += 1;
            }
        }
        let mut weights = BTreeMap::new();
        for (chain, node) in own() {
            *weights.entry(*node).or_default() += slots[chain.number() as usize];
        }
        self.book.heads(weights, self.since, is_up);
    }
}

impl Primary {
    /// Takes the usage of a node's heads, reported under this routing; returns the node's limits.
    pub(super) fn hear_quotas(
        &mut self,
        node: NodeId,
        at: RoutingVersion,
        reports: &[QuotaReport],
    ) -> Vec<QuotaLimit> {
        if self.quotas.stale && !reports.is_empty() {
            let live = &self.nodes.live;
            self.quotas.look_up(&self.state, |node| live.get(&node).is_some_and(Live::is_up));
        }
        self.quotas.book.hear(node, at, reports)
    }
}
