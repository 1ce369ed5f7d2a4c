//! Messages between the heads of two chains while a slot moves from one to the other. The layouts
//! are the order of the fields in `encode`.

use super::codec::{Reader, WireError, Writer};
use super::verb::wire_enum;
use crate::checksum::Crc32c;
use crate::cluster::{ChainId, NodeId, RoutingVersion};
use crate::ids::{ChunkId, SlotId, Uuid128};
use crate::limits::{ATTRS_BYTES_MAX, CHUNK_BYTES_MAX, LEASE_MS_MAX};

wire_enum! {
    /// Operation asked for.
    SlotOp: u8, "slot operation" {
        /// To the old chain: does the chunk exist, after the updates admitted before this question?
        Probe = 1,
        /// To the old chain: remove the chunk, which has a tombstone on the new one.
        Remove = 2,
        /// To the new chain: store this copy unless the chunk or a tombstone of it exists.
        Import = 3,
        /// To a replica of the new chain: keep the chunk from eviction.
        Pin = 4,
        /// To a replica of the new chain: allow eviction again.
        Unpin = 5,
        /// To a replica of the old chain: do you know that the slot moves?
        Know = 6,
        /// To the new chain's head: keep the chunk from eviction for a while.
        Lease = 7,
    }
}

wire_enum! {
    /// Outcome of the operation.
    SlotOutcome: u8, "slot outcome" {
        /// Done, or there was nothing to do.
        Done = 0,
        /// Probe: the chunk exists.
        Exists = 1,
        /// Probe: the chunk does not exist. Lease: the same.
        NotFound = 2,
        /// Not possible now, or not here: ask again.
        Behind = 3,
        /// No space.
        NoSpace = 4,
    }
}

/// Asks another node about a chunk of a moving slot (`SlotAsk`); the payload of an `Import` is the
/// chunk's bytes. The answer is a frame of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotAsk {
    /// Id of the question; the answer repeats it.
    pub id: u64,
    /// The asking node.
    pub from: NodeId,
    /// The operation.
    pub op: SlotOp,
    /// The slot.
    pub slot: SlotId,
    /// The chain to ask.
    pub chain: ChainId,
    /// The other chain.
    pub other: ChainId,
    /// The receiver must know routing at least this new.
    pub routing: RoutingVersion,
    /// The chunk.
    pub chunk: ChunkId,
    /// For `Lease` and `Import`: lease in milliseconds, in which the chunk is not evicted.
    pub lease_ms: u32,
    /// For `Import`: checksum of the bytes.
    pub crc: Crc32c,
    /// For `Import`: attributes of the chunk.
    pub attrs: Vec<u8>,
}

impl SlotAsk {
    /// Encodes the message's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(84 + self.attrs.len());
        w.u64(self.id);
        w.raw(&self.from.0.0);
        w.u8(self.op as u8);
        w.u16(self.slot.0);
        w.u32(self.chain.0);
        w.u32(self.other.0);
        w.u64(self.routing.0);
        w.raw(&self.chunk.0.to_le_bytes());
        w.u32(self.lease_ms);
        w.u32(self.crc.0);
        w.bytes16(&self.attrs);
        w.into_bytes()
    }

    /// Decodes the message's metadata; its frame carries `payload` bytes.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8], payload: usize) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let ask = Self {
            id: r.u64()?,
            from: NodeId(Uuid128(r.array()?)),
            op: SlotOp::try_from(r.u8()?)?,
            slot: SlotId(r.u16()?),
            chain: ChainId(r.u32()?),
            other: ChainId(r.u32()?),
            routing: RoutingVersion(r.u64()?),
            chunk: ChunkId(u128::from_le_bytes(r.array()?)),
            lease_ms: r.u32()?,
            crc: Crc32c(r.u32()?),
            attrs: r.bytes16(ATTRS_BYTES_MAX, "attributes")?.to_vec(),
        };
        r.finish()?;
        if payload > CHUNK_BYTES_MAX || payload > 0 && ask.op != SlotOp::Import {
            return Err(WireError::Field("payload length"));
        }
        if ask.lease_ms > LEASE_MS_MAX {
            return Err(WireError::Field("lease"));
        }
        Ok(ask)
    }
}

/// The answer to a [`SlotAsk`] (`SlotAnswer`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotAnswer {
    /// Id of the question.
    pub id: u64,
    /// Outcome of the operation.
    pub outcome: SlotOutcome,
}

impl SlotAnswer {
    /// Encodes the message's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(9);
        w.u64(self.id);
        w.u8(self.outcome as u8);
        w.into_bytes()
    }

    /// Decodes the message's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let answer = Self { id: r.u64()?, outcome: SlotOutcome::try_from(r.u8()?)? };
        r.finish()?;
        Ok(answer)
    }
}
