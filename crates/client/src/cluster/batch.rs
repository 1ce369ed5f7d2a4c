//! Which node is asked for which keys, and what the answers mean. Pure: routing goes in, questions
//! come out, answers go in, until every key has one.

use std::collections::{BTreeMap, HashMap};

use millpond_types::SlotId;
use millpond_types::cluster::{Chain, ChainId, NodeId, Routing};
use millpond_types::wire::{ItemStatus, ItemTag, Verb};

use super::tags::Tagger;

/// Which replicas of a chain are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// The head, which decides.
    Head,
    /// Any that serves.
    Any,
    /// All that serve; the head's answer counts.
    Every,
}

/// What is done while a slot moves from one chain to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dual {
    /// Only the new chain takes writes.
    New,
    /// The new chain, then the old one for what it does not have.
    OldOnMiss,
    /// The old chain, then the new one: what the move copied meanwhile is found there.
    OldThenNew,
}

const fn manner(verb: Verb) -> (Reach, Dual) {
    match verb {
        Verb::Put => (Reach::Head, Dual::New),
        Verb::Delete => (Reach::Head, Dual::OldThenNew),
        Verb::Pin => (Reach::Every, Dual::OldOnMiss),
        Verb::Unpin => (Reach::Every, Dual::OldThenNew),
        Verb::Get | Verb::Contains => (Reach::Any, Dual::OldOnMiss),
        _ => (Reach::Head, Dual::OldOnMiss),
    }
}

/// Whether any replica may answer, so that another one can be asked at no risk.
pub(crate) const fn reads(verb: Verb) -> bool {
    matches!(manner(verb).0, Reach::Any)
}

/// Which of its two chains a key is asked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    First,
    Second,
}

#[derive(Clone, Debug)]
struct Item {
    slot: SlotId,
    step: Step,
    /// The first chain's answer, once the second one is asked.
    earlier: Option<ItemStatus>,
    tag: Option<(ChainId, ItemTag)>,
    /// Nodes that cannot read it though they should.
    refused_by: Vec<NodeId>,
    /// The node whose answer counts, and how many of those asked have not answered.
    asked: (Option<NodeId>, usize),
    heard: Option<ItemStatus>,
    answer: Option<ItemStatus>,
}

/// Whom to ask for what, in one round.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Every node once, with its keys.
    pub(crate) asks: BTreeMap<NodeId, Vec<usize>>,
    /// Keys that nobody serves now.
    pub(crate) homeless: usize,
    /// Updates that wait until others of their chain are answered.
    pub(crate) held: usize,
}

/// The keys of one call on their way to an answer each.
#[derive(Debug)]
pub(crate) struct Batch {
    verb: Verb,
    items: Vec<Item>,
    open: usize,
    /// Tags whose updates were answered or given up.
    released: Vec<(ChainId, ItemTag)>,
}

impl Batch {
    pub(crate) fn new(verb: Verb, slots: impl Iterator<Item = SlotId>) -> Self {
        let item = |slot| Item {
            slot,
            step: Step::First,
            earlier: None,
            tag: None,
            refused_by: Vec::new(),
            asked: (None, 0),
            heard: None,
            answer: None,
        };
        let items: Vec<Item> = slots.map(item).collect();
        let open = items.len();
        Self { verb, items, open, released: Vec::new() }
    }

    /// Keys without an answer.
    pub(crate) const fn open(&self) -> usize {
        self.open
    }

    pub(crate) const fn verb(&self) -> Verb {
        self.verb
    }

    pub(crate) const fn len(&self) -> usize {
        self.items.len()
    }

    /// The tag under which an update goes out.
    pub(crate) fn tag(&self, item: usize) -> Option<ItemTag> {
        self.items[item].tag.map(|(_, tag)| tag)
    }

    /// The answers; keys without one are `otherwise`.
    pub(crate) fn answers(&self, otherwise: ItemStatus) -> Vec<ItemStatus> {
        self.items.iter().map(|item| item.answer.unwrap_or(otherwise)).collect()
    }

    /// Keys without an answer, in order.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.items.len()).filter(|item| self.items[*item].answer.is_none())
    }

    /// Tags that are free again. What is still under way when the call ends is given up.
    pub(crate) fn take_released(&mut self, ended: bool) -> Vec<(ChainId, ItemTag)> {
        if ended {
            self.released.extend(self.items.iter_mut().filter_map(|item| item.tag.take()));
        }
        std::mem::take(&mut self.released)
    }

    /// Says whom to ask for the keys without an answer. `rank` orders replicas that could all answer.
    pub(crate) fn plan(
        &mut self,
        routing: &Routing,
        tagger: &mut Tagger,
        mut rank: impl FnMut(NodeId) -> u64,
    ) -> Plan {
        let mut plan = Plan::default();
        // The keys of one chain go to one of its replicas.
        let mut chosen: HashMap<ChainId, Option<NodeId>> = HashMap::new();
        for index in 0..self.items.len() {
            if self.items[index].answer.is_some() {
                continue;
            }
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
        item.heard = None;
        // A node may have two targets of a chain for a moment: it is still asked once.
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

    /// The chain that a key is asked at now.
    fn chain_of<'r>(&mut self, index: usize, routing: &'r Routing) -> Option<&'r Chain> {
        let dual = manner(self.verb).1;
        let item = &mut self.items[index];
        let place = routing.place(item.slot);
        let (first, second) = match (dual, place.old) {
            (Dual::New, _) | (_, None) => (place.chain, None),
            (Dual::OldOnMiss, Some(old)) => (place.chain, Some(old)),
            (Dual::OldThenNew, Some(old)) => (old, Some(place.chain)),
        };
        let id = match (item.step, second) {
            (Step::First, _) => first,
            (Step::Second, Some(second)) => second,
            // The move ended between the two questions: where it is now knows everything.
            (Step::Second, None) => {
                item.step = Step::First;
                first
            }
        };
        routing.chains.get(&id)
    }

    /// Makes sure that an update has a tag for this chain; false when it has to wait for one.
    fn tag_for(&mut self, index: usize, chain: &Chain, tagger: &mut Tagger) -> bool {
        if !matches!(self.verb, Verb::Put | Verb::Delete) {
            return true;
        }
        let item = &mut self.items[index];
        match item.tag {
            Some((of, _)) if of == chain.id => true,
            // Another chain than at the first attempt: to that one the update is new.
            other => {
                self.released.extend(other);
                item.tag = tagger.take(chain.id, chain.version).map(|tag| (chain.id, tag));
                item.tag.is_some()
            }
        }
    }

    /// Takes a node's answer for one key. True when it asks for newer routing.
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
        if status == ItemStatus::Moved {
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
        let dual = manner(self.verb).1;
        let item = &mut self.items[index];
        let moves = routing.place(item.slot).old.is_some();
        let goes_on = match dual {
            Dual::New => false,
            Dual::OldOnMiss => status == ItemStatus::Miss,
            Dual::OldThenNew => true,
        };
        if item.step == Step::First && moves && goes_on {
            item.step = Step::Second;
            item.earlier = Some(status);
            item.refused_by.clear();
            self.released.extend(item.tag.take());
            return;
        }
        let best = match item.earlier {
            Some(ItemStatus::Ok) if status == ItemStatus::Miss => ItemStatus::Ok,
            _ => status,
        };
        item.answer = Some(best);
        self.released.extend(item.tag.take());
        self.open -= 1;
    }

    /// A node refused to read a key. True when another replica can be asked.
    pub(crate) fn refused(&mut self, (node, index): (NodeId, usize), routing: &Routing) -> bool {
        self.items[index].refused_by.push(node);
        let Some(chain) = self.chain_of(index, routing) else { return true };
        others(chain, &self.items[index].refused_by).next().is_some()
    }

    /// Other replicas that can read the keys that `node` was asked for; none unless there is one for
    /// every key.
    pub(crate) fn instead_of(
        &mut self,
        node: NodeId,
        items: &[usize],
        routing: &Routing,
        mut rank: impl FnMut(NodeId) -> u64,
    ) -> Option<BTreeMap<NodeId, Vec<usize>>> {
        let mut asks: BTreeMap<NodeId, Vec<usize>> = BTreeMap::new();
        let mut chosen: HashMap<ChainId, NodeId> = HashMap::new();
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
