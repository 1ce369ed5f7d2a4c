//! Content of the store, as the primary knows it, and changes to it before they are stored.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millpond_types::cluster::{
    ChainId, ChainRecord, ClusterRecord, ConfigRecord, DiskId, DiskRecord, DiskState, EventRecord,
    HeadRecord, NodeId, NodeInfo, NodeRecord, NodeState, SLOT_PAGES, SlotPage, SlotPlace, TargetId,
    TargetState, keys,
};
use millpond_types::ids::SlotId;
use millpond_types::limits::{EVENTS_MAX, SLOT_PAGE, SLOTS};
use millpond_types::units::UnixSeconds;
use millpond_types::wire::{Record, WireError};

use super::ManagerOptions;
use super::availability::Availability;
use crate::planner::{PlanDisk, PlanView};

/// Writes in one transaction: etcd takes 128 operations, checks and head included.
const WRITES_MAX: usize = 96;

/// The records. Changed only by transactions that the store has committed.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) cluster: ClusterRecord,
    pub(crate) head: HeadRecord,
    pub(crate) config: ConfigRecord,
    pub(crate) nodes: BTreeMap<NodeId, NodeRecord>,
    pub(crate) disks: BTreeMap<DiskId, DiskRecord>,
    pub(crate) chains: BTreeMap<ChainId, ChainRecord>,
    pub(crate) slots: Vec<SlotPlace>,
    pub(crate) events: VecDeque<EventRecord>,
    /// Chains of each node.
    of_node: BTreeMap<NodeId, BTreeSet<ChainId>>,
    /// Chains in which a replica moves.
    pub(crate) moving: BTreeSet<ChainId>,
    /// Slots that move.
    pub(crate) slots_moving: BTreeSet<u16>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            cluster: ClusterRecord::default(),
            head: HeadRecord { next_target: 1, next_chain: 1, ..HeadRecord::default() },
            config: ConfigRecord::default(),
            nodes: BTreeMap::new(),
            disks: BTreeMap::new(),
            chains: BTreeMap::new(),
            slots: vec![SlotPlace { chain: ChainId::NONE, old: None }; SLOTS],
            events: VecDeque::new(),
            of_node: BTreeMap::new(),
            moving: BTreeSet::new(),
            slots_moving: BTreeSet::new(),
        }
    }
}

impl State {
    /// Loads one stored entry. Keys of other roles' records are skipped.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), WireError> {
        if key == keys::HEAD {
            self.head = HeadRecord::open(value)?;
        } else if key == keys::CLUSTER {
            self.cluster = ClusterRecord::open(value)?;
        } else if key == keys::CONFIG {
            self.config = ConfigRecord::open(value)?;
        } else if key.starts_with(keys::NODE) {
            let node = NodeRecord::open(value)?;
            self.nodes.insert(node.id, node);
        } else if key.starts_with(keys::DISK) {
            let disk = DiskRecord::open(value)?;
            self.disks.insert(disk.id, disk);
        } else if key.starts_with(keys::CHAIN) {
            self.put_chain(ChainRecord::open(value)?);
        } else if key.starts_with(keys::SLOTS) {
            let page = SlotPage::open(value)?;
            let first = usize::from(page.page) * SLOT_PAGE;
            for (slot, place) in (first..).zip(page.places) {
                self.put_slot(u16::try_from(slot).unwrap_or(u16::MAX), place);
            }
        } else if key.starts_with(keys::EVENT) {
            self.events.push_back(EventRecord::open(value)?);
        }
        Ok(())
    }

    /// Finishes loading.
    pub(crate) fn loaded(&mut self) {
        self.events.make_contiguous().sort_unstable_by_key(|event| event.number);
    }

    fn put_chain(&mut self, record: ChainRecord) {
        let id = record.chain.id;
        if let Some(old) = self.chains.get(&id) {
            for member in &old.chain.targets {
                if let Some(chains) = self.of_node.get_mut(&member.node) {
                    chains.remove(&id);
                }
            }
        }
        for member in &record.chain.targets {
            self.of_node.entry(member.node).or_default().insert(id);
        }
        if record.moving.is_some() {
            self.moving.insert(id);
        } else {
            self.moving.remove(&id);
        }
        self.chains.insert(id, record);
    }

    fn put_slot(&mut self, slot: u16, place: SlotPlace) {
        self.slots[usize::from(slot)] = place;
        if place.old.is_some() {
            self.slots_moving.insert(slot);
        } else {
            self.slots_moving.remove(&slot);
        }
    }

    /// Chains that have a target on this node.
    pub(crate) fn chains_of(&self, node: NodeId) -> impl Iterator<Item = ChainId> {
        self.of_node.get(&node).into_iter().flatten().copied()
    }

    /// A node as routing shows it.
    pub(crate) fn node_info(record: &NodeRecord) -> NodeInfo {
        NodeInfo {
            id: record.id,
            addresses: record.addresses.clone(),
            domain: domain_name(record),
            state: record.state,
            meta: record.meta,
        }
    }

    /// Input of a plan; `disks` as [`plan_disks`](super::commit::plan_disks) returns them.
    pub(crate) fn plan_view<'a>(
        &'a self,
        disks: &'a [PlanDisk],
        options: &ManagerOptions,
    ) -> PlanView<'a> {
        PlanView {
            replicas: self.cluster.replicas,
            more: self.cluster.more,
            chains_max: options.chains_max,
            seed: self.cluster.seed,
            disks,
            chains: &self.chains,
            slots: &self.slots,
        }
    }

    /// True when a disk takes its share of the data.
    pub(crate) fn takes_data(&self, disk: &DiskRecord) -> bool {
        let active = self.nodes.get(&disk.node).is_some_and(|node| node.state == NodeState::Active);
        active && disk.state == DiskState::Active
    }

    pub(crate) fn apply(&mut self, changes: &Changes) {
        if let Some(cluster) = changes.cluster {
            self.cluster = cluster;
        }
        if let Some(config) = &changes.config {
            self.config = config.clone();
        }
        self.head = changes.head;
        for (id, node) in &changes.nodes {
            match node {
                Some(node) => self.nodes.insert(*id, node.clone()),
                None => self.nodes.remove(id),
            };
        }
        for (id, disk) in &changes.disks {
            match disk {
                Some(disk) => self.disks.insert(*id, *disk),
                None => self.disks.remove(id),
            };
        }
        for record in changes.chains.values() {
            self.put_chain(record.clone());
        }
        for (slot, place) in &changes.slots {
            self.put_slot(*slot, *place);
        }
        self.events.extend(changes.events.iter().cloned());
        while self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }
}

/// The failure domain of a node; without a name it is the node itself.
pub(crate) fn domain_name(record: &NodeRecord) -> String {
    if record.domain.is_empty() { record.id.to_string() } else { record.domain.clone() }
}

/// New values of records: one transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    pub(crate) head: HeadRecord,
    pub(crate) cluster: Option<ClusterRecord>,
    pub(crate) config: Option<ConfigRecord>,
    pub(crate) nodes: BTreeMap<NodeId, Option<NodeRecord>>,
    pub(crate) disks: BTreeMap<DiskId, Option<DiskRecord>>,
    pub(crate) chains: BTreeMap<ChainId, ChainRecord>,
    pub(crate) slots: BTreeMap<u16, SlotPlace>,
    pub(crate) events: Vec<EventRecord>,
}

/// Changes on top of the committed state. Reads see earlier writes of the draft.
pub(crate) struct Draft<'a> {
    pub(crate) base: &'a State,
    pub(crate) changes: Changes,
    /// Nodes that lose a serving target.
    pub(crate) fenced: BTreeSet<NodeId>,
    /// Chains that stop or begin to serve.
    pub(crate) availability: Availability,
    unix: UnixSeconds,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(base: &'a State, unix: UnixSeconds) -> Self {
        let changes = Changes { head: base.head, ..Changes::default() };
        let availability = Availability::default();
        Self { base, changes, fenced: BTreeSet::new(), availability, unix }
    }

    /// True when nothing was changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.writes() == 0
    }

    /// Whether there is room for `more` writes.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.writes() + more <= WRITES_MAX
    }

    fn writes(&self) -> usize {
        let changes = &self.changes;
        usize::from(changes.cluster.is_some())
            + usize::from(changes.config.is_some())
            + changes.nodes.len()
            + changes.disks.len()
            + changes.chains.len()
            + changes.events.len()
            + self.availability.count()
            + self.pages().len()
    }

    fn pages(&self) -> BTreeSet<u8> {
        self.changes.slots.keys().map(|slot| page_of(*slot)).collect()
    }

    pub(crate) fn chain(&self, id: ChainId) -> Option<&ChainRecord> {
        self.changes.chains.get(&id).or_else(|| self.base.chains.get(&id))
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<&NodeRecord> {
        match self.changes.nodes.get(&id) {
            Some(node) => node.as_ref(),
            None => self.base.nodes.get(&id),
        }
    }

    pub(crate) fn disk(&self, id: DiskId) -> Option<&DiskRecord> {
        match self.changes.disks.get(&id) {
            Some(disk) => disk.as_ref(),
            None => self.base.disks.get(&id),
        }
    }

    pub(crate) fn cluster(&self) -> ClusterRecord {
        self.changes.cluster.unwrap_or(self.base.cluster)
    }

    pub(crate) fn config(&self) -> &ConfigRecord {
        self.changes.config.as_ref().unwrap_or(&self.base.config)
    }

    pub(crate) fn place(&self, slot: u16) -> SlotPlace {
        let changed = self.changes.slots.get(&slot).copied();
        changed.unwrap_or(self.base.slots[usize::from(slot)])
    }

    /// Changes a chain. At most once per draft, so that versions grow by one per transaction.
    pub(crate) fn put_chain(&mut self, record: ChainRecord) {
        if let Some(before) = self.chain(record.chain.id) {
            let serves =
                |member: &TargetId| record.chain.serving().any(|serving| serving.target == *member);
            let stopped: Vec<NodeId> = before
                .chain
                .serving()
                .filter(|member| !serves(&member.target))
                .map(|member| member.node)
                .collect();
            self.fenced.extend(stopped);
        }
        self.changes.chains.insert(record.chain.id, record);
    }

    /// True when a chain may still be changed in this draft.
    pub(crate) fn is_untouched(&self, chain: ChainId) -> bool {
        !self.changes.chains.contains_key(&chain)
    }

    pub(crate) fn new_target(&mut self) -> TargetId {
        let id = TargetId(self.changes.head.next_target);
        self.changes.head.next_target += 1;
        id
    }

    /// The id of a new chain of a table. Chains are never removed, so the next id follows the last.
    pub(crate) fn new_chain(&mut self, table: u8) -> ChainId {
        if table == 0 {
            let id = ChainId(self.changes.head.next_chain);
            self.changes.head.next_chain += 1;
            return id;
        }
        let last = |chains: &BTreeMap<ChainId, ChainRecord>| {
            chains.range(ChainId::all_of(table)).next_back().map_or(0, |(id, _)| id.number())
        };
        ChainId::of(table, last(&self.base.chains).max(last(&self.changes.chains)) + 1)
    }

    pub(crate) fn event(&mut self, chain: Option<ChainId>, text: String) {
        let number = self.changes.head.next_event;
        self.changes.head.next_event += 1;
        self.changes.events.push(EventRecord { number, at: self.unix, chain, text });
    }

    /// True when the draft changes the routing.
    fn changes_routing(&self) -> bool {
        let changes = &self.changes;
        !(changes.nodes.is_empty() && changes.chains.is_empty() && changes.slots.is_empty())
            || changes.cluster.is_some()
    }

    /// Ends the draft: numbers it, and returns its writes.
    pub(crate) fn seal(mut self) -> (Changes, BTreeSet<NodeId>, Vec<Write>) {
        for (chain, text) in std::mem::take(&mut self.availability).tell() {
            self.event(chain, text);
        }
        self.changes.head.transaction += 1;
        if self.changes_routing() {
            self.changes.head.routing.0 += 1;
        }
        let mut writes = vec![put(keys::HEAD.to_vec(), &self.changes.head)];
        if let Some(cluster) = &self.changes.cluster {
            writes.push(put(keys::CLUSTER.to_vec(), cluster));
        }
        if let Some(config) = &self.changes.config {
            writes.push(put(keys::CONFIG.to_vec(), config));
        }
        for (id, node) in &self.changes.nodes {
            writes.push((keys::node(*id), node.as_ref().map(Record::seal)));
        }
        for (id, disk) in &self.changes.disks {
            writes.push((keys::disk(*id), disk.as_ref().map(Record::seal)));
        }
        for (id, record) in &self.changes.chains {
            writes.push(put(keys::chain(*id), record));
        }
        for page in self.pages() {
            let first = usize::from(page) * SLOT_PAGE;
            let slots = first..first + SLOT_PAGE;
            let places =
                slots.map(|slot| self.place(u16::try_from(slot).unwrap_or(u16::MAX))).collect();
            writes.push(put(keys::slots(page), &SlotPage { page, places }));
        }
        for event in &self.changes.events {
            writes.push(put(keys::event(event.number), event));
        }
        (self.changes, self.fenced, writes)
    }
}

/// A key and its new value.
pub(crate) type Write = (Vec<u8>, Option<Vec<u8>>);

fn put(key: Vec<u8>, record: &impl Record) -> Write {
    (key, Some(record.seal()))
}

fn page_of(slot: u16) -> u8 {
    const _: () = assert!(SLOT_PAGES <= 256);
    u8::try_from(usize::from(slot) / SLOT_PAGE).unwrap_or(u8::MAX)
}

/// Slots of a [`SlotId`] range, as numbers.
pub(crate) fn slot_id(slot: u16) -> SlotId {
    SlotId(slot)
}

/// Whether a target in this state serves.
pub(crate) fn is_serving(state: TargetState) -> bool {
    state == TargetState::Serving
}
