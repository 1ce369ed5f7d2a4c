//! Room for segments on a disk that takes it as it is used.
//!
//! A file on a file system that others fill may get no room for a segment that was never used. So a segment is used only
//! once the disk has promised room for all of it: a write of a slab, of the log or of a checkpoint never lacks
//! any, and a disk that gets no more room is full with what it has: it evicts, and answers `NoSpace`.

use millpond_env::Disk;

use crate::engine::Inner;
use crate::error::EngineError;
use crate::space::Space;

/// A segment that the disk is asked to make room for; as it was when that is given up.
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
    /// Asks the disk for room for segments for as long as some is lacking and given.
    pub(crate) async fn take_room(
        &self,
        lacks: impl Fn(&Space) -> bool,
    ) -> Result<(), EngineError> {
        let lacks = || lacks(&self.space.lock());
        if !lacks() {
            return Ok(());
        }
        // Whoever comes meanwhile may find that there is enough.
        let _only = self.taking_room.lock().await;
        while lacks() && self.take_segment().await? {}
        Ok(())
    }

    /// Asks for one; false when there is no use in asking again now.
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
                // A part of it may have got some, which others can use better. Nothing is kept in it.
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
