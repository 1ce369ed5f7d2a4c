//! `millpond config`.

use std::path::PathBuf;

use super::{output, server};
use crate::exit::{OK, Outcome};
use millpond_node::config::{from_file, reference, to_text};
use millpond_node::server::with_defaults;

/// What to do with the configuration.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Check a file without starting anything.
    #[command(after_help = "Example:\n  millpond config check /etc/millpond.toml")]
    Check {
        /// Configuration file (TOML).
        file: PathBuf,
    },
    /// Print the effective settings, defaults included. Takes the flags of `millpond server`.
    Show(Box<server::Args>),
    /// Print the reference of all configuration keys (Markdown).
    Reference,
}

/// Runs it.
pub(super) fn run(command: &Command) -> Outcome {
    match command {
        Command::Check { file } => {
            let config = from_file(file)?;
            config.validate()?;
            output::line(&format!("{}: fine", file.display()))?;
            Ok(OK)
        }
        Command::Show(args) => {
            let config = args.merged()?;
            config.validate()?;
            output::bytes(to_text(&with_defaults(&config)?).as_bytes())
        }
        Command::Reference => output::bytes(reference().as_bytes()),
    }
}
