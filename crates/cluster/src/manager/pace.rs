//! How fast slots move, by what nodes report. Lost with the primary, and seen anew.

use std::collections::VecDeque;
use std::time::Duration;

use millpond_types::units::Tick;

/// A rate is that of so long.
const SPAN: Duration = Duration::from_secs(30);
/// Shorter nothing is said of a rate.
const SPAN_MIN: Duration = Duration::from_secs(3);
/// How often it is looked.
const STEP: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Tick,
    bytes: u64,
    /// Thousandths of slots.
    through: u64,
}

/// What the nodes together have moved, now and a while ago.
#[derive(Debug, Default)]
pub(super) struct Pace {
    samples: VecDeque<Sample>,
    bytes: u64,
    settled: u64,
}

impl Pace {
    /// A node has copied so many bytes more.
    pub(super) fn copied(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// So many slots have arrived.
    pub(super) fn settled(&mut self, slots: usize) {
        self.settled += slots as u64;
    }

    /// Whether it is time to look.
    pub(super) fn is_due(&self, now: Tick) -> bool {
        self.samples.back().is_none_or(|last| now.since(last.at) >= STEP)
    }

    /// Takes note of how far things are: so many thousandths of the slots that move are through,
    /// all of them together. None while no slot moves.
    pub(super) fn look(&mut self, now: Tick, through: Option<u64>) {
        let Some(through) = through else { return self.samples.clear() };
        let through = through + self.settled * 1000;
        self.samples.push_back(Sample { at: now, bytes: self.bytes, through });
        // One that is older than the span is kept: a rate is that of the whole span.
        while self.samples.get(1).is_some_and(|second| now.since(second.at) >= SPAN) {
            self.samples.pop_front();
        }
    }

    fn span(&self) -> Option<(Sample, Sample, u64)> {
        let (first, last) = (*self.samples.front()?, *self.samples.back()?);
        let span = last.at.since(first.at);
        let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        (span >= SPAN_MIN).then_some((first, last, ms))
    }

    /// Bytes copied per second, over all nodes; 0 while that is not known.
    pub(super) fn bytes_per_second(&self) -> u64 {
        let rate = |(first, last, ms): (Sample, Sample, u64)| {
            last.bytes.saturating_sub(first.bytes).saturating_mul(1000) / ms
        };
        self.span().map_or(0, rate)
    }

    /// Seconds until so many thousandths of slots more are through, if all goes on as it did.
    pub(super) fn seconds_for(&self, left: u64) -> Option<u64> {
        let (first, last, ms) = self.span()?;
        // A mover that begins anew at another head has less behind it than it had.
        let done = last.through.checked_sub(first.through).filter(|done| *done > 0)?;
        let left_ms = u128::from(left) * u128::from(ms) / u128::from(done);
        u64::try_from(left_ms.div_ceil(1000)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Tick {
        Tick(0).plus(Duration::from_millis(ms))
    }

    #[test]
    fn a_rate_is_said_after_a_while_and_is_that_of_the_last_half_minute() {
        let mut pace = Pace::default();
        for second in 0..3 {
            pace.copied(1 << 20);
            pace.look(at(second * 1000), Some(second * 100));
            assert_eq!((pace.bytes_per_second(), pace.seconds_for(1)), (0, None), "too early");
        }
        assert!(!pace.is_due(at(2_900)) && pace.is_due(at(3_000)));
        for second in 3..200 {
            pace.copied(if second < 100 { 1 << 20 } else { 3 << 20 });
            pace.look(at(second * 1000), Some(second * 100));
        }
        assert_eq!(pace.bytes_per_second(), 3 << 20);
        assert_eq!(pace.seconds_for(2_000), Some(20));
        assert!(pace.samples.len() <= 31, "{}", pace.samples.len());
    }

    #[test]
    fn slots_that_have_arrived_count_whole_and_rest_forgets_the_pace() {
        let mut pace = Pace::default();
        pace.look(at(0), Some(900));
        pace.settled(2);
        pace.look(at(4_000), Some(100));
        assert_eq!(pace.seconds_for(3_000), Some(10), "1200 thousandths took 4 s");
        pace.look(at(5_000), None);
        assert_eq!(pace.seconds_for(1), None);
        // Less is through than before: a new head began anew.
        pace.look(at(6_000), Some(500));
        pace.look(at(10_000), Some(100));
        assert_eq!((pace.bytes_per_second(), pace.seconds_for(1)), (0, None));
    }
}
