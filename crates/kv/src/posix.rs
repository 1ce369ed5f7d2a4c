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
//! removed. Another layout digest is another folder.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use millpond_client::{ClientError, GetOutcome, Room, Value};
use millpond_env::files::{self, FileReader, UNFINISHED_SUFFIX};
use millpond_types::limits::CHUNK_BYTES_MAX;
use millpond_types::wire::ItemStatus;
use millpond_types::{BlockKey, ByteSize, Crc32c, GroupId, LayoutDigest};

use crate::s3fifo::S3Fifo;
use crate::store::{Batch, BlockStore};

const MAGIC: &[u8; 4] = b"MPXB";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 24;
const FOLDERS: u16 = 256;

/// A folder of blocks, bounded in bytes.
#[derive(Debug)]
pub struct Posix {
    folder: PathBuf,
    known: Mutex<S3Fifo<PathBuf, ()>>,
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
    /// Opens the blocks of `layout` in `folder`, which is made if need be, and keeps them within
    /// `capacity`. Blocks that are there already are found again, oldest first in line to go.
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
        let name = format!("{digest:032x}");
        let folder = folder.join(name);
        let mut found = Vec::new();
        files::make_folder(&folder).map_err(|error| failed(&folder, error))?;
        for number in 0..FOLDERS {
            let part = folder.join(format!("{number:02x}"));
            match files::list(&part) {
                Ok(files) => found.extend(files),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(&part, error)),
            }
        }
        found.sort_by_key(|file| file.modified);
        let store =
            Self { folder, known: Mutex::new(S3Fifo::new(capacity.0)), corrupt: AtomicU64::new(0) };
        for file in found {
            if file.path.to_string_lossy().ends_with(UNFINISHED_SUFFIX) {
                let _ = files::remove(&file.path);
            } else {
                store.account(file.path, file.len);
            }
        }
        Ok(store)
    }

    fn known(&self) -> MutexGuard<'_, S3Fifo<PathBuf, ()>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, key: &BlockKey) -> PathBuf {
        let id = millpond_types::placement::chunk_id(GroupId::SYSTEM, key).to_string();
        self.folder.join(&id[..2]).join(&id[2..])
    }

    /// Counts a file and removes those that must go for it.
    fn account(&self, path: PathBuf, len: u64) {
        let gone = self.known().insert(path, (), len.next_multiple_of(4096));
        for (path, ()) in gone {
            let _ = files::remove(&path);
        }
    }

    /// Opens the file of `key` and checks its header; none when it is another key's or damaged.
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
            Ok(Some(outcome)) => {
                self.known().get(&path);
                outcome
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.known().remove(&path);
                GetOutcome::Miss
            }
            // Damaged, cut short, or unreadable: never data.
            Ok(None) | Err(_) => {
                self.corrupt.fetch_add(1, Ordering::Relaxed);
                let _ = files::remove(&path);
                self.known().remove(&path);
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
        Ok((crc == header.value_crc).then_some(GetOutcome::Read(len)))
    }

    fn write(&self, key: &BlockKey, value: &Value<'_>) -> ItemStatus {
        let path = self.path(key);
        if matches!(Self::open_file(&path, key), Ok(Some(_))) {
            return ItemStatus::Exists;
        }
        let crc = value.pieces().iter().fold(Crc32c::EMPTY, |crc, piece| crc.append(piece));
        let head = encode(key, value.len(), crc);
        let parts: Vec<&[u8]> =
            std::iter::once(head.as_slice()).chain(value.pieces().iter().copied()).collect();
        let mut written = files::publish(&path, &parts);
        if written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            written = path.parent().map_or(Ok(()), files::make_folder);
            written = written.and_then(|()| files::publish(&path, &parts));
        }
        match written {
            Ok(()) => {
                self.known().remove(&path);
                self.account(path, (head.len() + value.len()) as u64);
                ItemStatus::Ok
            }
            Err(error) => match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ItemStatus::NoSpace,
                _ => ItemStatus::ReadOnly,
            },
        }
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
            files::remove(&path).map_err(|error| failed(&path, error))?;
            self.known().remove(&path);
        }
        Ok(present)
    }

    fn stats(&self) -> Result<Vec<(String, u64)>, ClientError> {
        let known = self.known();
        Ok(vec![
            ("posix_blocks".to_owned(), known.len() as u64),
            ("posix_bytes".to_owned(), known.used()),
            ("posix_corrupt".to_owned(), self.corrupt.load(Ordering::Relaxed)),
        ])
    }
}
