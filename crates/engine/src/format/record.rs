//! Records of the log and of checkpoints.
//!
//! A `Put` carries the whole state of a chunk, so replaying a log over any checkpoint
//! taken while it was written ends in the same index: the last record of an id wins.

use std::sync::Arc;

use millpond_types::limits::{ATTRS_BYTES_MAX, CHUNK_BYTES_MAX, PIECE_BYTES};
use millpond_types::{ChunkId, Crc32c, GroupId};

use super::class::CLASSES;
use super::codec::{Reader, Writer};
use super::superblock::SEGMENTS_MAX;

/// Kind byte of a record.
pub(crate) const KIND_PUT: u8 = 1;
pub(crate) const KIND_DELETE: u8 = 2;
pub(crate) const KIND_NEXT: u8 = 3;
pub(crate) const KIND_RENAME: u8 = 4;
pub(crate) const KIND_PATCH: u8 = 5;
pub(crate) const KIND_RENAME_PATCHED: u8 = 6;
/// Bytes of a put record before its attributes.
pub(crate) const PUT_FIXED_BYTES: usize = 56;
/// Bytes of a delete record.
pub(crate) const DELETE_BYTES: usize = 17;
/// Bytes of a next-segment record.
pub(crate) const NEXT_BYTES: usize = 5;
/// Bytes of a rename record before its put record.
pub(crate) const RENAME_FIXED_BYTES: usize = 17;
/// Bytes of a patch record before its put record.
pub(crate) const PATCH_FIXED_BYTES: usize = 33;
/// Most bytes of a chunk in one patch record: a batch holds several, the smallest segment one.
pub(crate) const PATCH_BYTES_MAX: usize = 16 << 10;
/// Largest put record.
pub(crate) const PUT_BYTES_MAX: usize =
    PUT_FIXED_BYTES + ATTRS_BYTES_MAX + CHUNK_BYTES_MAX / PIECE_BYTES * 4;
/// Largest record.
pub(crate) const RECORD_BYTES_MAX: usize = PATCH_FIXED_BYTES + PUT_BYTES_MAX + PATCH_BYTES_MAX;

/// Flag bits of a chunk on disk.
pub(crate) const FLAG_EVICTABLE: u8 = 1;
pub(crate) const FLAG_PINNED: u8 = 2;
const FLAGS_KNOWN: u8 = FLAG_EVICTABLE | FLAG_PINNED;

/// Place of a chunk's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// Segment number.
    pub segment: u32,
    /// Slab within the segment.
    pub slab: u16,
    /// Slab class of the segment; it may be larger than the chunk needs.
    pub class: u8,
}

impl Location {
    /// The place of an empty chunk, or of one whose bytes are lost: it has no slab. No disk has as
    /// many segments.
    pub(crate) const NOWHERE: Self = Self { segment: SEGMENT_NOWHERE, slab: 0, class: 0 };

    pub(crate) const fn is_nowhere(self) -> bool {
        self.segment == SEGMENT_NOWHERE
    }
}

/// Everything the engine stores about a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRecord {
    /// Name.
    pub id: ChunkId,
    /// Version; grows with every write of any chunk on this disk, 48 bits.
    pub version: u64,
    /// Length in bytes.
    pub len: u32,
    /// Checksum of the whole chunk.
    pub crc: Crc32c,
    /// Owner.
    pub group: GroupId,
    /// Unix seconds after which the chunk expires; 0 means never.
    pub expires: u32,
    /// Place.
    pub location: Location,
    /// Eviction class, 0 goes first.
    pub priority: u8,
    /// Whether it may be evicted.
    pub evictable: bool,
    /// Whether it is pinned.
    pub pinned: bool,
    /// Opaque attributes.
    pub attrs: Box<[u8]>,
    /// Checksums of the 64 KiB pieces; empty for a chunk of at most one piece.
    pub pieces: Box<[u32]>,
}

/// New bytes of a chunk over those of its base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatchRecord {
    /// The base.
    pub base: ChunkId,
    /// Its version when the patch was made.
    pub base_version: u64,
    /// Offset of the new bytes; zeros fill any gap between the end of the base and here.
    pub offset: u32,
    /// The new bytes, at most 16 KiB.
    pub bytes: Arc<[u8]>,
    /// The resulting chunk; its place is not written yet.
    pub to: ChunkRecord,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The chunk has this state.
    Put(ChunkRecord),
    /// The chunk is gone.
    Delete(ChunkId),
    /// The log continues in this segment.
    Next(u32),
    /// The bytes of the chunk `from` become those of `to`, with this whole state; `from` is gone.
    Rename {
        /// Old name.
        from: ChunkId,
        /// The chunk under its new name.
        to: ChunkRecord,
    },
    /// The chunk becomes its base with one part replaced.
    Patch(Box<PatchRecord>),
    /// Like [`Record::Rename`] for a chunk with bytes in patch records: they stay there under the
    /// new name, and its place is not written yet.
    RenamePatched {
        /// Old name.
        from: ChunkId,
        /// The chunk under its new name.
        to: ChunkRecord,
    },
}

/// Segment number of a chunk that has no slab.
pub(crate) const SEGMENT_NOWHERE: u32 = (1 << 21) - 1;
const _: () = assert!(SEGMENT_NOWHERE as u64 >= SEGMENTS_MAX - 1);

/// Number of piece checksums a chunk of `len` bytes carries.
pub(crate) const fn piece_count(len: u32) -> usize {
    if len as usize <= PIECE_BYTES { 0 } else { (len as usize).div_ceil(PIECE_BYTES) }
}

impl ChunkRecord {
    /// Whether it has bytes that no slab on this disk holds.
    pub(crate) const fn is_lost(&self) -> bool {
        self.location.is_nowhere() && self.len > 0
    }

    pub(crate) fn encoded_len(&self) -> usize {
        PUT_FIXED_BYTES + self.attrs.len() + self.pieces.len() * 4
    }
}

impl Record {
    pub(crate) fn encoded_len(&self) -> usize {
        match self {
            Self::Put(c) => c.encoded_len(),
            Self::Delete(_) => DELETE_BYTES,
            Self::Next(_) => NEXT_BYTES,
            Self::Rename { to, .. } | Self::RenamePatched { to, .. } => {
                RENAME_FIXED_BYTES + to.encoded_len()
            }
            Self::Patch(p) => PATCH_FIXED_BYTES + p.to.encoded_len() + p.bytes.len(),
        }
    }

    pub(crate) fn encode(&self, w: &mut Writer<'_>) {
        match self {
            Self::Put(c) => encode_put(c, w),
            Self::Delete(id) => {
                w.u8(KIND_DELETE);
                w.bytes(&id.to_bytes());
            }
            Self::Next(segment) => {
                w.u8(KIND_NEXT);
                w.u32(*segment);
            }
            Self::Rename { from, to } => {
                w.u8(KIND_RENAME);
                w.bytes(&from.to_bytes());
                encode_put(to, w);
            }
            Self::RenamePatched { from, to } => {
                w.u8(KIND_RENAME_PATCHED);
                w.bytes(&from.to_bytes());
                encode_put(to, w);
            }
            Self::Patch(p) => encode_patch(p, w),
        }
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Option<Self> {
        match r.u8()? {
            KIND_PUT => decode_put(r).map(Self::Put),
            KIND_DELETE => Some(Self::Delete(ChunkId::from_bytes(r.array()?))),
            KIND_NEXT => Some(Self::Next(r.u32()?)),
            KIND_RENAME => {
                let (from, to) = decode_rename(r)?;
                Some(Self::Rename { from, to })
            }
            KIND_RENAME_PATCHED => {
                let (from, to) = decode_rename(r)?;
                (!to.is_lost()).then_some(Self::RenamePatched { from, to })
            }
            KIND_PATCH => decode_patch(r).map(|p| Self::Patch(Box::new(p))),
            _ => None,
        }
    }
}

/// Layout: kind u8, flags u8, priority u8, class u8, id 16, version u64, length u32, crc
/// u32, group u32, expires u32, segment u32, slab u16, attribute bytes u16, zero u32 =
/// 56 bytes; attributes; piece checksums u32 each (their number follows from the length).
pub(crate) fn encode_put(c: &ChunkRecord, w: &mut Writer<'_>) {
    let evictable = if c.evictable { FLAG_EVICTABLE } else { 0 };
    let pinned = if c.pinned { FLAG_PINNED } else { 0 };
    w.bytes(&[KIND_PUT, evictable | pinned, c.priority, c.location.class]);
    w.bytes(&c.id.to_bytes());
    w.u64(c.version);
    w.u32(c.len);
    w.u32(c.crc.0);
    w.u32(c.group.0);
    w.u32(c.expires);
    w.u32(c.location.segment);
    w.u16(c.location.slab);
    w.u16(u16::try_from(c.attrs.len()).unwrap_or(u16::MAX));
    w.u32(0);
    w.bytes(&c.attrs);
    for piece in &c.pieces {
        w.u32(*piece);
    }
}

/// Layout: kind u8, base id 16, base version u64, offset u32, byte count u32 = 33 bytes; put record
/// of the resulting chunk; the bytes.
fn encode_patch(p: &PatchRecord, w: &mut Writer<'_>) {
    w.u8(KIND_PATCH);
    w.bytes(&p.base.to_bytes());
    w.u64(p.base_version);
    w.u32(p.offset);
    w.u32(u32::try_from(p.bytes.len()).unwrap_or(u32::MAX));
    encode_put(&p.to, w);
    w.bytes(&p.bytes);
}

fn decode_patch(r: &mut Reader<'_>) -> Option<PatchRecord> {
    let base = ChunkId::from_bytes(r.array()?);
    let base_version = r.u64()?;
    let (offset, count) = (r.u32()?, r.u32()?);
    let to = if r.u8()? == KIND_PUT { decode_put(r)? } else { return None };
    let fits = offset.checked_add(count).is_some_and(|end| end <= to.len);
    if !fits || count as usize > PATCH_BYTES_MAX || base_version >> 48 != 0 || base == to.id {
        return None;
    }
    if to.is_lost() {
        return None; // It has bytes, and room is kept for them.
    }
    let bytes = r.bytes(count as usize)?.into();
    Some(PatchRecord { base, base_version, offset, bytes, to })
}

fn decode_rename(r: &mut Reader<'_>) -> Option<(ChunkId, ChunkRecord)> {
    let from = ChunkId::from_bytes(r.array()?);
    let to = if r.u8()? == KIND_PUT { decode_put(r)? } else { return None };
    (from != to.id).then_some((from, to))
}

fn decode_put(r: &mut Reader<'_>) -> Option<ChunkRecord> {
    let [flags, priority, class] = r.array()?;
    let id = ChunkId::from_bytes(r.array()?);
    let version = r.u64()?;
    let len = r.u32()?;
    let crc = Crc32c(r.u32()?);
    let group = GroupId(r.u32()?);
    let expires = r.u32()?;
    let location = Location { segment: r.u32()?, slab: r.u16()?, class };
    let attrs_len = usize::from(r.u16()?);
    let reserved = r.u32()?;
    let known = flags & !FLAGS_KNOWN == 0 && reserved == 0 && usize::from(class) < CLASSES;
    let bounded = len as usize <= CHUNK_BYTES_MAX && attrs_len <= ATTRS_BYTES_MAX;
    if !known || !bounded || version >> 48 != 0 || priority > 3 {
        return None;
    }
    if location.segment >> 21 != 0 || location.slab >> 14 != 0 {
        return None;
    }
    if location.is_nowhere() && location != Location::NOWHERE {
        return None;
    }
    let attrs = r.bytes(attrs_len)?.into();
    let pieces = r.bytes(piece_count(len) * 4)?;
    let pieces = pieces.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    Some(ChunkRecord {
        id,
        version,
        len,
        crc,
        group,
        expires,
        location,
        priority,
        evictable: flags & FLAG_EVICTABLE != 0,
        pinned: flags & FLAG_PINNED != 0,
        attrs,
        pieces,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample(n: u32, len: u32) -> ChunkRecord {
        ChunkRecord {
            id: ChunkId(u128::from(n) << 64 | 5),
            version: u64::from(n) + 1,
            len,
            crc: Crc32c(n ^ 0x55),
            group: GroupId(n % 3),
            expires: n,
            location: Location { segment: n, slab: 9, class: 2 },
            priority: 1,
            evictable: true,
            pinned: n.is_multiple_of(2),
            attrs: format!("key {n}").into_bytes().into(),
            pieces: (0..u32::try_from(piece_count(len)).unwrap()).collect(),
        }
    }

    pub(crate) fn patch(offset: u32, len: usize) -> PatchRecord {
        let to = sample(5, 70_000);
        PatchRecord { base: ChunkId(9), base_version: 4, offset, bytes: vec![7; len].into(), to }
    }

    #[test]
    fn a_patch_lies_within_its_chunk_and_is_of_another_one() {
        let itself = PatchRecord { base: sample(5, 0).id, ..patch(0, 1) };
        let long = patch(0, PATCH_BYTES_MAX + 1);
        for bad in [patch(69_990, 11), patch(u32::MAX, 10), long, itself] {
            let record = Record::Patch(Box::new(bad));
            let mut buf = vec![0; record.encoded_len()];
            record.encode(&mut Writer::new(&mut buf));
            assert_eq!(Record::decode(&mut Reader::new(&buf)), None);
        }
    }

    #[test]
    fn bytes_lie_somewhere_unless_they_are_lost() {
        let nowhere = |len| ChunkRecord { location: Location::NOWHERE, ..sample(1, len) };
        let bad = [0, 1].map(|len| {
            let location = Location { slab: 1, ..Location::NOWHERE };
            Record::Put(ChunkRecord { location, ..sample(1, len) })
        });
        // The bytes of a patched chunk are in the log.
        let patched = [
            Record::Patch(Box::new(PatchRecord { to: nowhere(70_000), ..patch(0, 1) })),
            Record::RenamePatched { from: ChunkId(9), to: nowhere(70_000) },
        ];
        for record in bad.into_iter().chain(patched) {
            let mut buf = vec![0; record.encoded_len()];
            record.encode(&mut Writer::new(&mut buf));
            assert_eq!(Record::decode(&mut Reader::new(&buf)), None);
        }
    }

    #[test]
    fn records_round_trip_and_short_bytes_are_refused() {
        let records = [
            Record::Put(sample(1, 4096)),
            Record::Put(sample(2, 200_000)),
            Record::Put(ChunkRecord { location: Location::NOWHERE, ..sample(3, 0) }),
            Record::Put(ChunkRecord { location: Location::NOWHERE, ..sample(3, 200_000) }),
            Record::Rename {
                from: ChunkId(9),
                to: ChunkRecord { location: Location::NOWHERE, ..sample(3, 9) },
            },
            Record::Delete(ChunkId(7)),
            Record::Next(3),
            Record::Rename { from: ChunkId(9), to: sample(3, 70_000) },
            Record::RenamePatched { from: ChunkId(9), to: sample(4, 70_000) },
            Record::Patch(Box::new(patch(69_990, 10))),
        ];
        for record in records {
            let mut buf = vec![0; record.encoded_len()];
            record.encode(&mut Writer::new(&mut buf));
            assert_eq!(Record::decode(&mut Reader::new(&buf)), Some(record.clone()));
            for cut in 0..buf.len() {
                assert_eq!(Record::decode(&mut Reader::new(&buf[..cut])), None);
            }
        }
    }
}
