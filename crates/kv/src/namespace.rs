//! A named keyspace on a server.

use std::sync::Arc;
use std::time::Duration;

use millpond_client::{Client, ClientError, ErrorKind, GetOutcome, Keys, Room, Value};
use millpond_env::{Mutex, PerProcess};
use millpond_types::limits::LEASE_MS_MAX;
use millpond_types::wire::{ItemStatus, ListReply, MatchReply, NamespaceOpen, Verb};
use millpond_types::{NamespaceInfo, NamespaceOptions, Uuid128};

use crate::store::{Batch, BlockStore, Until};

/// A named keyspace. Clones share it; every method may be called from any thread.
///
/// The leaders of a [`Batch`] decide placement: a block is found with the leader it was stored
/// with.
#[derive(Clone, Debug)]
pub struct Namespace {
    client: Client,
    open: NamespaceOpen,
    known: Arc<KnownHere>,
}

/// The server's answer when the namespace was opened last, and which server that was.
#[derive(Debug)]
struct KnownHere {
    /// The first answer; a forked child starts with it.
    first: Known,
    last: PerProcess<Mutex<Known>>,
}

impl KnownHere {
    fn new(known: Known) -> Self {
        Self { last: PerProcess::new(Mutex::new(known.clone())), first: known }
    }

    fn last(&self) -> &Mutex<Known> {
        self.last.get_or(|| Mutex::new(self.first.clone()))
    }
}

#[derive(Clone, Debug)]
struct Known {
    info: NamespaceInfo,
    node: Uuid128,
}

fn open_now(
    client: &Client,
    open: &NamespaceOpen,
    deadline: Option<Duration>,
) -> Result<Known, ClientError> {
    let info = client.open_namespace(open, deadline)?;
    Ok(Known { info, node: client.node()? })
}

/// Builds the request for opening, after a check of the name.
pub(crate) fn request(
    name: &str,
    create: bool,
    options: NamespaceOptions,
) -> Result<NamespaceOpen, ClientError> {
    if !millpond_types::namespace::name_is_valid(name) {
        let fix = format!("'{name}' must be 1 to 100 letters, digits and ._-/:@");
        return Err(ClientError::Argument { field: "namespace", fix });
    }
    Ok(NamespaceOpen { name: name.to_owned(), create, options })
}

impl Namespace {
    /// Opens the namespace `name`; with `create`, makes it with `options` if it does not exist.
    ///
    /// # Errors
    /// `NoNamespace`, `LayoutMismatch` (the digests differ), `Conflict` (other options), and
    /// as for every call.
    pub fn open(
        client: &Client,
        name: &str,
        create: bool,
        options: NamespaceOptions,
    ) -> Result<Self, ClientError> {
        Self::open_within(client, request(name, create, options)?, None)
    }

    pub(crate) fn open_within(
        client: &Client,
        open: NamespaceOpen,
        deadline: Option<Duration>,
    ) -> Result<Self, ClientError> {
        let known = open_now(client, &open, deadline)?;
        Ok(Self { client: client.clone(), open, known: Arc::new(KnownHere::new(known)) })
    }

    /// The namespace as the server knew it when it was opened last.
    #[must_use]
    pub fn info(&self) -> NamespaceInfo {
        self.known().info
    }

    /// The client it uses.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    fn known(&self) -> Known {
        self.known.last().lock().clone()
    }

    /// Runs `call`. If another server answers than before, or the namespace was dropped and may
    /// have been made again, opens it and runs `call` once more, all within the batch's deadline.
    fn with_keys<T>(
        &self,
        batch: Batch<'_>,
        mut call: impl FnMut(&Client, Keys<'_>, Option<Duration>) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let until = Until::after(batch.deadline);
        let mut attempt = |known: &Known, left: Option<Duration>| {
            let keys = Keys {
                namespace: known.info.id,
                node: known.node,
                run_blocks: known.info.options.run_blocks,
                keys: batch.keys,
                leaders: batch.leaders,
            };
            call(&self.client, keys, left)
        };
        let is_elsewhere = |error: &ClientError| match error {
            ClientError::OtherServer { .. } => true,
            error => self.open.create && error.kind() == ErrorKind::NoNamespace,
        };
        match attempt(&self.known(), batch.deadline) {
            Err(error) if is_elsewhere(&error) => {
                let known = open_now(&self.client, &self.open, until.left())?;
                *self.known.last().lock() = known.clone();
                attempt(&known, until.left())
            }
            other => other,
        }
    }

    /// Counts the leading keys that are present and leases them for `lease_ms` (0: no lease).
    ///
    /// # Errors
    /// `InvalidArgument` for a lease over a minute, and as for every call.
    pub fn match_prefix(&self, batch: Batch<'_>, lease_ms: u32) -> Result<MatchReply, ClientError> {
        if lease_ms > LEASE_MS_MAX {
            let fix = format!("{lease_ms} is over the limit {LEASE_MS_MAX}: renew a lease instead");
            return Err(ClientError::Argument { field: "lease_ms", fix });
        }
        self.with_keys(batch, |client, keys, left| client.match_prefix(keys, lease_ms, left))
    }

    fn each(&self, verb: Verb, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        let statuses =
            self.with_keys(batch, |client, keys, left| client.on_keys(verb, keys, left))?;
        Ok(statuses.into_iter().map(|status| status == ItemStatus::Ok).collect())
    }

    /// Keeps keys from eviction until unpinned; true for those that are present and now pinned.
    ///
    /// # Errors
    /// As for every call.
    pub fn pin(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        self.each(Verb::Pin, batch)
    }

    /// Ends a pin; true for keys that are present.
    ///
    /// # Errors
    /// As for every call.
    pub fn unpin(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        self.each(Verb::Unpin, batch)
    }

    /// One page of the keys that start with `prefix`; begin with cursor 0, end when it is 0.
    ///
    /// # Errors
    /// As for every call.
    pub fn list_page(&self, prefix: &[u8], cursor: u64) -> Result<ListReply, ClientError> {
        self.client.list(self.known().info.id, prefix, cursor, None)
    }
}

/// A put is durable once answered when the namespace has `ack = disk`.
impl BlockStore for Namespace {
    fn put(&self, batch: Batch<'_>, values: &[Value<'_>]) -> Result<Vec<ItemStatus>, ClientError> {
        self.with_keys(batch, |client, keys, left| client.put(keys, values, left))
    }

    fn get(
        &self,
        batch: Batch<'_>,
        rooms: &mut [Room<'_>],
    ) -> Result<Vec<GetOutcome>, ClientError> {
        self.with_keys(batch, |client, keys, left| client.get(keys, rooms, left))
    }

    fn contains(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        self.each(Verb::Contains, batch)
    }

    fn match_prefix(&self, batch: Batch<'_>, lease_ms: u32) -> Result<usize, ClientError> {
        Ok(Self::match_prefix(self, batch, lease_ms)?.matched as usize)
    }

    fn touch(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        self.each(Verb::Touch, batch)
    }

    fn delete(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        self.each(Verb::Delete, batch)
    }

    fn stats(&self) -> Result<Vec<(String, u64)>, ClientError> {
        self.client.stats(self.known().info.id, None)
    }
}
