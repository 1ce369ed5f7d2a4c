//! Attributes that the engine keeps beside a chunk of a chain: its version and the owner of its
//! bytes.
//!
//! | bytes | field |
//! |---|---|
//! | 1 | kind: 1 data, 2 tombstone; 128 is added while the version is staged |
//! | 4 | chain |
//! | 4 | target |
//! | 8 | chunk version |
//! | 4 | chain version under which the head admitted it |
//! | 28 | tag: client 16, channel 4, sequence 8 |
//! | … | of data: the owner of its bytes, an [`Owner`] |
//!
//! A record of a target (kind 3) is a chunk without bytes: chain 4, target 4, chain version 4.

use millpond_chain::{Content, Lane, Meta, Tag};
use millpond_types::cluster::{ChainId, ChainVersion, ChunkVersion, TargetId};
use millpond_types::limits::ATTRS_BYTES_MAX;
use millpond_types::wire::{Reader, WireError, Writer};
use millpond_types::{
    BlockKey, ChunkId, ChunkIds, Crc32c, DataId, FileChunk, GroupId, Priority, SlotId,
};
use xxhash_rust::xxh3::xxh3_128;

const DATA: u8 = 1;
const TOMBSTONE: u8 = 2;
const TARGET: u8 = 3;
const STAGED: u8 = 128;
/// Bytes before the block.
const VERSION_BYTES: usize = 49;
/// Room that the protocol's attributes leave for the owner of the bytes.
pub const LABEL_BYTES_MAX: usize = ATTRS_BYTES_MAX - VERSION_BYTES;

/// Turns the id of a chunk into the id of the engine chunk that holds its staged version. Ids are
/// hashes, so no other chunk has the id with these bits flipped.
const STAGED_MASK: u128 = 0x5374_6167_6564_2076_6572_7369_6f6e_2121;

/// Converts between a target's chunk and the engine chunk that holds its committed version.
///
/// Several targets on a disk may hold the same chunk: its slot moves from the chain of one to that
/// of the other, or a replica comes back before all chunks of its predecessor are removed.
pub(super) fn engine_id(target: TargetId, chunk: ChunkId) -> ChunkId {
    let mut name = *b"millpond-chunks-\0\0\0\0";
    name[16..].copy_from_slice(&target.0.to_le_bytes());
    ChunkId(chunk.0 ^ xxh3_128(&name))
}

/// The engine chunk for the staged version, beside the one for the committed version.
pub(super) const fn staged_id(id: ChunkId) -> ChunkId {
    ChunkId(id.0 ^ STAGED_MASK)
}

/// Decoded engine attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// A version of a chunk.
    Version(Version),
    /// The record of a target.
    Target(TargetRecord),
}

/// A version of a chunk on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) chain: ChainId,
    pub(super) target: TargetId,
    pub(super) staged: bool,
    pub(super) tombstone: bool,
    pub(super) number: ChunkVersion,
    pub(super) written: ChainVersion,
    pub(super) tag: Tag,
    /// The encoded [`Owner`]; empty for a tombstone.
    pub(super) block: Box<[u8]>,
}

impl Version {
    /// The version in terms of the protocol, with length and checksum of the engine's chunk.
    pub(super) const fn meta(&self, len: u32, crc: Crc32c) -> Meta {
        let content = if self.tombstone { Content::Tombstone } else { Content::Data { len, crc } };
        Meta { version: self.number, written: self.written, content, tag: self.tag }
    }

    /// Encodes the version as engine attributes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(VERSION_BYTES + self.block.len());
        let kind = if self.tombstone { TOMBSTONE } else { DATA };
        w.u8(if self.staged { kind | STAGED } else { kind });
        w.u32(self.chain.0);
        w.u32(self.target.0);
        w.u64(self.number.0);
        w.u32(self.written.0);
        w.raw(&self.tag.lane.client.to_le_bytes());
        w.u32(self.tag.lane.channel);
        w.u64(self.tag.sequence);
        w.raw(&self.block);
        w.into_bytes()
    }
}

/// Record of a target on its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TargetRecord {
    pub(super) chain: ChainId,
    pub(super) target: TargetId,
    pub(super) saved: ChainVersion,
}

impl TargetRecord {
    /// The chunk that holds the record.
    pub(super) fn id(target: TargetId) -> ChunkId {
        let mut name = *b"millpond-target-\0\0\0\0";
        name[16..].copy_from_slice(&target.0.to_le_bytes());
        ChunkId(xxh3_128(&name))
    }

    /// Encodes the record as engine attributes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(13);
        w.u8(TARGET);
        w.u32(self.chain.0);
        w.u32(self.target.0);
        w.u32(self.saved.0);
        w.into_bytes()
    }
}

/// Decodes engine attributes.
///
/// # Errors
/// [`WireError`]: no chain wrote the chunk.
pub(super) fn decode(attrs: &[u8]) -> Result<Stored, WireError> {
    let mut r = Reader::new(attrs);
    let kind = r.u8()?;
    if kind == TARGET {
        let (chain, target) = (ChainId(r.u32()?), TargetId(r.u32()?));
        let record = TargetRecord { chain, target, saved: ChainVersion(r.u32()?) };
        r.finish()?;
        return Ok(Stored::Target(record));
    }
    let tombstone = match kind & !STAGED {
        DATA => false,
        TOMBSTONE => true,
        _ => return Err(WireError::Field("kind of a chunk")),
    };
    let (chain, target) = (ChainId(r.u32()?), TargetId(r.u32()?));
    let (number, written) = (ChunkVersion(r.u64()?), ChainVersion(r.u32()?));
    let client = u128::from_le_bytes(r.array()?);
    let lane = Lane { client, channel: r.u32()? };
    let tag = Tag { lane, sequence: r.u64()? };
    let block = attrs.get(VERSION_BYTES..).unwrap_or_default().into();
    let staged = kind & STAGED != 0;
    Ok(Stored::Version(Version { chain, target, staged, tombstone, number, written, tag, block }))
}

/// The version in the attributes, if they are those of a version.
pub(super) fn version(attrs: &[u8]) -> Option<Version> {
    match decode(attrs) {
        Ok(Stored::Version(version)) => Some(version),
        _ => None,
    }
}

/// Whether these are the attributes of a committed version of this target with a block that has not
/// expired at `now`. Agrees with [`decode`] and [`Block::decode`], but copies nothing: every read
/// of a block calls it.
pub(super) fn holds_block(
    attrs: &[u8],
    target: TargetId,
    (group, key): (GroupId, &BlockKey),
    now: u32,
) -> bool {
    let Some((head, block)) = attrs.split_at_checked(VERSION_BYTES) else { return false };
    let Some((facts, name)) = block.split_at_checked(BLOCK_BYTES) else { return false };
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
    let expires = word(&facts[7..]);
    let is_of_target = head[0] == DATA && word(&head[5..]) == target.0;
    let is_named = facts[0] == BLOCK && word(&facts[1..]) == group.0 && name == key.as_bytes();
    is_of_target && is_named && (expires == 0 || expires > now)
}

/// Owner of a chunk's bytes, if it is a KV block; travels with the bytes to every replica.
///
/// A KV block is kind 1: namespace u32, slot u16, expires u32 (Unix seconds, 0 never), priority u8,
/// evictable u8, then the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) group: GroupId,
    pub(super) slot: SlotId,
    pub(super) expires: u32,
    pub(super) priority: u8,
    pub(super) evictable: bool,
    pub(super) key: BlockKey,
}

const BLOCK: u8 = 1;
/// Bytes before the key.
const BLOCK_BYTES: usize = 13;

impl Block {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(BLOCK_BYTES + self.key.as_bytes().len());
        w.u8(BLOCK);
        w.u32(self.group.0);
        w.u16(self.slot.0);
        w.u32(self.expires);
        w.u8(self.priority);
        w.u8(u8::from(self.evictable));
        w.raw(self.key.as_bytes());
        w.into_bytes()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        if r.u8()? != BLOCK {
            return Err(WireError::Field("kind of a block"));
        }
        let (group, slot, expires) = (GroupId(r.u32()?), SlotId(r.u16()?), r.u32()?);
        let (priority, evictable) = (r.u8()?, r.u8()?);
        if priority > 3 || evictable > 1 {
            return Err(WireError::Field("options of a block"));
        }
        let key = BlockKey::new(bytes.get(BLOCK_BYTES..).unwrap_or_default())?;
        Ok(Self { group, slot, expires, priority, evictable: evictable == 1, key })
    }

    /// Whether it has expired.
    pub(super) const fn expired(&self, unix_seconds: u32) -> bool {
        self.expires != 0 && self.expires <= unix_seconds
    }
}

const FILE: u8 = 2;
const FILE_BYTES: usize = 13;

/// Owner of a chunk's bytes: a KV block, or a chunk of a file.
///
/// A chunk of a file is kind 2: data u64, index u32. It is never evicted, belongs to no namespace
/// and moves with no slot: the file's layout names its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Block(Block),
    File(FileChunk),
}

impl Owner {
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.first() == Some(&FILE) {
            return file(bytes).map(Self::File);
        }
        Block::decode(bytes).map(Self::Block)
    }

    /// The owner of a block, for comparisons, which ignore expiry, priority and eviction.
    pub(super) const fn block(group: GroupId, key: BlockKey) -> Self {
        let slot = SlotId(0);
        Self::Block(Block { group, slot, expires: 0, priority: 0, evictable: false, key })
    }

    /// The chunk id for the owner's bytes.
    pub(super) fn id(&self, ids: ChunkIds) -> ChunkId {
        match self {
            Self::Block(block) => ids.block(block.group, &block.key),
            Self::File(chunk) => ids.file(*chunk),
        }
    }

    /// Whether both have the same name; expiry does not count.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Block(one), Self::Block(two)) => one.group == two.group && one.key == two.key,
            (Self::File(one), Self::File(two)) => one == two,
            _ => false,
        }
    }

    pub(super) const fn group(&self) -> GroupId {
        match self {
            Self::Block(block) => block.group,
            Self::File(_) => GroupId::FILES,
        }
    }

    pub(super) const fn priority(&self) -> u8 {
        match self {
            Self::Block(block) => block.priority,
            Self::File(_) => Priority::Normal as u8,
        }
    }

    pub(super) const fn evictable(&self) -> bool {
        match self {
            Self::Block(block) => block.evictable,
            Self::File(_) => false,
        }
    }
}

/// Encodes the owner of a chunk of a file.
pub(super) fn encode_file(chunk: FileChunk) -> Vec<u8> {
    let mut w = Writer::with_capacity(FILE_BYTES);
    w.u8(FILE);
    w.u64(chunk.data.0);
    w.u32(chunk.index);
    w.into_bytes()
}

/// Decodes the chunk of a file that is the owner.
pub(super) fn file(bytes: &[u8]) -> Result<FileChunk, WireError> {
    let mut r = Reader::new(bytes);
    if r.u8()? != FILE {
        return Err(WireError::Field("kind of a file's chunk"));
    }
    let chunk = FileChunk { data: DataId(r.u64()?), index: r.u32()? };
    r.finish()?;
    Ok(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Block {
        Block {
            group: GroupId(7),
            slot: SlotId(300),
            expires: 9,
            priority: 2,
            evictable: true,
            key: BlockKey::new(&[5; 128]).unwrap(),
        }
    }

    fn sample(staged: bool, tombstone: bool) -> Version {
        let lane = Lane { client: u128::MAX - 1, channel: 4 };
        Version {
            chain: ChainId(3),
            target: TargetId(4),
            staged,
            tombstone,
            number: ChunkVersion(1 << 40),
            written: ChainVersion(8),
            tag: Tag { lane, sequence: u64::MAX },
            block: if tombstone { Box::default() } else { block().encode().into() },
        }
    }

    #[test]
    fn versions_and_records_survive_and_fit_the_engine() {
        for (staged, tombstone) in [(false, false), (true, false), (false, true), (true, true)] {
            let version = sample(staged, tombstone);
            let bytes = version.encode();
            assert!(bytes.len() <= millpond_types::limits::ATTRS_BYTES_MAX);
            assert_eq!(decode(&bytes), Ok(Stored::Version(version)));
        }
        let record =
            TargetRecord { chain: ChainId(1), target: TargetId(2), saved: ChainVersion(3) };
        assert_eq!(decode(&record.encode()), Ok(Stored::Target(record)));
        assert_eq!(Block::decode(&block().encode()), Ok(block()));
    }

    #[test]
    fn damaged_attributes_are_refused_not_believed() {
        let bytes = sample(true, false).encode();
        for cut in 0..VERSION_BYTES {
            assert!(decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert!(decode(&[9; 64]).is_err());
        assert!(version(b"a key of a server that stands alone").is_none());
        let block = block().encode();
        for cut in 0..13 {
            assert!(Block::decode(&block[..cut]).is_err(), "cut at {cut}");
            assert!(Owner::decode(&block[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn a_blocks_attributes_are_known_without_decoding_them() {
        let (block, target, now) = (block(), TargetId(4), 1000);
        let holds = |attrs: &[u8], block: &Block, now| {
            holds_block(attrs, target, (block.group, &block.key), now)
        };
        let of = |block: &Block, staged: bool| {
            Version { block: block.encode().into(), ..sample(staged, false) }.encode()
        };
        let lasting = Block { expires: 0, ..block };
        assert!(holds(&of(&lasting, false), &block, now));
        assert!(!holds(&of(&lasting, true), &block, now), "staged");
        assert!(!holds(&sample(false, true).encode(), &block, now), "a tombstone");
        let expiring = of(&Block { expires: now, ..block }, false);
        assert!(holds(&expiring, &block, now - 1) && !holds(&expiring, &block, now));
        let attrs = of(&lasting, false);
        assert!(!holds_block(&attrs, TargetId(5), (block.group, &block.key), now));
        assert!(!holds(&attrs, &Block { group: GroupId(block.group.0 + 1), ..block }, now));
        let shorter = BlockKey::new(&block.key.as_bytes()[1..]).unwrap();
        assert!(!holds(&attrs, &Block { key: shorter, ..block }, now));
        for cut in 0..attrs.len() {
            assert!(!holds(&attrs[..cut], &block, now), "cut at {cut}");
        }
        let file = FileChunk { data: DataId(1), index: 0 };
        let file = Version { block: encode_file(file).into(), ..sample(false, false) };
        assert!(!holds(&file.encode(), &block, now), "a file's chunk");
    }

    #[test]
    fn a_files_chunk_is_no_block_and_is_never_evicted() {
        let chunk = FileChunk { data: DataId(u64::MAX - 1), index: 7 };
        let bytes = encode_file(chunk);
        assert_eq!(Owner::decode(&bytes), Ok(Owner::File(chunk)));
        assert_eq!(Owner::decode(&block().encode()), Ok(Owner::Block(block())));
        assert!(Block::decode(&bytes).is_err() && file(&block().encode()).is_err());
        let owner = Owner::File(chunk);
        assert_eq!((owner.group(), owner.evictable()), (GroupId::FILES, false));
        for cut in 0..bytes.len() {
            assert!(Owner::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert!(Owner::decode(&[&bytes[..], &[0]].concat()).is_err(), "a byte too many");
    }

    #[test]
    fn ids_differ_and_come_back() {
        let chunk = ChunkId(12_345);
        let ids = [1, 2].map(|target| engine_id(TargetId(target), chunk));
        assert!(ids[0] != ids[1] && ids[0] != chunk);
        assert_eq!(engine_id(TargetId(2), ids[1]), chunk);
        assert_ne!(staged_id(chunk), chunk);
        assert_eq!(staged_id(staged_id(chunk)), chunk);
    }
}
