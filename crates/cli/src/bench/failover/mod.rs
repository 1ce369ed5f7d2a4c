//! `millpond bench failover`: how long writes and reads of a whole cluster stand still when one of its
//! processes dies, stops, freezes or is cut off.
//!
//! A call of this load is a batch with one key on every chain, so it ends when every chain has
//! answered. The time until the cluster works again is the end of the first call that began after
//! the fault: some callers then wait for a chain whose head is gone.

mod chart;
mod load;
mod processes;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use millpond_types::ByteSize;
use serde_json::json;

use self::load::{Call, Load};
use self::processes::Processes;

/// How long the cluster works before each fault.
const CALM: Duration = Duration::from_millis(1500);
/// How long a process is away after the cluster works again: long enough for what comes late.
const AWAY: Duration = Duration::from_millis(1500);
/// How long a process stands still or is cut off.
const FROZEN: Duration = Duration::from_secs(5);

/// What happens to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kind {
    /// A node is killed (SIGKILL); its host still answers
    Kill,
    /// A node is stopped cleanly (SIGTERM)
    Stop,
    /// A node is frozen for 5 s (SIGSTOP): its host answers, the node does not
    Freeze,
    /// A node is cut off for 5 s; needs a cluster with --netns
    Cut,
    /// The primary manager is killed; needs several managers
    Manager,
}

/// Options of `millpond bench failover`; `--help` explains them.
#[derive(Debug, Args)]
pub(crate) struct FailoverArgs {
    /// Folder of a cluster that `millpond dev` runs
    #[arg(long, default_value = ".millpond-dev", env = "MILLPOND_DEV")]
    dir: PathBuf,
    /// Fault to inject
    #[arg(long, value_enum, default_value = "kill")]
    kind: Kind,
    /// Number of faults, on one node after the other
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Size of the values
    #[arg(long, default_value = "4KiB")]
    size: ByteSize,
    /// Print the result as JSON; with FILE, write the JSON there and print text
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Write a chart of throughput over time to this file
    #[arg(long, value_name = "FILE.svg")]
    chart: Option<PathBuf>,
}

/// One fault and what came of it.
#[derive(Clone, Debug)]
struct Round {
    /// Who was hit, and when in the run.
    name: String,
    at: Duration,
    /// Until writes, and until reads, were answered by every chain.
    writes: Duration,
    reads: Duration,
    /// Until another manager was primary.
    primary: Option<Duration>,
}

/// Runs it and prints the result.
pub(super) fn run(args: &FailoverArgs) -> Result<()> {
    ensure!((1..=64 << 20).contains(&args.size.0), "--size: use 1 B to 64 MiB");
    let mut processes = Processes::open(&args.dir)?;
    processes.wait_whole()?;
    let load = Load::start(&processes.addresses(), usize::try_from(args.size.0)?)?;
    let chains = load.chains;
    eprintln!("{chains} chains, 2 writers and 2 readers of one value on each");
    let mut rounds = Vec::new();
    let mut failed = Ok(());
    for number in 0..args.rounds {
        match round(args.kind, &mut processes, (&load, number)) {
            Ok(round) => rounds.push(round),
            Err(error) => {
                failed = Err(error);
                break;
            }
        }
    }
    let calls = load.stop();
    failed?;
    for round in &mut rounds {
        round.writes = until_all_answered(&calls, round.at, true);
        round.reads = until_all_answered(&calls, round.at, false);
    }
    tell(args, (chains, &rounds, &calls))
}

/// Makes one fault, and undoes it.
fn round(kind: Kind, processes: &mut Processes, (load, number): (&Load, u32)) -> Result<Round> {
    std::thread::sleep(CALM);
    let name = match kind {
        Kind::Manager => processes.primary()?,
        _ => processes.node(number as usize),
    };
    let at = load.elapsed();
    let hit = Instant::now();
    let mut primary = None;
    match kind {
        Kind::Kill => processes.kill(&name)?,
        Kind::Stop => processes.stop(&name)?,
        Kind::Freeze => processes.freeze(&name, true)?,
        Kind::Cut => processes.dev(&["partition", &name])?,
        Kind::Manager => {
            processes.kill(&name)?;
            while processes.primary().map_or(true, |now| now == name) {
                if hit.elapsed() > Duration::from_mins(1) {
                    bail!("no other manager became primary within a minute: are there several?");
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            primary = Some(hit.elapsed());
        }
    }
    load.wait_answered(at)?;
    match kind {
        Kind::Kill | Kind::Stop | Kind::Manager => {
            std::thread::sleep(AWAY);
            processes.dev(&["start", &name])?;
        }
        Kind::Freeze | Kind::Cut => {
            std::thread::sleep(FROZEN.saturating_sub(hit.elapsed()));
            match kind {
                Kind::Freeze => processes.freeze(&name, false)?,
                _ => processes.dev(&["heal"])?,
            }
        }
    }
    processes.wait_whole()?;
    eprintln!("  {:>3}  {name} at {:.1} s", number + 1, at.as_secs_f64());
    Ok(Round { name, at, writes: Duration::ZERO, reads: Duration::ZERO, primary })
}

/// When the first call of every caller that began after `at` had all its answers.
fn until_all_answered(calls: &[Call], at: Duration, writes: bool) -> Duration {
    let mut worst = Duration::ZERO;
    let callers: std::collections::BTreeSet<usize> =
        calls.iter().filter(|call| call.writes == writes).map(|call| call.caller).collect();
    for caller in callers {
        let mut own = calls.iter().filter(|call| call.caller == caller && call.start >= at);
        if let Some(done) = own.find(|call| call.is_complete) {
            worst = worst.max(done.end.saturating_sub(at));
        }
    }
    worst
}

fn middle_and_last(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let at = |index: usize| times.get(index).map_or(0.0, Duration::as_secs_f64);
    (at(times.len() / 2), at(times.len().saturating_sub(1)))
}

fn tell(args: &FailoverArgs, (chains, rounds, calls): (usize, &[Round], &[Call])) -> Result<()> {
    let kind = args.kind.to_possible_value().map_or_else(String::new, |it| it.get_name().into());
    let failed = calls.iter().filter(|call| !call.is_complete).count();
    let title = format!("{kind}: {} times, {chains} chains, values of {}", rounds.len(), args.size);
    let mut text = format!("{title}\n\n  {:<24}{:>9}{:>9}\n", "", "p50", "p100");
    let mut lines = vec![
        ("writes of every chain", rounds.iter().map(|round| round.writes).collect::<Vec<_>>()),
        ("reads of every chain", rounds.iter().map(|round| round.reads).collect()),
    ];
    if args.kind == Kind::Manager {
        let times = rounds.iter().filter_map(|round| round.primary).collect();
        lines.push(("another primary", times));
    }
    let mut figures = serde_json::Map::new();
    for (what, times) in lines {
        let (p50, p100) = middle_and_last(times);
        let _ = writeln!(text, "  {what:<24}{p50:>8.3}s{p100:>8.3}s");
        figures.insert(what.replace(' ', "_"), json!({ "p50_s": p50, "p100_s": p100 }));
    }
    let _ = writeln!(text, "\n  {} calls, {failed} without all their answers", calls.len());
    if let Some(path) = &args.chart {
        let marks: Vec<f64> = rounds.iter().map(|round| round.at.as_secs_f64()).collect();
        std::fs::write(path, chart::svg(&title, calls, (chains, &marks)))
            .with_context(|| format!("write {}", path.display()))?;
    }
    let each: Vec<_> = rounds
        .iter()
        .map(|round| {
            json!({
                "name": round.name, "at_s": round.at.as_secs_f64(),
                "writes_s": round.writes.as_secs_f64(), "reads_s": round.reads.as_secs_f64(),
                "primary_s": round.primary.map(|time| time.as_secs_f64()),
            })
        })
        .collect();
    let all = json!({
        "kind": kind, "chains": chains, "calls": calls.len(), "calls_failed": failed,
        "figures": figures, "rounds": each,
    });
    super::report::give(args.json.as_deref(), &text, &all)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Call, middle_and_last, until_all_answered};

    #[test]
    fn the_slowest_caller_of_the_first_call_afterwards_counts() {
        let ms = Duration::from_millis;
        let call = |caller: usize, start, end, is_complete| Call {
            caller,
            writes: caller < 2,
            start: ms(start),
            end: ms(end),
            is_complete,
        };
        let calls = [
            call(0, 90, 900, true),
            call(0, 901, 910, true),
            call(1, 110, 150, false),
            call(1, 150, 400, true),
            call(2, 105, 120, true),
        ];
        assert_eq!(until_all_answered(&calls, ms(100), true), ms(810));
        assert_eq!(until_all_answered(&calls, ms(100), false), ms(20));
        assert_eq!(middle_and_last(vec![ms(3000), ms(1000), ms(2000)]), (2.0, 3.0));
    }
}
