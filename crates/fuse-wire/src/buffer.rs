//! The memory that requests are read into.

use crate::abi::{InHeader, MIN_READ_BUFFER, PAGE_BYTES, WriteIn};

/// Bytes before the data of a WRITE.
const BEFORE_DATA: usize = size_of::<InHeader>() + size_of::<WriteIn>();
/// The alignment of the data.
const PAGE: usize = PAGE_BYTES as usize;
/// The longest value of an extended attribute that Linux allows, `XATTR_SIZE_MAX`.
const XATTR_MAX: usize = 65_536;

/// Memory for one request of a worker thread, as large as the largest write.
///
/// It starts 80 bytes before the end of a page, so that the data of a WRITE is page-aligned: it can
/// be written to a device opened with `O_DIRECT` without a copy. Pages that no request has reached
/// yet use no memory.
#[derive(Debug)]
pub struct RequestBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl RequestBuffer {
    /// Makes a buffer for writes of up to `max_write` bytes, as agreed in INIT. Before INIT any
    /// number works.
    #[must_use]
    pub fn new(max_write: u32) -> Self {
        let data = (max_write as usize).max(XATTR_MAX + PAGE).max(MIN_READ_BUFFER);
        let len = BEFORE_DATA + data.next_multiple_of(PAGE);
        let memory = vec![0; len + 2 * PAGE];
        let data_at = memory.as_ptr().align_offset(PAGE);
        // The first page boundary with room for the headers before it.
        let data_at = if data_at < BEFORE_DATA { data_at + PAGE } else { data_at };
        Self { memory, start: data_at - BEFORE_DATA, len }
    }

    /// The size in bytes of the largest request that fits.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.len
    }

    /// The part that the kernel writes to.
    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::{BEFORE_DATA, PAGE, RequestBuffer};

    #[test]
    fn the_data_of_a_write_starts_a_page() {
        for max_write in [0, 4096, 131_072, 1 << 20, (1 << 20) + 1] {
            let mut buffer = RequestBuffer::new(max_write);
            let bytes = buffer.as_mut();
            assert!(bytes.len() >= BEFORE_DATA + max_write as usize);
            assert!(bytes.len() >= 65_536 + 4096, "the largest attribute fits");
            assert_eq!(bytes[BEFORE_DATA..].as_ptr().align_offset(PAGE), 0);
        }
    }
}
