//! Any sequence of add, drain, fail, replace, pause and restart keeps the invariants and converges.

use std::collections::{BTreeMap, BTreeSet};

use millpond_types::cluster::{
    Chain, ChainId, ChainRecord, ChainTarget, ChainVersion, DiskId, LocalState, NodeId, SlotPlace,
    TableSet, TargetId, TargetState,
};
use millpond_types::ids::Uuid128;
use millpond_types::limits::SLOTS;
use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};

use super::{Limits, PlanDisk, PlanView, Planner, Progress, Step};
use crate::moves::{join, retiring, settle};
use crate::table::{Report, next_chain};

const TIB: u64 = 1 << 40;
const LIMITS: Limits = Limits { paused: false, moves_max: 16, moves_per_disk: 2, slots_max: 256 };

fn id(n: u32) -> Uuid128 {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    Uuid128(bytes)
}

/// A cluster whose nodes execute requests at once, as far as they can.
#[derive(Clone)]
struct Model {
    replicas: u8,
    more: TableSet,
    chains_max: u32,
    disks: Vec<PlanDisk>,
    /// Disks that answer.
    up: BTreeSet<DiskId>,
    chains: BTreeMap<ChainId, ChainRecord>,
    slots: Vec<SlotPlace>,
    planner: Planner,
    limits: Limits,
    next_target: u32,
    moved: usize,
}

impl Clone for Planner {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Model {
    fn new(nodes: u32, disks: u32, replicas: u8) -> Self {
        let mut model = Self {
            replicas,
            more: TableSet::default(),
            chains_max: u32::MAX,
            disks: Vec::new(),
            up: BTreeSet::new(),
            chains: BTreeMap::new(),
            slots: vec![SlotPlace { chain: ChainId::NONE, old: None }; SLOTS],
            planner: Planner::default(),
            limits: LIMITS,
            next_target: 1,
            moved: 0,
        };
        (0..nodes).for_each(|node| model.add_node(node, disks));
        model
    }

    fn add_node(&mut self, node: u32, disks: u32) {
        for disk in 0..disks {
            let disk = DiskId(id(node * 100 + disk + 1));
            self.disks.push(PlanDisk {
                id: disk,
                node: NodeId(id(node + 1)),
                domain: format!("node-{node:05}"),
                capacity_bytes: TIB,
                takes_data: true,
                readable: true,
            });
            self.up.insert(disk);
        }
        self.disks.sort_unstable_by_key(|disk| disk.id);
    }

    fn view(&self) -> PlanView<'_> {
        PlanView {
            replicas: self.replicas,
            more: self.more,
            chains_max: self.chains_max,
            seed: 5,
            disks: &self.disks,
            chains: &self.chains,
            slots: &self.slots,
        }
    }

    fn steps(&mut self) -> Vec<Step> {
        let mut planner = std::mem::take(&mut self.planner);
        let steps = planner.next(&self.view(), &self.limits, 64);
        self.planner = planner;
        steps
    }

    fn progress(&self) -> Progress {
        self.planner.progress(&self.view())
    }

    fn member(&mut self, disk: DiskId, state: TargetState) -> ChainTarget {
        let node = self.disks.iter().find(|other| other.id == disk).unwrap().node;
        self.next_target += 1;
        ChainTarget { target: TargetId(self.next_target), disk, node, state }
    }

    fn carry_out(&mut self, step: Step) {
        match step {
            Step::NewChain { table, disks } => {
                let targets =
                    disks.iter().map(|disk| self.member(*disk, TargetState::Serving)).collect();
                let made = self.chains.range(ChainId::all_of(table)).count();
                let id = ChainId::of(table, u32::try_from(made).unwrap() + 1);
                let chain = Chain { id, version: ChainVersion(1), targets };
                self.chains.insert(id, ChainRecord { chain, moving: None });
            }
            Step::Add { chain, to, drop } => {
                let add = self.member(to, TargetState::Offline);
                let record = join(&self.chains[&chain], add, drop);
                self.chains.insert(chain, record);
                self.moved += 1;
            }
            Step::Place { slot, to } => {
                let place = &mut self.slots[usize::from(slot)];
                let old = Some(place.chain).filter(|old| *old != ChainId::NONE);
                *place = SlotPlace { chain: to, old };
            }
        }
    }

    /// One round: the planner's steps, then one change of every chain that has one to make. False
    /// when nothing happened.
    fn round(&mut self) -> bool {
        let steps = self.steps();
        let mut busy = !steps.is_empty();
        for step in steps {
            self.carry_out(step);
        }
        for chain in self.chains.keys().copied().collect::<Vec<_>>() {
            busy |= self.turn(chain);
        }
        for place in &mut self.slots {
            busy |= place.old.take().is_some();
        }
        busy
    }

    fn turn(&mut self, id: ChainId) -> bool {
        let record = &self.chains[&id];
        let retired = retiring(record).map(|member| member.target);
        let reports: Vec<Report> = record
            .chain
            .targets
            .iter()
            .map(|member| {
                let gone = !self.up.contains(&member.disk) || retired == Some(member.target);
                let local = if gone { LocalState::Offline } else { LocalState::UpToDate };
                Report { local, at: record.chain.version }
            })
            .collect();
        let takes_data = |disk| self.disks.iter().any(|other| other.id == disk && other.takes_data);
        let next = settle(record, takes_data).or_else(|| {
            let chain = next_chain(&record.chain, &reports)?;
            Some(ChainRecord { chain, moving: record.moving })
        });
        let Some(next) = next else { return false };
        if record.moving.is_some_and(|moving| {
            next.moving.is_none() && next.chain.targets.iter().all(|m| m.target != moving.add)
        }) {
            self.planner.forget();
        }
        self.check(record, &next);
        self.chains.insert(id, next);
        true
    }

    /// Checks the invariants that hold in every order of events.
    fn check(&self, before: &ChainRecord, after: &ChainRecord) {
        let holds = |record: &ChainRecord| {
            record.chain.targets.iter().any(|member| {
                matches!(member.state, TargetState::Serving | TargetState::LastServing)
            })
        };
        assert!(!holds(before) || holds(after), "data is forgotten: {before:?} -> {after:?}");
        let leaving = after.moving.and_then(|moving| moving.drop);
        let mut domains: Vec<&str> = after
            .chain
            .targets
            .iter()
            .filter(|member| Some(member.target) != leaving)
            .map(|member| self.disks.iter().find(|d| d.id == member.disk).unwrap().domain.as_str())
            .collect();
        let members = domains.len();
        domains.sort_unstable();
        domains.dedup();
        assert_eq!(domains.len(), members, "two replicas share a domain: {after:?}");
        assert!(after.chain.targets.len() <= self.wanted(after.chain.id) + 1);
        assert_eq!(
            after.chain.version.0 - before.chain.version.0,
            u32::from(after.chain.targets != before.chain.targets)
        );
    }

    /// Replicas that a chain should have.
    fn wanted(&self, chain: ChainId) -> usize {
        usize::from(if chain.table() == 0 { self.replicas } else { chain.table() })
    }

    fn settle(&mut self) {
        for _ in 0..3_000 {
            if !self.round() {
                return;
            }
        }
        panic!("no rest after 3000 rounds: {:?}", self.progress());
    }

    fn per_disk(&self) -> BTreeMap<DiskId, usize> {
        self.per_disk_of(0)
    }

    fn per_disk_of(&self, table: u8) -> BTreeMap<DiskId, usize> {
        let mut counts: BTreeMap<_, _> = self.disks.iter().map(|disk| (disk.id, 0)).collect();
        let chains = self.chains.range(ChainId::all_of(table));
        for member in chains.flat_map(|(_, record)| &record.chain.targets) {
            *counts.get_mut(&member.disk).unwrap() += 1;
        }
        counts
    }

    fn drain(&mut self, node: u32, on: bool) {
        let node = NodeId(id(node + 1));
        for disk in self.disks.iter_mut().filter(|disk| disk.node == node) {
            disk.takes_data = !on && disk.readable;
        }
    }
}

#[test]
fn chains_on_their_way_to_the_store_are_still_to_be_made() {
    let mut model = Model::new(3, 1, 2);
    for made in [0, 64, 128, 192] {
        let steps = model.steps();
        assert_eq!(steps.len(), 64);
        assert_eq!(model.progress().chains_to_make, 256 - made, "none of these is made yet");
        for step in steps {
            model.carry_out(step);
        }
    }
    assert_eq!(model.progress().chains_to_make, 0);
}

#[test]
fn a_new_cluster_makes_chains_and_places_every_slot() {
    let mut model = Model::new(3, 2, 2);
    model.settle();
    assert_eq!(model.chains.len(), 256);
    assert!(model.per_disk().values().all(|count| (85..=86).contains(count)));
    let mut slots = BTreeMap::<ChainId, u32>::new();
    model.slots.iter().for_each(|place| *slots.entry(place.chain).or_default() += 1);
    assert_eq!(slots.len(), 256);
    assert!(slots.values().all(|count| (250..=262).contains(count)), "{slots:?}");
    assert_eq!(model.moved, 0);
}

#[test]
fn no_more_chains_are_made_than_may_be() {
    let mut model = Model::new(3, 1, 2);
    model.chains_max = 2;
    model.settle();
    assert_eq!(model.chains.len(), 2);
    model.add_node(3, 1);
    model.settle();
    assert_eq!(model.chains.len(), 2, "a fleet that grew makes none either");
}

#[test]
fn growth_moves_what_it_must_and_shrinking_empties() {
    let mut model = Model::new(3, 2, 2);
    model.settle();
    (3..5).for_each(|node| model.add_node(node, 2));
    model.settle();
    let counts = model.per_disk();
    assert!(counts.values().all(|count| (51..=52).contains(count)), "{counts:?}");
    let least = 512 * 2 / 5;
    assert!((least - 4..=least + 4).contains(&model.moved), "{} of {least}", model.moved);
    model.drain(4, true);
    model.drain(3, true);
    model.settle();
    let counts: Vec<usize> = model.per_disk().into_values().collect();
    assert_eq!(counts[6..], [0; 4]);
    assert!(counts[..6].iter().all(|count| (85..=86).contains(count)), "{counts:?}");
    assert!(model.slots.iter().all(|place| place.old.is_none()));
}

#[test]
fn more_replicas_come_to_every_chain_and_to_every_disk_its_share() {
    let mut model = Model::new(1, 1, 1);
    model.settle();
    let chains = model.chains.len();
    (1..3).for_each(|node| model.add_node(node, 1));
    model.settle();
    model.replicas = 2;
    model.settle();
    assert!(model.chains.len() >= chains);
    assert!(model.chains.values().all(|record| record.chain.targets.len() == 2));
    let counts: Vec<usize> = model.per_disk().into_values().collect();
    let all: usize = counts.iter().sum();
    assert!(counts.iter().all(|count| (all / 3 - 2..=all / 3 + 2).contains(count)), "{counts:?}");
    assert_eq!(model.progress(), Progress::default());
}

#[test]
fn limits_hold_and_a_pause_stops_new_moves() {
    let mut model = Model::new(4, 1, 2);
    model.settle();
    model.add_node(4, 1);
    let steps = model.steps();
    assert_eq!(steps.len(), 2, "two at once to the new disk: {steps:?}");
    for step in steps {
        model.carry_out(step);
    }
    assert!(model.steps().is_empty());
    model.limits.paused = true;
    model.settle();
    assert_eq!(model.moved, 2);
    assert_eq!(model.progress().moves_running, 0, "those under way have ended");
    assert!(model.progress().moves_waiting > 90);
    model.limits.paused = false;
    model.settle();
    assert_eq!(model.progress(), Progress::default());
}

#[test]
fn what_cannot_be_read_is_made_anew_first() {
    let mut model = Model::new(5, 1, 2);
    model.settle();
    model.add_node(5, 1);
    model.up.remove(&DiskId(id(1)));
    let lost = model.disks.iter_mut().find(|disk| disk.id == DiskId(id(1))).unwrap();
    (lost.takes_data, lost.readable) = (false, false);
    let steps = model.steps();
    assert!(!steps.is_empty());
    for step in steps {
        let Step::Add { chain, drop, .. } = &step else { panic!("{step:?}") };
        let members = &model.chains[chain].chain.targets;
        let dropped = members.iter().find(|member| Some(member.target) == *drop).unwrap();
        assert_eq!(dropped.disk, DiskId(id(1)), "the lost disk's replicas come first");
        model.carry_out(step);
    }
    model.settle();
    assert_eq!(model.per_disk()[&DiskId(id(1))], 0);
    assert!(model.chains.values().all(|record| record.chain.serving().count() == 2));
}

#[test]
fn too_few_domains_block_and_say_so() {
    let mut model = Model::new(2, 2, 2);
    model.settle();
    model.drain(1, true);
    assert!(!model.round());
    assert!(model.planner.blocked().unwrap().to_string().contains("there are 1"));
    model.drain(1, false);
    model.settle();
    assert_eq!(model.planner.blocked(), None);
}

#[test]
fn a_table_more_spreads_over_all_disks_and_takes_no_slot() {
    let mut model = Model::new(3, 2, 2);
    model.settle();
    let before = model.slots.clone();
    model.more = TableSet::default().with(1).with(3);
    model.settle();
    assert_eq!(model.chains.len(), 256 * 3);
    for (table, shares) in [(0, 85..=86), (1, 42..=43), (3, 128..=128)] {
        let counts = model.per_disk_of(table);
        assert!(counts.values().all(|count| shares.contains(count)), "{table}: {counts:?}");
    }
    assert_eq!((model.moved, &model.slots), (0, &before), "what was there stays where it was");
    model.add_node(3, 2);
    model.settle();
    let counts = model.per_disk_of(1);
    assert!(counts.values().all(|count| *count == 32), "{counts:?}");
    assert!(model.slots.iter().all(|place| place.chain.table() == 0));
}

#[test]
fn a_table_without_enough_domains_blocks_no_other() {
    let mut model = Model::new(4, 1, 2);
    model.more = TableSet::default().with(3);
    model.settle();
    model.drain(3, true);
    model.drain(2, true);
    model.settle();
    assert!(model.planner.blocked().unwrap().to_string().contains("3 replicas"));
    let counts: Vec<usize> = model.per_disk_of(0).into_values().collect();
    assert_eq!(counts[2..], [0; 2], "the chains of two are moved all the same");
    model.drain(3, false);
    model.settle();
    assert_eq!(model.planner.blocked(), None);
}

#[derive(Clone, Debug)]
enum Act {
    Grow,
    Table(u8),
    Raise,
    Drain(u32, bool),
    Down(u32),
    Up(u32),
    Lose(u32),
    Pause(bool),
    Restart,
    Rounds(u8),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        1 => Just(Act::Grow),
        1 => (1u8..5).prop_map(Act::Table),
        1 => Just(Act::Raise),
        2 => (0u32..7, any::<bool>()).prop_map(|(node, on)| Act::Drain(node, on)),
        2 => (0u32..14).prop_map(Act::Down),
        2 => (0u32..14).prop_map(Act::Up),
        1 => (0u32..14).prop_map(Act::Lose),
        1 => any::<bool>().prop_map(Act::Pause),
        2 => Just(Act::Restart),
        6 => (1u8..6).prop_map(Act::Rounds),
    ]
}

fn perform(model: &mut Model, act: &Act) {
    let nth = |model: &Model, n: u32| model.disks[n as usize % model.disks.len()].id;
    match act {
        Act::Grow => {
            let nodes = u32::try_from(model.disks.len() / 2).unwrap();
            if nodes < 7 {
                model.add_node(nodes, 2);
            }
        }
        Act::Table(replicas) if *replicas != model.replicas => {
            model.more = model.more.with(*replicas);
        }
        Act::Raise if model.replicas < 4 && !model.more.has(model.replicas + 1) => {
            model.replicas += 1;
        }
        Act::Table(_) | Act::Raise => {}
        Act::Drain(node, on) => model.drain(*node, *on),
        Act::Down(n) => {
            let disk = nth(model, *n);
            model.up.remove(&disk);
        }
        Act::Up(n) => {
            let disk = nth(model, *n);
            model.up.insert(disk);
        }
        Act::Lose(n) => {
            let disk = nth(model, *n);
            model.up.remove(&disk);
            for lost in model.disks.iter_mut().filter(|other| other.id == disk) {
                (lost.takes_data, lost.readable) = (false, false);
            }
        }
        Act::Pause(on) => model.limits.paused = *on,
        Act::Restart => model.planner = Planner::default(),
        Act::Rounds(rounds) => (0..*rounds).for_each(|_| {
            model.round();
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// In any order of events, no step breaks a chain (checked in `check`); and once all disks
    /// answer again, every chain is whole, and every disk has its share.
    #[test]
    fn any_history_converges(acts in prop::collection::vec(act(), 1..24)) {
        let mut model = Model::new(4, 2, 2);
        model.settle();
        for act in &acts {
            perform(&mut model, act);
        }
        model.limits.paused = false;
        for disk in &mut model.disks {
            model.up.insert(disk.id);
            (disk.takes_data, disk.readable) = (true, true);
        }
        model.settle();
        for record in model.chains.values() {
            let wanted = model.wanted(record.chain.id);
            prop_assert_eq!(record.chain.serving().count(), wanted, "{:?}", record);
            prop_assert_eq!(record.chain.targets.len(), wanted);
        }
        for table in model.more.iter().chain([0]) {
            let counts = model.per_disk_of(table);
            let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
            prop_assert!(*most > 0 && most - least <= 1, "{}: {:?}", table, counts);
        }
        let own = |place: &SlotPlace| place.chain != ChainId::NONE && place.chain.table() == 0;
        prop_assert!(model.slots.iter().all(own));
        prop_assert_eq!(model.progress(), Progress::default());
    }
}
