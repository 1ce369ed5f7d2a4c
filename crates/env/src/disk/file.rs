//! A disk on a file or a block device, past the page cache (`O_DIRECT`). A file allocates space on
//! its file system as it is used.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_types::Tick;
use millpond_types::limits::DATA_FREE_BYTES_MIN;
use parking_lot::Mutex;

use super::{DISK_BLOCK, Disk, check_range, check_write, read_len};
use crate::clock::RealClock;
use crate::error::EnvError;
use crate::pool::{Buf, SharedBuf};
use crate::rt::core::{Core, current};
use crate::rt::op::{Action, FileRef, Op};
use crate::rt::{Handle, IoBackend, result_of, sleep_until};
use crate::sys::{check, free_bytes};

/// Longest transfer of the kernel; longer ones are split. The kernel's own limit is 2 GiB - 4 KiB.
const TRANSFER_MAX: usize = 1 << 30;

/// Time to wait for a disk's lock, and between two attempts. The kernel tears down the ring of a
/// killed process, which holds its files, some milliseconds after the process is gone. A supervisor
/// that restarts a server at once must not get an error that the disk is in use.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_RETRY: Duration = Duration::from_millis(5);

/// Environment variable by which tests slow down the disks of a process: bytes written per second.
const SLOWED: &str = "MILLPOND_TEST_DISK_BYTES_PER_SECOND";

/// A file or block device used past the page cache, held exclusively. Clones are the same disk, and
/// any core may use it.
#[derive(Clone, Debug)]
pub struct FileDisk(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: u64,
    file: File,
    path: PathBuf,
    capacity: u64,
    is_device: bool,
    direct: bool,
    /// Number of completed writes, and of those known to be durable. Writes that made themselves
    /// durable do not count; the first one stands for the writes of an earlier process.
    written: AtomicU64,
    durable: AtomicU64,
    /// Bytes per second that a test allows, and the time when the next write may begin.
    slowed: Option<(u64, Mutex<Tick>)>,
    /// Whether the file has less space on its file system than its length.
    takes_room: bool,
    /// The cores that registered this file in their ring's table, for the removal on drop.
    registrations: Mutex<Vec<(Handle, u32)>>,
}

/// Ids of disks within this process, by which a core recognizes the disks it has registered.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl FileDisk {
    /// Creates `path` with `size` bytes, or opens it when it exists and extends it to at least that
    /// length. A block device must be at least that long.
    ///
    /// A new file and its directory entry are durable on return. [`Disk::reserve`] allocates its
    /// space on the file system, or else the first write to each place does. Space that was never
    /// written reads as zero, and its first write is slower.
    ///
    /// # Errors
    /// [`EnvError::InUse`] when another process keeps it open for 2 s; [`EnvError::Config`] for a
    /// size that is not a positive multiple of 4 KiB or a device too small; otherwise
    /// [`EnvError::Os`].
    pub fn create(path: &Path, size: u64) -> Result<Self, EnvError> {
        if size == 0 || !size.is_multiple_of(DISK_BLOCK) {
            return Err(EnvError::Config {
                field: "disk size",
                fix: format!("{size} bytes: use a multiple of {DISK_BLOCK} above zero"),
            });
        }
        let mut disk = Self::open_with(path, true)?;
        let have = disk.capacity;
        if have >= size {
            return Ok(Self(Arc::new(disk)));
        }
        if disk.is_device {
            return Err(EnvError::Config {
                field: "disk size",
                fix: format!("{} has {have} bytes, but {size} are needed", path.display()),
            });
        }
        lengthen(&disk.file, size).and_then(|()| sync_folder(path)).map_err(|error| {
            EnvError::os(format!("making {} of {size} bytes", path.display()), error)
        })?;
        disk.capacity = size;
        disk.takes_room = true;
        Ok(Self(Arc::new(disk)))
    }

    /// Opens an existing file or block device; its capacity is its size, rounded down to 4 KiB.
    ///
    /// # Errors
    /// [`EnvError::InUse`] when another process keeps it open for 2 s; otherwise [`EnvError::Os`].
    pub fn open(path: &Path) -> Result<Self, EnvError> {
        Self::open_with(path, false).map(|inner| Self(Arc::new(inner)))
    }

    fn open_with(path: &Path, create: bool) -> Result<Inner, EnvError> {
        let failed = |error| EnvError::os(format!("opening {}", path.display()), error);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create).truncate(false).mode(0o600);
        let (file, direct) = match options.clone().custom_flags(libc::O_DIRECT).open(path) {
            Ok(file) => (file, true),
            // Some file systems (tmpfs before Linux 6.6, for instance) have no O_DIRECT.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (options.open(path).map_err(failed)?, false)
            }
            Err(error) => return Err(failed(error)),
        };
        if !lock(&file).map_err(failed)? {
            return Err(EnvError::InUse { path: path.display().to_string() });
        }
        let (capacity, is_device) = measure(&file).map_err(failed)?;
        let takes_room = !is_device && has_holes(&file, capacity).map_err(failed)?;
        Ok(Inner {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            file,
            path: path.to_owned(),
            capacity: capacity - capacity % DISK_BLOCK,
            is_device,
            direct,
            takes_room,
            written: AtomicU64::new(1),
            durable: AtomicU64::new(0),
            slowed: slowed().map(|rate| (rate, Mutex::new(RealClock::tick()))),
            registrations: Mutex::default(),
        })
    }

    /// Path of the file or device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// True when transfers bypass the page cache. False on file systems without support for it.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.0.direct
    }

    /// Whether every completed write is known to be durable.
    pub(super) fn is_durable(&self) -> bool {
        let written = self.0.written.load(Ordering::Acquire);
        self.0.durable.load(Ordering::Acquire) == written
    }

    fn fd(&self) -> RawFd {
        self.0.file.as_raw_fd()
    }

    /// This disk in the file table of `core`, registered on first use.
    fn on(&self, core: &Rc<Core>) -> FileRef {
        core.file(self.0.id, || {
            let file = core.register_file(self.fd());
            if let Some(slot) = file.slot {
                self.0.registrations.lock().push((core.handle(), slot));
            }
            file
        })
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let id = self.id;
        for (handle, slot) in self.registrations.get_mut().drain(..) {
            // A runtime that has ended has closed its table.
            let _ = handle.post_job(Box::new(move || current().forget_file(id, slot)));
        }
        // Explicitly: a ring's table may keep the file open a little longer.
        // SAFETY: plain numbers.
        let _ = unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// The limit of [`SLOWED`], if a test sets one.
fn slowed() -> Option<u64> {
    std::env::var(SLOWED).ok()?.parse().ok().filter(|rate| *rate > 0)
}

/// Takes the exclusive lock of a disk; false when another process holds it.
fn lock(file: &File) -> io::Result<bool> {
    let end = RealClock::tick().plus(LOCK_PATIENCE);
    loop {
        // SAFETY: plain numbers.
        match check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
            Ok(_) => return Ok(true),
            Err(error) if error.raw_os_error() != Some(libc::EWOULDBLOCK) => return Err(error),
            Err(_) if RealClock::tick() >= end => return Ok(false),
            Err(_) => std::thread::sleep(LOCK_RETRY),
        }
    }
}

/// Size in bytes, and whether it is a block device.
fn measure(file: &File) -> io::Result<(u64, bool)> {
    let facts = file.metadata()?;
    if !facts.file_type().is_block_device() {
        return Ok((facts.len(), false));
    }
    let mut bytes = 0u64;
    // SAFETY: BLKGETSIZE64 writes one u64.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) })?;
    Ok((bytes, true))
}

/// `linux/fs.h`: `_IOR(0x12, 114, size_t)` and `_IO(0x12, 119)`.
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
const BLKDISCARD: libc::c_ulong = 0x1277;

/// Whether a file takes less space on its file system than its length.
fn has_holes(file: &File, capacity: u64) -> io::Result<bool> {
    Ok(taken(file)? < capacity)
}

/// Bytes that a file takes on its file system.
fn taken(file: &File) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(file.metadata()?.blocks() * 512)
}

fn lengthen(file: &File, size: u64) -> io::Result<()> {
    file.set_len(size)?;
    file.sync_all()
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

/// Number of bytes moved by a transfer to which the kernel answered `result` with `left` bytes to
/// go.
fn advance(result: i32, left: usize) -> io::Result<usize> {
    let moved = result_of(result)?;
    assert!(moved <= left, "the kernel moved more bytes than requested");
    if moved == 0 && left > 0 {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the disk is shorter than before",
        ));
    }
    Ok(moved)
}

fn transfer_len(left: usize) -> u32 {
    u32::try_from(left.min(TRANSFER_MAX)).expect("a transfer fits 32 bits")
}

impl Disk for FileDisk {
    fn capacity(&self) -> u64 {
        self.0.capacity
    }

    fn first_write_is_dear(&self) -> bool {
        !self.0.is_device
    }

    fn takes_room(&self) -> bool {
        self.0.takes_room
    }

    async fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        check_range(self.0.capacity, offset, len)?;
        if len == 0 || self.0.is_device {
            return Ok(());
        }
        let before = taken(&self.0.file)?;
        let core = current();
        let action = Action::Reserve { file: self.on(&core), offset, len };
        // SAFETY: the action points to no memory; `self.clone()` keeps the file open.
        let (result, _) = unsafe { Op::start(&core, action, self.clone()) }.await;
        // Without support for it, the writes themselves allocate space, block by block.
        best_effort(result_of(result).map(drop)).map_err(|error| match error.kind() {
            io::ErrorKind::QuotaExceeded => io::ErrorKind::StorageFull.into(),
            _ => error,
        })?;
        // Space that was allocated before stays.
        let took = taken(&self.0.file)? > before;
        if took && free_bytes(&self.0.path)? < DATA_FREE_BYTES_MIN {
            self.discard(offset, len).await?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    async fn read(&self, offset: u64, mut buf: Buf) -> (Buf, io::Result<()>) {
        let len = read_len(&buf);
        if let Err(error) = check_range(self.0.capacity, offset, len as u64) {
            return (buf, Err(error));
        }
        let core = current();
        let (file, fixed) = (self.on(&core), core.fixed_index(&buf));
        let mut done = 0;
        while done < len {
            let into = buf.base().wrapping_add(done);
            let action = Action::Read {
                file,
                into,
                len: transfer_len(len - done),
                offset: offset + done as u64,
                fixed,
            };
            // SAFETY: `buf` owns the pages and `self.clone()` the file until the kernel is done.
            let op = unsafe { Op::start(&core, action, (buf, self.clone())) };
            let (result, resource) = op.await;
            buf = resource.0;
            match advance(result, len - done) {
                Ok(moved) => done += moved,
                Err(error) => return (buf, Err(error)),
            }
        }
        (buf, Ok(()))
    }

    async fn write(&self, offset: u64, buf: SharedBuf) -> io::Result<()> {
        self.wait_if_slowed(buf.len()).await;
        self.write_from(offset, buf, 0).await
    }

    async fn sync(&self) -> io::Result<()> {
        let written = self.0.written.load(Ordering::Acquire);
        let core = current();
        let action = Action::Sync { file: self.on(&core) };
        // SAFETY: the action points to no memory; `self.clone()` keeps the file open.
        let (result, _) = unsafe { Op::start(&core, action, self.clone()) }.await;
        result_of(result)?;
        self.0.durable.fetch_max(written, Ordering::Release);
        Ok(())
    }

    /// Writes and makes durable, with one kernel request where possible.
    ///
    /// When nothing was written since the last sync, only these bytes need to become durable. The
    /// kernel then does both in one request, with a write through the device's cache where the
    /// device supports it (FUA), without waking this thread in between. On two virtual cores 8 KiB
    /// take 125 to 140 us this way, and 190 to 200 us as a chain of two requests.
    async fn write_sync(&self, offset: u64, buf: SharedBuf) -> io::Result<()> {
        let bytes = check_write(self.0.capacity, offset, &buf)?;
        self.wait_if_slowed(bytes.len()).await;
        let written = self.0.written.load(Ordering::Acquire);
        let durable = self.is_durable();
        let core = current();
        let is_chain = core.backend() == IoBackend::Uring;
        if bytes.len() > TRANSFER_MAX || !(durable || is_chain) {
            self.write_from(offset, buf, 0).await?;
            return self.sync().await;
        }
        let file = self.on(&core);
        let fixed = core.fixed_index(buf.owner());
        let (from, len) = (bytes.as_ptr(), transfer_len(bytes.len()));
        let write = Action::Write { file, from, len, offset, fixed, durable };
        let resource = (buf.clone(), self.clone());
        let moved = if durable {
            // SAFETY: the resource owns the pages and the file until the kernel is done.
            let (result, _) = unsafe { Op::start(&core, write, resource) }.await;
            advance(result, len as usize)?
        } else {
            let sync = Action::Sync { file };
            // SAFETY: as above, for both.
            let (write, sync) =
                unsafe { Op::start_linked(&core, (write, resource), (sync, self.clone())) };
            let (result, _) = write.await;
            let (synced, _) = sync.await;
            let moved = advance(result, len as usize)?;
            if moved == len as usize {
                result_of(synced)?;
                self.0.durable.fetch_max(written, Ordering::Release);
            }
            moved
        };
        if moved < len as usize {
            // A short write broke the chain, and the sync was cancelled; or it made the written
            // bytes durable.
            self.write_from(offset, buf, moved).await?;
            self.sync().await?;
        }
        Ok(())
    }

    async fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        check_range(self.0.capacity, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        if self.0.is_device {
            return discard_device(&self.0.file, offset, len);
        }
        let core = current();
        let action = Action::Punch { file: self.on(&core), offset, len };
        // SAFETY: the action points to no memory; `self.clone()` keeps the file open.
        let (result, _) = unsafe { Op::start(&core, action, self.clone()) }.await;
        best_effort(result_of(result).map(drop))
    }
}

impl FileDisk {
    /// Waits until a write of `len` bytes may begin, when a test slows disks down.
    async fn wait_if_slowed(&self, len: usize) {
        let Some((rate, next)) = &self.0.slowed else { return };
        let time = Duration::from_micros((len as u64).saturating_mul(1_000_000) / rate);
        let begin = {
            let mut next = next.lock();
            let begin = (*next).max(RealClock::tick());
            *next = begin.plus(time);
            begin.plus(time)
        };
        sleep_until(begin).await;
    }

    /// Writes the rest of `buf` after its first `done` bytes.
    async fn write_from(&self, offset: u64, buf: SharedBuf, done: usize) -> io::Result<()> {
        let mut done = done;
        let len = check_write(self.0.capacity, offset, &buf)?.len();
        let core = current();
        let (file, fixed) = (self.on(&core), core.fixed_index(buf.owner()));
        let from = buf.as_ptr();
        let mut resource = (buf, self.clone());
        while done < len {
            let action = Action::Write {
                file,
                from: from.wrapping_add(done),
                len: transfer_len(len - done),
                offset: offset + done as u64,
                fixed,
                durable: false,
            };
            // SAFETY: the resource owns the pages and the file until the kernel is done.
            let (result, back) = unsafe { Op::start(&core, action, resource) }.await;
            resource = back;
            done += advance(result, len - done)?;
        }
        self.0.written.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

/// Discards synchronously: block devices take the ioctl only, and it is rare.
fn discard_device(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let range = [offset, len];
    // SAFETY: BLKDISCARD reads two u64.
    best_effort(
        check(unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) }).map(drop),
    )
}

fn best_effort(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        other => other,
    }
}
