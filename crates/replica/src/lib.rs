//! The chain replicas of this node: the shell round `millpond-chain` over the engines of its disks.
//!
//! Reading order: `attrs` (attributes of a chunk), `blob` (bytes in transit), `blocks` (types that
//! reads and writes share), `store` (the protocol's store operations on an engine), `image`
//! (contents of that store), `job` and `hosted` (one replica and the order of its work), `links` (messages
//! between nodes), `host` (all replicas of the node), `kv` (reads over chains), `update` (writes),
//! `files` (chunks of files), `relay` and `moving` (moves of slots between chains), `evict`
//! (evictions by heads when a disk fills), `quota` (limits of namespaces), `numbers` (counters),
//! [`local`] (the KV service over the chains of this node).
//!
//! Invariants:
//! - Changes of one chunk reach the engine in the order of the state machine's effects.
//! - A target reported OFFLINE has stopped before the report is made.
//! - Only its head removes anything from a chain.
//! - No message between replicas is relied upon to arrive.

mod attrs;
mod blob;
mod blocks;
mod evict;
mod files;
mod host;
mod hosted;
mod image;
mod job;
mod kv;
mod links;
pub mod local;
mod moving;
mod numbers;
mod quota;
mod relay;
mod sole;
mod store;
#[cfg(test)]
mod tests;
mod update;

pub use attrs::LABEL_BYTES_MAX;
pub use blob::Blob;
pub use blocks::{DamagedChunks, Engine, GetOutcome, time_left};
pub use files::FileUpdate;
pub use host::{Host, HostDisk, HostOptions, HostTargets};
pub use image::BYTES_PER_CHUNK;
pub use numbers::{LinkNumbers, ReplicaNumbers};
pub use sole::SoleMark;
pub use update::Update;
