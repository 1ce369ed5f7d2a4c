//! The index in memory: 64 shards, each behind a lock held for well under a microsecond.
//!
//! Invariants: the committed state of a chunk changes only under its [`Guard`]; an entry's
//! location is reserved for it alone; a slot is not reused while an eviction queue names it.

mod entry;
mod guard;
mod queues;
mod shard;
mod sides;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use millpond_types::{ChunkId, Crc32c, GroupId, UnixSeconds};
use parking_lot::{Mutex, MutexGuard};

pub(crate) use entry::INDEX_BYTES_PER_CHUNK;
pub(crate) use entry::{Entry, Queue};
pub(crate) use guard::Guard;
pub(crate) use queues::{Queues, Turn};
pub(crate) use shard::{Removed, Shard, weight};

use crate::content::Content;
use crate::format::record::{ChunkRecord, Location};
use crate::patch::Base;
use crate::quota::Groups;

/// Shards: enough that two cores rarely meet, few enough that each holds long queues.
pub(crate) const SHARDS: usize = 64;
const SHARD_BITS: u32 = SHARDS.ilog2();

/// Information on a chunk for callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub struct ChunkInfo {
    /// Name.
    pub id: ChunkId,
    /// Version; grows with every write of any chunk on this disk.
    pub version: u64,
    /// Length in bytes.
    pub len: u32,
    /// Checksum of the whole chunk.
    pub crc: Crc32c,
    /// Owner.
    pub group: GroupId,
    /// When it expires.
    pub expires: Option<UnixSeconds>,
    /// Eviction class, 0 goes first.
    pub priority: u8,
    /// Whether it may be evicted.
    pub evictable: bool,
    /// Whether it is pinned.
    pub pinned: bool,
    /// Whether its bytes are in the DRAM tier.
    pub in_memory: bool,
    /// Whether its bytes are lost: every read of it is `Corrupt` until it is replaced.
    pub lost: bool,
}

/// Chunks and bytes of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of chunks.
    pub chunks: u64,
    /// Sum of their lengths.
    pub bytes: u64,
}

/// Bytes of a chunk in the DRAM tier.
#[derive(Debug)]
pub(crate) struct Hot {
    pub(crate) bytes: Content,
    /// Distinguishes this stay in memory from an earlier one of the same slot.
    pub(crate) ticket: u32,
    pub(crate) reads: u8,
    /// Not yet on the disk.
    pub(crate) dirty: bool,
    /// Present only while `dirty`, and boxed to keep the struct small for clean chunks.
    pub(crate) unlogged: Option<Box<Unlogged>>,
}

/// State of a chunk that the log does not have yet.
#[derive(Debug, Default)]
pub(crate) struct Unlogged {
    /// State of this id in the log; checkpoints write this instead.
    pub(crate) previous: Option<Box<ChunkRecord>>,
    /// The base, while the chunk's newest bytes are in the log alone.
    pub(crate) patched: Option<Box<Base>>,
    /// The id that the content had before its promotion, and the version that it got then.
    pub(crate) promoted_from: Option<(ChunkId, u64)>,
}

impl Hot {
    pub(crate) const fn new(bytes: Content, ticket: u32, dirty: bool) -> Self {
        Self { bytes, ticket, reads: 0, dirty, unlogged: None }
    }

    pub(crate) fn previous(&self) -> Option<&ChunkRecord> {
        self.unlogged.as_ref()?.previous.as_deref()
    }

    pub(crate) fn patched(&self) -> Option<&Base> {
        self.unlogged.as_ref()?.patched.as_deref()
    }

    pub(crate) fn promoted_from(&self) -> Option<(ChunkId, u64)> {
        self.unlogged.as_ref()?.promoted_from
    }

    pub(crate) fn unlogged_mut(&mut self) -> &mut Unlogged {
        self.unlogged.get_or_insert_default()
    }

    pub(crate) fn take_unlogged(&mut self) -> Unlogged {
        self.unlogged.take().map(|all| *all).unwrap_or_default()
    }

    /// Counts a read, up to three.
    pub(crate) fn touch(&mut self) {
        self.reads = (self.reads + 1).min(3);
    }
}

/// Bytes of the reference count of a pool buffer.
pub(crate) const SHARED_BYTES: usize = 64;
/// Memory of a chunk in memory beside its bytes: an entry of a hash table at its emptiest (7/16
/// full), two places in a queue that may be half empty, and the overhead of its buffer.
pub(crate) const HOT_BYTES_PER_CHUNK: usize =
    (size_of::<(u32, Hot)>() * 16).div_ceil(7) + 2 * 2 * size_of::<(u32, u32)>() + SHARED_BYTES;
const _: () = assert!(HOT_BYTES_PER_CHUNK <= 224);

/// Hashes chunk ids, most of which are hashes already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdHash(u64);
/// Builds [`IdHash`].
pub(crate) type IdHasher = BuildHasherDefault<IdHash>;

impl Hasher for IdHash {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = mix(self.0 ^ u64::from(*b));
        }
    }
    fn write_u128(&mut self, v: u128) {
        self.0 = hash_id(ChunkId(v));
    }
    fn write_u32(&mut self, v: u32) {
        self.0 = mix(u64::from(v) ^ self.0);
    }
}

const fn mix(v: u64) -> u64 {
    let v = (v ^ (v >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    v ^ (v >> 29)
}

#[expect(clippy::cast_possible_truncation, reason = "both halves are taken")]
pub(crate) const fn hash_id(id: ChunkId) -> u64 {
    mix(id.0 as u64).wrapping_mul(0xd6e8_feb8_6659_fd93) ^ mix((id.0 >> 64) as u64)
}

/// Index of the shard that holds a chunk.
pub(crate) fn shard_of(id: ChunkId) -> usize {
    usize::try_from(hash_id(id) >> (64 - SHARD_BITS)).unwrap_or(0)
}

/// All shards.
#[derive(Debug)]
pub(crate) struct Index {
    shards: Box<[Mutex<Shard>]>,
    /// Groups that evict among their own chunks.
    pub(crate) groups: Arc<Groups>,
}

impl Index {
    pub(crate) fn new(expected: u64) -> Arc<Self> {
        let each = usize::try_from(expected).unwrap_or(0) / SHARDS;
        // A little more than the mean, so that no shard rehashes while loading.
        let each = if each == 0 { 0 } else { each + each / 16 + 64 };
        let groups = Arc::<Groups>::default();
        let shard = |_| Mutex::new(Shard::new(each, Arc::clone(&groups)));
        Arc::new(Self { shards: (0..SHARDS).map(shard).collect(), groups })
    }

    pub(crate) fn shard(&self, id: ChunkId) -> MutexGuard<'_, Shard> {
        self.shards[shard_of(id)].lock()
    }

    /// Locks the shards of two chunks, which may be one, in the order of the shards. Nothing else
    /// locks two.
    pub(crate) fn pair(&self, from: ChunkId, to: ChunkId) -> Pair<'_> {
        let (a, b) = (shard_of(from), shard_of(to));
        if a == b {
            return Pair { from: self.shards[a].lock(), to: None };
        }
        if a < b {
            let from = self.shards[a].lock();
            return Pair { from, to: Some(self.shards[b].lock()) };
        }
        let to = self.shards[b].lock();
        Pair { from: self.shards[a].lock(), to: Some(to) }
    }

    pub(crate) fn shard_at(&self, at: usize) -> MutexGuard<'_, Shard> {
        self.shards[at].lock()
    }

    /// The committed or dirty state of a chunk.
    pub(crate) fn record(&self, id: ChunkId) -> Option<ChunkRecord> {
        let shard = self.shard(id);
        shard.find(id).map(|slot| shard.record(slot))
    }

    pub(crate) fn location(&self, id: ChunkId) -> Option<Location> {
        let shard = self.shard(id);
        shard.find(id).map(|slot| shard.entry(slot).location())
    }

    pub(crate) fn len(&self) -> u64 {
        self.shards.iter().map(|s| s.lock().len() as u64).sum()
    }

    /// Chunks in memory.
    pub(crate) fn hot_len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().hot.len()).sum()
    }

    /// Approximate memory of the index in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().memory_bytes() as u64).sum()
    }

    /// Approximate memory of the live chunks.
    pub(crate) fn live(&self) -> Live {
        self.shards.iter().fold(Live::default(), |live, shard| {
            let shard = shard.lock();
            Live {
                chunks: live.chunks + shard.len() as u64,
                bare: live.bare + shard.bare() as u64,
                hot: live.hot + shard.hot.len() as u64,
                bytes: live.bytes + shard.live_bytes() as u64,
            }
        })
    }

    pub(crate) fn usage(&self, group: GroupId) -> Usage {
        let mut sum = Usage::default();
        for shard in &self.shards {
            if let Some(u) = shard.lock().usage.get(&group) {
                sum.chunks += u.chunks;
                sum.bytes += u.bytes;
            }
        }
        sum
    }
}

/// Number of chunks, and the index memory that they take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Live {
    pub(crate) chunks: u64,
    /// Number of empty chunks of the system group.
    pub(crate) bare: u64,
    /// Number of chunks in memory.
    pub(crate) hot: u64,
    /// Bytes of memory, without the extra memory of chunks in memory.
    pub(crate) bytes: u64,
}

/// Two locked shards.
pub(crate) struct Pair<'a> {
    pub(crate) from: MutexGuard<'a, Shard>,
    to: Option<MutexGuard<'a, Shard>>,
}

impl Pair<'_> {
    pub(crate) fn to(&mut self) -> &mut Shard {
        self.to.as_mut().unwrap_or(&mut self.from)
    }
}

pub(crate) type SlotMap<V> = HashMap<u32, V, IdHasher>;
