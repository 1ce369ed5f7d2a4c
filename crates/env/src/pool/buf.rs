//! Buffers of a pool: unique while being filled, shared and immutable afterwards.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use super::{BufferPool, PAGE_SIZE};

/// A unique buffer. Its pages return to the pool when it is dropped.
pub struct Buf {
    pool: BufferPool,
    page: u32,
    pages: u32,
    len: usize,
}

impl Buf {
    pub(super) fn new(pool: BufferPool, page: u32, pages: u32, len: usize) -> Self {
        let buf = Self { pool, page, pages, len };
        assert!(len <= buf.capacity(), "a buffer's length is within its pages");
        buf
    }

    /// Bytes that fit: whole pages.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.pages as usize * PAGE_SIZE
    }

    /// Sets the length in bytes. Newly visible bytes hold the old content of the pages.
    ///
    /// # Panics
    /// When `len` is beyond the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "a buffer's length is within its pages");
        self.len = len;
    }

    /// The whole capacity.
    pub fn as_full_mut(&mut self) -> &mut [u8] {
        // SAFETY: the pages belong to this buffer alone until it is dropped, and the pool keeps
        // them mapped; mapped memory is always initialised.
        unsafe { std::slice::from_raw_parts_mut(self.base(), self.capacity()) }
    }

    /// The whole capacity.
    #[must_use]
    pub fn as_full(&self) -> &[u8] {
        // SAFETY: as in `as_full_mut`; nothing writes while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.base(), self.capacity()) }
    }

    /// Offset of the buffer in the pool's memory file, in bytes.
    #[must_use]
    pub const fn pool_offset(&self) -> u64 {
        self.page as u64 * PAGE_SIZE as u64
    }

    /// The pool it came from.
    #[must_use]
    pub const fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// Makes the bytes immutable and shareable, without a copy. The rest of the last page is
    /// zeroed, so that no older bytes reach a disk with it.
    #[must_use]
    pub fn freeze(mut self) -> SharedBuf {
        let len = self.len;
        let end = len.next_multiple_of(PAGE_SIZE).min(self.capacity());
        self.as_full_mut()[len..end].fill(0);
        SharedBuf { owner: Arc::new(self), start: 0, len }
    }

    pub(crate) fn base(&self) -> *mut u8 {
        // SAFETY: the page lies within the pool's mapping.
        unsafe { self.pool.base().add(self.page as usize * PAGE_SIZE) }
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        self.pool.give_back(self.page, self.pages);
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.as_full()[..self.len]
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.as_full_mut()[..len]
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("offset", &self.pool_offset())
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Immutable bytes of a pool, reference-counted. The pages return when the last clone is dropped.
#[derive(Clone)]
pub struct SharedBuf {
    owner: Arc<Buf>,
    start: usize,
    len: usize,
}

impl SharedBuf {
    /// Offset of these bytes in the pool's memory file.
    #[must_use]
    pub fn pool_offset(&self) -> u64 {
        self.owner.pool_offset() + self.start as u64
    }

    /// The pool they came from.
    #[must_use]
    pub fn pool(&self) -> &BufferPool {
        self.owner.pool()
    }

    /// Bytes of the allocation, which lives as long as any part of it.
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.owner.capacity()
    }

    /// A part of the same allocation, without a copy.
    ///
    /// # Panics
    /// When the range is not within the length.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end, "a slice does not end before it starts");
        assert!(range.end <= self.len, "a slice lies within its buffer");
        Self {
            owner: Arc::clone(&self.owner),
            start: self.start + range.start,
            len: range.end - range.start,
        }
    }

    /// These bytes and the rest of their last page.
    #[must_use]
    pub fn padded(&self) -> &[u8] {
        let end = (self.start + self.len).next_multiple_of(PAGE_SIZE).min(self.owner.capacity());
        &self.owner.as_full()[self.start..end]
    }

    /// True when both start at the same address of the same pool.
    #[must_use]
    pub fn ptr_eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.as_ptr(), other.as_ptr())
    }

    /// The underlying allocation.
    pub(crate) fn owner(&self) -> &Buf {
        &self.owner
    }

    /// Number of clones and slices that share the allocation; a snapshot.
    #[must_use]
    pub fn shared_count(&self) -> usize {
        Arc::strong_count(&self.owner)
    }

    /// Whether these bytes begin at the start of the allocation.
    #[must_use]
    pub fn is_from_start(&self) -> bool {
        self.start == 0
    }

    /// Turns the whole allocation back into a unique buffer, if nothing else shares it.
    ///
    /// # Errors
    /// Gives `self` back when it is shared.
    pub fn try_unique(self) -> Result<Buf, Self> {
        let Self { owner, start, len } = self;
        Arc::try_unwrap(owner).map_err(|owner| Self { owner, start, len })
    }
}

impl Deref for SharedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.owner.as_full()[self.start..self.start + self.len]
    }
}

impl AsRef<[u8]> for SharedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuf")
            .field("offset", &self.pool_offset())
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
