//! `millpond bench`.

/// What to measure.
#[derive(Debug, clap::Subcommand)]
pub enum Command {}

/// Runs a benchmark.
///
/// # Errors
/// When the server cannot be reached.
pub fn run(command: &Command) -> anyhow::Result<()> {
    match *command {}
}
