//! The error type of this crate.

/// The underlying error of a library.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The possible reaction of a caller to a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreErrorKind {
    /// Nothing was written: run the transaction again.
    Conflict,
    /// It may have been written or not: find out, or repeat with a request id.
    Unknown,
    /// Nothing was written: try again later.
    Unavailable,
    /// The request breaks a bound and always will: make it smaller.
    TooLarge,
    /// The requested changes are gone: read the range, and watch from there.
    Compacted,
    /// The request's id is older than the remembered ones: it must not be tried again.
    Expired,
    /// Another process has the folder open.
    InUse,
    /// The store refuses this client: fix its credentials or certificates.
    Denied,
    /// A setting is wrong: fix it.
    Config,
    /// No room: make some.
    Full,
    /// The disk, or its content, is damaged: the store must be opened again or restored.
    Damaged,
}

/// The reason why the store did not execute a call.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another transaction wrote a key or range that this one had read, or this one took too long.
    #[error("another transaction changed what this one had read")]
    Conflict,
    /// The answer to a commit was lost.
    #[error("the outcome of the commit is unknown: {0}")]
    Unknown(#[source] Cause),
    /// No member of the store answers, or the store has been closed. Nothing was written.
    #[error("the transactional store is not available: {0}")]
    Unavailable(#[source] Cause),
    /// A bound of `types::limits` would be broken.
    #[error("{what}: {actual} is over the limit of {bound}")]
    TooLarge {
        /// The quantity that is too large.
        what: &'static str,
        /// The bound.
        bound: usize,
        /// The requested amount.
        actual: usize,
    },
    /// A key is in the range that the store keeps for itself, or is empty.
    #[error("a key must not be empty or start with the byte 0xff, which is reserved for the store")]
    BadKey,
    /// Changes up to this version are no longer kept.
    #[error("changes up to version {0} are no longer kept: read the range again")]
    Compacted(u64),
    /// The request id belongs to an epoch with removed records.
    #[error("the record of this request may have been removed: do not repeat the request")]
    Expired,
    /// Another process has the store open.
    #[error("{path} is in use by another process: stop it, or give this one its own folder")]
    InUse {
        /// The folder.
        path: String,
    },
    /// Credentials or certificates were refused.
    #[error("the transactional store rejects this client: {0}")]
    Denied(#[source] Cause),
    /// A setting is out of range.
    #[error("{field}: {fix}")]
    Config {
        /// The setting.
        field: &'static str,
        /// The advice.
        fix: String,
    },
    /// The store has no room left.
    #[error("the transactional store is full: {0}")]
    Full(#[source] Cause),
    /// The disk failed, or returned invalid data.
    #[error("the transactional store is damaged: {0}")]
    Damaged(#[source] Cause),
}

impl StoreError {
    /// The caller's possible reaction.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        match self {
            Self::Conflict => StoreErrorKind::Conflict,
            Self::Unknown(_) => StoreErrorKind::Unknown,
            Self::Unavailable(_) => StoreErrorKind::Unavailable,
            Self::TooLarge { .. } | Self::BadKey => StoreErrorKind::TooLarge,
            Self::Compacted(_) => StoreErrorKind::Compacted,
            Self::Expired => StoreErrorKind::Expired,
            Self::InUse { .. } => StoreErrorKind::InUse,
            Self::Denied(_) => StoreErrorKind::Denied,
            Self::Config { .. } => StoreErrorKind::Config,
            Self::Full(_) => StoreErrorKind::Full,
            Self::Damaged(_) => StoreErrorKind::Damaged,
        }
    }
}

/// The cause reported by a closed store.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("it has been closed")]
pub(crate) struct Closed;
