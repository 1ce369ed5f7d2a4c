//! Payloads of the simulator: small shared vectors that know the checksum they arrived with.

use std::sync::Arc;

use millpond_chain::Payload;
use millpond_types::Crc32c;

/// Bytes that may be damaged in transit, and then have another checksum than the sender's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bytes {
    bytes: Arc<[u8]>,
    crc: Crc32c,
}

impl Bytes {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self { bytes: bytes.into(), crc: Crc32c::of(bytes) }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// The same with one bit flipped.
    pub(crate) fn damaged(&self, at: usize) -> Self {
        let mut bytes = self.bytes.to_vec();
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= 1;
        }
        Self::new(&bytes)
    }
}

impl Payload for Bytes {
    fn len(&self) -> usize {
        self.bytes.len()
    }

    fn crc(&self) -> Crc32c {
        self.crc
    }
}
