//! `Cache|…`: a bounded stage in this process's memory before another store.

use std::sync::Arc;

use millpond_client::{ClientError, GetOutcome, Room, Value};
use millpond_env::{Mutex, MutexGuard, PerProcess};
use millpond_types::wire::{ItemStatus, Leaders};
use millpond_types::{BlockKey, ByteSize};

use crate::s3fifo::S3Fifo;
use crate::store::{Batch, BlockStore};

/// Bytes that one entry costs besides its key and value.
const ENTRY_BYTES: u64 = 96;

type Blocks = S3Fifo<Box<[u8]>, Arc<[u8]>>;

/// Keeps blocks in memory in front of `backend`. Puts go through to the backend at once; a block
/// that was read from it stays here until S3-FIFO needs its place.
#[derive(Debug)]
pub struct Cache<S> {
    backend: S,
    capacity: u64,
    /// A forked child starts with an empty cache.
    blocks: PerProcess<Mutex<Blocks>>,
    hits: std::sync::atomic::AtomicU64,
    misses: std::sync::atomic::AtomicU64,
}

fn gather(value: &Value<'_>) -> Arc<[u8]> {
    match value.pieces() {
        [piece] => Arc::from(*piece),
        pieces => pieces.concat().into(),
    }
}

/// Copies `bytes` to a room that is long enough.
fn scatter(mut bytes: &[u8], room: &mut Room<'_>) {
    let mut copy = |piece: &mut [u8]| {
        let (here, rest) = bytes.split_at(piece.len().min(bytes.len()));
        piece[..here.len()].copy_from_slice(here);
        bytes = rest;
    };
    match room {
        Room::One(piece) => copy(piece),
        Room::Many(pieces) => pieces.iter_mut().for_each(|piece| copy(piece)),
    }
}

/// The first `len` bytes of a room, copied.
fn copy_of(room: &Room<'_>, len: usize) -> Arc<[u8]> {
    match room {
        Room::One(piece) => Arc::from(&piece[..len]),
        Room::Many(pieces) => {
            let mut bytes = Vec::with_capacity(len);
            for piece in pieces {
                let here = piece.len().min(len - bytes.len());
                bytes.extend_from_slice(&piece[..here]);
            }
            bytes.into()
        }
    }
}

/// The room's memory, borrowed again.
fn again<'a>(room: &'a mut Room<'_>) -> Room<'a> {
    match room {
        Room::One(piece) => Room::One(piece),
        Room::Many(pieces) => Room::Many(pieces.iter_mut().map(|piece| &mut **piece).collect()),
    }
}

/// The leaders of some keys of a batch. `Runs` counts from the batch's start, so it cannot be kept
/// for a part; the caller then requests the whole batch.
fn leaders_of(leaders: &Leaders, indexes: &[usize]) -> Option<Leaders> {
    match leaders {
        Leaders::Own => Some(Leaders::Own),
        Leaders::Each(all) => Some(Leaders::Each(indexes.iter().map(|i| all[*i]).collect())),
        Leaders::Runs => None,
    }
}

impl<S: BlockStore> Cache<S> {
    /// A stage of at most `capacity` in front of `backend`.
    pub fn new(backend: S, capacity: ByteSize) -> Self {
        Self {
            backend,
            capacity: capacity.0,
            blocks: PerProcess::empty(),
            hits: 0.into(),
            misses: 0.into(),
        }
    }

    /// The backend.
    pub const fn backend(&self) -> &S {
        &self.backend
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.get_or(|| Mutex::new(S3Fifo::new(self.capacity))).lock()
    }

    fn keep(&self, key: &BlockKey, value: Arc<[u8]>) {
        let bytes = key.as_bytes().len() as u64 + value.len() as u64 + ENTRY_BYTES;
        drop(self.blocks().insert(key.as_bytes().into(), value, bytes));
    }

    fn count(&self, hits: usize, misses: usize) {
        use std::sync::atomic::Ordering::Relaxed;
        self.hits.fetch_add(hits as u64, Relaxed);
        self.misses.fetch_add(misses as u64, Relaxed);
    }

    /// Serves cached keys. Returns the indexes of the rest.
    fn serve(
        &self,
        keys: &[BlockKey],
        rooms: &mut [Room<'_>],
        out: &mut [GetOutcome],
    ) -> Vec<usize> {
        let mut rest = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            // The lock is not held while bytes are copied.
            let Some(value) = self.blocks().get(key.as_bytes()).cloned() else {
                rest.push(index);
                continue;
            };
            let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
            out[index] = if value.len() > rooms[index].len() {
                GetOutcome::TooLong(len)
            } else {
                scatter(&value, &mut rooms[index]);
                GetOutcome::Read(len)
            };
        }
        rest
    }
}

impl<S: BlockStore> BlockStore for Cache<S> {
    fn put(&self, batch: Batch<'_>, values: &[Value<'_>]) -> Result<Vec<ItemStatus>, ClientError> {
        let statuses = self.backend.put(batch, values)?;
        for ((key, value), status) in batch.keys.iter().zip(values).zip(&statuses) {
            // A value that was not the first one must not shadow the first one.
            if *status == ItemStatus::Ok {
                self.keep(key, gather(value));
            }
        }
        Ok(statuses)
    }

    fn get(
        &self,
        batch: Batch<'_>,
        rooms: &mut [Room<'_>],
    ) -> Result<Vec<GetOutcome>, ClientError> {
        if rooms.len() != batch.keys.len() {
            return self.backend.get(batch, rooms);
        }
        let mut out = vec![GetOutcome::Miss; rooms.len()];
        let mut rest = self.serve(batch.keys, rooms, &mut out);
        self.count(rooms.len() - rest.len(), rest.len());
        if rest.is_empty() {
            return Ok(out);
        }
        let leaders = leaders_of(batch.leaders, &rest).unwrap_or_else(|| {
            rest = (0..rooms.len()).collect();
            Leaders::Runs
        });
        let keys: Vec<BlockKey> = rest.iter().map(|index| batch.keys[*index]).collect();
        let mut wanted = rest.iter().peekable();
        let mut rest_rooms: Vec<Room<'_>> = rooms
            .iter_mut()
            .enumerate()
            .filter(|(index, _)| wanted.next_if(|next| *next == index).is_some())
            .map(|(_, room)| again(room))
            .collect();
        let below = Batch { keys: &keys, leaders: &leaders, deadline: batch.deadline };
        let got = self.backend.get(below, &mut rest_rooms)?;
        for ((index, outcome), room) in rest.iter().zip(got).zip(&rest_rooms) {
            out[*index] = outcome;
            if let GetOutcome::Read(len) = outcome {
                self.keep(&batch.keys[*index], copy_of(room, len as usize));
            }
        }
        Ok(out)
    }

    fn contains(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        let here: Vec<bool> = {
            let blocks = self.blocks();
            batch.keys.iter().map(|key| blocks.contains(key.as_bytes())).collect()
        };
        if here.iter().all(|present| *present) {
            return Ok(here);
        }
        let below = self.backend.contains(batch)?;
        Ok(here.into_iter().zip(below).map(|(here, below)| here || below).collect())
    }

    fn match_prefix(&self, batch: Batch<'_>, lease_ms: u32) -> Result<usize, ClientError> {
        let here = {
            let blocks = self.blocks();
            batch.keys.iter().take_while(|key| blocks.contains(key.as_bytes())).count()
        };
        // Cached blocks may be evicted before they are read, so the backend must lease them too.
        if here == batch.keys.len() && lease_ms == 0 {
            return Ok(here);
        }
        Ok(self.backend.match_prefix(batch, lease_ms)?.max(here))
    }

    fn touch(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        // Writes go through, so the backend has all cached blocks, and its order of eviction is the
        // relevant one.
        self.backend.touch(batch)
    }

    fn delete(&self, batch: Batch<'_>) -> Result<Vec<bool>, ClientError> {
        for key in batch.keys {
            self.blocks().remove(key.as_bytes());
        }
        self.backend.delete(batch)
    }

    fn stats(&self) -> Result<Vec<(String, u64)>, ClientError> {
        use std::sync::atomic::Ordering::Relaxed;
        let mut stats = self.backend.stats()?;
        let blocks = self.blocks();
        stats.extend([
            ("cache_hits".to_owned(), self.hits.load(Relaxed)),
            ("cache_misses".to_owned(), self.misses.load(Relaxed)),
            ("cache_blocks".to_owned(), blocks.len() as u64),
            ("cache_bytes".to_owned(), blocks.used()),
        ]);
        Ok(stats)
    }
}
