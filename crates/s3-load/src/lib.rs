//! Load, checks and faults for any S3 endpoint: the tool that proves and measures Millpond's S3 door
//! from outside, and its peers in the same way.
//!
//! - [`content`]: what an object holds follows from its key, the number of its write and its size, so that
//!   every answer can be checked and says which write it shows.
//! - [`sign`]: Signature Version 4. [`client`]: one connection to an endpoint.
//! - [`journal`]: the last acknowledged write of every key and those in doubt, and the verdict on what a
//!   read shows.
//! - [`load`]: workers that put, get and delete, and their report. [`verify`]: a journal held against an
//!   endpoint.
//! - [`proxy`]: an HTTP proxy that makes faults.
//!
//! Invariants: a key belongs to one worker, which has one request in flight, so that the writes of a key are in
//! order; a write that was not acknowledged and not refused is in doubt, and stays so; a fault of the
//! proxy follows from its seed and the number of the request.
//!
//! Absent on purpose: crates of Millpond's server and client (what is measured is what other programs see), TLS,
//! and retries: a failed request is a figure, not something to hide.

pub mod cli;
pub mod client;
pub mod content;
mod error;
pub mod journal;
pub mod load;
pub mod proxy;
pub mod sign;
mod skim;
pub mod verify;

pub use error::LoadError;
