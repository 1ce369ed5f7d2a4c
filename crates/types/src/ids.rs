//! Names of chunks, groups, slots, keys, nodes and disks.

use std::fmt;

use crate::limits::KEY_BYTES_MAX;

/// 128-bit name of a chunk: a hash of the name of its content, keyed by the cluster's secret
/// ([`crate::placement::ChunkIds`]). Servers make ids; no client names a chunk by its id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId(pub u128);

impl ChunkId {
    /// Length of the encoded id in bytes.
    pub const BYTES: usize = 16;

    /// The id as 16 little-endian bytes.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// Decodes an id from 16 little-endian bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_le_bytes(bytes))
    }
}

impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChunkId({:032x})", self.0)
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A set of chunks with one owner inside one engine: a KV namespace has one group. Group 0 belongs
/// to the server itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u32);

impl GroupId {
    /// The server's own chunks (the namespace table).
    pub const SYSTEM: Self = Self(0);
    /// The bytes of files. No namespace gets this number: ids count up from 1, and decoders reject
    /// it.
    pub const FILES: Self = Self(u32::MAX);
}

/// The bytes of one file. An inode keeps its number and may change this: when it is truncated to
/// zero or becomes a copy of another file, its bytes get a new data id and the old ones are removed
/// later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DataId(pub u64);

impl fmt::Display for DataId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// One chunk of a file's bytes. The file's layout gives its chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileChunk {
    /// The file's bytes.
    pub data: DataId,
    /// The chunk's index, from 0.
    pub index: u32,
}

impl FileChunk {
    /// The index of the seal of a data id on a chain; files end far before it. Once the chunk at
    /// this index exists, no other chunk of the data id changes on that chain.
    pub const SEAL: u32 = u32::MAX;

    /// The seal of this chunk's data id.
    #[must_use]
    pub const fn seal(self) -> Self {
        Self { index: Self::SEAL, ..self }
    }

    /// Whether it is a seal, and no chunk of bytes.
    #[must_use]
    pub const fn is_seal(self) -> bool {
        self.index == Self::SEAL
    }
}

impl fmt::Display for FileChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk {} of data {}", self.index, self.data)
    }
}

/// One of the 65,536 hash buckets that decide placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u16);

/// 128-bit identity of a node, disk or cluster, drawn once and stored on the disk.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid128(pub [u8; 16]);

impl Uuid128 {
    /// The absent identity.
    pub const NIL: Self = Self([0; 16]);

    /// Builds a version-4 UUID from 16 random bytes (RFC 9562 section 5.4).
    #[must_use]
    pub const fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        Self(bytes)
    }
}

/// The secret that keys the ids of a cluster's chunks: 128 random bits, drawn when the cluster is
/// founded.
///
/// Managers and nodes know it; clients never do. It is not printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ClusterSecret(pub [u8; 16]);

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret(…)")
    }
}

/// A text that is no identity; the message shows the form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not an identity: write 32 hex digits, as in 6f1c2a9e-0d4b-4c7e-9a51-3b8f20c4d7aa"
)]
pub struct UuidError(pub String);

impl std::str::FromStr for Uuid128 {
    type Err = UuidError;

    /// Parses 32 hex digits, with or without dashes.
    fn from_str(text: &str) -> Result<Self, UuidError> {
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        let is_hex = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(&digits, 16).ok().filter(|_| is_hex);
        number.map(|number| Self(number.to_be_bytes())).ok_or_else(|| UuidError(text.to_owned()))
    }
}

impl fmt::Display for Uuid128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid128 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A key that cannot be used; the message names the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No bytes at all.
    #[error("key is empty: a key has 1 to {KEY_BYTES_MAX} bytes")]
    Empty,
    /// More bytes than a key may have.
    #[error("key has {0} bytes: a key has 1 to {KEY_BYTES_MAX} bytes; hash longer names first")]
    TooLong(usize),
}

/// The key of a KV block: 1 to 128 bytes, held inline so that batches do not allocate per key.
#[derive(Clone, Copy)]
pub struct BlockKey {
    len: u8,
    bytes: [u8; KEY_BYTES_MAX],
}

impl BlockKey {
    /// Copies `bytes` into a key.
    ///
    /// # Errors
    /// [`KeyError`] when `bytes` is empty or longer than 128 bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, KeyError> {
        if bytes.is_empty() {
            return Err(KeyError::Empty);
        }
        if bytes.len() > KEY_BYTES_MAX {
            return Err(KeyError::TooLong(bytes.len()));
        }
        let mut key = [0; KEY_BYTES_MAX];
        key[..bytes.len()].copy_from_slice(bytes);
        let len = u8::try_from(bytes.len()).map_err(|_| KeyError::TooLong(bytes.len()))?;
        Ok(Self { len, bytes: key })
    }

    /// The key's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl PartialEq for BlockKey {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for BlockKey {}

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockKey({})", self.as_bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_bounds_are_named() {
        assert_eq!(BlockKey::new(b""), Err(KeyError::Empty));
        assert_eq!(BlockKey::new(&[7; 129]), Err(KeyError::TooLong(129)));
        assert!(BlockKey::new(&[7; 129]).unwrap_err().to_string().contains("1 to 128"));
        assert_eq!(BlockKey::new(&[7; 128]).unwrap().as_bytes().len(), 128);
    }

    #[test]
    fn uuid_prints_in_the_usual_form() {
        let uuid = Uuid128::from_random([0xff; 16]);
        assert_eq!(uuid.to_string(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        let uuid = Uuid128([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
        assert_eq!(uuid.to_string().replace('-', "").to_uppercase().parse(), Ok(uuid));
        let short = "00010203-0405-0607-0809-0a0b0c0d0e";
        for text in ["", short, "+0010203-0405-0607-0809-0a0b0c0d0e0f", "\u{e9}"] {
            assert!(text.parse::<Uuid128>().is_err(), "{text}");
        }
    }
}
