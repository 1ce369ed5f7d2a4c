//! The fixed part of every frame.

use super::codec::{Reader, WireError, Writer};
use super::verb::{Status, Verb};
use crate::checksum::Crc32c;
use crate::limits::{META_BYTES_MAX, PAYLOAD_BYTES_MAX};

/// First four bytes of every frame: `MLPD`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"MLPD");
/// The protocol version of this build.
pub const PROTOCOL_VERSION: u8 = 12;
/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 40;
/// The frame is a reply.
pub const FLAG_REPLY: u8 = 1;
/// The payload is in shared memory, at the place that the metadata gives; none follows the frame.
pub const FLAG_SHM: u8 = 2;
/// A read through shared memory with values that are used in place: the server keeps them there
/// until the client gives them back, however long that takes (RFC 0027).
pub const FLAG_LEND: u8 = 4;

/// The fixed part of every frame.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 4 | magic `MLPD` |
/// | 4 | 1 | protocol version |
/// | 5 | 1 | flags: 1 reply, 2 payload in shared memory, 4 values that are lent |
/// | 6 | 2 | verb |
/// | 8 | 8 | request id, chosen by the client |
/// | 16 | 4 | meta length in bytes |
/// | 20 | 4 | payload length in bytes |
/// | 24 | 4 | request: deadline in ms from receipt (0: the server's default); reply: status |
/// | 28 | 4 | CRC-32C of the meta |
/// | 32 | 4 | request: a random number; reply: proof of the request that it answers |
/// | 36 | 4 | CRC-32C of bytes 0 to 35 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// [`FLAG_REPLY`], [`FLAG_SHM`], [`FLAG_LEND`].
    pub flags: u8,
    /// The verb's number; the server answers unknown verbs, it does not drop them.
    pub verb: u16,
    /// Chosen by the client, unique among its requests in flight.
    pub request_id: u64,
    /// Bytes of metadata after the header.
    pub meta_len: u32,
    /// Bytes of payload after the metadata.
    pub payload_len: u32,
    /// Deadline of a request in ms, [`super::Status`] of a reply.
    pub deadline_or_status: u32,
    /// Checksum of the metadata.
    pub meta_crc: Crc32c,
    /// A random number for a request; the proof of [`FrameHeader::asked`] for a reply.
    pub proof: u32,
}

/// The request that a reply must answer: the asking side keeps it, and the answering side proves
/// that it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The request's id.
    pub request_id: u64,
    /// CRC-32C of the request's random number, id, verb and metadata checksum.
    pub proof: u32,
}

impl FrameHeader {
    /// A request without payload, random number and deadline.
    #[must_use]
    pub fn request(verb: Verb, request_id: u64, meta: &[u8]) -> Self {
        Self {
            flags: 0,
            verb: verb as u16,
            request_id,
            meta_len: u32::try_from(meta.len()).unwrap_or(u32::MAX),
            payload_len: 0,
            deadline_or_status: 0,
            meta_crc: Crc32c::of(meta),
            proof: 0,
        }
    }

    /// The reply to a request with `verb`, without payload.
    #[must_use]
    pub fn reply(asked: Asked, verb: Verb, status: Status, meta: &[u8]) -> Self {
        Self {
            flags: FLAG_REPLY,
            deadline_or_status: u32::from(status as u16),
            proof: asked.proof,
            ..Self::request(verb, asked.request_id, meta)
        }
    }

    /// The id and proof that the answer to this request must have.
    #[must_use]
    pub fn asked(&self) -> Asked {
        let mut bytes = [0; 18];
        bytes[..4].copy_from_slice(&self.proof.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.request_id.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.verb.to_le_bytes());
        bytes[14..].copy_from_slice(&self.meta_crc.0.to_le_bytes());
        // Zero means no proof.
        let proof = Crc32c::of(&bytes).0.max(1);
        Asked { request_id: self.request_id, proof }
    }

    /// Checks that this reply answers the request. Ids alone cannot show that: two processes that
    /// share a connection, through a fork or a fault, count the same ids.
    ///
    /// # Errors
    /// [`WireError::Answer`]; [`WireError::Field`] for a frame that is no reply.
    pub fn check_answers(&self, asked: Asked) -> Result<(), WireError> {
        if self.flags & FLAG_REPLY == 0 {
            return Err(WireError::Field("flags"));
        }
        // Sent before any request was read, by a server that takes no more connections.
        let is_unasked = self.verb == Verb::Hello as u16
            && self.proof == 0
            && self.deadline_or_status != u32::from(Status::Ok as u16);
        let is_answer = self.request_id == asked.request_id && self.proof == asked.proof;
        if is_answer || is_unasked { Ok(()) } else { Err(WireError::Answer) }
    }

    /// The frame without its payload: the header and the metadata.
    #[must_use]
    pub fn frame(&self, meta: &[u8]) -> Vec<u8> {
        let mut frame = Vec::with_capacity(HEADER_BYTES + meta.len());
        frame.extend_from_slice(&self.encode());
        frame.extend_from_slice(meta);
        frame
    }

    /// Encodes the header and its checksum.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut w = Writer::with_capacity(HEADER_BYTES);
        w.u32(MAGIC);
        w.u8(PROTOCOL_VERSION);
        w.u8(self.flags);
        w.u16(self.verb);
        w.u64(self.request_id);
        w.u32(self.meta_len);
        w.u32(self.payload_len);
        w.u32(self.deadline_or_status);
        w.u32(self.meta_crc.0);
        w.u32(self.proof);
        let mut out = [0; HEADER_BYTES];
        let bytes = w.into_bytes();
        out[..36].copy_from_slice(&bytes);
        out[36..].copy_from_slice(&Crc32c::of(&bytes).0.to_le_bytes());
        out
    }

    /// Decodes a header and checks magic, version, checksum and limits.
    ///
    /// # Errors
    /// [`WireError`] naming the fault.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        if r.u32()? != MAGIC {
            return Err(WireError::Magic);
        }
        let version = r.u8()?;
        if version != PROTOCOL_VERSION {
            return Err(WireError::Version(version));
        }
        let header = Self {
            flags: r.u8()?,
            verb: r.u16()?,
            request_id: r.u64()?,
            meta_len: r.u32()?,
            payload_len: r.u32()?,
            deadline_or_status: r.u32()?,
            meta_crc: Crc32c(r.u32()?),
            proof: r.u32()?,
        };
        if r.u32()? != Crc32c::of(&bytes[..36]).0 {
            return Err(WireError::Checksum("header"));
        }
        if header.meta_len as usize > META_BYTES_MAX {
            return Err(WireError::Field("meta length"));
        }
        if header.payload_len as usize > PAYLOAD_BYTES_MAX {
            return Err(WireError::Field("payload length"));
        }
        Ok(header)
    }

    /// Checks the metadata that followed this header.
    ///
    /// # Errors
    /// [`WireError::Checksum`].
    pub fn check_meta(&self, meta: &[u8]) -> Result<(), WireError> {
        if Crc32c::of(meta) == self.meta_crc { Ok(()) } else { Err(WireError::Checksum("meta")) }
    }
}
