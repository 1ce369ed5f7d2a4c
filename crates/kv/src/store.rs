//! The common interface of the stages of a pipeline.

use std::time::Duration;

use millpond_client::{ClientError, GetOutcome, Room, Value};
use millpond_env::RealClock;
use millpond_types::wire::{ItemStatus, Leaders};
use millpond_types::{BlockKey, Tick};

/// The keys of one call.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The keys.
    pub keys: &'a [BlockKey],
    /// Their leaders.
    pub leaders: &'a Leaders,
    /// The latest end of the call; `None` for the store's default.
    pub deadline: Option<Duration>,
}

impl<'a> Batch<'a> {
    /// Keys that are their own leaders.
    #[must_use]
    pub const fn own(keys: &'a [BlockKey]) -> Self {
        Self { keys, leaders: &Leaders::Own, deadline: None }
    }

    /// Keys that are one prompt from its start.
    #[must_use]
    pub const fn prompt(keys: &'a [BlockKey]) -> Self {
        Self { keys, leaders: &Leaders::Runs, deadline: None }
    }
}

/// The end of a call that is made of several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until(Option<Tick>);

impl Until {
    /// `deadline` from now; without one, each part has its own end.
    pub(crate) fn after(deadline: Option<Duration>) -> Self {
        Self(deadline.map(|deadline| RealClock::tick().plus(deadline)))
    }

    /// The remaining time: zero, not unlimited, once the end has passed.
    pub(crate) fn left(self) -> Option<Duration> {
        self.0.map(|end| end.since(RealClock::tick()))
    }
}

/// A store of immutable blocks: a namespace on a server, a folder, or a stage in front of one of
/// them.
pub trait BlockStore: Send + Sync {
    /// Stores values; the first one stored under a key wins.
    ///
    /// # Errors
    /// As for every call; then any part of the values may have been stored.
    fn put(&self, batch: Batch<'_>, values: &[Value<'_>]) -> Result<Vec<ItemStatus>, ClientError>;

    /// Reads values into `rooms`. The content of a room for a key that was not `Read` is undefined.
    ///
    /// # Errors
    /// As for every call.
    fn get(&self, batch: Batch<'_>, rooms: &mut [Room<'_>])
    -> Result<Vec<GetOutcome>, ClientError>;

    /// Returns which keys are present.
    ///
    /// # Errors
    /// As for every call.
    fn contains(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError>;

    /// Counts the leading keys that are present and leases them for `lease_ms` where the store
    /// knows leases.
    ///
    /// # Errors
    /// As for every call.
    fn match_prefix(&self, batch: Batch<'_>, lease_ms: u32) -> Result<usize, ClientError> {
        let _ = lease_ms;
        Ok(self.contains(batch)?.iter().take_while(|present| **present).count())
    }

    /// Marks keys as recently used; true for those that are present. A store that evicts nothing,
    /// or by reads only, just returns which are.
    ///
    /// # Errors
    /// As for every call.
    fn touch(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        self.contains(batch)
    }

    /// Removes keys; true for those that were present.
    ///
    /// # Errors
    /// As for every call.
    fn delete(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError>;

    /// Numbers about the store and those below it.
    ///
    /// # Errors
    /// As for every call.
    fn stats(&self) -> Result<Vec<(String, u64)>, ClientError>;
}

impl<S: BlockStore + ?Sized> BlockStore for Box<S> {
    fn put(&self, batch: Batch<'_>, values: &[Value<'_>]) -> Result<Vec<ItemStatus>, ClientError> {
        (**self).put(batch, values)
    }

    fn get(
        &self,
        batch: Batch<'_>,
        rooms: &mut [Room<'_>],
    ) -> Result<Vec<GetOutcome>, ClientError> {
        (**self).get(batch, rooms)
    }

    fn contains(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        (**self).contains(batch)
    }

    fn match_prefix(&self, batch: Batch<'_>, lease_ms: u32) -> Result<usize, ClientError> {
        (**self).match_prefix(batch, lease_ms)
    }

    fn touch(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        (**self).touch(batch)
    }

    fn delete(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        (**self).delete(batch)
    }

    fn stats(&self) -> Result<Vec<(String, u64)>, ClientError> {
        (**self).stats()
    }
}
