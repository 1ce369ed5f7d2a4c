//! What the heads of two chains say to each other while a slot moves between them.
//! Layouts are the order of the fields in `encode`.

use super::codec::{Reader, WireError, Writer};
use super::verb::wire_enum;
use crate::checksum::Crc32c;
use crate::cluster::{ChainId, NodeId, RoutingVersion};
use crate::ids::{ChunkId, SlotId, Uuid128};
use crate::limits::{ATTRS_BYTES_MAX, CHUNK_BYTES_MAX, LEASE_MS_MAX};

wire_enum! {
    /// What is asked.
    SlotOp: u8, "slot operation" {
        /// Of the old chain: is the chunk there, in its turn behind the updates admitted before?
        Probe = 1,
        /// Of the old chain: remove the chunk, which was buried at the new one.
        Remove = 2,
        /// Of the new chain: take this copy unless the chunk is there or was buried.
        Import = 3,
        /// Of a replica of the new chain: keep the chunk from eviction.
        Pin = 4,
        /// Of a replica of the new chain: no longer.
        Unpin = 5,
        /// Of a replica of the old chain: do you know that the slot moves?
        Know = 6,
        /// Of the new chain's head: keep the chunk from eviction for a while.
        Lease = 7,
    }
}

wire_enum! {
    /// What came of it.
    SlotOutcome: u8, "slot outcome" {
        /// Done, or there was nothing to do.
        Done = 0,
        /// Probe: the chunk is there.
        Exists = 1,
        /// Probe: it is not. Lease: neither.
        NotFound = 2,
        /// Not now, or not here: ask again.
        Behind = 3,
        /// No space.
        NoSpace = 4,
    }
}

/// Asks another node about a chunk of a slot that moves (`SlotAsk`); the payload of an `Import` is
/// the chunk's bytes. The answer is a frame of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotAsk {
    /// Names the question; the answer repeats it.
    pub id: u64,
    /// Who asks.
    pub from: NodeId,
    /// What is asked.
    pub op: SlotOp,
    /// The slot.
    pub slot: SlotId,
    /// The chain that is asked.
    pub chain: ChainId,
    /// The other chain.
    pub other: ChainId,
    /// The receiver must know routing at least this new.
    pub routing: RoutingVersion,
    /// The chunk.
    pub chunk: ChunkId,
    /// Of a `Lease` and an `Import`: for so many milliseconds more the chunk is not evicted.
    pub lease_ms: u32,
    /// Of an `Import`: checksum of the bytes.
    pub crc: Crc32c,
    /// Of an `Import`: what is kept beside the chunk.
    pub attrs: Vec<u8>,
}

impl SlotAsk {
    /// Encodes the message's meta.
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

    /// Decodes the message's meta, whose frame carries `payload` bytes.
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
    /// The question's.
    pub id: u64,
    /// What came of it.
    pub outcome: SlotOutcome,
}

impl SlotAnswer {
    /// Encodes the message's meta.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(9);
        w.u64(self.id);
        w.u8(self.outcome as u8);
        w.into_bytes()
    }

    /// Decodes the message's meta.
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
