//! Ids, units, limits and encodings that every other crate of Millpond shares.
//!
//! This crate does no I/O and needs no other crate of the project. Reading order: [`ids`] (names of
//! things), [`units`] (time, sizes), [`limits`] (every bound and its reason), [`checksum`]
//! (CRC-32C), [`placement`] (key → chunk id, slot; chunk of a file → chunk id), [`cluster`] (nodes,
//! targets, chains), [`namespace`] (options of a KV keyspace), [`metrics`] (atomic counters and
//! histograms) and [`wire`] (the protocol between client and server).
//!
//! Invariants: every encoding is explicit little endian and is described once, beside its code;
//! every decoder takes untrusted bytes and returns an error instead of panicking.
//!
//! Absent on purpose: clocks, sockets, files, randomness. They live in `millpond-env`.

pub mod checksum;
pub mod cluster;
pub mod ids;
pub mod limits;
pub mod meta;
pub mod metrics;
pub mod namespace;
mod pcg;
pub mod placement;
pub mod units;
pub mod wire;

pub use checksum::Crc32c;
pub use ids::{
    BlockKey, ChunkId, ClusterSecret, DataId, FileChunk, GroupId, KeyError, SlotId, Uuid128,
    UuidError,
};
pub use namespace::{Ack, LayoutDigest, NamespaceInfo, NamespaceOptions, Priority};
pub use pcg::Pcg;
pub use placement::ChunkIds;
pub use units::{ByteSize, Tick, UnixSeconds};
