//! Errors of calls to peers.

use std::io;

use millpond_types::wire::{ErrorReply, Failure, Status, WireError};

/// Error of a call to another node.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Nothing listens there: the host answers, but the port is closed.
    #[error("{address}: connection refused")]
    NobodyThere {
        /// The address.
        address: String,
    },
    /// No connection, or it broke.
    #[error("{address}: {source}")]
    Broken {
        /// The address.
        address: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The time was up.
    #[error("{0}: no answer in time")]
    Deadline(String),
    /// The peer breaks the protocol, or speaks another one.
    #[error("{address}: {source}")]
    Protocol {
        /// The address.
        address: String,
        /// The error.
        #[source]
        source: WireError,
    },
    /// The peer refuses the request, or this client.
    #[error("{address}: {message}")]
    Refused {
        /// The address.
        address: String,
        /// Status of the reply.
        status: Status,
        /// Time until a retry, in ms.
        retry_after_ms: u32,
        /// Reason and remedy.
        message: String,
    },
}

impl LinkError {
    pub(super) fn io(address: &str, source: io::Error) -> Self {
        let address = address.to_owned();
        match source.kind() {
            io::ErrorKind::ConnectionRefused => Self::NobodyThere { address },
            io::ErrorKind::TimedOut => Self::Deadline(address),
            _ => Self::Broken { address, source },
        }
    }

    pub(super) fn wire(address: &str, source: WireError) -> Self {
        Self::Protocol { address: address.to_owned(), source }
    }

    pub(super) fn refused(address: &str, status: Status, reply: ErrorReply) -> Self {
        let ErrorReply { retry_after_ms, message } = reply;
        Self::Refused { address: address.to_owned(), status, retry_after_ms, message }
    }

    /// Converts the error for the client of a forwarded request.
    pub(crate) fn into_failure(self) -> Failure {
        match self {
            Self::Refused { status, retry_after_ms, message, .. } => {
                Failure { status, retry_after_ms, message }
            }
            Self::Deadline(_) => Failure::new(Status::DeadlineExceeded, self.to_string()),
            _ => Failure::new(Status::Busy, self.to_string()),
        }
    }
}
