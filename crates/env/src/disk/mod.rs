//! Disks: one trait, a real one on files and block devices, and a fake one that crashes on demand.

mod fake;
mod file;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io;

pub use fake::{CrashImages, FakeDisk, Fault, FaultKind, block_on, race_all};
pub use file::FileDisk;

use crate::pool::{Buf, SharedBuf};

/// Offsets and lengths on a disk are multiples of this many bytes.
pub const DISK_BLOCK: u64 = 4096;

/// Random-access storage in blocks of 4 KiB.
///
/// Futures run on the core that polls them first. Dropping one leaves a write undecided: it may
/// reach the disk, completely or in part. The buffer is kept until the kernel releases it.
pub trait Disk: Send + Sync + 'static {
    /// Size in bytes, a multiple of 4 KiB.
    fn capacity(&self) -> u64;

    /// Whether the first durable write of a block takes much longer than later ones, as in a file,
    /// where the file system converts extents.
    fn first_write_is_dear(&self) -> bool;

    /// Whether some of its blocks may have no space yet, so that [`Disk::reserve`] can fail.
    fn takes_room(&self) -> bool;

    /// Ensures that writes to a range do not fail for lack of space, until it is discarded. Durable
    /// with the next [`Disk::sync`].
    ///
    /// # Errors
    /// `InvalidInput` for a bad range; `StorageFull` when there is no space for all of it, or too
    /// little would be left for others: a part may have got some then.
    fn reserve(&self, offset: u64, len: u64) -> impl Future<Output = io::Result<()>>;

    /// Fills `buf.len()`, rounded up to 4 KiB, bytes of `buf` from `offset`. The length stays.
    ///
    /// # Errors
    /// `InvalidInput` for a misaligned offset or a range beyond the capacity; otherwise errors of
    /// the device. The content of the buffer is then undefined.
    fn read(&self, offset: u64, buf: Buf) -> impl Future<Output = (Buf, io::Result<()>)>;

    /// Writes [`SharedBuf::padded`] at `offset`. Durable only after a later [`Disk::sync`].
    ///
    /// # Errors
    /// As for [`Disk::read`], also for a buffer that starts within a page; `StorageFull` when the
    /// device has no space. The range is then undefined.
    fn write(&self, offset: u64, buf: SharedBuf) -> impl Future<Output = io::Result<()>>;

    /// Makes every write that had completed before this call durable.
    ///
    /// # Errors
    /// Errors of the device. Writes that were not durable before may then still be volatile.
    fn sync(&self) -> impl Future<Output = io::Result<()>>;

    /// [`Disk::write`], then [`Disk::sync`], in one submission where the backend can.
    ///
    /// # Errors
    /// As for both.
    fn write_sync(&self, offset: u64, buf: SharedBuf) -> impl Future<Output = io::Result<()>> {
        async move {
            self.write(offset, buf).await?;
            self.sync().await
        }
    }

    /// Tells the device that a range is no longer needed. Its content is undefined afterwards.
    /// Best effort: a device that cannot do this answers `Ok`.
    ///
    /// # Errors
    /// `InvalidInput` for a bad range; errors of the device.
    fn discard(&self, offset: u64, len: u64) -> impl Future<Output = io::Result<()>>;
}

/// Checks that a range lies on blocks within the disk.
fn check_range(capacity: u64, offset: u64, len: u64) -> io::Result<()> {
    let bad = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    if !offset.is_multiple_of(DISK_BLOCK) || !len.is_multiple_of(DISK_BLOCK) {
        return bad(format!("disk range {offset}+{len} is not aligned to {DISK_BLOCK} bytes"));
    }
    if offset.checked_add(len).is_none_or(|end| end > capacity) {
        return bad(format!(
            "disk range {offset}+{len} is beyond the capacity of {capacity} bytes"
        ));
    }
    Ok(())
}

/// The bytes of a write, checked to start on a page.
fn check_write(capacity: u64, offset: u64, buf: &SharedBuf) -> io::Result<&[u8]> {
    let bytes = buf.padded();
    if !buf.pool_offset().is_multiple_of(DISK_BLOCK) {
        let text = "a buffer written to disk starts on a page of its pool";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    check_range(capacity, offset, bytes.len() as u64)?;
    Ok(bytes)
}

/// Bytes that a read into `buf` transfers.
fn read_len(buf: &Buf) -> usize {
    buf.len().next_multiple_of(crate::pool::PAGE_SIZE).min(buf.capacity())
}
