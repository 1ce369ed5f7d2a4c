//! Counters of the server. Rendered by `http::prometheus`; `docs/metrics.md` lists the names.

use millpond_types::metrics::{Counter, Gauge, Histogram};
use millpond_types::wire::{Status, Verb};

/// Requests of one verb.
#[derive(Debug, Default)]
pub struct VerbMetrics {
    /// From receipt of the header to the reply being queued.
    pub latency: Histogram,
    /// Replies whose status is not `Ok`.
    pub failed: Counter,
}

/// Times of the stages of requests, over all verbs.
#[derive(Debug, Default)]
pub struct StageMetrics {
    /// From receipt of the header to the start of the work: other requests, budgets.
    pub queue: Histogram,
    /// Receiving the payload of a put.
    pub receive: Histogram,
    /// Copying the payload of a put out of a client's shared memory.
    pub copy: Histogram,
    /// Reading values that were not in memory.
    pub disk: Histogram,
    /// Storing values, until they are acknowledged.
    pub commit: Histogram,
    /// From the reply being queued to its last byte being taken by the kernel.
    pub send: Histogram,
}

/// Everything the server counts outside engines and namespaces.
#[derive(Debug)]
pub struct Metrics {
    verbs: Vec<VerbMetrics>,
    /// Times of the stages of requests.
    pub stages: StageMetrics,
    /// Open connections.
    pub connections: Gauge,
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections refused because there were too many.
    pub refused: Counter,
    /// Connections closed for breaking the protocol.
    pub protocol_errors: Counter,
    /// Hellos refused for their credential.
    pub unauthorized: Counter,
    /// Connections closed because the client took no byte for too long.
    pub stalled: Counter,
    /// Requests being worked on.
    pub in_flight: Gauge,
    /// Bytes of values held for requests and replies in flight.
    pub in_flight_bytes: Gauge,
    /// Requests answered `Busy`, wholly or in part.
    pub busy: Counter,
    /// Requests whose deadline passed before the work was done.
    pub late: Counter,
    /// Bytes received in payloads.
    pub bytes_in: Counter,
    /// Bytes in payloads received through shared memory.
    pub shm_bytes_in: Counter,
    /// Bytes sent in payloads.
    pub bytes_out: Counter,
    /// Bytes in payloads that this process's own gateway sent straight from the pool.
    pub own_bytes_out: Counter,
    /// Values read from memory.
    pub memory_hits: Counter,
    /// Values read from disk.
    pub disk_reads: Counter,
    /// Clients attached through shared memory.
    pub shm_clients: Gauge,
    /// Holds taken back because the client kept them too long.
    pub holds_expired: Counter,
    /// Values lent to a client for longer than the time limit of copies.
    pub holds_overdue: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            verbs: Verb::ALL.iter().map(|_| VerbMetrics::default()).collect(),
            stages: StageMetrics::default(),
            connections: Gauge::default(),
            accepted: Counter::default(),
            refused: Counter::default(),
            protocol_errors: Counter::default(),
            unauthorized: Counter::default(),
            stalled: Counter::default(),
            in_flight: Gauge::default(),
            in_flight_bytes: Gauge::default(),
            busy: Counter::default(),
            late: Counter::default(),
            bytes_in: Counter::default(),
            shm_bytes_in: Counter::default(),
            bytes_out: Counter::default(),
            own_bytes_out: Counter::default(),
            memory_hits: Counter::default(),
            disk_reads: Counter::default(),
            shm_clients: Gauge::default(),
            holds_expired: Counter::default(),
            holds_overdue: Counter::default(),
        }
    }
}

impl Metrics {
    /// The counters of `verb`.
    #[must_use]
    pub fn verb(&self, verb: Verb) -> &VerbMetrics {
        &self.verbs[Self::index(verb)]
    }

    fn index(verb: Verb) -> usize {
        Verb::ALL.iter().position(|known| *known == verb).unwrap_or(0)
    }

    /// Counts a request that was answered after `us` microseconds.
    pub fn answered(&self, verb: Verb, status: Status, us: u64) {
        let metrics = self.verb(verb);
        metrics.latency.observe_us(us);
        match status {
            Status::Ok => {}
            Status::Busy => {
                self.busy.inc();
                metrics.failed.inc();
            }
            Status::DeadlineExceeded => {
                self.late.inc();
                metrics.failed.inc();
            }
            _ => metrics.failed.inc(),
        }
    }
}

/// Counters of a namespace.
#[derive(Debug, Default)]
pub struct NamespaceMetrics {
    /// Keys read and found.
    pub hits: Counter,
    /// Keys read and not found.
    pub misses: Counter,
    /// Values stored.
    pub stored: Counter,
    /// Puts that found another value there.
    pub exists: Counter,
    /// Values refused because the quota was used up and nothing could be evicted.
    pub over_quota: Counter,
    /// Bytes of values stored.
    pub bytes_in: Counter,
    /// Bytes of values sent.
    pub bytes_out: Counter,
}
