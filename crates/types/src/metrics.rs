//! Counters, gauges and latency histograms as plain atomics.
//!
//! They cost one relaxed add on the data path; [`Page`] renders them as Prometheus text.

mod page;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use page::{Family, Page, label};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }
    /// The current value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down, never below zero.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets the value.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
    /// Subtracts `n`; stops at zero.
    pub fn sub(&self, n: u64) {
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |v| Some(v.saturating_sub(n)));
    }
    /// The current value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Two buckets per doubling from 1 µs to about 67 s, then one for the rest. Bucket 1 repeats the
/// bound of bucket 0 and stays empty, because no whole number is between 1 and 2 µs.
pub const BUCKETS: usize = 53;

/// A latency histogram with log-linear buckets in microseconds.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum_us: AtomicU64::new(0) }
    }
}

/// A copy of a histogram: `count[i]` observations were at most [`bucket_bound_us`]`(i)`
/// and above the bound before it.
#[derive(Clone, Debug)]
pub struct HistogramSnapshot {
    /// Observations per bucket.
    pub counts: [u64; BUCKETS],
    /// Sum of all observations in microseconds.
    pub sum_us: u64,
}

/// Upper bound of bucket `index` in microseconds; the last bucket has none.
#[must_use]
pub const fn bucket_bound_us(index: usize) -> Option<u64> {
    if index + 1 >= BUCKETS {
        return None;
    }
    let base = 1u64 << (index / 2);
    Some(if index.is_multiple_of(2) { base } else { base + base / 2 })
}

fn bucket_of(us: u64) -> usize {
    let us = us.max(1);
    let log = us.ilog2() as usize;
    let base = 1u64 << log;
    let index = if us == base {
        2 * log
    } else if us <= base + base / 2 {
        2 * log + 1
    } else {
        2 * log + 2
    };
    index.min(BUCKETS - 1)
}

impl Histogram {
    /// Records one observation.
    pub fn observe(&self, took: Duration) {
        self.observe_us(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
    }

    /// Records one observation given in microseconds.
    pub fn observe_us(&self, us: u64) {
        self.buckets[bucket_of(us)].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// A copy for rendering; concurrent observations may be partly included.
    #[must_use]
    pub fn snapshot(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            counts: std::array::from_fn(|i| self.buckets[i].load(Ordering::Relaxed)),
            sum_us: self.sum_us.load(Ordering::Relaxed),
        }
    }
}

impl Default for HistogramSnapshot {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum_us: 0 }
    }
}

impl HistogramSnapshot {
    /// Adds the observations of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }

    /// Number of observations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Upper bound in microseconds of the bucket that holds the `per_mille`-th observation.
    #[must_use]
    pub fn quantile_us(&self, per_mille: u64) -> u64 {
        let rank = (self.count() * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (i, n) in self.counts.iter().enumerate() {
            seen += n;
            if seen >= rank {
                return bucket_bound_us(i).unwrap_or(u64::MAX);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_within_its_bucket() {
        for us in (1..5000).chain([1 << 20, (1 << 20) + 1, 3 << 30, u64::MAX]) {
            let i = bucket_of(us);
            if let Some(bound) = bucket_bound_us(i) {
                assert!(us <= bound, "{us} over {bound}");
            }
            if i > 0 {
                let below = bucket_bound_us(i - 1).unwrap();
                assert!(us > below, "{us} not over {below}");
            }
        }
    }

    #[test]
    fn bounds_grow() {
        let bounds: Vec<u64> = (0..BUCKETS - 1).filter_map(bucket_bound_us).collect();
        assert!(bounds.windows(2).all(|w| w[0] <= w[1]), "{bounds:?}");
    }

    #[test]
    fn quantiles_come_from_the_counts() {
        let h = Histogram::default();
        (0..99).for_each(|_| h.observe_us(10));
        h.observe_us(5000);
        let s = h.snapshot();
        assert_eq!(s.count(), 100);
        assert!(s.quantile_us(500) <= 12);
        assert!(s.quantile_us(1000) >= 5000);
        let mut both = s.clone();
        both.add(&s);
        assert_eq!((both.count(), both.sum_us), (200, 2 * s.sum_us));
    }
}
