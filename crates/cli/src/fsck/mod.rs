//! `millpond fsck`: whether the files of a cluster are what they should be, and repairs.
//!
//! The checks run in this process. Metas only hand out records, a page at a time, and do one repair at a
//! time, so that any of them may die meanwhile; nodes list their chunks.

mod chunks;
mod names;

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use millpond_client::Addresses;
use millpond_types::ByteSize;
use serde_json::json;

use super::metas::Metas;
use super::output;
use crate::exit::Outcome;

pub(super) const EXAMPLES: &str = "Exit codes, as in fsck(8):
  0  no errors
  1  errors were found and repaired
  4  errors are left
  8  the check could not be finished

The cluster may be in use. A repair checks again before each change. Files that cannot stay in their
place move to /lost+found.

Examples:
  millpond fsck 127.0.0.1:7440
  millpond fsck 127.0.0.1:7440 --repair
  millpond fsck 10.0.0.1:7440 --read-data --json";

const CLEAN: i32 = 0;
const REPAIRED: i32 = 1;
const LEFT: i32 = 4;
const BROKEN_OFF: i32 = 8;

/// Something that looks wrong must stay so for this long: longer than a mount takes to tell what it wrote.
const SETTLE_S: u64 = 3;
/// As much before anything is cut off: longer than a mount that no meta reaches keeps what it wrote to itself.
const SETTLE_REPAIR_S: u64 = 65;

/// What is checked, and how.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Addresses of some nodes of the cluster: HOST:PORT, comma-separated.
    cluster: Addresses,
    /// Repair every error that can be repaired without losing readable data.
    #[arg(long)]
    repair: bool,
    /// Read all bytes of all files, from one replica of each chunk.
    #[arg(long)]
    read_data: bool,
    /// Check names only, not chunks.
    #[arg(long, conflicts_with = "read_data")]
    names_only: bool,
    /// Seconds after which a suspicious chunk is checked again, before it counts as an error.
    /// [default: 3, with --repair 65]
    #[arg(long, value_name = "SECONDS")]
    settle: Option<u64>,
    /// Credential, if the cluster requires one.
    #[arg(long, env = "MILLPOND_TOKEN", hide_env_values = true, default_value = "")]
    token: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    fn settle(&self) -> Duration {
        let default = if self.repair { SETTLE_REPAIR_S } else { SETTLE_S };
        Duration::from_secs(self.settle.unwrap_or(default))
    }
}

/// What a check found and did.
#[derive(Debug, Default)]
struct Report {
    inodes: u64,
    names: u64,
    bytes: u64,
    chunks: u64,
    bytes_read: u64,
    /// All that was found wrong, in words.
    findings: Vec<String>,
    /// Of those, not listed.
    more: u64,
    /// What changed before it could be judged.
    unjudged: u64,
    repaired: u64,
    /// What is wrong still.
    left: u64,
    /// What was not done, and why.
    notes: Vec<String>,
}

impl Report {
    const fn code(&self) -> i32 {
        match (self.left, self.repaired) {
            (0, 0) => CLEAN,
            (0, _) => REPAIRED,
            _ => LEFT,
        }
    }

    fn json(&self) -> anyhow::Result<String> {
        let document = json!({
            "inodes": self.inodes, "names": self.names, "bytes": self.bytes,
            "chunks": self.chunks, "bytes_read": self.bytes_read,
            "findings": self.findings, "more": self.more, "unjudged": self.unjudged,
            "repaired": self.repaired, "left": self.left, "notes": self.notes,
        });
        Ok(format!("{}\n", serde_json::to_string_pretty(&document)?))
    }

    fn text(&self) -> String {
        let mut lines = self.findings.clone();
        if self.more > 0 {
            lines.push(format!("and {} more findings", self.more));
        }
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        if self.unjudged > 0 {
            lines.push(format!(
                "note: {} items changed during the check: check again under less load",
                self.unjudged
            ));
        }
        let outcome = match self.code() {
            CLEAN => "clean".to_owned(),
            REPAIRED => format!("{} repairs, clean now", self.repaired),
            _ if self.repaired > 0 => format!("{} repairs, {} left", self.repaired, self.left),
            _ => format!("{} left; --repair fixes errors where possible", self.left),
        };
        let Self { inodes, names, chunks, .. } = self;
        let size = ByteSize(self.bytes);
        let read = match self.bytes_read {
            0 => String::new(),
            bytes => format!(", {} read", ByteSize(bytes)),
        };
        lines.push(format!(
            "{inodes} inodes, {names} names, {size} in files, {chunks} chunks{read}: {outcome}"
        ));
        lines.push(String::new());
        lines.join("\n")
    }
}

/// What goes on, on standard error if that is a terminal.
fn spinner(what: &str) -> anyhow::Result<ProgressBar> {
    let progress = ProgressBar::new_spinner();
    let template = format!("{{spinner}} {what}: {{human_pos}}, {{per_sec}}, {{elapsed}} {{msg}}");
    progress.set_style(ProgressStyle::with_template(&template)?);
    Ok(progress)
}

/// `millpond fsck CLUSTER`.
pub(super) fn run(args: &Args) -> Outcome {
    match checked(args) {
        Ok(report) => {
            let text = if args.json { report.json()? } else { report.text() };
            output::bytes(text.as_bytes())?;
            Ok(report.code())
        }
        Err(error) => {
            eprintln!("millpond: {}", crate::exit::told(&error));
            Ok(BROKEN_OFF)
        }
    }
}

fn checked(args: &Args) -> anyhow::Result<Report> {
    let metas = Metas::of(args.cluster.clone(), &args.token)?;
    let mut report = Report::default();
    names::check(&metas, args, &mut report)?;
    if !args.names_only {
        chunks::check(&metas, args, &mut report)?;
    }
    Ok(report)
}
