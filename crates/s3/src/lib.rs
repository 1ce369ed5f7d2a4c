//! The S3 gateway: buckets are directories, objects are files.
//!
//! What S3 writes, mounts read at once, and the reverse; RFC 0019 tells how keys become paths. `s3s` is the front: it
//! parses requests, verifies signatures (of headers, URLs and chunks) and writes XML. This crate does the operations.
//!
//! Reading order: `gateway` and `loops` (threads and sockets), `http` (round `s3s`), `gate`, `query`, `scope` and `range` (what it would take for something else), `auth`, `keys`, `access` and `acl` (who may), `service` and `ops`
//! (the operations), `backed` (their part in buckets with a backend), `chunks`, `document`, `receive`, `send`, `joined` and `unread` (bodies), `hash`, `conditions`, `record` (what is kept with an inode), `store` (the one
//! place that touches the volume).
//!
//! Invariants:
//!
//! 1. A gateway has no state that matters: what it remembers of credentials and buckets it believes for a second.
//! 2. An object gets its name after its last byte was hashed, and compared with all that the client said of it.
//! 3. Conditions are decided by metas, in the transaction of the change.
//! 4. Memory for bodies is bounded for all requests together; waiting happens off the event loop, and so does
//!    hashing of all but bodies of some KiB.
//!
//! Absent on purpose: versions, policies of the gateway's own, lifecycle, websites, encryption by the server, object
//! lock. They are refused by name; `docs/s3.md` lists everything.

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
