//! The protocol between client and server: one frame format on TCP, Unix sockets and shared-memory
//! rings. `docs/protocol.md` describes it and is tested against this code.
//!
//! A frame is a [`FrameHeader`] of 40 bytes, `meta_len` bytes of *metadata* (the encoded request or
//! reply, in code `meta`) and `payload_len` bytes of payload. Replies carry the request's id and
//! come in any order.

pub mod codec;
mod control;
mod failure;
mod files;
mod header;
mod membership;
mod records;
mod replies;
mod requests;
mod routing;
mod slots;
mod verb;

pub use codec::{Reader, WireError, Writer};
pub use control::{NamespaceTableReply, NamespaceTableRequest, RoutingRequest, SuspectRequest};
pub use failure::Failure;
pub use files::{
    ChunkBase, ChunkBases, ChunkChange, ChunkListReply, ChunkListRequest, ChunkReadRequest,
    ChunkStat, ChunkStatReply, ChunkStatRequest, ChunkUpdateRequest, ChunkWriteRequest, Cut,
    FileChunkInfo, PlacedChunk, ReadPart, WritePart,
};
pub use header::{
    Asked, FLAG_LEND, FLAG_REPLY, FLAG_SHM, FrameHeader, HEADER_BYTES, MAGIC, PROTOCOL_VERSION,
};
pub use records::{RECORD_MAGIC, RECORD_VERSION, Record};
pub use replies::{
    ErrorReply, GetItem, GetReply, HelloReply, ItemStatus, KeyInfo, ListReply, MatchReply,
    NamespacesReply, ShmAttachReply, StatsReply, StatusReply,
};
pub use requests::{
    GetRequest, Hello, ItemTag, KeysRequest, Leaders, ListRequest, MatchRequest, NamespaceOpen,
    NamespaceRef, NamespaceSet, Planned, PutItem, PutRequest, ShmAttach, ShmRelease, StatsRequest,
    Tags,
};
pub use slots::{SlotAnswer, SlotAsk, SlotOp, SlotOutcome};
pub use verb::{Status, Verb};

#[cfg(test)]
mod tests;
