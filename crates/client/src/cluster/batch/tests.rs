use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use millpond_types::cluster::{
    ChainTarget, ChainVersion, DiskId, RoutingVersion, SlotPlace, TargetId, TargetState,
};
use millpond_types::{Pcg, Uuid128};
use proptest::prelude::*;

use super::*;

fn node(n: u8) -> NodeId {
    NodeId(Uuid128([n; 16]))
}

/// A chain of serving targets on these nodes, followed by a syncing one.
fn chain(id: u32, version: u32, nodes: &[u8]) -> Chain {
    let member = |n: u8, state| ChainTarget {
        target: TargetId(u32::from(n) + 100 * id),
        disk: DiskId::default(),
        node: node(n),
        state,
    };
    let mut targets: Vec<ChainTarget> =
        nodes.iter().map(|n| member(*n, TargetState::Serving)).collect();
    targets.push(member(99, TargetState::Syncing));
    Chain { id: ChainId(id), version: ChainVersion(version), targets }
}

fn routing(chains: &[Chain], places: &[(u16, u32, Option<u32>)]) -> Routing {
    let mut routing = Routing { version: RoutingVersion(1), ..Routing::default() };
    for chain in chains {
        routing.chains.insert(chain.id, chain.clone());
    }
    for (slot, to, old) in places {
        let place = SlotPlace { chain: ChainId(*to), old: old.map(ChainId) };
        routing.set_place(SlotId(*slot), place);
    }
    routing
}

fn batch(verb: Verb, slots: &[u16]) -> Batch {
    Batch::new(verb, slots.iter().map(|slot| Home::Slot(SlotId(*slot))))
}

fn plan(batch: &mut Batch, routing: &Routing, tagger: &mut Tagger) -> Vec<(u8, Vec<usize>)> {
    let rank = |node: NodeId| u64::from(node.0.0[0]);
    let plan = batch.plan(routing, tagger, rank);
    plan.asks.into_iter().map(|(node, items)| (node.0.0[0], items)).collect()
}

#[test]
fn verbs_reach_the_replicas_that_their_meaning_needs() {
    let routing =
        routing(&[chain(1, 1, &[3, 1, 2]), chain(2, 1, &[2, 3])], &[(5, 1, None), (6, 2, None)]);
    let mut tagger = Tagger::default();
    let mut asks = |verb| plan(&mut batch(verb, &[5, 6, 5]), &routing, &mut tagger);
    for verb in [Verb::Put, Verb::Delete, Verb::Touch, Verb::MatchPrefix] {
        assert_eq!(asks(verb), [(2, vec![1]), (3, vec![0, 2])], "{verb:?}: heads");
    }
    for verb in [Verb::Get, Verb::Contains] {
        assert_eq!(asks(verb), [(1, vec![0, 2]), (2, vec![1])], "{verb:?}: the best ranked");
    }
    for verb in [Verb::Pin, Verb::Unpin] {
        assert_eq!(asks(verb), [(1, vec![0, 2]), (2, vec![0, 1, 2]), (3, vec![0, 1, 2])]);
    }
}

#[test]
fn keys_without_a_serving_replica_wait_and_the_others_do_not() {
    let routing = routing(&[chain(1, 1, &[1]), chain(2, 1, &[])], &[(5, 1, None), (6, 2, None)]);
    let mut batch = batch(Verb::Get, &[5, 6, 7]);
    let plan = batch.plan(&routing, &mut Tagger::default(), |_| 0);
    assert_eq!(
        (plan.homeless, plan.asks.len()),
        (2, 1),
        "a chain that nobody serves, and none at all"
    );
}

#[test]
fn a_miss_is_asked_of_the_old_chain_while_the_slot_moves() {
    let moving = routing(&[chain(1, 1, &[1]), chain(2, 1, &[2])], &[(5, 2, Some(1))]);
    let mut tagger = Tagger::default();
    let mut get = batch(Verb::Get, &[5, 5]);
    assert_eq!(plan(&mut get, &moving, &mut tagger), [(2, vec![0, 1])]);
    get.answered((node(2), 0), ItemStatus::Ok, &moving);
    get.answered((node(2), 1), ItemStatus::Miss, &moving);
    assert_eq!(plan(&mut get, &moving, &mut tagger), [(1, vec![1])]);
    get.answered((node(1), 1), ItemStatus::Ok, &moving);
    assert_eq!(get.answers(ItemStatus::Late), [ItemStatus::Ok, ItemStatus::Ok]);
    assert_eq!(get.open(), 0);
}

#[test]
fn a_move_that_ends_between_the_two_questions_hides_nothing() {
    let chains = [chain(1, 1, &[1]), chain(2, 1, &[2])];
    let (moving, moved) = (routing(&chains, &[(5, 2, Some(1))]), routing(&chains, &[(5, 2, None)]));
    let mut tagger = Tagger::default();
    let mut get = batch(Verb::Get, &[5]);
    plan(&mut get, &moving, &mut tagger);
    get.answered((node(2), 0), ItemStatus::Miss, &moving);
    // The old chain has copied and dropped it in the meantime.
    assert_eq!(plan(&mut get, &moved, &mut tagger), [(2, vec![0])]);
    get.answered((node(2), 0), ItemStatus::Ok, &moved);
    assert_eq!(get.answers(ItemStatus::Late), [ItemStatus::Ok]);
}

#[test]
fn a_miss_at_both_chains_is_asked_of_the_new_one_again() {
    let moving = routing(&[chain(1, 1, &[1]), chain(2, 1, &[2])], &[(5, 2, Some(1))]);
    let mut tagger = Tagger::default();
    let mut get = batch(Verb::Get, &[5]);
    for at in [2, 1, 2] {
        assert_eq!(plan(&mut get, &moving, &mut tagger), [(at, vec![0])]);
        let status = if get.items[0].step.0 == 2 { ItemStatus::Ok } else { ItemStatus::Miss };
        get.answered((node(at), 0), status, &moving);
    }
    assert_eq!(get.answers(ItemStatus::Late), [ItemStatus::Ok], "copied between the questions");
}

#[test]
fn what_was_heard_of_one_move_says_nothing_of_the_next() {
    let chains = [chain(1, 1, &[1]), chain(2, 1, &[2]), chain(3, 1, &[3])];
    let mut tagger = Tagger::default();
    let mut get = batch(Verb::Get, &[5]);
    let first = routing(&chains, &[(5, 2, Some(1))]);
    for at in [2, 1] {
        assert_eq!(plan(&mut get, &first, &mut tagger), [(at, vec![0])]);
        get.answered((node(at), 0), ItemStatus::Miss, &first);
    }
    let second = routing(&chains, &[(5, 3, Some(2))]);
    assert_eq!(plan(&mut get, &second, &mut tagger), [(3, vec![0])]);
    get.answered((node(3), 0), ItemStatus::Miss, &second);
    assert_eq!(plan(&mut get, &second, &mut tagger), [(2, vec![0])]);
}

#[test]
fn pins_and_leases_are_kept_and_let_go_at_both_chains() {
    let moving = routing(&[chain(1, 1, &[1]), chain(2, 1, &[2])], &[(5, 2, Some(1))]);
    let mut tagger = Tagger::default();
    let ways =
        [(Verb::Pin, &[2, 1, 2][..]), (Verb::MatchPrefix, &[2, 1, 2]), (Verb::Unpin, &[1, 2])];
    for (verb, way) in ways {
        let mut batch = batch(verb, &[5]);
        for (step, at) in way.iter().enumerate() {
            assert_eq!(plan(&mut batch, &moving, &mut tagger), [(*at, vec![0])], "{verb:?}");
            let status = if *at == 1 { ItemStatus::Ok } else { ItemStatus::Miss };
            batch.answered((node(*at), 0), status, &moving);
            assert_eq!(batch.open() == 0, step + 1 == way.len(), "{verb:?}");
        }
        assert_eq!(batch.answers(ItemStatus::Late), [ItemStatus::Ok], "{verb:?}: it was there");
    }
}

#[test]
fn an_update_without_an_answer_is_asked_of_its_chain_until_that_one_says_no() {
    let chains = [chain(1, 4, &[1]), chain(2, 9, &[2])];
    let mut tagger = Tagger::default();
    let mut put = batch(Verb::Put, &[5]);
    let before = routing(&chains, &[(5, 1, None)]);
    assert_eq!(plan(&mut put, &before, &mut tagger), [(1, vec![0])]);
    let first = put.tag(0).unwrap();
    // No answer came, and the slot moves: the first chain may have stored it.
    let moving = routing(&chains, &[(5, 2, Some(1))]);
    for _ in 0..2 {
        assert_eq!(plan(&mut put, &moving, &mut tagger), [(1, vec![0])]);
        assert_eq!(put.tag(0), Some(first));
        assert!(put.answered((node(1), 0), ItemStatus::Behind, &moving), "news are wanted");
    }
    assert_eq!(plan(&mut put, &moving, &mut tagger), [(1, vec![0])]);
    assert!(put.answered((node(1), 0), ItemStatus::Moved, &moving));
    assert_eq!(plan(&mut put, &moving, &mut tagger), [(2, vec![0])]);
    let second = put.tag(0).unwrap();
    assert_eq!((first.issued, second.issued), (ChainVersion(4), ChainVersion(9)));
    assert!(second.sequence > first.sequence);
    put.answered((node(2), 0), ItemStatus::Ok, &moving);
    assert_eq!(put.take_released(true).len(), 2);
}

#[test]
fn a_retry_keeps_its_tag_and_the_version_of_its_first_attempt() {
    let mut tagger = Tagger::default();
    let mut put = batch(Verb::Put, &[5]);
    plan(&mut put, &routing(&[chain(1, 3, &[1, 2])], &[(5, 1, None)]), &mut tagger);
    let tag = put.tag(0).unwrap();
    // No answer came; the chain has a new head.
    let after = routing(&[chain(1, 8, &[2])], &[(5, 1, None)]);
    assert_eq!(plan(&mut put, &after, &mut tagger), [(2, vec![0])]);
    assert_eq!(put.tag(0), Some(tag));
    assert!(put.take_released(false).is_empty());
    put.answered((node(2), 0), ItemStatus::Ok, &after);
    assert_eq!(put.take_released(false), [(ChainId(1), tag)]);
}

#[test]
fn a_pin_counts_when_every_serving_replica_has_answered() {
    let routing = routing(&[chain(1, 1, &[3, 1])], &[(5, 1, None)]);
    let mut tagger = Tagger::default();
    let mut pin = batch(Verb::Pin, &[5]);
    assert_eq!(plan(&mut pin, &routing, &mut tagger).len(), 2);
    pin.answered((node(3), 0), ItemStatus::Ok, &routing);
    assert_eq!(pin.open(), 1);
    assert!(pin.answered((node(1), 0), ItemStatus::Moved, &routing), "news are wanted");
    assert_eq!(plan(&mut pin, &routing, &mut tagger).len(), 2, "both again");
    pin.answered((node(1), 0), ItemStatus::Miss, &routing);
    pin.answered((node(3), 0), ItemStatus::Ok, &routing);
    assert_eq!(pin.answers(ItemStatus::Late), [ItemStatus::Ok], "the head's answer counts");
}

#[test]
fn a_replica_that_refuses_to_read_is_not_asked_again() {
    let routing = routing(&[chain(1, 1, &[1, 2])], &[(5, 1, None)]);
    let mut tagger = Tagger::default();
    let mut get = batch(Verb::Get, &[5]);
    assert_eq!(plan(&mut get, &routing, &mut tagger), [(1, vec![0])]);
    assert!(get.refused((node(1), 0), &routing));
    assert_eq!(plan(&mut get, &routing, &mut tagger), [(2, vec![0])]);
    assert!(!get.refused((node(2), 0), &routing), "nobody is left");
}

#[test]
fn a_hedge_needs_another_replica_for_every_key() {
    let chains = [chain(1, 1, &[1, 2]), chain(2, 1, &[1, 3]), chain(3, 1, &[1])];
    let routing = routing(&chains, &[(5, 1, None), (6, 2, None), (7, 3, None)]);
    let mut get = batch(Verb::Get, &[5, 6, 7]);
    get.plan(&routing, &mut Tagger::default(), |_| 0);
    let others = get.instead_of(node(1), &[0, 1], &routing, |_| 0).unwrap();
    assert_eq!(others, BTreeMap::from([(node(2), vec![0]), (node(3), vec![1])]));
    assert_eq!(get.instead_of(node(1), &[0, 2], &routing, |_| 0), None);
    assert!(get.still_asks(node(1), &[2], &routing));
    assert!(!get.still_asks(node(2), &[2], &routing));
}

/// A cluster as pure data: its true state, and the keys of each chain.
struct World {
    truth: Routing,
    have: HashMap<ChainId, HashSet<usize>>,
    /// The last update of every lane, and its answer.
    applied: HashMap<(ChainId, u32), (u64, ItemStatus)>,
    /// Version of the last change of slots and of chains.
    slots: HashMap<SlotId, RoutingVersion>,
    chains: HashMap<ChainId, RoutingVersion>,
    /// Number of times that a put stored a key, and that a delete removed it.
    stored: HashMap<usize, u32>,
    removed: HashMap<usize, u32>,
}

impl World {
    /// Makes a change that can happen in a cluster between two rounds.
    fn change(&mut self, rng: &mut Pcg, keys: usize) {
        let slot = SlotId(u16::try_from(rng.below(8)).unwrap());
        let place = self.truth.place(slot);
        self.truth.version.0 += 1;
        let version = self.truth.version;
        match (rng.below(3), place.old) {
            (0, None) => {
                let to = ChainId(1 + u32::try_from(rng.below(4)).unwrap());
                if to != place.chain {
                    let place = SlotPlace { chain: to, old: Some(place.chain) };
                    self.truth.set_place(slot, place);
                    self.slots.insert(slot, version);
                }
            }
            (1, Some(old)) => {
                let mine = |key: &usize| key % 8 == usize::from(slot.0);
                let all: Vec<usize> = (0..keys).filter(mine).collect();
                for key in all {
                    if self.have.entry(old).or_default().remove(&key) {
                        self.have.entry(place.chain).or_default().insert(key);
                    }
                }
                self.truth.set_place(slot, SlotPlace { chain: place.chain, old: None });
                self.slots.insert(slot, version);
            }
            _ => {
                let id = ChainId(1 + u32::try_from(rng.below(4)).unwrap());
                let chain = self.truth.chains.get_mut(&id).unwrap();
                let serving = chain.targets.len() - 1;
                chain.targets[..serving].rotate_left(1);
                chain.version.0 += 1;
                self.chains.insert(id, version);
            }
        }
    }

    fn serving(&self, chain: ChainId) -> Vec<NodeId> {
        self.truth.chains[&chain].serving().map(|member| member.node).collect()
    }

    /// A node's answer for a key to a client with the routing `planned`.
    fn answer(
        &mut self,
        (verb, tag): (Verb, Option<ItemTag>),
        at: NodeId,
        key: usize,
        planned: RoutingVersion,
    ) -> ItemStatus {
        let slot = SlotId(u16::try_from(key % 8).unwrap());
        let place = self.truth.place(slot);
        if let Some(tag) = tag {
            return self.update((verb, tag), at, key, place);
        }
        let chains: Vec<ChainId> = [Some(place.chain), place.old].into_iter().flatten().collect();
        let of_chains = chains.iter().filter(|_| place.old.is_some());
        let news = of_chains.filter_map(|chain| self.chains.get(chain)).max();
        if self.slots.get(&slot).max(news).is_some_and(|news| planned < *news) {
            return ItemStatus::Moved;
        }
        let here: Vec<ChainId> =
            chains.into_iter().filter(|chain| self.serving(*chain).contains(&at)).collect();
        if here.is_empty() {
            return ItemStatus::Moved;
        }
        let have = here.iter().any(|id| self.have.get(id).is_some_and(|keys| keys.contains(&key)));
        if have { ItemStatus::Ok } else { ItemStatus::Miss }
    }

    fn update(
        &mut self,
        (verb, tag): (Verb, ItemTag),
        at: NodeId,
        key: usize,
        place: SlotPlace,
    ) -> ItemStatus {
        if self.serving(tag.chain).first() != Some(&at) {
            return ItemStatus::Behind;
        }
        if let Some((sequence, status)) = self.applied.get(&(tag.chain, tag.channel)) {
            assert!(tag.sequence >= *sequence, "an update came after a later one of its channel");
            if *sequence == tag.sequence {
                return *status;
            }
        }
        if tag.chain != place.chain {
            return ItemStatus::Moved;
        }
        let both = [Some(place.chain), place.old];
        let has = |id: &ChainId| self.have.get(id).is_some_and(|keys| keys.contains(&key));
        let have = both.iter().flatten().any(has);
        let status = match (verb, have) {
            (Verb::Put, true) => ItemStatus::Exists,
            (Verb::Put, false) => {
                self.have.entry(place.chain).or_default().insert(key);
                *self.stored.entry(key).or_default() += 1;
                ItemStatus::Ok
            }
            (_, true) => {
                for chain in both.into_iter().flatten() {
                    self.have.entry(chain).or_default().remove(&key);
                }
                *self.removed.entry(key).or_default() += 1;
                ItemStatus::Ok
            }
            (_, false) => ItemStatus::Miss,
        };
        self.applied.insert((tag.chain, tag.channel), (tag.sequence, status));
        status
    }
}

proptest! {
    #[test]
    fn every_key_gets_a_true_answer_while_the_cluster_changes(
        seed in any::<u64>(),
        verb in prop::sample::select(vec![Verb::Get, Verb::Contains, Verb::Put, Verb::MatchPrefix, Verb::Delete]),
        present in prop::collection::btree_set(0usize..40, 0..40),
    ) {
        let mut rng = Pcg::new(seed, 0);
        let chains: Vec<Chain> =
            (1..=4).map(|id| chain(id, 1, &[1, 2, 3, 4, 5][id as usize - 1..][..2])).collect();
        let places: Vec<_> = (0..8).map(|slot| (slot, u32::from(slot) % 4 + 1, None)).collect();
        let truth = routing(&chains, &places);
        let mut have: HashMap<ChainId, HashSet<usize>> = HashMap::new();
        for key in &present {
            let slot = SlotId(u16::try_from(key % 8).unwrap());
            have.entry(truth.place(slot).chain).or_default().insert(*key);
        }
        let mut world = World {
            truth,
            have,
            applied: HashMap::new(),
            slots: HashMap::new(),
            chains: HashMap::new(),
            stored: HashMap::new(),
            removed: HashMap::new(),
        };
        let (mut tagger, mut known) = (Tagger::default(), world.truth.clone());
        let slots: Vec<u16> = (0..40).map(|key| key % 8).collect();
        let mut batch = batch(verb, &slots);
        let mut rounds = 0;
        while batch.open() > 0 {
            rounds += 1;
            prop_assert!(rounds < 200, "no progress");
            if rounds < 50 && rng.below(2) == 0 {
                world.change(&mut rng, 40);
            }
            let planned = known.clone();
            let asks = batch.plan(&planned, &mut tagger, |_| rng.next_u64()).asks;
            let mut seen = BTreeSet::new();
            for (at, items) in asks {
                if rng.below(5) == 0 {
                    continue;
                }
                if rounds < 50 && rng.below(4) == 0 {
                    world.change(&mut rng, 40);
                }
                for item in items {
                    prop_assert!(seen.insert((at, item)), "a key twice to one node");
                    let status =
                        world.answer((verb, batch.tag(item)), at, item, planned.version);
                    // The answer may be lost after the work was done.
                    if rng.below(10) > 0 && batch.answered((at, item), status, &planned) {
                        known = world.truth.clone();
                    }
                }
            }
            for (chain, tag) in batch.take_released(false) {
                tagger.give_back(chain, tag);
            }
            if rng.below(4) == 0 || rounds > 50 {
                known = world.truth.clone();
            }
        }
        for (key, status) in batch.answers(ItemStatus::Late).into_iter().enumerate() {
            let was = present.contains(&key);
            let times = |of: &HashMap<usize, u32>| of.get(&key).copied().unwrap_or_default();
            match (verb, status) {
                (Verb::Put, ItemStatus::Ok) => {
                    prop_assert!(!was && times(&world.stored) == 1, "key {key}");
                }
                (Verb::Put, ItemStatus::Exists) => {
                    prop_assert!(was && times(&world.stored) == 0, "key {key}");
                }
                (Verb::Delete, _) => {
                    let left = world.have.values().any(|keys| keys.contains(&key));
                    prop_assert!(!left, "key {key} is still there");
                    prop_assert_eq!(was, status == ItemStatus::Ok, "key {}", key);
                }
                (_, ItemStatus::Ok) => prop_assert!(was, "key {key}"),
                (_, ItemStatus::Miss) => prop_assert!(!was, "key {key} was there"),
                other => prop_assert!(false, "{other:?}"),
            }
        }
        prop_assert!(batch.take_released(true).is_empty(), "a channel was not given back");
    }
}
