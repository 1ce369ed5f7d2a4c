//! `millpond doctor`: what a machine allows, how a cluster is, and what to change.
//!
//! `host` looks at this machine, `cluster` asks the managers and every node, `way` measures the way
//! to one node.

mod cluster;
mod host;
mod way;

use std::path::PathBuf;

use serde::Serialize;

use super::admin::remote::Where;
use super::output;
use crate::exit::{FAILED, OK, Outcome};

pub(super) const EXAMPLES: &str = "Examples:
  millpond doctor --data /mnt/nvme0
  millpond doctor --cluster --server 10.0.0.1:7440,10.0.0.2:7440
  millpond doctor --cluster --json";

/// What to look at.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Data folder to check for free space.
    #[arg(long, default_value = ".")]
    data: PathBuf,
    /// Also check the cluster of --server, and the network path from here to each of its nodes.
    #[arg(long)]
    cluster: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    at: Where,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    /// As it should be.
    Ok,
    /// Works, and would work better.
    Warn,
    /// Keeps a server from running, or data from being served.
    Fail,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    verdict: Verdict,
    what: String,
    text: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

/// All that was looked at.
#[derive(Debug, Default)]
struct Report(Vec<Finding>);

impl Report {
    fn ok(&mut self, what: impl Into<String>, text: impl Into<String>) {
        self.add(Verdict::Ok, what, text, None);
    }

    fn warn(&mut self, what: impl Into<String>, text: impl Into<String>, fix: impl Into<String>) {
        self.add(Verdict::Warn, what, text, Some(fix.into()));
    }

    fn fail(&mut self, what: impl Into<String>, text: impl Into<String>, fix: impl Into<String>) {
        self.add(Verdict::Fail, what, text, Some(fix.into()));
    }

    fn add(
        &mut self,
        verdict: Verdict,
        what: impl Into<String>,
        text: impl Into<String>,
        fix: Option<String>,
    ) {
        self.0.push(Finding { verdict, what: what.into(), text: text.into(), fix });
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |finding: &Finding| {
            let verdict = match finding.verdict {
                Verdict::Ok => "ok",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            let text = match &finding.fix {
                Some(fix) => format!("{}: {fix}", finding.text),
                None => finding.text.clone(),
            };
            vec![verdict.to_owned(), finding.what.clone(), text]
        };
        self.0.iter().map(row).collect()
    }
}

/// Runs it: 1 when something keeps a server from running, or data from being served.
pub(super) fn run(args: &Args) -> Outcome {
    let mut report = Report::default();
    host::look(&mut report, &args.data);
    if args.cluster {
        cluster::look(&mut report, &args.at)?;
    }
    if args.json {
        output::line(&serde_json::to_string(&report.0)?)?;
    } else {
        output::bytes(output::table(&report.rows()).as_bytes())?;
    }
    let bad = report.0.iter().any(|finding| finding.verdict == Verdict::Fail);
    Ok(if bad { FAILED } else { OK })
}
