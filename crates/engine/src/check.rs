//! Read-only inspection of a disk that no engine has open.

use std::fmt;

use millpond_env::{BufferPool, Disk};

use crate::error::EngineError;
use crate::format::superblock::Superblock;
use crate::index::{Index, SHARDS};
use crate::recover::{claim_space, data_matches, load_checkpoint, read_superblock, replay};
use crate::space::ClassUsage;

/// Contents of a disk.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The superblock in force.
    pub superblock: Superblock,
    /// Chunks in the index after replay.
    pub chunks: u64,
    /// Bytes of chunks.
    pub live_bytes: u64,
    /// Bytes of slabs in use.
    pub used_bytes: u64,
    /// Segments free.
    pub free_segments: u64,
    /// Log batches after the checkpoint, and their bytes.
    pub log_batches: u64,
    /// Bytes of log after the checkpoint.
    pub log_bytes: u64,
    /// Segments of the log.
    pub log_segments: Vec<u32>,
    /// Slabs by class.
    pub classes: Vec<ClassUsage>,
    /// Errors found, with offsets; empty for a sound disk.
    pub errors: Vec<String>,
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sb = &self.superblock;
        writeln!(f, "disk            {}", sb.disk_id)?;
        writeln!(f, "cluster         {}", sb.cluster_id)?;
        writeln!(f, "capacity        {} bytes", sb.capacity)?;
        writeln!(f, "segments        {} of {} bytes", sb.segments(), sb.segment_bytes)?;
        writeln!(f, "free segments   {}", self.free_segments)?;
        writeln!(f, "generation      {}", sb.generation)?;
        writeln!(
            f,
            "checkpoint      {} entries, {} blocks, segments {:?}",
            sb.checkpoint_entries, sb.checkpoint_blocks, sb.checkpoint_segments
        )?;
        writeln!(
            f,
            "log             {} batches, {} bytes, from segment {} offset {} sequence {}, segments {:?}",
            self.log_batches,
            self.log_bytes,
            sb.log_start.segment,
            sb.log_start.offset,
            sb.log_start.sequence,
            self.log_segments
        )?;
        writeln!(f, "chunks          {}", self.chunks)?;
        writeln!(f, "live bytes      {}", self.live_bytes)?;
        writeln!(f, "slab bytes      {}", self.used_bytes)?;
        for c in &self.classes {
            writeln!(
                f,
                "class {:>9}  {} segments, {} slabs used, {} free",
                c.slab_bytes, c.segments, c.used_slabs, c.free_slabs
            )?;
        }
        for error in &self.errors {
            writeln!(f, "ERROR           {error}")?;
        }
        Ok(())
    }
}

/// Reads superblock, checkpoint and log without writing anything.
///
/// # Errors
/// `Io`, `Format` when not even the superblock is readable.
pub async fn inspect<D: Disk>(disk: &D, pool: &BufferPool) -> Result<Inspection, EngineError> {
    walk(disk, pool, false).await
}

/// Like [`inspect`], and verifies the bytes of every chunk.
///
/// # Errors
/// `Io`, `Format` when not even the superblock is readable.
pub async fn check<D: Disk>(disk: &D, pool: &BufferPool) -> Result<Inspection, EngineError> {
    walk(disk, pool, true).await
}

async fn walk<D: Disk>(disk: &D, pool: &BufferPool, data: bool) -> Result<Inspection, EngineError> {
    let sb = read_superblock(disk, pool).await?;
    let index = Index::new(sb.checkpoint_entries);
    let mut out = Inspection {
        superblock: sb.clone(),
        chunks: 0,
        live_bytes: 0,
        used_bytes: 0,
        free_segments: 0,
        log_batches: 0,
        log_bytes: 0,
        log_segments: Vec::new(),
        classes: Vec::new(),
        errors: Vec::new(),
    };
    if let Err(error) = load_checkpoint(disk, pool, &sb, &index).await {
        out.errors.push(error.to_string());
    }
    match replay(disk, pool, &sb, &index).await {
        Ok(mut log) => {
            out.log_batches = log.batches;
            out.log_bytes = log.bytes;
            out.log_segments = log.segments.iter().copied().collect();
            match claim_space(&sb, &index, &mut log, false) {
                Ok((space, _)) => {
                    out.used_bytes = space.used_bytes();
                    out.free_segments = space.free_segments() as u64;
                    out.classes = space.class_usage();
                }
                Err(error) => out.errors.push(error.to_string()),
            }
            for (id, layered) in &log.patched.0 {
                out.chunks += 1;
                out.live_bytes += u64::from(layered.record.len);
                if !layered.has_base() {
                    out.errors.push(format!("chunk {id} is patched, but its base is missing"));
                } else if data {
                    let read = layered.bytes(disk, pool, &sb).await;
                    let sound = read.map(|found| found.is_none_or(|(_, sound)| sound));
                    let why = flaw(sound)?;
                    out.errors.extend(why.map(|why| format!("patched chunk {id} {why}")));
                }
            }
        }
        Err(error) => out.errors.push(error.to_string()),
    }
    out.chunks += index.len();
    for at in 0..SHARDS {
        walk_shard(disk, pool, (&sb, &index, at, data), &mut out).await?;
    }
    Ok(out)
}

/// Describes the flaw of a chunk, given whether its bytes match; an unreadable place does not end
/// the check.
fn flaw(sound: Result<bool, EngineError>) -> Result<Option<String>, EngineError> {
    match sound {
        Err(error) if error.is_unreadable() => Ok(Some(format!("cannot be read: {error}"))),
        sound => Ok((!sound?).then(|| "does not match its checksum".to_owned())),
    }
}

async fn walk_shard<D: Disk>(
    disk: &D,
    pool: &BufferPool,
    (sb, index, at, data): (&Superblock, &Index, usize, bool),
    out: &mut Inspection,
) -> Result<(), EngineError> {
    let records: Vec<_> = {
        let shard = index.shard_at(at);
        let slots = (0..shard.slots()).filter(|slot| shard.live(*slot).is_some());
        slots.map(|slot| shard.record(slot)).collect()
    };
    for c in records {
        out.live_bytes += u64::from(c.len);
        if c.is_lost() {
            out.errors.push(format!("chunk {} is lost: no replica had its bytes", c.id));
        } else if data && let Some(why) = flaw(data_matches(disk, pool, sb, &c).await)? {
            let start = crate::format::superblock::DATA_START
                + u64::from(c.location.segment) * sb.segment_bytes;
            out.errors.push(format!(
                "chunk {} in segment {} (at offset {start}) slab {} {why}",
                c.id, c.location.segment, c.location.slab
            ));
        }
    }
    Ok(())
}
