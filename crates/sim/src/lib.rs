//! Whole clusters on one thread from one seed.
//!
//! The production state machines (replicas of `millpond-chain`, the manager of `millpond-cluster`)
//! run over models of disk, network, clock, process and transactional store. One `u64` decides
//! everything that happens, so a seed replays exactly. Reading order: `rng`, `bytes`, `message`,
//! `clock`, `network`, `disk`, `store` (models), `node` (the shell around replicas), `member` (the
//! membership of a node in its cluster), `manager` (the shell around a manager), `operator`,
//! `client`, `files` (seals and copies), `lost` (chunks without a good copy), `nemesis` (faults),
//! `world` (the loop and the end of a run), `check` (linearizability), `run` (one seed).
//!
//! Oracles:
//! - Histories are linearizable per chunk; therefore no acknowledged durable write is lost.
//! - A chunk is refused only when no replica has a good copy.
//! - A sealed chunk stays unchanged, and copies begin as their base.
//! - Replicas agree byte by byte after quiescence.
//! - All chains are whole and answer after the faults end.
//! - No state machine raises `Diverged` or `Impossible`, or panics.
//! - Of managers: every decision is made under the lease, one after the other, and routing versions
//!   only grow; nothing is announced before it is committed; a node that may still serve is not
//!   considered gone; no chain forgets which target has its data, and no target is trusted with
//!   data that it never reported to have.
//!
//! Absent on purpose: threads, real time, and any randomness that is not drawn from the seed.

mod bytes;
mod check;
mod client;
mod clock;
mod disk;
mod files;
mod lost;
mod manager;
mod member;
mod message;
mod nemesis;
mod network;
mod node;
mod operator;
mod rng;
mod run;
mod slots;
mod store;
mod world;

pub use check::{Action, Heard, Operation, Verdict, check};
pub use run::{Mutation, Outcome, describe, run};
pub use slots::{SlotFlaw, run_slots};
pub use world::Stats;
