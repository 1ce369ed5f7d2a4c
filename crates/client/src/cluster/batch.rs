//! Which node to ask for which keys, or chunks of files, and the meaning of the answers. Pure: it
//! takes routing and answers and returns questions, until every item has its answer.

use std::collections::{BTreeMap, HashSet};

use millpond_types::cluster::{Chain, ChainId, NodeId, Routing, SlotPlace};
use millpond_types::wire::{ItemStatus, ItemTag, PlacedChunk, Tags, Verb};
use millpond_types::{FileChunk, SlotId};

use super::tags::Tagger;

/// The replicas of a chain to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// The head, which decides.
    Head,
    /// Any serving replica.
    Any,
    /// All serving replicas; the head's answer counts.
    Every,
}

/// The chains to ask while a slot moves from one to another (docs/placement.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The new one; its head does the necessary work at the old one.
    New,
    /// New, old, new, until one has the key: the third question finds a copy made between the other
    /// two.
    Look,
    /// As `Look`, and the new one again after the old one had the key: the copy takes a pin or a
    /// lease along only if it existed before the copy.
    Keep,
    /// Old, then new, both: the copy exists once the old one has released it.
    Free,
}

const fn manner(verb: Verb) -> (Reach, Way) {
    match verb {
        Verb::Put | Verb::Delete | Verb::ChunkWrite | Verb::ChunkUpdate => (Reach::Head, Way::New),
        Verb::Pin => (Reach::Every, Way::Keep),
        Verb::Unpin => (Reach::Every, Way::Free),
        Verb::MatchPrefix => (Reach::Head, Way::Keep),
        Verb::Get | Verb::Contains => (Reach::Any, Way::Look),
        Verb::ChunkRead | Verb::ChunkStat => (Reach::Any, Way::New),
        _ => (Reach::Head, Way::Look),
    }
}

const fn updates(verb: Verb) -> bool {
    matches!(verb, Verb::Put | Verb::Delete | Verb::ChunkWrite | Verb::ChunkUpdate)
}

/// Whether a verb is for files: all parts must be done or the call fails, so failures that a cache
/// ignores are retried.
pub(crate) const fn must_be_done(verb: Verb) -> bool {
    matches!(verb, Verb::ChunkRead | Verb::ChunkStat | Verb::ChunkWrite | Verb::ChunkUpdate)
}

/// Whether to ask again after this answer.
const fn is_passing(verb: Verb, status: ItemStatus) -> bool {
    match status {
        ItemStatus::Moved | ItemStatus::Behind => true,
        ItemStatus::Busy | ItemStatus::Late | ItemStatus::Corrupt => must_be_done(verb),
        _ => false,
    }
}

/// Location of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// A key, by its slot, which may move from chain to chain.
    Slot(SlotId),
    /// A chunk of a file, by its fixed chain.
    Chunk(PlacedChunk),
}

impl Home {
    fn place(self, routing: &Routing) -> SlotPlace {
        match self {
            Self::Slot(slot) => routing.place(slot),
            Self::Chunk(at) => SlotPlace { chain: at.chain, old: None },
        }
    }

    const fn chunk(self) -> Option<FileChunk> {
        match self {
            Self::Slot(_) => None,
            Self::Chunk(at) => Some(at.chunk),
        }
    }
}

/// The chain of a step; none when there is no such step.
fn chain_at(way: Way, place: SlotPlace, step: usize) -> Option<ChainId> {
    let Some(old) = place.old else { return (step == 0).then_some(place.chain) };
    let chains: &[ChainId] = match way {
        Way::New => &[place.chain],
        Way::Look | Way::Keep => &[place.chain, old, place.chain],
        Way::Free => &[old, place.chain],
    };
    chains.get(step).copied()
}

/// Whether any replica may answer, so that asking another one is safe.
pub(crate) const fn reads(verb: Verb) -> bool {
    matches!(manner(verb).0, Reach::Any)
}

#[derive(Clone, Debug)]
struct Item {
    home: Home,
    /// It is sent only when all earlier items of its chunk have an answer.
    in_turn: bool,
    /// Index of the chain to ask in its way, and the place for which the way was chosen.
    step: (usize, Option<SlotPlace>),
    /// Answer of an earlier step, once a later one begins.
    earlier: Option<ItemStatus>,
    tag: Option<(ChainId, ItemTag)>,
    /// The tag's chain may have done the update: no other chain may be asked before it answers.
    unsure: bool,
    /// Nodes that should be able to read it but failed.
    refused_by: Vec<NodeId>,
    /// The node with the deciding answer, and the number of outstanding answers.
    asked: (Option<NodeId>, usize),
    heard: Option<ItemStatus>,
    answer: Option<ItemStatus>,
}

/// The requests of one round.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Every node once, with its keys.
    pub(crate) asks: BTreeMap<NodeId, Vec<usize>>,
    /// Keys that no node serves now.
    pub(crate) homeless: usize,
    /// Updates that wait for answers to others of their chain.
    pub(crate) held: usize,
}

/// The keys of one call, until each has an answer.
#[derive(Debug)]
pub(crate) struct Batch {
    verb: Verb,
    items: Vec<Item>,
    open: usize,
    /// Tags of updates that were answered or given up.
    released: Vec<(ChainId, ItemTag)>,
}

impl Batch {
    pub(crate) fn new(verb: Verb, homes: impl Iterator<Item = Home>) -> Self {
        let item = |home| Item {
            home,
            in_turn: false,
            step: (0, None),
            earlier: None,
            tag: None,
            unsure: false,
            refused_by: Vec::new(),
            asked: (None, 0),
            heard: None,
            answer: None,
        };
        let items: Vec<Item> = homes.map(item).collect();
        let open = items.len();
        Self { verb, items, open, released: Vec::new() }
    }

    /// Number of keys without an answer.
    pub(crate) const fn open(&self) -> usize {
        self.open
    }

    pub(crate) const fn verb(&self) -> Verb {
        self.verb
    }

    pub(crate) const fn len(&self) -> usize {
        self.items.len()
    }

    /// Makes an item wait until all earlier items of its chunk have an answer.
    pub(crate) fn keep_turn(&mut self, item: usize) {
        self.items[item].in_turn = true;
    }

    /// The slot of a key.
    pub(crate) fn slot(&self, item: usize) -> Option<SlotId> {
        match self.items[item].home {
            Home::Slot(slot) => Some(slot),
            Home::Chunk(_) => None,
        }
    }

    /// The node with the deciding answer for an item.
    pub(crate) fn asked(&self, item: usize) -> Option<NodeId> {
        self.items[item].asked.0
    }

    /// The tag of an update.
    #[cfg(test)]
    fn tag(&self, item: usize) -> Option<ItemTag> {
        self.items[item].tag.map(|(_, tag)| tag)
    }

    /// The tags of the updates in one request; none if the items are no updates.
    pub(crate) fn tags(&self, part: &[usize], client: u128) -> Option<Tags> {
        let tag = |item: &usize| self.items[*item].tag.map(|(_, tag)| tag);
        let items = part.iter().map(tag).collect::<Option<Vec<ItemTag>>>()?;
        Some(Tags { client, items })
    }

    /// The answers, with `otherwise` for keys without one.
    pub(crate) fn answers(&self, otherwise: ItemStatus) -> Vec<ItemStatus> {
        self.items.iter().map(|item| item.answer.unwrap_or(otherwise)).collect()
    }

    /// Whether the call may end with unanswered items: some are answered, and the verb can express
    /// missing answers.
    pub(crate) fn may_end(&self) -> bool {
        self.open() < self.len() && matches!(self.verb(), Verb::Get | Verb::Put)
    }

    /// Keys without an answer, in order.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.items.len()).filter(|item| self.items[*item].answer.is_none())
    }

    /// Tags that are free again. When the call ends, the updates still in progress are given up.
    pub(crate) fn take_released(&mut self, ended: bool) -> Vec<(ChainId, ItemTag)> {
        if ended {
            self.released.extend(self.items.iter_mut().filter_map(|item| item.tag.take()));
        }
        std::mem::take(&mut self.released)
    }

    /// Decides which nodes to ask for the keys without an answer. `rank` orders replicas that can
    /// all answer.
    pub(crate) fn plan(
        &mut self,
        routing: &Routing,
        tagger: &mut Tagger,
        mut rank: impl FnMut(NodeId) -> u64,
    ) -> Plan {
        let mut plan = Plan::default();
        // All keys of one chain go to the same replica.
        let mut chosen: BTreeMap<ChainId, Option<NodeId>> = BTreeMap::new();
        let any_in_turn = self.items.iter().any(|item| item.in_turn);
        let mut open_chunks: HashSet<FileChunk> = HashSet::new();
        for index in 0..self.items.len() {
            let item = &self.items[index];
            if item.answer.is_some() {
                continue;
            }
            if any_in_turn && let Some(chunk) = item.home.chunk() {
                let first = open_chunks.insert(chunk);
                if item.in_turn && !first {
                    plan.held += 1;
                    continue;
                }
            }
            self.turn(index, routing);
            let Some(chain) = self.chain_of(index, routing) else {
                plan.homeless += 1;
                continue;
            };
            let item = &self.items[index];
            let nodes: Vec<NodeId> = match manner(self.verb).0 {
                Reach::Head => chain.serving().take(1).map(|member| member.node).collect(),
                Reach::Every => chain.serving().map(|member| member.node).collect(),
                Reach::Any if item.refused_by.is_empty() => {
                    let pick = || chain.serving().map(|m| m.node).min_by_key(|node| rank(*node));
                    chosen.entry(chain.id).or_insert_with(pick).iter().copied().collect()
                }
                Reach::Any => others(chain, &item.refused_by).take(1).collect(),
            };
            if nodes.is_empty() {
                plan.homeless += 1;
            } else if self.tag_for(index, chain, tagger) {
                self.ask(index, &nodes, &mut plan);
            } else {
                plan.held += 1;
            }
        }
        plan
    }

    fn ask(&mut self, index: usize, nodes: &[NodeId], plan: &mut Plan) {
        let item = &mut self.items[index];
        item.unsure = updates(self.verb);
        item.heard = None;
        // A node may briefly have two targets of a chain: it is still asked once.
        let mut asked = 0;
        for node in nodes {
            let items = plan.asks.entry(*node).or_default();
            if items.last() != Some(&index) {
                items.push(index);
                asked += 1;
            }
        }
        item.asked = (nodes.first().copied(), asked);
    }

    /// Restarts a key's way when its slot has changed place: answers from one move mean nothing for
    /// the next.
    fn turn(&mut self, index: usize, routing: &Routing) {
        let item = &mut self.items[index];
        let place = item.home.place(routing);
        if item.step.1.replace(place) != Some(place) {
            (item.step.0, item.earlier) = (0, None);
        }
    }

    /// The chain to ask for a key now.
    fn chain_of<'r>(&self, index: usize, routing: &'r Routing) -> Option<&'r Chain> {
        let way = manner(self.verb).1;
        let item = &self.items[index];
        if item.unsure
            && let Some(chain) = item.tag.and_then(|(of, _)| routing.chains.get(&of))
        {
            return Some(chain);
        }
        let place = item.home.place(routing);
        let step = if item.step.1 == Some(place) { item.step.0 } else { 0 };
        routing.chains.get(&chain_at(way, place, step)?)
    }

    /// Makes sure that an update has a tag for this chain; false when it must wait for one.
    fn tag_for(&mut self, index: usize, chain: &Chain, tagger: &mut Tagger) -> bool {
        if !updates(self.verb) {
            return true;
        }
        let item = &mut self.items[index];
        match item.tag {
            Some((of, _)) if of == chain.id => true,
            // Another chain than at the first attempt, which does not know the update yet.
            other => {
                self.released.extend(other);
                item.tag = tagger.take(chain.id, chain.version).map(|tag| (chain.id, tag));
                item.tag.is_some()
            }
        }
    }

    /// Records a node's answer for one key. Returns true when the answer requires newer routing.
    pub(crate) fn answered(
        &mut self,
        (node, index): (NodeId, usize),
        status: ItemStatus,
        routing: &Routing,
    ) -> bool {
        let item = &mut self.items[index];
        if item.answer.is_some() {
            return false;
        }
        if is_passing(self.verb, status) {
            item.unsure &= status != ItemStatus::Moved;
            return true;
        }
        let (counts, left) = &mut item.asked;
        *left = left.saturating_sub(1);
        if manner(self.verb).0 != Reach::Every || *counts == Some(node) {
            item.heard = Some(status);
        }
        if *left == 0
            && let Some(status) = item.heard.take()
        {
            self.conclude(index, status, routing);
        }
        false
    }

    fn conclude(&mut self, index: usize, status: ItemStatus, routing: &Routing) {
        let way = manner(self.verb).1;
        let item = &mut self.items[index];
        let best = match item.earlier {
            Some(earlier) if status == ItemStatus::Miss => earlier,
            _ => status,
        };
        let goes_on = match way {
            Way::New => false,
            Way::Look => status == ItemStatus::Miss,
            Way::Keep => item.step.0 > 0 || status == ItemStatus::Miss,
            Way::Free => true,
        };
        let next = item.step.0 + 1;
        if goes_on && chain_at(way, item.home.place(routing), next).is_some() {
            item.step.0 = next;
            item.earlier = Some(best);
            item.refused_by.clear();
            return;
        }
        item.answer = Some(best);
        self.released.extend(item.tag.take());
        self.open -= 1;
    }

    /// Records that a node refused to read a key. Returns true when another replica can be asked.
    pub(crate) fn refused(&mut self, (node, index): (NodeId, usize), routing: &Routing) -> bool {
        self.items[index].refused_by.push(node);
        let Some(chain) = self.chain_of(index, routing) else { return true };
        others(chain, &self.items[index].refused_by).next().is_some()
    }

    /// Other replicas that can read the keys sent to `node`; none unless there is one for every
    /// key.
    pub(crate) fn instead_of(
        &mut self,
        node: NodeId,
        items: &[usize],
        routing: &Routing,
        mut rank: impl FnMut(NodeId) -> u64,
    ) -> Option<BTreeMap<NodeId, Vec<usize>>> {
        let mut asks: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        let mut chosen: BTreeMap<ChainId, NodeId> = BTreeMap::new();
        for index in items {
            let chain = self.chain_of(*index, routing)?;
            let refused_by = &self.items[*index].refused_by;
            let free = |other: &NodeId| *other != node && !refused_by.contains(other);
            let other = match chosen.get(&chain.id) {
                Some(other) if free(other) => *other,
                _ => chain.serving().map(|m| m.node).filter(free).min_by_key(|n| rank(*n))?,
            };
            chosen.insert(chain.id, other);
            asks.entry(other).or_default().push(*index);
        }
        Some(asks)
    }

    /// Whether `node` would still be asked for one of these keys under this routing.
    pub(crate) fn still_asks(&mut self, node: NodeId, items: &[usize], routing: &Routing) -> bool {
        let reach = manner(self.verb).0;
        items.iter().any(|index| {
            let Some(chain) = self.chain_of(*index, routing) else { return false };
            let mut serving = chain.serving().map(|member| member.node);
            match reach {
                Reach::Head => serving.next() == Some(node),
                Reach::Any | Reach::Every => serving.any(|other| other == node),
            }
        })
    }
}

fn others<'c>(chain: &'c Chain, not: &'c [NodeId]) -> impl Iterator<Item = NodeId> + 'c {
    chain.serving().map(|member| member.node).filter(|node| !not.contains(node))
}

#[cfg(test)]
mod tests;
