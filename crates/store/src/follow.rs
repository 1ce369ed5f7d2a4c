//! A copy of a range: its state once, then its changes, and its state again when changes were lost.

use crate::backend::{ChangeBatch, ChangeStream};
use crate::{KeyRange, RangeOptions, Store, StoreError, Version};

/// A step of a follower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// The whole range; it replaces the copy.
    State {
        /// The version of this state.
        version: Version,
        /// Its keys and values, in order.
        entries: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// The changes of the next transaction.
    Changes(ChangeBatch),
}

/// Follows a range; made by [`Store::follow`]. The range must fit into memory.
pub struct Follow {
    store: Store,
    range: KeyRange,
    watch: Option<Box<dyn ChangeStream>>,
}

impl std::fmt::Debug for Follow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follow").field("range", &self.range).finish_non_exhaustive()
    }
}

impl Store {
    /// Follows `range`: first its state, then every change, also over broken connections. A
    /// follower that was away for longer than changes are kept gets the state again.
    #[must_use]
    pub fn follow(&self, range: KeyRange) -> Follow {
        Follow { store: self.clone(), range, watch: None }
    }
}

impl Follow {
    /// Waits for the next state or change. Dropping the future loses nothing.
    ///
    /// # Errors
    /// `Unavailable`, `Denied`, `BadKey`, …: nothing is lost, and calling again continues.
    pub async fn next(&mut self) -> Result<Followed, StoreError> {
        let Some(watch) = &mut self.watch else { return self.state().await };
        match watch.next().await {
            Err(StoreError::Compacted(version)) => {
                tracing::info!(
                    version,
                    "changes of a followed range are no longer kept: reading it again"
                );
                self.watch = None;
                self.state().await
            }
            result => result.map(Followed::Changes),
        }
    }

    async fn state(&mut self) -> Result<Followed, StoreError> {
        let range = &self.range;
        let options = RangeOptions { snapshot: true, ..RangeOptions::default() };
        let (version, entries) = self
            .store
            .transact(|txn| async move {
                let entries = txn.range_all(range, options).await?;
                Ok::<_, StoreError>((txn.version().await?, entries))
            })
            .await?;
        self.watch = Some(self.store.watch(self.range.clone(), version).await?);
        Ok(Followed::State { version, entries })
    }
}
