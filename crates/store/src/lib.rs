//! The transactional store: ordered keys, serializable transactions, watches.
//!
//! Managers and metas keep their state here and nowhere else. The contract is `FoundationDB`'s: a
//! [`Transaction`] reads keys and ranges at one version, buffers its writes, and commits if nothing
//! that it read has changed. Reading order:
//!
//! - [`Store`], [`Transaction`]: the API for users; [`Store::transact`] repeats after conflicts,
//!   [`Store::transact_once`] also after lost answers, exactly once; [`Store::follow`] keeps a copy
//!   of a range.
//! - [`Backend`], [`Session`], [`ChangeStream`]: the API of an engine. `docs/store.md` has the
//!   scheme of each and its costs.
//! - [`EmbeddedBackend`]: fjall on a local disk, one committer thread, one sync per batch.
//! - `EtcdBackend`: an etcd cluster (feature `etcd`, on by default).
//! - [`MemoryBackend`]: the contract in memory, for the simulator and for tests.
//! - [`StoreChoice`]: which of them managers use.
//! - [`Resolver`], [`ReadSet`]: conflicts between transactions, pure.
//!
//! Invariants, checked by one conformance suite over all engines:
//! 1. Strictly serializable, phantoms by insert and by delete included; a transaction sees every
//!    commit that was acknowledged before it began.
//! 2. An answered commit survives the crashes that the engine is built for; data that a transaction
//!    reads is already durable.
//! 3. A lost answer is [`StoreError::Unknown`], never a guess.
//! 4. A watch shows every change after its version once, in order, or returns `Compacted`.
//! 5. The bounds of `types::limits` are the same on every engine, and errors name them.
//!
//! Absent on purpose: blind deletion of a range (etcd could not notify its readers), leases (the
//! manager has its own), record encodings (`types` has them), secondary indexes, caching.

mod backend;
mod choice;
mod embedded;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod follow;
mod history;
mod key;
mod memory;
mod once;
mod read_set;
mod resolver;
mod store;
mod txn;

pub use backend::{
    Backend, BoxFuture, Change, ChangeBatch, ChangeStream, Commit, RangeRead, RawPage, Session,
    Version,
};
pub use choice::{StoreAccess, StoreChoice};
pub use embedded::{EmbeddedBackend, EmbeddedOptions};
pub use error::{Cause, StoreError, StoreErrorKind};
#[cfg(feature = "etcd")]
pub use etcd::{EtcdBackend, EtcdOptions, EtcdTls};
pub use follow::{Follow, Followed};
pub use key::KeyRange;
pub use memory::MemoryBackend;
pub use once::{Reply, RequestId};
pub use read_set::ReadSet;
pub use resolver::Resolver;
pub use store::{Store, TransactError};
pub use txn::{Page, RangeOptions, Transaction};
