//! Records of a cluster's namespaces in the transactional store. Any manager may change them; each
//! change is one transaction that also writes the head.

use crate::ids::GroupId;
use crate::namespace::NamespaceInfo;

/// Head of the namespaces: every change of a namespace writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceHead {
    /// Grows by one with every change.
    pub version: u64,
    /// Number of the next namespace; never used twice.
    pub next: u32,
    /// Number of existing namespaces.
    pub count: u32,
    /// Number of namespaces dropped so far.
    pub dropped: u64,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceRecord(pub NamespaceInfo);

/// A dropped namespace. A node that was away may still have its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedRecord(pub GroupId);

/// Keys of the records.
pub mod namespace_keys {
    use crate::limits::NAMESPACES_MAX;

    /// Prefix of all keys of namespaces.
    pub const PREFIX: &[u8] = b"n/";
    /// Key of [`super::NamespaceHead`].
    pub const HEAD: &[u8] = b"n/head";
    /// Prefix of a namespace's name.
    pub const NAME: &[u8] = b"n/name/";
    /// Prefix of a dropped namespace's position in the ring.
    pub const DROPPED: &[u8] = b"n/dropped/";

    /// Key of [`super::NamespaceRecord`].
    #[must_use]
    pub fn name(name: &str) -> Vec<u8> {
        [NAME, name.as_bytes()].concat()
    }

    /// Key of [`super::DroppedRecord`]: its position in a ring of `NAMESPACES_MAX`. If that many
    /// drops happen while a node is away, it keeps the blocks of the oldest dropped ones until it
    /// evicts them.
    #[must_use]
    pub fn dropped(number: u64) -> Vec<u8> {
        let place = number % NAMESPACES_MAX as u64;
        [DROPPED, &place.to_be_bytes()].concat()
    }
}
