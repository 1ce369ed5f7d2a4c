//! A transaction as its user sees it: reads at one version, its own writes on top, one commit.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use millpond_types::limits::{
    STORE_PAGE_KEYS_MAX, STORE_TXN_BYTES_MAX, STORE_TXN_CONFLICTS_MAX, STORE_TXN_WRITES_MAX,
    STORE_VALUE_BYTES_MAX,
};
use parking_lot::Mutex;

use crate::backend::{Commit, RangeRead, RawPage, Session};
use crate::key::{after, check};
use crate::{KeyRange, ReadSet, StoreError, Version};

/// The new value of a key; `None` deletes it.
type Write = Option<Vec<u8>>;

/// Length up to which values are kept for another read in their transaction: code that checks
/// whether a record has changed reads it twice.
const SEEN_BYTES_MAX: usize = 1 << 10;
/// Limit of kept values: a transaction that reads more keys uses a range.
const SEEN_MAX: usize = 64;

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

/// How to read a range.
#[derive(Clone, Copy, Debug)]
pub struct RangeOptions {
    /// Limit of the entries; at most `STORE_PAGE_KEYS_MAX` are returned.
    pub limit: usize,
    /// From the last key down. On etcd this costs the server the whole range.
    pub reverse: bool,
    /// Without a conflict: the commit succeeds even if the range changes.
    pub snapshot: bool,
}

impl Default for RangeOptions {
    fn default() -> Self {
        Self { limit: STORE_PAGE_KEYS_MAX, reverse: false, snapshot: false }
    }
}

impl RangeOptions {
    /// At most `limit` entries.
    #[must_use]
    pub fn limit(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }
}

/// Some entries of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Keys and values in the requested order.
    pub entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// The rest of the range; read it for the next page. A page may be short, even empty, and still
    /// have a rest.
    pub rest: Option<KeyRange>,
}

/// A transaction: serializable, bounded by `types::limits`, and invisible to others until
/// [`Transaction::commit`]. It sees its own writes.
///
/// Values that it reads are valid only if its commit succeeds: have no effects outside of the store
/// before. Clones are the same transaction: its loops hand one to the work and keep one to commit.
/// Dropping all of them gives up.
#[derive(Clone)]
pub struct Transaction {
    inner: Arc<Inner>,
}

struct Inner {
    /// Taken by the commit. Reads of one transaction go one after the other.
    session: tokio::sync::Mutex<Option<Box<dyn Session>>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    reads: ReadSet,
    writes: BTreeMap<Vec<u8>, Write>,
    /// Short values that were read: they cannot change, and are not read again.
    seen: HashMap<Vec<u8>, Write>,
    /// Cost and bytes of `writes`.
    cost: usize,
    bytes: usize,
    /// A commit was made or attempted.
    ended: bool,
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.inner.state.lock();
        f.debug_struct("Transaction")
            .field("conflicts", &state.reads.cost())
            .field("writes", &state.writes.len())
            .finish_non_exhaustive()
    }
}

/// The error for uses of a transaction after its commit.
fn ended() -> StoreError {
    StoreError::Unavailable("the transaction has ended".into())
}

impl Transaction {
    pub(crate) fn new(session: Box<dyn Session>) -> Self {
        let session = tokio::sync::Mutex::new(Some(session));
        Self { inner: Arc::new(Inner { session, state: Mutex::default() }) }
    }

    /// The version that all reads see. A watch of the data that was read starts after it.
    ///
    /// # Errors
    /// `Unavailable`, `Damaged`.
    pub async fn version(&self) -> Result<Version, StoreError> {
        self.inner.session.lock().await.as_mut().ok_or_else(ended)?.version().await
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// `BadKey` and `TooLarge`, which repeating does not help; `Conflict` when the transaction is
    /// too old to read; `Unavailable`, `Damaged`.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.get_many(&[key]).await?.pop().flatten())
    }

    /// The values of `keys`, in their order; one round trip for all.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        for key in keys {
            check(key)?;
        }
        self.read_keys(keys, true).await
    }

    /// The value of `key`, without a conflict: the commit succeeds even if it changes.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub async fn get_snapshot(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        check(key)?;
        Ok(self.read_keys(&[key], false).await?.pop().flatten())
    }

    /// The values of `keys`, in their order, without a conflict.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub async fn get_many_snapshot(
        &self,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        for key in keys {
            check(key)?;
        }
        self.read_keys(keys, false).await
    }

    pub(crate) async fn read_keys(
        &self,
        keys: &[&[u8]],
        conflict: bool,
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let mut found = self.inner.state.lock().plan(keys, conflict)?;
        let wanted: Vec<Vec<u8>> = std::iter::zip(keys, &found)
            .filter(|(_, known)| known.is_none())
            .map(|(key, _)| key.to_vec())
            .collect();
        if !wanted.is_empty() {
            let mut session = self.inner.session.lock().await;
            let session = session.as_mut().ok_or_else(ended)?;
            let mut values = session.get(&wanted).await?.into_iter();
            assert!(values.len() == wanted.len(), "an engine answers every requested key");
            let mut state = self.inner.state.lock();
            let slots = found.iter_mut().filter(|known| known.is_none());
            for (slot, key) in std::iter::zip(slots, wanted) {
                let value = values.next().flatten();
                state.note(key, &value);
                *slot = Some(value);
            }
        }
        Ok(found.into_iter().map(Option::flatten).collect())
    }

    /// A page of a range. Unless `options.snapshot`, the part of the range that the page covers
    /// must not change until the commit: keys that appear and vanish in it count too.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub async fn range(&self, range: &KeyRange, options: RangeOptions) -> Result<Page, StoreError> {
        range.check()?;
        self.read_range(range, options).await
    }

    pub(crate) async fn read_range(
        &self,
        range: &KeyRange,
        options: RangeOptions,
    ) -> Result<Page, StoreError> {
        if range.is_empty() {
            return Ok(Page::default());
        }
        let limit = options.limit.clamp(1, STORE_PAGE_KEYS_MAX);
        let read = RangeRead { range: range.clone(), limit, reverse: options.reverse };
        let mut session = self.inner.session.lock().await;
        let raw = session.as_mut().ok_or_else(ended)?.range(&read).await?;
        let mut state = self.inner.state.lock();
        let (entries, seen) = overlay(&state.writes, &read, raw);
        if !options.snapshot {
            state.reads.add_range(&seen);
            state.check_conflicts()?;
        }
        let rest = if options.reverse {
            KeyRange { start: range.start.clone(), end: seen.start }
        } else {
            KeyRange { start: seen.end, end: range.end.clone() }
        };
        Ok(Page { entries, rest: (!rest.is_empty()).then_some(rest) })
    }

    /// All entries of a range, page by page. For ranges that are known to be small: transactions
    /// and memory are bounded.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub async fn range_all(
        &self,
        range: &KeyRange,
        options: RangeOptions,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, StoreError> {
        let mut all = Vec::new();
        let mut rest = Some(range.clone());
        while let Some(range) = rest {
            let page = self.range(&range, options).await?;
            all.extend(page.entries);
            rest = page.rest;
        }
        Ok(all)
    }

    /// Makes the commit fail when `range` changes, without reading it.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub async fn add_conflict(&self, range: &KeyRange) -> Result<(), StoreError> {
        range.check()?;
        // Changes count from the version of the reads, so that version must be known.
        self.version().await?;
        let mut state = self.inner.state.lock();
        state.reads.add_range(range);
        state.check_conflicts()
    }

    /// Gives `key` a value at the commit.
    ///
    /// # Errors
    /// `BadKey`, `TooLarge`.
    pub fn put(&self, key: &[u8], value: impl Into<Vec<u8>>) -> Result<(), StoreError> {
        check(key)?;
        self.write(key, Some(value.into()))
    }

    /// Removes `key` at the commit; it need not exist.
    ///
    /// # Errors
    /// `BadKey`, `TooLarge`.
    pub fn delete(&self, key: &[u8]) -> Result<(), StoreError> {
        check(key)?;
        self.write(key, None)
    }

    pub(crate) fn write(&self, key: &[u8], value: Option<Vec<u8>>) -> Result<(), StoreError> {
        self.inner.state.lock().write(key, value)
    }

    /// Applies all writes, if nothing that was read has changed since. Durable, and visible to
    /// every transaction that begins later, once `Ok` returns. A transaction without writes always
    /// succeeds: it saw one state of the store.
    ///
    /// Dropping the future leaves the outcome unknown.
    ///
    /// # Errors
    /// `Conflict`: nothing was written, run it again. `Unknown`: it may have been written. Others:
    /// nothing was written.
    pub async fn commit(self) -> Result<Version, StoreError> {
        let mut session = self.inner.session.lock().await.take().ok_or_else(ended)?;
        let ended = State { ended: true, ..State::default() };
        let State { reads, writes, .. } = std::mem::replace(&mut *self.inner.state.lock(), ended);
        if writes.is_empty() {
            return session.version().await;
        }
        session.commit(Commit { reads, writes }).await
    }
}

impl State {
    /// Returns the known values of `keys`: the transaction's own, and those that were read before.
    /// Adds keys without an own value as conflicts.
    fn plan(&mut self, keys: &[&[u8]], conflict: bool) -> Result<Vec<Option<Write>>, StoreError> {
        if conflict {
            let read = keys.iter().filter(|key| !self.writes.contains_key(**key));
            read.for_each(|key| self.reads.add_key(key));
            self.check_conflicts()?;
        }
        let known = |key: &&[u8]| self.writes.get(*key).or_else(|| self.seen.get(*key)).cloned();
        Ok(keys.iter().map(known).collect())
    }

    fn note(&mut self, key: Vec<u8>, value: &Write) {
        let is_short = value.as_ref().is_none_or(|value| value.len() <= SEEN_BYTES_MAX);
        if is_short && !self.ended && self.seen.len() < SEEN_MAX {
            self.seen.insert(key, value.clone());
        }
    }

    fn write(&mut self, key: &[u8], value: Option<Vec<u8>>) -> Result<(), StoreError> {
        if self.ended {
            return Err(ended());
        }
        let length = value.as_ref().map_or(0, Vec::len);
        bound("bytes of a value", STORE_VALUE_BYTES_MAX, length)?;
        let old = self.writes.get(key);
        let (old_cost, old_bytes) = old.map_or((0, 0), |old| weight(key, old.as_deref()));
        let (new_cost, new_bytes) = weight(key, value.as_deref());
        let cost = self.cost - old_cost + new_cost;
        let bytes = self.bytes - old_bytes + new_bytes;
        if !crate::once::is_own(key) {
            bound("writes of a transaction (a delete counts two)", STORE_TXN_WRITES_MAX, cost)?;
        }
        bound("bytes of a transaction", STORE_TXN_BYTES_MAX, bytes + self.reads.bytes())?;
        (self.cost, self.bytes) = (cost, bytes);
        self.writes.insert(key.to_vec(), value);
        Ok(())
    }

    fn check_conflicts(&self) -> Result<(), StoreError> {
        let what = "conflicts of a transaction (a range counts two)";
        let own = self.reads.keys().filter(|key| crate::once::is_own(key)).count();
        bound(what, STORE_TXN_CONFLICTS_MAX, self.reads.cost() - own)?;
        bound("bytes of a transaction", STORE_TXN_BYTES_MAX, self.bytes + self.reads.bytes())
    }
}

/// Cost and bytes of one write.
fn weight(key: &[u8], value: Option<&[u8]>) -> (usize, usize) {
    value.map_or((2, 2 * key.len()), |value| (1, key.len() + value.len()))
}

fn bound(what: &'static str, bound: usize, actual: usize) -> Result<(), StoreError> {
    if actual <= bound { Ok(()) } else { Err(StoreError::TooLarge { what, bound, actual }) }
}

/// Applies the transaction's own writes to a page. Returns its entries, and the part of the range
/// that it covers.
fn overlay(
    writes: &BTreeMap<Vec<u8>, Write>,
    read: &RangeRead,
    raw: RawPage,
) -> (Entries, KeyRange) {
    let mut seen = read.range.clone();
    if raw.more
        && let Some((last, _)) = raw.entries.last()
    {
        cut(&mut seen, last, read.reverse);
    }
    let mut merged: BTreeMap<Vec<u8>, Vec<u8>> = raw.entries.into_iter().collect();
    for (key, value) in writes.range(seen.start.clone()..seen.end.clone()) {
        match value {
            Some(value) => merged.insert(key.clone(), value.clone()),
            None => merged.remove(key),
        };
    }
    let mut entries: Vec<_> = merged.into_iter().collect();
    if read.reverse {
        entries.reverse();
    }
    if entries.len() > read.limit {
        entries.truncate(read.limit);
        cut(&mut seen, &entries[read.limit - 1].0, read.reverse);
    }
    (entries, seen)
}

/// Ends `range` at `last`, the last key of a page.
fn cut(range: &mut KeyRange, last: &[u8], reverse: bool) {
    if reverse {
        range.start = last.to_vec();
    } else {
        range.end = after(last);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{SEEN_BYTES_MAX, SEEN_MAX, Transaction};
    use crate::backend::{BoxFuture, Commit, RangeRead, RawPage, Session};
    use crate::{StoreError, Version};

    /// A state with values of one length, which counts the keys that are read.
    struct Counted(Arc<AtomicUsize>, usize);

    impl Session for Counted {
        fn version(&mut self) -> BoxFuture<'_, Result<Version, StoreError>> {
            Box::pin(async { Ok(Version(1)) })
        }

        fn get<'a>(
            &'a mut self,
            keys: &'a [Vec<u8>],
        ) -> BoxFuture<'a, Result<Vec<Option<Vec<u8>>>, StoreError>> {
            self.0.fetch_add(keys.len(), Ordering::Relaxed);
            let value = |key: &Vec<u8>| (key[0] != b'-').then(|| vec![key[0]; self.1]);
            let values = keys.iter().map(value).collect();
            Box::pin(async move { Ok(values) })
        }

        fn range<'a>(&'a mut self, _: &'a RangeRead) -> BoxFuture<'a, Result<RawPage, StoreError>> {
            Box::pin(async { Ok(RawPage::default()) })
        }

        fn commit(
            self: Box<Self>,
            commit: Commit,
        ) -> BoxFuture<'static, Result<Version, StoreError>> {
            // The number of conflicts.
            Box::pin(async move { Ok(Version(commit.reads.keys().count() as u64)) })
        }
    }

    #[tokio::test]
    async fn what_was_read_is_not_asked_for_again_and_counts_as_read() {
        let asked = Arc::new(AtomicUsize::new(0));
        let txn = Transaction::new(Box::new(Counted(Arc::clone(&asked), 3)));
        assert_eq!(
            txn.get_many_snapshot(&[b"a", b"-"]).await.unwrap(),
            [Some(b"aaa".to_vec()), None]
        );
        txn.put(b"b", "own").unwrap();
        let again = txn.get_many(&[b"a", b"-", b"b", b"c"]).await.unwrap();
        let own = Some(b"own".to_vec());
        assert_eq!(again, [Some(b"aaa".to_vec()), None, own, Some(b"ccc".to_vec())]);
        assert_eq!(asked.load(Ordering::Relaxed), 3, "a and - once, c, and b not at all");
        txn.put(b"a", "new").unwrap();
        assert_eq!(
            txn.get(b"a").await.unwrap(),
            Some(b"new".to_vec()),
            "its own value comes first"
        );
        assert_eq!(txn.commit().await.unwrap(), Version(3), "a, - and c must not change");
    }

    #[tokio::test]
    async fn what_is_kept_for_another_read_is_bounded() {
        let asked = Arc::new(AtomicUsize::new(0));
        let txn = Transaction::new(Box::new(Counted(Arc::clone(&asked), SEEN_BYTES_MAX + 1)));
        for _ in 0..2 {
            txn.get_snapshot(b"long").await.unwrap();
        }
        assert_eq!(asked.swap(0, Ordering::Relaxed), 2);
        let txn = Transaction::new(Box::new(Counted(Arc::clone(&asked), 1)));
        for n in 0..2 * SEEN_MAX {
            txn.get_snapshot(n.to_string().as_bytes()).await.unwrap();
        }
        assert_eq!(txn.inner.state.lock().seen.len(), SEEN_MAX);
    }
}
