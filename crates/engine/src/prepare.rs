//! The next segment of the log, written before it is needed.
//!
//! A file system converts the extents of a file when they are first written, and commits that to
//! its own journal with each flush: on ext4 a durable write of a page into reserved room takes
//! about 1.6 times as long as one over a page that was written before. Every commit of the log is
//! such a write. So the background writes zeros to a segment before the log reaches it.
//! `PostgreSQL` does the same with its WAL (`wal_init_zero`).
//!
//! Nothing depends on these zeros: to a reader of the disk the segment is free, until a block of
//! the log points to it.

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use millpond_env::{BufferPool, Disk};

use crate::engine::Inner;
use crate::error::EngineError;
use crate::space::Space;

/// Bytes of one write.
const PIECE: usize = 256 << 10;

/// Writes zeros over a range, as far as there is memory for them, with `under_way` writes in
/// flight: one takes little bandwidth from others, several finish sooner.
pub(crate) async fn write_zeros<D: Disk>(
    disk: &D,
    pool: &BufferPool,
    (start, len): (u64, u64),
    under_way: usize,
) -> Result<(), EngineError> {
    let piece = usize::try_from(len).unwrap_or(PIECE).min(PIECE);
    let busy = EngineError::Busy("no memory buffer is free");
    let mut zeros = pool.try_alloc(piece).ok_or(busy)?;
    zeros.as_full_mut().fill(0);
    zeros.set_len(piece);
    let zeros = zeros.freeze();
    let write = async |offset| {
        let written = disk.write(offset, zeros.clone()).await;
        written.map_err(|e| EngineError::io("write", offset, piece, e))
    };
    let pieces = stream::iter((start..start + len).step_by(piece)).map(write);
    pieces.buffer_unordered(under_way).try_collect().await
}

/// A segment that is being prepared; dropping it frees the segment.
struct Preparing<'a, D: Disk> {
    inner: &'a Inner<D>,
    segment: u32,
    written: bool,
}

impl<D: Disk> Drop for Preparing<'_, D> {
    fn drop(&mut self) {
        self.inner.space.lock().prepared(self.segment, self.written);
    }
}

impl<D: Disk> Inner<D> {
    /// Prepares a segment for the log before its current one is full.
    pub(crate) async fn prepare_segment(&self) -> Result<(), EngineError> {
        if !self.disk.first_write_is_dear() {
            return Ok(());
        }
        let used = u64::from(self.log.0.lock().position.offset);
        if used < self.segment_bytes / 2 {
            return Ok(());
        }
        self.take_room(Space::log_lacks_room).await?;
        let Some((segment, is_written)) = self.space.lock().begin_preparing() else {
            return Ok(());
        };
        let mut preparing = Preparing { inner: self, segment, written: is_written };
        if !is_written {
            let range = (self.segment_offset(segment), self.segment_bytes);
            write_zeros(&self.disk, &self.pool, range, 1).await?;
            preparing.written = true;
        }
        Ok(())
    }
}
