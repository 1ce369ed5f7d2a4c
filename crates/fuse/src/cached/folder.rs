//! The folder of a cache: each file under its key, with its checksums beside it.
//!
//! A file is written under another name, synced and renamed, after its checksums, so that a file
//! under its final name is complete. Other leftovers of a crash are removed when the folder is
//! taken. Foreign files are left alone.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_env::effective_uid;
use millpond_env::files::{self, FileLock, FileStamp, PlacedFile, UNFINISHED_SUFFIX};
use parking_lot::Mutex;

use super::key::Key;
use super::sums::{PIECE, Sums};
use crate::options::OptionError;

const FILE: &str = ".file";
const SUMS: &str = ".sums";
/// The lock file of the mount that owns the cache.
const LOCK: &str = "millpond-cache.lock";

/// A folder in exclusive use of one mount.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    lock: Mutex<Option<FileLock>>,
}

/// A complete file of a folder, with its last use in seconds.
pub(super) type Found = (u64, Key);

impl Folder {
    /// Takes a folder. `target` is the mount point.
    pub(super) fn take(path: &Path, target: &Path) -> Result<Self, OptionError> {
        let wrong = |fix: String| OptionError { option: format!("cache={}", path.display()), fix };
        let whole = files::folder(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                wrong(format!("does not exist: mkdir -p {}", path.display()))
            }
            io::ErrorKind::NotADirectory => wrong("is not a folder: give a folder".to_owned()),
            _ => wrong(format!("{error}: give another folder")),
        })?;
        if whole.starts_with(target) {
            return Err(wrong("the mount would hide it: give a folder elsewhere".to_owned()));
        }
        let on_fuse = files::is_on_fuse(&whole).map_err(|error| wrong(error.to_string()))?;
        if on_fuse {
            let fix = "is on a FUSE file system: give a folder on a local disk";
            return Err(wrong(fix.to_owned()));
        }
        let of = files::owner(&whole).map_err(|error| wrong(error.to_string()))?;
        if of != effective_uid() || files::is_writable_by_others(&whole).unwrap_or(true) {
            // They could put bytes there for others to read.
            let fix =
                "is writable by other users: give a folder of your own, or chown it and chmod go-w";
            return Err(wrong(fix.to_owned()));
        }
        let lock = FileLock::take(&whole.join(LOCK))
            .map_err(|error| wrong(format!("is not writable ({error}): give a writable folder")))?;
        let Some(lock) = lock else {
            return Err(wrong("is the cache of another mount: give another folder".to_owned()));
        };
        Ok(Self { path: whole, lock: Mutex::new(Some(lock)) })
    }

    /// Releases the folder for another mount, or for the next process of this one.
    pub(super) fn leave(&self) {
        drop(self.lock.lock().take());
    }

    /// A file in it without user data.
    pub(super) fn some_file(&self) -> io::Result<PlacedFile> {
        PlacedFile::open(&self.path.join(LOCK))
    }

    fn named(&self, key: Key, suffix: &str) -> PathBuf {
        self.path.join(format!("{key}{suffix}"))
    }

    /// The complete files, the least recently used first; removes incomplete ones.
    pub(super) fn scan(&self) -> io::Result<Vec<Found>> {
        let (mut whole, mut sums) = (Vec::new(), HashSet::new());
        let mut used = std::collections::HashMap::new();
        for found in files::list(&self.path)? {
            let name = found.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if is_unfinished(name) {
                files::remove(&found.path)?;
            } else if let Some(key) = name.strip_suffix(SUMS).and_then(Key::parse) {
                used.insert(key, found.modified);
                sums.insert(key);
            } else if let Some(key) = name.strip_suffix(FILE).and_then(Key::parse) {
                whole.push((key, found.len));
            }
        }
        let mut all = Vec::new();
        for (key, len) in whole {
            if sums.remove(&key) && len == key.len {
                all.push((used.get(&key).copied().unwrap_or(0), key));
            } else {
                self.remove(key)?;
            }
        }
        for key in sums {
            self.remove(key)?;
        }
        all.sort_unstable();
        Ok(all)
    }

    pub(super) fn remove(&self, key: Key) -> io::Result<()> {
        // The file first: without its checksums it would be incomplete.
        files::remove(&self.named(key, FILE))?;
        files::remove(&self.named(key, SUMS))
    }

    pub(super) fn open(&self, key: Key) -> io::Result<PlacedFile> {
        PlacedFile::open(&self.named(key, FILE))
    }

    /// Marks a file as used: the next process evicts others before it.
    pub(super) fn touch(&self, key: Key) {
        // An error only affects the order of eviction.
        let _ = files::touch(&self.named(key, SUMS));
    }

    /// Compares a file with its checksums; false when they differ. Stops with the error
    /// `Interrupted` when `goes_on` returns false.
    pub(super) fn check(
        &self,
        key: Key,
        file: &PlacedFile,
        goes_on: impl Fn() -> bool,
    ) -> io::Result<bool> {
        let beside = PlacedFile::open(&self.named(key, SUMS))?;
        let len = Sums::bytes_of(key.len);
        if beside.stamp()?.len != len || file.stamp()?.len != key.len {
            return Ok(false);
        }
        let mut form = vec![0; usize::try_from(len).unwrap_or(0)];
        beside.read_exact_at(&mut form, 0)?;
        let Ok(sums) = Sums::decode(&form, key.len) else { return Ok(false) };
        let mut room = vec![0; usize::try_from(PIECE.min(key.len)).unwrap_or(0)];
        for piece in 0..usize::try_from(key.len.div_ceil(PIECE)).unwrap_or(0) {
            if !goes_on() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let offset = piece as u64 * PIECE;
            let len = usize::try_from(PIECE.min(key.len - offset)).unwrap_or(0);
            file.read_exact_at(&mut room[..len], offset)?;
            if !sums.fits(piece, &room[..len]) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Begins a file.
    pub(super) fn begin(&self, key: Key) -> io::Result<Unfinished<'_>> {
        // A leftover of an earlier attempt of this process may still be written by a thread that
        // has not noticed its end, so each attempt has a name of its own.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{key}.{}-{number}{UNFINISHED_SUFFIX}", std::process::id());
        let path = self.path.join(name);
        let file = PlacedFile::create_new(&path)?;
        Ok(Unfinished { folder: self, key, file, path, sums: Sums::default(), len: 0 })
    }
}

/// Whether a name is that of an unfinished file of ours.
fn is_unfinished(name: &str) -> bool {
    let stem = name.strip_suffix(UNFINISHED_SUFFIX);
    stem.and_then(|stem| stem.split('.').next()).is_some_and(|key| Key::parse(key).is_some())
}

/// A file being written; it is removed if dropped before it is published.
pub(super) struct Unfinished<'f> {
    folder: &'f Folder,
    key: Key,
    file: PlacedFile,
    path: PathBuf,
    sums: Sums,
    len: u64,
}

impl Unfinished<'_> {
    /// Appends bytes.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.len)?;
        self.sums.append(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Gives the file its final name, durably, with its checksums.
    pub(super) fn publish(self) -> io::Result<FileStamp> {
        assert_eq!(self.len, self.key.len, "only a complete file is published");
        let (folder, key) = (self.folder, self.key);
        self.file.sync()?;
        let beside = self.path.with_extension(format!("sums{UNFINISHED_SUFFIX}"));
        let written = PlacedFile::create_new(&beside).and_then(|file| {
            file.write_all_at(&self.sums.encode(), 0)?;
            file.sync()?;
            files::rename(&beside, &folder.named(key, SUMS))
        });
        if written.is_err() {
            let _ = files::remove(&beside);
        }
        written?;
        files::rename(&self.path, &folder.named(key, FILE))?;
        files::sync_folder(&folder.path)?;
        self.file.stamp()
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        // Published files have another name by now.
        let _ = files::remove(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::tests::key;
    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::take(dir.path(), Path::new("/mnt")).unwrap();
        (dir, folder)
    }

    fn names(folder: &Folder) -> usize {
        files::list(&folder.path).unwrap().len()
    }

    fn fill(folder: &Folder, key: Key) {
        let mut unfinished = folder.begin(key).unwrap();
        for at in 0..key.len {
            unfinished.append(&[(at % 251) as u8]).unwrap();
        }
        unfinished.publish().unwrap();
    }

    #[test]
    fn a_file_is_there_whole_or_not_at_all() {
        let (_dir, folder) = folder();
        let (one, two) = (key(1, 3000), key(2, 10));
        fill(&folder, one);
        let file = folder.open(one).unwrap();
        assert!(folder.check(one, &file, || true).unwrap());
        assert_eq!(
            folder.check(one, &file, || false).unwrap_err().kind(),
            io::ErrorKind::Interrupted
        );
        let mut unfinished = folder.begin(two).unwrap();
        unfinished.append(&[1; 9]).unwrap();
        assert_eq!(names(&folder), 4, "with the lock");
        drop(unfinished);
        assert!(folder.open(two).is_err());
        let found: Vec<Key> = folder.scan().unwrap().into_iter().map(|(_, key)| key).collect();
        assert_eq!(found, [one]);
        folder.remove(one).unwrap();
        assert_eq!((folder.scan().unwrap().len(), names(&folder)), (0, 1));
    }

    #[test]
    fn what_a_crash_leaves_is_removed_and_what_is_not_ours_stays() {
        let (_dir, folder) = folder();
        let [whole, bare, lost, short, half] = [1, 2, 3, 4, 5].map(|data| key(data, 100));
        for key in [whole, bare, lost, short] {
            fill(&folder, key);
        }
        files::remove(&folder.named(bare, SUMS)).unwrap();
        files::remove(&folder.named(lost, FILE)).unwrap();
        files::truncate(&folder.named(short, FILE), 99).unwrap();
        // Left behind, as after a kill.
        std::mem::forget(folder.begin(half).unwrap());
        let theirs = folder.path.join("notes.part");
        files::publish(&theirs.with_extension("txt"), &[b"a"]).unwrap();
        PlacedFile::create_new(&theirs).unwrap();
        let found: Vec<Key> = folder.scan().unwrap().into_iter().map(|(_, key)| key).collect();
        assert_eq!(found, [whole]);
        assert_eq!(names(&folder), 5, "two of the file, two of somebody, the lock");
    }

    #[test]
    fn damage_is_noticed() {
        let (_dir, folder) = folder();
        let key = key(1, PIECE + 100);
        fill(&folder, key);
        let check = || folder.check(key, &folder.open(key).unwrap(), || true).unwrap();
        assert!(check());
        let path = folder.named(key, FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(!check());
        bytes[last] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert!(check());
        files::truncate(&path, key.len - 1).unwrap();
        assert!(!check());
        std::fs::write(&path, &bytes).unwrap();
        files::truncate(&folder.named(key, SUMS), 10).unwrap();
        assert!(!check());
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_named_with_the_fix() {
        let (dir, held) = folder();
        let file = dir.path().join("file");
        PlacedFile::create_new(&file).unwrap();
        for (path, target, part) in [
            (dir.path(), "/mnt", "is the cache of another mount"),
            (&dir.path().join("no"), "/mnt", "mkdir -p"),
            (&file, "/mnt", "is not a folder"),
            (dir.path(), "/", "would hide it"),
            (Path::new("/tmp"), "/mnt", "is writable by other users"),
        ] {
            let said = Folder::take(path, Path::new(target)).unwrap_err().to_string();
            assert!(said.starts_with("-o cache=") && said.contains(part), "{said}");
        }
        held.leave();
        assert!(Folder::take(dir.path(), Path::new("/mnt")).is_ok());
    }
}
