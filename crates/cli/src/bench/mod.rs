//! `millpond bench`: measures a running server, and the floor that the machine itself sets.
//!
//! Reading order: `args` (what can be asked), `workload` (keys, sizes, values), `driver` (the
//! requests), `record` (what happened), `report` and `chart` (how it is told), `echo` (the floor),
//! `failover` (faults of a local cluster).
//!
//! Invariants: a value that is read is compared with what its key says; time spent on choosing
//! keys, comparing and drawing is outside the measured latency of a request.

#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark measures with the finest clock, and its floor is a bare socket"
)]

mod args;
mod chart;
mod driver;
mod echo;
mod failover;
mod record;
mod report;
mod workload;

pub(crate) use args::Command;

/// Runs `millpond bench …`.
///
/// # Errors
/// What went wrong and what to do about it; a value with wrong bytes is an error.
pub(crate) fn run(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Kv(args) => driver::run(args),
        Command::Echo(args) => echo::run(args),
        Command::Failover(args) => failover::run(args),
    }
}
