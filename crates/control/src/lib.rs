//! A process as a part of its cluster: the roles that every server may have beside its disks.
//!
//! Reading order: [`admin`] (operators' commands and their answers), [`link`] (requests from node
//! to node), [`manager`] (the pure manager of `cluster` over a store), [`meta`] (the file namespace
//! over the same store), [`member`] (the agent of every node).
//!
//! Absent on purpose: disks and chain replicas. A member knows disks as offers, and drives replicas
//! through [`member::Targets`].

pub mod admin;
pub mod link;
pub mod manager;
pub mod member;
pub mod meta;
