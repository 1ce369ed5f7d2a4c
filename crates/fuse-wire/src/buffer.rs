//! The memory that requests are read into.

use crate::abi::{InHeader, MIN_READ_BUFFER, PAGE_BYTES, WriteIn};

/// Bytes before the data of a WRITE.
const BEFORE_DATA: usize = size_of::<InHeader>() + size_of::<WriteIn>();
/// What the data is aligned to.
const PAGE: usize = PAGE_BYTES as usize;
/// The longest value of an extended attribute that Linux allows, `XATTR_SIZE_MAX`.
const XATTR_MAX: usize = 65_536;

/// Memory for one request of a worker thread, as large as the largest write.
///
/// It starts 80 bytes before the end of a page, so that the data of a WRITE begins with a
/// page: it can go on to a device opened with `O_DIRECT` as it is. Pages that no request has
/// reached yet cost nothing.
#[derive(Debug)]
pub struct RequestBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl RequestBuffer {
    /// A buffer for writes of up to `max_write` bytes, as INIT agreed on. Before INIT any
    /// number will do.
    #[must_use]
    pub fn new(max_write: u32) -> Self {
        let data = (max_write as usize).max(XATTR_MAX + PAGE).max(MIN_READ_BUFFER);
        let len = BEFORE_DATA + data.next_multiple_of(PAGE);
        let memory = vec![0; len + 2 * PAGE];
        let data_at = memory.as_ptr().align_offset(PAGE);
        // The first page border with room for what comes before the data.
        let data_at = if data_at < BEFORE_DATA { data_at + PAGE } else { data_at };
        Self { memory, start: data_at - BEFORE_DATA, len }
    }

    /// Bytes of the largest request that it takes.
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
