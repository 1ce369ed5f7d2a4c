//! Shared mappings of memory files, and their seals.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use crate::sys::{check, own};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    ReadWrite,
}

/// One `MAP_SHARED` mapping, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory at a fixed address, valid on every thread until drop; its owner
// decides what is written through it, and when.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` only hands out the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(file: BorrowedFd<'_>, len: usize, access: Access) -> io::Result<Self> {
        let protection = match access {
            Access::ReadOnly => libc::PROT_READ,
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: a fresh mapping at an address the kernel chooses touches no memory of ours.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { base, len })
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Asks for huge pages; a refusal is ignored, as this is only a hint.
    pub(crate) fn ask_huge_pages(&self) {
        // SAFETY: the range is exactly this mapping.
        let _ = unsafe { libc::madvise(self.base().cast(), self.len, libc::MADV_HUGEPAGE) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly this mapping, and code that hands out its memory keeps the
        // mapping alive for as long.
        let _ = unsafe { libc::munmap(self.base().cast(), self.len) };
    }
}

/// A memory file of `bytes` zero bytes that can be sealed.
pub(crate) fn create_memfd(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let name = CString::new(name)?;
    // SAFETY: `name` is a C string.
    let file = own(unsafe {
        libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
    })?;
    let size = libc::off_t::try_from(bytes)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    // SAFETY: plain numbers.
    check(unsafe { libc::ftruncate(file.as_raw_fd(), size) })?;
    Ok(file)
}

pub(crate) fn add_seals(file: BorrowedFd<'_>, seals: i32) -> io::Result<()> {
    // SAFETY: plain numbers.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }).map(drop)
}

/// Opens the same memory file again, for reading only.
pub(crate) fn reopen_read_only(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    // SAFETY: `path` is a C string.
    own(unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) })
}
