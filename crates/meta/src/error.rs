//! How operations end that are not done.

use millpond_store::{StoreError, StoreErrorKind, TransactError};
use millpond_types::meta::MetaError;
use millpond_types::wire::WireError;

use crate::delegation::Delegated;

/// Why a meta cannot execute a request now. The caller repeats it with the same sequence.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The store.
    #[error(transparent)]
    Store(StoreError),
    /// A record is damaged, or from a newer build.
    #[error("record {key} of the file namespace: {source}")]
    Record {
        /// Its key, printable.
        key: String,
        /// What is wrong.
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
    /// A new file has no place: the cluster is not formed, or this process has not heard of its chains yet.
    #[error("no chain of nodes is known that the bytes of a new file could lie on")]
    NoChains,
}

/// Why an operation within a transaction was not done.
#[derive(Debug)]
pub(crate) enum Failed {
    /// POSIX forbids it.
    Refused(MetaError),
    /// Something is broken or away.
    Broken(VolumeError),
    /// Somebody holds what it looked at: it is begun anew when nobody does.
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
    /// What is refused needs not be done; everything else must be asked for again.
    pub(crate) fn refused_is_done(self) -> Result<(), VolumeError> {
        match self {
            // Who holds something is asked for it before.
            Self::Refused(_) | Self::Delegated(_) => Ok(()),
            Self::Broken(error) => Err(error),
        }
    }

    /// What to answer: an error of POSIX, or that it must be asked again.
    pub(crate) fn answer<T>(self) -> Result<Result<T, MetaError>, VolumeError> {
        match self {
            Self::Refused(error) => Ok(Err(error)),
            Self::Delegated(_) => Ok(Err(MetaError::Again)),
            Self::Broken(VolumeError::Store(error)) => match error.kind() {
                StoreErrorKind::Full => Ok(Err(MetaError::NoSpace)),
                // Its answer has been forgotten: whoever repeats it for so long cannot be told.
                StoreErrorKind::Expired => Ok(Err(MetaError::Stale)),
                StoreErrorKind::TooLarge => Ok(Err(MetaError::Invalid)),
                _ => Err(VolumeError::Store(error)),
            },
            Self::Broken(other) => Err(other),
        }
    }
}
