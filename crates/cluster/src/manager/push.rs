//! Routing for nodes and clients: changes are pushed as differences.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millpond_types::cluster::{
    ChainId, NodeId, Routing, RoutingDiff, RoutingUpdate, RoutingVersion, SlotChange,
};
use millpond_types::ids::Uuid128;

use super::Cx;
use super::event::{Effect, Session};
use super::state::{Changes, State, slot_id};

/// Changed items in memory: a copy that is further behind gets the full routing, which is not
/// larger.
const ITEMS_MAX: usize = 65_536;

/// The committed routing, its recent changes, and the version of each subscriber.
#[derive(Debug)]
pub(super) struct Publisher {
    routing: Routing,
    /// What each version changed, oldest first.
    log: VecDeque<Changed>,
    items: usize,
    /// The oldest version that differences can be made from.
    floor: RoutingVersion,
    sessions: BTreeMap<Session, Subscriber>,
}

#[derive(Debug)]
struct Changed {
    version: RoutingVersion,
    nodes: Vec<NodeId>,
    chains: Vec<ChainId>,
    slots: Vec<u16>,
}

impl Changed {
    fn items(&self) -> usize {
        self.nodes.len() + self.chains.len() + self.slots.len()
    }
}

#[derive(Debug)]
struct Subscriber {
    cluster: Uuid128,
    have: RoutingVersion,
    /// Whether an update is in flight: the next waits for its arrival.
    waits: bool,
}

impl Publisher {
    pub(super) fn new(state: &State) -> Self {
        let mut routing = Routing {
            cluster: state.cluster.cluster,
            version: state.head.routing,
            nodes: state.nodes.values().map(|node| (node.id, State::node_info(node))).collect(),
            chains: state
                .chains
                .values()
                .map(|record| (record.chain.id, record.chain.clone()))
                .collect(),
            ..Routing::default()
        };
        for (slot, place) in (0..=u16::MAX).zip(&state.slots) {
            routing.set_place(slot_id(slot), *place);
        }
        let floor = routing.version;
        Self { routing, log: VecDeque::new(), items: 0, floor, sessions: BTreeMap::new() }
    }

    pub(super) fn routing(&self) -> &Routing {
        &self.routing
    }

    /// Publishes a committed transaction.
    pub(super) fn publish(&mut self, cx: &mut Cx<'_>, changes: &Changes) {
        if changes.head.routing == self.routing.version {
            return;
        }
        if let Some(cluster) = changes.cluster {
            self.routing.cluster = cluster.cluster;
        }
        for (id, node) in &changes.nodes {
            match node {
                Some(node) => self.routing.nodes.insert(*id, State::node_info(node)),
                None => self.routing.nodes.remove(id),
            };
        }
        for (id, record) in &changes.chains {
            self.routing.chains.insert(*id, record.chain.clone());
        }
        for (slot, place) in &changes.slots {
            self.routing.set_place(slot_id(*slot), *place);
        }
        self.routing.version = changes.head.routing;
        let entry = Changed {
            version: changes.head.routing,
            nodes: changes.nodes.keys().copied().collect(),
            chains: changes.chains.keys().copied().collect(),
            slots: changes.slots.keys().copied().collect(),
        };
        self.items += entry.items();
        self.log.push_back(entry);
        while self.items > ITEMS_MAX
            && let Some(oldest) = self.log.pop_front()
        {
            self.items -= oldest.items();
            self.floor = oldest.version;
        }
        for session in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.send(cx, session);
        }
    }

    pub(super) fn subscribe(
        &mut self,
        cx: &mut Cx<'_>,
        from: Session,
        (cluster, have): (Uuid128, RoutingVersion),
    ) {
        self.sessions.insert(from, Subscriber { cluster, have, waits: false });
        self.send(cx, from);
    }

    pub(super) fn received(&mut self, cx: &mut Cx<'_>, from: Session, version: RoutingVersion) {
        if let Some(subscriber) = self.sessions.get_mut(&from) {
            subscriber.have = subscriber.have.max(version);
            subscriber.waits = false;
            self.send(cx, from);
        }
    }

    pub(super) fn closed(&mut self, from: Session) {
        self.sessions.remove(&from);
    }

    pub(super) fn subscribers(&self) -> usize {
        self.sessions.len()
    }

    fn send(&mut self, cx: &mut Cx<'_>, to: Session) {
        let Some(subscriber) = self.sessions.get(&to) else { return };
        let current =
            subscriber.cluster == self.routing.cluster && subscriber.have == self.routing.version;
        if subscriber.waits || current {
            return;
        }
        let update = self.update_from(subscriber.cluster, subscriber.have);
        let version = update.version();
        if let Some(subscriber) = self.sessions.get_mut(&to) {
            subscriber.cluster = self.routing.cluster;
            subscriber.have = version;
            subscriber.waits = true;
        }
        cx.effects.push(Effect::Push { to, update });
    }

    /// The update that brings a copy at `have` up to date.
    fn update_from(&self, cluster: Uuid128, have: RoutingVersion) -> RoutingUpdate {
        // A copy from the future comes from a store that was set back: its owner sees that, and
        // keeps its copy.
        let known = have >= self.floor && have <= self.routing.version;
        if cluster != self.routing.cluster || have == RoutingVersion(0) || !known {
            return RoutingUpdate::Full(Box::new(self.routing.clone()));
        }
        let since = self.log.iter().filter(|changed| changed.version > have);
        let (mut nodes, mut chains, mut slots) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for changed in since {
            nodes.extend(&changed.nodes);
            chains.extend(&changed.chains);
            slots.extend(&changed.slots);
        }
        let routing = &self.routing;
        let (there, gone): (Vec<_>, Vec<_>) =
            nodes.into_iter().partition(|node| routing.nodes.contains_key(node));
        let diff = RoutingDiff {
            from: have,
            to: routing.version,
            nodes: there.iter().filter_map(|node| routing.nodes.get(node)).cloned().collect(),
            nodes_gone: gone,
            chains: chains.iter().filter_map(|chain| routing.chains.get(chain)).cloned().collect(),
            slots: slots
                .into_iter()
                .map(|slot: u16| SlotChange {
                    slot: slot_id(slot),
                    place: routing.place(slot_id(slot)),
                })
                .collect(),
        };
        RoutingUpdate::Diff(routing.cluster, diff)
    }
}
