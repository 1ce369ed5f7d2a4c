//! Metrics of backends and of the backlog.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use millpond_types::metrics::{Counter, Gauge, Histogram, Page, label};
use parking_lot::Mutex;

use super::store::{Fault, Kind};

/// A metric of a bucket: name, type and help.
type Shown = (&'static str, &'static str, &'static str);
/// Reads the value of a metric.
type Value = fn(&OfBucket) -> u64;

/// All metrics of a bucket.
const OF_BUCKET: [(Shown, Value); 12] = [
    (("millpond_s3_backlog_keys", "gauge", "Keys in the backlog."), |bucket| bucket.keys.get()),
    (("millpond_s3_backlog_bytes", "gauge", "Bytes of these keys."), |bucket| bucket.bytes.get()),
    (
        (
            "millpond_s3_backlog_oldest_milliseconds",
            "gauge",
            "The age of the oldest of these keys.",
        ),
        |bucket| bucket.oldest_ms.get(),
    ),
    (
        (
            "millpond_s3_conflicts_total",
            "counter",
            "Keys in a shared prefix that another writer had written at the backend.",
        ),
        |bucket| bucket.conflicts.get(),
    ),
    (("millpond_s3_hits_total", "counter", "Reads of objects that were in the pool."), |bucket| {
        bucket.hits.get()
    }),
    (("millpond_s3_misses_total", "counter", "Reads that asked the backend."), |bucket| {
        bucket.misses.get()
    }),
    (("millpond_s3_fills_total", "counter", "Objects fetched from the backend."), |bucket| {
        bucket.fills.get()
    }),
    (("millpond_s3_fill_bytes_total", "counter", "Their bytes."), |bucket| bucket.filled.get()),
    (("millpond_s3_evictions_total", "counter", "Objects evicted by this gateway."), |bucket| {
        bucket.evictions.get()
    }),
    (("millpond_s3_evicted_bytes_total", "counter", "Their bytes."), |bucket| bucket.evicted.get()),
    (("millpond_s3_list_merges_total", "counter", "Pages of merged lists."), |bucket| {
        bucket.lists.get()
    }),
    (
        ("millpond_s3_list_merges_failed_total", "counter", "Pages of merged lists that failed."),
        |bucket| bucket.lists_failed.get(),
    ),
];

/// Operations of backends.
pub(crate) const OPERATIONS: [&str; 14] = [
    "put",
    "head",
    "get",
    "delete",
    "list",
    "tags",
    "create_upload",
    "upload_part",
    "complete_upload",
    "abort_upload",
    "list_uploads",
    "get_policy",
    "get_policy_status",
    "put_policy",
];
/// Results of operations.
const RESULTS: [&str; 7] =
    ["done", "refused", "unreachable", "slow_down", "unknown", "absent", "unmet"];

/// Metrics of one operation.
#[derive(Debug, Default)]
struct Operation {
    seconds: Histogram,
    results: [Counter; RESULTS.len()],
}

/// Metrics of one backend.
#[derive(Debug, Default)]
pub(crate) struct OfBackend {
    operations: [Operation; OPERATIONS.len()],
    /// Bytes of objects sent to the backend.
    pub(crate) sent: Counter,
    /// Bytes of objects requested from the backend.
    pub(crate) fetched: Counter,
    window: AtomicU32,
}

/// Metrics of one backed bucket.
#[derive(Debug, Default)]
pub(crate) struct OfBucket {
    /// Keys in the backlog, as of the last count.
    pub(crate) keys: Gauge,
    /// Bytes in the backlog.
    pub(crate) bytes: Gauge,
    /// Age of the oldest key in the backlog, in milliseconds.
    pub(crate) oldest_ms: Gauge,
    /// Keys with different content written by another client of the backend.
    pub(crate) conflicts: Counter,
    /// Client reads of objects in the pool.
    pub(crate) hits: Counter,
    /// Client reads that went to the backend.
    pub(crate) misses: Counter,
    /// Objects filled into the pool.
    pub(crate) fills: Counter,
    /// Bytes filled into the pool.
    pub(crate) filled: Counter,
    /// Objects evicted from the pool.
    pub(crate) evictions: Counter,
    /// Bytes evicted from the pool.
    pub(crate) evicted: Counter,
    /// Pages of listings.
    pub(crate) lists: Counter,
    /// Pages of listings that failed.
    pub(crate) lists_failed: Counter,
}

/// Metrics of a gateway about backends.
#[derive(Debug, Default)]
pub(crate) struct BackMetrics {
    backends: Mutex<BTreeMap<String, Arc<OfBackend>>>,
    buckets: Mutex<BTreeMap<String, Arc<OfBucket>>>,
    /// Keys with a running job.
    pub(crate) under_way: Gauge,
}

impl OfBackend {
    /// Records the end of a request.
    pub(crate) fn ended<T>(&self, operation: usize, done: &Result<T, Fault>, took: Duration) {
        let result = match done.as_ref().err().map(|fault| fault.kind) {
            None => 0,
            Some(Kind::Refused) => 1,
            Some(Kind::Unreachable) => 2,
            Some(Kind::SlowDown) => 3,
            Some(Kind::Unknown) => 4,
            Some(Kind::Absent) => 5,
            Some(Kind::Unmet) => 6,
        };
        self.operations[operation].seconds.observe(took);
        self.operations[operation].results[result].inc();
    }

    /// Sets the size of the window.
    pub(crate) fn window(&self, size: u32) {
        self.window.store(size, Ordering::Relaxed);
    }
}

impl BackMetrics {
    /// The metrics of a backend.
    pub(crate) fn backend(&self, name: &str) -> Arc<OfBackend> {
        Arc::clone(self.backends.lock().entry(name.to_owned()).or_default())
    }

    /// The metrics of a bucket.
    pub(crate) fn bucket(&self, name: &str) -> Arc<OfBucket> {
        Arc::clone(self.buckets.lock().entry(name.to_owned()).or_default())
    }

    /// Forgets a bucket that is no longer backed.
    pub(crate) fn forget(&self, name: &str) {
        self.buckets.lock().remove(name);
    }

    /// Writes its part of the page of `/metrics`: nothing without backends.
    pub(crate) fn render(&self, page: &mut Page) {
        self.render_backends(page);
        self.render_buckets(page);
    }

    fn render_backends(&self, page: &mut Page) {
        let backends = self.backends.lock();
        if backends.is_empty() {
            return;
        }
        let operations = || {
            backends.iter().flat_map(|(name, backend)| {
                let of =
                    move |n: &str| format!("{},{}", label("backend", name), label("operation", n));
                // Operations that were never used have no lines.
                let asked =
                    |operation: &Operation| operation.results.iter().any(|count| count.get() > 0);
                let all = OPERATIONS
                    .iter()
                    .zip(&backend.operations)
                    .filter(move |(_, operation)| asked(operation));
                all.map(move |(name, operation)| (of(name), operation))
            })
        };
        page.histograms(
            (
                "millpond_s3_backend_request_seconds",
                "Time from a request to a backend until its answer begins.",
            ),
            operations().map(|(labels, operation)| (labels, operation.seconds.snapshot())),
        );
        page.many(
            ("millpond_s3_backend_requests_total", "Requests to backends, by result."),
            "counter",
            operations().flat_map(|(labels, operation)| {
                let results = RESULTS.iter().zip(&operation.results);
                results
                    .map(move |(name, n)| (format!("{labels},{}", label("result", name)), n.get()))
            }),
        );
        let of_each = |value: fn(&OfBackend) -> u64| {
            backends.iter().map(move |(name, backend)| (label("backend", name), value(backend)))
        };
        page.many(
            ("millpond_s3_backend_sent_bytes_total", "Bytes of objects that backends accepted."),
            "counter",
            of_each(|backend| backend.sent.get()),
        );
        page.many(
            (
                "millpond_s3_backend_fetched_bytes_total",
                "Bytes of objects that came from backends.",
            ),
            "counter",
            of_each(|backend| backend.fetched.get()),
        );
        page.many(
            ("millpond_s3_backend_window", "Requests that the persister may have in flight."),
            "gauge",
            of_each(|backend| backend.window.load(Ordering::Relaxed).into()),
        );
    }

    fn render_buckets(&self, page: &mut Page) {
        let buckets = self.buckets.lock();
        if buckets.is_empty() {
            return;
        }
        let mut of_each = |(name, kind, help): Shown, value: Value| {
            let lines = buckets.iter().map(|(name, bucket)| (label("bucket", name), value(bucket)));
            page.many((name, help), kind, lines);
        };
        for (shown, value) in OF_BUCKET {
            of_each(shown, value);
        }
        page.one(
            ("millpond_s3_persisting_keys", "Keys that this gateway is persisting."),
            "gauge",
            self.under_way.get(),
        );
    }
}
