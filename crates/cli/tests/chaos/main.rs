//! Faults on real processes: clusters under `millpond dev` with clients at work are killed, stopped,
//! restarted, cut off, filled up and lied to, and must show nothing wrong and lose nothing.
//!
//! Reading order: `value` (bytes that say who wrote them), `history` (what was done, and the verdict),
//! `load` (the clients), `cluster` (the processes), `fault` and `disk` (what goes wrong), `replicas` (what
//! each replica says at the end), `run` (one run).
//!
//! Verdict: every history is linearizable per key, therefore no acknowledged write is lost; no call
//! fails; replicas agree once it is quiet, and again after all processes were killed at once.
//! `docs/dev.md` says how to run it for long.

#![allow(clippy::disallowed_methods, reason = "tests start processes, threads and clocks")]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

mod cluster;
mod disk;
mod fault;
#[path = "../server/harness.rs"]
#[allow(dead_code, reason = "shared with the other tests of real servers")]
mod harness;
mod history;
mod load;
mod replicas;
mod run;
mod value;
#[path = "../server/wire.rs"]
#[allow(dead_code, reason = "shared with the other tests of real servers")]
mod wire;

#[test]
fn faults_lose_nothing_and_show_nothing_wrong() {
    for options in run::Options::from_environment() {
        run::run(&options);
    }
}
