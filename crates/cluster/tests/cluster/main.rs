//! The manager through its public API: nodes, managers and a store on one fake clock.

#![allow(clippy::unwrap_used, reason = "tests")]

mod chaos;
mod failover;
mod members;
mod moves;
mod reports;
mod world;
