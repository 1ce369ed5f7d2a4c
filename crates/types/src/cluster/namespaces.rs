//! What the transactional store holds of a cluster's namespaces. Any manager changes it, each change by
//! one transaction that also writes the head.

use crate::ids::GroupId;
use crate::namespace::NamespaceInfo;

/// Written by every change of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceHead {
    /// Grows by one with every change.
    pub version: u64,
    /// Number of the next namespace; never used twice.
    pub next: u32,
    /// Namespaces that there are.
    pub count: u32,
    /// Namespaces that were ever dropped.
    pub dropped: u64,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceRecord(pub NamespaceInfo);

/// A namespace that was dropped, and whose blocks may still be on a node that was away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedRecord(pub GroupId);

/// Keys of the records.
pub mod namespace_keys {
    use crate::limits::NAMESPACES_MAX;

    /// Everything about namespaces lies under this prefix.
    pub const PREFIX: &[u8] = b"n/";
    /// [`super::NamespaceHead`].
    pub const HEAD: &[u8] = b"n/head";
    /// Before a namespace's name.
    pub const NAME: &[u8] = b"n/name/";
    /// Before a dropped namespace's place in the ring.
    pub const DROPPED: &[u8] = b"n/dropped/";

    /// Key of [`super::NamespaceRecord`].
    #[must_use]
    pub fn name(name: &str) -> Vec<u8> {
        [NAME, name.as_bytes()].concat()
    }

    /// Key of [`super::DroppedRecord`]: its place in a ring of `NAMESPACES_MAX`. A node that is away
    /// for longer than so many drops keeps the blocks of the oldest until they are evicted.
    #[must_use]
    pub fn dropped(number: u64) -> Vec<u8> {
        let place = number % NAMESPACES_MAX as u64;
        [DROPPED, &place.to_be_bytes()].concat()
    }
}
