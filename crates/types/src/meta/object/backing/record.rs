//! What lies in the queue of a bucket.

use super::super::super::{Ino, Timestamp};
use super::super::record::key;
use crate::wire::{Reader, Record, WireError, Writer};

/// An entry of a queue; its key says when it is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRecord {
    /// The key.
    pub key: Vec<u8>,
    /// Bytes that wait; 0 for a tombstone.
    pub bytes: u64,
    /// Since when.
    pub since: Timestamp,
    /// A transient object whose time to live ends then: its file. Of others 0; they have a state.
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
