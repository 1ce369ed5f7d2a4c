//! The KV cache as programs see it: namespaces of immutable blocks.
//!
//! [`Namespace`] has the verbs, all batched. A namespace is opened by name, with the digest of the
//! layout that gives its blocks a meaning ([`layout_digest`]); the server refuses another digest.
//! [`BlockStore`] is the common interface of a namespace, a folder ([`Posix`]) and a stage of
//! memory in front of either ([`Cache`]); [`pipeline`] builds them from text. [`FailOpen`] makes a
//! store that an engine can rely on: it never fails, and never waits for a store that is down, not
//! even to open it ([`LazyNamespace`]).
//!
//! Invariants: a verb answers one outcome per key, in the order of the keys; a value that fails any
//! check is a miss; a namespace on a replaced server is opened again, once per call, before a key
//! is looked up under a number that may mean another namespace there.
//!
//! Absent on purpose: transports and deadlines (crate `client`), and engines' own block formats.

mod cache;
mod fail_open;
mod layout;
mod lazy;
mod namespace;
mod pipeline;
mod posix;
mod s3fifo;
mod store;
mod usage;

pub use cache::Cache;
pub use fail_open::{FailOpen, FailOpenCounters, FailOpenOptions};
pub use layout::layout_digest;
pub use lazy::LazyNamespace;
pub use namespace::Namespace;
pub use pipeline::{PipelineOptions, pipeline};
pub use posix::Posix;
pub use store::{Batch, BlockStore};
