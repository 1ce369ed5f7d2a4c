//! Planning of moves: a plan made from the stored state alone, executed in small steps.
//!
//! Every step is one change of a record, and moves in progress are in the records
//! ([`ChainRecord::moving`], [`SlotPlace::old`]). So a planner holds no essential state: a new one,
//! made by a new primary at any time, continues from there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millpond_types::cluster::{
    ChainId, ChainRecord, DiskId, NodeId, SlotPlace, TableSet, TargetId,
};
use millpond_types::limits::CHAINS_MAX;

use crate::placement::{
    Fleet, FleetDisk, Members, PlacementError, Relocation, chain_weights, chains_to_add, generate,
    grow_chains, rebalance, slot_moves, slot_shares, slots_are_off,
};

/// Steps examined at once for one that may start; the next call continues behind them.
const LOOK_AHEAD: usize = 1024;
/// Most chains of a table beside the default one: all tables share [`CHAINS_MAX`].
const MORE_MAX: usize = CHAINS_MAX / 8;

/// A disk, as the plan sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanDisk {
    /// The disk.
    pub id: DiskId,
    /// Its node.
    pub node: NodeId,
    /// Name of its failure domain.
    pub domain: String,
    /// Bytes for chunks.
    pub capacity_bytes: u64,
    /// Whether it takes its share; false while it is emptied, or given up.
    pub takes_data: bool,
    /// Whether its data can be read: false for a disk that was given up. Those are emptied first.
    pub readable: bool,
}

/// Limits of concurrent moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Start nothing.
    pub paused: bool,
    /// Replicas that move at once.
    pub moves_max: usize,
    /// Replicas that move at once to or from one disk.
    pub moves_per_disk: usize,
    /// Slots that move at once.
    pub slots_max: usize,
}

/// The state that a plan is made from.
#[derive(Clone, Copy, Debug)]
pub struct PlanView<'a> {
    /// Replicas of every chain of the default table; 0 before the cluster has chains.
    pub replicas: u8,
    /// Further tables, by the replicas of their chains.
    pub more: TableSet,
    /// Most chains in one table.
    pub chains_max: u32,
    /// Seed of the placement.
    pub seed: u64,
    /// All disks, in the order of their ids.
    pub disks: &'a [PlanDisk],
    /// All chains.
    pub chains: &'a BTreeMap<ChainId, ChainRecord>,
    /// All slots, on chains of the default table.
    pub slots: &'a [SlotPlace],
}

impl PlanView<'_> {
    /// The tables, each with the replicas of its chains.
    fn tables(&self) -> impl Iterator<Item = (u8, u8)> {
        let more = self.more.iter().map(|replicas| (replicas, replicas));
        [(0, self.replicas)].into_iter().chain(more)
    }
}

/// One change to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A new chain on these disks, head first; it is empty and serves at once.
    NewChain {
        /// Its table.
        table: u8,
        /// Its disks.
        disks: Vec<DiskId>,
    },
    /// A replica joins a chain; once it serves, `drop` leaves.
    Add {
        /// The chain.
        chain: ChainId,
        /// Destination of the new replica.
        to: DiskId,
        /// The replica that it replaces.
        drop: Option<TargetId>,
    },
    /// A slot moves to this chain; an old chain is still asked too until the move ends.
    Place {
        /// The slot.
        slot: u16,
        /// Its chain.
        to: ChainId,
    },
}

/// Progress of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Chains still to make.
    pub chains_to_make: usize,
    /// Replicas that wait for their move.
    pub moves_waiting: usize,
    /// Replicas that move now.
    pub moves_running: usize,
    /// Slots that wait for their move.
    pub slots_waiting: usize,
    /// Slots that move now.
    pub slots_running: usize,
}

/// A planned move: the chain, the destination, and the replica that leaves in exchange.
type Wanted = (ChainId, DiskId, Option<TargetId>);

/// Makes plans, and returns steps within limits.
#[derive(Debug, Default)]
pub struct Planner {
    /// The replicas, tables and disks that the plan was made for.
    basis: Option<(u8, TableSet, Vec<PlanDisk>)>,
    chains: VecDeque<(u8, Vec<DiskId>)>,
    /// Number of chains once all of the plan are made: chains on their way to the store are in no
    /// queue.
    chains_wanted: usize,
    moves: VecDeque<Wanted>,
    slots: VecDeque<(u16, ChainId)>,
    blocked: Option<PlacementError>,
    /// Some step no longer fitted: plan again when the others are done.
    overtaken: bool,
}

impl Planner {
    /// Makes a new plan at the next call: a move was given up, or an operator moved something.
    pub fn forget(&mut self) {
        self.basis = None;
    }

    /// Reason why nothing can be planned, if any: too few failure domains.
    #[must_use]
    pub fn blocked(&self) -> Option<PlacementError> {
        self.blocked
    }

    /// The steps to take now. A returned step counts as made: the caller commits it, or calls
    /// [`Planner::forget`].
    pub fn next(&mut self, view: &PlanView<'_>, limits: &Limits, max: usize) -> Vec<Step> {
        if view.replicas == 0 {
            return Vec::new();
        }
        let basis = (view.replicas, view.more, view.disks.to_vec());
        if self.basis.as_ref() != Some(&basis) {
            self.replan(view);
            self.basis = Some(basis);
        }
        let mut steps = Vec::new();
        if !self.chains.is_empty() {
            while steps.len() < max
                && let Some((table, disks)) = self.chains.pop_front()
            {
                steps.push(Step::NewChain { table, disks });
            }
            if self.chains.is_empty() {
                // Slots and replicas follow once the chains have numbers.
                self.forget();
            }
            return steps;
        }
        self.start_slots(view, limits, &mut steps);
        if !limits.paused {
            self.start_moves(view, limits, max, &mut steps);
        }
        if self.overtaken && self.moves.is_empty() {
            self.forget();
        }
        steps
    }

    /// Progress of the plan.
    #[must_use]
    pub fn progress(&self, view: &PlanView<'_>) -> Progress {
        Progress {
            chains_to_make: self.chains_wanted.saturating_sub(view.chains.len()),
            moves_waiting: self.moves.len(),
            moves_running: view.chains.values().filter(|chain| chain.moving.is_some()).count(),
            slots_waiting: self.slots.len(),
            slots_running: view.slots.iter().filter(|place| place.old.is_some()).count(),
        }
    }

    fn replan(&mut self, view: &PlanView<'_>) {
        *self = Self::default();
        let mut made = view.chains.len();
        let mut placed = Vec::new();
        for (table, replicas) in view.tables() {
            let Some(plan) = Plan::of(view, table) else { continue };
            let mut all = plan.members.clone();
            let result = plan.add_chains(view, replicas, made, &mut all).and_then(|()| {
                rebalance(&plan.fleet, replicas, &mut all, plan.seed(view), &mut |_| ())
            });
            let relocations = match result {
                Ok(relocations) => relocations,
                Err(error) => {
                    // Other tables may have fewer replicas.
                    self.blocked.get_or_insert(error);
                    continue;
                }
            };
            let new = &all[plan.members.len()..];
            made += new.len();
            let id = |disk: &u32| view.disks[*disk as usize].id;
            self.chains.extend(new.iter().map(|members| (table, members.iter().map(id).collect())));
            placed.push((plan, all, relocations));
        }
        self.chains_wanted = made;
        if !self.chains.is_empty() {
            return;
        }
        let mut order = Vec::new();
        for (plan, all, relocations) in &placed {
            if plan.table == 0 {
                self.plan_slots(view, plan, all);
            }
            order.extend(plan.moves(view, relocations));
        }
        // Unreadable replicas are rebuilt first, then drains, then balance.
        order.sort_by_key(|(urgency, (chain, ..))| (*urgency, *chain));
        self.moves = order.into_iter().map(|(_, wanted)| wanted).collect();
    }

    /// Plans moves of slots when a chain has none but should, or has an eighth too few or too many.
    fn plan_slots(&mut self, view: &PlanView<'_>, plan: &Plan, all: &[Members]) {
        let places: BTreeMap<ChainId, u32> = plan.ids.iter().copied().zip(0u32..).collect();
        let mut counts = vec![0u32; plan.ids.len()];
        let mut unplaced = false;
        let now: Vec<u32> = view
            .slots
            .iter()
            .map(|place| places.get(&place.chain).copied().unwrap_or(u32::MAX))
            .collect();
        for place in &now {
            match counts.get_mut(*place as usize) {
                Some(count) => *count += 1,
                None => unplaced = true,
            }
        }
        let shares = slot_shares(&chain_weights(&plan.fleet, all), &counts);
        let off = slots_are_off(&shares, &counts);
        if off || unplaced {
            let moves = slot_moves(&now, &shares, view.seed);
            self.slots =
                moves.into_iter().map(|(slot, to)| (slot, plan.ids[to as usize])).collect();
        }
    }

    fn start_slots(&mut self, view: &PlanView<'_>, limits: &Limits, steps: &mut Vec<Step>) {
        // Called ten times a second: without a plan it examines nothing.
        if self.slots.is_empty() {
            return;
        }
        let mut running = view.slots.iter().filter(|place| place.old.is_some()).count();
        let mut kept = VecDeque::new();
        for (slot, to) in std::mem::take(&mut self.slots) {
            let place = view.slots[usize::from(slot)];
            if place.chain == to {
                continue;
            }
            let fresh = place.chain == ChainId::NONE;
            let may_move = !limits.paused && place.old.is_none() && running < limits.slots_max;
            if fresh || may_move {
                running += usize::from(!fresh);
                steps.push(Step::Place { slot, to });
            } else {
                kept.push_back((slot, to));
            }
        }
        self.slots = kept;
    }

    fn start_moves(
        &mut self,
        view: &PlanView<'_>,
        limits: &Limits,
        max: usize,
        steps: &mut Vec<Step>,
    ) {
        if self.moves.is_empty() {
            return;
        }
        let domain = |id: DiskId| {
            let found = view.disks.binary_search_by_key(&id, |disk| disk.id);
            found.ok().map(|i| view.disks[i].domain.as_str())
        };
        let mut load = Load::of(view);
        let mut kept = VecDeque::new();
        let mut left = max.min(limits.moves_max.saturating_sub(load.running));
        for _ in 0..LOOK_AHEAD.min(self.moves.len()) {
            if left == 0 {
                break;
            }
            let Some((chain, to, drop)) = self.moves.pop_front() else { break };
            let Some(record) = view.chains.get(&chain) else { continue };
            let from = record.chain.targets.iter().find(|member| Some(member.target) == drop);
            let settled = record.chain.targets.iter().any(|member| member.disk == to);
            if settled || (drop.is_some() && from.is_none()) {
                self.overtaken = true;
                continue;
            }
            let ends: Vec<DiskId> =
                from.map(|member| member.disk).into_iter().chain([to]).collect();
            let busy = ends.iter().any(|disk| load.on(*disk) >= limits.moves_per_disk);
            let mut staying =
                record.chain.targets.iter().filter(|member| Some(member.target) != drop);
            let apart = staying.all(|member| domain(member.disk) != domain(to));
            let ready = apart
                && record.moving.is_none()
                && !load.started.contains(&chain)
                && record.chain.serving().next().is_some();
            if busy || !ready {
                kept.push_back((chain, to, drop));
                continue;
            }
            for disk in ends {
                load.add(disk);
            }
            load.started.insert(chain);
            left -= 1;
            steps.push(Step::Add { chain, to, drop });
        }
        // Skipped moves go to the end: a chain that cannot move now does not delay others.
        self.moves.append(&mut kept);
    }
}

/// The placement of one table once all current moves have ended.
struct Plan {
    table: u8,
    fleet: Fleet,
    ids: Vec<ChainId>,
    members: Vec<Members>,
}

impl Plan {
    fn of(view: &PlanView<'_>, table: u8) -> Option<Self> {
        let names: BTreeSet<&str> = view.disks.iter().map(|disk| disk.domain.as_str()).collect();
        let domains: BTreeMap<&str, u32> = names.into_iter().zip(0u32..).collect();
        let places: BTreeMap<DiskId, u32> =
            view.disks.iter().map(|disk| disk.id).zip(0u32..).collect();
        let disks = view.disks.iter().map(|disk| FleetDisk {
            domain: domains[disk.domain.as_str()],
            capacity_bytes: if disk.takes_data { disk.capacity_bytes } else { 0 },
        });
        let fleet = Fleet { disks: disks.collect(), domains: u32::try_from(domains.len()).ok()? };
        let chains = view.chains.range(ChainId::all_of(table));
        let (mut ids, mut members) = (Vec::new(), Vec::new());
        for (id, record) in chains {
            let leaving = record.moving.and_then(|moving| moving.drop);
            let stay = record.chain.targets.iter().filter(|member| Some(member.target) != leaving);
            members.push(stay.filter_map(|member| places.get(&member.disk).copied()).collect());
            ids.push(*id);
        }
        Some(Self { table, fleet, ids, members })
    }

    /// A seed per table, so that tables do not choose the same disks together.
    fn seed(&self, view: &PlanView<'_>) -> u64 {
        view.seed.wrapping_add(u64::from(self.table))
    }

    /// The moves for the relocations, each with its rank among all.
    fn moves(&self, view: &PlanView<'_>, relocations: &[Relocation]) -> Vec<(u8, Wanted)> {
        let wanted = |((chain, from), to): ((u32, Option<u32>), u32)| {
            let disk = from.map(|from| &view.disks[from as usize]);
            let urgency = disk.map_or(0, |disk| match (disk.readable, disk.takes_data) {
                (false, _) => 0,
                (true, false) => 1,
                (true, true) => 2,
            });
            let chain = self.ids[chain as usize];
            let drop = disk.and_then(|disk| {
                let members = &view.chains[&chain].chain.targets;
                members.iter().find(|member| member.disk == disk.id).map(|member| member.target)
            });
            (urgency, (chain, view.disks[to as usize].id, drop))
        };
        self.ways(relocations).into_iter().map(wanted).collect()
    }

    /// The relocations as moves from the present disk of a replica to its last, none of which puts
    /// two replicas of a chain into one domain on the way.
    fn ways(&self, relocations: &[Relocation]) -> Vec<((u32, Option<u32>), u32)> {
        let mut ways: BTreeMap<u32, Vec<(Option<u32>, u32)>> = BTreeMap::new();
        for made in relocations {
            let of_chain = ways.entry(made.chain).or_default();
            // A replica that was moved twice in the plan moves once in the cluster.
            match of_chain.iter_mut().find(|(_, to)| Some(*to) == made.from) {
                Some((_, to)) => *to = made.to,
                None => of_chain.push((made.from, made.to)),
            }
        }
        for of_chain in ways.values_mut() {
            of_chain.retain(|(from, to)| *from != Some(*to));
            self.match_domains(of_chain);
        }
        let each = |(chain, ways): (u32, Vec<(Option<u32>, u32)>)| {
            ways.into_iter().map(move |(from, to)| ((chain, from), to))
        };
        ways.into_iter().flat_map(each).collect()
    }

    /// Swaps destinations where one replica of a chain goes into the domain that another one
    /// leaves. The disks in the end are the same, and no order of the moves puts both in one
    /// domain.
    fn match_domains(&self, ways: &mut [(Option<u32>, u32)]) {
        for i in 0..ways.len() {
            let Some(from) = ways[i].0 else { continue };
            let domain = self.fleet.domain(from);
            let other = ways.iter().position(|(_, to)| self.fleet.domain(*to) == domain);
            if let Some(other) = other.filter(|other| *other != i) {
                let (a, b) = (ways[i].1, ways[other].1);
                (ways[i].1, ways[other].1) = (b, a);
            }
        }
    }

    /// Adds the planned chains to the existing ones, of which all tables have `made`.
    fn add_chains(
        &self,
        view: &PlanView<'_>,
        replicas: u8,
        made: usize,
        all: &mut Vec<Members>,
    ) -> Result<(), PlacementError> {
        let here = u32::try_from(all.len()).unwrap_or(u32::MAX);
        let most = view.chains_max as usize;
        let most = if self.table == 0 { most } else { most.min(MORE_MAX) };
        let room = most.saturating_sub(all.len()).min(CHAINS_MAX.saturating_sub(made));
        let more = (chains_to_add(&self.fleet, replicas, here) as usize).min(room);
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        if more == 0 {
            return Ok(());
        }
        let seed = self.seed(view);
        all.extend(if all.is_empty() {
            generate(&self.fleet, replicas, more, seed, &mut |_| ())?
        } else {
            grow_chains(&self.fleet, replicas, all, more, seed)?
        });
        Ok(())
    }
}

/// Moves under way, per disk.
struct Load {
    running: usize,
    per_disk: BTreeMap<DiskId, usize>,
    /// Chains whose move starts in this call.
    started: BTreeSet<ChainId>,
}

impl Load {
    fn of(view: &PlanView<'_>) -> Self {
        let mut load = Self { running: 0, per_disk: BTreeMap::new(), started: BTreeSet::new() };
        for record in view.chains.values() {
            let Some(moving) = record.moving else { continue };
            load.running += 1;
            for member in &record.chain.targets {
                if member.target == moving.add || Some(member.target) == moving.drop {
                    load.add(member.disk);
                }
            }
        }
        load
    }

    fn on(&self, disk: DiskId) -> usize {
        self.per_disk.get(&disk).copied().unwrap_or(0)
    }

    fn add(&mut self, disk: DiskId) {
        *self.per_disk.entry(disk).or_default() += 1;
    }
}

#[cfg(test)]
mod tests;
