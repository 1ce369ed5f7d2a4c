//! Contract of an engine of the store, which the conformance suite checks.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::{KeyRange, ReadSet, StoreError};

/// A future that may move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The number of a state of the store: grows with every commit that writes, by one or more. 0 is
/// the state before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(pub u64);

/// An engine of the store.
///
/// Contract: transactions are strictly serializable. A transaction that begins after a commit was
/// answered sees it. A commit is answered when it will survive any crash that the engine is built
/// for. An engine does not retry: it reports the outcome once.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// Starts a transaction. Does nothing that could fail; its first read picks the version that
    /// all of its reads see.
    fn begin(&self) -> Box<dyn Session>;

    /// Follows the changes of `range` after version `after`.
    fn watch(
        &self,
        range: KeyRange,
        after: Version,
    ) -> BoxFuture<'_, Result<Box<dyn ChangeStream>, StoreError>>;

    /// Waits a random time of at most `at_most`, by the engine's clock.
    fn pause(&self, at_most: Duration) -> BoxFuture<'_, ()>;
}

/// One transaction of an engine: reads at one version, then one commit. Dropping it gives up.
pub trait Session: Send {
    /// The version that all reads see.
    fn version(&mut self) -> BoxFuture<'_, Result<Version, StoreError>>;

    /// The values of `keys`, in their order.
    fn get<'a>(
        &'a mut self,
        keys: &'a [Vec<u8>],
    ) -> BoxFuture<'a, Result<Vec<Option<Vec<u8>>>, StoreError>>;

    /// Some entries of a range, in order. A page may be shorter than requested; `more` is true if
    /// the range continues after its last entry, and then there is at least one entry.
    fn range<'a>(&'a mut self, read: &'a RangeRead) -> BoxFuture<'a, Result<RawPage, StoreError>>;

    /// Applies all writes if nothing that was read has changed since, or nothing.
    ///
    /// Dropping the future leaves the outcome unknown.
    fn commit(self: Box<Self>, commit: Commit) -> BoxFuture<'static, Result<Version, StoreError>>;
}

/// The changes of a range, in order and without gaps.
pub trait ChangeStream: Send {
    /// The next transaction that changed the range. Dropping the future loses nothing.
    ///
    /// # Errors
    /// `Compacted` when the next one is no longer kept; the stream is over then.
    fn next(&mut self) -> BoxFuture<'_, Result<ChangeBatch, StoreError>>;
}

/// A read of a range.
#[derive(Clone, Debug)]
pub struct RangeRead {
    /// The range.
    pub range: KeyRange,
    /// Entries wanted at most; 1 to `STORE_PAGE_KEYS_MAX`.
    pub limit: usize,
    /// From the last key down.
    pub reverse: bool,
}

/// The result of a range read.
#[derive(Clone, Debug, Default)]
pub struct RawPage {
    /// Keys and values, in the requested order.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// True when the range continues after the last entry.
    pub more: bool,
}

/// Reads and writes of a transaction.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    /// Keys and ranges that must not have changed since the session's version.
    pub reads: ReadSet,
    /// New values; `None` deletes.
    pub writes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

/// The changes of one transaction in a watched range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeBatch {
    /// The version it made.
    pub version: Version,
    /// Its changes of the range, by key.
    pub changes: Vec<Change>,
}

/// A changed key. The deletion of a key that did not exist may be shown or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Vec<u8>,
    /// Its new value; `None` when it was deleted.
    pub value: Option<Vec<u8>>,
}
