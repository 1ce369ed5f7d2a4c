//! The namespaces of the server: one table, stored whole as one chunk on every disk.
//!
//! | bytes | field |
//! |---|---|
//! | 8 | magic `MPNAMES1` |
//! | 8 | version; the newest of all disks wins |
//! | 4 | next namespace id |
//! | 4 | number of namespaces |
//! | … | the namespaces, as on the wire |
//! | 4 | number of namespaces being dropped |
//! | 4 each | their ids, until their blocks are removed from every disk |
//! | 4 | CRC-32C of everything before |

use millpond_types::limits::NAMESPACES_MAX;
use millpond_types::wire::{Reader, WireError, Writer};
use millpond_types::{ChunkId, Crc32c, GroupId, NamespaceInfo};

/// The chunk that holds the table.
pub const TABLE_CHUNK: ChunkId = ChunkId(u128::from_le_bytes(*b"millpond-names-1"));

const MAGIC: [u8; 8] = *b"MPNAMES1";

/// The stored table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceTable {
    /// Grows with every change.
    pub version: u64,
    /// Id of the next namespace; ids are never used twice.
    pub next_id: u32,
    /// The namespaces.
    pub namespaces: Vec<NamespaceInfo>,
    /// Dropped namespaces with blocks that may remain; a restart continues to remove them.
    pub dropping: Vec<GroupId>,
}

impl Default for NamespaceTable {
    fn default() -> Self {
        Self { version: 0, next_id: 1, namespaces: Vec::new(), dropping: Vec::new() }
    }
}

impl NamespaceTable {
    /// Encodes the table.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(64 + self.namespaces.len() * 128);
        w.raw(&MAGIC);
        w.u64(self.version);
        w.u32(self.next_id);
        w.count(self.namespaces.len());
        for namespace in &self.namespaces {
            namespace.encode(&mut w);
        }
        w.count(self.dropping.len());
        for id in &self.dropping {
            w.u32(id.0);
        }
        let mut bytes = w.into_bytes();
        let crc = Crc32c::of(&bytes);
        bytes.extend_from_slice(&crc.0.to_le_bytes());
        bytes
    }

    /// Decodes a table.
    ///
    /// # Errors
    /// [`WireError`] naming the fault.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let split = bytes.len().checked_sub(4).ok_or(WireError::Truncated)?;
        let (body, crc) = bytes.split_at(split);
        if crc != Crc32c::of(body).0.to_le_bytes() {
            return Err(WireError::Checksum("namespace table"));
        }
        let mut r = Reader::new(body);
        if r.array()? != MAGIC {
            return Err(WireError::Field("namespace table"));
        }
        let (version, next_id) = (r.u64()?, r.u32()?);
        let n = r.count(NAMESPACES_MAX, 50, "namespaces")?;
        let namespaces =
            (0..n).map(|_| NamespaceInfo::decode(&mut r)).collect::<Result<Vec<_>, _>>()?;
        let n = r.count(NAMESPACES_MAX, 4, "namespaces being dropped")?;
        let dropping = (0..n).map(|_| r.u32().map(GroupId)).collect::<Result<Vec<_>, _>>()?;
        r.finish()?;
        let ids = namespaces.iter().map(|namespace| namespace.id).chain(dropping.iter().copied());
        if ids.into_iter().any(|id| id == GroupId::SYSTEM || id.0 >= next_id) {
            return Err(WireError::Field("namespace id"));
        }
        Ok(Self { version, next_id, namespaces, dropping })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_types::NamespaceOptions;

    #[test]
    fn the_table_survives_and_no_flipped_bit_passes() {
        let info = NamespaceInfo {
            id: GroupId(1),
            name: "model".into(),
            options: NamespaceOptions::default(),
        };
        let table = NamespaceTable {
            version: 3,
            next_id: 9,
            namespaces: vec![info],
            dropping: vec![GroupId(7)],
        };
        let bytes = table.encode();
        assert_eq!(NamespaceTable::decode(&bytes), Ok(table));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(NamespaceTable::decode(&bad).is_err(), "bit {bit}");
        }
        for cut in 0..bytes.len() {
            assert!(NamespaceTable::decode(&bytes[..cut]).is_err());
        }
    }
}
