//! The metrics of a mount: each thread has its own counters, so that no two write to the same
//! memory.

use std::sync::OnceLock;
use std::time::Duration;

use millpond_env::RealClock;
use millpond_fuse_wire::abi::Opcode;
use millpond_types::Tick;
use millpond_types::metrics::{Counter, Gauge, Histogram, HistogramSnapshot};

use super::line::Outcome;
use crate::behind::Delegations;
use crate::budget::Budgets;
use crate::cached::CachePicture;
use crate::errno::Errno;
use crate::files::FilesNumbers;
use crate::fs::Fs;

/// Operations have numbers below this.
const OPERATIONS: usize = 64;
/// Errors have numbers below this; Linux has none above 133.
const ERRNOS: usize = 134;

/// Counters of one operation.
#[derive(Debug, Default)]
struct OfOperation {
    took: Histogram,
    failed: Counter,
}

/// Counters of one thread.
#[derive(Debug)]
struct Shard {
    /// Allocated at the first use of an operation: a mount uses a dozen of them.
    operations: [OnceLock<Box<OfOperation>>; OPERATIONS],
    errors: [Counter; ERRNOS],
    read_bytes: Counter,
    written_bytes: Counter,
    in_flight: Gauge,
}

impl Shard {
    fn new() -> Self {
        Self {
            operations: [const { OnceLock::new() }; OPERATIONS],
            errors: std::array::from_fn(|_| Counter::default()),
            read_bytes: Counter::default(),
            written_bytes: Counter::default(),
            in_flight: Gauge::default(),
        }
    }
}

/// Counters of all threads.
#[derive(Debug)]
pub(super) struct Numbers {
    shards: Box<[Shard]>,
    /// Resent requests, and the number of them that the mount remembered.
    pub(super) resent: Counter,
    pub(super) repeated: Counter,
}

/// Metrics of an operation, summed over all threads.
#[derive(Clone, Debug)]
pub(crate) struct OperationPicture {
    pub(crate) name: String,
    pub(crate) took: HistogramSnapshot,
    pub(crate) failed: u64,
}

impl Numbers {
    pub(super) fn new(shards: usize) -> Self {
        let shards = (0..shards.max(1)).map(|_| Shard::new()).collect();
        Self { shards, resent: Counter::default(), repeated: Counter::default() }
    }

    fn shard(&self, shard: usize) -> &Shard {
        &self.shards[shard % self.shards.len()]
    }

    pub(super) fn begin(&self, shard: usize) {
        self.shard(shard).in_flight.add(1);
    }

    pub(super) fn end(&self, (shard, opcode): (usize, u32), took: Duration, outcome: &Outcome) {
        let shard = self.shard(shard);
        shard.in_flight.sub(1);
        let Some(operation) = shard.operations.get(opcode as usize) else { return };
        let operation = operation.get_or_init(Box::default);
        operation.took.observe(took);
        match *outcome {
            Outcome::Failed(errno) => {
                operation.failed.inc();
                let number = usize::try_from(errno).unwrap_or(0).min(ERRNOS - 1);
                shard.errors[number].inc();
            }
            Outcome::Bytes(bytes) if opcode == Opcode::Read as u32 => shard.read_bytes.add(bytes),
            Outcome::Bytes(bytes) if opcode == Opcode::Write as u32 => {
                shard.written_bytes.add(bytes);
            }
            _ => {}
        }
    }

    fn sum(&self, number: impl Fn(&Shard) -> u64) -> u64 {
        self.shards.iter().map(number).sum()
    }

    /// Operations that occurred, in the order of their numbers.
    fn operations(&self) -> Vec<OperationPicture> {
        let mut all = Vec::new();
        for opcode in Opcode::ALL {
            let of_threads = |shard: &Shard| shard.operations[*opcode as usize].get().is_some();
            if !self.shards.iter().any(of_threads) {
                continue;
            }
            let (mut took, mut failed) = (HistogramSnapshot::default(), 0);
            for shard in &self.shards {
                if let Some(operation) = shard.operations[*opcode as usize].get() {
                    took.add(&operation.took.snapshot());
                    failed += operation.failed.get();
                }
            }
            all.push(OperationPicture { name: opcode.name().to_lowercase(), took, failed });
        }
        all
    }
}

/// One kind of call to the cluster.
#[derive(Debug, Default)]
pub(crate) struct Call {
    took: Histogram,
    failed: Counter,
}

impl Call {
    /// Measures and counts a call.
    pub(crate) fn timed<T, E>(&self, call: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let started: Tick = RealClock::tick();
        let done = call();
        self.took.observe(RealClock::tick().since(started));
        if done.is_err() {
            self.failed.inc();
        }
        done
    }
}

/// The calls of a mount to its cluster.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) look: Call,
    pub(crate) change: Call,
    pub(crate) read: Call,
    pub(crate) write: Call,
    pub(crate) cut: Call,
}

/// Name, latencies, and number of failures of a kind of call.
pub(crate) type CallPicture = (&'static str, HistogramSnapshot, u64);

fn of_call(name: &'static str, call: &Call) -> CallPicture {
    (name, call.took.snapshot(), call.failed.get())
}

/// A snapshot of all metrics of a mount.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    pub(crate) operations: Vec<OperationPicture>,
    /// By errno name.
    pub(crate) errors: Vec<(String, u64)>,
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) in_flight: u64,
    pub(crate) resent: u64,
    pub(crate) repeated: u64,
    pub(crate) log_readers: u64,
    pub(crate) log_dropped: u64,
    pub(crate) meta: [CallPicture; 2],
    pub(crate) chunks: [CallPicture; 3],
    pub(crate) files: FilesNumbers,
    /// Number of delegated directories, and of recalls.
    pub(crate) delegations: (u64, u64),
    pub(crate) budgets: BudgetsPicture,
    pub(crate) ahead: AheadPicture,
    pub(crate) cache: CachePicture,
}

/// Limits of a mount, and their use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BudgetsPicture {
    pub(crate) limits: Budgets,
    pub(crate) memory_used: u64,
    /// Number of requests that wait for bandwidth, and the total time of past waits.
    pub(crate) waiting: u64,
    pub(crate) waited_us: u64,
}

/// Bytes of read-ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AheadPicture {
    pub(crate) fetched: u64,
    pub(crate) used: u64,
    pub(crate) wasted: u64,
    pub(crate) again_fetched: u64,
    pub(crate) again_read: u64,
}

impl Fs {
    /// Takes a snapshot.
    pub(crate) fn picture(&self) -> Picture {
        let (numbers, calls) = (&self.watch.numbers, &self.backend.calls);
        let errors = (1..ERRNOS).filter_map(|errno| {
            let count = numbers.sum(|shard| shard.errors[errno].get());
            let name = Errno(i32::try_from(errno).unwrap_or(0)).name();
            (count > 0).then_some((name, count))
        });
        Picture {
            operations: numbers.operations(),
            errors: errors.collect(),
            read_bytes: numbers.sum(|shard| shard.read_bytes.get()),
            written_bytes: numbers.sum(|shard| shard.written_bytes.get()),
            in_flight: numbers.sum(|shard| shard.in_flight.get()),
            resent: numbers.resent.get(),
            repeated: numbers.repeated.get(),
            log_readers: self.watch.log.readers(),
            log_dropped: self.watch.log.dropped(),
            meta: [of_call("look", &calls.look), of_call("change", &calls.change)],
            chunks: [
                of_call("read", &calls.read),
                of_call("write", &calls.write),
                of_call("cut", &calls.cut),
            ],
            files: self.files().numbers(),
            delegations: self
                .backend
                .behind
                .delegations
                .as_ref()
                .map_or((0, 0), Delegations::counts),
            budgets: BudgetsPicture {
                limits: self.bandwidth.budgets,
                memory_used: self.ahead.memory().used(),
                waiting: self.bandwidth.waiting.get(),
                waited_us: self.bandwidth.waited_us.get(),
            },
            ahead: AheadPicture {
                fetched: self.ahead.numbers().fetched.get(),
                used: self.ahead.numbers().used.get(),
                wasted: self.ahead.numbers().wasted.get(),
                again_fetched: self.ahead.numbers().again_fetched.get(),
                again_read: self.ahead.numbers().again_read.get(),
            },
            cache: self.cached.as_ref().map(|cache| cache.picture()).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_count_is_added_up() {
        let numbers = Numbers::new(2);
        let (read, lookup) = (Opcode::Read as u32, Opcode::Lookup as u32);
        for shard in 0..4 {
            numbers.begin(shard);
            numbers.end((shard, read), Duration::from_micros(100), &Outcome::Bytes(10));
        }
        numbers.begin(1);
        numbers.end((1, lookup), Duration::from_micros(7), &Outcome::Failed(libc::ENOENT));
        numbers.begin(0);
        let operations = numbers.operations();
        let names: Vec<&str> = operations.iter().map(|operation| &*operation.name).collect();
        assert_eq!(names, ["lookup", "read"], "no others were seen");
        assert_eq!((operations[0].took.count(), operations[0].failed), (1, 1));
        assert_eq!((operations[1].took.count(), operations[1].took.sum_us), (4, 400));
        assert_eq!(numbers.sum(|shard| shard.read_bytes.get()), 40);
        assert_eq!(numbers.sum(|shard| shard.written_bytes.get()), 0);
        assert_eq!(numbers.sum(|shard| shard.in_flight.get()), 1);
        assert_eq!(numbers.sum(|shard| shard.errors[libc::ENOENT as usize].get()), 1);
    }

    #[test]
    fn numbers_of_the_kernel_fit() {
        assert!(Opcode::ALL.iter().all(|opcode| (*opcode as usize) < OPERATIONS));
    }
}
