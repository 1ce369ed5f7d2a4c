//! Whole clusters on one thread from one seed.
//!
//! The production state machines (replicas of `millpond-chain`, the manager of `millpond-cluster`)
//! run over models of disk, network, clock, process and transactional store. One `u64` decides
//! everything that happens, so a seed replays exactly. Reading order: `rng`, `bytes`, `message`, `clock`,
//! `network`, `disk`, `store` (models), `node` (the shell round replicas), `member` (what keeps a node in
//! its cluster), `manager` (the shell round a manager), `operator`, `client`, `files` (seals and copies), `lost` (chunks without a good copy), `nemesis` (what goes
//! wrong), `world` (the loop and the end of a run), `check` (linearizability), `run` (one seed).
//!
//! Oracles: histories are linearizable per chunk; therefore no acknowledged durable write is lost;
//! a chunk is refused only when nobody has a good copy; what is sealed stays as it is, and copies begin as their base; replicas agree byte by byte after quiescence; all chains are whole and answer after the faults
//! end; no state machine raises `Diverged` or `Impossible`, or panics. Of managers: every decision is
//! made under the lease, one after the other, and routing versions only grow; nothing is told that
//! is not committed; who may still serve is not taken for gone; no chain forgets who has its data,
//! and nobody is trusted with data that it never said to have.
//!
//! Absent on purpose: threads, real time, and any chance that is not drawn from the seed.

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
