//! Memory for payloads: one shared mapping, cut into contiguous runs of 4 KiB pages.
//!
//! The mapping is a sealed memfd, so that clients on the same host can map it read-only. It is
//! registered with every ring as it is used, so that disk transfers skip page pinning. Pages are
//! taken from the kernel on first use and never returned: the pool's size is its budget.

mod buf;
mod mapping;
mod runs;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

pub use buf::{Buf, SharedBuf};
pub(crate) use mapping::{Access, Mapping, add_seals, create_memfd, reopen_read_only};

use crate::error::EnvError;
use runs::Runs;

/// Size and alignment of a page of the pool, in bytes.
pub const PAGE_SIZE: usize = 4096;

/// Size and options of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Bytes of the pool; rounded down to 4 KiB.
    pub bytes: usize,
    /// Ask for huge pages. A hint: kernels that do not use them for shared memory ignore it.
    pub huge_pages: bool,
}

impl PoolOptions {
    /// A pool of `bytes` bytes without huge pages.
    #[must_use]
    pub const fn new(bytes: usize) -> Self {
        Self { bytes, huge_pages: false }
    }
}

/// A pool of page-aligned buffers. Clones are the same pool.
#[derive(Clone, Debug)]
pub struct BufferPool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: u64,
    mapping: Mapping,
    memfd: OwnedFd,
    runs: Mutex<Runs>,
    used: AtomicUsize,
}

/// Ids of pools within this process, by which a ring recognizes the pool of a buffer.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl BufferPool {
    /// Maps a new pool. Its memory is taken from the system on first use: page by page, or in
    /// larger pieces when a ring registers it.
    ///
    /// # Errors
    /// [`EnvError::Config`] for a size of less than a page or more than 16 TiB; [`EnvError::Os`]
    /// when the memory cannot be mapped.
    pub fn new(options: PoolOptions) -> Result<Self, EnvError> {
        let pages = options.bytes / PAGE_SIZE;
        let count = u32::try_from(pages).ok().filter(|count| (1..u32::MAX).contains(count));
        let Some(count) = count else {
            return Err(EnvError::Config {
                field: "pool size",
                fix: format!("{} bytes: use between 4 KiB and 16 TiB", options.bytes),
            });
        };
        let bytes = pages * PAGE_SIZE;
        let map = || -> io::Result<(OwnedFd, Mapping)> {
            let memfd = create_memfd("millpond-pool", bytes)?;
            let mapping = Mapping::new(memfd.as_fd(), bytes, Access::ReadWrite)?;
            if options.huge_pages {
                mapping.ask_huge_pages();
            }
            // Sealed after mapping: a receiver of the file can neither write to it nor cut it
            // short.
            add_seals(
                memfd.as_fd(),
                libc::F_SEAL_SHRINK
                    | libc::F_SEAL_GROW
                    | libc::F_SEAL_FUTURE_WRITE
                    | libc::F_SEAL_SEAL,
            )?;
            Ok((memfd, mapping))
        };
        let (memfd, mapping) = map().map_err(|error| {
            EnvError::os(format!("mapping a buffer pool of {bytes} bytes"), error)
        })?;
        Ok(Self(Arc::new(Inner {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            mapping,
            memfd,
            runs: Mutex::new(Runs::new(count)),
            used: AtomicUsize::new(0),
        })))
    }

    /// A buffer of `len` bytes, 4 KiB aligned, its capacity `len` rounded up to 4 KiB (at least one
    /// page). `None` when no run of free pages is long enough. The bytes hold old content.
    #[must_use]
    pub fn try_alloc(&self, len: usize) -> Option<Buf> {
        self.try_alloc_leaving(len, 0)
    }

    /// Like [`BufferPool::try_alloc`], for a caller that leaves `left` free bytes to others: `None`
    /// when fewer would be left.
    #[must_use]
    pub fn try_alloc_leaving(&self, len: usize, left: usize) -> Option<Buf> {
        let pages = u32::try_from(len.div_ceil(PAGE_SIZE).max(1)).ok()?;
        let start = {
            let mut runs = self.0.runs.lock();
            if (runs.free() as usize) < pages as usize + left.div_ceil(PAGE_SIZE) {
                return None;
            }
            let start = runs.take(pages)?;
            self.note_used(&runs);
            start
        };
        Some(Buf::new(self.clone(), start, pages, len))
    }

    /// A buffer holding a copy of `bytes`.
    #[must_use]
    pub fn try_copy(&self, bytes: &[u8]) -> Option<Buf> {
        let mut buf = self.try_alloc(bytes.len())?;
        buf.copy_from_slice(bytes);
        Some(buf)
    }

    fn give_back(&self, start: u32, pages: u32) {
        let mut runs = self.0.runs.lock();
        runs.give(start, pages);
        self.note_used(&runs);
    }

    fn note_used(&self, runs: &Runs) {
        let used = self.capacity() - runs.free() as usize * PAGE_SIZE;
        self.0.used.store(used, Ordering::Relaxed);
    }

    /// Bytes of the whole pool.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.mapping.len()
    }

    /// Bytes allocated now, whole pages counted.
    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Id of this pool within this process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// A descriptor by which a client on the same host can map the pool read-only.
    ///
    /// # Errors
    /// When `/proc` is not mounted or no descriptors are left.
    pub fn memfd_read_only(&self) -> io::Result<OwnedFd> {
        reopen_read_only(self.memfd())
    }

    pub(crate) fn memfd(&self) -> BorrowedFd<'_> {
        self.0.memfd.as_fd()
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.0.mapping.base()
    }
}

impl PartialEq for BufferPool {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for BufferPool {}
