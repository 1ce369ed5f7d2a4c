//! What the proxy has done so far.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// The number.
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
    /// Requests that came.
    pub requests: Count,
    /// Requests whose answer was passed on, or begun to be.
    pub forwarded: Count,
    /// Answered 503.
    pub slowed: Count,
    /// Answered 500.
    pub errors: Count,
    /// Reset before the backend saw them.
    pub resets: Count,
    /// Left without an answer.
    pub hangs: Count,
    /// Reset behind the backend's answer.
    pub commit_resets: Count,
    /// Reset within the answer.
    pub cuts: Count,
    /// Bits changed.
    pub flips: Count,
    /// Reset by an outage.
    pub outage_resets: Count,
    /// Reset because the backend was not there or ended the connection.
    pub backend_failures: Count,
    /// Bytes of bodies from clients.
    pub bytes_up: Count,
    /// Bytes of bodies to clients.
    pub bytes_down: Count,
}

impl Counts {
    /// All of them by their names.
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
