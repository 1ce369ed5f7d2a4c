//! `millpond s3 persist` and `retry`: what waits goes to its backend now.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use millpond_env::RealClock;
use millpond_s3::{Backlog, BucketRing};
use millpond_types::ByteSize;
use serde_json::json;

use super::rules::unbacked;
use super::{Below, To};
use crate::exit::{FAILED, OK, Outcome};
use crate::interrupt::Interrupt;
use crate::output;
use millpond_node::config::Span;

pub(super) const EXAMPLES: &str = "\
The command makes objects due at once: those in a pause after a failure, and those that mounts
wrote. A key whose last attempt got no answer waits until that attempt can no longer arrive
(RFC 0020); otherwise two changes of the key could reach the backend in the wrong order.

With --wait the command ends when the backend has every object that waited at the start. It fails
when each of the remaining objects has failed three times during the wait. It does not wait for
objects that are written later, but it does wait for a key that is overwritten all the time: set
--timeout as a bound.

Examples:
  millpond s3 persist --wait s3://data/checkpoints/
  millpond s3 persist --wait --timeout 10m s3://data
  millpond s3 persist s3://data";

/// How often the queue is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// So often a key fails before it is given up waiting for.
const FAILURES: u32 = 3;
/// Keys that are shown which the backend does not take.
const SHOWN: usize = 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    to: To,
    #[arg(value_name = "PREFIX", help = "Keys with this prefix: s3://BUCKET/PREFIX")]
    below: Below,
    /// Wait until the backend has every object that waits at the start.
    #[arg(long)]
    wait: bool,
    /// Maximum time to wait. [default: no limit]
    #[arg(long, requires = "wait", value_name = "TIME")]
    timeout: Option<Span>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RetryArgs {
    #[command(flatten)]
    to: To,
    #[arg(value_name = "PREFIX", help = "Keys with this prefix: s3://BUCKET/PREFIX")]
    below: Below,
}

/// `millpond s3 retry`.
pub(super) fn retry(args: &RetryArgs) -> Outcome {
    let (ring, below) = (args.to.buckets()?, &args.below);
    if ring.get(&below.bucket)?.flatten().is_none() {
        return unbacked(&below.bucket);
    }
    let keys = ring.hasten(&below.bucket, below.prefix.as_bytes())?;
    let unknown = ring.backlog(&below.bucket, below.prefix.as_bytes())?.under_way;
    if args.to.json {
        return output::line(&json!({ "keys": keys, "under_way": unknown }).to_string());
    }
    let mut text = format!("{keys} keys are due now");
    if unknown > 0 {
        let _ = write!(
            text,
            "; {unknown} attempts are in flight or got no answer: their keys wait until those \
             attempts can no longer arrive"
        );
    }
    output::line(&text)
}

/// `millpond s3 persist`.
pub(super) fn run(args: &Args) -> Outcome {
    let (ring, below) = (args.to.buckets()?, &args.below);
    let prefix = below.prefix.as_bytes();
    if ring.get(&below.bucket)?.flatten().is_none() {
        return unbacked(&below.bucket);
    }
    ring.adopt(&below.bucket, prefix)?;
    ring.hasten(&below.bucket, prefix)?;
    let waited = if args.wait { wait(&ring, args)? } else { Waited::Done };
    let left = ring.backlog(&below.bucket, prefix)?;
    tell(args, &left, &waited)
}

/// How the wait ended.
#[derive(PartialEq, Eq)]
enum Waited {
    Done,
    Interrupted,
    /// The backend does not take what is left.
    Failing,
    /// It took longer than it may.
    TimedOut,
}

fn wait(ring: &BucketRing, args: &Args) -> anyhow::Result<Waited> {
    let (below, begun) = (&args.below, RealClock::tick());
    let mut waiting = None;
    let mut interrupt = Interrupt::install()?;
    let bar = ProgressBar::new(0);
    let template = "persist [{bar:32}] {pos}/{len} keys {elapsed} {msg}";
    bar.set_style(ProgressStyle::with_template(template)?.progress_chars("=> "));
    let (mut most, mut first) = (0, BTreeMap::new());
    loop {
        let left = ring.backlog_without(&below.bucket, below.prefix.as_bytes(), &mut waiting)?;
        let keys = waiting.as_ref().map_or(0, HashSet::len) as u64;
        most = most.max(keys);
        bar.set_length(most);
        bar.set_position(most - keys);
        let failing = left.failing.len();
        let bytes = ByteSize(left.bytes());
        bar.set_message(if failing == 0 {
            format!("{bytes} left")
        } else {
            format!("{bytes} left, {failing} failing")
        });
        let waited = if keys == 0 {
            Some(Waited::Done)
        } else if is_stuck(&left, &mut first) {
            Some(Waited::Failing)
        } else if args.timeout.is_some_and(|it| RealClock::tick().since(begun) >= it.0) {
            Some(Waited::TimedOut)
        } else {
            interrupt.pause(LOOK).then_some(Waited::Interrupted)
        };
        if let Some(waited) = waited {
            bar.finish_and_clear();
            return Ok(waited);
        }
    }
}

/// Whether all that is left failed so often since it was seen first.
fn is_stuck(left: &Backlog, first: &mut BTreeMap<String, u32>) -> bool {
    let has_failed = |it: &millpond_s3::Failing, first: &mut BTreeMap<String, u32>| {
        let before = *first.entry(it.key.clone()).or_insert(it.attempts.saturating_sub(1));
        it.attempts >= before + FAILURES
    };
    let stuck = left.failing.iter().filter(|it| has_failed(it, first)).count() as u64;
    left.is_cut && stuck == left.failing.len() as u64 || stuck == left.keys()
}

fn tell(args: &Args, left: &Backlog, waited: &Waited) -> Outcome {
    let (keys, bytes) = (left.keys(), left.bytes());
    if args.to.json {
        let document = json!({"left_keys": keys, "left_bytes": bytes, "failing": left.failing.len(),
            "finished": *waited == Waited::Done});
        output::line(&document.to_string())?;
    } else if keys > 0 {
        output::line(&format!("{keys} keys wait, {}", ByteSize(bytes)))?;
    }
    for it in left.failing.iter().take(SHOWN).filter(|_| *waited == Waited::Failing) {
        let bucket = &args.below.bucket;
        eprintln!("millpond: s3://{bucket}/{}: {} attempts: {}", it.key, it.attempts, it.error);
    }
    match waited {
        Waited::Done => Ok(OK),
        Waited::Interrupted => {
            eprintln!("millpond: interrupted: gateways still persist the waiting objects");
            Ok(FAILED)
        }
        Waited::TimedOut => {
            eprintln!("millpond: timed out: gateways still persist the waiting objects");
            Ok(FAILED)
        }
        Waited::Failing => {
            eprintln!(
                "millpond: all remaining objects fail at the backend: see `millpond s3 status`"
            );
            Ok(FAILED)
        }
    }
}
