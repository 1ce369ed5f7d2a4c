//! Room for segments on a disk that allocates space on first use.
//!
//! A file on a shared file system may get no space for a segment that was never used. So a segment
//! is used only once the disk has promised space for all of it. A write of a slab, of the log or of
//! a checkpoint then never runs out of space. A disk that gets no more space is full with what it
//! has: it evicts, and answers `NoSpace`.

use millpond_env::Disk;

use crate::engine::Inner;
use crate::error::EngineError;
use crate::space::Space;

/// A segment that the disk is asked to make room for; dropping this unanswered restores its old
/// state.
struct Asking<'a, D: Disk> {
    inner: &'a Inner<D>,
    segment: u32,
    answer: Option<bool>,
}

impl<D: Disk> Drop for Asking<'_, D> {
    fn drop(&mut self) {
        let now = self.inner.clock.now();
        let mut space = self.inner.space.lock();
        match self.answer {
            Some(is_there) => space.has_room(self.segment, is_there, now),
            None => space.forget_room(self.segment),
        }
    }
}

impl<D: Disk> Inner<D> {
    /// Asks the disk for room for segments while some is lacking and the disk gives it.
    pub(crate) async fn take_room(
        &self,
        lacks: impl Fn(&Space) -> bool,
    ) -> Result<(), EngineError> {
        let lacks = || lacks(&self.space.lock());
        if !lacks() {
            return Ok(());
        }
        // A caller that waited here may find enough room.
        let _only = self.taking_room.lock().await;
        while lacks() && self.take_segment().await? {}
        Ok(())
    }

    /// Asks for room for one segment; false when asking again now is useless.
    async fn take_segment(&self) -> Result<bool, EngineError> {
        let Some(segment) = self.space.lock().begin_room(self.clock.now()) else {
            return Ok(false);
        };
        let mut asking = Asking { inner: self, segment, answer: None };
        let (offset, len) = (self.segment_offset(segment), self.segment_bytes);
        match self.disk.reserve(offset, len).await {
            Ok(()) => asking.answer = Some(true),
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                if !self.space.lock().is_short() {
                    tracing::debug!(segment, "the disk has no room for another segment");
                }
                // The disk may have allocated a part of it, which others can use better. The
                // segment holds no data.
                let _ = self.disk.discard(offset, len).await;
                asking.answer = Some(false);
            }
            Err(error) => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                return Err(EngineError::io("reserve", offset, len, error));
            }
        }
        Ok(true)
    }
}
