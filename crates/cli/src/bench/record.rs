//! What happened: latencies, counts and throughput over time.

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Width of one slot of the throughput series, in nanoseconds.
pub(super) const SLOT_NS: u64 = 100_000_000;
/// Longest latency that is told apart, in nanoseconds.
const LATENCY_NS_MAX: u64 = 120_000_000_000;
/// Quantiles that reports name.
pub(super) const QUANTILES: &[(&str, f64)] = &[
    ("p10", 0.10),
    ("p50", 0.50),
    ("p90", 0.90),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
];

/// Outcomes of the values of some requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// Values read or stored.
    pub(super) done: u64,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Gets: not present. Puts: present before.
    pub(super) missed: u64,
    /// Refused (busy, no space, late) or failed with the request.
    pub(super) refused: u64,
    /// Bytes that are not what the key says.
    pub(super) wrong: u64,
}

/// One kind of request.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    pub(super) requests: u64,
    pub(super) outcome: Outcome,
    /// Nanoseconds from sending to the last byte of the reply.
    pub(super) latency: Histogram<u64>,
}

impl Lane {
    fn new() -> Self {
        let latency = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
            .expect("three digits and these bounds are valid");
        Self { requests: 0, outcome: Outcome::default(), latency }
    }

    fn merge(&mut self, other: &Self) {
        self.requests += other.requests;
        let (a, b) = (&mut self.outcome, &other.outcome);
        a.done += b.done;
        a.bytes += b.bytes;
        a.missed += b.missed;
        a.refused += b.refused;
        a.wrong += b.wrong;
        self.latency.add(&other.latency).expect("same bounds");
    }

    /// Latency at `quantile` in microseconds.
    #[expect(clippy::cast_precision_loss, reason = "latencies are far below 2^53 ns")]
    pub(super) fn quantile_us(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1e3
    }

    /// Rates over `seconds`, quantiles and the whole histogram.
    #[expect(clippy::cast_precision_loss, reason = "counts and latencies are far below 2^53")]
    pub(super) fn to_json(&self, seconds: f64) -> Value {
        let mut latency = serde_json::Map::new();
        latency.insert("mean".into(), json!(self.latency.mean() / 1e3));
        for (name, quantile) in QUANTILES {
            latency.insert((*name).into(), json!(self.quantile_us(*quantile)));
        }
        latency.insert("max".into(), json!(self.latency.max() as f64 / 1e3));
        let histogram: Vec<_> = self
            .latency
            .iter_recorded()
            .map(|v| json!([v.value_iterated_to() as f64 / 1e3, v.count_since_last_iteration()]))
            .collect();
        let o = &self.outcome;
        json!({
            "requests": self.requests, "values": o.done, "bytes": o.bytes, "missed": o.missed,
            "refused": o.refused, "wrong": o.wrong,
            "requests_per_s": self.requests as f64 / seconds,
            "values_per_s": o.done as f64 / seconds,
            "mb_per_s": o.bytes as f64 / seconds / 1e6,
            "latency_us": latency, "histogram_us": histogram,
        })
    }
}

/// Everything one worker saw.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) get: Lane,
    pub(super) put: Lane,
    /// Bytes finished in each slot since the start of the measured time.
    pub(super) slots: Vec<u64>,
}

impl Record {
    pub(super) fn new() -> Self {
        Self { get: Lane::new(), put: Lane::new(), slots: Vec::new() }
    }

    /// Adds one request that ended `at_ns` after the start and took `took_ns`.
    pub(super) fn add(&mut self, is_get: bool, at_ns: u64, took_ns: u64, outcome: Outcome) {
        let lane = if is_get { &mut self.get } else { &mut self.put };
        lane.requests += 1;
        lane.outcome.done += outcome.done;
        lane.outcome.bytes += outcome.bytes;
        lane.outcome.missed += outcome.missed;
        lane.outcome.refused += outcome.refused;
        lane.outcome.wrong += outcome.wrong;
        lane.latency.saturating_record(took_ns.max(1));
        let slot = usize::try_from(at_ns / SLOT_NS).unwrap_or(0);
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, 0);
        }
        self.slots[slot] += outcome.bytes;
    }

    /// Adds what another worker saw in the same time.
    pub(super) fn merge(&mut self, other: &Self) {
        self.get.merge(&other.get);
        self.put.merge(&other.put);
        if self.slots.len() < other.slots.len() {
            self.slots.resize(other.slots.len(), 0);
        }
        for (a, b) in self.slots.iter_mut().zip(&other.slots) {
            *a += b;
        }
    }

    /// Values whose bytes were wrong.
    pub(super) const fn wrong(&self) -> u64 {
        self.get.outcome.wrong + self.put.outcome.wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_merge() {
        let outcome = Outcome { done: 2, bytes: 8192, ..Outcome::default() };
        let mut a = Record::new();
        a.add(true, 10, 1_000, outcome);
        let mut b = Record::new();
        b.add(true, SLOT_NS * 3, 3_000, outcome);
        b.add(false, 5, 7_000, Outcome { missed: 1, ..Outcome::default() });
        a.merge(&b);
        assert_eq!((a.get.requests, a.get.outcome.bytes, a.put.outcome.missed), (2, 16384, 1));
        assert_eq!(a.slots, vec![8192, 0, 0, 8192]);
        let json = a.get.to_json(2.0);
        assert_eq!(json["requests_per_s"], 1.0);
        assert!((2.9..3.1).contains(&json["latency_us"]["max"].as_f64().unwrap()));
    }
}
