//! Small files on a mounted file system, published completely or not at all; and larger ones that
//! are written and read at offsets.

mod hole;
mod placed;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::RealClock;
use crate::fork::generation;

pub use self::hole::SparseFile;
pub use self::placed::{
    FileStamp, PlacedFile, exists, folder, folders_in, is_on_fuse, is_writable_by_others, link,
    rename, sync_folder, touch, xattr,
};

/// Suffix of unfinished files, by which a later clean-up finds them.
pub const UNFINISHED_SUFFIX: &str = ".part";

/// Writes `parts` to a new file and then renames it to `path`, replacing any file there. Readers
/// see the old file or the whole new one. Not flushed: power loss may lose it.
///
/// # Errors
/// Errors of the operating system; the unfinished file is removed.
pub fn publish(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let unfinished =
        path.with_extension(format!("{}-{number}{UNFINISHED_SUFFIX}", std::process::id()));
    let written = File::create(&unfinished)
        .and_then(|mut file| parts.iter().try_for_each(|part| file.write_all(part)))
        .and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written
}

/// An open file, read from its start.
#[derive(Debug)]
pub struct FileReader(File);

impl FileReader {
    /// Opens `path`.
    ///
    /// # Errors
    /// `NotFound` and other system errors.
    pub fn open(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// Seconds since the file was written or touched; 0 for a time in the future.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn age_s(&self) -> io::Result<u64> {
        let now = RealClock::wall_ms() / 1000;
        Ok(now.saturating_sub(u64::try_from(self.0.metadata()?.mtime()).unwrap_or(0)))
    }

    /// Bytes of the whole file.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    /// True for an empty file.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `into` from the end of the last read.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file is shorter, and other system errors.
    pub fn read_exact(&mut self, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(into)
    }
}

/// A file found by [`list`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundFile {
    /// Its path.
    pub path: PathBuf,
    /// Its bytes.
    pub len: u64,
    /// Time of its last write, in seconds since 1970; only good for sorting.
    pub modified: u64,
}

/// The files in `folder`, without those in its subfolders. Files that vanish during the call are
/// left out.
///
/// # Errors
/// Errors of the operating system for the folder.
pub fn list(folder: &Path) -> io::Result<Vec<FoundFile>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(metadata) = entry.metadata() else { continue };
        if !metadata.is_file() {
            continue;
        }
        let modified = metadata.modified().unwrap_or(std::time::UNIX_EPOCH);
        let modified = modified.duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        found.push(FoundFile { path: entry.path(), len: metadata.len(), modified });
    }
    Ok(found)
}

/// Creates `folder` and its missing parents.
///
/// # Errors
/// Errors of the operating system.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)
}

/// Creates `folder` and its missing parents, accessible to their owner only.
///
/// # Errors
/// Errors of the operating system.
pub fn make_private_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// User id of the owner of `path`, following symbolic links.
///
/// # Errors
/// `NotFound` and other system errors.
pub fn owner(path: &Path) -> io::Result<u32> {
    Ok(fs::metadata(path)?.uid())
}

/// Opens a file for appending; a new one is readable by its owner only.
///
/// # Errors
/// Errors of the operating system.
pub fn open_append(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// A file locked by one process at a time. The lock ends when this is dropped or the process ends.
/// A forked child has the file open too, but not the lock.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    generation: u64,
}

impl FileLock {
    fn of(file: File) -> Self {
        Self { file, generation: generation() }
    }

    /// Takes the lock; `None` when another process has it.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn take(path: &Path) -> io::Result<Option<Self>> {
        let file = open_append(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self::of(file))),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Waits for the lock while another holder, in this process or another, has it.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn wait(path: &Path) -> io::Result<Self> {
        let file = open_append(path)?;
        loop {
            match file.lock() {
                Ok(()) => return Ok(Self::of(file)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // The system frees the lock when the last descriptor of the file closes, and a forked child
        // may still have one.
        if self.generation == generation() {
            let _ = self.file.unlock();
        }
    }
}

/// Removes a file; a missing file is no error.
///
/// # Errors
/// Errors of the operating system.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Cuts a file off at `len` bytes, durably.
///
/// # Errors
/// Errors of the operating system.
pub fn truncate(path: &Path, len: u64) -> io::Result<()> {
    let file = fs::OpenOptions::new().write(true).open(path)?;
    file.set_len(len)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::{
        FileLock, FileReader, list, make_private_folder, owner, publish, remove, truncate,
    };

    #[test]
    fn a_lock_is_held_once() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("a/b");
        make_private_folder(&below).unwrap();
        assert_eq!(owner(&below).unwrap(), crate::effective_uid());
        let path = below.join("lock");
        let held = FileLock::take(&path).unwrap();
        assert!(held.is_some() && FileLock::take(&path).unwrap().is_none());
        drop(held);
        assert!(FileLock::take(&path).unwrap().is_some());
    }

    #[test]
    fn a_published_file_is_whole_and_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        publish(&path, &[b"one", b"two"]).unwrap();
        publish(&path, &[b"three"]).unwrap();
        let mut bytes = [0; 5];
        FileReader::open(&path).unwrap().read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"three");
        assert_eq!(list(folder.path()).unwrap().len(), 1);
        truncate(&path, 2).unwrap();
        assert_eq!(FileReader::open(&path).unwrap().len().unwrap(), 2);
        assert!(publish(&folder.path().join("no/such"), &[]).is_err());
        remove(&path).unwrap();
        remove(&path).unwrap();
    }
}
