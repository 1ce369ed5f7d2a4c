//! Metrics by operation.

use std::sync::OnceLock;
use std::time::Duration;

use millpond_types::metrics::{Counter, Gauge, Histogram, Page, label};

use crate::back::metrics::BackMetrics;

/// The operations with separate metrics; others are `Other`.
const OPERATIONS: &[&str] = &[
    "AbortMultipartUpload",
    "CompleteMultipartUpload",
    "CopyObject",
    "CreateBucket",
    "CreateMultipartUpload",
    "DeleteBucket",
    "DeleteObject",
    "DeleteObjectTagging",
    "DeleteObjects",
    "GetObject",
    "GetObjectAttributes",
    "GetObjectTagging",
    "HeadBucket",
    "HeadObject",
    "ListBuckets",
    "ListMultipartUploads",
    "ListObjects",
    "ListObjectsV2",
    "ListParts",
    "PutObject",
    "PutObjectTagging",
    "UploadPart",
    "UploadPartCopy",
    "Other",
];

/// Metrics of one operation.
#[derive(Debug, Default)]
struct Operation {
    seconds: Histogram,
    refused: Counter,
    failed: Counter,
}

/// The metrics of a gateway.
#[derive(Debug)]
pub struct Metrics {
    operations: Vec<Operation>,
    pub(crate) connections: Gauge,
    pub(crate) in_flight: Gauge,
    pub(crate) received: Counter,
    sent: Counter,
    pub(crate) swept: Counter,
    /// Fill level of the pool in thousandths, if a bucket is backed.
    pub(crate) full: Gauge,
    /// Writes to backed buckets that waited for room; and that found none.
    pub(crate) waited: Counter,
    pub(crate) no_room: Counter,
    /// The metrics of backends.
    pub(crate) back: BackMetrics,
}

/// The operation of a request, once known.
#[derive(Debug, Default)]
pub(crate) struct Seen(OnceLock<String>);

impl Seen {
    pub(crate) fn set(&self, name: &str) {
        let _ = self.0.set(name.to_owned());
    }

    pub(crate) fn name(&self) -> &str {
        self.0.get().map_or("Other", String::as_str)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            operations: OPERATIONS.iter().map(|_| Operation::default()).collect(),
            connections: Gauge::default(),
            in_flight: Gauge::default(),
            received: Counter::default(),
            sent: Counter::default(),
            swept: Counter::default(),
            full: Gauge::default(),
            waited: Counter::default(),
            no_room: Counter::default(),
            back: BackMetrics::default(),
        }
    }
}

impl Metrics {
    /// Records an answer with this status.
    pub(crate) fn answered(&self, name: &str, (status, took): (u16, Duration)) {
        let place = OPERATIONS
            .iter()
            .position(|operation| *operation == name)
            .unwrap_or(OPERATIONS.len() - 1);
        let operation = &self.operations[place];
        operation.seconds.observe(took);
        match status {
            400..500 => operation.refused.inc(),
            500.. => operation.failed.inc(),
            _ => {}
        }
    }

    /// Counts bytes of objects sent.
    pub(crate) fn sent(&self, bytes: u64) {
        self.sent.add(bytes);
    }

    /// The page of `/metrics`.
    pub fn render(&self, page: &mut Page) {
        let all = || OPERATIONS.iter().zip(&self.operations);
        let labels = |name: &str| label("operation", name);
        page.histograms(
            (
                "millpond_s3_request_seconds",
                "Time from a request's header to the header of its answer.",
            ),
            all().map(|(name, operation)| (labels(name), operation.seconds.snapshot())),
        );
        page.many(
            (
                "millpond_s3_requests_refused_total",
                "Requests answered with a status of 400 to 499.",
            ),
            "counter",
            all().map(|(name, operation)| (labels(name), operation.refused.get())),
        );
        page.many(
            (
                "millpond_s3_requests_failed_total",
                "Requests answered with a status of 500 or more.",
            ),
            "counter",
            all().map(|(name, operation)| (labels(name), operation.failed.get())),
        );
        for (family, kind, value) in self.singles() {
            page.one(family, kind, value);
        }
        self.back.render(page);
    }

    /// The metrics with a single value.
    fn singles(&self) -> [((&'static str, &'static str), &'static str, u64); 8] {
        [
            (
                ("millpond_s3_connections", "Open connections of S3 clients."),
                "gauge",
                self.connections.get(),
            ),
            (
                (
                    "millpond_s3_requests_in_flight",
                    "Requests that the gateway has not begun to answer.",
                ),
                "gauge",
                self.in_flight.get(),
            ),
            (
                ("millpond_s3_receive_bytes_total", "Bytes of request bodies, as announced."),
                "counter",
                self.received.get(),
            ),
            (
                ("millpond_s3_send_bytes_total", "Bytes of requested objects."),
                "counter",
                self.sent.get(),
            ),
            (
                (
                    "millpond_s3_uploads_expired_total",
                    "Multipart uploads dropped because of their age.",
                ),
                "counter",
                self.swept.get(),
            ),
            (
                (
                    "millpond_s3_pool_used_thousandths",
                    "Fill level of the pool, if buckets are backed: writes wait above 850 and find \
                     no room above 950.",
                ),
                "gauge",
                self.full.get(),
            ),
            (
                (
                    "millpond_s3_writes_slowed_total",
                    "Writes to backed buckets that waited because the pool was nearly full.",
                ),
                "counter",
                self.waited.get(),
            ),
            (
                (
                    "millpond_s3_writes_no_room_total",
                    "Writes to backed buckets that found the pool full and were rejected or \
                     written through.",
                ),
                "counter",
                self.no_room.get(),
            ),
        ]
    }
}
