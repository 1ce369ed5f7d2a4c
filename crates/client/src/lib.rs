//! The client of a Millpond server: transports, connections and their pool.
//!
//! Reading order: [`options`] and [`Address`] (where and how to connect), `call` (contents of one
//! call), `stream` (frames over TCP, Unix sockets and TLS), `shm` (the same frames through shared
//! memory), `connection` (hello, pipelining, replies), `pool` (connections to one server),
//! `cluster` (routing, a node for every key, retries), [`Client`] (one server or a cluster),
//! `region` (memory shared with a node on this host), `verbs` (the verbs of the protocol, split
//! into requests that fit), `meta` (operations on files, also by a meta in this process), `chunks`
//! (the bytes of files, clusters only), `layout` (mapping of file ranges to chunks), `share`
//! (chunks shared with other files), `volume` (files by their paths, for programs that access the
//! bytes without a mount).
//!
//! Invariants: every call ends at its deadline; the memory of the caller is touched only while its
//! call runs, because it is borrowed for exactly that long, and by one connection at a time; a
//! connection with a half-finished failed call is closed, never reused; a value with a wrong
//! checksum is a miss; a retried update carries the tag of its first attempt.
//!
//! A call to a standalone server is tried once: the caller decides about another attempt. A call to
//! a cluster is retried until its deadline, because another node can answer, and one thread per
//! client follows the routing; it ends within a second after the client.
//!
//! A child of a fork has connections, sessions, threads and locks of its own: state that talks to a
//! server is in a [`millpond_env::PerProcess`] or [`millpond_env::OfProcess`], and no lock is taken
//! before it.
//!
//! A [`Volume`] has threads of its own: one renews its session, others run submitted batches.
//!
//! Absent on purpose: other threads, and knowledge of the meaning of keys (crate `kv`).

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
