//! Files that are written and read at offsets, through the page cache, and facts about files.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Identity and state of a file; it changes with every write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    /// Its bytes.
    pub len: u64,
    /// Its number on its file system.
    pub inode: u64,
    /// Time of its last change, in nanoseconds since 1970.
    pub changed_ns: i128,
}

/// An open file.
#[derive(Debug)]
pub struct PlacedFile(File);

impl PlacedFile {
    /// Creates a file that only its owner can read.
    ///
    /// # Errors
    /// `AlreadyExists` and other system errors.
    pub fn create_new(path: &Path) -> io::Result<Self> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600).open(path).map(Self)
    }

    /// Opens a file for reading and writing; a new one is readable by its owner only.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn open_or_create(path: &Path) -> io::Result<Self> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.open(path).map(Self)
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// `NotFound` and other system errors.
    pub fn open(path: &Path) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// Fills `into` with the bytes at `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` when the file is shorter, and other system errors.
    pub fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(into, offset)
    }

    /// Writes all of `bytes` at `offset`. Not flushed: [`PlacedFile::sync`] does that.
    ///
    /// # Errors
    /// `StorageFull` and other system errors; some bytes may be there then.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    /// Returns when all written bytes are durable.
    ///
    /// # Errors
    /// Errors of the operating system: the state of the bytes is unknown then.
    pub fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    /// Its current stamp.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub fn stamp(&self) -> io::Result<FileStamp> {
        let found = self.0.metadata()?;
        let changed_ns = i128::from(found.ctime()) * 1_000_000_000 + i128::from(found.ctime_nsec());
        Ok(FileStamp { len: found.len(), inode: found.ino(), changed_ns })
    }
}

impl AsFd for PlacedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Renames a file within its folder, replacing any file of the new name. Durable after
/// [`sync_folder`].
///
/// # Errors
/// Errors of the operating system.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)
}

/// Gives a file a second name, on the same file system.
///
/// # Errors
/// `AlreadyExists` and other system errors: some file systems have no hard links.
pub fn link(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to)
}

/// Whether a file of this name exists.
///
/// # Errors
/// Errors of the operating system, when it cannot tell.
pub fn exists(path: &Path) -> io::Result<bool> {
    path.try_exists()
}

/// The names of the folders in `folder` that are valid text.
///
/// # Errors
/// Errors of the operating system for the folder.
pub fn folders_in(folder: &Path) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir()
            && let Ok(name) = entry.file_name().into_string()
        {
            found.push(name);
        }
    }
    Ok(found)
}

/// Returns when the names in a folder are durable.
///
/// # Errors
/// Errors of the operating system.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Sets the modification time of a file to now.
///
/// # Errors
/// Errors of the operating system.
pub fn touch(path: &Path) -> io::Result<()> {
    File::open(path)?.set_modified(SystemTime::now())
}

/// The path of a folder without symbolic links.
///
/// # Errors
/// `NotFound`, `NotADirectory` and other system errors.
pub fn folder(path: &Path) -> io::Result<PathBuf> {
    let path = fs::canonicalize(path)?;
    if fs::metadata(&path)?.is_dir() { Ok(path) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

/// Whether users other than the owner of `path` may write to it, by its permission bits.
///
/// # Errors
/// Errors of the operating system.
pub fn is_writable_by_others(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.mode() & 0o022 != 0)
}

/// Whether `path` is on a FUSE file system.
///
/// # Errors
/// Errors of the operating system.
pub fn is_on_fuse(path: &Path) -> io::Result<bool> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: an all-zero statfs is valid.
    let mut facts: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` is a C string and `facts` a writable statfs.
    let rc = unsafe { libc::statfs(path.as_ptr(), &raw mut facts) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(facts.f_type == libc::FUSE_SUPER_MAGIC)
}

/// The value of an extended attribute, of at most 4 KiB.
///
/// # Errors
/// `ENODATA` when the attribute is absent, `NotFound` and other system errors.
pub fn xattr(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let name = std::ffi::CString::new(name)?;
    let mut value = vec![0; 4096];
    // SAFETY: both names are C strings, and `value` is writable for its length.
    let got = unsafe {
        libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len())
    };
    let Ok(got) = usize::try_from(got) else { return Err(io::Error::last_os_error()) };
    value.truncate(got);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lie_where_they_were_placed() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        let file = PlacedFile::create_new(&one).unwrap();
        file.write_all_at(b"world", 6).unwrap();
        file.write_all_at(b"hello ", 0).unwrap();
        file.sync().unwrap();
        assert!(PlacedFile::create_new(&one).is_err(), "it is there");
        rename(&one, &two).unwrap();
        sync_folder(dir.path()).unwrap();
        let again = PlacedFile::open(&two).unwrap();
        let mut bytes = [0; 5];
        again.read_exact_at(&mut bytes, 6).unwrap();
        assert_eq!(&bytes, b"world");
        assert!(again.read_exact_at(&mut bytes, 7).is_err(), "it ends before");
        assert_eq!(again.stamp().unwrap(), file.stamp().unwrap());
        assert_eq!(again.stamp().unwrap().len, 11);
    }

    #[test]
    fn folders_are_told_from_other_things() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        PlacedFile::create_new(&file).unwrap();
        assert_eq!(folder(dir.path()).unwrap(), fs::canonicalize(dir.path()).unwrap());
        assert!(folder(&file).is_err() && folder(&dir.path().join("no")).is_err());
        assert!(!is_on_fuse(dir.path()).unwrap() && !is_writable_by_others(&file).unwrap());
        assert!(folders_in(dir.path()).unwrap().is_empty(), "a file is none");
        fs::create_dir(dir.path().join("below")).unwrap();
        assert_eq!(folders_in(dir.path()).unwrap(), ["below"]);
        let second = dir.path().join("second");
        assert!(!exists(&second).unwrap());
        link(&file, &second).unwrap();
        assert!(exists(&second).unwrap() && link(&file, &second).is_err());
        let again = PlacedFile::open_or_create(&second).unwrap();
        again.write_all_at(b"both", 0).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"both");
        touch(&file).unwrap();
        assert!(xattr(&file, "user.none").is_err());
    }
}
