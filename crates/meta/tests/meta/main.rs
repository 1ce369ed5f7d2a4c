//! The namespace through its public API: one conformance suite over a store in memory, an embedded
//! one and a real etcd; a model; concurrent clients with a check of every invariant afterwards.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::disallowed_methods, reason = "tests start processes and bind ports")]

mod answers;
mod attrs;
mod backing;
mod backing_model;
mod concurrent;
mod conformance;
mod contents;
mod damage;
mod delegations;
mod directories;
mod etcd;
mod feed;
mod flaky;
mod lists;
mod locks;
mod model;
mod names;
mod objects;
mod objects_lists;
mod objects_model;
mod orphans;
mod quotas;
mod renames;
mod shares;
mod support;
mod trash;
mod uploads;
mod xattrs;
