//! Records in the queue of a bucket.

use super::super::super::{Ino, Timestamp};
use super::super::record::key;
use crate::wire::{Reader, Record, WireError, Writer};

/// An entry of a queue; its key contains the due time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRecord {
    /// The key.
    pub key: Vec<u8>,
    /// Bytes to persist; 0 for a tombstone.
    pub bytes: u64,
    /// Time since which the key is dirty.
    pub since: Timestamp,
    /// The file of a transient object that expires then; 0 for other entries, which have a state.
    pub file: Ino,
}

impl Record for QueueRecord {
    const KIND: u8 = 59;

    fn write_body(&self, w: &mut Writer) {
        w.bytes16(&self.key);
        w.u64(self.bytes);
        self.since.encode(w);
        w.u64(self.file.0);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (key, bytes) = (key(r)?, r.u64()?);
        Ok(Self { key, bytes, since: Timestamp::decode(r)?, file: Ino(r.u64()?) })
    }
}
