//! The one error type of this crate.

use std::io;
use std::time::Duration;

use millpond_types::cluster::{ChainId, NodeId};
use millpond_types::meta::MetaError;
use millpond_types::wire::{ErrorReply, ItemStatus, Status, WireError};
use millpond_types::{FileChunk, KeyError};

/// The caller's possible reaction to a [`ClientError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// No server answers at the address, or the connection broke.
    Unreachable,
    /// The deadline passed first.
    DeadlineExceeded,
    /// The credential is missing or unknown.
    Unauthorized,
    /// The namespace holds blocks of another layout.
    LayoutMismatch,
    /// No such namespace.
    NoNamespace,
    /// The namespace exists with other options.
    Conflict,
    /// A queue is full; retry after the returned time.
    Busy,
    /// No space, and nothing may be evicted.
    NoSpace,
    /// The disk rejects writes.
    ReadOnly,
    /// The peer broke the protocol or uses another one.
    Protocol,
    /// An argument breaks a limit.
    InvalidArgument,
    /// A file or name is not in the state that the call needs; the error has the POSIX name of the
    /// reason.
    File,
    /// A fault of the server; its log has more.
    Internal,
}

impl ErrorKind {
    /// Name used by metrics and by the Python exceptions.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unreachable => "Unreachable",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::Unauthorized => "Unauthorized",
            Self::LayoutMismatch => "LayoutMismatch",
            Self::NoNamespace => "NoNamespace",
            Self::Conflict => "Conflict",
            Self::Busy => "Busy",
            Self::NoSpace => "NoSpace",
            Self::ReadOnly => "ReadOnly",
            Self::Protocol => "Protocol",
            Self::InvalidArgument => "InvalidArgument",
            Self::File => "FileError",
            Self::Internal => "Internal",
        }
    }
}

/// Why a call failed, and how to fix it.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No server answers at the address.
    #[error("cannot reach a Millpond server at {address}: {source}; is `millpond server` running?")]
    Connect {
        /// The address tried.
        address: String,
        /// The answer of the operating system.
        #[source]
        source: io::Error,
    },
    /// The connection broke during a call.
    #[error(
        "the connection to {address} broke: {source}; the server may or may not have executed the \
         call"
    )]
    Broken {
        /// The server.
        address: String,
        /// The error of the connection.
        #[source]
        source: io::Error,
    },
    /// A connection failed a short while ago and is not tried again yet.
    #[error("the server at {address} is down ({reason}); the next attempt is made in {retry_in:?}")]
    Down {
        /// The server.
        address: String,
        /// The error of the last attempt.
        reason: String,
        /// Time until the next attempt.
        retry_in: Duration,
    },
    /// The client was closed.
    #[error("the client is closed: open a new one")]
    Closed,
    /// The deadline passed first.
    #[error(
        "the deadline of {0:?} passed while {1}; raise deadline_ms or look at the server's load"
    )]
    Deadline(Duration, &'static str),
    /// The deadline of a call to a cluster passed first.
    #[error(
        "the deadline of {given:?} passed with {open} of {all} keys unanswered after {rounds} \
         tries: {tried}; `millpond admin status` shows the problems of the cluster"
    )]
    Unanswered {
        /// The deadline.
        given: Duration,
        /// Keys without an answer.
        open: usize,
        /// Keys of the call.
        all: usize,
        /// Number of rounds.
        rounds: u32,
        /// The last failure.
        tried: String,
    },
    /// The server refused the request.
    #[error("{message}")]
    Refused {
        /// Its status.
        status: Status,
        /// Pause before a retry; zero when a retry would not help.
        retry_after: Duration,
        /// The error and its remedy, in the server's words.
        message: String,
    },
    /// The peer sent bytes that are no valid frame.
    #[error("the peer at {address} violated the protocol: {source}")]
    Wire {
        /// The peer.
        address: String,
        /// The fault.
        #[source]
        source: WireError,
    },
    /// The peer sent a valid frame that is not allowed here.
    #[error("the peer at {address} violated the protocol: {what}")]
    Unexpected {
        /// The peer.
        address: String,
        /// The fault.
        what: &'static str,
    },
    /// Another server than before answers at the address: names must be looked up again.
    #[error("a different server answers at {address} than before: open the namespace again")]
    OtherServer {
        /// The address.
        address: String,
    },
    /// The server is standalone.
    #[error(
        "the server at {address} is not part of a cluster, and files need one: start it with \
         `millpond server --manager`, and further servers with `--join`"
    )]
    Alone {
        /// The server.
        address: String,
    },
    /// A chunk of a file was not written or cut; other parts of the call may have been.
    #[error("{chunk} on chain {}: node {node} answers {}{}", chain.0, status.name(), advice(*status))]
    Chunk {
        /// The chunk.
        chunk: FileChunk,
        /// Its chain.
        chain: ChainId,
        /// The head that was asked; nil when none was.
        node: NodeId,
        /// Its answer.
        status: ItemStatus,
    },
    /// Bytes of a file are lost.
    #[error(
        "{chunk} on chain {}: {solid} bytes from byte {offset} on were written, but only {there} \
         of them exist: the rest is lost. `millpond fsck` names the damaged files; restore this \
         one from its source",
        chain.0
    )]
    Missing {
        /// The chunk.
        chunk: FileChunk,
        /// Its chain.
        chain: ChainId,
        /// Offset of the first byte asked for in it.
        offset: u32,
        /// Number of bytes written from there on.
        solid: u32,
        /// Number of those bytes that exist.
        there: u32,
    },
    /// A file or name is not in the state that the call needs; nothing was done.
    #[error("{path}: {source}")]
    File {
        /// The path that the caller named.
        path: String,
        /// The error by its POSIX name.
        #[source]
        source: MetaError,
    },
    /// A key breaks its limits.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An argument breaks a limit.
    #[error("{field}: {fix}")]
    Argument {
        /// The argument.
        field: &'static str,
        /// A valid argument.
        fix: String,
    },
}

impl ClientError {
    /// Whether chunks were not changed because their file was cloned: the file must get other
    /// chunks first.
    #[must_use]
    pub const fn is_sealed(&self) -> bool {
        matches!(self, Self::Chunk { status: ItemStatus::Sealed, .. })
    }

    /// Whether written bytes are missing: lost, unless the file was cut since the caller read its
    /// attributes.
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }

    /// The caller's possible reaction.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Connect { .. } | Self::Broken { .. } | Self::Down { .. } | Self::Closed => {
                ErrorKind::Unreachable
            }
            Self::Deadline(..) | Self::Unanswered { .. } => ErrorKind::DeadlineExceeded,
            Self::Refused { status, .. } => kind_of(*status),
            Self::Wire { .. } | Self::Unexpected { .. } => ErrorKind::Protocol,
            Self::OtherServer { .. } => ErrorKind::NoNamespace,
            Self::Chunk { status, .. } => kind_of_item(*status),
            Self::File { .. } | Self::Missing { .. } => ErrorKind::File,
            Self::Alone { .. } | Self::Key(_) | Self::Argument { .. } => ErrorKind::InvalidArgument,
        }
    }

    /// Pause before a retry; zero when a retry would not help.
    #[must_use]
    pub const fn retry_after(&self) -> Duration {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            Self::Down { retry_in, .. } => *retry_in,
            _ => Duration::ZERO,
        }
    }

    /// The errno of Linux, for an error about a file or a name.
    #[must_use]
    pub const fn errno(&self) -> Option<i32> {
        match self {
            Self::File { source, .. } => Some(source.errno()),
            Self::Missing { .. } => Some(MetaError::Io.errno()),
            _ => None,
        }
    }

    pub(crate) fn refused(status: Status, reply: ErrorReply) -> Self {
        Self::Refused {
            status,
            retry_after: Duration::from_millis(u64::from(reply.retry_after_ms)),
            message: reply.message,
        }
    }

    pub(crate) fn argument(field: &'static str, fix: impl Into<String>) -> Self {
        Self::Argument { field, fix: fix.into() }
    }
}

const fn kind_of_item(status: ItemStatus) -> ErrorKind {
    match status {
        ItemStatus::NoSpace => ErrorKind::NoSpace,
        ItemStatus::ReadOnly => ErrorKind::ReadOnly,
        _ => ErrorKind::Internal,
    }
}

const fn advice(status: ItemStatus) -> &'static str {
    match status {
        ItemStatus::NoSpace => ": a disk of the chain is full: remove files, or add disks",
        ItemStatus::Sealed => ": the file was cloned: get its current data id and write there",
        _ => "; see the log of the node",
    }
}

const fn kind_of(status: Status) -> ErrorKind {
    match status {
        Status::BadRequest => ErrorKind::InvalidArgument,
        Status::Unauthorized => ErrorKind::Unauthorized,
        Status::NoNamespace => ErrorKind::NoNamespace,
        Status::LayoutMismatch => ErrorKind::LayoutMismatch,
        Status::Busy => ErrorKind::Busy,
        Status::DeadlineExceeded => ErrorKind::DeadlineExceeded,
        Status::NoSpace => ErrorKind::NoSpace,
        Status::ReadOnly => ErrorKind::ReadOnly,
        Status::ShuttingDown => ErrorKind::Unreachable,
        Status::Unsupported => ErrorKind::Protocol,
        Status::Conflict => ErrorKind::Conflict,
        Status::Ok | Status::Internal => ErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::{DataId, Uuid128};

    use super::*;

    #[test]
    fn a_chunk_that_was_not_written_is_named_with_its_chain_and_node() {
        let failed = |status| ClientError::Chunk {
            chunk: FileChunk { data: DataId(0xabc), index: 3 },
            chain: ChainId(7),
            node: NodeId(Uuid128([1; 16])),
            status,
        };
        let error = failed(ItemStatus::NoSpace);
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(
            error.to_string(),
            "chunk 3 of data 0000000000000abc on chain 7: node 01010101-0101-0101-0101-010101010101 answers \
             NoSpace: a disk of the chain is full: remove files, or add disks"
        );
        assert_eq!(failed(ItemStatus::ReadOnly).kind(), ErrorKind::ReadOnly);
        assert_eq!(failed(ItemStatus::Quota).kind(), ErrorKind::Internal);
    }
}
