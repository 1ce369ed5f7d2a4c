//! `millpond-sim`: runs seeds over all cores until one fails.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use clap::Parser;
use millpond_sim::{Mutation, Outcome, Stats, run, run_slots};

/// Simulates whole clusters; every seed is one history of faults.
#[derive(Parser)]
struct Options {
    /// Replay only this seed, with the end of its trace; decimal or 0x….
    #[arg(long, value_parser = number)]
    seed: Option<u64>,
    /// Number of seeds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value = "0", value_parser = number)]
    from: u64,
    /// Threads; by default the number of cores.
    #[arg(long)]
    jobs: Option<usize>,
    /// Give every replica one deliberate bug: a name, or `all` for a table.
    #[arg(long)]
    mutation: Option<String>,
    /// Simulate moving slots instead (`docs/placement.md`).
    #[arg(long)]
    slots: bool,
    /// Continue after a failing seed.
    #[arg(long)]
    keep_going: bool,
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("'{text}' is not a seed: {error}"))
}

fn main() -> ExitCode {
    let options = Options::parse();
    // A violated assertion is an outcome here; it is printed with its seed.
    std::panic::set_hook(Box::new(|_| {}));
    if options.slots {
        return slots(&options);
    }
    match options.mutation.as_deref() {
        Some("all") => return table(&options),
        Some(name) if !Mutation::all().any(|mutation| mutation.name() == name) => {
            let names: Vec<String> = Mutation::all().map(Mutation::name).collect();
            eprintln!("no mutation '{name}'; there are: {}", names.join(", "));
            return ExitCode::from(2);
        }
        _ => {}
    }
    let mutation = options.mutation.as_deref();
    let mutation = Mutation::all().find(|known| Some(known.name().as_str()) == mutation);
    if let Some(seed) = options.seed {
        return report(&run(seed, mutation, true), options.mutation.as_deref());
    }
    let failed = sweep(&options, mutation, true);
    match failed {
        Some(outcome) => report(&run(outcome.seed, mutation, true), options.mutation.as_deref()),
        None => ExitCode::SUCCESS,
    }
}

fn slots(options: &Options) -> ExitCode {
    let seeds = options.seed.map_or(options.from..options.from + options.seeds, |s| s..s + 1);
    for seed in seeds {
        if let Some(failure) = run_slots(seed, None) {
            println!("seed {seed:#x} FAILED: {failure}");
            println!("replay: millpond-sim --slots --seed {seed:#x}");
            return ExitCode::FAILURE;
        }
    }
    println!("all seeds hold");
    ExitCode::SUCCESS
}

/// Prints the end of one seed.
fn report(outcome: &Outcome, mutation: Option<&str>) -> ExitCode {
    for line in &outcome.trace {
        println!("{line}");
    }
    println!("seed {:#x}: trace {:#018x}, {:?}", outcome.seed, outcome.trace_hash, outcome.stats);
    let Some(failure) = &outcome.failure else {
        println!("seed {:#x} holds", outcome.seed);
        return ExitCode::SUCCESS;
    };
    println!("seed {:#x} FAILED: {failure}", outcome.seed);
    let mutation = mutation.map_or(String::new(), |name| format!(" --mutation {name}"));
    println!(
        "replay: make sim SEED={:#x}    (or millpond-sim --seed {:#x}{mutation})",
        outcome.seed, outcome.seed
    );
    ExitCode::FAILURE
}

/// Runs the seeds; returns the failing one with the lowest number, if any.
fn sweep(options: &Options, mutation: Option<Mutation>, progress: bool) -> Option<Outcome> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = options.jobs.unwrap_or(cores);
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let total = Mutex::new((Stats::default(), None::<Outcome>, 0u64));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= options.seeds {
                        return;
                    }
                    let outcome = run(options.from + n, mutation, false);
                    let mut total = total.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    total.0.add(&outcome.stats);
                    total.2 += 1;
                    if progress && total.2.is_multiple_of(500) {
                        eprint!("\r{} of {} seeds", total.2, options.seeds);
                        let _flushed = std::io::stderr().flush();
                    }
                    if outcome.failure.is_some() {
                        if progress {
                            let text = outcome.failure.as_deref().unwrap_or_default();
                            eprintln!(
                                "\rseed {:#x}: {}",
                                outcome.seed,
                                text.lines().next().unwrap_or_default()
                            );
                        }
                        let first = total.1.as_ref().is_none_or(|known| known.seed > outcome.seed);
                        if first {
                            total.1 = Some(outcome);
                        }
                        stop.store(!options.keep_going, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let (stats, failed, done) =
        total.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if progress {
        println!("\r{done} seeds: {stats:?}");
    }
    failed
}

/// Prints the number of seeds that each deliberate bug takes.
fn table(options: &Options) -> ExitCode {
    let mut missed = 0;
    for mutation in Mutation::all() {
        let one_by_one =
            Options { jobs: Some(1), mutation: None, seed: None, keep_going: false, ..*options };
        if let Some(outcome) = sweep(&one_by_one, Some(mutation), false) {
            let seeds = outcome.seed - options.from + 1;
            let text = outcome.failure.unwrap_or_default();
            let text = text.lines().next().unwrap_or_default();
            println!("| {} | {seeds} | {:#x} | {text} |", mutation.name(), outcome.seed);
        } else {
            missed += 1;
            println!("| {} | not in {} | | |", mutation.name(), options.seeds);
        }
    }
    ExitCode::from(u8::from(missed > 0))
}
