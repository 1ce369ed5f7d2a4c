//! The bytes of a chunk in transit: a buffer of the pool, shared by disk, links and readers.

use std::fmt;
use std::sync::Arc;

use millpond_chain::Payload;
use millpond_env::SharedBuf;
use millpond_types::Crc32c;

/// Bytes of a chunk and their owner. Clones share both.
#[derive(Clone)]
pub struct Blob {
    pub(super) bytes: SharedBuf,
    /// Checksum of the bytes as they arrived here.
    crc: Crc32c,
    /// The encoded [`super::attrs::Owner`].
    pub(super) block: Arc<[u8]>,
}

impl Blob {
    /// Wraps bytes from elsewhere and computes their checksum.
    #[must_use]
    pub fn arrived(bytes: SharedBuf, block: Arc<[u8]>) -> Self {
        let crc = Crc32c::of(&bytes);
        Self { bytes, crc, block }
    }

    /// Wraps bytes with a checksum that was just verified.
    pub(super) const fn checked(bytes: SharedBuf, crc: Crc32c, block: Arc<[u8]>) -> Self {
        Self { bytes, crc, block }
    }
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blob").field("len", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl Payload for Blob {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn crc(&self) -> Crc32c {
        self.crc
    }
}
