//! The simulation as CI runs it: seeds hold, replay exactly, and catch deliberate bugs.

#![allow(clippy::unwrap_used, reason = "tests")]

mod mutations;
mod replay;
mod seeds;
mod slots;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_sim::{Mutation, Outcome, run};

/// Runs `seeds` on all cores; the failures, lowest seed first.
fn failures(seeds: &[u64], mutation: Option<Mutation>) -> Vec<Outcome> {
    let jobs = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let next = AtomicU64::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let n = usize::try_from(next.fetch_add(1, Ordering::Relaxed)).unwrap();
                    let Some(seed) = seeds.get(n) else { return };
                    let outcome = run(*seed, mutation, false);
                    if outcome.failure.is_some() {
                        failed.lock().unwrap().push(outcome);
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().unwrap();
    failed.sort_by_key(|outcome| outcome.seed);
    failed
}
