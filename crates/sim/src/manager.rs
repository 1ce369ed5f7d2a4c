//! Managers: the shell around the production state machine, as `control/src/manager/shell.rs` is.
//!
//! `store` checks its decisions. This module checks that it announces nothing before the store has
//! it, and that it takes nothing from nodes that may still serve.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millpond_cluster::manager::{
    Effect, Effects, Event, Form, Manager, ManagerOptions, ProbeOutcome, Role, Session, StoreReply,
    StoreRequest,
};
use millpond_types::Uuid128;
use millpond_types::cluster::{HeartbeatAnswer, Incarnation, NodeId, RegisterAnswer, TargetState};
use millpond_types::units::UnixSeconds;

use crate::clock::Clock;
use crate::message::{Address, Item, Message, Time, ms};
use crate::store::Change;
use crate::world::{Phase, World};

/// Deadline of the shell for every request to the store.
const REQUEST_MAX: Time = ms(1500);
/// Deadline of an address for the answer to a probe.
const PROBE_MAX: Time = ms(500);
/// Longest wait of a clean stop for the release of the lease in the store.
const RESIGN_MAX: Time = ms(1600);
/// Time after which a caller that waits for routing gives up.
const CALLER_MAX: Time = ms(3000);

/// The answer that a caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Registered,
    Beat,
    Push,
    Admin,
}

#[derive(Clone, Copy, Debug)]
struct Caller {
    from: Address,
    call: u64,
    wish: Wish,
    until: Time,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    node: NodeId,
    incarnation: Incarnation,
}

/// A manager process.
pub(crate) struct Seat {
    pub(crate) manager: Manager,
    options: ManagerOptions,
    pub(crate) up: bool,
    pub(crate) life: u64,
    pub(crate) clock: Clock,
    /// Stopped (SIGSTOP) until then: arriving messages wait.
    pub(crate) paused_until: Time,
    /// Whether it cannot reach the store.
    pub(crate) cut: bool,
    callers: BTreeMap<Session, Caller>,
    last_session: u64,
    /// Requests that the store has not answered yet.
    asked: BTreeSet<u64>,
    probes: BTreeMap<u64, Probe>,
    last_probe: u64,
    /// Wake-ups of another turn are void.
    turn: u64,
    leaving: bool,
}

/// Id of a manager in its records.
pub(crate) fn manager_id(number: usize) -> NodeId {
    NodeId(Uuid128([0xa0 + u8::try_from(number).expect("few managers"); 16]))
}

/// The manager at an address.
pub(crate) fn manager_at(address: &str) -> Option<usize> {
    address.strip_prefix("manager-")?.parse().ok()
}

impl Seat {
    pub(crate) fn new(
        number: usize,
        clock: Clock,
        (replicas, nodes, chains): (usize, usize, usize),
        mutation: Option<millpond_cluster::manager::Mutation>,
    ) -> Self {
        let count = |n: usize| u32::try_from(n).expect("small");
        let replicas = u8::try_from(replicas).expect("small");
        let options = ManagerOptions {
            addresses: vec![format!("manager-{number}")],
            new_cluster: Uuid128([0xcc; 16]),
            seed: 7,
            form: Some(Form { replicas, domains: count(nodes) }),
            chains_max: count(chains),
            mutation,
            ..ManagerOptions::new(manager_id(number))
        };
        Self {
            manager: Manager::new(options.clone()),
            options,
            up: true,
            life: 0,
            clock,
            paused_until: 0,
            cut: false,
            callers: BTreeMap::new(),
            last_session: 0,
            asked: BTreeSet::new(),
            probes: BTreeMap::new(),
            last_probe: 0,
            turn: 0,
            leaving: false,
        }
    }

    /// Starts the process again, without memory.
    pub(crate) fn restart(&mut self, clock: Clock) {
        self.manager = Manager::new(self.options.clone());
        (self.up, self.leaving, self.paused_until) = (true, false, 0);
        self.life += 1;
        self.clock = clock;
        self.stop_waiting();
    }

    fn stop_waiting(&mut self) {
        self.callers.clear();
        self.asked.clear();
        self.probes.clear();
    }
}

impl World {
    /// Runs an item now if the process runs; otherwise delays or drops it.
    fn manager_runs<T>(
        &mut self,
        (manager, life): (usize, u64),
        what: T,
        item: impl FnOnce(T) -> Item,
    ) -> Option<T> {
        let seat = &self.managers[manager];
        if !seat.up || seat.life != life {
            return None;
        }
        let paused_until = seat.paused_until;
        if self.now < paused_until {
            self.after(paused_until - self.now, item(what));
            return None;
        }
        Some(what)
    }

    pub(crate) fn manager_wake(&mut self, manager: usize, life: u64, turn: u64) {
        let item = |()| Item::ManagerWake { manager, life, turn };
        let void = self.managers[manager].turn != turn;
        if void || self.manager_runs((manager, life), (), item).is_none() {
            return;
        }
        let seat = &mut self.managers[manager];
        let now = self.now;
        let gone: Vec<Session> = seat
            .callers
            .iter()
            .filter(|(_, caller)| caller.until <= now)
            .map(|(session, _)| *session)
            .collect();
        for from in gone {
            self.managers[manager].callers.remove(&from);
            self.manager_step(manager, Event::Closed { from });
        }
        let seat = &self.managers[manager];
        if seat.clock.read(self.now) >= seat.manager.next_wake() {
            let unix = UnixSeconds(u32::try_from(self.now / 1_000_000).expect("runs are short"));
            self.manager_step(manager, Event::Timer { unix });
        } else {
            self.manager_sleeps(manager);
        }
    }

    /// Sleeps until the state machine's next timer, but not for zero time.
    fn manager_sleeps(&mut self, manager: usize) {
        let seat = &mut self.managers[manager];
        seat.turn += 1;
        let (life, turn) = (seat.life, seat.turn);
        let left = seat.manager.next_wake().since(seat.clock.read(self.now));
        let left = u64::try_from(left.as_micros()).expect("short").clamp(1000, 250_000);
        let delay = seat.clock.true_time(left);
        self.after(delay, Item::ManagerWake { manager, life, turn });
    }

    pub(crate) fn manager_step(&mut self, manager: usize, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let seat = &mut self.managers[manager];
            let now = seat.clock.read(self.now);
            let mut effects = Effects::new();
            seat.manager.step(now, event, &mut effects);
            for effect in effects {
                self.manager_effect(manager, effect, &mut events);
            }
        }
        self.manager_sleeps(manager);
    }

    fn manager_effect(&mut self, manager: usize, effect: Effect, events: &mut VecDeque<Event>) {
        match effect {
            Effect::Store { id, request } => self.ask_store(manager, id, request),
            Effect::Registered { to, answer } => {
                self.reply(manager, to, |call| Message::Registered { call, answer });
            }
            Effect::Beat { to, answer } => {
                self.check_grant(manager, &answer);
                let answer = Box::new(answer);
                self.reply(manager, to, |call| Message::Beat { call, answer });
            }
            Effect::AdminDone { to, answer } => {
                let answer = Box::new(answer);
                self.reply(manager, to, |call| Message::AdminDone { call, answer });
            }
            Effect::Push { to, update } => {
                if update.version() > self.store.head.routing {
                    self.violate(|| format!("manager {manager} tells of what is not committed"));
                }
                self.push(manager, to, update);
                // One update per request: the caller asks again with its new version.
                events.push_back(Event::Closed { from: to });
            }
            Effect::Probe { node, incarnation, .. } => {
                self.probe(manager, Probe { node, incarnation });
            }
            Effect::Became(role) => {
                self.trace.add(role as u64 + 77);
                self.trace.note(self.now, || format!("manager {manager} is {role:?}"));
                self.stats.take_overs += u64::from(role == Role::Primary);
                if role == Role::Standby {
                    self.turn_away(manager);
                }
            }
            Effect::Happened(event) => {
                self.trace.note(self.now, || format!("manager {manager}: {}", event.text));
            }
        }
    }

    fn reply(&mut self, manager: usize, to: Session, message: impl FnOnce(u64) -> Message) {
        if let Some(caller) = self.managers[manager].callers.remove(&to) {
            self.send(Address::Manager(manager), caller.from, message(caller.call));
        }
    }

    fn push(
        &mut self,
        manager: usize,
        to: Session,
        update: millpond_types::cluster::RoutingUpdate,
    ) {
        // A dropped update at this moment leaves one replica behind.
        if self.phase == Phase::Chaos && self.rng.permille(self.plan.hunt / 3) {
            self.managers[manager].callers.remove(&to);
            return;
        }
        self.reply(manager, to, |call| Message::Push { call, update });
    }

    fn turn_away(&mut self, manager: usize) {
        for (_, caller) in std::mem::take(&mut self.managers[manager].callers) {
            let call = caller.call;
            let message = match caller.wish {
                Wish::Registered => {
                    Message::Registered { call, answer: RegisterAnswer::NotPrimary(Vec::new()) }
                }
                Wish::Beat => {
                    let answer = Box::new(HeartbeatAnswer::NotPrimary(Vec::new()));
                    Message::Beat { call, answer }
                }
                Wish::Push | Wish::Admin => continue,
            };
            self.send(Address::Manager(manager), caller.from, message);
        }
    }

    fn seat(&mut self, manager: usize, from: Address, call: u64, wish: Wish) -> Session {
        let until = self.now + CALLER_MAX;
        let seat = &mut self.managers[manager];
        seat.last_session += 1;
        let session = Session(seat.last_session);
        seat.callers.insert(session, Caller { from, call, wish, until });
        session
    }

    pub(crate) fn manager_receives(&mut self, manager: usize, from: Address, message: Message) {
        let life = self.managers[manager].life;
        let item = |message| Item::Deliver(from, Address::Manager(manager), message);
        let Some(message) = self.manager_runs((manager, life), message, item) else { return };
        let event = match message {
            Message::Register { call, register } => {
                let from = self.seat(manager, from, call, Wish::Registered);
                Event::Register { from, register: *register }
            }
            Message::Heartbeat { call, heartbeat } => {
                self.trace.note(self.now, || {
                    let (node, number) = (heartbeat.node, heartbeat.number);
                    let reports: Vec<_> = heartbeat
                        .targets
                        .iter()
                        .map(|report| (report.target, report.local, report.at))
                        .collect();
                    let (stopping, routing) = (heartbeat.stopping, heartbeat.routing.0);
                    format!(
                        "manager {manager} hears {node} {number}: stopping {stopping}, routing {routing}, {reports:?}"
                    )
                });
                let from = self.seat(manager, from, call, Wish::Beat);
                Event::Heartbeat { from, heartbeat: *heartbeat }
            }
            Message::Admin { call, command, until } => {
                if self.now > until {
                    return;
                }
                let from = self.seat(manager, from, call, Wish::Admin);
                Event::Admin { from, command }
            }
            Message::Poll { call, cluster, have } => {
                if self.managers[manager].manager.role() != Role::Primary {
                    return;
                }
                let from = self.seat(manager, from, call, Wish::Push);
                Event::Subscribe { from, cluster, have }
            }
            Message::Suspect(node) => Event::Suspect { node },
            Message::Greeting { call, found } => {
                let outcome = found.map_or(ProbeOutcome::Gone, ProbeOutcome::Alive);
                return self.probed(manager, call, outcome);
            }
            _ => return,
        };
        self.manager_step(manager, event);
    }

    fn probe(&mut self, manager: usize, probe: Probe) {
        let seat = &mut self.managers[manager];
        seat.last_probe += 1;
        let (call, life) = (seat.last_probe, seat.life);
        seat.probes.insert(call, probe);
        self.after(PROBE_MAX, Item::ProbeOver { manager, life, call });
        if let Some(node) = crate::member::node_at(probe.node) {
            self.send(Address::Manager(manager), Address::Node(node), Message::Hello { call });
        }
    }

    pub(crate) fn probe_over(&mut self, manager: usize, life: u64, call: u64) {
        let item = |()| Item::ProbeOver { manager, life, call };
        if self.manager_runs((manager, life), (), item).is_some() {
            self.probed(manager, call, ProbeOutcome::Unknown);
        }
    }

    fn probed(&mut self, manager: usize, call: u64, outcome: ProbeOutcome) {
        let Some(probe) = self.managers[manager].probes.remove(&call) else { return };
        let Probe { node, incarnation } = probe;
        self.trace.note(self.now, || format!("manager {manager} probed {node}: {outcome:?}"));
        self.manager_step(manager, Event::Probed { node, incarnation, outcome });
    }

    /// Sends a request to the store. Some are late, and some answers are lost; after a while the
    /// manager gets a failure with an unknown outcome.
    fn ask_store(&mut self, manager: usize, id: u64, request: StoreRequest) {
        let seat = &mut self.managers[manager];
        seat.asked.insert(id);
        let (life, cut) = (seat.life, seat.cut || self.store.down);
        let failed = Item::Transacted { manager, life, id, reply: StoreReply::Failed };
        self.after(REQUEST_MAX, failed);
        let chaos = self.phase == Phase::Chaos;
        let rare = chaos && self.rng.permille(self.plan.store_late);
        let heard = !(cut || chaos && self.rng.permille(self.plan.store_late));
        let delay = if cut {
            if self.rng.permille(700) {
                return;
            }
            // It is delayed in some buffer on the way.
            self.rng.below(ms(9000))
        } else if rare {
            self.rng.below(ms(4000))
        } else {
            self.rng.between(200, 2500)
        };
        self.after(delay, Item::Transact { manager, life, id, request, heard });
    }

    pub(crate) fn transact(
        &mut self,
        (manager, life, id): (usize, u64, u64),
        request: StoreRequest,
        heard: bool,
    ) {
        let done = self.store.carry_out(manager_id(manager), request);
        let (reply, changes) = match done {
            Ok(done) => done,
            Err(what) => return self.violate(|| format!("manager {manager}: {what}")),
        };
        for change in changes {
            self.decided(manager, &change);
        }
        if heard {
            let delay = self.rng.between(100, 1500);
            self.after(delay, Item::Transacted { manager, life, id, reply });
        }
    }

    pub(crate) fn transacted(&mut self, (manager, life, id): (usize, u64, u64), reply: StoreReply) {
        let item = |reply| Item::Transacted { manager, life, id, reply };
        let Some(reply) = self.manager_runs((manager, life), reply, item) else { return };
        if !self.managers[manager].asked.remove(&id) {
            return;
        }
        self.manager_step(manager, Event::Store { id, reply });
        if self.managers[manager].leaving && self.managers[manager].asked.is_empty() {
            self.manager_left(manager, life);
        }
    }

    /// Stops the process cleanly.
    pub(crate) fn manager_leaves(&mut self, manager: usize) {
        let seat = &mut self.managers[manager];
        if seat.up && !seat.leaving && self.now >= seat.paused_until {
            seat.leaving = true;
            let life = seat.life;
            self.manager_step(manager, Event::Resign);
            self.after(RESIGN_MAX, Item::ManagerLeft { manager, life });
        }
    }

    pub(crate) fn manager_left(&mut self, manager: usize, life: u64) {
        let seat = &mut self.managers[manager];
        if seat.life == life && seat.leaving {
            seat.up = false;
            seat.stop_waiting();
        }
    }

    pub(crate) fn manager_crashes(&mut self, manager: usize) {
        let seat = &mut self.managers[manager];
        seat.up = false;
        seat.stop_waiting();
    }

    pub(crate) fn start_manager(&mut self, manager: usize) {
        if self.managers[manager].up {
            return;
        }
        let clock = Clock::new(&mut self.rng, self.now);
        self.managers[manager].restart(clock);
        self.manager_sleeps(manager);
    }

    /// Checks that only the holder of the manager's lease grants a lease.
    fn check_grant(&mut self, manager: usize, answer: &HeartbeatAnswer) {
        let HeartbeatAnswer::Granted(grant) = answer else { return };
        if grant.lease_ms > 0 && self.store.term.manager != manager_id(manager) {
            self.violate(|| {
                format!("manager {manager} grants a lease and is not primary any more")
            });
        }
    }

    /// Notes a durable change of a chain.
    fn decided(&mut self, manager: usize, change: &Change) {
        let chain = &change.after.chain;
        self.stats.versions += 1;
        self.trace.add(u64::from(chain.version.0) << 8 | u64::from(chain.id.0));
        self.trace.note(self.now, || {
            let states: Vec<String> =
                chain.targets.iter().map(|m| format!("{}:{:?}", m.target.0, m.state)).collect();
            let moving = change.after.moving;
            format!("manager {manager}: {:?} {:?} {states:?} {moving:?}", chain.id, chain.version)
        });
        self.check_change(change);
        self.note_changes(change);
        let chain = chain.clone();
        self.hunt(&chain);
    }

    /// Checks that no target is removed that may still answer reads, and that none is promoted that
    /// never reported to be up to date with this version of the chain.
    fn check_change(&mut self, change: &Change) {
        let Some(before) = &change.before else { return };
        let serving = TargetState::Serving;
        for member in &before.chain.targets {
            let now = change.after.chain.targets.iter().find(|m| m.target == member.target);
            let serves = now.is_some_and(|m| m.state == serving);
            let Some(host) = self.hosts.get(&member.target) else { continue };
            if member.state == serving && !serves && self.may_read_by_manager(host) {
                let target = member.target;
                self.violate(|| format!("{target:?} may still serve and is taken for gone"));
                return;
            }
            let synced = member.state == TargetState::Syncing && serves;
            if synced && host.up_to_date != Some(before.chain.version) {
                let (target, at) = (member.target, host.up_to_date);
                self.violate(|| format!("{target:?} is promoted, and was up to date at {at:?}"));
                return;
            }
        }
    }

    fn note_changes(&mut self, change: &Change) {
        use TargetState::{LastServing, Syncing};
        let Some(before) = &change.before else { return };
        let chain = &change.after.chain;
        for member in chain.serving() {
            let old = before.chain.targets.iter().find(|m| m.target == member.target);
            let was = old.map(|m| m.state);
            self.stats.resyncs += u64::from(was == Some(Syncing));
            if was == Some(LastServing) && self.plan.memory {
                self.forgot.entry(chain.id).or_insert(self.now);
            }
        }
        self.stats.moves += u64::from(before.moving.is_some() && change.after.moving.is_none());
    }
}
