//! `millpond stats`: what a mount does each second, by its numbers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use millpond_env::RealClock;
use millpond_types::units::parse_duration;
use serde_json::json;

use super::profile::{mib, millis};
use crate::exit::{OK, Outcome};
use crate::interrupt::Interrupt;
use crate::output;

pub(crate) const EXAMPLES: &str = "Examples:
  millpond stats /mnt/pond
  millpond stats /mnt/pond --interval 10s --for 5min --json
  cat /mnt/pond/.stats               # all metrics of the mount";

/// Rows between two heads.
const ROWS: usize = 20;
/// Series of the page that are used here.
const TIMES: &str = "millpond_mount_operation_seconds_bucket{";
const FAILED: &str = "millpond_mount_operations_failed_total{";

/// Which mount, and how often.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Mount point.
    mountpoint: PathBuf,
    /// Time between two rows.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,
    /// End after this time. [default: at Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    time: Option<Duration>,
    /// Print one JSON object for each row.
    #[arg(long)]
    json: bool,
}

/// How many requests took at most so many microseconds, by the bound; `u64::MAX` for all.
type Buckets = BTreeMap<u64, u64>;

/// What the page says at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Read, write, and everything else.
    classes: [Buckets; 3],
    failed: u64,
    numbers: BTreeMap<String, u64>,
}

const CLASSES: [&str; 3] = ["read", "write", "other"];

fn class(operation: &str) -> usize {
    CLASSES.iter().position(|name| *name == operation).unwrap_or(2)
}

/// The value of the last label of this name: the mount's own, which may have anything in it, is first.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) = labels.rsplit_once(&format!(",{name}=\""))?;
    value.split_once('"').map(|(value, _)| value)
}

impl Seen {
    fn parse(page: &str) -> Self {
        let mut seen = Self::default();
        for line in page.lines() {
            let _unknown = seen.line(line);
        }
        seen
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let (series, value) = line.rsplit_once(' ')?;
        let value: u64 = value.parse().ok()?;
        if let Some(labels) = series.strip_prefix(TIMES) {
            let bound = match label(labels, "le")? {
                "+Inf" => u64::MAX,
                bound => {
                    u64::try_from(parse_duration(&format!("{bound}s")).ok()?.as_micros()).ok()?
                }
            };
            let class = class(label(labels, "operation")?);
            *self.classes[class].entry(bound).or_default() += value;
        } else if series.starts_with(FAILED) {
            self.failed += value;
        } else if let Some((name, _)) = series.split_once('{') {
            *self.numbers.entry(name.to_owned()).or_default() += value;
        }
        Some(())
    }

    fn number(&self, name: &str) -> u64 {
        self.numbers.get(&format!("millpond_mount_{name}")).copied().unwrap_or(0)
    }

    /// Whether the counters began anew since `before`: another process serves the mount.
    fn is_after_a_restart(&self, before: &Self) -> bool {
        let fewer = |at: usize| count(&self.classes[at]) < count(&before.classes[at]);
        (0..CLASSES.len()).any(fewer)
    }
}

fn count(buckets: &Buckets) -> u64 {
    buckets.get(&u64::MAX).copied().unwrap_or(0)
}

fn less(now: &Buckets, before: &Buckets) -> Buckets {
    let old = |bound| before.get(bound).copied().unwrap_or(0);
    now.iter().map(|(bound, count)| (*bound, count.saturating_sub(old(bound)))).collect()
}

/// Upper bound in microseconds of the bucket with the `per_mille`-th request; 0 without any.
fn quantile(buckets: &Buckets, per_mille: u64) -> u64 {
    let all = count(buckets);
    let rank = (all * per_mille).div_ceil(1000).max(1);
    let found = buckets.iter().find(|(_, count)| **count >= rank);
    // What is slower than the last bound is at least that slow.
    let last = buckets.keys().rev().nth(1).copied().unwrap_or(0);
    found.map_or(0, |(bound, _)| (*bound).min(last))
}

/// What happened between two moments.
#[derive(Clone, Debug)]
struct Row {
    within: Duration,
    classes: [Buckets; 3],
    bytes: [u64; 2],
    failed: u64,
    in_flight: u64,
    open: u64,
}

impl Row {
    fn between(before: &Seen, now: &Seen, within: Duration) -> Self {
        let nothing = Seen::default();
        let before = if now.is_after_a_restart(before) { &nothing } else { before };
        let grown = |name| now.number(name).saturating_sub(before.number(name));
        Self {
            within,
            classes: std::array::from_fn(|at| less(&now.classes[at], &before.classes[at])),
            bytes: [grown("read_bytes_total"), grown("written_bytes_total")],
            failed: now.failed.saturating_sub(before.failed),
            in_flight: now.number("in_flight"),
            open: now.number("open_handles"),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.within.as_secs_f64().max(1e-3)
    }

    fn cells(&self) -> Vec<String> {
        let rate = |count| format!("{:.0}", self.per_second(count));
        let ms = |buckets: &Buckets, per_mille| match count(buckets) {
            0 => "-".to_owned(),
            _ => millis(quantile(buckets, per_mille)),
        };
        let mut cells = Vec::new();
        for (at, buckets) in self.classes.iter().enumerate() {
            cells.push(rate(count(buckets)));
            if let Some(bytes) = self.bytes.get(at) {
                #[expect(clippy::cast_possible_truncation, reason = "for people")]
                #[expect(clippy::cast_sign_loss, reason = "a rate is not negative")]
                cells.push(mib(self.per_second(*bytes) as u64));
            }
            cells.extend([ms(buckets, 500), ms(buckets, 990)]);
        }
        cells.extend([rate(self.failed), self.in_flight.to_string(), self.open.to_string()]);
        cells
    }

    #[expect(clippy::cast_precision_loss, reason = "microseconds as seconds")]
    fn json(&self) -> serde_json::Value {
        let seconds = |us: u64| us as f64 / 1e6;
        let of_class = |at: usize| {
            let buckets = &self.classes[at];
            let mut class = json!({ "per_second": self.per_second(count(buckets)) });
            if count(buckets) > 0 {
                class["p50_seconds"] = json!(seconds(quantile(buckets, 500)));
                class["p99_seconds"] = json!(seconds(quantile(buckets, 990)));
            }
            if let Some(bytes) = self.bytes.get(at) {
                class["bytes_per_second"] = json!(self.per_second(*bytes));
            }
            class
        };
        json!({
            "interval_seconds": self.within.as_secs_f64(),
            "read": of_class(0), "write": of_class(1), "other": of_class(2),
            "failed_per_second": self.per_second(self.failed),
            "in_flight": self.in_flight, "open": self.open,
        })
    }
}

const HEAD: [&str; 14] = [
    "READ/S", "MIB/S", "P50 MS", "P99 MS", "WRITE/S", "MIB/S", "P50 MS", "P99 MS", "OTHER/S",
    "P50 MS", "P99 MS", "FAILED/S", "IN WORK", "OPEN",
];

/// Cells under each other whatever rows come later.
fn line(cells: impl Iterator<Item = impl AsRef<str>>) -> String {
    let mut line = String::new();
    for cell in cells {
        let _ = write!(line, "{:>9}", cell.as_ref());
    }
    line.push('\n');
    line
}

fn look(path: &Path) -> anyhow::Result<Seen> {
    let page = std::fs::read_to_string(path).or_else(|_| std::fs::read_to_string(path));
    // A second time: a page that was half read when the mount's process died is refused.
    let page = page.with_context(|| path.display().to_string())?;
    let seen = Seen::parse(&page);
    ensure!(seen.number("serving") == 1, "{} is not a statistics page of a mount", path.display());
    Ok(seen)
}

pub(crate) fn run(args: &Args) -> Outcome {
    let path = args.mountpoint.join(".stats");
    let hint = || format!("{} is not a mount point of Millpond", args.mountpoint.display());
    let mut before = look(&path).with_context(hint)?;
    let mut interrupt = Interrupt::install()?;
    let started = RealClock::tick();
    let until = args.time.map(|time| started.plus(time));
    let (mut since, mut rows) = (started, 0);
    loop {
        if interrupt.pause(args.interval) {
            return Ok(OK);
        }
        let seen = look(&path)?;
        let now = RealClock::tick();
        let row = Row::between(&before, &seen, now.since(since));
        (before, since) = (seen, now);
        let mut text = String::new();
        if args.json {
            let _ = writeln!(text, "{}", row.json());
        } else {
            if rows % ROWS == 0 {
                text = line(HEAD.iter());
            }
            text.push_str(&line(row.cells().iter()));
        }
        rows += 1;
        let taken = output::offer(text.as_bytes())?;
        if !taken || until.is_some_and(|until| now >= until) {
            return Ok(OK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(reads: u64, slow: u64, bytes: u64) -> String {
        let mount = r#"mount="/a,operation=\"write\"""#;
        let series = "millpond_mount_operation_seconds_bucket";
        format!(
            "# TYPE {series} histogram\n\
             {series}{{{mount},operation=\"read\",le=\"0.001024\"}} {reads}\n\
             {series}{{{mount},operation=\"read\",le=\"2\"}} {all}\n\
             {series}{{{mount},operation=\"read\",le=\"+Inf\"}} {all}\n\
             {series}{{{mount},operation=\"lookup\",le=\"+Inf\"}} 5\n\
             millpond_mount_operations_failed_total{{{mount},operation=\"read\"}} 3\n\
             millpond_mount_operation_seconds_sum{{{mount},operation=\"read\"}} 0.5\n\
             millpond_mount_read_bytes_total{{{mount}}} {bytes}\n\
             millpond_mount_in_flight{{{mount}}} 2\n",
            all = reads + slow
        )
    }

    #[test]
    fn rows_are_differences() {
        let (before, now) = (Seen::parse(&page(10, 0, 0)), Seen::parse(&page(109, 1, 8 << 20)));
        let row = Row::between(&before, &now, Duration::from_secs(2));
        assert_eq!(
            row.cells(),
            ["50", "4.0", "1.024", "1.024", "0", "0.0", "-", "-", "0", "-", "-", "0", "2", "0"]
        );
        assert_eq!(quantile(&row.classes[0], 1000), 2_000_000);
        assert_eq!(row.json()["read"]["p99_seconds"], 0.001_024);
        assert_eq!(row.json()["failed_per_second"], 0.0);
        assert_eq!(count(&now.classes[2]), 5, "the mount point has no say in it");
    }

    #[test]
    fn another_process_counts_from_nothing() {
        let (before, now) = (Seen::parse(&page(1000, 0, 1 << 30)), Seen::parse(&page(4, 0, 9)));
        let row = Row::between(&before, &now, Duration::from_secs(1));
        assert_eq!((count(&row.classes[0]), row.bytes[0], row.failed), (4, 9, 3));
    }

    #[test]
    fn what_is_slower_than_all_bounds_shows_the_last() {
        let buckets = Buckets::from([(1000, 1), (2000, 1), (u64::MAX, 9)]);
        assert_eq!((quantile(&buckets, 500), quantile(&buckets, 1)), (2000, 1000));
        assert_eq!(quantile(&Buckets::new(), 500), 0);
    }
}
