//! The client of a Millpond server: transports, connections and their pool.
//!
//! Reading order: [`options`] and [`Address`] (where and how to connect), `call` (what one
//! call carries), `stream` (frames over TCP, Unix sockets and TLS), `shm` (the same frames
//! through shared memory), `connection` (hello, pipelining, replies), `pool` (connections to one
//! server), `cluster` (routing, a node for every key, retries), [`Client`] (one server or a cluster,
//! whichever answers), `region` (memory that a node on this host shares), `verbs` (the verbs of the
//! protocol, split into requests that fit), `meta` (operations on files, also by a meta of this process),
//! `chunks` (the bytes of files, of a cluster only), `layout` (which chunks a range of a file is),
//! `share` (what of them other files have too), `volume` (files by
//! their paths, for programs that want no mount between them and the bytes).
//!
//! Invariants: every call ends at its deadline; the memory of the caller is touched only
//! while its call runs, because it is borrowed for exactly that long, and by one connection at a
//! time; a connection whose call failed half-way is closed, never reused; a value whose checksum
//! does not match is a miss; an update that is tried again carries the tag of its first attempt.
//!
//! A call to a server that stands alone is tried once: the caller decides about another attempt. A
//! call to a cluster is tried until its deadline, because another node can answer, and there one
//! thread per client follows the routing; it ends within a second after the client.
//!
//! A child of a fork has connections, sessions, threads and locks of its own: what talks to a server is in a
//! [`millpond_env::PerProcess`] or [`millpond_env::OfProcess`], which no lock comes before.
//!
//! A [`Volume`] has threads of its own: one keeps its session, some do what was submitted.
//!
//! Absent on purpose: other threads, and knowledge of what keys mean (crate `kv`).

mod address;
mod arena;
mod call;
mod chunks;
mod client;
mod cluster;
mod connection;
mod error;
mod fills;
mod layout;
mod lent;
mod meta;
mod options;
mod own;
mod pool;
mod region;
mod share;
mod shm;
mod spill;
mod stream;
mod tls;
mod verbs;
mod volume;

pub use address::{Address, Addresses};
pub use call::{GetOutcome, Room, Value};
pub use chunks::{ChunkAt, ChunkCut, ChunkFilter};
pub use client::Client;
pub use cluster::{ChainPlace, Chains};
pub use connection::ServerInfo;
pub use error::{ClientError, ErrorKind};
pub use fills::Fills;
pub use layout::{BehindLastChunk, FileBytes};
pub use lent::LentBytes;
pub use meta::OwnMeta;
pub use options::{ClientOptions, Transport, TransportInUse};
pub use own::{OwnBytes, OwnNode, OwnPlace};
pub use region::Region;
pub use share::{Chunks, FileBases, SharedName, clone_file};
pub use spill::{Door, Spilled, spill};
pub use verbs::Keys;
pub use volume::{
    Body, File, Found, Hold, ListObjects, OpenOptions, Pending, PutObject, Question, Reply, Volume,
    VolumeOptions,
};

pub use millpond_types::meta::object::{
    Attachment, Backing, Bucket, Claimed, Expect, KeyState, ListPage, Listed, Mode, Object, Origin,
    Outcome, Part, Place, Put, QueuePage, Queued, Remote, Rule, Sharing, StatePage, Under, Upload,
    UploadId, Wanted, WhenFull,
};
