//! The error type of this crate.

use std::io;

/// Possible reaction of a caller to an [`EnvError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EnvErrorKind {
    /// A setting is out of range: change it.
    Config,
    /// The operating system refused: its limits or permissions need changing.
    Refused,
    /// Another process holds the resource.
    InUse,
    /// A peer, or a file it sent, breaks the rules: drop the peer.
    Hostile,
    /// The other end is gone.
    Closed,
}

/// Failure to set up a part of the environment.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    /// A setting is out of range.
    #[error("{field}: {fix}")]
    Config {
        /// The setting.
        field: &'static str,
        /// A valid value, for the error message.
        fix: String,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Os {
        /// The failed operation and its object.
        what: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Another process holds the resource.
    #[error(
        "{path} is in use by another process: stop it, or give this one its own folder (--data)"
    )]
    InUse {
        /// The file.
        path: String,
    },
    /// A peer's shared memory breaks the rules.
    #[error("shared memory from the peer is not usable: {0}")]
    Hostile(&'static str),
    /// The runtime or thread on the other end is gone.
    #[error("the runtime of that core has ended")]
    Closed,
}

impl EnvError {
    /// The caller's possible reaction.
    #[must_use]
    pub const fn kind(&self) -> EnvErrorKind {
        match self {
            Self::Config { .. } => EnvErrorKind::Config,
            Self::Os { .. } => EnvErrorKind::Refused,
            Self::InUse { .. } => EnvErrorKind::InUse,
            Self::Hostile(_) => EnvErrorKind::Hostile,
            Self::Closed => EnvErrorKind::Closed,
        }
    }

    pub(crate) fn os(what: impl Into<String>, source: io::Error) -> Self {
        Self::Os { what: what.into(), source }
    }
}
