//! Log batches: the unit that one flush makes durable.
//!
//! Header of 64 bytes: magic u32, crc u32, sequence u64, bytes u32 (header and records, without
//! padding), records u32, next version u64, epoch u32, zeros. The batch is padded with zeros to 4
//! KiB. The checksum covers the log's salt, then header (crc zero) and records, so that bytes of a
//! chunk can never pose as a batch of this disk.

use millpond_types::limits::PAGE_BYTES;

use super::codec::{Reader, Writer};
use super::record::{RECORD_BYTES_MAX, Record};
use super::superblock::SEGMENT_BYTES_MIN;

pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"MPLG");
pub(crate) const HEADER_BYTES: usize = 64;
/// Largest batch: bounds the data that recovery verifies and the buffer the log keeps for itself.
pub(crate) const BATCH_BYTES_MAX: usize = 256 << 10;
/// A batch takes at most half a segment: the largest record fits the smallest.
const _: () = assert!((HEADER_BYTES + RECORD_BYTES_MAX) as u64 <= SEGMENT_BYTES_MIN / 2);

/// Header fields of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Grows by one per batch, for the life of the disk.
    pub sequence: u64,
    /// Bytes of header and records.
    pub bytes: u32,
    /// Number of records.
    pub records: u32,
    /// Lower bound for the next chunk version.
    pub next_version: u64,
    /// Grows with every opening of the disk.
    pub epoch: u32,
}

impl BatchHeader {
    /// Bytes on the disk, padding included.
    #[must_use]
    pub const fn padded_bytes(&self) -> usize {
        (self.bytes as usize).next_multiple_of(PAGE_BYTES)
    }
}

fn checksum(salt: u64, batch: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&salt.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &batch[..4]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &batch[8..])
}

/// Fills in the header in front of records already written at `buf[64..bytes]`.
pub(crate) fn seal(salt: u64, header: &BatchHeader, buf: &mut [u8]) {
    let bytes = header.bytes as usize;
    buf[bytes..header.padded_bytes()].fill(0);
    buf[..HEADER_BYTES].fill(0);
    let mut w = Writer::new(buf);
    w.u32(MAGIC);
    w.u32(0);
    w.u64(header.sequence);
    w.u32(header.bytes);
    w.u32(header.records);
    w.u64(header.next_version);
    w.u32(header.epoch);
    let crc = checksum(salt, &buf[..bytes]);
    buf[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Reads the header alone, unverified; `None` when these are not the bytes of a batch.
pub(crate) fn peek(bytes: &[u8]) -> Option<BatchHeader> {
    let mut r = Reader::new(bytes.get(..HEADER_BYTES)?);
    if r.u32()? != MAGIC {
        return None;
    }
    let _crc = r.u32()?;
    let header = BatchHeader {
        sequence: r.u64()?,
        bytes: r.u32()?,
        records: r.u32()?,
        next_version: r.u64()?,
        epoch: r.u32()?,
    };
    let range = HEADER_BYTES..=BATCH_BYTES_MAX;
    range.contains(&(header.bytes as usize)).then_some(header)
}

/// Reads and verifies a batch; `None` when it is torn, foreign or malformed.
#[must_use]
pub fn decode(salt: u64, bytes: &[u8]) -> Option<(BatchHeader, Vec<Record>)> {
    let header = peek(bytes)?;
    let batch = bytes.get(..header.bytes as usize)?;
    let stored = u32::from_le_bytes(*batch[4..].first_chunk()?);
    if checksum(salt, batch) != stored {
        return None;
    }
    let mut r = Reader::new(&batch[HEADER_BYTES..]);
    // The count is from the disk: it bounds the loop, never an allocation.
    let mut records = Vec::new();
    for _ in 0..header.records {
        records.push(Record::decode(&mut r)?);
    }
    Some((header, records))
}

/// Encodes `records` as one batch.
#[cfg(test)]
pub(crate) fn encode(salt: u64, header: BatchHeader, records: &[Record]) -> Vec<u8> {
    let bytes = HEADER_BYTES + records.iter().map(Record::encoded_len).sum::<usize>();
    let mut buf = vec![0; bytes.next_multiple_of(PAGE_BYTES)];
    let mut w = Writer::new(&mut buf[HEADER_BYTES..]);
    for record in records {
        record.encode(&mut w);
    }
    let header = BatchHeader {
        bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        records: u32::try_from(records.len()).unwrap_or(u32::MAX),
        ..header
    };
    seal(salt, &header, &mut buf);
    buf
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::sample;
    use super::*;
    use millpond_types::ChunkId;

    const HEADER: BatchHeader =
        BatchHeader { sequence: 5, bytes: 0, records: 0, next_version: 9, epoch: 2 };

    #[test]
    fn round_trip_and_every_flip_is_seen() {
        let records = vec![Record::Put(sample(3, 70_000)), Record::Delete(ChunkId(1))];
        let mut buf = encode(42, HEADER, &records);
        let (header, got) = decode(42, &buf).unwrap();
        assert_eq!((header.sequence, header.records, got), (5, 2, records));
        assert!(decode(43, &buf).is_none(), "another disk's salt");
        for at in 0..header.bytes as usize {
            buf[at] ^= 1;
            assert!(decode(42, &buf).is_none(), "flip at {at}");
            buf[at] ^= 1;
        }
        for cut in 0..header.bytes as usize {
            assert!(decode(42, &buf[..cut]).is_none());
        }
    }
}
