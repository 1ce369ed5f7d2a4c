//! Counters of the proxy.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

/// A counter that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// The value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts since the proxy was started.
#[derive(Debug, Default)]
pub struct Counts {
    /// Connections of clients.
    pub connections: Count,
    /// Connections to the backend.
    pub backend_connections: Count,
    /// Requests received.
    pub requests: Count,
    /// Requests with an answer that was passed on, at least in part.
    pub forwarded: Count,
    /// Requests answered with 503.
    pub slowed: Count,
    /// Requests answered with 500.
    pub errors: Count,
    /// Requests reset before the backend saw them.
    pub resets: Count,
    /// Requests left without an answer.
    pub hangs: Count,
    /// Requests reset after the backend's answer.
    pub commit_resets: Count,
    /// Requests reset within the answer.
    pub cuts: Count,
    /// Bits inverted.
    pub flips: Count,
    /// Requests reset by an outage.
    pub outage_resets: Count,
    /// Requests reset because the backend was unreachable or ended the connection.
    pub backend_failures: Count,
    /// Bytes of bodies from clients.
    pub bytes_up: Count,
    /// Bytes of bodies to clients.
    pub bytes_down: Count,
}

impl Counts {
    /// All counters by name.
    #[must_use]
    pub fn report(&self) -> Value {
        json!({
            "connections": self.connections.get(),
            "backend_connections": self.backend_connections.get(),
            "requests": self.requests.get(),
            "forwarded": self.forwarded.get(),
            "slowed": self.slowed.get(),
            "errors": self.errors.get(),
            "resets": self.resets.get(),
            "hangs": self.hangs.get(),
            "commit_resets": self.commit_resets.get(),
            "cuts": self.cuts.get(),
            "flips": self.flips.get(),
            "outage_resets": self.outage_resets.get(),
            "backend_failures": self.backend_failures.get(),
            "bytes_up": self.bytes_up.get(),
            "bytes_down": self.bytes_down.get(),
        })
    }
}
