//! Metadata of requests about the cluster. The layouts are the order of the fields in `encode`.

use super::codec::{Reader, WireError, Writer};
use crate::cluster::{NodeId, RoutingVersion};
use crate::ids::{GroupId, Uuid128};
use crate::limits::NAMESPACES_MAX;
use crate::namespace::NamespaceInfo;

/// Waits for newer routing (`Routing`). The reply is a [`crate::cluster::RoutingUpdate`], or empty
/// when nothing changed before the request's deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoutingRequest {
    /// The cluster of the caller's copy; nil for none.
    pub cluster: Uuid128,
    /// The version of the caller's copy; 0 for none.
    pub have: RoutingVersion,
}

impl RoutingRequest {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(24);
        w.raw(&self.cluster.0);
        w.u64(self.have.0);
        w.into_bytes()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let request = Self { cluster: Uuid128(r.array()?), have: RoutingVersion(r.u64()?) };
        r.finish()?;
        Ok(request)
    }
}

/// Reports that a node did not answer (`Suspect`); the reply is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuspectRequest {
    /// The node.
    pub node: NodeId,
}

impl SuspectRequest {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.node.0.0.to_vec()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let request = Self { node: NodeId(Uuid128(r.array()?)) };
        r.finish()?;
        Ok(request)
    }
}

/// Waits for a newer namespace table (`NamespaceTable`). The reply is a [`NamespaceTableReply`], or
/// empty when nothing changed before the request's deadline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceTableRequest {
    /// The version of the caller's copy; 0 for none.
    pub have: u64,
}

impl NamespaceTableRequest {
    /// Encodes the request's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.have.to_le_bytes().to_vec()
    }

    /// Decodes the request's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let request = Self { have: r.u64()? };
        r.finish()?;
        Ok(request)
    }
}

/// The namespaces of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceTableReply {
    /// Grows with every change.
    pub version: u64,
    /// The namespaces.
    pub namespaces: Vec<NamespaceInfo>,
    /// Dropped namespaces with blocks that may still exist.
    pub dropping: Vec<GroupId>,
}

impl NamespaceTableReply {
    /// Encodes the reply's metadata.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(16 + self.namespaces.len() * 128);
        w.u64(self.version);
        w.count(self.namespaces.len());
        for namespace in &self.namespaces {
            namespace.encode(&mut w);
        }
        w.count(self.dropping.len());
        for group in &self.dropping {
            w.u32(group.0);
        }
        w.into_bytes()
    }

    /// Decodes the reply's metadata.
    ///
    /// # Errors
    /// [`WireError`] naming the field.
    pub fn decode(meta: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(meta);
        let version = r.u64()?;
        let n = r.count(NAMESPACES_MAX, 50, "namespaces")?;
        let namespaces =
            (0..n).map(|_| NamespaceInfo::decode(&mut r)).collect::<Result<Vec<_>, _>>()?;
        let n = r.count(NAMESPACES_MAX, 4, "namespaces being dropped")?;
        let dropping = (0..n).map(|_| r.u32().map(GroupId)).collect::<Result<Vec<_>, _>>()?;
        r.finish()?;
        Ok(Self { version, namespaces, dropping })
    }
}
