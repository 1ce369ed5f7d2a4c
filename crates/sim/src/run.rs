//! One seed from beginning to verdict.

use std::panic::{AssertUnwindSafe, catch_unwind};

use millpond_cluster::manager;

use crate::check::{Action, Heard, Operation, Verdict, check};
use crate::message::Time;
use crate::world::{Phase, Stats, World};

/// Lines of the trace that are shown.
const TRACE_LINES: usize = 400;

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// In every replica.
    Replica(millpond_chain::Mutation),
    /// In every manager.
    Manager(manager::Mutation),
}

impl Mutation {
    /// All bugs.
    pub fn all() -> impl Iterator<Item = Self> {
        let replicas = millpond_chain::Mutation::ALL.into_iter().map(Self::Replica);
        replicas.chain(manager::Mutation::ALL.into_iter().map(Self::Manager))
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Replica(mutation) => format!("{mutation:?}"),
            Self::Manager(mutation) => format!("{mutation:?}"),
        }
    }
}

/// Result of one seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// Changes with every event, and only with events.
    pub trace_hash: u64,
    /// The first violation, if any.
    pub failure: Option<String>,
    /// Counts.
    pub stats: Stats,
    /// The last trace lines before the violation, when requested.
    pub trace: Vec<String>,
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, mutation: Option<Mutation>, verbose: bool) -> Outcome {
    let mut world = World::new(seed, mutation, verbose);
    let panicked = catch_unwind(AssertUnwindSafe(|| world.run())).err();
    if let Some(panic) = panicked {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        world.failure = Some(format!("panic: {}", text.unwrap_or_default()));
    }
    let mut seen_at = world.now;
    if world.failure.is_none() {
        seen_at = judge(&mut world).unwrap_or(seen_at);
    }
    debug_assert!(world.failure.is_some() || world.phase == Phase::Over, "a run ends");
    Outcome {
        seed,
        trace_hash: world.trace.hash,
        failure: world.failure,
        stats: world.stats,
        trace: tail(world.trace.lines.unwrap_or_default(), seen_at),
    }
}

/// The lines before `end`.
fn tail(lines: Vec<(Time, String)>, end: Time) -> Vec<String> {
    let until = lines.partition_point(|(time, _)| *time <= end);
    let shown = lines.into_iter().take(until).skip(until.saturating_sub(TRACE_LINES));
    shown.map(|(time, text)| format!("{:>6}.{:03} ms  {text}", time / 1000, time % 1000)).collect()
}

/// Checks every history. Returns the time of the first violation.
fn judge(world: &mut World) -> Option<Time> {
    for ((chain, chunk), history) in &world.history {
        let history = promised(history, world.forgot.get(chain).copied());
        match check(&history) {
            Verdict::Linearizable => {}
            Verdict::TooHard => world.stats.too_hard += 1,
            Verdict::Violation => {
                let (end, text) = describe(&history);
                world.failure = Some(format!("{chain:?} {chunk:?} is not linearizable\n{text}"));
                return Some(end);
            }
        }
    }
    if let Some((end, text)) = world.judge_files() {
        world.failure = Some(text);
        return Some(end);
    }
    None
}

/// The part of a history that is guaranteed: a chain that acknowledges from memory and lost all of
/// it guarantees nothing from then on.
fn promised(history: &[Operation], forgot: Option<u64>) -> Vec<Operation> {
    let Some(forgot) = forgot else { return history.to_vec() };
    let before = history.iter().filter(|operation| operation.call < forgot).cloned();
    let cut = before.map(|operation| match operation.ret {
        Some(ret) if ret < forgot => operation,
        _ => Operation { ret: None, heard: Heard::Unknown, ..operation },
    });
    cut.collect()
}

/// The history up to the first unexplained operation, and the time of its return.
#[must_use]
pub fn describe(history: &[Operation]) -> (Time, String) {
    let mut returns: Vec<u64> = history.iter().filter_map(|operation| operation.ret).collect();
    returns.sort_unstable();
    let until = |end: u64| promised(history, Some(end + 1));
    let bad = returns.partition_point(|end| check(&until(*end)) != Verdict::Violation);
    let end = returns.get(bad).copied().unwrap_or(u64::MAX - 1);
    let mut shown: Vec<&Operation> = history.iter().filter(|o| o.call <= end).collect();
    shown.sort_by_key(|operation| operation.call);
    let silent =
        |o: &&&Operation| !matches!((&o.action, &o.heard), (Action::Read(..), Heard::Unknown));
    let lines: Vec<String> = shown.iter().filter(silent).map(|o| line(o)).collect();
    (end, lines[lines.len().saturating_sub(40)..].join("\n"))
}

fn line(operation: &Operation) -> String {
    let Operation { client, call, ret, action, heard } = operation;
    let ret = ret.map_or("?".to_owned(), |ret| ret.to_string());
    format!("  client {client} [{call}, {ret}] {action:?} -> {heard:?}")
}
