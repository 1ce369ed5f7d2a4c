//! `millpond engine`: a data folder while no server uses it.

use super::{OK, Outcome};

/// What to do with the disk.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Show what a disk is and holds.
    Inspect {
        /// Data folder or block device.
        path: String,
    },
    /// Verify every value of a disk.
    Check {
        /// Data folder or block device.
        path: String,
    },
}

/// Runs it.
pub(super) fn run(_command: &Command) -> Outcome {
    Ok(OK)
}
