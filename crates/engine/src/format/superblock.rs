//! The superblock: identity of the disk, and the beginnings of checkpoint and log.
//!
//! Two copies, at offset 0 and 4096, are written alternately; the valid one with the highest
//! generation is in force. So a torn write leaves the previous one in force.

use millpond_types::{Uuid128, limits::PAGE_BYTES};

use super::codec::{Reader, Writer};
use crate::error::FormatError;

/// First bytes of a superblock.
pub(crate) const MAGIC: [u8; 8] = *b"MILLPOND";
/// Newest format that this code reads, and the one that it writes.
///
/// 1: put, delete and next records. 2: rename records, and chunks without bytes have no slab. 3:
/// patch records. 4: chunks whose bytes are lost, which have a length and no slab.
pub const FORMAT_VERSION: u32 = 4;
/// Oldest format that this code reads; opening a disk rewrites its superblock.
pub(crate) const FORMAT_OLDEST: u32 = 1;
/// Offset of segment 0; the space between the superblocks and here is reserved.
pub(crate) const DATA_START: u64 = 64 << 10;
/// Fixed fields end here; the checkpoint's segment numbers follow.
pub(crate) const FIXED_BYTES: usize = 192;
/// Segments a checkpoint may span: 60 GB of index, 400 million chunks.
pub(crate) const CHECKPOINT_SEGMENTS_MAX: usize = 960;
/// Smallest and largest segment.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 64 << 10;
pub(crate) const SEGMENT_BYTES_MAX: u64 = 64 << 20;

/// Segments of a disk: 21 bits in the index, 128 TiB of 64 MiB segments.
pub(crate) const SEGMENTS_MAX: u64 = 1 << 21;

const _: () = assert!(FIXED_BYTES + CHECKPOINT_SEGMENTS_MAX * 4 <= PAGE_BYTES);

/// A place in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// Segment number.
    pub segment: u32,
    /// Byte offset within the segment.
    pub offset: u32,
    /// Sequence number of the batch at this place.
    pub sequence: u64,
}

/// Decoded superblock.
///
/// Layout: magic 8, version u32, crc u32 (over the page with this field zero), generation
/// u64, disk id 16, cluster id 16, capacity u64, `data_start` u64, segment bytes u64, log
/// salt u64, log start (segment u32, offset u32, sequence u64), checkpoint id u64,
/// checkpoint entries u64, checkpoint blocks u32, checkpoint segment count u32, created
/// (unix ms) u64, next version u64; zeros up to 192; checkpoint segments u32 each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Format of the disk's contents.
    pub version: u32,
    /// Grows by one per write.
    pub generation: u64,
    /// This disk.
    pub disk_id: Uuid128,
    /// The cluster that owns it.
    pub cluster_id: Uuid128,
    /// Bytes of the disk when formatted.
    pub capacity: u64,
    /// Bytes of one segment, a power of two.
    pub segment_bytes: u64,
    /// Mixed into every log checksum, so that stored bytes cannot pose as a log batch.
    pub log_salt: u64,
    /// Where replay begins.
    pub log_start: LogPosition,
    /// Identity of the checkpoint; 0 means none.
    pub checkpoint_id: u64,
    /// Entries in the checkpoint.
    pub checkpoint_entries: u64,
    /// Blocks in the checkpoint.
    pub checkpoint_blocks: u32,
    /// When the disk was formatted.
    pub created_unix_ms: u64,
    /// Lower bound for the next chunk version.
    pub next_version: u64,
    /// Segments that hold the checkpoint, in order.
    pub checkpoint_segments: Vec<u32>,
}

impl Superblock {
    /// Number of segments.
    #[must_use]
    pub fn segments(&self) -> u32 {
        u32::try_from((self.capacity - DATA_START) / self.segment_bytes).unwrap_or(u32::MAX)
    }

    /// Writes the superblock into one page.
    pub(crate) fn encode(&self, page: &mut [u8]) {
        assert!(self.checkpoint_segments.len() <= CHECKPOINT_SEGMENTS_MAX, "checkpoint too long");
        page.fill(0);
        let mut w = Writer::new(page);
        w.bytes(&MAGIC);
        w.u32(self.version);
        w.u32(0);
        w.u64(self.generation);
        w.bytes(&self.disk_id.0);
        w.bytes(&self.cluster_id.0);
        w.u64(self.capacity);
        w.u64(DATA_START);
        w.u64(self.segment_bytes);
        w.u64(self.log_salt);
        w.u32(self.log_start.segment);
        w.u32(self.log_start.offset);
        w.u64(self.log_start.sequence);
        w.u64(self.checkpoint_id);
        w.u64(self.checkpoint_entries);
        w.u32(self.checkpoint_blocks);
        w.u32(u32::try_from(self.checkpoint_segments.len()).unwrap_or(u32::MAX));
        w.u64(self.created_unix_ms);
        w.u64(self.next_version);
        assert!(w.at() <= FIXED_BYTES, "superblock fields grew");
        let mut w = Writer::new(&mut page[FIXED_BYTES..]);
        for segment in &self.checkpoint_segments {
            w.u32(*segment);
        }
        let crc = crc32c::crc32c(page);
        page[12..16].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads one page.
    ///
    /// # Errors
    /// [`FormatError`] naming the flaw; `NotMillpond` when the magic is missing.
    pub fn decode(page: &[u8]) -> Result<Self, FormatError> {
        let page = page.get(..PAGE_BYTES).ok_or(FormatError::NotMillpond)?;
        if !page.starts_with(&MAGIC) {
            return Err(FormatError::NotMillpond);
        }
        let mut r = Reader::new(&page[8..]);
        let version = r.u32().ok_or(FormatError::NotMillpond)?;
        let stored = r.u32().ok_or(FormatError::NotMillpond)?;
        let crc = crc32c::crc32c(&page[..12]);
        let crc = crc32c::crc32c_append(crc, &[0; 4]);
        let crc = crc32c::crc32c_append(crc, &page[16..]);
        if crc != stored {
            return Err(FormatError::SuperblockDamaged);
        }
        // The checksum covers the version, so a damaged page never reads as a newer one.
        if version > FORMAT_VERSION {
            return Err(FormatError::Newer { found: version, known: FORMAT_VERSION });
        }
        if version < FORMAT_OLDEST {
            return Err(FormatError::Field("format version"));
        }
        let mut count = 0;
        let sb = decode_fields(&mut r, &mut count).ok_or(FormatError::SuperblockDamaged)?;
        let mut r = Reader::new(&page[FIXED_BYTES..]);
        let checkpoint_segments = (0..count).map_while(|_| r.u32()).collect::<Vec<_>>();
        let sb = Self { version, checkpoint_segments, ..sb };
        sb.check(count)?;
        Ok(sb)
    }

    fn check(&self, count: u32) -> Result<(), FormatError> {
        let range = SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX;
        if !self.segment_bytes.is_power_of_two() || !range.contains(&self.segment_bytes) {
            return Err(FormatError::Field("segment_bytes"));
        }
        if self.capacity < DATA_START + self.segment_bytes
            || (self.capacity - DATA_START) / self.segment_bytes >= SEGMENTS_MAX
        {
            return Err(FormatError::Field("capacity"));
        }
        let segments = self.segments();
        if count as usize > CHECKPOINT_SEGMENTS_MAX {
            return Err(FormatError::Field("checkpoint_segment_count"));
        }
        if self.checkpoint_segments.iter().any(|s| *s >= segments) {
            return Err(FormatError::Field("checkpoint_segments"));
        }
        let start = self.log_start;
        if start.segment >= segments
            || u64::from(start.offset) >= self.segment_bytes
            || !(start.offset as usize).is_multiple_of(PAGE_BYTES)
        {
            return Err(FormatError::Field("log_start"));
        }
        Ok(())
    }
}

fn decode_fields(r: &mut Reader<'_>, count: &mut u32) -> Option<Superblock> {
    let generation = r.u64()?;
    let disk_id = Uuid128(r.array()?);
    let cluster_id = Uuid128(r.array()?);
    let capacity = r.u64()?;
    if r.u64()? != DATA_START {
        return None;
    }
    let segment_bytes = r.u64()?;
    let log_salt = r.u64()?;
    let log_start = LogPosition { segment: r.u32()?, offset: r.u32()?, sequence: r.u64()? };
    let checkpoint_id = r.u64()?;
    let checkpoint_entries = r.u64()?;
    let checkpoint_blocks = r.u32()?;
    *count = r.u32()?;
    let created_unix_ms = r.u64()?;
    let next_version = r.u64()?;
    Some(Superblock {
        version: FORMAT_VERSION,
        generation,
        disk_id,
        cluster_id,
        capacity,
        segment_bytes,
        log_salt,
        log_start,
        checkpoint_id,
        checkpoint_entries,
        checkpoint_blocks,
        created_unix_ms,
        next_version,
        checkpoint_segments: Vec::new(),
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Superblock {
        Superblock {
            version: FORMAT_VERSION,
            generation: 7,
            disk_id: Uuid128([1; 16]),
            cluster_id: Uuid128([2; 16]),
            capacity: 1 << 30,
            segment_bytes: 64 << 20,
            log_salt: 99,
            log_start: LogPosition { segment: 3, offset: 8192, sequence: 55 },
            checkpoint_id: 6,
            checkpoint_entries: 1000,
            checkpoint_blocks: 4,
            created_unix_ms: 1,
            next_version: 77,
            checkpoint_segments: vec![1, 2],
        }
    }

    #[test]
    fn round_trip_and_every_flip_is_seen() {
        let mut page = vec![0; PAGE_BYTES];
        sample().encode(&mut page);
        assert_eq!(Superblock::decode(&page), Ok(sample()));
        for at in 0..page.len() {
            page[at] ^= 0x40;
            assert!(Superblock::decode(&page).is_err(), "flip at {at}");
            page[at] ^= 0x40;
        }
    }

    #[test]
    fn newer_format_names_the_fix() {
        let mut page = vec![0; PAGE_BYTES];
        sample().encode(&mut page);
        page[8] = 9;
        page[12..16].fill(0);
        let crc = crc32c::crc32c(&page);
        page[12..16].copy_from_slice(&crc.to_le_bytes());
        let err = Superblock::decode(&page).unwrap_err();
        assert!(err.to_string().contains("upgrade millpond"), "{err}");
    }
}
