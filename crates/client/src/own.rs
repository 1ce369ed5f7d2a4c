//! The node in the client's own process: bytes of chunks in place in its memory.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use millpond_env::SharedBuf;
use millpond_types::Crc32c;
use millpond_types::cluster::NodeId;
use millpond_types::wire::ChunkReadRequest;

use crate::Address;

/// A node in the client's own process, which is read without a connection and without a copy.
pub trait OwnNode: fmt::Debug + Send + Sync {
    /// Reads parts of chunks from replicas of this node, in a task of tokio: for each part the
    /// bytes that the chunk has, which may be fewer than requested. None if the caller should read
    /// in another way: chunks are elsewhere or change, memory is short, or the disk is slow.
    fn read(
        &self,
        request: ChunkReadRequest,
    ) -> Pin<Box<dyn Future<Output = Option<Vec<OwnBytes>>> + Send + '_>>;
}

/// A node and its address for this process. The address in the routing may be for clients with TLS,
/// or may take a detour through a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPlace {
    /// The node.
    pub node: NodeId,
    /// Its address for this process.
    pub address: Address,
}

/// Bytes in a node's memory, which stay there until this is dropped.
#[derive(Clone)]
pub struct OwnBytes {
    bytes: SharedBuf,
    crc: Crc32c,
    _held: Arc<dyn Any + Send + Sync>,
}

impl OwnBytes {
    /// Bytes with their checksum, and an owner that is dropped with the last of them.
    #[must_use]
    pub fn new(bytes: SharedBuf, crc: Crc32c, held: Arc<dyn Any + Send + Sync>) -> Self {
        Self { bytes, crc, _held: held }
    }

    /// Whether they match the checksum that the node has of them.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        Crc32c::of(&self.bytes) == self.crc
    }
}

impl AsRef<[u8]> for OwnBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for OwnBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnBytes").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}
