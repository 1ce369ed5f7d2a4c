//! This node's copy of the routing, and the updates for copies that are behind it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};

use millpond_types::Uuid128;
use millpond_types::cluster::{
    ChainId, NodeId, Routing, RoutingDiff, RoutingUpdate, RoutingVersion, SlotChange, UpdateError,
};
use millpond_types::ids::SlotId;
use millpond_types::wire::RoutingRequest;

/// Maximum remembered updates; a copy that is further behind receives the whole routing.
const UPDATES_MAX: usize = 256;
/// Maximum items of the remembered updates: every slot once.
const ITEMS_MAX: usize = 65_536;

/// Items that an update changed.
#[derive(Debug)]
struct Changed {
    version: RoutingVersion,
    nodes: Vec<NodeId>,
    chains: Vec<ChainId>,
    slots: Vec<SlotId>,
}

impl Changed {
    fn items(&self) -> usize {
        self.nodes.len() + self.chains.len() + self.slots.len()
    }
}

/// One version of the copy. It is immutable; the next version shares as much as possible with it.
#[derive(Debug, Default)]
pub(crate) struct RoutingCopy {
    /// The routing.
    pub(crate) routing: Arc<Routing>,
    log: VecDeque<Arc<Changed>>,
    /// Oldest version that the log can bring up to date.
    floor: RoutingVersion,
    /// The whole routing as bytes, made on first use.
    whole: OnceLock<Vec<u8>>,
}

impl RoutingCopy {
    /// Returns the copy after `update`; `None` if it was up to date already.
    ///
    /// # Errors
    /// [`UpdateError`] when the update does not fit.
    pub(crate) fn after(&self, update: RoutingUpdate) -> Result<Option<Self>, UpdateError> {
        let changed = match &update {
            RoutingUpdate::Full(_) => None,
            RoutingUpdate::Diff(_, diff) => Some(Changed {
                version: diff.to,
                nodes: diff
                    .nodes
                    .iter()
                    .map(|node| node.id)
                    .chain(diff.nodes_gone.clone())
                    .collect(),
                chains: diff.chains.iter().map(|chain| chain.id).collect(),
                slots: diff.slots.iter().map(|change| change.slot).collect(),
            }),
        };
        let mut routing = Routing::clone(&self.routing);
        if !routing.apply(update)? {
            return Ok(None);
        }
        let (mut log, mut floor) = (VecDeque::new(), routing.version);
        if let Some(changed) = changed {
            (log, floor) = (self.log.clone(), self.floor);
            log.push_back(Arc::new(changed));
        }
        let mut items: usize = log.iter().map(|changed| changed.items()).sum();
        while log.len() > UPDATES_MAX || items > ITEMS_MAX {
            let Some(oldest) = log.pop_front() else { break };
            items -= oldest.items();
            floor = oldest.version;
        }
        Ok(Some(Self { routing: Arc::new(routing), log, floor, whole: OnceLock::new() }))
    }

    /// Returns the update for a caller's copy as bytes; `None` if that is up to date.
    pub(crate) fn update_for(&self, caller: &RoutingRequest) -> Option<Vec<u8>> {
        let routing = &self.routing;
        let same = caller.cluster == routing.cluster;
        // A caller that is ahead of this node is not sent back.
        if routing.version == RoutingVersion(0) || (same && caller.have >= routing.version) {
            return None;
        }
        if !same || caller.have < self.floor || caller.have == RoutingVersion(0) {
            let make = || RoutingUpdate::Full(Box::new(Routing::clone(routing))).encode();
            return Some(self.whole.get_or_init(make).clone());
        }
        Some(RoutingUpdate::Diff(routing.cluster, self.since(caller.have)).encode())
    }

    fn since(&self, have: RoutingVersion) -> RoutingDiff {
        let (mut nodes, mut chains, mut slots) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for changed in self.log.iter().filter(|changed| changed.version > have) {
            nodes.extend(&changed.nodes);
            chains.extend(&changed.chains);
            slots.extend(changed.slots.iter().map(|slot| slot.0));
        }
        let routing = &self.routing;
        let (there, gone): (Vec<NodeId>, Vec<NodeId>) =
            nodes.into_iter().partition(|node| routing.nodes.contains_key(node));
        let change = |slot| SlotChange { slot: SlotId(slot), place: routing.place(SlotId(slot)) };
        RoutingDiff {
            from: have,
            to: routing.version,
            nodes: there.iter().filter_map(|node| routing.nodes.get(node)).cloned().collect(),
            nodes_gone: gone,
            chains: chains.iter().filter_map(|id| routing.chains.get(id)).cloned().collect(),
            slots: slots.into_iter().map(change).collect(),
        }
    }

    /// The request for updates after this copy.
    pub(crate) fn request(&self) -> RoutingRequest {
        let cluster: Uuid128 = self.routing.cluster;
        RoutingRequest { cluster, have: self.routing.version }
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::cluster::{Chain, ChainVersion, SlotPlace};

    use super::*;

    fn full(version: u64) -> RoutingUpdate {
        let cluster = Uuid128([3; 16]);
        let version = RoutingVersion(version);
        RoutingUpdate::Full(Box::new(Routing { cluster, version, ..Routing::default() }))
    }

    fn diff(from: u64, chain: u32) -> RoutingUpdate {
        let chain = Chain { id: ChainId(chain), version: ChainVersion(1), targets: Vec::new() };
        let place = SlotPlace { chain: chain.id, old: None };
        let slot = SlotId(u16::try_from(chain.id.0).unwrap());
        let diff = RoutingDiff {
            from: RoutingVersion(from),
            to: RoutingVersion(from + 1),
            chains: vec![chain],
            slots: vec![SlotChange { slot, place }],
            ..RoutingDiff::default()
        };
        RoutingUpdate::Diff(Uuid128([3; 16]), diff)
    }

    #[test]
    fn callers_at_any_version_arrive_at_the_newest() {
        let mut copy = RoutingCopy::default();
        assert_eq!(copy.update_for(&RoutingRequest::default()), None, "nothing is known yet");
        let mut callers = vec![Routing::default()];
        copy = copy.after(full(5)).unwrap().unwrap();
        for n in 0..400u32 {
            if n % 7 == 0 {
                callers.push(Routing::clone(&copy.routing));
            }
            copy = copy.after(diff(5 + u64::from(n), n + 1)).unwrap().unwrap();
            assert!(copy.log.len() <= UPDATES_MAX);
        }
        assert!(copy.after(full(9)).unwrap().is_none(), "an old one changes nothing");
        assert!(copy.after(diff(900, 1)).is_err());
        for mut caller in callers {
            let request = RoutingRequest { cluster: caller.cluster, have: caller.version };
            let bytes = copy.update_for(&request).unwrap();
            let update = RoutingUpdate::decode(&bytes).unwrap();
            let whole = matches!(update, RoutingUpdate::Full(_));
            assert_eq!(whole, caller.version < copy.floor);
            assert_eq!(caller.apply(update), Ok(true));
            assert_eq!(caller, *copy.routing);
        }
        assert_eq!(copy.update_for(&copy.request()), None);
        let ahead = RoutingRequest { have: RoutingVersion(9_999), ..copy.request() };
        assert_eq!(copy.update_for(&ahead), None);
        let stranger = RoutingRequest { cluster: Uuid128([4; 16]), have: RoutingVersion(9_999) };
        assert!(copy.update_for(&stranger).is_some());
    }
}
