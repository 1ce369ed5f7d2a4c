//! Copying and checksumming in one pass.

use millpond_types::Crc32c;

use crate::net::RawSegment;

/// Bytes copied before they are checksummed: few enough to be still in the first-level cache.
const BLOCK: usize = 16 << 10;

/// Copies `src` to `dst` and continues CRC-32C `crc` over the bytes that arrived at `dst`.
///
/// The checksum is computed from the copy, so that it matches the caller's bytes even if another
/// process changes `src` during the copy.
///
/// # Safety
/// `src` is readable and `dst` writable for `len` bytes; they do not overlap; nothing else writes
/// to `dst`.
pub(crate) unsafe fn copy_block_checksummed(
    src: *const u8,
    dst: *mut u8,
    len: usize,
    crc: Crc32c,
) -> Crc32c {
    let mut crc = crc;
    let mut done = 0;
    while done < len {
        let count = BLOCK.min(len - done);
        // SAFETY: within both ranges, by the caller's promise.
        let copied = unsafe {
            std::ptr::copy_nonoverlapping(src.add(done), dst.add(done), count);
            std::slice::from_raw_parts(dst.add(done), count)
        };
        crc = crc.append(copied);
        done += count;
    }
    crc
}

/// Copies `src` into `dst`, in order, and returns the CRC-32C of the copied bytes.
///
/// Copies as much as the shorter of both holds.
///
/// # Safety
/// Every segment is writable for its length, nothing else writes to it, and it overlaps neither
/// `src` nor another segment.
#[must_use]
pub unsafe fn copy_checksummed(src: &[u8], dst: &[RawSegment]) -> Crc32c {
    // SAFETY: `src` is readable for its length; the rest is the caller's promise.
    unsafe { copy_segments(src.as_ptr(), src.len(), dst) }
}

/// Like [`copy_checksummed`], from memory that others may change.
///
/// # Safety
/// As there, and `src` is readable for `len` bytes.
pub(crate) unsafe fn copy_segments(src: *const u8, len: usize, dst: &[RawSegment]) -> Crc32c {
    let (mut crc, mut done) = (Crc32c::default(), 0);
    for segment in dst {
        let count = segment.len.min(len - done);
        // SAFETY: within both ranges, by the caller's promise.
        crc = unsafe { copy_block_checksummed(src.add(done), segment.addr, count, crc) };
        done += count;
    }
    crc
}
