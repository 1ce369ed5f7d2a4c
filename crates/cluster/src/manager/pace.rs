//! Speed of slot moves, from the nodes' reports. Lost with the primary, and measured again.

use std::collections::VecDeque;
use std::time::Duration;

use millpond_types::units::Tick;

/// Time span of a rate.
const SPAN: Duration = Duration::from_secs(30);
/// Shortest time span with a rate.
const SPAN_MIN: Duration = Duration::from_secs(3);
/// Time between samples.
const STEP: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Tick,
    bytes: u64,
    /// Thousandths of slots.
    through: u64,
}

/// Total progress of the nodes, now and a while ago.
#[derive(Debug, Default)]
pub(super) struct Pace {
    samples: VecDeque<Sample>,
    bytes: u64,
    settled: u64,
}

impl Pace {
    /// Adds bytes that a node has copied.
    pub(super) fn copied(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Adds slots that have arrived.
    pub(super) fn settled(&mut self, slots: usize) {
        self.settled += slots as u64;
    }

    /// Whether a sample is due.
    pub(super) fn is_due(&self, now: Tick) -> bool {
        self.samples.back().is_none_or(|last| now.since(last.at) >= STEP)
    }

    /// Takes a sample: the sum of the progress of all moving slots, in thousandths of a slot.
    /// `None` while no slot moves.
    pub(super) fn look(&mut self, now: Tick, through: Option<u64>) {
        let Some(through) = through else { return self.samples.clear() };
        let through = through + self.settled * 1000;
        self.samples.push_back(Sample { at: now, bytes: self.bytes, through });
        // One sample older than the span is kept, so that a rate covers the whole span.
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

    /// Bytes copied per second, over all nodes; 0 while unknown.
    pub(super) fn bytes_per_second(&self) -> u64 {
        let rate = |(first, last, ms): (Sample, Sample, u64)| {
            last.bytes.saturating_sub(first.bytes).saturating_mul(1000) / ms
        };
        self.span().map_or(0, rate)
    }

    /// Seconds until `left` more thousandths of slots are done, at the measured rate.
    pub(super) fn seconds_for(&self, left: u64) -> Option<u64> {
        let (first, last, ms) = self.span()?;
        // A mover that starts again at another head has made less progress than before.
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
        // Less progress than before: a new head started again.
        pace.look(at(6_000), Some(500));
        pace.look(at(10_000), Some(100));
        assert_eq!((pace.bytes_per_second(), pace.seconds_for(1)), (0, None));
    }
}
