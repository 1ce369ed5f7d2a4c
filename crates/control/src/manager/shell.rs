//! The loop that drives the pure manager: events in, effects out, timers.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use millpond_cluster::manager::{
    AdminAnswer, AdminCommand, Effect, Effects, Event, Manager, Role, Session, StoreRequest,
};
use millpond_env::{RealClock, spawn, timeout};
use millpond_types::cluster::{
    Heartbeat, HeartbeatAnswer, Register, RegisterAnswer, RoutingUpdate, RoutingVersion,
};
use millpond_types::units::UnixSeconds;
use millpond_types::{Tick, Uuid128};
use tokio::sync::{mpsc, oneshot, watch};

use super::probe::probe;
use super::store::StoreThread;
use crate::link::Dialer;

/// Maximum callers that wait for an answer; most of them wait for routing.
const CALLERS_MAX: usize = 32_768;
/// Interval of the sweep that forgets callers which gave up.
const SWEEP: Duration = Duration::from_millis(250);
/// Time limit for the store to take the lease back at a clean stop.
const RESIGN_MAX: Duration = Duration::from_millis(1600);

/// Input of the loop.
pub(super) enum Input {
    /// An event for the manager, passed on unchanged.
    Event(Event),
    /// Registration of a node.
    Register(Box<Register>, oneshot::Sender<RegisterAnswer>),
    /// Heartbeat of a node.
    Heartbeat(Box<Heartbeat>, oneshot::Sender<HeartbeatAnswer>),
    /// Command of an operator.
    Admin(AdminCommand, oneshot::Sender<AdminAnswer>),
    /// Request for newer routing; `None` from a manager that is not primary.
    Routing(Uuid128, RoutingVersion, oneshot::Sender<Option<RoutingUpdate>>),
    /// Stop of the process; answered once the lease is returned.
    Stop(oneshot::Sender<()>),
}

/// A waiting caller, by the type of its answer.
enum Caller {
    Register(oneshot::Sender<RegisterAnswer>),
    Heartbeat(oneshot::Sender<HeartbeatAnswer>),
    Admin(oneshot::Sender<AdminAnswer>),
    Routing(oneshot::Sender<Option<RoutingUpdate>>),
}

impl Caller {
    fn gave_up(&self) -> bool {
        match self {
            Self::Register(sender) => sender.is_closed(),
            Self::Heartbeat(sender) => sender.is_closed(),
            Self::Admin(sender) => sender.is_closed(),
            Self::Routing(sender) => sender.is_closed(),
        }
    }

    /// Answers that this manager is not primary any more.
    fn turn_away(self) {
        match self {
            Self::Register(sender) => drop(sender.send(RegisterAnswer::NotPrimary(Vec::new()))),
            Self::Heartbeat(sender) => drop(sender.send(HeartbeatAnswer::NotPrimary(Vec::new()))),
            Self::Admin(sender) => drop(sender.send(AdminAnswer::NotPrimary(Vec::new()))),
            Self::Routing(sender) => drop(sender.send(None)),
        }
    }
}

/// The manager and the callers that wait for its answers.
pub(super) struct Shell {
    manager: Manager,
    inbox: mpsc::Receiver<Input>,
    /// For answers to the manager, from the store and from probes.
    sender: mpsc::Sender<Input>,
    store: StoreThread,
    dialer: Rc<Dialer>,
    role: watch::Sender<Role>,
    callers: HashMap<Session, Caller>,
    last_session: u64,
    /// Requests that the store has not answered yet.
    asked: usize,
    sweep_at: Tick,
    stopping: Option<(oneshot::Sender<()>, Tick)>,
}

impl Shell {
    pub(super) fn new(
        manager: Manager,
        (sender, inbox): (mpsc::Sender<Input>, mpsc::Receiver<Input>),
        store: StoreThread,
        dialer: Rc<Dialer>,
        role: watch::Sender<Role>,
    ) -> Self {
        Self {
            manager,
            inbox,
            sender,
            store,
            dialer,
            role,
            callers: HashMap::new(),
            last_session: 0,
            asked: 0,
            sweep_at: RealClock::tick().plus(SWEEP),
            stopping: None,
        }
    }

    /// Drives the manager until it is stopped.
    pub(super) async fn run(mut self) {
        loop {
            let now = RealClock::tick();
            if let Some((_, until)) = self.stopping
                && (self.asked == 0 || now >= until)
            {
                break;
            }
            if now >= self.sweep_at {
                self.sweep(now);
            }
            if now >= self.manager.next_wake() {
                self.step(Event::Timer { unix: unix_now() });
            }
            let mut wake = self.manager.next_wake().min(self.sweep_at);
            if let Some((_, until)) = self.stopping {
                wake = wake.min(until);
            }
            let left = wake.since(RealClock::tick());
            // Never a wait of zero length; the manager's timer may be that much late.
            let left = left.max(Duration::from_millis(1));
            match timeout(left, self.inbox.recv()).await {
                Ok(Some(input)) => self.take(input),
                Ok(None) => break,
                Err(_) => {}
            }
        }
        for (_, caller) in self.callers.drain() {
            caller.turn_away();
        }
        if let Some((done, _)) = self.stopping {
            let _ = done.send(());
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Event(event) => {
                if matches!(event, Event::Store { .. }) {
                    self.asked = self.asked.saturating_sub(1);
                }
                self.step(event);
            }
            Input::Register(register, answer) => {
                if let Some(from) = self.seat(Caller::Register(answer)) {
                    self.step(Event::Register { from, register: *register });
                }
            }
            Input::Heartbeat(heartbeat, answer) => {
                if let Some(from) = self.seat(Caller::Heartbeat(answer)) {
                    self.step(Event::Heartbeat { from, heartbeat: *heartbeat });
                }
            }
            Input::Admin(command, answer) => {
                if let Some(from) = self.seat(Caller::Admin(answer)) {
                    self.step(Event::Admin { from, command });
                }
            }
            Input::Routing(cluster, have, answer) => {
                if self.manager.role() != Role::Primary {
                    let _ = answer.send(None);
                } else if let Some(from) = self.seat(Caller::Routing(answer)) {
                    self.step(Event::Subscribe { from, cluster, have });
                }
            }
            Input::Stop(done) => {
                self.stopping = Some((done, RealClock::tick().plus(RESIGN_MAX)));
                self.step(Event::Resign);
            }
        }
    }

    /// Numbers a caller. If there are too many, drops it unanswered, which it sees as busy.
    fn seat(&mut self, caller: Caller) -> Option<Session> {
        if self.callers.len() >= CALLERS_MAX {
            return None;
        }
        self.last_session += 1;
        let session = Session(self.last_session);
        self.callers.insert(session, caller);
        Some(session)
    }

    fn sweep(&mut self, now: Tick) {
        self.sweep_at = now.plus(SWEEP);
        let gone: Vec<Session> = self
            .callers
            .iter()
            .filter(|(_, caller)| caller.gave_up())
            .map(|(session, _)| *session)
            .collect();
        for from in gone {
            self.callers.remove(&from);
            self.step(Event::Closed { from });
        }
    }

    fn step(&mut self, event: Event) {
        let mut effects = Effects::new();
        self.manager.step(RealClock::tick(), event, &mut effects);
        for effect in effects {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Store { id, request } => self.ask_store(id, request),
            Effect::Registered { to, answer } => {
                if let Some(Caller::Register(sender)) = self.callers.remove(&to) {
                    let _ = sender.send(answer);
                }
            }
            Effect::Beat { to, answer } => {
                if let Some(Caller::Heartbeat(sender)) = self.callers.remove(&to) {
                    let _ = sender.send(answer);
                }
            }
            Effect::AdminDone { to, answer } => {
                if let Some(Caller::Admin(sender)) = self.callers.remove(&to) {
                    let _ = sender.send(answer);
                }
            }
            Effect::Push { to, update } => {
                if let Some(Caller::Routing(sender)) = self.callers.remove(&to) {
                    let _ = sender.send(Some(update));
                }
                // One update per request: the caller asks again with its new version.
                self.step(Event::Closed { from: to });
            }
            Effect::Probe { node, incarnation, addresses } => {
                let (dialer, sender) = (Rc::clone(&self.dialer), self.sender.clone());
                let work = async move {
                    let outcome = probe(&dialer, addresses, incarnation).await;
                    tracing::debug!(%node, ?outcome, "probed");
                    let event = Event::Probed { node, incarnation, outcome };
                    let _ = sender.send(Input::Event(event)).await;
                };
                spawn(work).detach();
            }
            Effect::Became(role) => self.became(role),
            // One line per chain would bury the line about the lost node.
            Effect::Happened(event) if event.chain.is_some() => tracing::debug!("{}", event.text),
            Effect::Happened(event) => tracing::info!("{}", event.text),
        }
    }

    fn ask_store(&mut self, id: u64, request: StoreRequest) {
        self.asked += 1;
        let sender = self.sender.clone();
        self.store.carry_out(request, move |reply| {
            Box::pin(async move {
                let _ = sender.send(Input::Event(Event::Store { id, reply })).await;
            })
        });
    }

    fn became(&mut self, role: Role) {
        let before = self.role.send_replace(role);
        match role {
            Role::Standby if before != Role::Standby => {
                if self.stopping.is_some() {
                    tracing::info!("manager: no longer primary, because this process stops");
                } else {
                    tracing::warn!("manager: no longer primary, now standby");
                }
                for (_, caller) in self.callers.drain() {
                    caller.turn_away();
                }
            }
            Role::Standby => {}
            Role::TakingOver => tracing::info!("manager: taking over as primary"),
            Role::Primary => tracing::info!("manager: primary"),
        }
    }
}

fn unix_now() -> UnixSeconds {
    UnixSeconds(u32::try_from(RealClock::wall_ms() / 1000).unwrap_or(u32::MAX))
}
