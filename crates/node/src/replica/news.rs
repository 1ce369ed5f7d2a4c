//! The newest routing, and since when each of its parts has been as it is.

use std::collections::HashMap;
use std::sync::Arc;

use millpond_types::SlotId;
use millpond_types::cluster::{ChainId, Routing, RoutingVersion};

/// A routing and its history, as far as this node has seen it.
#[derive(Clone, Debug, Default)]
pub(super) struct News {
    pub(super) routing: Arc<Routing>,
    /// The first routing that was heard of: nothing is known of changes before it.
    first: RoutingVersion,
    /// The version with which the change of a slot, or of a chain, came here. The change itself
    /// may be older, which makes askers look again at worst.
    slots: Arc<HashMap<SlotId, RoutingVersion>>,
    chains: Arc<HashMap<ChainId, RoutingVersion>>,
}

impl News {
    /// The same after newer routing came.
    pub(super) fn after(&self, routing: &Arc<Routing>) -> Self {
        let mut news = self.clone();
        news.routing = Arc::clone(routing);
        if self.routing.version == RoutingVersion(0) {
            news.first = routing.version;
            return news;
        }
        for slot in (0..=u16::MAX).map(SlotId) {
            if self.routing.place(slot) != routing.place(slot) {
                Arc::make_mut(&mut news.slots).insert(slot, routing.version);
            }
        }
        for chain in routing.chains.values() {
            let before = self.routing.chains.get(&chain.id);
            if before.is_none_or(|before| before.version != chain.version) {
                Arc::make_mut(&mut news.chains).insert(chain.id, routing.version);
            }
        }
        news
    }

    /// Since when the slot has been where it is, at the latest.
    pub(super) fn since(&self, slot: SlotId) -> RoutingVersion {
        self.slots.get(&slot).copied().unwrap_or(self.first)
    }

    /// Whether one whose routing is `planned` and this node mean the same chains by the slot, and
    /// the same replicas by them while it moves. 0 is one who does not choose by routing.
    pub(super) fn agrees(&self, slot: SlotId, planned: RoutingVersion) -> bool {
        if planned == RoutingVersion(0) {
            return true;
        }
        let place = self.routing.place(slot);
        let Some(old) = place.old else { return planned >= self.since(slot) };
        let chain = |id| self.chains.get(id).copied().unwrap_or(self.first);
        let since = self.since(slot).max(chain(&place.chain)).max(chain(&old));
        (since..=self.routing.version).contains(&planned)
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::cluster::{Chain, ChainVersion, SlotPlace};

    use super::*;

    fn routing(version: u64, chain: u32, places: &[(u16, u32, Option<u32>)]) -> Arc<Routing> {
        let mut routing = Routing { version: RoutingVersion(version), ..Routing::default() };
        for id in 1..=2 {
            let version = ChainVersion(if id == 1 { chain } else { 1 });
            let chain = Chain { id: ChainId(id), version, ..Chain::default() };
            routing.chains.insert(chain.id, chain);
        }
        for (slot, to, old) in places {
            let place = SlotPlace { chain: ChainId(*to), old: old.map(ChainId) };
            routing.set_place(SlotId(*slot), place);
        }
        Arc::new(routing)
    }

    #[test]
    fn who_has_not_heard_of_a_slots_last_change_is_told() {
        let at = RoutingVersion;
        let news = News::default().after(&routing(5, 1, &[(7, 1, None), (8, 1, None)]));
        assert!(news.agrees(SlotId(7), at(0)), "no routing, no quarrel");
        assert!(!news.agrees(SlotId(7), at(4)), "what was before is not known");
        assert!(news.agrees(SlotId(7), at(5)) && news.agrees(SlotId(7), at(9)));
        let news = news.after(&routing(6, 1, &[(7, 2, Some(1)), (8, 1, None)]));
        assert!(!news.agrees(SlotId(7), at(5)) && news.agrees(SlotId(8), at(5)));
        assert!(news.agrees(SlotId(7), at(6)));
        assert!(!news.agrees(SlotId(7), at(7)), "may mean other replicas of a slot that moves");
        // A chain of the slot changes its replicas: it matters while the slot moves.
        let news = news.after(&routing(7, 2, &[(7, 2, Some(1)), (8, 1, None)]));
        assert!(!news.agrees(SlotId(7), at(6)) && news.agrees(SlotId(8), at(5)));
        let news = news.after(&routing(9, 2, &[(7, 2, None), (8, 1, None)]));
        assert_eq!(news.since(SlotId(7)), at(9));
        assert!(!news.agrees(SlotId(7), at(8)) && news.agrees(SlotId(7), at(11)));
    }
}
