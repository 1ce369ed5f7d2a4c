//! A named keyspace on a server.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millpond_client::{Client, ClientError, GetOutcome, Keys, Room, Value};
use millpond_types::limits::LEASE_MS_MAX;
use millpond_types::wire::{ItemStatus, Leaders, ListReply, MatchReply, NamespaceOpen, Verb};
use millpond_types::{BlockKey, NamespaceInfo, NamespaceOptions, Uuid128};

/// A named keyspace. Clones share it; every method may be called from any thread.
///
/// `leaders` decide placement: a block is found with the leader it was stored with.
#[derive(Clone, Debug)]
pub struct Namespace {
    client: Client,
    open: NamespaceOpen,
    /// What the server said when the namespace was opened last, and which server that was.
    known: Arc<Mutex<Known>>,
}

#[derive(Clone, Debug)]
struct Known {
    info: NamespaceInfo,
    node: Uuid128,
}

fn open_now(client: &Client, open: &NamespaceOpen) -> Result<Known, ClientError> {
    let info = client.open_namespace(open, None)?;
    Ok(Known { info, node: client.node()? })
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
        if !millpond_types::namespace::name_is_valid(name) {
            let fix = format!("'{name}' is not 1 to 100 letters, digits and ._-/:@");
            return Err(ClientError::Argument { field: "namespace", fix });
        }
        let open = NamespaceOpen { name: name.to_owned(), create, options };
        let known = open_now(client, &open)?;
        Ok(Self { client: client.clone(), open, known: Arc::new(Mutex::new(known)) })
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
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs `call`; when another server answers than before, opens the namespace there and runs
    /// it once more.
    fn with_keys<T>(
        &self,
        keys: &[BlockKey],
        leaders: &Leaders,
        mut call: impl FnMut(&Client, Keys<'_>) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let mut attempt = |known: &Known| {
            let keys = Keys {
                namespace: known.info.id,
                node: known.node,
                run_blocks: known.info.options.run_blocks,
                keys,
                leaders,
            };
            call(&self.client, keys)
        };
        match attempt(&self.known()) {
            Err(ClientError::OtherServer { .. }) => {
                let known = open_now(&self.client, &self.open)?;
                *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known.clone();
                attempt(&known)
            }
            other => other,
        }
    }

    /// Stores values; the first one stored under a key wins. Durable once answered when the
    /// namespace has `ack = disk`.
    ///
    /// # Errors
    /// As for every call; then any part of the values may have been stored.
    pub fn put(
        &self,
        keys: &[BlockKey],
        leaders: &Leaders,
        values: &[Value<'_>],
        deadline: Option<Duration>,
    ) -> Result<Vec<ItemStatus>, ClientError> {
        self.with_keys(keys, leaders, |client, keys| client.put(keys, values, deadline))
    }

    /// Reads values into `rooms`. What a room holds for a key that was not `Read` is undefined.
    ///
    /// # Errors
    /// As for every call.
    pub fn get(
        &self,
        keys: &[BlockKey],
        leaders: &Leaders,
        rooms: &mut [Room<'_>],
        deadline: Option<Duration>,
    ) -> Result<Vec<GetOutcome>, ClientError> {
        self.with_keys(keys, leaders, |client, keys| client.get(keys, rooms, deadline))
    }

    /// Counts the leading keys that are present and leases them for `lease_ms` (0: no lease).
    ///
    /// # Errors
    /// `InvalidArgument` for a lease over a minute, and as for every call.
    pub fn match_prefix(
        &self,
        keys: &[BlockKey],
        leaders: &Leaders,
        lease_ms: u32,
    ) -> Result<MatchReply, ClientError> {
        if lease_ms > LEASE_MS_MAX {
            let fix = format!("{lease_ms} is over {LEASE_MS_MAX}: renew a lease instead");
            return Err(ClientError::Argument { field: "lease_ms", fix });
        }
        self.with_keys(keys, leaders, |client, keys| client.match_prefix(keys, lease_ms, None))
    }

    fn each(
        &self,
        verb: Verb,
        keys: &[BlockKey],
        leaders: &Leaders,
    ) -> Result<Vec<bool>, ClientError> {
        let statuses =
            self.with_keys(keys, leaders, |client, keys| client.on_keys(verb, keys, None))?;
        Ok(statuses.into_iter().map(|status| status == ItemStatus::Ok).collect())
    }

    /// Tells which keys are present.
    ///
    /// # Errors
    /// As for every call.
    pub fn contains(&self, keys: &[BlockKey], leaders: &Leaders) -> Result<Vec<bool>, ClientError> {
        self.each(Verb::Contains, keys, leaders)
    }

    /// Marks keys as recently used; true for those that are present.
    ///
    /// # Errors
    /// As for every call.
    pub fn touch(&self, keys: &[BlockKey], leaders: &Leaders) -> Result<Vec<bool>, ClientError> {
        self.each(Verb::Touch, keys, leaders)
    }

    /// Keeps keys from eviction until unpinned; true for those that are present and now pinned.
    ///
    /// # Errors
    /// As for every call.
    pub fn pin(&self, keys: &[BlockKey], leaders: &Leaders) -> Result<Vec<bool>, ClientError> {
        self.each(Verb::Pin, keys, leaders)
    }

    /// Ends a pin; true for keys that are present.
    ///
    /// # Errors
    /// As for every call.
    pub fn unpin(&self, keys: &[BlockKey], leaders: &Leaders) -> Result<Vec<bool>, ClientError> {
        self.each(Verb::Unpin, keys, leaders)
    }

    /// Removes keys; true for those that were present.
    ///
    /// # Errors
    /// As for every call.
    pub fn delete(&self, keys: &[BlockKey], leaders: &Leaders) -> Result<Vec<bool>, ClientError> {
        self.each(Verb::Delete, keys, leaders)
    }

    /// One page of the keys that start with `prefix`; begin with cursor 0, end when it is 0.
    ///
    /// # Errors
    /// As for every call.
    pub fn list_page(&self, prefix: &[u8], cursor: u64) -> Result<ListReply, ClientError> {
        self.client.list(self.known().info.id, prefix, cursor, None)
    }

    /// Numbers about the namespace.
    ///
    /// # Errors
    /// As for every call.
    pub fn stats(&self) -> Result<Vec<(String, u64)>, ClientError> {
        self.client.stats(self.known().info.id, None)
    }
}
