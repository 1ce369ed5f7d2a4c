//! `…|Posix`: blocks as files in a folder of any mounted file system.
//!
//! A file is a header of 24 bytes, the key and the value. Its name is the 128-bit hash of the key;
//! the first two digits name one of 256 folders. Little endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic `MPXB` |
//! | 4 | 2 | version, 1 |
//! | 6 | 2 | key length |
//! | 8 | 8 | value length |
//! | 16 | 4 | CRC-32C of the value |
//! | 20 | 4 | CRC-32C of bytes 0 to 19 and the key |
//!
//! Files appear by rename, so they are whole or absent; one that fails any check is a miss and is
//! removed. Each layout digest has its own folder. The bound covers all layouts, and files of other
//! processes in the same folder (`usage.rs`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use millpond_client::{ClientError, GetOutcome, Room, Value};
use millpond_env::files::{self, FileReader};
use millpond_types::limits::CHUNK_BYTES_MAX;
use millpond_types::wire::ItemStatus;
use millpond_types::{BlockKey, ByteSize, Crc32c, GroupId, LayoutDigest};

use crate::store::{Batch, BlockStore};
use crate::usage::Usage;

const MAGIC: &[u8; 4] = b"MPXB";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 24;
/// A block that is read becomes the newest, at most once in this time: it costs a call.
const TOUCH_AFTER_S: u64 = 60;

/// A folder of blocks, bounded in bytes.
#[derive(Debug)]
pub struct Posix {
    folder: PathBuf,
    usage: Usage,
    corrupt: AtomicU64,
}

struct Header {
    key_len: usize,
    value_len: usize,
    value_crc: Crc32c,
    own_crc: u32,
}

fn encode(key: &BlockKey, len: usize, crc: Crc32c) -> Vec<u8> {
    let key = key.as_bytes();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + key.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&u16::try_from(key.len()).unwrap_or(u16::MAX).to_le_bytes());
    bytes.extend_from_slice(&(len as u64).to_le_bytes());
    bytes.extend_from_slice(&crc.0.to_le_bytes());
    let own = Crc32c::of(&bytes).append(key);
    bytes.extend_from_slice(&own.0.to_le_bytes());
    bytes.extend_from_slice(key);
    bytes
}

fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let high = word(12);
    let value_len = usize::try_from(word(8)).ok()?;
    let valid =
        bytes.starts_with(MAGIC) && half(4) == VERSION && high == 0 && value_len <= CHUNK_BYTES_MAX;
    valid.then(|| Header {
        key_len: usize::from(half(6)),
        value_len,
        value_crc: Crc32c(word(16)),
        own_crc: word(20),
    })
}

fn failed(path: &Path, source: io::Error) -> ClientError {
    ClientError::Connect { address: format!("folder {}", path.display()), source }
}

impl Posix {
    /// Opens the blocks of `layout` in `folder`, which is made if necessary. All files of processes
    /// and layouts in it are kept within `capacity`; a store with another bound keeps to its own.
    /// Existing blocks are found again; the least recently used ones are evicted first.
    ///
    /// # Errors
    /// `Unreachable` when the folder cannot be made or read.
    pub fn open(
        folder: &Path,
        layout: LayoutDigest,
        capacity: ByteSize,
    ) -> Result<Self, ClientError> {
        let digest =
            layout.0.iter().take(16).fold(0u128, |all, byte| (all << 8) | u128::from(*byte));
        let usage = Usage::open(folder, capacity.0).map_err(|error| failed(folder, error))?;
        let folder = folder.join(format!("{digest:032x}"));
        files::make_folder(&folder).map_err(|error| failed(&folder, error))?;
        Ok(Self { folder, usage, corrupt: AtomicU64::new(0) })
    }

    fn path(&self, key: &BlockKey) -> PathBuf {
        let id = millpond_types::ChunkIds::UNKEYED.block(GroupId::SYSTEM, key).to_string();
        self.folder.join(&id[..2]).join(&id[2..])
    }

    /// Opens the file of `key` and checks its header; `None` if it is another key's or damaged.
    fn open_file(path: &Path, key: &BlockKey) -> io::Result<Option<(FileReader, Header)>> {
        let mut file = FileReader::open(path)?;
        let mut bytes = [0; HEADER_BYTES];
        file.read_exact(&mut bytes)?;
        let Some(header) = decode(&bytes) else { return Ok(None) };
        if header.key_len != key.as_bytes().len() {
            return Ok(None);
        }
        let mut stored = vec![0; header.key_len];
        file.read_exact(&mut stored)?;
        let own = Crc32c::of(&bytes[..20]).append(&stored);
        let whole = (HEADER_BYTES + header.key_len + header.value_len) as u64;
        let valid = own.0 == header.own_crc && stored == key.as_bytes() && file.len()? == whole;
        Ok(valid.then_some((file, header)))
    }

    fn read(&self, key: &BlockKey, room: &mut Room<'_>) -> GetOutcome {
        let path = self.path(key);
        match Self::try_read(&path, key, room) {
            Ok(Some(outcome)) => outcome,
            Err(error) if error.kind() == io::ErrorKind::NotFound => GetOutcome::Miss,
            // Damaged, cut short, or unreadable: never data.
            Ok(None) | Err(_) => {
                self.corrupt.fetch_add(1, Ordering::Relaxed);
                let _ = self.usage.remove(&path);
                GetOutcome::Miss
            }
        }
    }

    fn try_read(
        path: &Path,
        key: &BlockKey,
        room: &mut Room<'_>,
    ) -> io::Result<Option<GetOutcome>> {
        let Some((mut file, header)) = Self::open_file(path, key)? else { return Ok(None) };
        let len = u32::try_from(header.value_len).unwrap_or(u32::MAX);
        if header.value_len > room.len() {
            return Ok(Some(GetOutcome::TooLong(len)));
        }
        let mut crc = Crc32c::EMPTY;
        room.fill(header.value_len, |piece| {
            file.read_exact(piece)?;
            crc = crc.append(piece);
            Ok::<(), io::Error>(())
        })?;
        if file.age_s()? >= TOUCH_AFTER_S {
            // If that fails, the file keeps its age for eviction.
            let _ = files::touch(path);
        }
        Ok((crc == header.value_crc).then_some(GetOutcome::Read(len)))
    }

    fn write(&self, key: &BlockKey, value: &Value<'_>) -> ItemStatus {
        let path = self.path(key);
        let there = match Self::open_file(&path, key) {
            Ok(Some(_)) => return ItemStatus::Exists,
            Err(error) => error.kind() != io::ErrorKind::NotFound,
            Ok(None) => true,
        };
        let crc = value.pieces().iter().fold(Crc32c::EMPTY, |crc, piece| crc.append(piece));
        let head = encode(key, value.len(), crc);
        let parts: Vec<&[u8]> =
            std::iter::once(head.as_slice()).chain(value.pieces().iter().copied()).collect();
        let len = parts.iter().map(|part| part.len() as u64).sum();
        // The existing file is damaged, or another key's.
        let cleared = if there { self.usage.remove(&path).map(|_| ()) } else { Ok(()) };
        let written = cleared.and_then(|()| self.publish(&path, &parts, len));
        match written {
            Ok(true) => ItemStatus::Ok,
            Ok(false) => ItemStatus::NoSpace,
            Err(error) => match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ItemStatus::NoSpace,
                _ => ItemStatus::ReadOnly,
            },
        }
    }

    /// Writes a file after reserving room. False when the file is larger than the folder's limit.
    fn publish(&self, path: &Path, parts: &[&[u8]], len: u64) -> io::Result<bool> {
        if !self.usage.reserve(len)? {
            return Ok(false);
        }
        let mut written = files::publish(path, parts);
        if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            written = path.parent().map_or(Ok(()), files::make_folder);
            written = written.and_then(|()| files::publish(path, parts));
        }
        // After a failure its room stays counted until the next sweep, which finds no file.
        written.map(|()| true)
    }
}

impl BlockStore for Posix {
    fn put(&self, batch: Batch<'_>, values: &[Value<'_>]) -> Result<Vec<ItemStatus>, ClientError> {
        if values.len() != batch.keys.len() {
            let fix = format!("{} given for {} keys", values.len(), batch.keys.len());
            return Err(ClientError::Argument { field: "values", fix });
        }
        if values.iter().any(|value| value.len() > CHUNK_BYTES_MAX) {
            let fix = "a value has at most 64 MiB: split it".to_owned();
            return Err(ClientError::Argument { field: "values", fix });
        }
        Ok(batch.keys.iter().zip(values).map(|(key, value)| self.write(key, value)).collect())
    }

    fn get(
        &self,
        batch: Batch<'_>,
        rooms: &mut [Room<'_>],
    ) -> Result<Vec<GetOutcome>, ClientError> {
        if rooms.len() != batch.keys.len() {
            let fix = format!("{} given for {} keys", rooms.len(), batch.keys.len());
            return Err(ClientError::Argument { field: "into", fix });
        }
        Ok(batch.keys.iter().zip(rooms).map(|(key, room)| self.read(key, room)).collect())
    }

    fn contains(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        let there = |key| matches!(Self::open_file(&self.path(key), key), Ok(Some(_)));
        Ok(batch.keys.iter().map(there).collect())
    }

    fn delete(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        let present = self.contains(batch)?;
        for key in batch.keys {
            let path = self.path(key);
            self.usage.remove(&path).map_err(|error| failed(&path, error))?;
        }
        Ok(present)
    }

    fn stats(&self) -> Result<Vec<(String, u64)>, ClientError> {
        let counts = self.usage.counts().map_err(|error| failed(&self.folder, error))?;
        Ok(vec![
            ("posix_blocks".to_owned(), counts.blocks),
            ("posix_bytes".to_owned(), counts.bytes),
            ("posix_corrupt".to_owned(), self.corrupt.load(Ordering::Relaxed)),
        ])
    }
}
