//! A model of the engine over a disk that loses unsynced changes.
//!
//! Changes become visible to operations at once or when they end, and are appended to a log. A sync
//! makes a prefix of the log durable; a crash keeps the durable part and a prefix of the rest (the
//! engine's log ends at its first torn record). Damaged bytes are never returned: the engine
//! compares checksums on every read.

use std::collections::{BTreeMap, VecDeque};

use millpond_chain::{
    Content, Meta, Payload, ReadOp, StageRequest, StoreAnswer, StoreError, StoreOp, Write,
};
use millpond_types::cluster::{ChainVersion, ChunkVersion};
use millpond_types::{Ack, ChunkId};

use crate::bytes::Bytes;
use crate::rng::Rng;

/// One version of a chunk on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) meta: Meta,
    pub(crate) bytes: Option<Bytes>,
    pub(crate) rotten: bool,
    /// Whether the disk knows that it has no bytes of it; it is `rotten` then.
    pub(crate) lost: bool,
}

impl Stored {
    /// Whether it is a copy for other replicas.
    pub(crate) fn is_good(&self) -> bool {
        !self.rotten && self.meta.data().is_some()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) committed: Option<Stored>,
    pub(crate) staged: Option<Stored>,
}

#[derive(Clone, Debug)]
enum Change {
    Stage(ChunkId, Stored),
    Put(ChunkId, Stored),
    Commit(ChunkId, ChunkVersion),
    Remove(ChunkId),
    Unstage(ChunkId),
    DiscardStaged,
    Restore(ChunkId, Stored),
    Save(ChainVersion),
}

#[derive(Clone, Debug, Default)]
struct Image {
    chunks: BTreeMap<ChunkId, Entry>,
    saved: ChainVersion,
}

impl Image {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Stage(chunk, stored) => {
                self.chunks.entry(*chunk).or_default().staged = Some(stored.clone());
            }
            Change::Put(chunk, stored) => {
                self.chunks.entry(*chunk).or_default().committed = Some(stored.clone());
            }
            Change::Commit(chunk, version) => {
                let Some(entry) = self.chunks.get_mut(chunk) else { return };
                if let Some(staged) = entry.staged.take_if(|s| s.meta.version == *version) {
                    entry.committed = Some(staged);
                }
            }
            Change::Remove(chunk) => {
                self.chunks.remove(chunk);
            }
            Change::Unstage(chunk) => {
                if let Some(entry) = self.chunks.get_mut(chunk) {
                    entry.staged = None;
                }
            }
            Change::DiscardStaged => {
                for entry in self.chunks.values_mut() {
                    entry.staged = None;
                }
            }
            Change::Restore(chunk, stored) => {
                let Some(entry) = self.chunks.get_mut(chunk) else { return };
                if entry.committed.as_ref().is_some_and(|c| c.meta == stored.meta) {
                    entry.committed = Some(stored.clone());
                }
            }
            Change::Save(version) => self.saved = *version,
        }
        self.chunks.retain(|_, entry| entry.committed.is_some() || entry.staged.is_some());
    }
}

/// The store of one target.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    now: Image,
    durable: Image,
    log: VecDeque<Change>,
    /// Number of changes taken from the front of `log` since the last crash.
    synced: u64,
    /// Bytes that fit; `None` for unlimited.
    pub(crate) capacity: Option<usize>,
    pub(crate) failing: bool,
    pub(crate) slow: bool,
}

/// A store operation without its answer yet.
#[derive(Clone, Debug)]
pub(crate) enum Begun {
    /// The operation is not executed yet.
    Later(StoreOp<Bytes>),
    /// The change is made; if it must be durable, the answer waits for a sync of the log up to
    /// here.
    Applied(Result<StoreAnswer<Bytes>, StoreError>, Option<u64>),
}

impl Disk {
    pub(crate) fn new() -> Self {
        Self {
            now: Image::default(),
            durable: Image::default(),
            log: VecDeque::new(),
            synced: 0,
            capacity: None,
            failing: false,
            slow: false,
        }
    }

    /// The disk as another target of the same chain finds it, which never acted on any version.
    pub(crate) fn inherited(mut self) -> Self {
        self.change(Change::Save(ChainVersion(0)));
        self.sync(self.synced + self.log.len() as u64);
        self
    }

    pub(crate) const fn saved(&self) -> ChainVersion {
        self.now.saved
    }

    pub(crate) const fn chunks(&self) -> &BTreeMap<ChunkId, Entry> {
        &self.now.chunks
    }

    pub(crate) fn used(&self) -> usize {
        let bytes = |stored: &Option<Stored>| {
            stored.as_ref().and_then(|s| s.bytes.as_ref()).map_or(0, Payload::len)
        };
        self.now.chunks.values().map(|e| bytes(&e.committed) + bytes(&e.staged)).sum()
    }

    /// Whether there is room for more updates than are in flight.
    pub(crate) fn room(&self) -> bool {
        self.capacity.is_none_or(|capacity| self.used() + 64 <= capacity)
    }

    /// Starts an operation; some change the state at once, some at the end.
    pub(crate) fn begin(&mut self, op: StoreOp<Bytes>, rng: &mut Rng) -> Begun {
        let puts = matches!(op, StoreOp::Put(_));
        let changes = puts || matches!(op, StoreOp::Stage(_));
        if changes && rng.permille(500) {
            let (answer, mut sync) = self.perform(op);
            // A version put in place becomes visible once it has the requested durability, and is
            // answered later.
            if let Some(position) = sync.take_if(|_| puts) {
                self.sync(position);
            }
            return Begun::Applied(answer, sync);
        }
        Begun::Later(op)
    }

    /// Ends an operation; its change is durable if requested.
    pub(crate) fn end(&mut self, begun: Begun) -> Result<StoreAnswer<Bytes>, StoreError> {
        if self.failing {
            return Err(StoreError::Io);
        }
        let (answer, sync) = match begun {
            Begun::Later(op) => self.perform(op),
            Begun::Applied(answer, sync) => (answer, sync),
        };
        if let Some(position) = sync {
            self.sync(position);
        }
        answer
    }

    fn change(&mut self, change: Change) -> u64 {
        self.now.apply(&change);
        self.log.push_back(change);
        self.synced + self.log.len() as u64
    }

    fn sync(&mut self, position: u64) {
        while self.synced < position {
            let Some(change) = self.log.pop_front() else { return };
            self.durable.apply(&change);
            self.synced += 1;
        }
    }

    pub(crate) fn commit(&mut self, chunk: ChunkId, version: ChunkVersion) {
        self.change(Change::Commit(chunk, version));
    }

    pub(crate) fn remove(&mut self, chunk: ChunkId) {
        self.change(Change::Remove(chunk));
    }

    pub(crate) fn unstage(&mut self, chunk: ChunkId) {
        self.change(Change::Unstage(chunk));
    }

    fn perform(
        &mut self,
        op: StoreOp<Bytes>,
    ) -> (Result<StoreAnswer<Bytes>, StoreError>, Option<u64>) {
        let end = self.synced + self.log.len() as u64;
        match op {
            StoreOp::Lookup(chunk) => {
                let found = self.committed(chunk);
                let answer = match found.filter(|stored| stored.lost) {
                    Some(lost) => StoreAnswer::Lost(lost.meta),
                    None => StoreAnswer::Entry(found.map(|stored| stored.meta)),
                };
                (Ok(answer), None)
            }
            StoreOp::Label(chunk) => {
                let label = |stored: &Stored| (stored.meta, Some(Bytes::new(&[])));
                (Ok(StoreAnswer::Bytes(self.committed(chunk).map(label))), None)
            }
            StoreOp::StageLost(chunk, meta, label) => {
                let stored = Stored { meta, bytes: Some(label), rotten: true, lost: true };
                let position = self.change(Change::Stage(chunk, stored));
                (Ok(StoreAnswer::Staged(meta.content)), Some(position))
            }
            StoreOp::Stage(request) => self.write(&request, Change::Stage),
            StoreOp::Put(request) => {
                assert!(self.committed(request.chunk).is_none(), "it replaces nothing");
                self.write(&request, Change::Put)
            }
            StoreOp::Restore(chunk, meta, bytes) => {
                let stored = Stored { meta, bytes: Some(bytes), rotten: false, lost: false };
                let position = self.change(Change::Restore(chunk, stored));
                (Ok(StoreAnswer::Done), Some(position))
            }
            StoreOp::Read(read) => (self.read(read), None),
            StoreOp::List { after, until, max } => (Ok(self.list(after, until, max)), None),
            StoreOp::ListLost(after, max) => (Ok(self.lost(after, max)), None),
            StoreOp::ListTombstones(after, max) => (Ok(self.tombstones(after, max)), None),
            StoreOp::ListStaged => {
                let staged = |(chunk, entry): (&ChunkId, &Entry)| {
                    entry.staged.as_ref().map(|stored| (*chunk, stored.meta))
                };
                let items = self.now.chunks.iter().filter_map(staged).collect();
                (Ok(StoreAnswer::Page { items, complete: true }), None)
            }
            StoreOp::DiscardStaged => {
                let position = self.change(Change::DiscardStaged);
                (Ok(StoreAnswer::Done), Some(position))
            }
            StoreOp::Sync => (Ok(StoreAnswer::Done), Some(end)),
            StoreOp::SaveVersion(version) => {
                let position = self.change(Change::Save(version));
                (Ok(StoreAnswer::Done), Some(position))
            }
        }
    }

    fn committed(&self, chunk: ChunkId) -> Option<&Stored> {
        self.now.chunks.get(&chunk).and_then(|entry| entry.committed.as_ref())
    }

    fn write(
        &mut self,
        request: &StageRequest<Bytes>,
        change: impl FnOnce(ChunkId, Stored) -> Change,
    ) -> (Result<StoreAnswer<Bytes>, StoreError>, Option<u64>) {
        let stored = match self.stored(request) {
            Ok(stored) => stored,
            Err(why) => return (Err(why), None),
        };
        let content = stored.meta.content;
        let position = self.change(change(request.chunk, stored));
        let durable = request.durability == Ack::Disk;
        (Ok(StoreAnswer::Staged(content)), durable.then_some(position))
    }

    /// The version that a request makes.
    fn stored(&self, request: &StageRequest<Bytes>) -> Result<Stored, StoreError> {
        let base = self.committed(request.chunk);
        let needs_base = matches!(request.write, Write::Part { .. } | Write::Truncate { .. });
        if needs_base && base.is_some_and(|stored| stored.rotten) {
            return Err(StoreError::Corrupt);
        }
        let old = base.and_then(|stored| stored.bytes.as_ref()).map_or(&[][..], Bytes::as_slice);
        let bytes = written(old, &request.write);
        let len = bytes.as_ref().map_or(0, Payload::len);
        if self.capacity.is_some_and(|capacity| len > 0 && self.used() + len > capacity) {
            return Err(StoreError::NoSpace);
        }
        let content = bytes.as_ref().map_or(Content::Tombstone, |bytes| Content::Data {
            len: u32::try_from(bytes.len()).expect("chunks are small"),
            crc: bytes.crc(),
        });
        let StageRequest { version, written, tag, .. } = *request;
        let meta = Meta { version, written, content, tag };
        Ok(Stored { meta, bytes, rotten: false, lost: false })
    }

    fn read(&self, read: ReadOp) -> Result<StoreAnswer<Bytes>, StoreError> {
        let Some(entry) = self.now.chunks.get(&read.chunk) else {
            return Ok(StoreAnswer::Bytes(None));
        };
        let staged = entry.staged.as_ref().filter(|s| Some(s.meta.version) == read.version);
        let Some(stored) = staged.or(entry.committed.as_ref()) else {
            return Ok(StoreAnswer::Bytes(None));
        };
        if stored.rotten {
            return Err(StoreError::Corrupt);
        }
        let part = stored.bytes.as_ref().map(|bytes| {
            let all = bytes.as_slice();
            let from = (read.offset as usize).min(all.len());
            let to = from.saturating_add(read.len as usize).min(all.len());
            Bytes::new(&all[from..to])
        });
        Ok(StoreAnswer::Bytes(Some((stored.meta, part))))
    }

    fn list(
        &self,
        after: Option<ChunkId>,
        until: Option<ChunkId>,
        max: usize,
    ) -> StoreAnswer<Bytes> {
        let in_range =
            |chunk: &ChunkId| after.is_none_or(|a| *chunk > a) && until.is_none_or(|u| *chunk <= u);
        let found = self.now.chunks.iter().filter(|(chunk, _)| in_range(chunk));
        let metas =
            found.filter_map(|(chunk, e)| e.committed.as_ref().map(|stored| (*chunk, stored.meta)));
        page(metas, max)
    }

    fn lost(&self, after: Option<ChunkId>, max: usize) -> StoreAnswer<Bytes> {
        let found = self.now.chunks.iter().filter(|(chunk, _)| after.is_none_or(|a| **chunk > a));
        let metas = found.filter_map(|(chunk, entry)| {
            let lost = entry.committed.as_ref().filter(|stored| stored.lost)?;
            Some((*chunk, lost.meta))
        });
        page(metas, max)
    }

    fn tombstones(&self, after: Option<ChunkId>, max: usize) -> StoreAnswer<Bytes> {
        let found = self.now.chunks.iter().filter(|(chunk, _)| after.is_none_or(|a| **chunk > a));
        let metas = found.filter_map(|(chunk, entry)| {
            let meta = entry.committed.as_ref().map(|stored| stored.meta)?;
            meta.data().is_none().then_some((*chunk, meta))
        });
        page(metas, max)
    }

    /// Crashes the process or the power: a prefix of the unsynced changes survives.
    pub(crate) fn crash(&mut self, rng: &mut Rng) {
        let keep = if rng.permille(500) { 0 } else { rng.below(self.log.len() as u64 + 1) };
        self.sync(self.synced + keep);
        self.log.clear();
        self.now = self.durable.clone();
    }

    /// Damages the committed bytes of a chunk; false when there are none.
    pub(crate) fn rot(&mut self, chunk: ChunkId) -> bool {
        let Some(stored) = self.committed(chunk) else { return false };
        if stored.bytes.as_ref().is_none_or(Payload::is_empty) {
            return false;
        }
        let meta = stored.meta;
        for image in [&mut self.now, &mut self.durable] {
            let entry = image.chunks.get_mut(&chunk).and_then(|e| e.committed.as_mut());
            if let Some(stored) = entry.filter(|stored| stored.meta == meta) {
                stored.rotten = true;
            }
        }
        true
    }
}

/// Result of a write over `old`; `None` is a tombstone.
fn written(old: &[u8], write: &Write<Bytes>) -> Option<Bytes> {
    match write {
        Write::Whole(bytes) => Some(bytes.clone()),
        Write::Part { offset, bytes } => {
            let (from, to) = (*offset as usize, *offset as usize + bytes.len());
            let mut all = old.to_vec();
            all.resize(all.len().max(to), 0);
            all[from..to].copy_from_slice(bytes.as_slice());
            Some(Bytes::new(&all))
        }
        Write::Truncate { len } => {
            let mut all = old.to_vec();
            all.resize(*len as usize, 0);
            Some(Bytes::new(&all))
        }
        Write::Tombstone | Write::Collect => None,
    }
}

fn page(metas: impl Iterator<Item = (ChunkId, Meta)>, max: usize) -> StoreAnswer<Bytes> {
    let mut items: Vec<(ChunkId, Meta)> = metas.take(max + 1).collect();
    let complete = items.len() <= max;
    items.truncate(max);
    StoreAnswer::Page { items, complete }
}
