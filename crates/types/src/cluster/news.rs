//! The newest routing, and the version of the last change of each of its parts.

use std::collections::HashMap;
use std::sync::Arc;

use super::{ChainId, Routing, RoutingVersion, SlotPlace};
use crate::ids::SlotId;
use crate::limits::SLOTS;
use crate::wire::Planned;

/// Number of slots: if more than this move at once, the history counts all slots as moved.
const MOVED_MAX: usize = SLOTS / 4;

/// A routing and its history, as far as its owner has seen it.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// The newest routing.
    pub routing: Arc<Routing>,
    /// The first routing received, or the last one that moved most slots. Older changes are
    /// unknown.
    first: RoutingVersion,
    /// The routing version with which the change of a slot, or of a chain, arrived here. The change
    /// itself may be older; at worst other nodes then look again without need.
    slots: Arc<HashMap<SlotId, RoutingVersion>>,
    chains: Arc<HashMap<ChainId, RoutingVersion>>,
}

impl News {
    /// The history after newer routing arrived.
    #[must_use]
    pub fn after(&self, routing: &Arc<Routing>) -> Self {
        let mut news = self.clone();
        news.routing = Arc::clone(routing);
        if self.routing.version == RoutingVersion(0) {
            news.first = routing.version;
            return news;
        }
        let moved = routing.slots_unlike(&self.routing);
        if moved.len() > MOVED_MAX {
            // This happens when a cluster gets its first chains. One version for all slots is
            // cheaper to look up than one for each.
            return Self {
                first: routing.version,
                routing: Arc::clone(routing),
                ..Self::default()
            };
        }
        for slot in moved {
            Arc::make_mut(&mut news.slots).insert(slot, routing.version);
        }
        for chain in routing.chains.values() {
            let before = self.routing.chains.get(&chain.id);
            if before.is_none_or(|before| before.version != chain.version) {
                Arc::make_mut(&mut news.chains).insert(chain.id, routing.version);
            }
        }
        news
    }

    /// The version by which the slot had its present place, at the latest; for a moving slot, also
    /// the replicas of both chains.
    #[must_use]
    pub fn since(&self, slot: SlotId) -> RoutingVersion {
        let SlotPlace { chain, old } = self.routing.place(slot);
        let since = self.slots.get(&slot).copied().unwrap_or(self.first);
        let Some(old) = old else { return since };
        let changed = |id| self.chains.get(id).copied().unwrap_or(self.first);
        since.max(changed(&chain)).max(changed(&old))
    }

    /// The routing versions to send with a request for keys of these slots.
    #[must_use]
    pub fn planned(&self, slots: impl Iterator<Item = SlotId>) -> Planned {
        let needs = slots.map(|slot| self.since(slot)).max().unwrap_or(self.first);
        Planned { by: self.routing.version, needs }
    }

    /// Whether the sender of `planned` and the owner of this routing see the same place of a slot:
    /// the same chains and, while the slot moves, the same replicas. A request planned without
    /// routing agrees with any place.
    #[must_use]
    pub fn agrees(&self, slot: SlotId, planned: Planned) -> bool {
        planned.by == RoutingVersion(0)
            || planned.by >= self.since(slot) && planned.needs <= self.routing.version
    }
}

#[cfg(test)]
mod tests {
    use crate::cluster::{Chain, ChainVersion};

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

    fn by(version: u64) -> Planned {
        Planned { by: RoutingVersion(version), needs: RoutingVersion(0) }
    }

    #[test]
    fn who_has_not_heard_of_a_slots_last_change_is_told() {
        let news = News::default().after(&routing(5, 1, &[(7, 1, None), (8, 1, None)]));
        assert!(news.agrees(SlotId(7), by(0)), "no routing, no quarrel");
        assert!(!news.agrees(SlotId(7), by(4)), "what was before is not known");
        assert!(news.agrees(SlotId(7), by(5)) && news.agrees(SlotId(7), by(9)));
        let news = news.after(&routing(6, 1, &[(7, 2, Some(1)), (8, 1, None)]));
        assert!(!news.agrees(SlotId(7), by(5)) && news.agrees(SlotId(8), by(5)));
        assert!(news.agrees(SlotId(7), by(6)));
        // A chain of the slot changes its replicas; this matters only while the slot moves.
        let news = news.after(&routing(7, 2, &[(7, 2, Some(1)), (8, 1, None)]));
        assert!(!news.agrees(SlotId(7), by(6)) && news.agrees(SlotId(8), by(5)));
        let news = news.after(&routing(9, 2, &[(7, 2, None), (8, 1, None)]));
        assert_eq!(news.since(SlotId(7)), RoutingVersion(9));
        assert!(!news.agrees(SlotId(7), by(8)) && news.agrees(SlotId(7), by(11)));
    }

    #[test]
    fn slots_that_moved_all_at_once_need_no_record_each() {
        let all: Vec<_> = (0..=u16::MAX).map(|slot| (slot, 2, None)).collect();
        let before = News::default().after(&routing(5, 1, &[]));
        let news = before.after(&routing(6, 1, &all));
        assert!(news.slots.is_empty() && news.chains.is_empty());
        assert!(!news.agrees(SlotId(7), by(5)) && news.agrees(SlotId(7), by(6)));
        let planned = news.planned([SlotId(7)].into_iter());
        assert!(!before.agrees(SlotId(7), planned), "the other one has not heard of it");
    }

    #[test]
    fn who_knows_more_of_a_slot_is_not_answered() {
        let before = routing(5, 1, &[(7, 1, None), (8, 1, None)]);
        let node = News::default().after(&before);
        let client = node.after(&routing(6, 1, &[(7, 2, Some(1)), (8, 1, None)]));
        let slots = |slots: &[u16]| client.planned(slots.iter().map(|slot| SlotId(*slot)));
        assert!(!node.agrees(SlotId(7), slots(&[7])), "the node has not heard of the move");
        assert!(node.agrees(SlotId(8), slots(&[8])), "another slot is where it was");
        let both = slots(&[7, 8]);
        assert!(!node.agrees(SlotId(8), both), "a request is answered by one routing");
    }
}
