//! Small files on a mounted file system: published whole or not at all. And larger ones that are written and
//! read at offsets.

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

/// What unfinished files are called; a later clean-up finds them by it.
pub const UNFINISHED_SUFFIX: &str = ".part";

/// Writes `parts` to a new file and then gives it the name `path`, replacing what had that name.
/// Readers see the old file or the whole new one. Not flushed: power loss may lose it.
///
/// # Errors
/// What the system says; the unfinished file is removed.
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
    /// `NotFound` and what else the system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// How long ago the file was written or touched, in seconds; 0 for one of the future.
    ///
    /// # Errors
    /// What the system says.
    pub fn age_s(&self) -> io::Result<u64> {
        let now = RealClock::wall_ms() / 1000;
        Ok(now.saturating_sub(u64::try_from(self.0.metadata()?.mtime()).unwrap_or(0)))
    }

    /// Bytes of the whole file.
    ///
    /// # Errors
    /// What the system says.
    pub fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    /// True for an empty file.
    ///
    /// # Errors
    /// What the system says.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `into` from where the last read ended.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file is shorter, and what else the system says.
    pub fn read_exact(&mut self, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(into)
    }
}

/// A file found by [`list`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its bytes.
    pub len: u64,
    /// When it was written, in seconds since 1970; only good for sorting.
    pub modified: u64,
}

/// The files in `folder`, not those in folders below it. What vanishes meanwhile is left out.
///
/// # Errors
/// What the system says about the folder.
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

/// Makes `folder` and those above it.
///
/// # Errors
/// What the system says.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)
}

/// Makes `folder`, and those above it, so that only its owner can look into it.
///
/// # Errors
/// What the system says.
pub fn make_private_folder(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// User id of the owner of what `path` leads to.
///
/// # Errors
/// `NotFound` and what else the system says.
pub fn owner(path: &Path) -> io::Result<u32> {
    Ok(fs::metadata(path)?.uid())
}

/// Opens a file for appending, and makes it if it is not there: readable by its owner only.
///
/// # Errors
/// What the system says.
pub fn open_append(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// A file that one process at a time has. It is free again when this is dropped or the process ends. A child of a fork has
/// the file open too, and not the lock.
#[derive(Debug)]
pub struct FileLock {
    file: File,
    generation: u64,
}

impl FileLock {
    fn of(file: File) -> Self {
        Self { file, generation: generation() }
    }

    /// Takes the lock; nothing when another process has it.
    ///
    /// # Errors
    /// What the system says.
    pub fn take(path: &Path) -> io::Result<Option<Self>> {
        let file = open_append(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self::of(file))),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Takes the lock as soon as nobody else has it, in this process or another.
    ///
    /// # Errors
    /// What the system says.
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
        // The system frees it when nobody has the file open any more, and a child of a fork still may.
        if self.generation == generation() {
            let _ = self.file.unlock();
        }
    }
}

/// Removes a file; none of that name is no error.
///
/// # Errors
/// What the system says.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Cuts a file off at `len` bytes, durably.
///
/// # Errors
/// What the system says.
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
