//! `millpond kv`: keys of a running server.

use super::{OK, Outcome};

pub(super) const EXAMPLES: &str = "Examples:
  millpond kv put greeting hello
  millpond kv get greeting
  millpond kv ls";

/// Where the server is, and what to do.
#[derive(Debug, clap::Args)]
pub(super) struct Args {}

/// Runs it.
pub(super) fn run(_args: &Args) -> Outcome {
    Ok(OK)
}
