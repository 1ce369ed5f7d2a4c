//! Messages between replicas as bytes.
//!
//! The bytes of a chunk travel as the frame's payload, unchanged; everything else is the frame's
//! meta, little endian:
//!
//! ```text
//! envelope  chain u32, from u32, to u32, version u32, kind u8, the kind's fields
//! payload   attrs u16 + bytes, len u32                 where a kind has one
//! meta      version u64, written u32, content, tag
//! content   1, len u32, crc u32  |  2 (tombstone)
//! tag       client u128, channel u32, sequence u64
//! option    0  |  1, the value
//! list      count u32, the items
//! ```
//!
//! The receiver decodes in two steps, as only the meta tells which buffer the payload needs:
//! [`Head::decode`], then [`Head::finish`]. A message that decodes is within the limits; the state
//! machine checks its content.

use millpond_types::cluster::{ChainId, ChainVersion, ChunkVersion, TargetId};
use millpond_types::limits::{
    ATTRS_BYTES_MAX, CHUNK_BYTES_MAX, META_BYTES_MAX, RESYNC_PAGE_CHUNKS,
};
use millpond_types::wire::{PROTOCOL_VERSION, Reader, WireError, Writer};
use millpond_types::{Ack, ChunkId, Crc32c, Tick};

use crate::message::{
    Answer, Content, Lane, LaneRecord, Meta, Outcome, Payload, Peer, PeerBody, Space, SyncBody,
    Tag, Update, Write,
};

mod decode;
mod encode;

#[cfg(test)]
mod tests;

/// Chunks in one answer of a resync's sink: a page of the source's, and two of its own.
pub const DIFFER_ITEMS_MAX: usize = 3 * RESYNC_PAGE_CHUNKS;
/// Writers handed over in one message: all that a replica can record.
pub const LANES_MAX: usize = crate::dedup::DEDUP_LANES_MAX;
/// Most bytes of one handed-over writer: tag, kind, chunk, version, content.
const LANE_BYTES_MAX: usize = 28 + 1 + 16 + 8 + 9;
const _: () = assert!(LANES_MAX * LANE_BYTES_MAX + 64 <= META_BYTES_MAX, "one frame holds them");

/// The kinds of messages.
mod kind {
    pub(super) const FORWARD: u8 = 1;
    pub(super) const READY: u8 = 2;
    pub(super) const ACK: u8 = 3;
    pub(super) const STALE: u8 = 4;
    pub(super) const TAIL_QUERY: u8 = 5;
    pub(super) const TAIL_ANSWER: u8 = 6;
    pub(super) const LEASE_ASK: u8 = 7;
    pub(super) const LEASE_GRANT: u8 = 8;
    pub(super) const JOIN_ASK: u8 = 9;
    pub(super) const JOIN_ANSWER: u8 = 10;
    /// Without an id: no one waits for a `NoCopy`. Not sent any more.
    pub(super) const FETCH_UNNAMED: u8 = 11;
    pub(super) const FETCHED: u8 = 12;
    pub(super) const ROOM: u8 = 13;
    pub(super) const FETCH: u8 = 14;
    pub(super) const NO_COPY: u8 = 15;
    pub(super) const SYNC_HELLO: u8 = 32;
    pub(super) const SYNC_PROGRESS: u8 = 33;
    pub(super) const SYNC_LIST: u8 = 34;
    pub(super) const SYNC_DIFFER: u8 = 35;
    pub(super) const SYNC_PUT: u8 = 36;
    pub(super) const SYNC_HAS: u8 = 37;
    pub(super) const SYNC_FINISH: u8 = 38;
    pub(super) const SYNC_LOST: u8 = 39;
}
// A node that gets an unknown kind ends the connection, with all other messages on it.
const _: () = assert!(PROTOCOL_VERSION >= 10, "10 brought FETCH, NO_COPY and SYNC_LOST");

/// Kinds of writes, within [`kind::FORWARD`].
mod write_kind {
    pub(super) const WHOLE: u8 = 1;
    pub(super) const PART: u8 = 2;
    pub(super) const TRUNCATE: u8 = 3;
    pub(super) const TOMBSTONE: u8 = 4;
    pub(super) const COLLECT: u8 = 5;
}

/// Kinds of answers to an update, within [`kind::SYNC_FINISH`].
mod answer_kind {
    pub(super) const DONE: u8 = 1;
    pub(super) const EXISTS: u8 = 2;
    pub(super) const NOT_FOUND: u8 = 3;
}

const CONTENT_DATA: u8 = 1;
const CONTENT_TOMBSTONE: u8 = 2;

/// A message between two replicas of one chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope<P> {
    /// The chain.
    pub chain: ChainId,
    /// The sending replica.
    pub from: TargetId,
    /// The replica it is for.
    pub to: TargetId,
    /// The message.
    pub peer: Peer<P>,
}

/// A message's description of its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadHead {
    /// The label that the store keeps beside the bytes; opaque here, at most [`ATTRS_BYTES_MAX`]
    /// bytes.
    pub attrs: Vec<u8>,
    /// Number of bytes, at most [`CHUNK_BYTES_MAX`].
    pub len: u32,
}

/// A message without its payload's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The chain.
    pub chain: ChainId,
    /// The sending replica.
    pub from: TargetId,
    /// The replica it is for.
    pub to: TargetId,
    /// The payload to come; `None` when there is none, which differs from an empty one.
    pub payload: Option<PayloadHead>,
    peer: Peer<()>,
}

impl<P: Payload> Envelope<P> {
    /// Encodes the message: the frame's meta, and its payload when it has one. `attrs` returns the
    /// label that the store keeps beside the payload's bytes.
    ///
    /// # Panics
    /// When the attributes are longer than [`ATTRS_BYTES_MAX`], which the store refuses to keep.
    #[must_use]
    pub fn encode(&self, attrs: impl FnOnce(&P) -> Vec<u8>) -> (Vec<u8>, Option<P>) {
        let payload = self.peer.payload();
        let head = payload.map(|bytes| PayloadHead {
            attrs: attrs(bytes),
            len: u32::try_from(bytes.len()).expect("a chunk is below 2^32 bytes"),
        });
        let mut w = Writer::with_capacity(128 + head.as_ref().map_or(0, |head| head.attrs.len()));
        w.u32(self.chain.0);
        w.u32(self.from.0);
        w.u32(self.to.0);
        w.u32(self.peer.version.0);
        encode::body(&self.peer.body, head.as_ref(), &mut w);
        let meta = w.into_bytes();
        assert!(meta.len() <= META_BYTES_MAX, "a message fits a frame");
        (meta, payload.cloned())
    }
}

impl Head {
    /// Decodes a frame's meta.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let chain = ChainId(r.u32()?);
        let from = TargetId(r.u32()?);
        let to = TargetId(r.u32()?);
        let version = ChainVersion(r.u32()?);
        let (body, payload) = decode::body(&mut r)?;
        r.finish()?;
        Ok(Self { chain, from, to, payload, peer: Peer { version, body } })
    }

    /// The sender's chain version.
    #[must_use]
    pub const fn version(&self) -> ChainVersion {
        self.peer.version
    }

    /// Inserts the payload.
    ///
    /// # Errors
    /// [`WireError::Field`] when the payload differs from the description in the meta. The state
    /// machine compares its checksum, and requests it again on a mismatch.
    pub fn finish<P: Payload>(self, payload: Option<P>) -> Result<Envelope<P>, WireError> {
        let promised = self.payload.map(|head| head.len as usize);
        if promised != payload.as_ref().map(Payload::len) {
            return Err(WireError::Field("payload length"));
        }
        let Self { chain, from, to, peer, .. } = self;
        let body = decode::with_payload(peer.body, payload)?;
        Ok(Envelope { chain, from, to, peer: Peer { version: peer.version, body } })
    }
}
