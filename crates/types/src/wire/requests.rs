//! Metadata of requests. The layouts are the order of the fields in `encode`.

use super::codec::{Reader, WireError, Writer};
use crate::checksum::Crc32c;
use crate::cluster::{ChainId, ChainVersion, RoutingVersion};
use crate::ids::{BlockKey, GroupId};
use crate::limits::{BATCH_KEYS_MAX, CHUNK_BYTES_MAX, LIST_KEYS_MAX, TOKEN_BYTES_MAX};
use crate::namespace::{NamespaceOptions, Priority};
use crate::placement::leader_index;
use crate::units::ByteSize;

/// First frame of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Lowest protocol version that the client supports.
    pub version_min: u16,
    /// Highest protocol version that the client supports.
    pub version_max: u16,
    /// Name and version of the client, for logs.
    pub client: String,
    /// The credential; empty when the server asks for none.
    pub token: Vec<u8>,
}

impl Hello {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u16(self.version_min);
        w.u16(self.version_max);
        w.str8(&self.client);
        w.bytes16(&self.token);
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let hello = Self {
            version_min: r.u16()?,
            version_max: r.u16()?,
            client: r.str8()?.to_owned(),
            token: r.bytes16(TOKEN_BYTES_MAX, "token")?.to_vec(),
        };
        r.finish()?;
        Ok(hello)
    }
}

/// Opens a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceOpen {
    /// Its name.
    pub name: String,
    /// Whether to create it when it does not exist.
    pub create: bool,
    /// Options for creation; for an existing namespace only the layout digest must match.
    pub options: NamespaceOptions,
}

impl NamespaceOpen {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.str8(&self.name);
        w.u8(u8::from(self.create));
        self.options.encode(&mut w);
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let name = r.str8()?.to_owned();
        let create = match r.u8()? {
            0 => false,
            1 => true,
            _ => return Err(WireError::Field("create")),
        };
        let options = NamespaceOptions::decode(&mut r)?;
        r.finish()?;
        Ok(Self { name, create, options })
    }
}

/// Names a namespace (`NamespaceDrop`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceRef {
    /// Its name.
    pub name: String,
}

impl NamespaceRef {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.str8(&self.name);
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let name = r.str8()?.to_owned();
        r.finish()?;
        Ok(Self { name })
    }
}

/// Changes options of a namespace; absent ones stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceSet {
    /// Its name.
    pub name: String,
    /// Bytes it may hold; 0 for no quota.
    pub quota: Option<ByteSize>,
    /// Time to live in seconds of blocks stored from now on; 0 for no end.
    pub ttl_seconds: Option<u32>,
    /// Eviction class of blocks stored from now on.
    pub priority: Option<Priority>,
}

impl NamespaceSet {
    /// Changes the options of the namespace.
    pub fn apply(&self, options: &mut NamespaceOptions) {
        options.quota = self.quota.unwrap_or(options.quota);
        options.ttl_seconds = self.ttl_seconds.unwrap_or(options.ttl_seconds);
        options.priority = self.priority.unwrap_or(options.priority);
    }

    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.str8(&self.name);
        let marks = [self.quota.is_some(), self.ttl_seconds.is_some(), self.priority.is_some()];
        w.u8(marks.iter().rev().fold(0, |bits, mark| bits << 1 | u8::from(*mark)));
        if let Some(quota) = self.quota {
            w.u64(quota.0);
        }
        if let Some(seconds) = self.ttl_seconds {
            w.u32(seconds);
        }
        if let Some(priority) = self.priority {
            w.u8(priority as u8);
        }
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let name = r.str8()?.to_owned();
        let marks = r.u8()?;
        if !(1..=7).contains(&marks) {
            return Err(WireError::Field("options"));
        }
        let quota = if marks & 1 == 0 { None } else { Some(ByteSize(r.u64()?)) };
        let ttl_seconds = if marks & 2 == 0 { None } else { Some(r.u32()?) };
        let priority = if marks & 4 == 0 { None } else { Some(r.u8()?.try_into()?) };
        r.finish()?;
        Ok(Self { name, quota, ttl_seconds, priority })
    }
}

/// How the leaders of a batch's keys are given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leaders {
    /// Every key is its own leader.
    Own,
    /// The keys are one prompt from its start: the leader is the first key of its run.
    Runs,
    /// One leader per key.
    Each(Vec<BlockKey>),
}

impl Leaders {
    /// The leader of the key at `index` of `keys`, for runs of `run_blocks`.
    #[must_use]
    pub fn leader<'a>(
        &'a self,
        keys: &'a [BlockKey],
        index: usize,
        run_blocks: u16,
    ) -> &'a BlockKey {
        match self {
            Self::Own => &keys[index],
            Self::Runs => &keys[leader_index(index, run_blocks)],
            Self::Each(leaders) => &leaders[index],
        }
    }

    fn encode(&self, w: &mut Writer) {
        match self {
            Self::Own => w.u8(0),
            Self::Runs => w.u8(1),
            Self::Each(leaders) => {
                w.u8(2);
                // A run repeats its leader: an empty key (length 0) means the same leader as
                // before.
                let mut before: Option<&BlockKey> = None;
                for leader in leaders {
                    if before == Some(leader) {
                        w.u8(0);
                    } else {
                        w.key(leader);
                    }
                    before = Some(leader);
                }
            }
        }
    }

    fn decode(r: &mut Reader<'_>, keys: usize) -> Result<Self, WireError> {
        match r.u8()? {
            0 => Ok(Self::Own),
            1 => Ok(Self::Runs),
            2 => {
                let mut leaders: Vec<BlockKey> = Vec::with_capacity(keys);
                for _ in 0..keys {
                    let n = usize::from(r.u8()?);
                    let leader = match (n, leaders.last()) {
                        (0, Some(before)) => *before,
                        _ => BlockKey::new(r.bytes(n)?)?,
                    };
                    leaders.push(leader);
                }
                Ok(Self::Each(leaders))
            }
            _ => Err(WireError::Field("leaders")),
        }
    }
}

/// The routing with which a client of a cluster chose the node; zero versions when it had none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planned {
    /// The version of its routing; 0 for none.
    pub by: RoutingVersion,
    /// The routing version by which the keys' slots had their present places, at the latest: the
    /// node must have it too.
    pub needs: RoutingVersion,
}

impl Planned {
    fn encode(self, w: &mut Writer) {
        w.u64(self.by.0);
        w.u64(self.needs.0);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { by: RoutingVersion(r.u64()?), needs: RoutingVersion(r.u64()?) })
    }
}

/// Permanent name of one update of a batch: a retry carries the tag of the first attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemTag {
    /// One of the client's channels; a channel has at most one update in progress in a chain.
    pub channel: u32,
    /// Grows with every update of the client.
    pub sequence: u64,
    /// The chain of the update: a node may head both chains of a moving slot.
    pub chain: ChainId,
    /// The version of the key's chain that the client knew at the first attempt.
    pub issued: ChainVersion,
}

/// Names the updates of a batch to a cluster, so that none is executed twice (DESIGN section 5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tags {
    /// The client: a random number, not 0, drawn when it starts.
    pub client: u128,
    /// One tag per key.
    pub items: Vec<ItemTag>,
}

impl Tags {
    pub(super) fn encode(tags: Option<&Self>, w: &mut Writer) {
        let Some(tags) = tags else { return w.u8(0) };
        w.u8(1);
        w.raw(&tags.client.to_le_bytes());
        for tag in &tags.items {
            w.u32(tag.channel);
            w.u64(tag.sequence);
            w.u32(tag.chain.0);
            w.u32(tag.issued.0);
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>, keys: usize) -> Result<Option<Self>, WireError> {
        match r.u8()? {
            0 => return Ok(None),
            1 => {}
            _ => return Err(WireError::Field("tags")),
        }
        let client = u128::from_le_bytes(r.array()?);
        if client == 0 {
            return Err(WireError::Field("client (not 0)"));
        }
        let mut items = Vec::with_capacity(keys);
        for _ in 0..keys {
            let (channel, sequence) = (r.u32()?, r.u64()?);
            let chain = ChainId(r.u32()?);
            items.push(ItemTag { channel, sequence, chain, issued: ChainVersion(r.u32()?) });
        }
        Ok(Some(Self { client, items }))
    }
}

/// Smallest encoding of a key: its length byte and one byte.
const KEY_BYTES_MIN: usize = 2;

/// One value of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutItem {
    /// Bytes of the value.
    pub len: u32,
    /// Checksum of the value, computed by the client.
    pub crc: Crc32c,
}

/// Stores values; the payload is the concatenation of the values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutRequest {
    /// The namespace.
    pub namespace: GroupId,
    /// The routing with which this node was chosen.
    pub planned: Planned,
    /// Offset of the payload in the arena when the frame has [`super::FLAG_SHM`], else 0.
    pub arena_offset: u64,
    /// The keys.
    pub keys: Vec<BlockKey>,
    /// Their values, in the same order.
    pub items: Vec<PutItem>,
    /// Their leaders.
    pub leaders: Leaders,
    /// Their tags, from a client of a cluster.
    pub tags: Option<Tags>,
}

impl PutRequest {
    /// Encodes the request's metadata.
    ///
    /// # Panics
    /// When keys and their values or rooms differ in number.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert_eq!(self.keys.len(), self.items.len(), "one item per key");
        let mut w = Writer::with_capacity(32 + self.keys.len() * 48);
        w.u32(self.namespace.0);
        self.planned.encode(&mut w);
        w.u64(self.arena_offset);
        w.count(self.keys.len());
        for (key, item) in self.keys.iter().zip(&self.items) {
            w.key(key);
            w.u32(item.len);
            w.u32(item.crc.0);
        }
        self.leaders.encode(&mut w);
        Tags::encode(self.tags.as_ref(), &mut w);
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field; a value over 64 MiB is `value length`.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let namespace = GroupId(r.u32()?);
        let planned = Planned::decode(&mut r)?;
        let arena_offset = r.u64()?;
        let n = r.count(BATCH_KEYS_MAX, KEY_BYTES_MIN + 8, "keys in a batch")?;
        let mut keys = Vec::with_capacity(n);
        let mut items = Vec::with_capacity(n);
        for _ in 0..n {
            keys.push(r.key()?);
            let item = PutItem { len: r.u32()?, crc: Crc32c(r.u32()?) };
            if item.len as usize > CHUNK_BYTES_MAX {
                return Err(WireError::Field("value length (at most 64 MiB)"));
            }
            items.push(item);
        }
        let leaders = Leaders::decode(&mut r, n)?;
        let tags = Tags::decode(&mut r, n)?;
        r.finish()?;
        Ok(Self { namespace, planned, arena_offset, keys, items, leaders, tags })
    }

    /// Sum of the values' lengths in bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.items.iter().map(|item| u64::from(item.len)).sum()
    }
}

/// Reads values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetRequest {
    /// The namespace.
    pub namespace: GroupId,
    /// The routing with which this node was chosen.
    pub planned: Planned,
    /// The keys.
    pub keys: Vec<BlockKey>,
    /// Room of the caller in bytes, per key; the server does not send a longer value.
    pub room: Vec<u32>,
    /// Their leaders.
    pub leaders: Leaders,
}

impl GetRequest {
    /// Encodes the request's metadata.
    ///
    /// # Panics
    /// When keys and their values or rooms differ in number.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert_eq!(self.keys.len(), self.room.len(), "one room per key");
        let mut w = Writer::with_capacity(16 + self.keys.len() * 44);
        w.u32(self.namespace.0);
        self.planned.encode(&mut w);
        w.count(self.keys.len());
        for (key, room) in self.keys.iter().zip(&self.room) {
            w.key(key);
            w.u32(*room);
        }
        self.leaders.encode(&mut w);
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let namespace = GroupId(r.u32()?);
        let planned = Planned::decode(&mut r)?;
        let n = r.count(BATCH_KEYS_MAX, KEY_BYTES_MIN + 4, "keys in a batch")?;
        let mut keys = Vec::with_capacity(n);
        let mut room = Vec::with_capacity(n);
        for _ in 0..n {
            keys.push(r.key()?);
            room.push(r.u32()?);
        }
        let leaders = Leaders::decode(&mut r, n)?;
        r.finish()?;
        Ok(Self { namespace, planned, keys, room, leaders })
    }
}

/// Names keys (`Contains`, `Touch`, `Pin`, `Unpin`, `Delete`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeysRequest {
    /// The namespace.
    pub namespace: GroupId,
    /// The routing with which this node was chosen.
    pub planned: Planned,
    /// The keys.
    pub keys: Vec<BlockKey>,
    /// Their leaders.
    pub leaders: Leaders,
    /// Their tags, for a `Delete` from a client of a cluster.
    pub tags: Option<Tags>,
}

impl KeysRequest {
    fn encode_into(&self, w: &mut Writer) {
        w.u32(self.namespace.0);
        self.planned.encode(w);
        w.count(self.keys.len());
        for key in &self.keys {
            w.key(key);
        }
        self.leaders.encode(w);
        Tags::encode(self.tags.as_ref(), w);
    }

    fn decode_from(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let namespace = GroupId(r.u32()?);
        let planned = Planned::decode(r)?;
        let n = r.count(BATCH_KEYS_MAX, KEY_BYTES_MIN, "keys in a batch")?;
        let keys = (0..n).map(|_| r.key()).collect::<Result<Vec<_>, _>>()?;
        let leaders = Leaders::decode(r, n)?;
        let tags = Tags::decode(r, n)?;
        Ok(Self { namespace, planned, keys, leaders, tags })
    }

    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(16 + self.keys.len() * 40);
        self.encode_into(&mut w);
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let request = Self::decode_from(&mut r)?;
        r.finish()?;
        Ok(request)
    }
}

/// Counts the leading keys that are present and leases them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchRequest {
    /// The keys of the prompt from its start, and their leaders.
    pub keys: KeysRequest,
    /// Lease in ms: the matched blocks are not evicted for this long; 0 for no lease.
    pub lease_ms: u32,
    /// Answer for every key separately, with a [`super::StatusReply`]: one node of a cluster has
    /// only some runs of a prompt, and cannot know which of its keys are leading.
    pub each: bool,
}

impl MatchRequest {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(16 + self.keys.keys.len() * 40);
        w.u32(self.lease_ms);
        w.u8(u8::from(self.each));
        self.keys.encode_into(&mut w);
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let lease_ms = r.u32()?;
        let each = match r.u8()? {
            0 => false,
            1 => true,
            _ => return Err(WireError::Field("each")),
        };
        let keys = KeysRequest::decode_from(&mut r)?;
        r.finish()?;
        Ok(Self { keys, lease_ms, each })
    }
}

/// Lists keys in pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListRequest {
    /// The namespace.
    pub namespace: GroupId,
    /// Only keys that start with these bytes.
    pub prefix: Vec<u8>,
    /// 0 for the first page, then the cursor of the last page.
    pub cursor: u64,
    /// Most keys per page.
    pub limit: u32,
}

impl ListRequest {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.namespace.0);
        w.bytes16(&self.prefix);
        w.u64(self.cursor);
        w.u32(self.limit);
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let request = Self {
            namespace: GroupId(r.u32()?),
            prefix: r.bytes16(crate::limits::KEY_BYTES_MAX, "prefix")?.to_vec(),
            cursor: r.u64()?,
            limit: r.u32()?,
        };
        r.finish()?;
        if request.limit == 0 || request.limit as usize > LIST_KEYS_MAX {
            return Err(WireError::Field("limit (1 to 1000)"));
        }
        Ok(request)
    }
}

/// Reads numbers about one namespace, or about the server when the namespace is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatsRequest {
    /// The namespace, 0 for the whole server.
    pub namespace: GroupId,
}

impl StatsRequest {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.namespace.0.to_le_bytes().to_vec()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let namespace = GroupId(r.u32()?);
        r.finish()?;
        Ok(Self { namespace })
    }
}

/// Asks for shared memory; only on a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmAttach {
    /// Bytes of the arena that the client wants for the payload of puts.
    pub payload_bytes: u64,
    /// The client wants to use values in place ([`super::FLAG_LEND`]), and gets a fourth descriptor
    /// for that: the end of a pipe. Once no process has that end open, no value is lent any more.
    pub lends: bool,
}

impl ShmAttach {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(self.payload_bytes);
        w.u8(u8::from(self.lends));
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let payload_bytes = r.u64()?;
        let lends = match r.u8()? {
            0 => false,
            1 => true,
            _ => return Err(WireError::Field("lends")),
        };
        r.finish()?;
        Ok(Self { payload_bytes, lends })
    }
}

/// Gives back the values of a get that were read through shared memory. Has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmRelease {
    /// The hold of the get's reply.
    pub hold: u64,
}

impl ShmRelease {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.hold.to_le_bytes().to_vec()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let hold = r.u64()?;
        r.finish()?;
        Ok(Self { hold })
    }
}
