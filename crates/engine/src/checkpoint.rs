//! Checkpoints: the index is streamed to fresh segments while writes go on.
//!
//! The log position is taken first; records after it are replayed over the checkpoint. Every record
//! holds the whole state of its chunk, so it does not matter whether the stream saw the chunk
//! before or after such a record. But records that memory shows before they are durable must be
//! durable before the checkpoint is. A caller that shows a change before it is durable (a
//! promotion, a removal) therefore queues its record before the end of the stream can pass
//! (`Inner::queueing`).
//!
//! Patches are the exception: a patch record holds the change, not the result, so replaying it
//! needs the base as it was then. So a checkpoint becomes valid only once every patch queued before
//! the stream ended is durably folded, replaced or removed (`fold`). A later patch finds the index
//! as left by the stream and the records before the patch: its base does not change in between (its
//! guard is held) and was not patched by one of those records, or it would bear their marks.

use millpond_env::{Buf, Disk};
use millpond_types::limits::PAGE_BYTES;

use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::format::checkpoint::{self, HEADER_BYTES, block_bytes};
use crate::format::codec::Writer;
use crate::format::record::{PUT_BYTES_MAX, encode_put};
use crate::format::superblock::{CHECKPOINT_SEGMENTS_MAX, LogPosition, Superblock};
use crate::index::{SHARDS, Shard};
use crate::space::Space;

/// The checkpoint being written.
struct Stream {
    id: u64,
    segments: Vec<u32>,
    /// Number of blocks written, and of entries in them.
    blocks: u32,
    entries: u64,
}

impl<D: Disk> Inner<D> {
    /// Writes a checkpoint and frees the log before it.
    pub(crate) async fn checkpoint(&self) -> Result<(), EngineError> {
        let Ok(_only) = self.checkpointing.try_lock() else { return Ok(()) };
        self.log.check()?;
        let (start, bytes) = {
            let log = self.log.0.lock();
            (log.position, log.bytes)
        };
        let id = self.superblock.lock().generation + 1;
        let mut stream = Stream { id, segments: Vec::new(), blocks: 0, entries: 0 };
        if let Err(error) = self.stream_index(&mut stream).await {
            let mut space = self.space.lock();
            stream.segments.iter().for_each(|s| space.free_segment(*s));
            return Err(error);
        }
        // If this fails, either superblock may be in force: nothing is freed, and no later flush
        // may be trusted.
        let old = match self.flip_superblock(&stream, start).await {
            Ok(old) => old,
            Err(EngineError::Io { source, .. }) => return Err(self.poison(&source)),
            Err(error) => return Err(error),
        };
        self.free_old(&old, start);
        self.log.0.lock().bytes -= bytes;
        self.metrics.checkpoints.inc();
        Ok(())
    }

    async fn stream_index(&self, stream: &mut Stream) -> Result<(), EngineError> {
        let size = block_bytes(self.segment_bytes);
        let mut cursor = Some((0, 0));
        while let Some(at) = cursor {
            let mut buf = self.pool_buf(size)?;
            let (next, entries, bytes) = self.fill_block(&mut buf, at);
            if entries > 0 {
                self.write_block(stream, buf, (entries, bytes)).await?;
            }
            cursor = next;
        }
        // A promotion is in memory before its record is durable, and moves a chunk between shards:
        // the stream may hold both of its ends, or neither. The stream may also lack a chunk whose
        // removal is not durable yet. Replaying the record corrects both, so every record that the
        // stream may have met is made durable before the checkpoint becomes valid.
        drop(self.queueing.write());
        self.barrier().await?;
        self.fold_all().await?;
        self.disk.sync().await.map_err(|e| self.poison(&e))
    }

    /// Encodes entries from the given shard and slot on until the block is full.
    ///
    /// Returns the position to continue at, the number of entries and of bytes. Holds a shard's
    /// lock for at most one block: some 3,000 entries, about 100 µs.
    fn fill_block(
        &self,
        buf: &mut Buf,
        (first, mut slot): (usize, u32),
    ) -> (Option<(usize, u32)>, u32, usize) {
        let room = buf.capacity();
        let mut entries = 0;
        let mut w = Writer::new(&mut buf.as_full_mut()[HEADER_BYTES..]);
        for at in first..SHARDS {
            let shard = self.index.shard_at(at);
            while slot < shard.slots() {
                if HEADER_BYTES + w.at() + PUT_BYTES_MAX > room {
                    return (Some((at, slot)), entries, HEADER_BYTES + w.at());
                }
                entries += u32::from(encode_slot(&shard, slot, &mut w));
                slot += 1;
            }
            slot = 0;
        }
        (None, entries, HEADER_BYTES + w.at())
    }

    async fn write_block(
        &self,
        stream: &mut Stream,
        mut buf: Buf,
        (entries, bytes): (u32, usize),
    ) -> Result<(), EngineError> {
        let size = block_bytes(self.segment_bytes);
        let per_segment = self.segment_bytes / size as u64;
        let within = u64::from(stream.blocks) % per_segment;
        if within == 0 {
            self.take_room(Space::log_lacks_room).await?;
            if stream.segments.len() >= CHECKPOINT_SEGMENTS_MAX {
                return Err(EngineError::NoSpace);
            }
            let segment = self.space.lock().alloc_segment(false).ok_or(EngineError::NoSpace)?;
            stream.segments.push(segment);
        }
        let segment = stream.segments.last().copied().unwrap_or(0);
        let offset = self.segment_offset(segment) + within * size as u64;
        checkpoint::seal(self.salt, stream.id, stream.blocks, (entries, bytes), buf.as_full_mut());
        buf.set_len(size);
        let written = self.disk.write(offset, buf.freeze()).await;
        written.map_err(|e| EngineError::io("write", offset, size, e))?;
        stream.blocks += 1;
        stream.entries += u64::from(entries);
        Ok(())
    }

    async fn flip_superblock(
        &self,
        stream: &Stream,
        start: LogPosition,
    ) -> Result<Superblock, EngineError> {
        let old = self.superblock.lock().clone();
        let new = Superblock {
            generation: old.generation + 1,
            log_start: start,
            checkpoint_id: stream.id,
            checkpoint_entries: stream.entries,
            checkpoint_blocks: stream.blocks,
            checkpoint_segments: stream.segments.clone(),
            next_version: self.versions.load(std::sync::atomic::Ordering::Relaxed),
            ..old.clone()
        };
        let mut page = self.pool_buf(PAGE_BYTES)?;
        new.encode(page.as_full_mut());
        page.set_len(PAGE_BYTES);
        let offset = new.generation % 2 * PAGE_BYTES as u64;
        let written = self.disk.write_sync(offset, page.freeze()).await;
        written.map_err(|e| EngineError::io("write", offset, PAGE_BYTES, e))?;
        *self.superblock.lock() = new;
        Ok(old)
    }

    fn free_old(&self, old: &Superblock, start: LogPosition) {
        let mut log = self.log.0.lock();
        let mut space = self.space.lock();
        old.checkpoint_segments.iter().for_each(|s| space.free_segment(*s));
        while let Some(first) = log.segments.front().copied()
            && first != start.segment
        {
            log.segments.pop_front();
            space.free_segment(first);
        }
    }
}

/// Encodes the log's state of a slot's chunk; false when the log has none.
fn encode_slot(shard: &Shard, slot: u32, w: &mut Writer<'_>) -> bool {
    if shard.live(slot).is_none() {
        return false;
    }
    match shard.hot.get(&slot).filter(|h| h.dirty) {
        // It is folded, with a record in the log, before the checkpoint becomes valid.
        Some(hot) if hot.patched().is_some() => return false,
        // Not on the disk: the log has the version before, if any.
        Some(hot) => match hot.previous() {
            Some(previous) => encode_put(previous, w),
            None => return false,
        },
        None => encode_put(&shard.record(slot), w),
    }
    true
}

impl<D: Disk> Engine<D> {
    /// Writes a checkpoint now.
    ///
    /// # Errors
    /// `Io`, `NoSpace`, `Busy`, `ReadOnly`; the previous checkpoint stays in force.
    pub async fn checkpoint(&self) -> Result<(), EngineError> {
        self.0.checkpoint().await
    }
}
