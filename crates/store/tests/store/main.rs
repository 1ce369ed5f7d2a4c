//! The store through its public API: one conformance suite over all engines, concurrent histories,
//! crashes of the embedded engine, faults of a real etcd cluster.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "tests start processes, bind ports and read clocks")]

mod anomalies;
mod basics;
mod checker;
mod cluster;
mod conformance;
mod embedded;
mod etcd;
mod faults;
mod histories;
mod memory;
mod once;
mod watches;
