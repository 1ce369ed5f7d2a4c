//! Usage of a folder of blocks, counted for every process and layout that shares it.
//!
//! The folder's file `usage`, little endian, is locked while a process reads and changes it:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic `MPXU` |
//! | 4 | 4 | version, 1 |
//! | 8 | 8 | bytes of all blocks, in whole pages |
//! | 16 | 8 | blocks |
//! | 24 | 4 | CRC-32C of bytes 0 to 23 |
//!
//! Room is counted before a block is written, and given back after one is removed, so that a crash
//! or a failed write leaves too much counted. A sweep counts the files themselves: when the folder
//! is opened, when the count is damaged, and when there is no room. Then the least recently read or
//! written blocks are evicted. Blocks that are being written during a sweep, one per thread, may
//! exceed the bound.

use std::io;
use std::path::{Path, PathBuf};

use millpond_env::files::{self, FileLock, FileReader, FoundFile, PlacedFile};
use millpond_types::Crc32c;

const MAGIC: &[u8; 4] = b"MPXU";
const VERSION: u32 = 1;
const BYTES: usize = 28;
const FOLDERS: u16 = 256;
const PAGE_BYTES: u64 = 4096;
/// A sweep frees this part of the folder's bytes more than necessary, so that the next is not near.
const SPARE_PARTS: u64 = 16;

/// Bytes and number of the blocks in a folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

/// The bound of a folder that several processes and layouts share.
#[derive(Debug)]
pub(crate) struct Usage {
    folder: PathBuf,
    capacity: u64,
}

fn encode(counts: Counts) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(MAGIC);
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    bytes[8..16].copy_from_slice(&counts.bytes.to_le_bytes());
    bytes[16..24].copy_from_slice(&counts.blocks.to_le_bytes());
    let crc = Crc32c::of(&bytes[..24]);
    bytes[24..].copy_from_slice(&crc.0.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8; BYTES]) -> Option<Counts> {
    let word = |at: usize| {
        bytes[at..at + 8].iter().rev().fold(0u64, |all, byte| (all << 8) | u64::from(*byte))
    };
    let counts = Counts { bytes: word(8), blocks: word(16) };
    (encode(counts) == *bytes).then_some(counts)
}

fn in_pages(len: u64) -> u64 {
    len.next_multiple_of(PAGE_BYTES)
}

impl Usage {
    /// Counts the files in `folder`, and removes those beyond `capacity`.
    pub(crate) fn open(folder: &Path, capacity: u64) -> io::Result<Self> {
        files::make_folder(folder)?;
        let usage = Self { folder: folder.to_owned(), capacity };
        usage.locked(|_| usage.sweep(capacity))?;
        Ok(usage)
    }

    /// Counts a file of `len` bytes that will be written, and makes room for it. False when it is
    /// larger than the folder may be.
    pub(crate) fn reserve(&self, len: u64) -> io::Result<bool> {
        let bytes = in_pages(len);
        let Some(most) = self.capacity.checked_sub(bytes) else { return Ok(false) };
        self.locked(|counts| {
            let mut counts = counts;
            if counts.bytes > most {
                counts = self.sweep(most.saturating_sub(self.capacity / SPARE_PARTS))?;
            }
            Ok(Counts { bytes: counts.bytes + bytes, blocks: counts.blocks + 1 })
        })?;
        Ok(true)
    }

    /// Removes a file and gives its room back. False when there was none.
    pub(crate) fn remove(&self, path: &Path) -> io::Result<bool> {
        let mut there = false;
        self.locked(|counts| {
            let len = match FileReader::open(path).and_then(|file| file.len()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(counts),
                len => len.unwrap_or(0),
            };
            files::remove(path)?;
            there = true;
            Ok(Counts {
                bytes: counts.bytes.saturating_sub(in_pages(len)),
                blocks: counts.blocks.saturating_sub(1),
            })
        })?;
        Ok(there)
    }

    /// The counted usage of the folder.
    pub(crate) fn counts(&self) -> io::Result<Counts> {
        self.locked(Ok)
    }

    /// Replaces the counts under the lock.
    fn locked(&self, change: impl FnOnce(Counts) -> io::Result<Counts>) -> io::Result<Counts> {
        let path = self.folder.join("usage");
        let _lock = FileLock::wait(&path)?;
        let file = PlacedFile::open_or_create(&path)?;
        let mut bytes = [0; BYTES];
        let known = file.read_exact_at(&mut bytes, 0).ok().and_then(|()| decode(&bytes));
        let before = known.map_or_else(|| self.sweep(self.capacity), Ok)?;
        let after = change(before)?;
        if known != Some(after) {
            file.write_all_at(&encode(after), 0)?;
        }
        Ok(after)
    }

    /// Counts the files of all layouts and removes the oldest of them beyond `most` bytes.
    fn sweep(&self, most: u64) -> io::Result<Counts> {
        let mut found = self.files()?;
        found.sort_by_key(|file| file.modified);
        let mut counts = Counts {
            bytes: found.iter().map(|file| in_pages(file.len)).sum(),
            blocks: found.len() as u64,
        };
        for file in found {
            if counts.bytes <= most {
                break;
            }
            files::remove(&file.path)?;
            counts.bytes -= in_pages(file.len);
            counts.blocks -= 1;
        }
        Ok(counts)
    }

    /// Lists the blocks of all layouts. Unfinished ones count too; those left by a crash are the
    /// oldest.
    fn files(&self) -> io::Result<Vec<FoundFile>> {
        let mut found = Vec::new();
        for layout in files::folders_in(&self.folder)? {
            if layout.len() != 32 || !layout.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                continue;
            }
            for number in 0..FOLDERS {
                match files::list(&self.folder.join(&layout).join(format!("{number:02x}"))) {
                    Ok(files) => found.extend(files),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(found)
    }
}
