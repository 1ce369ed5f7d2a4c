//! Why a server does not do what a request asks.

use super::{ErrorReply, Status, WireError};

/// When a client that met a full queue should try again: a few disk writes later.
const RETRY_AFTER_MS: u32 = 20;

/// Why a whole request failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What the reply says.
    pub status: Status,
    /// When to try again, in ms; 0 when that would not help.
    pub retry_after_ms: u32,
    /// What is wrong and what to do about it.
    pub message: String,
}

impl Failure {
    /// A failure that a retry would not help.
    #[must_use]
    pub fn new(status: Status, message: String) -> Self {
        let retry_after_ms = if status == Status::Busy { RETRY_AFTER_MS } else { 0 };
        Self { status, retry_after_ms, message }
    }

    /// The request is malformed.
    #[must_use]
    pub fn bad(message: String) -> Self {
        Self::new(Status::BadRequest, message)
    }

    /// The reply's meta.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        ErrorReply { retry_after_ms: self.retry_after_ms, message: self.message.clone() }.encode()
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        Self::bad(error.to_string())
    }
}
