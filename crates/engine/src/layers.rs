//! Patches at a restart: replay collects the log's patches in layers, and open folds them before
//! the first read.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use millpond_env::{BufferPool, Disk, SharedBuf};
use millpond_types::{ChunkId, Crc32c};

use crate::engine::{Engine, Reserved};
use crate::error::{EngineError, FormatError};
use crate::format::class::Class;
use crate::format::record::{ChunkRecord, Location, PatchRecord, Record};
use crate::format::superblock::{DATA_START, Superblock};
use crate::index::Index;
use crate::space::Space;

/// Slabs tried for a folded chunk: bad places are independent of each other.
const FOLD_ATTEMPTS: usize = 4;

/// A part over the bytes below.
#[derive(Clone, Debug)]
struct Layer {
    offset: usize,
    bytes: Arc<[u8]>,
    /// Length of the chunk with this layer.
    len: usize,
}

/// A chunk whose newest bytes are in the log.
#[derive(Clone, Debug)]
pub(crate) struct Layered {
    /// The chunk's record; its place is not written.
    pub(crate) record: ChunkRecord,
    /// The base. `None` when the replay begins after the record of the base; a later record then
    /// replaces the chunk, as no checkpoint begins after a patch that is in force.
    below: Option<ChunkRecord>,
    layers: Vec<Layer>,
    /// Its place, once that is claimed.
    place: Option<Location>,
}

/// State of one chunk according to the log.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// Its bytes are where the record says.
    Plain(ChunkRecord),
    /// Its bytes are patches over those of a slab.
    Patched(Layered),
}

/// Chunks with patches, while the log is replayed. They are not in the index.
#[derive(Debug, Default)]
pub(crate) struct Patched(pub(crate) BTreeMap<ChunkId, Layered>);

impl Patched {
    /// State of a chunk so far.
    pub(crate) fn state(&self, index: &Index, id: ChunkId) -> Option<State> {
        match self.0.get(&id) {
            Some(layered) => Some(State::Patched(layered.clone())),
            None => index.record(id).map(State::Plain),
        }
    }

    /// Applies a patch; the caller has removed the previous state of the patched chunk from the
    /// index.
    pub(crate) fn patch(&mut self, index: &Index, patch: PatchRecord) {
        let PatchRecord { base, base_version, offset, bytes, to } = patch;
        let layer = Layer { offset: offset as usize, bytes, len: to.len as usize };
        let (below, mut layers) = match self.state(index, base) {
            Some(State::Plain(c)) if c.version == base_version => (Some(c), Vec::new()),
            Some(State::Patched(l)) if l.record.version == base_version => (l.below, l.layers),
            _ => (None, Vec::new()),
        };
        layers.push(layer);
        self.0.insert(to.id, Layered { record: to, below, layers, place: None });
    }

    /// Renames a patched chunk; the caller has removed the new name from the index.
    pub(crate) fn rename(&mut self, from: ChunkId, to: ChunkRecord) {
        let (below, layers) = match self.0.remove(&from) {
            Some(layered) => (layered.below, layered.layers),
            None => (None, Vec::new()),
        };
        self.0.insert(to.id, Layered { record: to, below, layers, place: None });
    }

    /// The slabs below patches, and the bytes in them.
    pub(crate) fn below(&self) -> HashMap<Location, u32> {
        let below = self.0.values().filter_map(|layered| layered.below.as_ref());
        below.map(|c| (c.location, c.len)).collect()
    }

    /// Claims for each chunk its reserved slab, so that folding needs no room on a full disk. All
    /// other used slabs are claimed already.
    pub(crate) fn claim_places(&mut self, space: &mut Space, segment_bytes: u64) {
        for layered in self.0.values_mut() {
            let (at, len) = (layered.record.location, u64::from(layered.record.len));
            let class = Class::from_index(usize::from(at.class));
            let fits = class.is_some_and(|class| {
                len > 0
                    && class.slab_bytes() >= len
                    && at.slab < class.slabs_per_segment(segment_bytes)
            });
            layered.place = (fits && space.claim(at)).then_some(at);
        }
    }
}

impl Layered {
    /// Whether the base is known. After a replay it is for every chunk, unless the disk is damaged.
    pub(crate) fn has_base(&self) -> bool {
        self.below.is_some()
    }

    /// The chunk's bytes, and whether they match its checksum; `None` without a base.
    pub(crate) async fn bytes<D: Disk>(
        &self,
        disk: &D,
        pool: &BufferPool,
        sb: &Superblock,
    ) -> Result<Option<(SharedBuf, bool)>, EngineError> {
        let Some(below) = &self.below else { return Ok(None) };
        let old = Self::read_below(below, disk, pool, sb).await?;
        let sound = crate::read::matches(&old, &below.pieces, below.crc);
        let len = self.record.len as usize;
        let most = self.layers.iter().map(|l| l.len).max().unwrap_or(0).max(old.len()).max(len);
        let busy = EngineError::Busy("no memory buffer is free");
        let mut buf = pool.try_alloc(most).ok_or(busy)?;
        let all = buf.as_full_mut();
        all[..old.len()].copy_from_slice(&old);
        all[old.len()..].fill(0);
        for layer in &self.layers {
            all[layer.offset..layer.offset + layer.bytes.len()].copy_from_slice(&layer.bytes);
        }
        buf.set_len(len);
        let bytes = buf.freeze();
        let sound = sound && Crc32c::of(&bytes) == self.record.crc;
        Ok(Some((bytes, sound)))
    }

    async fn read_below<D: Disk>(
        below: &ChunkRecord,
        disk: &D,
        pool: &BufferPool,
        sb: &Superblock,
    ) -> Result<SharedBuf, EngineError> {
        let at = below.location;
        let slab_bytes = Class::from_index(usize::from(at.class)).map_or(0, Class::slab_bytes);
        let within = u64::from(at.slab) * slab_bytes;
        if at.segment >= sb.segments() || within + slab_bytes > sb.segment_bytes {
            return Err(FormatError::Index { segment: at.segment, slab: at.slab }.into());
        }
        let offset = DATA_START + u64::from(at.segment) * sb.segment_bytes + within;
        crate::recover::read_at(disk, pool, offset, below.len as usize).await
    }
}

impl<D: Disk> Engine<D> {
    /// Writes every patched chunk to a slab of its own and puts it into the index.
    ///
    /// Chunks in `first` are written first. The caller must log the returned records before
    /// anything else; after that, the slabs below may be freed.
    ///
    /// Two flushes enclose the writes. Before the first one, the log's end may only be in the
    /// disk's cache: a power loss could then bring a freed slab back, with the bytes written to it
    /// here. Before the second one, the new slabs may only be in the cache. A record of a chunk in
    /// `first` follows the torn record that it repairs: a crash that kept the new record without
    /// its bytes would leave the torn one, which no restart would check any more.
    pub(crate) async fn fold_recovered(
        &self,
        mut patched: Patched,
        first: &[ChunkId],
    ) -> Result<Vec<Record>, EngineError> {
        if patched.0.is_empty() {
            return Ok(Vec::new());
        }
        let inner = &self.0;
        let flush = async || inner.disk.sync().await.map_err(|e| EngineError::io("flush", 0, 0, e));
        flush().await?;
        let sb = self.superblock();
        let mut records = Vec::new();
        let others: Vec<ChunkId> = patched.0.keys().copied().collect();
        for id in first.iter().chain(&others) {
            let Some(layered) = patched.0.remove(id) else { continue };
            let bytes = self.bytes_to_fold(*id, &layered, &sb).await?;
            let location = self.write_folded(&layered, bytes).await?;
            let record = ChunkRecord { location, ..layered.record };
            inner.index.shard(*id).insert(&record);
            inner.metrics.folds.inc();
            records.push(Record::Put(record));
        }
        flush().await?;
        Ok(records)
    }

    /// Bytes of a patched chunk, sound or not; `None` when they cannot be read.
    async fn bytes_to_fold(
        &self,
        id: ChunkId,
        layered: &Layered,
        sb: &Superblock,
    ) -> Result<Option<SharedBuf>, EngineError> {
        let inner = &self.0;
        let mut read = layered.bytes(&inner.disk, &inner.pool, sb).await;
        if read.as_ref().is_err_and(EngineError::is_unreadable) {
            // A transient error passes, and bytes given up here are lost.
            read = layered.bytes(&inner.disk, &inner.pool, sb).await;
        }
        let bytes = match read {
            Err(error) if error.is_unreadable() => {
                inner.blame_place(error).await?;
                None
            }
            read => read?,
        };
        if !bytes.as_ref().is_some_and(|(_, sound)| *sound) {
            // It is kept as a damaged chunk: readers get an error, and other replicas may repair
            // it.
            tracing::error!(chunk = %id, "the base below the patches of a chunk is damaged");
        }
        Ok(bytes.map(|(bytes, _)| bytes))
    }

    /// Writes a patched chunk to its claimed slab, or elsewhere when that is bad; returns its
    /// place.
    async fn write_folded(
        &self,
        layered: &Layered,
        bytes: Option<SharedBuf>,
    ) -> Result<Location, EngineError> {
        let inner = &self.0;
        let (mut kept, mut failed) = (layered.place, EngineError::NoSpace);
        for _ in 0..FOLD_ATTEMPTS {
            let other = || inner.space.lock().alloc(u64::from(layered.record.len));
            let Some(at) = kept.take().or_else(other) else { break };
            let mut slab = Reserved::new(inner, at);
            let Some(bytes) = &bytes else { return Ok(slab.keep()) };
            match inner.write_slab(&mut slab, bytes.clone()).await {
                Ok(()) => return Ok(slab.keep()),
                // The slab stays unused for a while: it is dropped like one with an undecided
                // write.
                Err(error @ EngineError::Io { .. }) => {
                    tracing::error!(%error, chunk = %layered.record.id,
                        "a fold is retried at another place");
                    failed = error;
                }
                Err(error) => return Err(error),
            }
        }
        Err(failed)
    }
}

#[cfg(test)]
mod tests {
    use millpond_env::disk::block_on;

    use super::*;
    use crate::commit::tests::engine;
    use crate::error::ErrorKind;
    use crate::format::record::tests::patch;

    /// This code never writes such a disk; a damaged disk may look so.
    #[test]
    fn a_chunk_whose_base_is_gone_is_shown_as_damaged() {
        let engine = engine(14 << 20);
        let mut patched = Patched::default();
        let mut record = patch(0, 100);
        (record.to.evictable, record.to.expires) = (false, 0);
        let id = record.to.id;
        patched.patch(&engine.0.index, record.clone());
        let to = ChunkRecord { id: ChunkId(77), ..record.to };
        patched.rename(id, to);
        assert!(patched.0.values().all(|layered| !layered.has_base()));
        let records = block_on(engine.fold_recovered(patched, &[id, ChunkId(77)])).unwrap();
        assert!(matches!(&records[..], [Record::Put(c)] if c.id == ChunkId(77)));
        let error = block_on(engine.read(ChunkId(77))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}
