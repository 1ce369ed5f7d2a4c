//! A piece of memory shared by file descriptor.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use millpond_types::Crc32c;

use super::copy::{copy_block_checksummed, copy_segments};
use crate::error::EnvError;
use crate::fork::{Mapped, ProcessFd};
use crate::net::RawSegment;
use crate::pool::{Access, Mapping, add_seals, create_memfd};
use crate::sys::check;

/// Mapping mode of a received region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShmAccess {
    /// Only reading.
    ReadOnly,
    /// Reading and writing.
    ReadWrite,
}

/// Shared memory of fixed size. Clones are the same mapping. It is shared with this process only:
/// in a forked child, no other process sees writes to it, and a region mapped for reading is absent
/// ([`crate::fork`]).
#[derive(Clone, Debug)]
pub struct ShmRegion(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Dropped before the mapping, as required.
    fd: ProcessFd,
    mapping: Mapping,
    access: ShmAccess,
    /// Start of the bytes that were lent as plain memory: nothing else here touches them.
    lent_from: AtomicUsize,
}

const OUT_OF_RANGE: EnvError = EnvError::Hostile("a range lies outside the region");

impl ShmRegion {
    /// New zeroed memory of `bytes` bytes, of a size that no process can change.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn create(name: &str, bytes: usize) -> io::Result<Self> {
        let fd = create_memfd(name, bytes)?;
        add_seals(fd.as_fd(), libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL)?;
        let mapping = Mapping::new(fd.as_fd(), bytes, Access::ReadWrite)?;
        Ok(Self::of(mapping, fd, ShmAccess::ReadWrite))
    }

    /// Maps memory received from another process: exactly `bytes` bytes.
    ///
    /// # Errors
    /// [`EnvError::Hostile`] when the file could be cut short under the mapping (it is not sealed)
    /// or has another size; [`EnvError::Os`] when it cannot be mapped.
    pub fn from_fd(fd: OwnedFd, bytes: usize, access: ShmAccess) -> Result<Self, EnvError> {
        let failed = |error| EnvError::os("mapping the peer's shared memory", error);
        // SAFETY: plain numbers.
        let seals = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })
            .map_err(|_| EnvError::Hostile("the file is not a memory file"))?;
        let needed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
        if seals & needed != needed {
            return Err(EnvError::Hostile("the memory file's size is not sealed"));
        }
        // SAFETY: an all-zero stat is valid.
        let mut facts: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `facts` is a writable stat.
        check(unsafe { libc::fstat(fd.as_raw_fd(), &raw mut facts) }).map_err(failed)?;
        if usize::try_from(facts.st_size).ok() != Some(bytes) || bytes == 0 {
            return Err(EnvError::Hostile("the memory file has another size than announced"));
        }
        let wanted = match access {
            ShmAccess::ReadOnly => Access::ReadOnly,
            ShmAccess::ReadWrite => Access::ReadWrite,
        };
        let mapping = Mapping::new(fd.as_fd(), bytes, wanted).map_err(failed)?;
        Ok(Self::of(mapping, fd, access))
    }

    fn of(mapping: Mapping, fd: OwnedFd, access: ShmAccess) -> Self {
        let lent_from = AtomicUsize::new(mapping.len());
        let writes = access == ShmAccess::ReadWrite;
        let mapped = Mapped { base: mapping.base(), len: mapping.len(), writes };
        let fd = ProcessFd::with_memory(fd, mapped);
        Self(Arc::new(Inner { fd, mapping, access, lent_from }))
    }

    /// Lends the bytes from `offset` to the end as plain memory, for good: nothing else here
    /// accesses them from then on. The other process may still read and write them, so facts
    /// announced to it about them must be true when it looks.
    ///
    /// # Errors
    /// [`EnvError::Hostile`] for an offset outside the region, a region mapped for reading, or one
    /// that lends already.
    pub fn lend(&self, offset: u64) -> Result<ShmMemory, EnvError> {
        let len = self.len();
        let from = usize::try_from(offset).ok().filter(|from| *from < len).ok_or(OUT_OF_RANGE)?;
        self.at_for_writing(offset, len - from)?;
        let lent = &self.0.lent_from;
        if lent.compare_exchange(len, from, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(EnvError::Hostile("the region lends its memory already"));
        }
        Ok(ShmMemory { region: self.clone(), from, len: len - from })
    }

    /// Offset of `bytes` in the region, if they are memory that it has lent.
    #[must_use]
    pub fn offset_of(&self, bytes: &[u8]) -> Option<u64> {
        let offset = bytes.as_ptr().addr().checked_sub(self.0.mapping.base().addr())?;
        let lent = offset >= self.0.lent_from.load(Ordering::Acquire)
            && offset.checked_add(bytes.len())? <= self.len();
        lent.then_some(offset as u64)
    }

    /// The descriptor to send to the other process.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }

    /// Bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.0.mapping.len()
    }

    /// The address of a range within the region.
    fn at(&self, offset: u64, len: usize) -> Result<*mut u8, EnvError> {
        let offset = usize::try_from(offset).map_err(|_| OUT_OF_RANGE)?;
        let end = offset.checked_add(len).ok_or(OUT_OF_RANGE)?;
        if end > self.0.lent_from.load(Ordering::Acquire) {
            return Err(OUT_OF_RANGE);
        }
        // SAFETY: the offset lies within the mapping.
        Ok(unsafe { self.0.mapping.base().add(offset) })
    }

    fn at_for_writing(&self, offset: u64, len: usize) -> Result<*mut u8, EnvError> {
        if self.0.access == ShmAccess::ReadOnly {
            return Err(EnvError::Hostile("the region is mapped for reading only"));
        }
        self.at(offset, len)
    }

    /// A range of a region that is mapped for reading, without a copy.
    ///
    /// # Errors
    /// [`EnvError::Hostile`] for a range outside the region, or a region that this process may
    /// write to.
    pub fn view(&self, offset: u64, len: usize) -> Result<ShmView, EnvError> {
        if self.0.access != ShmAccess::ReadOnly {
            return Err(EnvError::Hostile("only a region that is mapped for reading has views"));
        }
        let start = self.at(offset, len)?;
        let from = start.addr() - self.0.mapping.base().addr();
        Ok(ShmView { region: self.clone(), from, len })
    }

    /// Copies `into.len()` bytes at `offset` out of the region.
    ///
    /// # Errors
    /// [`EnvError::Hostile`] for a range outside the region.
    pub fn copy_out(&self, offset: u64, into: &mut [u8]) -> Result<(), EnvError> {
        let src = self.at(offset, into.len())?;
        // SAFETY: `src` is mapped for that length. The other process may write during the copy:
        // then the copy holds an arbitrary mix, which callers check only after the copy.
        unsafe { std::ptr::copy_nonoverlapping(src, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies as [`ShmRegion::copy_out`] and returns the CRC-32C of the copied bytes.
    ///
    /// # Errors
    /// [`EnvError::Hostile`] for a range outside the region.
    pub fn copy_out_checksummed(&self, offset: u64, into: &mut [u8]) -> Result<Crc32c, EnvError> {
        let src = self.at(offset, into.len())?;
        // SAFETY: as in `copy_out`; `into` is exclusively borrowed.
        Ok(unsafe { copy_block_checksummed(src, into.as_mut_ptr(), into.len(), Crc32c::default()) })
    }

    /// Copies the range at `offset`, as long as all of `into`, to raw memory and returns the
    /// CRC-32C of the copied bytes.
    ///
    /// # Errors
    /// [`EnvError::Hostile`] for a range outside the region.
    ///
    /// # Safety
    /// Every segment is writable for its length, nothing else writes to it, and it overlaps neither
    /// the region nor another segment.
    pub unsafe fn copy_out_raw(
        &self,
        offset: u64,
        into: &[RawSegment],
    ) -> Result<Crc32c, EnvError> {
        let len = total(into).ok_or(OUT_OF_RANGE)?;
        let src = self.at(offset, len)?;
        // SAFETY: `src` is mapped for `len` bytes; the rest is the caller's promise.
        Ok(unsafe { copy_segments(src, len, into) })
    }

    /// Copies `from` into the region at `offset`.
    ///
    /// # Errors
    /// [`EnvError::Hostile`] for a range outside the region, or a region mapped for reading.
    pub fn copy_in(&self, offset: u64, from: &[u8]) -> Result<(), EnvError> {
        let dst = self.at_for_writing(offset, from.len())?;
        // SAFETY: `dst` is mapped for that length and no reference to it exists.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), dst, from.len()) };
        Ok(())
    }

    /// Copies raw memory into the region at `offset` and returns the CRC-32C of the copied bytes.
    ///
    /// # Errors
    /// [`EnvError::Hostile`] for a range outside the region, or a region mapped for reading.
    ///
    /// # Safety
    /// Every segment is readable for its length and does not overlap the region.
    pub unsafe fn copy_in_raw(&self, offset: u64, from: &[RawSegment]) -> Result<Crc32c, EnvError> {
        let len = total(from).ok_or(OUT_OF_RANGE)?;
        let mut dst = self.at_for_writing(offset, len)?;
        let mut crc = Crc32c::default();
        for segment in from {
            // SAFETY: `dst` advances within the `len` bytes checked above; the rest is the caller's
            // promise. If the other process writes to the range, only it is misled.
            unsafe {
                crc = copy_block_checksummed(segment.addr, dst, segment.len, crc);
                dst = dst.add(segment.len);
            }
        }
        Ok(crc)
    }

    /// A shared counter at `offset`.
    pub(super) fn word(&self, offset: u64) -> Result<&AtomicU32, EnvError> {
        if !offset.is_multiple_of(4) {
            return Err(EnvError::Hostile("a shared counter is not aligned"));
        }
        let place = self.at_for_writing(offset, 4)?;
        // SAFETY: mapped, aligned (the mapping starts on a page) and only used atomically here; the
        // reference lives as long as the mapping.
        Ok(unsafe { AtomicU32::from_ptr(place.cast()) })
    }
}

/// A range of a region that the other process writes to, and this one only reads. It is for bytes
/// that the other process has promised not to change; a user that does not trust it compares a
/// checksum.
#[derive(Clone, Debug)]
pub struct ShmView {
    region: ShmRegion,
    from: usize,
    len: usize,
}

impl Deref for ShmView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped for as long as `region` lives, as `ShmRegion::view` checked, and never
        // written in this process. If the other process writes there, the bytes change: any bytes
        // are valid ones.
        unsafe { std::slice::from_raw_parts(self.region.0.mapping.base().add(self.from), self.len) }
    }
}

/// Memory of a region with a single holder in this process.
#[derive(Debug)]
pub struct ShmMemory {
    region: ShmRegion,
    from: usize,
    len: usize,
}

impl ShmMemory {
    /// Splits off the first `len` bytes as a memory of their own; `None` when there are fewer.
    #[must_use]
    pub fn split_to(&mut self, len: usize) -> Option<Self> {
        if len > self.len {
            return None;
        }
        let head = Self { region: self.region.clone(), from: self.from, len };
        self.from += len;
        self.len -= len;
        Some(head)
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the range lies within the mapping, as `lend` checked.
        unsafe { self.region.0.mapping.base().add(self.from) }
    }
}

impl Deref for ShmMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped for as long as `region` lives and lent once, cut only into ranges that do
        // not overlap; the region's own copies stay below `lent_from`. If the other process writes
        // there, the bytes change: any bytes are valid ones, and the checksum shows it.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl DerefMut for ShmMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the region was mapped for writing when it lent.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

impl AsRef<[u8]> for ShmMemory {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for ShmMemory {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

fn total(segments: &[RawSegment]) -> Option<usize> {
    segments.iter().try_fold(0usize, |sum, segment| sum.checked_add(segment.len))
}
