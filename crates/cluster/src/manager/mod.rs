//! The manager: one primary that owns membership and routing, standbys ready (DESIGN section 5).
//!
//! A pure state machine. The transactional store is reached through effects and events, so the
//! node's shell and the simulator drive the same code. Reading order: `event` (the vocabulary),
//! `standby` (watching the lease, taking over), `primary` (liveness of nodes), `nodes`
//! (registration, heartbeats, probes), `commit` (from events to transactions), `push` (routing to
//! others), `quotas` (shares of a namespace's quota).
//!
//! Invariants:
//!
//! 1. *Nothing is in effect before the store has it.* Decisions are made on the committed state,
//!    one transaction at a time, and pushed or answered once they are committed.
//! 2. *An old primary cannot act.* Every transaction checks the term it was made under and the
//!    transaction before it, so a late or repeated one changes nothing.
//! 3. *A node that may serve is never considered gone.* Its targets are OFFLINE only when its
//!    lease, and those granted by its former primary, have run out with a margin for skew, or when
//!    its process is known to be gone, or when it reported so itself.
//! 4. *A node that was considered gone gets no lease until it has the routing that shows it.*

mod availability;
mod commit;
mod event;
mod lease;
mod mutation;
mod nodes;
mod operator;
mod options;
mod pace;
mod primary;
mod push;
mod quotas;
mod report;
mod settings;
mod standby;
mod state;
mod status;

pub use event::{
    AdminAnswer, AdminCommand, Effect, Effects, Entry, Event, ProbeOutcome, Role, Session,
    StoreReply, StoreRequest,
};
#[cfg(feature = "mutations")]
pub use mutation::Mutation;
pub use options::{Form, ManagerOptions};
pub use settings::{SETTINGS, Setting, setting};
pub use status::{
    ChainPage, ChainStatus, DiskStatus, NodeStatus, Problem, SlotStatus, SlotTotals, Status,
    TargetCounts, TargetStatus,
};

use millpond_types::cluster::{HeartbeatAnswer, RegisterAnswer, Routing};
use millpond_types::units::{Tick, UnixSeconds};

use primary::Primary;
use standby::{Standby, TakeOver};

/// One manager process: standby, or primary of its cluster.
#[derive(Debug)]
pub struct Manager {
    options: ManagerOptions,
    unix: UnixSeconds,
    last_request: u64,
    /// Addresses of the primary, as far as this manager knows.
    primary_at: Vec<String>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Standby(Standby),
    TakingOver(Box<TakeOver>),
    Primary(Box<Primary>),
    /// It gave the lease back and answers nothing any more.
    Resigned,
}

/// Context of the manager's parts while they handle an event.
struct Cx<'a> {
    now: Tick,
    unix: UnixSeconds,
    options: &'a ManagerOptions,
    last_request: &'a mut u64,
    effects: &'a mut Effects,
}

impl Cx<'_> {
    /// Asks the store; the answer will carry this number.
    fn ask(&mut self, request: StoreRequest) -> u64 {
        *self.last_request += 1;
        let id = *self.last_request;
        self.effects.push(Effect::Store { id, request });
        id
    }
}

/// Next phase of the manager.
#[derive(Debug)]
enum Next {
    /// The same phase.
    Stay,
    /// The lease is lost.
    Down,
    /// The lease was won.
    Load(Box<TakeOver>),
    /// The records are read.
    Lead(Box<Primary>),
}

impl Manager {
    /// A standby that checks the lease at its first event.
    #[must_use]
    pub fn new(options: ManagerOptions) -> Self {
        Self {
            options,
            unix: UnixSeconds(0),
            last_request: 0,
            primary_at: Vec::new(),
            phase: Phase::Standby(Standby::default()),
        }
    }

    /// Role of this manager.
    #[must_use]
    pub fn role(&self) -> Role {
        match &self.phase {
            Phase::Standby(_) | Phase::Resigned => Role::Standby,
            Phase::TakingOver(_) => Role::TakingOver,
            Phase::Primary(_) => Role::Primary,
        }
    }

    /// The committed routing, while this manager is primary.
    #[must_use]
    pub fn routing(&self) -> Option<&Routing> {
        match &self.phase {
            Phase::Primary(primary) => Some(primary.routing()),
            _ => None,
        }
    }

    /// Time of the next [`Event::Timer`]. An earlier one does no harm; a later one delays
    /// everything.
    #[must_use]
    pub fn next_wake(&self) -> Tick {
        match &self.phase {
            Phase::Standby(standby) => standby.next_wake(),
            Phase::TakingOver(take_over) => take_over.next_wake(),
            Phase::Primary(primary) => primary.next_wake(&self.options),
            Phase::Resigned => Tick::MAX,
        }
    }

    /// Handles one event at `now` by this machine's monotonic clock. Appends effects, to be
    /// executed in order.
    pub fn step(&mut self, now: Tick, event: Event, effects: &mut Effects) {
        if let Event::Timer { unix } = event {
            self.unix = unix;
        }
        let mut cx = Cx {
            now,
            unix: self.unix,
            options: &self.options,
            last_request: &mut self.last_request,
            effects,
        };
        if matches!(event, Event::Resign) {
            self.resign(now, effects);
            return;
        }
        let next = match &mut self.phase {
            Phase::Standby(standby) => {
                let next = standby.step(&mut cx, &event, &mut self.primary_at);
                turn_away(&event, &self.primary_at, cx.effects);
                next
            }
            Phase::TakingOver(take_over) => {
                let next = take_over.step(&mut cx, &event);
                turn_away(&event, &[], cx.effects);
                next
            }
            Phase::Primary(primary) => primary.step(&mut cx, event),
            Phase::Resigned => {
                turn_away(&event, &self.primary_at, cx.effects);
                Next::Stay
            }
        };
        self.go(now, next, effects);
    }

    fn go(&mut self, now: Tick, next: Next, effects: &mut Effects) {
        match next {
            Next::Stay => return,
            Next::Down => {
                self.primary_at.clear();
                self.phase = Phase::Standby(Standby::default());
            }
            Next::Load(take_over) => {
                self.primary_at.clone_from(&self.options.addresses);
                self.phase = Phase::TakingOver(take_over);
            }
            Next::Lead(primary) => self.phase = Phase::Primary(primary),
        }
        effects.push(Effect::Became(self.role()));
        // The new phase starts its own clock at once.
        let unix = self.unix;
        self.step(now, Event::Timer { unix }, effects);
    }

    /// Gives the lease back, so that a standby need not wait for its end.
    fn resign(&mut self, now: Tick, effects: &mut Effects) {
        let lease = match &self.phase {
            Phase::TakingOver(take_over) => Some(take_over.lease()),
            Phase::Primary(primary) => Some(primary.lease()),
            Phase::Standby(_) | Phase::Resigned => None,
        };
        if let Some(lease) = lease {
            let mut cx = Cx {
                now,
                unix: self.unix,
                options: &self.options,
                last_request: &mut self.last_request,
                effects,
            };
            lease.release(&mut cx);
        }
        self.primary_at.clear();
        self.phase = Phase::Resigned;
        effects.push(Effect::Became(Role::Standby));
    }
}

/// Answers for a manager that is not primary.
fn turn_away(event: &Event, primary_at: &[String], effects: &mut Effects) {
    let primary_at = primary_at.to_vec();
    match event {
        Event::Register { from, .. } => {
            let answer = RegisterAnswer::NotPrimary(primary_at);
            effects.push(Effect::Registered { to: *from, answer });
        }
        Event::Heartbeat { from, .. } => {
            let answer = HeartbeatAnswer::NotPrimary(primary_at);
            effects.push(Effect::Beat { to: *from, answer });
        }
        Event::Admin { from, .. } => {
            let answer = AdminAnswer::NotPrimary(primary_at);
            effects.push(Effect::AdminDone { to: *from, answer });
        }
        _ => {}
    }
}
