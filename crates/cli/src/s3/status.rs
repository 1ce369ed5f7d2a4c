//! `millpond s3 status`: what waits for backends.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::bail;
use millpond_client::Backing;
use millpond_env::RealClock;
use millpond_s3::{Backlog, Lane, Pool};
use millpond_types::ByteSize;
use millpond_types::meta::Timestamp;
use serde_json::{Value, json};

use super::To;
use super::rules::unbacked;
use crate::exit::{OK, Outcome};
use crate::interrupt::Interrupt;
use crate::output;

/// Between two looks at what waits first, which tell the rate.
const SAMPLE: Duration = Duration::from_secs(1);
/// Failing keys that are shown of a bucket; of more there is the number.
const FAILING_SHOWN: usize = 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    to: To,
    /// Show only this bucket. [default: all]
    bucket: Option<String>,
}

/// How long ago that was.
pub(super) fn age(since: Timestamp) -> Duration {
    let ms = u64::try_from(since.secs).unwrap_or(0) * 1_000 + u64::from(since.nanos / 1_000_000);
    Duration::from_millis(RealClock::wall_ms().saturating_sub(ms))
}

fn shown(age: Duration) -> String {
    match age.as_secs() {
        s @ 0..60 => format!("{s}s"),
        s @ 60..3_600 => format!("{}m{}s", s / 60, s % 60),
        s => format!("{}h{}m", s / 3_600, s % 3_600 / 60),
    }
}

pub(super) fn run(args: &Args) -> Outcome {
    let ring = args.to.buckets()?;
    let mut buckets = ring.list()?;
    if let Some(bucket) = &args.bucket {
        buckets.retain(|(name, _)| name == bucket);
        if buckets.is_empty() {
            return unbacked(bucket);
        }
    }
    let heads = ring.heads(&buckets)?;
    let reached = ring.reached(&buckets)?;
    let pool = ring.pool()?;
    if !heads.is_empty() && Interrupt::install()?.pause(SAMPLE) {
        bail!("interrupted");
    }
    let mut all = Vec::new();
    for (name, backing) in buckets {
        let backlog = ring.backlog_since(&name, &heads)?;
        let place = (backing.backend.clone(), backing.bucket.clone());
        let fault = reached.get(&place).and_then(|it| it.as_ref().err()).cloned();
        all.push((name, backing, backlog, fault));
    }
    if args.to.json {
        let lines: Vec<Value> = all.iter().map(|line| told(line, pool)).collect();
        return output::line(&Value::from(lines).to_string());
    }
    table(&all, pool)
}

/// What the backend took in a second.
fn rate(it: &Lane) -> String {
    format!("{}/s, {}/s", it.keys, ByteSize(it.bytes))
}

type Line = (String, Backing, Backlog, Option<String>);

fn told((name, backing, backlog, fault): &Line, pool: Pool) -> Value {
    let lane = |it: &Lane| json!({"keys": it.keys, "bytes": it.bytes});
    let failing: Vec<Value> = backlog
        .failing
        .iter()
        .map(|it| json!({"key": it.key, "attempts": it.attempts, "error": it.error}))
        .collect();
    json!({"bucket": name, "backend": backing.backend, "reached": fault.is_none(), "error": fault,
        "keys": backlog.keys(), "bytes": backlog.bytes(),
        "small": lane(&backlog.lanes[0]), "large": lane(&backlog.lanes[1]),
        "oldest_seconds": backlog.oldest.map(|it| age(it).as_secs()), "under_way": backlog.under_way,
        "per_second": backlog.rate.as_ref().map(lane),
        "failing": failing, "more_failing": backlog.is_cut,
        "pool": {"bytes": pool.bytes, "used": pool.used}})
}

fn table(all: &[Line], pool: Pool) -> Outcome {
    let titles = [
        "bucket",
        "backend",
        "reached",
        "small",
        "large",
        "oldest",
        "rate",
        "in flight",
        "failing",
    ];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    let lane = |it: &Lane| match it.keys {
        0 => "-".to_owned(),
        1 => format!("1 key, {}", ByteSize(it.bytes)),
        keys => format!("{keys} keys, {}", ByteSize(it.bytes)),
    };
    for (name, backing, backlog, fault) in all {
        let more = if backlog.is_cut { "+" } else { "" };
        rows.push(vec![
            name.clone(),
            backing.backend.clone(),
            if fault.is_none() { "yes" } else { "no" }.to_owned(),
            lane(&backlog.lanes[0]),
            lane(&backlog.lanes[1]),
            backlog.oldest.map_or_else(|| "-".to_owned(), |it| shown(age(it))),
            backlog.rate.as_ref().map_or_else(|| "-".to_owned(), rate),
            backlog.under_way.to_string(),
            format!("{}{more}", backlog.failing.len()),
        ]);
    }
    let mut text = output::table(&rows);
    let [waits, refused] = Pool::WATERMARKS.map(|it| it / 10);
    let _ = writeln!(
        text,
        "\npool: {} of {} used ({} %); writes are delayed above {waits} %, and are rejected or \
         written through above {refused} % or when a disk is full",
        ByteSize(pool.used),
        ByteSize(pool.bytes),
        pool.full() / 10
    );
    let mut faults: Vec<String> = all
        .iter()
        .filter_map(|(_, backing, _, fault)| {
            Some(format!("{}/{}: {}", backing.backend, backing.bucket, fault.as_ref()?))
        })
        .collect();
    faults.sort();
    faults.dedup();
    if !faults.is_empty() {
        let _ = writeln!(text, "\n{}", faults.join("\n"));
    }
    for (name, _, backlog, _) in all {
        for it in backlog.failing.iter().take(FAILING_SHOWN) {
            let (key, attempts, error) = (&it.key, it.attempts, &it.error);
            let _ = writeln!(text, "s3://{name}/{key}: {attempts} attempts: {error}");
        }
        if backlog.failing.len() > FAILING_SHOWN {
            let more = backlog.failing.len() - FAILING_SHOWN;
            let _ = writeln!(text, "and {more} more of {name}");
        }
    }
    output::bytes(text.as_bytes())?;
    Ok(OK)
}
