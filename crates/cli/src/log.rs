//! Log lines on standard error.

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;

use millpond_node::config::{LogConfig, LogFormat};

/// Libraries that say less than `log.level` lets them, unless it names them. `s3s` writes every
/// refusal of an object that is not there as an error, and the gateway has a line for each request.
/// The embedded store tells of each of its files.
const QUIET: [(&str, &str); 3] = [("s3s", "off"), ("fjall", "warn"), ("lsm_tree", "warn")];

/// Starts logging; a second start in one process keeps the first.
pub(super) fn start(config: &LogConfig) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&config.level).with_context(|| {
        format!(
            "log.level: '{}' is not a level: use error, warn, info, debug or trace",
            config.level
        )
    })?;
    let filter = QUIET.iter().fold(filter, |filter, (module, level)| {
        match format!("{module}={level}").parse() {
            Ok(quiet) if !config.level.contains(module) => filter.add_directive(quiet),
            _ => filter,
        }
    });
    // A log that takes no more lines, because its disk is full, must not end who writes them.
    let lines =
        fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    let _ = match config.format {
        LogFormat::Text => lines.with_ansi(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    Ok(())
}
