//! Load, checks and faults for any S3 endpoint. The tool tests and measures the S3 gateway of
//! Millpond from outside, and other object stores in the same way.
//!
//! - [`content`]: the content of an object follows from its key, the number of its write and its
//!   size, so that every answer can be checked and shows its write.
//! - [`sign`]: Signature Version 4. [`client`]: one connection to an endpoint.
//! - [`journal`]: the last acknowledged write of every key, the writes in doubt, and the verdict on
//!   a read.
//! - [`load`]: workers that put, get and delete, and their report. [`verify`]: compares a journal
//!   with an endpoint.
//! - [`proxy`]: an HTTP proxy that injects faults.
//!
//! Invariants: a key belongs to one worker, which has one request in flight, so that the writes of
//! a key are in order. A write that was neither acknowledged nor refused is in doubt, and stays so.
//! A fault of the proxy follows from its seed and the number of the request.
//!
//! Absent on purpose: crates of Millpond's server and client (the tool measures the view of other
//! programs), TLS, and retries: a failed request is a result to report, not to hide.

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
