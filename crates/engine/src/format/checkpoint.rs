//! Checkpoint blocks: the index, streamed.
//!
//! Header of 64 bytes: magic u32, crc u32, checkpoint id u64, block number u32, entries
//! u32, bytes u32 (header and records, without padding), zeros; then put records. Blocks
//! stand at a fixed stride, so that a restart reads many of them at once.

use super::codec::{Reader, Writer};
use super::record::{ChunkRecord, Record};

pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"MPCK");
pub(crate) const HEADER_BYTES: usize = 64;
/// Largest block; a smaller segment has blocks of its own size.
pub(crate) const BLOCK_BYTES_MAX: u64 = 256 << 10;

/// Stride of the blocks on a disk with segments of this size.
#[expect(clippy::cast_possible_truncation, reason = "at most 256 KiB")]
pub(crate) const fn block_bytes(segment_bytes: u64) -> usize {
    let bytes = if segment_bytes < BLOCK_BYTES_MAX { segment_bytes } else { BLOCK_BYTES_MAX };
    bytes as usize
}

fn checksum(salt: u64, block: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&salt.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &block[..4]);
    let crc = crc32c::crc32c_append(crc, &[0; 4]);
    crc32c::crc32c_append(crc, &block[8..])
}

/// Fills in the header in front of `entries` records at `buf[64..bytes]`; zeros the rest.
pub(crate) fn seal(
    salt: u64,
    id: u64,
    number: u32,
    (entries, bytes): (u32, usize),
    buf: &mut [u8],
) {
    buf[bytes..].fill(0);
    buf[..HEADER_BYTES].fill(0);
    let mut w = Writer::new(buf);
    w.u32(MAGIC);
    w.u32(0);
    w.u64(id);
    w.u32(number);
    w.u32(entries);
    w.u32(u32::try_from(bytes).unwrap_or(u32::MAX));
    let crc = checksum(salt, &buf[..bytes]);
    buf[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Reads and verifies one block, passing every entry to `each`; returns their number.
///
/// `None` when it is damaged, of another checkpoint or out of order.
pub fn decode(
    salt: u64,
    id: u64,
    number: u32,
    block: &[u8],
    mut each: impl FnMut(ChunkRecord),
) -> Option<u32> {
    let mut r = Reader::new(block);
    let magic = r.u32()?;
    let stored = r.u32()?;
    let same = r.u64()? == id && r.u32()? == number;
    let entries = r.u32()?;
    let bytes = r.u32()? as usize;
    if magic != MAGIC || !same || bytes < HEADER_BYTES {
        return None;
    }
    let block = block.get(..bytes)?;
    if checksum(salt, block) != stored {
        return None;
    }
    let mut r = Reader::new(&block[HEADER_BYTES..]);
    for _ in 0..entries {
        match Record::decode(&mut r)? {
            Record::Put(chunk) => each(chunk),
            _ => return None,
        }
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::super::record::{encode_put, tests::sample};
    use super::*;

    #[test]
    fn round_trip_and_every_flip_is_seen() {
        let mut buf = vec![0; 65_536];
        let mut w = Writer::new(&mut buf[HEADER_BYTES..]);
        (0..20).for_each(|n| encode_put(&sample(n, 4096), &mut w));
        let bytes = HEADER_BYTES + w.at();
        seal(4, 8, 1, (20, bytes), &mut buf);
        let mut got = Vec::new();
        assert_eq!(decode(4, 8, 1, &buf, |c| got.push(c)), Some(20));
        assert_eq!(got, (0..20).map(|n| sample(n, 4096)).collect::<Vec<_>>());
        assert_eq!(decode(4, 8, 2, &buf, drop), None);
        for at in 0..bytes {
            buf[at] ^= 8;
            assert_eq!(decode(4, 8, 1, &buf, drop), None, "flip at {at}");
            buf[at] ^= 8;
        }
    }
}
