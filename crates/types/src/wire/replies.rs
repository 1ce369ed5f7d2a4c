//! Metadata of replies. The layouts are the order of the fields in `encode`.

use super::codec::{Reader, WireError, Writer};
use super::verb::wire_enum;
use crate::checksum::Crc32c;
use crate::cluster::Incarnation;
use crate::ids::{BlockKey, Uuid128};
use crate::limits::{BATCH_KEYS_MAX, LIST_KEYS_MAX, NAMESPACES_MAX};
use crate::namespace::NamespaceInfo;

wire_enum! {
    /// Outcome of one key of a batch.
    ItemStatus: u8, "item status" {
        /// Done: stored, read, present, touched, pinned, unpinned or deleted.
        Ok = 0,
        /// Put: an earlier value exists and stays. Match of each key: the key is present, but not
        /// leased.
        Exists = 1,
        /// The key is not present, or its value failed a check; damaged bytes are never returned.
        Miss = 2,
        /// Get: the value is longer than the caller's room; the reply has its length.
        TooLong = 3,
        /// No space, and nothing may be evicted.
        NoSpace = 4,
        /// A queue is full; retry later.
        Busy = 5,
        /// Put: the bytes that arrived do not match the client's checksum.
        Corrupt = 6,
        /// The disk rejects writes.
        ReadOnly = 7,
        /// The namespace's quota is used up.
        Quota = 8,
        /// The deadline passed first.
        Late = 9,
        /// Another node has the key's chain now, or this one cannot answer for it at the moment:
        /// fetch the newest routing and ask again.
        Moved = 10,
        /// Put, delete: not possible here now, and perhaps already done: ask the chain's head again
        /// before any other chain.
        Behind = 11,
        /// Chunks: the data id is sealed on this chain. Look up the file's newest data id and write
        /// there.
        Sealed = 12,
    }
}

/// Why a request failed: the metadata of every reply with a status other than `Ok`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReply {
    /// Pause before a retry, in ms; 0 when a retry would not help.
    pub retry_after_ms: u32,
    /// The error and its remedy.
    pub message: String,
}

impl ErrorReply {
    /// Encodes the reply's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u32(self.retry_after_ms);
        let text = self.message.as_bytes();
        w.bytes16(&text[..text.len().min(4096)]);
        w.into_bytes()
    }

    /// Decodes the reply's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let retry_after_ms = r.u32()?;
        let message = String::from_utf8_lossy(r.bytes16(4096, "message")?).into_owned();
        r.finish()?;
        Ok(Self { retry_after_ms, message })
    }
}

/// Answer to `Hello`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelloReply {
    /// The protocol version for this connection.
    pub version: u16,
    /// Version of the server's build.
    pub server: String,
    /// Identity of the server's node.
    pub node: Uuid128,
    /// Boot id of the server's host; equal on the same host.
    pub boot_id: Uuid128,
    /// Path of the server's Unix socket; empty when there is none.
    pub socket_path: String,
    /// Whether this credential may use shared memory.
    pub shm: bool,
    /// Requests that may be in flight on this connection.
    pub in_flight_max: u32,
    /// The cluster of the node's routing; nil for a standalone server.
    pub cluster: Uuid128,
    /// Incarnation of the server's process.
    pub incarnation: Incarnation,
}

impl HelloReply {
    /// Encodes the reply's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u16(self.version);
        w.str8(&self.server);
        w.raw(&self.node.0);
        w.raw(&self.boot_id.0);
        w.str8(&self.socket_path);
        w.u8(u8::from(self.shm));
        w.u32(self.in_flight_max);
        w.raw(&self.cluster.0);
        w.u64(self.incarnation.0);
        w.into_bytes()
    }

    /// Decodes the reply's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let reply = Self {
            version: r.u16()?,
            server: r.str8()?.to_owned(),
            node: Uuid128(r.array()?),
            boot_id: Uuid128(r.array()?),
            socket_path: r.str8()?.to_owned(),
            shm: r.u8()? != 0,
            in_flight_max: r.u32()?,
            cluster: Uuid128(r.array()?),
            incarnation: Incarnation(r.u64()?),
        };
        r.finish()?;
        if reply.in_flight_max == 0 {
            return Err(WireError::Field("in-flight limit"));
        }
        Ok(reply)
    }
}

/// Answer to `NamespaceList` and, with one element, to `NamespaceOpen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespacesReply {
    /// The namespaces.
    pub namespaces: Vec<NamespaceInfo>,
}

impl NamespacesReply {
    /// Encodes the reply's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.count(self.namespaces.len());
        for namespace in &self.namespaces {
            namespace.encode(&mut w);
        }
        w.into_bytes()
    }

    /// Decodes the reply's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let n = r.count(NAMESPACES_MAX, 50, "namespaces")?;
        let namespaces =
            (0..n).map(|_| NamespaceInfo::decode(&mut r)).collect::<Result<Vec<_>, _>>()?;
        r.finish()?;
        Ok(Self { namespaces })
    }
}

/// Answer to `Put`, `Contains`, `Touch`, `Pin`, `Unpin`, `Delete` and a `MatchPrefix` of each key:
/// one status per key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusReply {
    /// In the order of the request's keys.
    pub items: Vec<ItemStatus>,
}

impl StatusReply {
    /// Encodes the reply's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(4 + self.items.len());
        w.count(self.items.len());
        for item in &self.items {
            w.u8(*item as u8);
        }
        w.into_bytes()
    }

    /// Decodes the reply's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let n = r.count(BATCH_KEYS_MAX, 1, "items")?;
        let items =
            r.bytes(n)?.iter().map(|b| ItemStatus::try_from(*b)).collect::<Result<Vec<_>, _>>()?;
        r.finish()?;
        Ok(Self { items })
    }
}

/// One value of a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetItem {
    /// `Ok`, `Miss`, `TooLong`, `Late` or `Busy`.
    pub status: ItemStatus,
    /// Bytes of the value.
    pub len: u32,
    /// Checksum of the value.
    pub crc: Crc32c,
    /// Offset of the value in the buffer pool when the frame has [`super::FLAG_SHM`], else 0.
    pub pool_offset: u64,
}

/// Answer to `Get`; the payload is the concatenation of the values of the `Ok` items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetReply {
    /// Id of the hold on the values until `ShmRelease`; 0 without shared memory.
    pub hold: u64,
    /// In the order of the request's keys.
    pub items: Vec<GetItem>,
}

impl GetReply {
    /// Bytes of one encoded item.
    pub const ITEM_BYTES: usize = 17;

    /// Encodes the reply's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(12 + self.items.len() * Self::ITEM_BYTES);
        w.u64(self.hold);
        w.count(self.items.len());
        for item in &self.items {
            w.u8(item.status as u8);
            w.u32(item.len);
            w.u32(item.crc.0);
            w.u64(item.pool_offset);
        }
        w.into_bytes()
    }

    /// Decodes the reply's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let hold = r.u64()?;
        let n = r.count(BATCH_KEYS_MAX, Self::ITEM_BYTES, "items")?;
        let mut items = Vec::with_capacity(n);
        for _ in 0..n {
            items.push(GetItem {
                status: ItemStatus::try_from(r.u8()?)?,
                len: r.u32()?,
                crc: Crc32c(r.u32()?),
                pool_offset: r.u64()?,
            });
        }
        r.finish()?;
        Ok(Self { hold, items })
    }
}

/// Answer to a `MatchPrefix` of the leading keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchReply {
    /// Leading keys that are present.
    pub matched: u32,
    /// Leading keys among them that are leased; fewer when the leases reach their limit.
    pub leased: u32,
}

impl MatchReply {
    /// Encodes the reply's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(8);
        w.u32(self.matched);
        w.u32(self.leased);
        w.into_bytes()
    }

    /// Decodes the reply's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let reply = Self { matched: r.u32()?, leased: r.u32()? };
        r.finish()?;
        Ok(reply)
    }
}

/// A key in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    /// The key.
    pub key: BlockKey,
    /// Bytes of its value.
    pub len: u32,
    /// Expiry time in Unix seconds; 0 for never.
    pub expires: u32,
    /// Whether it is pinned.
    pub pinned: bool,
}

/// Answer to `List`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListReply {
    /// Cursor of the next page; 0 after the last page.
    pub cursor: u64,
    /// The keys of this page, in no particular order.
    pub keys: Vec<KeyInfo>,
}

impl ListReply {
    /// Encodes the reply's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(12 + self.keys.len() * 48);
        w.u64(self.cursor);
        w.count(self.keys.len());
        for info in &self.keys {
            w.key(&info.key);
            w.u32(info.len);
            w.u32(info.expires);
            w.u8(u8::from(info.pinned));
        }
        w.into_bytes()
    }

    /// Decodes the reply's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let cursor = r.u64()?;
        let n = r.count(LIST_KEYS_MAX, 11, "keys")?;
        let mut keys = Vec::with_capacity(n);
        for _ in 0..n {
            keys.push(KeyInfo {
                key: r.key()?,
                len: r.u32()?,
                expires: r.u32()?,
                pinned: r.u8()? != 0,
            });
        }
        r.finish()?;
        Ok(Self { cursor, keys })
    }
}

/// Answer to `Stats`: numbers with names, because builds of different versions have different ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatsReply {
    /// Name and value.
    pub values: Vec<(String, u64)>,
}

impl StatsReply {
    /// Encodes the reply's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.count(self.values.len());
        for (name, value) in &self.values {
            w.str8(name);
            w.u64(*value);
        }
        w.into_bytes()
    }

    /// Decodes the reply's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let n = r.count(4096, 9, "values")?;
        let values = (0..n)
            .map(|_| Ok((r.str8()?.to_owned(), r.u64()?)))
            .collect::<Result<Vec<_>, WireError>>()?;
        r.finish()?;
        Ok(Self { values })
    }
}

/// Answer to `ShmAttach`, sent with three descriptors: the buffer pool (read-only), the arena (read
/// and write) and the eventfd that wakes the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmAttachReply {
    /// Bytes of the buffer pool.
    pub pool_bytes: u64,
    /// Bytes of the whole arena.
    pub arena_bytes: u64,
    /// Bytes of each ring; the request ring starts at 0, the reply ring follows it.
    pub ring_bytes: u64,
    /// Offset of the payload space.
    pub payload_offset: u64,
}

impl ShmAttachReply {
    /// Encodes the reply's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(self.pool_bytes);
        w.u64(self.arena_bytes);
        w.u64(self.ring_bytes);
        w.u64(self.payload_offset);
        w.into_bytes()
    }

    /// Decodes the reply's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let reply = Self {
            pool_bytes: r.u64()?,
            arena_bytes: r.u64()?,
            ring_bytes: r.u64()?,
            payload_offset: r.u64()?,
        };
        r.finish()?;
        let rings = reply.ring_bytes.checked_mul(2).ok_or(WireError::Field("ring bytes"))?;
        if rings > reply.payload_offset || reply.payload_offset > reply.arena_bytes {
            return Err(WireError::Field("arena layout"));
        }
        Ok(reply)
    }
}
