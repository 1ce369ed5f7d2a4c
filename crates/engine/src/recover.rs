//! Formatting and opening: superblock, checkpoint, log, and the undecided last flush.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures_util::future::join_all;
use millpond_env::{BufferPool, Clock, Disk, SharedBuf};
use millpond_types::ChunkId;
use millpond_types::limits::PAGE_BYTES;
use millpond_types::metrics::Gauge;
use parking_lot::{Mutex, RwLock};

use crate::engine::{Engine, Inner};
use crate::error::{EngineError, FormatError};
use crate::format::batch::{self, BATCH_BYTES_MAX, BatchHeader};
use crate::format::checkpoint::{self, block_bytes};
use crate::format::record::{ChunkRecord, Location, Record};
use crate::format::superblock::{
    DATA_START, FORMAT_VERSION, LogPosition, SEGMENTS_MAX, Superblock,
};
use crate::index::{Index, SHARDS};
use crate::layers::{Patched, State};
use crate::log::Log;
use crate::metrics::EngineMetrics;
use crate::options::{CHECKPOINT_LOG_BYTES_MIN, EngineOptions, FormatOptions};
use crate::prepare::write_zeros;
use crate::promote::Promoted;
use crate::shares::Shares;
use crate::space::{Readers, Space};

/// Smallest number of segments: with fewer, log and checkpoint leave no room for data.
const SEGMENTS_MIN: u64 = 6;
/// An id that no chunk has; deleting it is a record without effect.
pub(crate) const NOBODY: ChunkId = ChunkId(u128::MAX);
/// Writes in flight while a disk is formatted; the node waits for them.
const FORMAT_WRITES: usize = 8;
/// Checkpoint blocks read at once on a restart.
const READ_AHEAD: u32 = 8;

/// Reads a range into a pool buffer.
pub(crate) async fn read_at<D: Disk>(
    disk: &D,
    pool: &BufferPool,
    offset: u64,
    len: usize,
) -> Result<SharedBuf, EngineError> {
    let mut buf = pool.try_alloc(len).ok_or(EngineError::Busy("no memory buffer is free"))?;
    buf.set_len(len);
    let (buf, result) = disk.read(offset, buf).await;
    result.map_err(|e| EngineError::io("read", offset, len, e))?;
    Ok(buf.freeze())
}

/// The superblock in force.
pub(crate) async fn read_superblock<D: Disk>(
    disk: &D,
    pool: &BufferPool,
) -> Result<Superblock, EngineError> {
    if disk.capacity() < DATA_START {
        return Err(FormatError::NotMillpond.into());
    }
    let both = read_at(disk, pool, 0, 2 * PAGE_BYTES).await?;
    let a = Superblock::decode(&both[..PAGE_BYTES]);
    let b = Superblock::decode(&both[PAGE_BYTES..]);
    let sb = match (a, b) {
        (Ok(a), Ok(b)) => Ok(if a.generation > b.generation { a } else { b }),
        (Ok(s), Err(FormatError::Newer { .. })) | (Err(FormatError::Newer { .. }), Ok(s)) => {
            // A newer release has written since: its copy is the valid one.
            let known = FORMAT_VERSION;
            drop(s);
            Err(FormatError::Newer { found: known + 1, known })
        }
        (Ok(s), Err(_)) | (Err(_), Ok(s)) => Ok(s),
        (Err(FormatError::NotMillpond), Err(e)) | (Err(e), Err(_)) => Err(e),
    }?;
    if sb.capacity > disk.capacity() {
        let (expected, found) = (sb.capacity, disk.capacity());
        return Err(FormatError::Truncated { expected, found }.into());
    }
    Ok(sb)
}

/// Writes a superblock to its place, without a flush.
async fn write_superblock<D: Disk>(
    disk: &D,
    pool: &BufferPool,
    sb: &Superblock,
) -> Result<(), EngineError> {
    let busy = EngineError::Busy("no memory buffer is free");
    let mut page = pool.try_alloc(PAGE_BYTES).ok_or(busy)?;
    sb.encode(page.as_full_mut());
    page.set_len(PAGE_BYTES);
    let offset = sb.generation % 2 * PAGE_BYTES as u64;
    let done = disk.write(offset, page.freeze()).await;
    done.map_err(|e| EngineError::io("write", offset, PAGE_BYTES, e))
}

/// Raises the format version, so that an earlier release refuses the disk. It would otherwise take
/// the first unknown record for the end of the log. Checkpoint, log and data of format 1 are read
/// unchanged.
async fn migrate<D: Disk>(
    disk: &D,
    pool: &BufferPool,
    sb: &mut Superblock,
) -> Result<(), EngineError> {
    tracing::info!(disk = %sb.disk_id, from = sb.version, to = FORMAT_VERSION, "disk format migrated");
    sb.version = FORMAT_VERSION;
    sb.generation += 1;
    write_superblock(disk, pool, sb).await?;
    disk.sync().await.map_err(|e| EngineError::io("flush", 0, 0, e))
}

/// Result of replaying the log, besides the index.
pub(crate) struct Replayed {
    pub(crate) end: LogPosition,
    pub(crate) segments: VecDeque<u32>,
    pub(crate) epoch: u32,
    pub(crate) next_version: u64,
    /// Records of the last batch, with the previous state of each chunk.
    pub(crate) last: Vec<(ChunkRecord, Option<State>)>,
    /// Chunks with newest bytes in the log.
    pub(crate) patched: Patched,
    pub(crate) batches: u64,
    pub(crate) bytes: u64,
}

/// Loads the checkpoint into `index`.
pub(crate) async fn load_checkpoint<D: Disk>(
    disk: &D,
    pool: &BufferPool,
    sb: &Superblock,
    index: &Index,
) -> Result<u64, EngineError> {
    let size = block_bytes(sb.segment_bytes);
    let per_segment = u32::try_from(sb.segment_bytes / size as u64).unwrap_or(u32::MAX);
    let place = |number: u32| {
        let segment = sb.checkpoint_segments.get((number / per_segment) as usize)?;
        let start = DATA_START + u64::from(*segment) * sb.segment_bytes;
        Some(start + u64::from(number % per_segment) * size as u64)
    };
    let (mut entries, mut highest) = (0, 0);
    let mut number = 0;
    while number < sb.checkpoint_blocks {
        let mut reads = Vec::new();
        for n in number..sb.checkpoint_blocks.min(number.saturating_add(READ_AHEAD)) {
            let offset = place(n).ok_or(FormatError::Field("checkpoint_blocks"))?;
            reads.push(async move { (n, offset, read_at(disk, pool, offset, size).await) });
        }
        for (n, offset, block) in join_all(reads).await {
            let block = block?;
            let count = checkpoint::decode(sb.log_salt, sb.checkpoint_id, n, &block, |c| {
                highest = highest.max(c.version);
                put(index, &c);
            });
            entries += u64::from(count.ok_or(FormatError::Checkpoint(offset))?);
            number = n + 1;
        }
    }
    if entries != sb.checkpoint_entries {
        return Err(FormatError::Field("checkpoint_entries").into());
    }
    Ok(highest)
}

fn put(index: &Index, c: &ChunkRecord) {
    let mut shard = index.shard(c.id);
    if let Some(slot) = shard.find(c.id) {
        shard.remove(slot);
    }
    shard.insert(c);
}

fn remove(index: &Index, id: ChunkId) {
    let mut shard = index.shard(id);
    if let Some(slot) = shard.find(id) {
        shard.remove(slot);
    }
}

/// Replays the log from the position in the superblock.
pub(crate) async fn replay<D: Disk>(
    disk: &D,
    pool: &BufferPool,
    sb: &Superblock,
    index: &Index,
) -> Result<Replayed, EngineError> {
    let mut out = Replayed {
        end: sb.log_start,
        segments: VecDeque::from([sb.log_start.segment]),
        epoch: 0,
        next_version: sb.next_version,
        last: Vec::new(),
        patched: Patched::default(),
        batches: 0,
        bytes: 0,
    };
    let segment_bytes = usize::try_from(sb.segment_bytes).unwrap_or(usize::MAX);
    let window = segment_bytes.min(4 * BATCH_BYTES_MAX);
    let mut loaded: Option<(u32, usize, SharedBuf)> = None;
    loop {
        let (segment, offset) = (out.end.segment, out.end.offset as usize);
        let inside = loaded.as_ref().filter(|(s, start, bytes)| {
            // The batch must lie within the window, unless the segment ends there too.
            let end = start + bytes.len();
            *s == segment
                && *start <= offset
                && (offset + BATCH_BYTES_MAX <= end || end == segment_bytes)
        });
        if inside.is_none() {
            let len = window.min(segment_bytes - offset);
            if len == 0 {
                return Ok(out);
            }
            let at = DATA_START + u64::from(segment) * sb.segment_bytes + offset as u64;
            loaded = Some((segment, offset, read_at(disk, pool, at, len).await?));
        }
        let Some((_, start, bytes)) = &loaded else { return Ok(out) };
        let bytes = &bytes[offset - start..];
        let batch = batch::decode(sb.log_salt, bytes);
        let Some((header, records)) = batch.filter(|(h, _)| h.sequence == out.end.sequence) else {
            check_tail(disk, pool, sb, &out).await?;
            return Ok(out);
        };
        step(&mut out, index, &header, records, sb.segments())?;
    }
}

/// Applies one batch and advances past it.
fn step(
    out: &mut Replayed,
    index: &Index,
    header: &BatchHeader,
    records: Vec<Record>,
    segments: u32,
) -> Result<(), FormatError> {
    out.batches += 1;
    out.bytes += header.padded_bytes() as u64;
    out.epoch = out.epoch.max(header.epoch);
    out.next_version = out.next_version.max(header.next_version);
    out.end.offset += u32::try_from(header.padded_bytes()).unwrap_or(u32::MAX);
    out.end.sequence += 1;
    // A pointer block carries no data: the batch before it was durable before this block was
    // written.
    out.last.clear();
    for record in records {
        match record {
            Record::Put(c) => {
                out.next_version = out.next_version.max(c.version + 1);
                let before = out.patched.state(index, c.id);
                out.patched.0.remove(&c.id);
                put(index, &c);
                out.last.push((c, before));
            }
            Record::Delete(id) => {
                out.patched.0.remove(&id);
                remove(index, id);
            }
            Record::Rename { from, to } => {
                // Its data were durable before it was queued: nothing to verify.
                out.next_version = out.next_version.max(to.version + 1);
                out.patched.0.remove(&from);
                out.patched.0.remove(&to.id);
                remove(index, from);
                put(index, &to);
            }
            Record::Patch(patch) => {
                out.next_version = out.next_version.max(patch.to.version + 1);
                remove(index, patch.to.id);
                out.patched.patch(index, *patch);
            }
            Record::RenamePatched { from, to } => {
                out.next_version = out.next_version.max(to.version + 1);
                remove(index, from);
                remove(index, to.id);
                out.patched.rename(from, to);
            }
            Record::Next(segment) => {
                if segment >= segments {
                    return Err(FormatError::Field("next log segment"));
                }
                out.segments.push_back(segment);
                out.end.segment = segment;
                out.end.offset = 0;
            }
        }
    }
    Ok(())
}

/// Checks that no valid batch follows the end of the log. The log ends where a batch is invalid.
/// Since one batch is in flight at a time, a valid later one proves that the invalid one was
/// durable once: damage, not the end.
async fn check_tail<D: Disk>(
    disk: &D,
    pool: &BufferPool,
    sb: &Superblock,
    out: &Replayed,
) -> Result<(), EngineError> {
    let start = DATA_START + u64::from(out.end.segment) * sb.segment_bytes;
    let mut offset = u64::from(out.end.offset);
    while offset < sb.segment_bytes {
        let left = usize::try_from(sb.segment_bytes - offset).unwrap_or(usize::MAX);
        let len = left.min(1 << 20);
        let bytes = read_at(disk, pool, start + offset, len).await?;
        for at in (0..len).step_by(PAGE_BYTES) {
            let Some(header) = batch::peek(&bytes[at..]) else { continue };
            if header.sequence <= out.end.sequence || header.epoch < out.epoch {
                continue;
            }
            let need = header.padded_bytes();
            let whole = if at + need <= len {
                bytes.slice(at..at + need)
            } else if offset + (at + need) as u64 <= sb.segment_bytes {
                read_at(disk, pool, start + offset + at as u64, need).await?
            } else {
                continue;
            };
            if batch::decode(sb.log_salt, &whole).is_some() {
                return Err(FormatError::Log(start + u64::from(out.end.offset)).into());
            }
        }
        offset += len as u64;
    }
    Ok(())
}

/// Records that undo those without their data.
#[derive(Default)]
pub(crate) struct Undone {
    records: Vec<Record>,
    /// Chunks that are patched again after the undo.
    patched: Vec<ChunkId>,
}

/// Checks the data of the last batch's records and returns the undo of incomplete ones. One flush
/// covers log and data, so only these records may lack their data.
pub(crate) async fn verify_last<D: Disk>(
    disk: &D,
    pool: &BufferPool,
    sb: &Superblock,
    index: &Index,
    log: &mut Replayed,
) -> Result<Undone, EngineError> {
    // An id may occur twice in a batch (pinned after written): the first state before it and the
    // last after it decide.
    let mut before: HashMap<ChunkId, Option<State>> = HashMap::new();
    let mut undo = Undone::default();
    for (c, previous) in std::mem::take(&mut log.last) {
        before.entry(c.id).or_insert(previous);
    }
    for (id, previous) in before {
        let Some(now) = index.record(id) else { continue };
        if now.is_lost() {
            continue; // It has no data that the flush could have missed.
        }
        let stays = match data_matches(disk, pool, sb, &now).await {
            Err(error) if error.is_unreadable() => {
                // It may have been acknowledged, so it stays as a damaged chunk.
                tracing::error!(chunk = %id, %error, "last write before the crash cannot be read");
                true
            }
            read => read?,
        };
        if stays {
            continue;
        }
        if matches!(&previous, Some(State::Patched(p)) if !p.has_base()) {
            // A checkpoint has become valid since it was folded, so the fold was durable: this is
            // damage.
            continue;
        }
        tracing::warn!(chunk = %id, "last write before the crash is incomplete; undone");
        let mut shard = index.shard(id);
        if let Some(slot) = shard.find(id) {
            shard.remove(slot);
        }
        match previous {
            Some(State::Plain(previous)) => {
                shard.insert(&previous);
                undo.records.push(Record::Put(previous));
            }
            // It is folded once more, and that is logged.
            Some(State::Patched(previous)) => {
                log.patched.0.insert(id, previous);
                undo.patched.push(id);
            }
            None => undo.records.push(Record::Delete(id)),
        }
    }
    Ok(undo)
}

/// Reads a chunk from the place in its record and compares checksums.
pub(crate) async fn data_matches<D: Disk>(
    disk: &D,
    pool: &BufferPool,
    sb: &Superblock,
    c: &ChunkRecord,
) -> Result<bool, EngineError> {
    if c.len == 0 {
        return Ok(true);
    }
    let Some(class) = crate::format::class::Class::from_index(usize::from(c.location.class)) else {
        return Ok(false);
    };
    let segment = DATA_START + u64::from(c.location.segment) * sb.segment_bytes;
    let within = u64::from(c.location.slab) * class.slab_bytes();
    if c.location.segment >= sb.segments() || within + class.slab_bytes() > sb.segment_bytes {
        return Ok(false);
    }
    let bytes = read_at(disk, pool, segment + within, c.len as usize).await?;
    Ok(crate::read::matches(&bytes, &c.pieces, c.crc))
}

/// Marks the space used by checkpoint, log and chunks. Returns also the slabs that only patches
/// need.
pub(crate) fn claim_space(
    sb: &Superblock,
    index: &Index,
    log: &mut Replayed,
    takes_room: bool,
) -> Result<(Space, Vec<Location>), FormatError> {
    let mut space = Space::new(sb.segments(), sb.segment_bytes);
    for segment in &sb.checkpoint_segments {
        if !space.claim_segment(*segment, false) {
            return Err(FormatError::Field("checkpoint_segments"));
        }
    }
    for segment in &log.segments {
        if !space.claim_segment(*segment, true) {
            return Err(FormatError::Field("log segments"));
        }
    }
    let mut below = log.patched.below();
    for at in 0..SHARDS {
        let shard = index.shard_at(at);
        for slot in 0..shard.slots() {
            let Some(e) = shard.live(slot) else { continue };
            let at = e.location();
            let fits = crate::format::class::Class::from_index(usize::from(at.class))
                .is_some_and(|class| class.slab_bytes() >= u64::from(e.len()));
            // A lost chunk has no slab, however long it is.
            let fits = fits || at.is_nowhere();
            if !fits || !space.claim(at) {
                return Err(FormatError::Index { segment: at.segment, slab: at.slab });
            }
            // A chunk uses it, under some name.
            below.remove(&at);
        }
    }
    for (at, len) in &below {
        let class = crate::format::class::Class::from_index(usize::from(at.class));
        let fits = class.is_some_and(|class| class.slab_bytes() >= u64::from(*len));
        if !fits || !space.claim(*at) {
            return Err(FormatError::Index { segment: at.segment, slab: at.slab });
        }
    }
    log.patched.claim_places(&mut space, sb.segment_bytes);
    space.finish_claims(takes_room);
    Ok((space, below.into_keys().collect()))
}

impl<D: Disk> Engine<D> {
    /// Makes an empty engine on `disk`; everything on it is lost.
    ///
    /// # Errors
    /// `Invalid` options, a disk too small, `Io`.
    pub async fn format(
        disk: &D,
        pool: &BufferPool,
        options: FormatOptions,
    ) -> Result<(), EngineError> {
        options.validate()?;
        let segment_bytes = options.segment_bytes.0;
        let capacity = disk.capacity();
        let segments = capacity.saturating_sub(DATA_START) / segment_bytes;
        if segments < SEGMENTS_MIN {
            let need = DATA_START + SEGMENTS_MIN * segment_bytes;
            return Err(FormatError::TooSmall(capacity, need).into());
        }
        if segments >= SEGMENTS_MAX {
            return Err(EngineError::Invalid("disk is larger than 128 TiB: split it".to_owned()));
        }
        // Without a valid first batch the log is empty; a batch from an earlier life of the disk
        // must not be found.
        let zeros = if disk.first_write_is_dear() { segment_bytes } else { PAGE_BYTES as u64 };
        write_zeros(disk, pool, (DATA_START, zeros), FORMAT_WRITES).await?;
        for generation in [0, 1] {
            let sb = Superblock {
                version: FORMAT_VERSION,
                generation,
                disk_id: options.disk_id,
                cluster_id: options.cluster_id,
                capacity,
                segment_bytes,
                log_salt: options.log_salt,
                log_start: LogPosition { segment: 0, offset: 0, sequence: 1 },
                checkpoint_id: 0,
                checkpoint_entries: 0,
                checkpoint_blocks: 0,
                created_unix_ms: options.created_unix_ms,
                next_version: 1,
                checkpoint_segments: Vec::new(),
            };
            write_superblock(disk, pool, &sb).await?;
        }
        disk.sync().await.map_err(|e| EngineError::io("flush", 0, 0, e))
    }

    /// Opens a formatted disk and recovers its durable state.
    ///
    /// # Errors
    /// `Format` naming the flaw of the disk, `Io`, `Invalid` options, `Busy` when the pool is too
    /// small.
    pub async fn open(
        disk: D,
        pool: BufferPool,
        clock: Arc<dyn Clock>,
        mut options: EngineOptions,
    ) -> Result<Self, EngineError> {
        options.validate()?;
        // On a small disk the log would otherwise take the room of the chunks.
        let log_bytes_max = (disk.capacity() / 16).max(CHECKPOINT_LOG_BYTES_MIN);
        options.checkpoint_log_bytes.0 = options.checkpoint_log_bytes.0.min(log_bytes_max);
        let mut sb = read_superblock(&disk, &pool).await?;
        if let Some(expected) = options.cluster_id.filter(|c| *c != sb.cluster_id) {
            let (found, expected) = (sb.cluster_id.to_string(), expected.to_string());
            return Err(FormatError::OtherCluster { found, expected }.into());
        }
        let index = Index::new(sb.checkpoint_entries);
        let highest = load_checkpoint(&disk, &pool, &sb, &index).await?;
        let mut log = replay(&disk, &pool, &sb, &index).await?;
        let undo = if options.verify_last_batch {
            verify_last(&disk, &pool, &sb, &index, &mut log).await?
        } else {
            Undone::default()
        };
        let (space, below) = claim_space(&sb, &index, &mut log, disk.takes_room())?;
        log.next_version = log.next_version.max(highest + 1);
        if sb.version < FORMAT_VERSION {
            migrate(&disk, &pool, &mut sb).await?;
        }
        let patched = std::mem::take(&mut log.patched);
        let engine = Self(Arc::new(assemble(disk, pool, clock, options, (sb, index, space, log))?));
        let mut records = undo.records;
        records.extend(engine.fold_recovered(patched, &undo.patched).await?);
        engine.0.begin_epoch(records).await?;
        for at in below {
            engine.0.release(at);
        }
        Ok(engine)
    }
}

fn assemble<D: Disk>(
    disk: D,
    pool: BufferPool,
    clock: Arc<dyn Clock>,
    options: EngineOptions,
    (sb, index, space, log): (Superblock, Arc<Index>, Space, Replayed),
) -> Result<Inner<D>, EngineError> {
    let size = BATCH_BYTES_MAX.min(pool.capacity() / 8);
    let buffer = pool.try_alloc(size).ok_or(EngineError::Busy("no memory buffer is free"))?;
    let queue = Log::new(log.end, log.segments, log.epoch + 1, buffer);
    queue.0.lock().bytes = log.bytes;
    Ok(Inner {
        disk,
        pool,
        clock,
        options,
        segment_bytes: sb.segment_bytes,
        salt: sb.log_salt,
        index,
        space: Mutex::new(space),
        readers: Readers::default(),
        shares: Shares::default(),
        unfolded: Arc::default(),
        log: queue,
        versions: log.next_version.into(),
        superblock: Mutex::new(sb),
        dirty: Gauge::default(),
        dirty_queue: Mutex::default(),
        patched_queue: Mutex::default(),
        flushing: tokio::sync::Mutex::new(()),
        promoted: Promoted::default(),
        queueing: RwLock::new(()),
        leased: Gauge::default(),
        reclaim_at: 0.into(),
        barren_until: 0.into(),
        evict_at: 0.into(),
        quarantine: Mutex::default(),
        checkpointing: tokio::sync::Mutex::new(()),
        taking_room: tokio::sync::Mutex::new(()),
        compacting: tokio::sync::Mutex::new(()),
        wake_background: tokio::sync::Notify::new(),
        wake_lazy: tokio::sync::Notify::new(),
        metrics: EngineMetrics::default(),
    })
}
