//! Health of a node as this client sees it: how fast it answers reads, and whether to avoid it.

use std::time::Duration;

use millpond_types::Tick;

/// A read never counts as slow before this time.
const SLOW_MIN: Duration = Duration::from_millis(5);
/// A read is slow when it takes this many times as long as 19 of 20 reads.
const SLOW_FACTOR: u32 = 3;
/// Initial estimate of the time of 19 of 20 reads.
const P95_FIRST: Duration = Duration::from_millis(20);
/// First and longest time for which reads avoid a node that failed.
const AVOID_MIN: Duration = Duration::from_millis(200);
const AVOID_MAX: Duration = Duration::from_secs(2);
/// Shortest pause between two reports of one node.
const SUSPECT_PAUSE: Duration = Duration::from_millis(200);

/// Sizes in bytes at which reads take longer: each class has its own estimate.
const CLASS_BYTES: [u64; 3] = [64 << 10, 1 << 20, 8 << 20];
/// Classes of reads by size.
pub(crate) const CLASSES: usize = CLASS_BYTES.len() + 1;

/// The class of a read of `bytes` bytes.
pub(crate) fn class_of(bytes: u64) -> usize {
    CLASS_BYTES.iter().take_while(|limit| bytes > **limit).count()
}

/// An estimate of the time within which 19 of 20 reads finish: it grows by 19 parts for a read
/// above it and shrinks by one for a read below, so that it settles where 1 in 20 is above.
#[derive(Clone, Copy, Debug)]
struct P95(Duration);

impl P95 {
    fn note(&mut self, took: Duration) {
        self.0 = if took > self.0 {
            (self.0.mul_f64(1.19)).min(Duration::from_mins(1))
        } else {
            self.0.mul_f64(0.99).max(Duration::from_micros(10))
        };
    }
}

/// Health of one node.
#[derive(Debug)]
pub(crate) struct Health {
    p95: [P95; CLASSES],
    avoid: Duration,
    avoid_until: Tick,
    suspected: Option<Tick>,
}

impl Default for Health {
    fn default() -> Self {
        let avoid_until = Tick::default();
        Self { p95: [P95(P95_FIRST); CLASSES], avoid: Duration::ZERO, avoid_until, suspected: None }
    }
}

impl Health {
    /// Records that a read was answered after this time.
    pub(crate) fn answered(&mut self, class: usize, took: Duration) {
        self.p95[class].note(took);
        self.avoid = Duration::ZERO;
    }

    /// Time after which it is worth sending a read to another replica as well.
    pub(crate) fn slow_after(&self, class: usize) -> Duration {
        (self.p95[class].0 * SLOW_FACTOR).max(SLOW_MIN)
    }

    /// Records that the node failed, or that another replica answered a read first: reads avoid it
    /// for a while.
    pub(crate) fn failed(&mut self, now: Tick) {
        if now < self.avoid_until {
            return;
        }
        self.avoid = (self.avoid * 2).clamp(AVOID_MIN, AVOID_MAX);
        self.avoid_until = now.plus(self.avoid);
    }

    /// Whether reads avoid the node if they can.
    pub(crate) fn is_avoided(&self, now: Tick) -> bool {
        now < self.avoid_until
    }

    /// Whether to report the node now; records the report.
    pub(crate) fn suspect(&mut self, now: Tick) -> bool {
        let due = self.suspected.is_none_or(|at| now.since(at) >= SUSPECT_PAUSE);
        if due {
            self.suspected = Some(now);
        }
        due
    }
}

/// Budget of hedged reads: 1 in 20, and a few at once.
#[derive(Debug)]
pub(crate) struct HedgeBudget {
    twentieths: u32,
}

impl Default for HedgeBudget {
    fn default() -> Self {
        Self { twentieths: Self::BURST }
    }
}

impl HedgeBudget {
    const COST: u32 = 20;
    const BURST: u32 = 10 * Self::COST;

    /// Records that a read was sent.
    pub(crate) fn earn(&mut self) {
        self.twentieths = (self.twentieths + 1).min(Self::BURST);
    }

    /// Takes one hedge from the budget; false when it is empty.
    pub(crate) fn pay(&mut self) -> bool {
        let left = self.twentieths.checked_sub(Self::COST);
        self.twentieths = left.unwrap_or(self.twentieths);
        left.is_some()
    }
}

#[cfg(test)]
mod tests {
    use millpond_env::Rng;

    use super::*;

    #[test]
    fn the_estimate_settles_where_one_in_twenty_is_slower() {
        let mut p95 = P95(P95_FIRST);
        let mut rng = Rng::new(1);
        // Uniform up to 1 ms: 95 % stay below 950 µs.
        for _ in 0..20_000 {
            p95.note(Duration::from_micros(rng.next_u64() % 1000));
        }
        assert!((700..1200).contains(&p95.0.as_micros()), "{:?}", p95.0);
    }

    #[test]
    fn a_fast_node_is_not_slow_before_5_ms_and_sizes_have_their_own_times() {
        let mut health = Health::default();
        for _ in 0..2_000 {
            health.answered(class_of(4096), Duration::from_micros(50));
            health.answered(class_of(32 << 20), Duration::from_millis(40));
        }
        assert_eq!(health.slow_after(class_of(4096)), SLOW_MIN);
        assert!(health.slow_after(class_of(32 << 20)) > Duration::from_millis(80));
        assert_eq!((class_of(0), class_of(65_537), class_of(u64::MAX)), (0, 1, CLASSES - 1));
    }

    #[test]
    fn a_failing_node_is_avoided_longer_each_time_until_it_answers() {
        let mut health = Health::default();
        let mut now = Tick::default();
        let mut waits = Vec::new();
        for _ in 0..6 {
            health.failed(now);
            health.failed(now);
            let start = now;
            while health.is_avoided(now) {
                now = now.plus(Duration::from_millis(50));
            }
            waits.push(now.since(start).as_millis());
        }
        assert_eq!(waits, [200, 400, 800, 1600, 2000, 2000]);
        health.answered(0, Duration::ZERO);
        health.failed(now);
        assert!(!health.is_avoided(now.plus(AVOID_MIN)));
    }

    #[test]
    fn one_node_is_reported_five_times_a_second_at_most() {
        let mut health = Health::default();
        let at = |ms| Tick::default().plus(Duration::from_millis(ms));
        let told: Vec<u64> = (0..1000).step_by(10).filter(|ms| health.suspect(at(*ms))).collect();
        assert_eq!(told, [0, 200, 400, 600, 800]);
    }

    #[test]
    fn hedges_stay_under_one_in_twenty_and_a_burst() {
        let mut budget = HedgeBudget::default();
        let hedges = (0..10_000).filter(|_| {
            budget.earn();
            budget.pay()
        });
        let count = hedges.count();
        assert!((500..=510).contains(&count), "{count}");
    }
}
