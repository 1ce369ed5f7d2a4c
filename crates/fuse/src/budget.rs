//! Limits of a mount: bytes of memory, and bytes per second.
//!
//! The memory of requests is fixed when the mount is made: each thread holds one request and one
//! answer. The rest of the budget is for read-ahead. The bandwidth counts the bytes that requests
//! of the kernel carry. A request pays when it arrives, and waits until those before it have used
//! their time: a virtual clock (L. Zhang, "`VirtualClock`", SIGCOMM 1990). So the rate holds over
//! any period, and requests proceed in order of arrival.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::RealClock;
use millpond_types::metrics::{Counter, Gauge};
use millpond_types::{ByteSize, Tick};
use parking_lot::{Condvar, Mutex};

use crate::options::OptionError;

/// Budgets of a mount, from its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// Bytes of memory for requests and for read-ahead.
    pub memory: u64,
    /// Bytes per second read and written together; 0 is no limit.
    pub bandwidth: u64,
    /// Bytes per second read; 0 is no limit.
    pub read_bandwidth: u64,
    /// Bytes per second written; 0 is no limit.
    pub write_bandwidth: u64,
}

impl Default for Budgets {
    fn default() -> Self {
        Self { memory: MEMORY, bandwidth: 0, read_bandwidth: 0, write_bandwidth: 0 }
    }
}

/// Default memory of a mount in bytes: 32 MiB are for the requests of 16 threads.
const MEMORY: u64 = 256 << 20;
/// A larger value is a typing error.
const MEMORY_MAX: u64 = 1 << 44;
/// With less, a request of 1 MiB takes longer than a daemon has for parking.
const RATE_MIN: u64 = 256 << 10;
const RATE_MAX: u64 = 1 << 44;
/// Requests shrink down to this size before a mount is rejected.
const REQUEST_MIN: u32 = 128 << 10;
/// The credit after an idle period, as time at the full rate.
const BURST: Duration = Duration::from_millis(100);

impl Budgets {
    /// Applies an option if it is one of these.
    pub(crate) fn apply(&mut self, name: &str, value: &str) -> Option<Result<(), OptionError>> {
        let (field, least, most, unit) = match name {
            "memory" => (&mut self.memory, 1, MEMORY_MAX, ""),
            "bandwidth" => (&mut self.bandwidth, RATE_MIN, RATE_MAX, " a second"),
            "read_bandwidth" => (&mut self.read_bandwidth, RATE_MIN, RATE_MAX, " a second"),
            "write_bandwidth" => (&mut self.write_bandwidth, RATE_MIN, RATE_MAX, " a second"),
            _ => return None,
        };
        let number = value.strip_suffix("/s").filter(|_| !unit.is_empty()).unwrap_or(value);
        let parsed =
            number.parse::<ByteSize>().ok().filter(|size| (least..=most).contains(&size.0));
        let fix = || {
            let (least, most) = (ByteSize(least.max(4096)), ByteSize(most));
            format!(
                "use a number of bytes{unit} with a unit, such as 512MiB or 1.5GiB, from {least} \
                 to {most}"
            )
        };
        let option = || format!("{name}={value}");
        Some(match parsed {
            Some(bytes) => {
                *field = bytes.0;
                Ok(())
            }
            None => Err(OptionError { option: option(), fix: fix() }),
        })
    }

    /// Checks that the memory suffices for `threads`.
    pub(crate) fn check(&self, threads: usize) -> Result<(), OptionError> {
        if of_threads(self.memory) / u64::from(REQUEST_MIN) >= 2 * threads as u64 {
            return Ok(());
        }
        let need = (2 * threads as u64 * u64::from(REQUEST_MIN) * 4).div_ceil(3).div_ceil(1 << 20);
        let fit = (of_threads(self.memory) / u64::from(REQUEST_MIN) / 2).max(1);
        Err(OptionError {
            option: format!("memory={}", ByteSize(self.memory).to_string().replace(' ', "")),
            fix: format!(
                "is too small for {threads} threads: use memory={need}MiB or more, or threads={fit}"
            ),
        })
    }

    /// Bytes of the largest request that `threads` can have.
    pub(crate) fn request_bytes(&self, threads: usize, largest: u32) -> u32 {
        let each = of_threads(self.memory) / (2 * threads.max(1) as u64);
        let each = u32::try_from(each).unwrap_or(u32::MAX) / REQUEST_MIN * REQUEST_MIN;
        each.clamp(REQUEST_MIN, largest.max(REQUEST_MIN))
    }
}

/// The share of a mount's memory for its threads.
const fn of_threads(memory: u64) -> u64 {
    memory / 4 * 3
}

/// A counter of used memory.
#[derive(Debug)]
pub(crate) struct Memory {
    limit: u64,
    used: AtomicU64,
}

impl Memory {
    pub(crate) const fn new(limit: u64) -> Self {
        Self { limit, used: AtomicU64::new(0) }
    }

    /// Takes memory that is required, even beyond the limit.
    pub(crate) fn take(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Takes memory if enough is left.
    pub(crate) fn try_take(&self, bytes: u64) -> bool {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).is_ok()
    }

    pub(crate) fn give(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::AcqRel);
        assert!(before >= bytes, "more memory is given back than was taken");
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }
}

/// A rate: the time at which all admitted bytes have used their share.
#[derive(Debug)]
struct Rate {
    per_second: u64,
    paid_until: Mutex<Tick>,
}

impl Rate {
    const fn new(per_second: u64) -> Self {
        Self { per_second, paid_until: Mutex::new(Tick(0)) }
    }

    /// Pays for `bytes`; returns the time at which they may proceed.
    fn pay(&self, bytes: u64, now: Tick) -> Tick {
        if self.per_second == 0 {
            return now;
        }
        let mut paid_until = self.paid_until.lock();
        let rested = Tick(now.0.saturating_sub(micros(BURST)));
        let start = (*paid_until).max(rested);
        let took = u128::from(bytes) * 1_000_000 / u128::from(self.per_second);
        *paid_until = start.plus(Duration::from_micros(u64::try_from(took).unwrap_or(u64::MAX)));
        start
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Read,
    Write,
}

/// The bandwidth of a mount.
#[derive(Debug)]
pub(crate) struct Bandwidth {
    pub(crate) budgets: Budgets,
    both: Rate,
    read: Rate,
    write: Rate,
    /// Requests do not wait: the threads are to stop.
    open: Mutex<bool>,
    opened: Condvar,
    /// Number of waiting requests, and the total microseconds of waiting.
    pub(crate) waiting: Gauge,
    pub(crate) waited_us: Counter,
}

impl Bandwidth {
    pub(crate) fn new(budgets: Budgets) -> Self {
        Self {
            budgets,
            both: Rate::new(budgets.bandwidth),
            read: Rate::new(budgets.read_bandwidth),
            write: Rate::new(budgets.write_bandwidth),
            open: Mutex::new(false),
            opened: Condvar::new(),
            waiting: Gauge::default(),
            waited_us: Counter::default(),
        }
    }

    /// Waits until `bytes` may proceed in this direction.
    pub(crate) fn pass(&self, way: Way, bytes: u64) {
        let one = if way == Way::Read { &self.read } else { &self.write };
        if (self.both.per_second, one.per_second) == (0, 0) || bytes == 0 {
            return;
        }
        let now = RealClock::tick();
        let start = self.both.pay(bytes, now).max(one.pay(bytes, now));
        if start <= now {
            return;
        }
        self.waiting.add(1);
        let mut open = self.open.lock();
        while !*open {
            let left = start.since(RealClock::tick());
            if left.is_zero() {
                break;
            }
            self.opened.wait_for(&mut open, left);
        }
        drop(open);
        self.waiting.sub(1);
        self.waited_us.add(micros(RealClock::tick().since(now)));
    }

    /// Sets whether all requests proceed at once: waiting threads could not stop.
    pub(crate) fn set_open(&self, open: bool) {
        *self.open.lock() = open;
        self.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millpond_env::thread;

    use super::*;

    #[test]
    fn a_rate_is_kept_and_a_rest_is_worth_little() {
        let rate = Rate::new(8 << 20);
        let mut now = Tick(50_000_000);
        let first = now;
        assert!(rate.pay(1 << 20, now) <= now, "nobody was before");
        for _ in 0..79 {
            now = rate.pay(1 << 20, now).max(now);
        }
        let took = now.since(first).as_millis();
        assert!((9_700..=9_900).contains(&took), "80 MiB at 8 MiB/s took {took} ms");
        // An hour without requests is worth a tenth of a second.
        let later = now.plus(Duration::from_hours(1));
        let starts: Vec<_> = (0..3).map(|_| rate.pay(1 << 20, later)).collect();
        assert!(starts[0] < later && starts[2] > later, "{starts:?}");
        assert_eq!(Rate::new(0).pay(u64::MAX, now), now, "no limit");
    }

    #[test]
    fn budgets_are_taken_and_wrong_ones_named() {
        let mut budgets = Budgets::default();
        for (name, value) in
            [("memory", "64MiB"), ("bandwidth", "8MiB/s"), ("read_bandwidth", "1.5GiB")]
        {
            assert_eq!(budgets.apply(name, value), Some(Ok(())), "{name}");
        }
        assert_eq!((budgets.memory, budgets.bandwidth), (64 << 20, 8 << 20));
        assert_eq!((budgets.read_bandwidth, budgets.write_bandwidth), (3 << 29, 0));
        assert_eq!(budgets.apply("colour", "red"), None);
        for (name, value) in [("memory", "much"), ("memory", "0"), ("bandwidth", "1k")] {
            let text = budgets.apply(name, value).unwrap().unwrap_err().to_string();
            assert!(text.starts_with(&format!("-o {name}={value}: use a number")), "{text}");
        }
    }

    #[test]
    fn threads_share_the_memory() {
        let of = |memory| Budgets { memory, ..Budgets::default() };
        assert_eq!(of(MEMORY).request_bytes(16, 4 << 20), 4 << 20);
        assert_eq!(of(MEMORY).request_bytes(63, 1 << 20), 1 << 20);
        assert_eq!(of(16 << 20).request_bytes(16, 1 << 20), 384 << 10);
        assert_eq!(of(16 << 20).check(16), Ok(()));
        let text = of(4 << 20).check(16).unwrap_err().to_string();
        assert_eq!(
            text,
            "-o memory=4MiB: is too small for 16 threads: use memory=6MiB or more, or threads=12"
        );
        assert_eq!((of(6 << 20).check(16), of(4 << 20).check(12)), (Ok(()), Ok(())));
    }

    #[test]
    fn memory_is_counted() {
        let memory = Memory::new(10);
        memory.take(4);
        assert!(memory.try_take(6) && !memory.try_take(1));
        memory.give(6);
        assert!(!memory.try_take(u64::MAX) && memory.try_take(1));
        assert_eq!((memory.used(), memory.limit()), (5, 10));
    }

    #[test]
    fn who_waits_is_let_through_when_threads_stop() {
        let bandwidth = Arc::new(Bandwidth::new(Budgets { bandwidth: 1, ..Budgets::default() }));
        bandwidth.pass(Way::Write, 1 << 40);
        let of_thread = Arc::clone(&bandwidth);
        let waits = thread("waits", move || of_thread.pass(Way::Read, 1)).unwrap();
        while bandwidth.waiting.get() == 0 {
            std::hint::spin_loop();
        }
        bandwidth.set_open(true);
        waits.join().unwrap();
        assert_eq!(bandwidth.waiting.get(), 0);
    }
}
