//! The client of a Millpond server: transports, connections and their pool.
//!
//! Reading order: [`options`] and [`Address`] (where and how to connect), `call` (what one
//! call carries), `stream` (frames over TCP, Unix sockets and TLS), `shm` (the same frames
//! through shared memory), `connection` (hello, pipelining, replies), `pool` ([`Client`]),
//! `verbs` (the verbs of the protocol, split into requests that fit).
//!
//! Invariants: every call ends at its deadline; the memory of the caller is touched only
//! while its call runs, because it is borrowed for exactly that long; a connection whose
//! call failed half-way is closed, never reused; a value whose checksum does not match is
//! a miss.
//!
//! Absent on purpose: retries of requests that reached a server (the caller decides),
//! threads, and knowledge of what keys mean (crate `kv`).

mod address;
mod arena;
mod call;
mod connection;
mod error;
mod options;
mod pool;
mod shm;
mod stream;
mod tls;
mod verbs;

pub use address::Address;
pub use call::{GetOutcome, Room, Value};
pub use connection::ServerInfo;
pub use error::{ClientError, ErrorKind};
pub use options::{ClientOptions, Transport, TransportInUse};
pub use pool::Client;
pub use verbs::Keys;
