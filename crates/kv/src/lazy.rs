//! A namespace that is opened when it is first used: its server may be down when an engine starts.

use millpond_client::{Client, ClientError, GetOutcome, Room, Value};
use millpond_env::PerProcess;
use millpond_types::NamespaceOptions;
use millpond_types::wire::{ItemStatus, NamespaceOpen};

use crate::namespace::{Namespace, request};
use crate::store::{Batch, BlockStore, Until};

/// A namespace that is opened by the first call that reaches its server.
#[derive(Debug)]
pub struct LazyNamespace {
    client: Client,
    open: NamespaceOpen,
    opened: PerProcess<Namespace>,
}

impl LazyNamespace {
    /// Names the namespace; contacts no server.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid name.
    pub fn new(
        client: &Client,
        name: &str,
        create: bool,
        options: NamespaceOptions,
    ) -> Result<Self, ClientError> {
        let open = request(name, create, options)?;
        Ok(Self { client: client.clone(), open, opened: PerProcess::empty() })
    }

    /// The namespace, opened now if it is not yet.
    ///
    /// # Errors
    /// As for [`Namespace::open`].
    pub fn opened(&self, until: Option<std::time::Duration>) -> Result<&Namespace, ClientError> {
        // Two callers may have opened it: they got the same one.
        self.opened.get_or_try(|| Namespace::open_within(&self.client, self.open.clone(), until))
    }

    /// The namespace, and the batch with the time that opening it left.
    fn with<'a>(&self, batch: Batch<'a>) -> Result<(&Namespace, Batch<'a>), ClientError> {
        let until = Until::after(batch.deadline);
        let opened = self.opened(batch.deadline)?;
        Ok((opened, Batch { deadline: until.left(), ..batch }))
    }
}

impl BlockStore for LazyNamespace {
    fn put(&self, batch: Batch<'_>, values: &[Value<'_>]) -> Result<Vec<ItemStatus>, ClientError> {
        let (namespace, batch) = self.with(batch)?;
        namespace.put(batch, values)
    }

    fn get(
        &self,
        batch: Batch<'_>,
        rooms: &mut [Room<'_>],
    ) -> Result<Vec<GetOutcome>, ClientError> {
        let (namespace, batch) = self.with(batch)?;
        namespace.get(batch, rooms)
    }

    fn contains(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        let (namespace, batch) = self.with(batch)?;
        namespace.contains(batch)
    }

    fn match_prefix(&self, batch: Batch<'_>, lease_ms: u32) -> Result<usize, ClientError> {
        let (namespace, batch) = self.with(batch)?;
        BlockStore::match_prefix(namespace, batch, lease_ms)
    }

    fn touch(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        let (namespace, batch) = self.with(batch)?;
        namespace.touch(batch)
    }

    fn delete(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        let (namespace, batch) = self.with(batch)?;
        namespace.delete(batch)
    }

    fn stats(&self) -> Result<Vec<(String, u64)>, ClientError> {
        self.opened(None)?.stats()
    }
}
