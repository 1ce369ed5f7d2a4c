//! The chain replicas of this node: the shell round `millpond-chain` over the engines of its disks.
//!
//! Reading order: `attrs` (what is kept beside a chunk), `blob` (bytes on their way), `blocks` (what
//! reads and writes share), `store` (the protocol's store operations on an engine), `image` (what that
//! holds), `hosted` (one replica and the order of its work), `links` (what nodes say to each other),
//! `host` (all replicas of the node), `kv` (reads over chains), `update` (writes), `files` (chunks of
//! files), `relay` and `moving` (a slot's way to another chain), `evict` (what heads give up when a
//! disk fills), `quota` (what a namespace may hold), `numbers` (what is watched), [`local`] (the KV
//! service over the chains of this node).
//!
//! Invariants:
//! - Changes of one chunk reach the engine in the order of the state machine's effects.
//! - A target reported OFFLINE has stopped before the report is made.
//! - Nothing is removed from a chain but by its head.
//! - No message between replicas is relied upon to arrive.

mod attrs;
mod blob;
mod blocks;
mod evict;
mod files;
mod host;
mod hosted;
mod image;
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
