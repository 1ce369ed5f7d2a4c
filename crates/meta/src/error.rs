//! Errors of operations.

use millpond_store::{StoreError, StoreErrorKind, TransactError};
use millpond_types::meta::MetaError;
use millpond_types::wire::WireError;

use crate::delegation::Delegated;

/// The reason why a meta cannot execute a request now. The caller repeats it with the same
/// sequence.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// A record is damaged, or from a newer build.
    #[error("record {key} of the file namespace: {source}")]
    Record {
        /// Its key, printable.
        key: String,
        /// The decoding error.
        #[source]
        source: WireError,
    },
    /// The volume's format is newer than this build.
    #[error(
        "the volume has format {found}, this build knows formats up to {known}: upgrade this server"
    )]
    Format {
        /// The volume's.
        found: u32,
        /// The build's.
        known: u32,
    },
    /// A new file has no place: the cluster is not formed, or this process does not know its chains
    /// yet.
    #[error("no chain is known for the bytes of a new file")]
    NoChains,
}

/// The reason why an operation within a transaction was not done.
#[derive(Debug)]
pub(crate) enum Failed {
    /// POSIX forbids it.
    Refused(MetaError),
    /// The store or a record failed.
    Broken(VolumeError),
    /// Another session holds a directory that it read: it runs again after the return.
    Delegated(Delegated),
}

impl From<MetaError> for Failed {
    fn from(error: MetaError) -> Self {
        Self::Refused(error)
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Broken(VolumeError::Store(error))
    }
}

impl TransactError for Failed {
    fn store_error(&self) -> Option<&StoreError> {
        match self {
            Self::Broken(VolumeError::Store(error)) => Some(error),
            _ => None,
        }
    }
}

impl Failed {
    /// Turns a refusal into success; every other error must be retried by the caller.
    pub(crate) fn refused_is_done(self) -> Result<(), VolumeError> {
        match self {
            // Delegations were recalled before.
            Self::Refused(_) | Self::Delegated(_) => Ok(()),
            Self::Broken(error) => Err(error),
        }
    }

    /// Returns the answer: a POSIX error, or an error that the client retries.
    pub(crate) fn answer<T>(self) -> Result<Result<T, MetaError>, VolumeError> {
        match self {
            Self::Refused(error) => Ok(Err(error)),
            Self::Delegated(_) => Ok(Err(MetaError::Again)),
            Self::Broken(VolumeError::Store(error)) => match error.kind() {
                StoreErrorKind::Full => Ok(Err(MetaError::NoSpace)),
                // Its answer has been forgotten, so a client that repeats it this late cannot get
                // it.
                StoreErrorKind::Expired => Ok(Err(MetaError::Stale)),
                StoreErrorKind::TooLarge => Ok(Err(MetaError::Invalid)),
                _ => Err(VolumeError::Store(error)),
            },
            Self::Broken(other) => Err(other),
        }
    }
}
