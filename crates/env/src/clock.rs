//! Clocks: the real one, and one that tests move by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_types::Tick;

/// A monotonic clock and a wall clock.
pub trait Clock: Send + Sync {
    /// Monotonic time in microseconds; never goes back, does not count time in suspend.
    fn now(&self) -> Tick;
    /// Wall time in milliseconds since 1970-01-01 UTC; may jump.
    fn unix_ms(&self) -> u64;
    /// Wall time in nanoseconds since 1970-01-01 UTC, at the precision of the clock; may jump.
    fn unix_nanos(&self) -> u128 {
        u128::from(self.unix_ms()) * 1_000_000
    }
}

/// The clocks of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealClock;

fn read_clock(id: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid, writable timespec for the length of the call.
    let done = unsafe { libc::clock_gettime(id, &raw mut time) };
    assert!(done == 0, "clock_gettime failed for a clock that every kernel has");
    time
}

#[expect(clippy::cast_sign_loss, reason = "both clocks count from a start in the past")]
impl RealClock {
    /// Monotonic time in microseconds.
    #[must_use]
    pub fn tick() -> Tick {
        let time = read_clock(libc::CLOCK_MONOTONIC);
        Tick(time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000)
    }

    /// Wall time in milliseconds since 1970-01-01 UTC.
    #[must_use]
    pub fn wall_ms() -> u64 {
        let time = read_clock(libc::CLOCK_REALTIME);
        time.tv_sec as u64 * 1_000 + time.tv_nsec as u64 / 1_000_000
    }

    /// Wall time in nanoseconds since 1970-01-01 UTC.
    #[must_use]
    pub fn wall_nanos() -> u128 {
        let time = read_clock(libc::CLOCK_REALTIME);
        time.tv_sec as u128 * 1_000_000_000 + time.tv_nsec as u128
    }

    /// Wall time in nanoseconds as the kernel stamps files with it: some milliseconds old.
    #[must_use]
    pub fn wall_nanos_of_files() -> u128 {
        let time = read_clock(libc::CLOCK_REALTIME_COARSE);
        time.tv_sec as u128 * 1_000_000_000 + time.tv_nsec as u128
    }
}

impl Clock for RealClock {
    fn now(&self) -> Tick {
        Self::tick()
    }
    fn unix_ms(&self) -> u64 {
        Self::wall_ms()
    }
    fn unix_nanos(&self) -> u128 {
        Self::wall_nanos()
    }
}

/// A clock that stands still until it is moved. Clones share the time.
#[derive(Clone, Debug)]
pub struct FakeClock {
    micros: Arc<AtomicU64>,
    unix_ms_at_zero: u64,
}

impl FakeClock {
    /// A clock at `now`, with the wall time `unix_ms_at_zero` at tick zero.
    #[must_use]
    pub fn new(now: Tick, unix_ms_at_zero: u64) -> Self {
        Self { micros: Arc::new(AtomicU64::new(now.0)), unix_ms_at_zero }
    }

    /// Moves both clocks forward.
    pub fn advance(&self, by: Duration) {
        let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(by, Ordering::SeqCst);
    }
}

impl Default for FakeClock {
    /// Tick 1 s, in November 2023.
    fn default() -> Self {
        Self::new(Tick(1_000_000), 1_700_000_000_000)
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Tick {
        Tick(self.micros.load(Ordering::SeqCst))
    }
    fn unix_ms(&self) -> u64 {
        self.unix_ms_at_zero + self.micros.load(Ordering::SeqCst) / 1_000
    }
    fn unix_nanos(&self) -> u128 {
        let micros = u128::from(self.micros.load(Ordering::SeqCst));
        u128::from(self.unix_ms_at_zero) * 1_000_000 + micros * 1_000
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Tick {
        (**self).now()
    }
    fn unix_ms(&self) -> u64 {
        (**self).unix_ms()
    }
    fn unix_nanos(&self) -> u128 {
        (**self).unix_nanos()
    }
}

#[cfg(test)]
mod tests {
    use super::{Clock, FakeClock, RealClock};
    use std::time::Duration;

    #[test]
    fn real_clock_does_not_go_back() {
        let first = RealClock.now();
        assert!(RealClock.now() >= first);
        assert!(RealClock.unix_ms() > 1_600_000_000_000);
    }

    #[test]
    fn fake_clock_moves_both_times() {
        let clock = FakeClock::default();
        let other = clock.clone();
        let (tick, wall) = (clock.now(), clock.unix_ms());
        clock.advance(Duration::from_millis(5));
        assert_eq!(other.now().since(tick), Duration::from_millis(5));
        assert_eq!(other.unix_ms(), wall + 5);
    }
}
