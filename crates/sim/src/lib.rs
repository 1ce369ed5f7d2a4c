//! Whole clusters on one thread from one seed.
//!
//! The production state machines (`millpond-chain`, the table of `millpond-cluster`) run over models
//! of disk, network, clock, process and manager. One `u64` decides everything that happens, so a
//! seed replays exactly. Reading order: `rng`, `bytes`, `message`, `clock`, `network`, `disk`
//! (models), `node` (the shell round a replica), `manager`, `client`, `nemesis` (what goes
//! wrong), `world` (the loop and the end of a run), `check` (linearizability), `run` (one seed).
//!
//! Oracles: histories are linearizable per chunk; therefore no acknowledged durable write is lost;
//! replicas agree byte by byte after quiescence; all chains serve and answer after the faults end;
//! no state machine raises `Diverged` or `Impossible`, or panics.
//!
//! Absent on purpose: threads, real time, and any chance that is not drawn from the seed.

mod bytes;
mod check;
mod client;
mod clock;
mod disk;
mod manager;
mod message;
mod nemesis;
mod network;
mod node;
mod rng;
mod run;
mod slots;
mod world;

pub use check::{Action, Heard, Operation, Verdict, check};
pub use millpond_chain::Mutation;
pub use run::{Outcome, describe, run};
pub use slots::{SlotFlaw, run_slots};
pub use world::Stats;
