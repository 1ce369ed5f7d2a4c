//! The handle to a store, and the loop that repeats a transaction until it is done.

use std::sync::Arc;
use std::time::Duration;

use millpond_types::limits::{STORE_ATTEMPTS_MAX, STORE_PAUSE_MS_MAX, STORE_PAUSE_MS_MIN};

use crate::backend::{Backend, ChangeStream};
use crate::{KeyRange, StoreError, StoreErrorKind, Transaction, Version};

/// A handle to a transactional store; clones share it.
#[derive(Clone, Debug)]
pub struct Store {
    backend: Arc<dyn Backend>,
}

/// The error of work inside a transaction: the store's own, or one that carries it.
pub trait TransactError: From<StoreError> {
    /// The store's error, if it is one: it decides whether the loop repeats.
    fn store_error(&self) -> Option<&StoreError>;
}

impl TransactError for StoreError {
    fn store_error(&self) -> Option<&StoreError> {
        Some(self)
    }
}

impl Store {
    /// A store over an engine.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend }
    }

    /// Starts a transaction.
    #[must_use]
    pub fn begin(&self) -> Transaction {
        Transaction::new(self.backend.begin())
    }

    /// Follows the changes of `range` after version `after`: every one, in order. To continue from
    /// a read, start after [`Transaction::version`].
    ///
    /// # Errors
    /// `Compacted` when changes after `after` are no longer kept (it may come with the first `next`
    /// instead); `BadKey`, `Unavailable`.
    pub async fn watch(
        &self,
        range: KeyRange,
        after: Version,
    ) -> Result<Box<dyn ChangeStream>, StoreError> {
        range.check()?;
        self.backend.watch(range, after).await
    }

    /// Runs `work` in a transaction and commits it; again from the start after a conflict and while
    /// the store is not available, with pauses, `STORE_ATTEMPTS_MAX` times at most. `work` must
    /// have no effects outside of the transaction.
    ///
    /// # Errors
    /// `work`'s own error at once, with nothing written; `Unknown` at once, because only the caller
    /// knows whether repeating is harmless ([`Store::transact_once`] makes it so); others after the
    /// last attempt.
    ///
    /// ```
    /// # async fn example(
    /// #     store: &millpond_store::Store,
    /// # ) -> Result<(), millpond_store::StoreError> {
    /// let length = store
    ///     .transact(|txn| async move {
    ///         let old = txn.get(b"log").await?.unwrap_or_default();
    ///         let new = [&old[..], b"!"].concat();
    ///         let length = new.len();
    ///         txn.put(b"log", new)?;
    ///         Ok::<_, millpond_store::StoreError>(length)
    ///     })
    ///     .await?;
    /// # assert!(length > 0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn transact<T, E, F, R>(&self, mut work: F) -> Result<T, E>
    where
        E: TransactError,
        F: FnMut(Transaction) -> R,
        R: Future<Output = Result<T, E>>,
    {
        // A transaction by value and not `AsyncFnMut(&mut Transaction)`: the future of an async
        // closure that borrows its surroundings is not known to be `Send` (rust issue 110338).
        let mut attempts = Attempts::default();
        loop {
            let txn = self.begin();
            let failed = match work(txn.clone()).await {
                Ok(value) => match txn.commit().await {
                    Ok(_) => return Ok(value),
                    Err(error) => E::from(error),
                },
                Err(error) => error,
            };
            let kind = failed.store_error().map(StoreError::kind);
            if !attempts.again(kind, false) {
                return Err(failed);
            }
            self.backend.pause(attempts.pause()).await;
        }
    }

    pub(crate) async fn pause(&self, at_most: Duration) {
        self.backend.pause(at_most).await;
    }
}

/// Counts the attempts of one transaction.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    done: u32,
}

impl Attempts {
    /// Counts a failed attempt; true when it is worth another one. After an unknown outcome only
    /// work that may take effect twice without harm (`once`) is repeated.
    pub(crate) fn again(&mut self, failed: Option<StoreErrorKind>, once: bool) -> bool {
        self.done += 1;
        let worth = match failed {
            Some(StoreErrorKind::Conflict | StoreErrorKind::Unavailable) => true,
            Some(StoreErrorKind::Unknown) => once,
            _ => false,
        };
        worth && self.done < STORE_ATTEMPTS_MAX
    }

    /// The longest pause before the next attempt: doubles each time. The engine takes a random part
    /// of it ("full jitter": M. Brooker, "Exponential Backoff and Jitter", 2015).
    pub(crate) fn pause(&self) -> Duration {
        let doubled = STORE_PAUSE_MS_MIN << self.done.saturating_sub(1).min(16);
        Duration::from_millis(doubled.min(STORE_PAUSE_MS_MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Attempts;
    use crate::StoreErrorKind::{Conflict, Damaged, TooLarge, Unavailable, Unknown};

    #[test]
    fn attempts_are_bounded_and_pauses_grow_to_a_limit() {
        let mut attempts = Attempts::default();
        let mut waited = Duration::ZERO;
        let mut count = 1;
        while attempts.again(Some(Conflict), false) {
            count += 1;
            waited += attempts.pause();
        }
        assert_eq!(count, 16);
        assert!(waited > Duration::from_secs(3) && waited < Duration::from_secs(6), "{waited:?}");
    }

    #[test]
    fn only_what_may_be_repeated_is() {
        let again = |kind, once| Attempts::default().again(kind, once);
        assert!(again(Some(Unavailable), false) && again(Some(Unknown), true));
        assert!(!again(Some(Unknown), false), "an unknown outcome is the caller's to resolve");
        assert!(!again(None, true) && !again(Some(TooLarge), true) && !again(Some(Damaged), true));
    }
}
