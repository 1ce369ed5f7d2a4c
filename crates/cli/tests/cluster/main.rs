//! Clusters of real `millpond server` processes on loopback: they form, lose members and managers, and
//! refuse strangers.

#![allow(clippy::disallowed_methods, reason = "tests start processes and use sockets and clocks")]
#![allow(clippy::unwrap_used, reason = "a failing test panics")]

mod answers;
mod backing;
mod conformance;
mod direct;
mod direct_shm;
mod doctor;
mod etcd;
#[allow(dead_code, reason = "shared with the tests of gateways")]
mod etcd_members;
mod files;
mod forged;
mod fsck;
mod lost;
mod members;
mod metrics;
mod missing;
mod mount;
mod namespaces;
mod objects;
mod process;
mod quotas;
mod raise;
mod slots;
mod store_damage;
mod strangers;
mod two_mounts;
mod wire;
