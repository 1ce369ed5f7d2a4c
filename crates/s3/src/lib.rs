//! The S3 gateway: buckets are directories, objects are files.
//!
//! Mounts read objects as soon as they are written, and the reverse; RFC 0019 defines how keys
//! become paths. `s3s` is the front: it parses requests, verifies signatures (of headers, URLs and
//! chunks) and writes XML. This crate does the operations.
//!
//! Reading order: `gateway` and `loops` (threads and sockets), `http` (around `s3s`), `gate`,
//! `query`, `scope` and `range` (requests that `s3s` would misread), `auth`, `keys`, `access` and
//! `acl` (access control), `service` and `ops` (the operations), `backed` (their part in buckets
//! with a backend), `chunks`, `document`, `receive`, `send`, `joined` and `unread` (bodies),
//! `hash`, `conditions`, `record` (the data stored with an inode), `store` (the only access to the
//! volume).
//!
//! Invariants:
//!
//! 1. All state of a gateway is a cache: credentials and buckets are cached for at most a second.
//! 2. An object gets its name after its last byte was hashed, and compared with all hashes and
//!    lengths from the client.
//! 3. Metas decide conditions, in the transaction of the change.
//! 4. Memory for bodies is bounded for all requests together. Waiting happens off the event loop,
//!    and so does hashing of all bodies except those of some KiB.
//!
//! Absent on purpose: versions, policies of the gateway's own, lifecycle, websites, encryption by
//! the server, object lock. They are rejected with an error that names them; `docs/s3.md` has the
//! full list.

mod access;
mod acl;
mod auth;
mod back;
mod backed;
mod chunks;
mod conditions;
mod document;
mod door;
mod error;
mod gate;
mod gateway;
mod hash;
mod http;
mod joined;
mod keys;
mod late;
mod lately;
mod loops;
mod metrics;
mod ops;
mod query;
mod range;
mod receive;
mod record;
mod scope;
mod send;
mod service;
mod spare;
mod stall;
mod store;
mod together;
mod unread;

pub use back::backends::{BackendRing, BackendSettings, Secret};
pub use backed::ring::{Backlog, BucketRing, Failing, Heads, Lane, Pool, Reached};
pub use gateway::{Gateway, Options, StartError};
pub use keys::{DEFAULT_TENANT, Key, KeyRing};
pub use metrics::Metrics;
