//! `millpond simulate`: what a cluster would do, at sizes that nobody has at hand.

mod args;
mod chart;
mod placement;
mod report;

use crate::exit::Outcome;

/// What to simulate.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Place chains on a fleet; report the balance, the recovery load and the moved data.
    #[command(after_help = args::EXAMPLES)]
    Placement(args::Args),
}

/// Runs it.
pub(super) fn run(command: &Command) -> Outcome {
    match command {
        Command::Placement(args) => placement::run(args),
    }
}
