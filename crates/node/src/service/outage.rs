//! One log line when something starts to fail, one when it works again; not one per request.

use std::sync::atomic::{AtomicU64, Ordering};

/// Failures of one thing in a row.
#[derive(Debug)]
pub(super) struct Outage {
    what: &'static str,
    failures: AtomicU64,
}

impl Outage {
    /// Nothing has failed yet.
    #[must_use]
    pub(super) const fn new(what: &'static str) -> Self {
        Self { what, failures: AtomicU64::new(0) }
    }

    /// Notes a failure; logs it if the last attempt had worked.
    pub(super) fn failed(&self, place: &str, error: &dyn std::fmt::Display) {
        if self.failures.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::error!(disk = place, "{} fails: {error}", self.what);
        }
    }

    /// Notes a success; logs it if the last attempt had failed.
    pub(super) fn worked(&self, place: &str) {
        if self.failures.load(Ordering::Relaxed) > 0 {
            let failures = self.failures.swap(0, Ordering::Relaxed);
            tracing::info!(disk = place, failures, "{} works again", self.what);
        }
    }
}
