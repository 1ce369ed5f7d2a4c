//! From events to transactions: one at a time, each made from the committed state.

use std::collections::BTreeSet;
use std::time::Duration;

use millpond_types::cluster::{
    Chain, ChainId, ChainRecord, ChainTarget, ChainVersion, ClusterRecord, DiskId, DiskRecord,
    DiskState, NodeId, NodeState, Register, RegisterAnswer, RoutingVersion, SlotDone, SlotPlace,
    TargetState, keys,
};
use millpond_types::units::Tick;
use millpond_types::wire::Record as _;

use super::event::{Effect, Session, StoreReply, StoreRequest};
use super::mutation::mutated;
use super::nodes::record_of;
use super::primary::{FENCE_PENDING, Job, Live, Nodes, Primary};
use super::settings::Rules;
use super::state::{Changes, Draft, State, Write, domain_name, slot_id};
use super::{Cx, ManagerOptions};
use crate::moves::{join, settle};
use crate::planner::{Limits, PlanDisk, Planner, Step};
use crate::table::{Report, next_chain};

/// Pause before another query for a transaction with an unknown fate.
const RETRY: Duration = Duration::from_millis(100);
/// Interval between calls of the planner when nothing else happens.
const PLAN_EVERY: Duration = Duration::from_millis(100);
/// Steps of the planner in one transaction.
const STEPS_MAX: usize = 64;

/// Action once a transaction is committed.
#[derive(Debug)]
pub(super) enum After {
    /// Send an answer.
    Tell(Effect),
    /// A process registered; the previous one of the node, if any.
    Started(NodeId, Option<millpond_types::cluster::Incarnation>),
}

/// The transaction in flight.
#[derive(Debug)]
pub(super) struct InFlight {
    changes: Changes,
    fenced: BTreeSet<NodeId>,
    after: Vec<After>,
    request: StoreRequest,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Sent under this request number.
    Sent(u64),
    /// Its fate is unknown; term and head were requested under this number.
    Asked(u64),
    /// The store did not answer; ask again at this time.
    Ask(Tick),
    /// It was not executed; send it again at this time.
    Send(Tick),
}

impl InFlight {
    pub(super) fn next_wake(&self) -> Tick {
        match self.stage {
            Stage::Ask(at) | Stage::Send(at) => at,
            Stage::Sent(_) | Stage::Asked(_) => Tick::MAX,
        }
    }
}

enum Outcome {
    /// In the draft, or nothing to do.
    Done,
    /// Repeat in the next transaction.
    Later,
}

impl Primary {
    /// Sends the next transaction if there is anything to decide and none is in flight.
    pub(super) fn work(&mut self, cx: &mut Cx<'_>) {
        self.retry(cx);
        if self.in_flight.is_some() {
            return;
        }
        let Self { state, nodes, planner, dirty, jobs, plan_at, .. } = self;
        let mut draft = Draft::new(state, cx.unix);
        let mut after = Vec::new();
        while draft.has_room(8)
            && let Some(chain) = dirty.pop_first()
        {
            evaluate(&mut draft, nodes, planner, (chain, cx.options));
        }
        while draft.has_room(32)
            && let Some(job) = jobs.pop_front()
        {
            let outcome = match &job {
                Job::Found => found(&mut draft, cx),
                Job::Register(from, register) => {
                    let mut touched = BTreeSet::new();
                    let outcome =
                        enroll(&mut draft, nodes, (*from, register), &mut touched, &mut after);
                    for chain in touched {
                        if draft.has_room(8) && draft.is_untouched(chain) {
                            evaluate(&mut draft, nodes, planner, (chain, cx.options));
                        } else {
                            dirty.insert(chain);
                        }
                    }
                    outcome
                }
                Job::Admin(from, command) => {
                    match super::operator::carry_out(&mut draft, nodes, planner, command) {
                        Some(answer) => {
                            after.push(After::Tell(Effect::AdminDone { to: *from, answer }));
                            Outcome::Done
                        }
                        None => Outcome::Later,
                    }
                }
                Job::GiveUp(disk) => give_up(&mut draft, nodes, *disk),
                Job::SlotsDone(done) => slots_done(&mut draft, done),
                Job::Note(text) => {
                    draft.event(None, text.clone());
                    Outcome::Done
                }
            };
            if matches!(outcome, Outcome::Later) {
                jobs.push_front(job);
                break;
            }
        }
        if draft.is_empty() && cx.now >= *plan_at {
            plan(&mut draft, nodes, planner, cx);
            if draft.is_empty() {
                *plan_at = cx.now.plus(PLAN_EVERY);
            }
        }
        if draft.is_empty() {
            for after in after {
                self.after(cx, after);
            }
            return;
        }
        let sealed = draft.seal();
        self.send(cx, sealed, after);
    }

    fn send(
        &mut self,
        cx: &mut Cx<'_>,
        (changes, fenced, writes): (Changes, BTreeSet<NodeId>, Vec<Write>),
        after: Vec<After>,
    ) {
        for node in &fenced {
            if let Some(live) = self.nodes.live.get_mut(node) {
                live.fence = FENCE_PENDING;
            }
        }
        let mut checks = vec![self.lease.check(), (keys::HEAD.to_vec(), self.head.clone())];
        if mutated!(cx.options, CommitUnchecked) {
            checks.clear();
        }
        let request = StoreRequest::Commit { checks, writes };
        let stage = Stage::Sent(cx.ask(request.clone()));
        self.in_flight = Some(InFlight { changes, fenced, after, request, stage });
    }

    fn retry(&mut self, cx: &mut Cx<'_>) {
        let Some(in_flight) = &mut self.in_flight else { return };
        match in_flight.stage {
            Stage::Ask(at) if cx.now >= at => {
                let keys = vec![keys::TERM.to_vec(), keys::HEAD.to_vec()];
                in_flight.stage = Stage::Asked(cx.ask(StoreRequest::Get { keys }));
            }
            Stage::Send(at) if cx.now >= at => {
                in_flight.stage = Stage::Sent(cx.ask(in_flight.request.clone()));
            }
            _ => {}
        }
    }

    /// Handles an answer of the store to the transaction in flight. False when another manager is
    /// primary.
    pub(super) fn store_answered(&mut self, cx: &mut Cx<'_>, id: u64, reply: &StoreReply) -> bool {
        let Some(in_flight) = &mut self.in_flight else { return true };
        match (&in_flight.stage, reply) {
            (Stage::Sent(sent), StoreReply::Committed) if *sent == id => self.committed(cx),
            (Stage::Sent(sent), StoreReply::Failed)
                if *sent == id && mutated!(cx.options, AssumeCommitted) =>
            {
                self.committed(cx);
            }
            (Stage::Sent(sent), _) if *sent == id => {
                // Not executed, or executed without an answer: HEAD tells.
                in_flight.stage = Stage::Ask(cx.now);
            }
            (Stage::Asked(asked), StoreReply::Values(values)) if *asked == id => {
                let term = values.first().cloned().flatten();
                let head = values.get(1).cloned().flatten();
                if term != Some(self.lease.term_bytes()) {
                    return false;
                }
                if head == Some(in_flight.changes.head.seal()) {
                    self.committed(cx);
                } else if head == self.head {
                    in_flight.stage = Stage::Send(cx.now.plus(RETRY));
                } else {
                    return false;
                }
            }
            (Stage::Asked(asked), _) if *asked == id => {
                in_flight.stage = Stage::Ask(cx.now.plus(RETRY));
            }
            _ => {}
        }
        true
    }

    fn committed(&mut self, cx: &mut Cx<'_>) {
        let Some(InFlight { changes, fenced, after, .. }) = self.in_flight.take() else { return };
        self.head = Some(changes.head.seal());
        let arrived = |(slot, place): &(&u16, &SlotPlace)| {
            place.old.is_none() && self.state.slots[usize::from(**slot)].old.is_some()
        };
        self.pace.settled(changes.slots.iter().filter(arrived).count());
        self.state.apply(&changes);
        if !changes.chains.is_empty() || !changes.slots.is_empty() {
            self.quotas.changed();
        }
        for chain in changes.chains.keys() {
            self.nodes.changed_at.insert(*chain, changes.head.routing);
            self.dirty.insert(*chain);
        }
        for node in &fenced {
            if let Some(live) = self.nodes.live.get_mut(node) {
                live.fence = changes.head.routing;
            }
        }
        if !changes.disks.is_empty() || !changes.nodes.is_empty() {
            // A move to a disk that no longer takes data is given up.
            self.dirty.extend(self.state.moving.iter().copied());
        }
        for (node, record) in &changes.nodes {
            if record.is_none() {
                self.nodes.live.remove(node);
            }
        }
        self.publisher.publish(cx, &changes);
        cx.effects.extend(changes.events.into_iter().map(Effect::Happened));
        for after in after {
            self.after(cx, after);
        }
    }

    fn after(&mut self, cx: &mut Cx<'_>, after: After) {
        match after {
            After::Tell(effect) => cx.effects.push(effect),
            After::Started(node, previous) => {
                let fence = self.nodes.live.get(&node).map_or(RoutingVersion(0), |live| live.fence);
                let fresh = Live { down: Some(cx.now), previous, fence, ..Live::default() };
                self.nodes.live.insert(node, fresh);
            }
        }
    }
}

/// One step of a chain: of the move in it, otherwise of the target-state table.
fn evaluate(
    draft: &mut Draft<'_>,
    nodes: &Nodes,
    planner: &mut Planner,
    (id, options): (ChainId, &ManagerOptions),
) {
    let Some(record) = draft.chain(id) else { return };
    let takes_data = |disk| draft.disk(disk).is_some_and(|disk| takes_data(draft, disk));
    #[cfg(feature = "mutations")]
    if let Some(next) = super::mutation::leave_early(options, record) {
        return draft.put_chain(next);
    }
    if let Some(next) = settle(record, takes_data) {
        let add = record.moving.map(|moving| moving.add);
        if !next.chain.targets.iter().any(|member| Some(member.target) == add) {
            planner.forget();
        }
        draft.put_chain(next);
        return;
    }
    let mut reports: Vec<Report> =
        record.chain.targets.iter().map(|member| nodes.report(id, member)).collect();
    if mutated!(options, TrustOldReport) {
        for report in &mut reports {
            report.at = record.chain.version;
        }
    }
    let Some(chain) = next_chain(&record.chain, &reports) else { return };
    let before = record.chain.serving().next().is_some();
    let serves = chain.serving().next().is_some();
    let moving = record.moving;
    if before != serves {
        draft.availability.note(&chain);
    }
    draft.put_chain(ChainRecord { chain, moving });
}

fn takes_data(draft: &Draft<'_>, disk: &DiskRecord) -> bool {
    let active = draft.node(disk.node).is_some_and(|node| node.state == NodeState::Active);
    active && disk.state == DiskState::Active
}

fn found(draft: &mut Draft<'_>, cx: &Cx<'_>) -> Outcome {
    draft.changes.cluster = Some(ClusterRecord {
        cluster: cx.options.new_cluster,
        seed: cx.options.seed,
        secret: cx.options.secret,
        ..ClusterRecord::default()
    });
    draft.event(None, format!("cluster {} was founded", cx.options.new_cluster));
    Outcome::Done
}

/// Records a registration. For a new process of a known node, all targets of the node become
/// OFFLINE first: the memory of the previous process is lost.
fn enroll(
    draft: &mut Draft<'_>,
    nodes: &mut Nodes,
    (from, register): (Session, &Register),
    dirty: &mut BTreeSet<ChainId>,
    after: &mut Vec<After>,
) -> Outcome {
    let node = register.node;
    let before = draft.node(node).cloned();
    let restarted = before.as_ref().is_some_and(|b| b.incarnation != register.incarnation);
    if restarted && !is_put_aside(draft, nodes, node, dirty) {
        return Outcome::Later;
    }
    for offer in &register.disks {
        if !enroll_disk(draft, node, offer) {
            return Outcome::Later;
        }
    }
    let state = before.as_ref().map_or(NodeState::Active, |before| before.state);
    let record = record_of(register, state);
    if before.as_ref() != Some(&record) {
        let word = match &before {
            None => "joined",
            Some(before) if before.incarnation != record.incarnation => "started again",
            Some(_) => "changed its address, name or domain",
        };
        let text = format!(
            "node {node} on host '{}' {word}, at {}",
            record.host,
            record.addresses.join(", ")
        );
        draft.event(None, text);
        draft.changes.nodes.insert(node, Some(record));
    }
    if before.is_none_or(|before| before.incarnation != register.incarnation) {
        let previous = draft.base.nodes.get(&node).map(|record| record.incarnation);
        after.push(After::Started(node, previous));
    }
    let answer = RegisterAnswer::Accepted {
        cluster: draft.cluster().cluster,
        routing: draft.base.head.routing,
        secret: draft.cluster().secret,
    };
    after.push(After::Tell(Effect::Registered { to: from, answer }));
    Outcome::Done
}

/// True once no target of the node serves or syncs; until then its chains are re-evaluated.
fn is_put_aside(
    draft: &Draft<'_>,
    nodes: &mut Nodes,
    node: NodeId,
    dirty: &mut BTreeSet<ChainId>,
) -> bool {
    if let Some(live) = nodes.live.get_mut(&node)
        && live.is_up()
    {
        // It was admitted, so the previous process is gone.
        live.down = Some(Tick(0));
        live.reports.clear();
    }
    let aside = |state| matches!(state, TargetState::Offline | TargetState::LastServing);
    let open: Vec<ChainId> = draft
        .base
        .chains_of(node)
        .filter(|id| {
            let members = &draft.base.chains[id].chain.targets;
            members.iter().any(|member| member.node == node && !aside(member.state))
        })
        .collect();
    let done = open.is_empty();
    dirty.extend(open);
    done
}

/// Records a disk. False when that takes another transaction.
fn enroll_disk(
    draft: &mut Draft<'_>,
    node: NodeId,
    offer: &millpond_types::cluster::DiskOffer,
) -> bool {
    let before = draft.disk(offer.id).copied();
    // A disk that was away for long takes data again: a resync brings it up to date.
    let state = match before.map(|disk| disk.state) {
        None | Some(DiskState::Missing) => DiskState::Active,
        Some(state) => state,
    };
    let record = DiskRecord { id: offer.id, node, capacity_bytes: offer.capacity_bytes, state };
    if before == Some(record) {
        return true;
    }
    let elsewhere = before.filter(|before| before.node != node);
    if !draft.has_room(4) || elsewhere.is_some_and(|before| !carry_over(draft, &before, node)) {
        return false;
    }
    if let Some(before) = elsewhere {
        let text = format!("disk {} moved from node {} to {node}", offer.id, before.node);
        draft.event(None, text);
    }
    draft.changes.disks.insert(offer.id, Some(record));
    true
}

/// Assigns the targets on a disk that was moved to another server to that server. The disk's record
/// follows once all are done, so that nothing is forgotten when a primary stops in between.
fn carry_over(draft: &mut Draft<'_>, disk: &DiskRecord, node: NodeId) -> bool {
    let chains: Vec<ChainId> = draft.base.chains_of(disk.node).collect();
    for id in chains {
        let Some(mut record) = draft.chain(id).cloned() else { continue };
        let old = |member: &&mut ChainTarget| member.disk == disk.id && member.node != node;
        let mut moved = false;
        for member in record.chain.targets.iter_mut().filter(old) {
            member.node = node;
            moved = true;
        }
        if !moved {
            continue;
        }
        if !draft.has_room(4) || !draft.is_untouched(id) {
            return false;
        }
        record.chain.version = ChainVersion(record.chain.version.0 + 1);
        draft.put_chain(record);
    }
    true
}

fn give_up(draft: &mut Draft<'_>, nodes: &Nodes, disk: DiskId) -> Outcome {
    let wanted = |record: &DiskRecord| {
        // Its node may be back by now.
        let live = nodes.live.get(&record.node);
        let away = live.is_none_or(|node| !node.is_up() || node.failing.contains_key(&disk));
        !record.state.is_given_up() && away
    };
    if let Some(record) = draft.disk(disk).copied().filter(wanted) {
        draft.changes.disks.insert(disk, Some(DiskRecord { state: DiskState::Missing, ..record }));
        draft.event(
            None,
            format!("disk {disk} of node {} is declared lost: its data is rebuilt", record.node),
        );
    }
    Outcome::Done
}

fn slots_done(draft: &mut Draft<'_>, done: &[SlotDone]) -> Outcome {
    for done in done {
        let place = SlotPlace { chain: done.to, old: Some(done.from) };
        if draft.place(done.slot.0) == place {
            // The rest follows in the next transaction, which skips the slots settled here.
            if !draft.has_room(1) {
                return Outcome::Later;
            }
            let settled = SlotPlace { chain: done.to, old: None };
            draft.changes.slots.insert(done.slot.0, settled);
        }
    }
    Outcome::Done
}

/// The disks as input for the planner.
pub(super) fn plan_disks(state: &State) -> Vec<PlanDisk> {
    state
        .disks
        .values()
        .map(|disk| PlanDisk {
            id: disk.id,
            node: disk.node,
            domain: state.nodes.get(&disk.node).map(domain_name).unwrap_or_default(),
            capacity_bytes: disk.capacity_bytes,
            takes_data: state.takes_data(disk),
            readable: !disk.state.is_given_up(),
        })
        .collect()
}

/// Takes the planner's next steps.
fn plan(draft: &mut Draft<'_>, nodes: &Nodes, planner: &mut Planner, cx: &Cx<'_>) {
    let state = draft.base;
    let disks = plan_disks(state);
    if state.cluster.replicas == 0 {
        form(draft, &disks, nodes, cx);
        return;
    }
    let view = state.plan_view(&disks, cx.options);
    let rules = Rules::of(&state.config);
    let limits = Limits {
        paused: rules.paused,
        moves_max: rules.moves_max,
        moves_per_disk: rules.moves_per_disk,
        slots_max: rules.slots_max,
    };
    let steps = planner.next(&view, &limits, STEPS_MAX);
    for step in steps {
        // Slots come first, and all their pages fit.
        if !matches!(step, Step::Place { .. }) && !draft.has_room(1) {
            planner.forget();
            return;
        }
        match step {
            Step::NewChain { table, disks } => new_chain(draft, nodes, planner, (table, &disks)),
            Step::Add { chain, to, drop } => add_target(draft, (chain, to, drop)),
            Step::Place { slot, to } => {
                let old = Some(draft.place(slot).chain).filter(|old| *old != ChainId::NONE);
                draft.changes.slots.insert(slot_id(slot).0, SlotPlace { chain: to, old });
            }
        }
    }
}

/// Makes the first chains once there are enough failure domains.
fn form(draft: &mut Draft<'_>, disks: &[PlanDisk], nodes: &Nodes, cx: &Cx<'_>) {
    let Some(form) = cx.options.form else { return };
    let up =
        |disk: &&PlanDisk| disk.takes_data && nodes.live.get(&disk.node).is_some_and(Live::is_up);
    let domains: BTreeSet<&str> =
        disks.iter().filter(up).map(|disk| disk.domain.as_str()).collect();
    let enough = domains.len() >= form.domains.max(u32::from(form.replicas)) as usize;
    if enough && form.replicas > 0 {
        draft.changes.cluster = Some(ClusterRecord { replicas: form.replicas, ..draft.cluster() });
        draft.event(None, format!("chains of {} replicas are being made", form.replicas));
    }
}

/// Makes an empty chain, which serves at once if its nodes are alive.
fn new_chain(
    draft: &mut Draft<'_>,
    nodes: &Nodes,
    planner: &mut Planner,
    (table, disks): (u8, &[DiskId]),
) {
    let mut targets = Vec::with_capacity(disks.len());
    for disk in disks {
        let Some(node) = draft.disk(*disk).map(|disk| disk.node) else { continue };
        let up = nodes.live.get(&node).is_some_and(Live::is_up);
        let state = if up { TargetState::Serving } else { TargetState::Offline };
        targets.push(ChainTarget { target: draft.new_target(), disk: *disk, node, state });
    }
    targets.sort_by_key(|member| member.state);
    if targets.first().is_none_or(|first| first.state != TargetState::Serving) {
        planner.forget();
        return;
    }
    let id = draft.new_chain(table);
    let chain = Chain { id, version: ChainVersion(1), targets };
    draft.put_chain(ChainRecord { chain, moving: None });
}

/// Adds a replica to a chain.
pub(super) fn add_target(
    draft: &mut Draft<'_>,
    (chain, to, drop): (ChainId, DiskId, Option<millpond_types::cluster::TargetId>),
) {
    let Some(node) = draft.disk(to).map(|disk| disk.node) else { return };
    let Some(record) = draft.chain(chain).filter(|record| record.moving.is_none()).cloned() else {
        return;
    };
    let target = draft.new_target();
    let add = ChainTarget { target, disk: to, node, state: TargetState::Offline };
    draft.put_chain(join(&record, add, drop));
}

#[cfg(test)]
mod tests {
    use millpond_types::cluster::{ChainId, SlotDone, SlotPlace};
    use millpond_types::ids::SlotId;
    use millpond_types::limits::{SLOT_PAGE, SLOTS};
    use millpond_types::units::UnixSeconds;

    use super::{Draft, Outcome, State, slots_done};

    /// Operations of one etcd transaction, without the checks.
    const WRITES_MAX: usize = 126;

    #[test]
    fn slots_that_are_done_wait_for_room() {
        let mut state = State::default();
        let (from, to) = (ChainId(1), ChainId(2));
        let done: Vec<SlotDone> = (0..SLOTS)
            .step_by(SLOT_PAGE)
            .map(|slot| SlotDone { slot: SlotId(u16::try_from(slot).unwrap()), from, to })
            .collect();
        for slot in &done {
            state.slots[usize::from(slot.slot.0)] = SlotPlace { chain: to, old: Some(from) };
        }
        let mut rounds = 0;
        loop {
            let mut draft = Draft::new(&state, UnixSeconds(0));
            (0..64).for_each(|n| draft.event(None, format!("event {n}")));
            let outcome = slots_done(&mut draft, &done);
            let (changes, _, writes) = draft.seal();
            assert!(writes.len() <= WRITES_MAX, "{} writes", writes.len());
            state.apply(&changes);
            rounds += 1;
            if matches!(outcome, Outcome::Done) {
                break;
            }
        }
        assert_eq!(rounds, 2);
        assert!(done.iter().all(|done| state.slots[usize::from(done.slot.0)].old.is_none()));
    }
}
