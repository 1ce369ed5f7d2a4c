//! The verbs of the protocol. Batches are split into requests that fit the limits and keep the
//! server and the network busy at the same time.

use std::borrow::Cow;
use std::time::Duration;

use millpond_types::limits::{BATCH_KEYS_MAX, CHUNK_BYTES_MAX, LIST_KEYS_MAX};
use millpond_types::wire::{
    GetRequest, ItemStatus, KeysRequest, Leaders, ListReply, ListRequest, MatchReply, MatchRequest,
    NamespaceOpen, NamespaceRef, NamespaceSet, NamespacesReply, Planned, PutItem, PutRequest,
    StatsReply, StatsRequest, StatusReply, Verb, WireError,
};
use millpond_types::{BlockKey, Crc32c, GroupId, NamespaceInfo, Uuid128};

use crate::call::{GetOutcome, Items, Job, Reads, Room, Value};
use crate::client::Client;
use crate::cluster::{Asked, Cargo, Cluster, Work};
use crate::connection::Deadline;
use crate::error::ClientError;

/// Bytes of values per request: large enough that the request's own cost does not matter, small
/// enough that a large batch has several in flight.
const REQUEST_BYTES: usize = 8 << 20;
/// Keys per request, for the same reason.
pub(crate) const REQUEST_KEYS: usize = 4096;

/// Whether a server refers to other nodes.
const fn is_elsewhere(status: ItemStatus) -> bool {
    matches!(status, ItemStatus::Moved | ItemStatus::Behind)
}

/// The keys of a batch in a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'a> {
    /// The namespace.
    pub namespace: GroupId,
    /// Source of the namespace's id: the result of [`Client::node`].
    pub node: Uuid128,
    /// Blocks per run of that namespace.
    pub run_blocks: u16,
    /// The keys.
    pub keys: &'a [BlockKey],
    /// Their leaders.
    pub leaders: &'a Leaders,
}

impl Keys<'_> {
    /// The leader of the key at `index`.
    pub(crate) fn leader(&self, index: usize) -> &BlockKey {
        self.leaders.leader(self.keys, index, self.run_blocks)
    }

    fn part(&self, from: usize, to: usize) -> (Vec<BlockKey>, Leaders) {
        let leaders = match self.leaders {
            Leaders::Own => Leaders::Own,
            Leaders::Runs if from == 0 => Leaders::Runs,
            _ => Leaders::Each((from..to).map(|i| *self.leader(i)).collect()),
        };
        (self.keys[from..to].to_vec(), leaders)
    }

    /// The request for some of the keys.
    fn request(&self, from: usize, to: usize) -> KeysRequest {
        let (namespace, planned) = (self.namespace, Planned::default());
        let (keys, leaders) = self.part(from, to);
        KeysRequest { namespace, planned, keys, leaders, tags: None }
    }

    fn check(&self, others: usize, what: &'static str) -> Result<(), ClientError> {
        let keys = self.keys.len();
        if others != keys {
            return Err(ClientError::argument(what, format!("{others} given for {keys} keys")));
        }
        match self.leaders {
            Leaders::Each(leaders) if leaders.len() != keys => {
                let fix = format!("{} given for {keys} keys", leaders.len());
                Err(ClientError::argument("leaders", fix))
            }
            _ => Ok(()),
        }
    }
}

/// Ends of the requests that a batch of values of these lengths is split into.
pub(crate) fn split(lens: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut ends = Vec::new();
    let (mut bytes, mut keys, mut at) = (0, 0, 0);
    for len in lens {
        if keys > 0 && (bytes + len > REQUEST_BYTES || keys == REQUEST_KEYS) {
            ends.push(at);
            (bytes, keys) = (0, 0);
        }
        bytes += len;
        keys += 1;
        at += 1;
    }
    if keys > 0 {
        ends.push(at);
    }
    ends
}

pub(crate) fn wire_len(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// The result of a match from the statuses of all keys.
fn leading(statuses: &[ItemStatus]) -> MatchReply {
    let present = |status: &&ItemStatus| matches!(status, ItemStatus::Ok | ItemStatus::Exists);
    let matched = statuses.iter().take_while(present).count();
    let leased = statuses.iter().take_while(|status| **status == ItemStatus::Ok).count();
    MatchReply { matched: wire_len(matched), leased: wire_len(leased) }
}

impl Client {
    /// Asks the server, or any node of the cluster.
    fn plain<T>(
        &self,
        (verb, meta): (Verb, Vec<u8>),
        decode: impl Fn(&[u8]) -> Result<T, WireError>,
        deadline: Deadline,
        node: Option<Uuid128>,
    ) -> Result<T, ClientError> {
        let reply = match self.cluster(deadline)? {
            Some(cluster) => cluster.any((verb, &meta), deadline)?,
            None => match self.plain_alone((verb, meta.clone()), deadline, node) {
                // It has joined a cluster since.
                Err(ClientError::OtherServer { .. }) if node.is_none() => {
                    let cluster = self.cluster(deadline)?.ok_or(ClientError::Closed)?;
                    cluster.any((verb, &meta), deadline)?
                }
                done => done?,
            },
        };
        self.decoded(&reply, decode)
    }

    fn decoded<T>(
        &self,
        reply: &[u8],
        decode: impl Fn(&[u8]) -> Result<T, WireError>,
    ) -> Result<T, ClientError> {
        decode(reply).map_err(|source| ClientError::Wire { address: self.name(), source })
    }

    fn plain_alone(
        &self,
        (verb, meta): (Verb, Vec<u8>),
        deadline: Deadline,
        node: Option<Uuid128>,
    ) -> Result<Vec<u8>, ClientError> {
        let mut jobs = [Job::Plain { verb, meta, reply: Vec::new() }];
        self.run(&mut jobs, &mut Reads::none(), deadline, node)?;
        let [Job::Plain { reply, .. }] = jobs else { unreachable!("the job was made here") };
        Ok(reply)
    }

    /// Sends a request without payload to one of this client's given addresses, regardless of its
    /// cluster, and returns the metadata of the reply. Servers and operators use it for verbs about
    /// the cluster, and to measure one node.
    ///
    /// # Errors
    /// As for every call.
    pub fn call(
        &self,
        verb: Verb,
        meta: Vec<u8>,
        deadline: Option<Duration>,
    ) -> Result<Vec<u8>, ClientError> {
        let mut jobs = [Job::Plain { verb, meta, reply: Vec::new() }];
        self.run_here(&mut jobs, self.deadline(deadline))?;
        let [Job::Plain { reply, .. }] = jobs else { unreachable!("the job was made here") };
        Ok(reply)
    }

    /// Makes sure that the server answers.
    ///
    /// # Errors
    /// As for every call.
    pub fn ping(&self, deadline: Option<Duration>) -> Result<(), ClientError> {
        self.plain((Verb::Ping, Vec::new()), |_| Ok(()), self.deadline(deadline), None)
    }

    /// Opens a namespace, creating it if asked.
    ///
    /// # Errors
    /// `NoNamespace`, `LayoutMismatch`, `Conflict`, and as for every call.
    pub fn open_namespace(
        &self,
        open: &NamespaceOpen,
        deadline: Option<Duration>,
    ) -> Result<NamespaceInfo, ClientError> {
        let request = (Verb::NamespaceOpen, open.encode());
        let deadline = self.deadline(deadline);
        let mut reply = self.plain(request, NamespacesReply::decode, deadline, None)?;
        reply.namespaces.pop().ok_or_else(|| ClientError::Unexpected {
            address: self.name(),
            what: "an opened namespace without its number",
        })
    }

    /// Lists the namespaces that the credential may see.
    ///
    /// # Errors
    /// As for every call.
    pub fn namespaces(
        &self,
        deadline: Option<Duration>,
    ) -> Result<Vec<NamespaceInfo>, ClientError> {
        let request = (Verb::NamespaceList, Vec::new());
        let deadline = self.deadline(deadline);
        Ok(self.plain(request, NamespacesReply::decode, deadline, None)?.namespaces)
    }

    /// Changes options of a namespace and returns its new state. A quota takes effect at once, the
    /// other options for blocks stored from now on.
    ///
    /// # Errors
    /// `NoNamespace`, and as for every call.
    pub fn set_namespace(
        &self,
        set: &NamespaceSet,
        deadline: Option<Duration>,
    ) -> Result<NamespaceInfo, ClientError> {
        let request = (Verb::NamespaceSet, set.encode());
        let deadline = self.deadline(deadline);
        let mut reply = self.plain(request, NamespacesReply::decode, deadline, None)?;
        reply.namespaces.pop().ok_or_else(|| ClientError::Unexpected {
            address: self.name(),
            what: "a changed namespace without its number",
        })
    }

    /// Removes a namespace and its blocks.
    ///
    /// # Errors
    /// `NoNamespace`, and as for every call.
    pub fn drop_namespace(
        &self,
        name: &str,
        deadline: Option<Duration>,
    ) -> Result<(), ClientError> {
        let request = NamespaceRef { name: name.to_owned() };
        let request = (Verb::NamespaceDrop, request.encode());
        self.plain(request, |_| Ok(()), self.deadline(deadline), None)
    }

    /// Numbers about one namespace, or about the server for [`GroupId::SYSTEM`]; for a cluster, the
    /// sums over all nodes.
    ///
    /// # Errors
    /// As for every call.
    pub fn stats(
        &self,
        namespace: GroupId,
        deadline: Option<Duration>,
    ) -> Result<Vec<(String, u64)>, ClientError> {
        let (meta, deadline) = (StatsRequest { namespace }.encode(), self.deadline(deadline));
        if let Some(cluster) = self.cluster(deadline)? {
            let decode = |reply: &[u8]| Ok(self.decoded(reply, StatsReply::decode)?.values);
            return cluster.stats(&meta, decode, deadline);
        }
        Ok(self.plain((Verb::Stats, meta), StatsReply::decode, deadline, None)?.values)
    }

    /// One page of keys.
    ///
    /// # Errors
    /// As for every call.
    pub fn list(
        &self,
        namespace: GroupId,
        prefix: &[u8],
        cursor: u64,
        deadline: Option<Duration>,
    ) -> Result<ListReply, ClientError> {
        if prefix.len() > millpond_types::limits::KEY_BYTES_MAX {
            return Err(ClientError::argument("prefix", "is longer than a key (128 bytes)"));
        }
        let limit = wire_len(LIST_KEYS_MAX);
        let request = ListRequest { namespace, prefix: prefix.to_vec(), cursor, limit };
        let deadline = self.deadline(deadline);
        if let Some(cluster) = self.cluster(deadline)? {
            let decode = |reply: &[u8]| self.decoded(reply, ListReply::decode);
            return cluster.list(&request, decode, deadline);
        }
        self.plain((Verb::List, request.encode()), ListReply::decode, deadline, None)
    }

    /// Runs `Contains`, `Touch`, `Pin`, `Unpin` or `Delete`; true for keys that were present.
    ///
    /// # Errors
    /// As for every call.
    pub fn on_keys(
        &self,
        verb: Verb,
        keys: Keys<'_>,
        deadline: Option<Duration>,
    ) -> Result<Vec<ItemStatus>, ClientError> {
        keys.check(keys.keys.len(), "keys")?;
        let deadline = self.deadline(deadline);
        if let Some(cluster) = self.cluster(deadline)? {
            return on_cluster(&cluster, (verb, keys, Cargo::None), deadline);
        }
        let mut items = Vec::with_capacity(keys.keys.len());
        for from in (0..keys.keys.len()).step_by(BATCH_KEYS_MAX / 2) {
            let to = keys.keys.len().min(from + BATCH_KEYS_MAX / 2);
            let request = keys.request(from, to);
            let reply = self.plain_alone((verb, request.encode()), deadline, Some(keys.node))?;
            items.extend(self.decoded(&reply, StatusReply::decode)?.items);
        }
        if items.len() != keys.keys.len() {
            let what = "a reply with a wrong number of items";
            return Err(ClientError::Unexpected { address: self.name(), what });
        }
        self.check_moved(items.iter().any(|status| is_elsewhere(*status)));
        Ok(items)
    }

    /// Counts the leading keys that are present and leases them. In a cluster, keys after the first
    /// missing one may be leased as well.
    ///
    /// # Errors
    /// As for every call.
    pub fn match_prefix(
        &self,
        keys: Keys<'_>,
        lease_ms: u32,
        deadline: Option<Duration>,
    ) -> Result<MatchReply, ClientError> {
        keys.check(keys.keys.len(), "keys")?;
        let deadline = self.deadline(deadline);
        if let Some(cluster) = self.cluster(deadline)? {
            let cargo = Cargo::Lease(lease_ms);
            let statuses = on_cluster(&cluster, (Verb::MatchPrefix, keys, cargo), deadline)?;
            return Ok(leading(&statuses));
        }
        let mut total = MatchReply { matched: 0, leased: 0 };
        for from in (0..keys.keys.len()).step_by(BATCH_KEYS_MAX / 2) {
            let to = keys.keys.len().min(from + BATCH_KEYS_MAX / 2);
            let request = MatchRequest { keys: keys.request(from, to), lease_ms, each: false };
            let request = (Verb::MatchPrefix, request.encode());
            let reply = self.plain_alone(request, deadline, Some(keys.node))?;
            let reply = self.decoded(&reply, MatchReply::decode)?;
            total.matched += reply.matched.min(wire_len(to - from));
            total.leased += reply.leased.min(reply.matched);
            if (reply.matched as usize) < to - from {
                break;
            }
        }
        Ok(total)
    }

    /// Reads values into `rooms`. The content of a room for a key that was not `Read` is undefined.
    ///
    /// # Errors
    /// As for every call; the contents of all rooms are then undefined.
    pub fn get(
        &self,
        keys: Keys<'_>,
        rooms: &mut [Room<'_>],
        deadline: Option<Duration>,
    ) -> Result<Vec<GetOutcome>, ClientError> {
        keys.check(rooms.len(), "into")?;
        let deadline = self.deadline(deadline);
        let mut outcomes = vec![GetOutcome::Late; rooms.len()];
        let mut reads = Reads { rooms, out: &mut outcomes, ..Reads::none() };
        if let Some(cluster) = self.cluster(deadline)? {
            let cargo = Cargo::Rooms(reads.rooms.iter().map(|r| wire_len(r.len())).collect());
            let work = Work { verb: Verb::Get, asked: Asked::Keys(keys, cargo) };
            let batch = cluster.run(&work, &mut reads, deadline)?;
            batch.unanswered().for_each(|item| outcomes[item] = GetOutcome::Late);
            return Ok(outcomes);
        }
        let ends = split(reads.rooms.iter().map(Room::len));
        let mut jobs = Vec::with_capacity(ends.len());
        let mut from = 0;
        for to in ends {
            let (part, leaders) = keys.part(from, to);
            let room = reads.rooms[from..to].iter().map(|room| wire_len(room.len())).collect();
            let (namespace, planned) = (keys.namespace, Planned::default());
            let request = GetRequest { namespace, planned, keys: part, room, leaders };
            jobs.push(Job::Get { request, items: Items::From(from) });
            from = to;
        }
        self.run(&mut jobs, &mut reads, deadline, Some(keys.node))?;
        self.check_moved(!reads.moved.is_empty());
        Ok(outcomes)
    }

    /// Stores values; the first one stored under a key wins.
    ///
    /// # Errors
    /// As for every call; then any part of the values may have been stored.
    pub fn put(
        &self,
        keys: Keys<'_>,
        values: &[Value<'_>],
        deadline: Option<Duration>,
    ) -> Result<Vec<ItemStatus>, ClientError> {
        keys.check(values.len(), "values")?;
        if let Some(index) = values.iter().position(|value| value.len() > CHUNK_BYTES_MAX) {
            let len = values[index].len();
            let fix =
                format!("value {index} has {len} bytes; a value has at most 64 MiB: split it");
            return Err(ClientError::argument("values", fix));
        }
        let deadline = self.deadline(deadline);
        if let Some(cluster) = self.cluster(deadline)? {
            return on_cluster(&cluster, (Verb::Put, keys, Cargo::Values(values)), deadline);
        }
        let (mut jobs, mut from) = (Vec::new(), 0);
        for to in split(values.iter().map(Value::len)) {
            let (part, leaders) = keys.part(from, to);
            let values_here = &values[from..to];
            let item =
                |value: &Value<'_>| PutItem { len: wire_len(value.len()), crc: Crc32c::EMPTY };
            let request = PutRequest {
                namespace: keys.namespace,
                planned: Planned::default(),
                arena_offset: 0,
                keys: part,
                items: values_here.iter().map(item).collect(),
                leaders,
                tags: None,
            };
            let values = Cow::Borrowed(values_here);
            jobs.push(Job::Put { request, values, reply: Vec::new() });
            from = to;
        }
        self.run(&mut jobs, &mut Reads::none(), deadline, Some(keys.node))?;
        let mut statuses = Vec::with_capacity(values.len());
        for job in jobs {
            let Job::Put { reply, .. } = job else { unreachable!("the jobs were made here") };
            statuses.extend(reply);
        }
        self.check_moved(statuses.iter().any(|status| is_elsewhere(*status)));
        Ok(statuses)
    }

    /// A server that was taken for standalone refers to other nodes: it has joined a cluster.
    fn check_moved(&self, moved: bool) {
        if moved {
            self.look_again();
        }
    }
}

fn on_cluster(
    cluster: &Cluster,
    (verb, keys, cargo): (Verb, Keys<'_>, Cargo<'_, '_>),
    deadline: Deadline,
) -> Result<Vec<ItemStatus>, ClientError> {
    let work = Work { verb, asked: Asked::Keys(keys, cargo) };
    Ok(cluster.run(&work, &mut Reads::none(), deadline)?.answers(ItemStatus::Late))
}
