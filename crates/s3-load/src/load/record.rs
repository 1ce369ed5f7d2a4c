//! Counts of a worker, and the report made from them.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::Counts;
use crate::journal::Verdict;

/// Wrong reads that the report lists with their keys, at most.
const EXAMPLES_MAX: usize = 20;
/// The highest latency that the histogram distinguishes, in microseconds: a day.
const LATENCY_US_MAX: u64 = 86_400_000_000;

/// Requests of one kind.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Latencies of successful requests, in microseconds.
    latency: Histogram<u64>,
    errors: Counts,
}

impl Default for Lane {
    fn default() -> Self {
        // Three digits; the range grows on demand.
        let latency = Histogram::new(3).unwrap_or_else(|_| unreachable!("3 digits are allowed"));
        Self { latency, errors: Counts::new() }
    }
}

impl Lane {
    fn add(&mut self, other: &Self) {
        self.latency.add(&other.latency).unwrap_or_else(|_| unreachable!("both grow as they must"));
        for (code, count) in &other.errors {
            *self.errors.entry(code.clone()).or_default() += count;
        }
    }

    /// Counts a successful request.
    pub(super) fn done(&mut self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        // Not `saturating_record`: it clamps to the present range of the histogram.
        let _grown = self.latency.record(micros.min(LATENCY_US_MAX));
    }

    /// Counts a failed request.
    pub(super) fn failed(&mut self, code: &str) {
        *self.errors.entry(code.to_owned()).or_default() += 1;
    }

    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    fn report(&self, size: u64, elapsed: Duration) -> Value {
        let at = |quantile| self.latency.value_at_quantile(quantile);
        let rate = self.latency.len() as f64 / elapsed.as_secs_f64().max(1e-9);
        json!({
            "requests": self.latency.len(),
            "errors": self.errors,
            "requests_per_s": rate,
            "bytes_per_s": rate * size as f64,
            "mean_us": self.latency.mean(),
            "p50_us": at(0.5),
            "p90_us": at(0.9),
            "p99_us": at(0.99),
            "p999_us": at(0.999),
            "max_us": self.latency.max(),
        })
    }
}

/// Counts of requests and verdicts.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Puts.
    pub put: Lane,
    /// Gets, up to the last byte.
    pub get: Lane,
    /// Deletes.
    pub delete: Lane,
    verdicts: std::collections::BTreeMap<Verdict, u64>,
    examples: Vec<String>,
}

impl Record {
    /// Adds the counts of another record.
    pub(super) fn add(&mut self, other: &Self) {
        self.put.add(&other.put);
        self.get.add(&other.get);
        self.delete.add(&other.delete);
        for (verdict, count) in &other.verdicts {
            *self.verdicts.entry(*verdict).or_default() += count;
        }
        self.examples.extend(other.examples.iter().cloned());
        self.examples.truncate(EXAMPLES_MAX);
    }

    /// Counts the verdict on a read; `told` describes the read, and is called only for a wrong one.
    pub(super) fn judged(&mut self, verdict: Verdict, told: impl FnOnce() -> String) {
        *self.verdicts.entry(verdict).or_default() += 1;
        if !verdict.is_right(false) && self.examples.len() < EXAMPLES_MAX {
            self.examples.push(told());
        }
    }

    /// Reads that a correct endpoint would not show.
    #[must_use]
    pub fn wrong(&self) -> u64 {
        self.verdicts.iter().filter(|(verdict, _)| !verdict.is_right(false)).map(|(_, n)| n).sum()
    }

    /// Successful requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        [&self.put, &self.get, &self.delete].iter().map(|lane| lane.latency.len()).sum()
    }

    /// Failed requests by code.
    #[must_use]
    pub fn errors(&self) -> Counts {
        let mut all = Lane::default();
        for lane in [&self.put, &self.get, &self.delete] {
            all.add(lane);
        }
        all.errors
    }

    pub(super) fn report(&self, size: u64, elapsed: Duration) -> Value {
        let mut report = Map::new();
        for (name, lane) in [("put", &self.put), ("get", &self.get), ("delete", &self.delete)] {
            if !lane.latency.is_empty() || !lane.errors.is_empty() {
                let size = if name == "delete" { 0 } else { size };
                report.insert(name.to_owned(), lane.report(size, elapsed));
            }
        }
        report.insert("reads".to_owned(), json!(self.verdicts));
        report.insert("wrong".to_owned(), json!(self.wrong()));
        report.insert("examples".to_owned(), json!(self.examples));
        Value::Object(report)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Lane;

    #[test]
    fn quantiles_are_those_of_what_was_noted() {
        let mut lane = Lane::default();
        for millis in 1..=1000 {
            lane.done(Duration::from_millis(millis));
        }
        lane.failed("SlowDown");
        let mut other = Lane::default();
        other.done(Duration::from_mins(1));
        lane.add(&other);
        let report = lane.report(10, Duration::from_secs(2));
        for (name, wanted) in
            [("p50_us", 501_000), ("p90_us", 901_000), ("p99_us", 991_000), ("max_us", 60_000_000)]
        {
            let shown = report[name].as_u64().unwrap();
            assert!(shown.abs_diff(wanted) <= wanted / 500, "{name} is {shown}");
        }
        assert_eq!((&report["requests"], &report["errors"]["SlowDown"]), (&1001.into(), &1.into()));
        assert_eq!(report["bytes_per_s"], 5005.0);
    }
}
