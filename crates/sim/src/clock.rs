//! The monotonic clock of one process: its own start, its own rate, small jumps forward.

use millpond_types::Tick;

use crate::message::Time;
use crate::rng::Rng;

#[derive(Clone, Debug)]
pub(crate) struct Clock {
    base: u64,
    since: Time,
    /// Deviation of its rate in parts per million.
    drift: i64,
}

/// Largest drift in parts per million: leases tolerate 10 % between two clocks.
const DRIFT_MAX: u64 = 40_000;

impl Clock {
    pub(crate) fn new(rng: &mut Rng, now: Time) -> Self {
        let mut clock = Self { base: rng.below(1 << 40), since: now, drift: 0 };
        clock.disturb(rng, now);
        clock
    }

    pub(crate) fn read(&self, now: Time) -> Tick {
        let true_time = i64::try_from(now - self.since).expect("runs are short");
        let local = true_time + true_time * self.drift / 1_000_000;
        Tick(self.base + u64::try_from(local).expect("drift is below one"))
    }

    /// True time after which this clock has advanced by `local`.
    pub(crate) fn true_time(&self, local: u64) -> Time {
        let local = i64::try_from(local).expect("runs are short");
        u64::try_from(local - local * self.drift / 1_000_000).expect("drift is below one")
    }

    /// Sets another rate from now on, and perhaps jumps by up to 15 ms.
    pub(crate) fn disturb(&mut self, rng: &mut Rng, now: Time) {
        self.base = self.read(now).0 + if rng.permille(300) { rng.below(15_000) } else { 0 };
        self.since = now;
        let drift = i64::try_from(rng.below(2 * DRIFT_MAX + 1)).expect("it is small");
        self.drift = drift - i64::try_from(DRIFT_MAX).expect("it is small");
    }
}
