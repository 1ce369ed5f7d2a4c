//! Chunk locks: one change of a chunk at a time.
//!
//! A guard is held from the first look at a chunk until its log record is applied, so the
//! committed state of a chunk only changes under its guard. Waiters are woken in order; a
//! guard travels inside the wake-up, so a waiter that has gone away passes it on.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use millpond_types::ChunkId;
use tokio::sync::oneshot;

use super::Index;
use crate::error::EngineError;

/// Waiters per chunk; more than this answers busy.
const WAITERS_MAX: usize = 256;

/// Waiters of every chunk that is being changed.
pub(crate) type Busy = HashMap<ChunkId, VecDeque<oneshot::Sender<Guard>>, crate::index::IdHasher>;

/// The right to change one chunk.
#[derive(Debug)]
pub(crate) struct Guard {
    index: Arc<Index>,
    id: ChunkId,
}

impl Guard {
    pub(super) const fn new(index: Arc<Index>, id: ChunkId) -> Self {
        Self { index, id }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The next guard is made and sent outside the lock: when its receiver has gone, the
        // failed send drops it, which passes it on through here once more.
        let next = {
            let mut shard = self.index.shard(self.id);
            let waiters = shard.busy.get_mut(&self.id);
            let next = waiters.and_then(VecDeque::pop_front);
            if next.is_none() {
                shard.busy.remove(&self.id);
            }
            next
        };
        if let Some(waiter) = next {
            drop(waiter.send(Self::new(Arc::clone(&self.index), self.id)));
        }
    }
}

impl Index {
    /// Waits for the right to change `id`.
    pub(crate) async fn lock(self: &Arc<Self>, id: ChunkId) -> Result<Guard, EngineError> {
        let receiver = {
            let mut shard = self.shard(id);
            match shard.busy.get_mut(&id) {
                None => {
                    shard.busy.insert(id, VecDeque::new());
                    return Ok(Guard::new(Arc::clone(self), id));
                }
                Some(waiters) if waiters.len() >= WAITERS_MAX => {
                    return Err(EngineError::Busy("too many changes of one chunk are waiting"));
                }
                Some(waiters) => {
                    let (sender, receiver) = oneshot::channel();
                    waiters.push_back(sender);
                    receiver
                }
            }
        };
        receiver.await.map_err(|_| EngineError::Busy("the engine is closing"))
    }

    /// The right to change `id`, unless another task holds it.
    pub(crate) fn try_lock(self: &Arc<Self>, id: ChunkId) -> Option<Guard> {
        let mut shard = self.shard(id);
        if shard.busy.contains_key(&id) {
            return None;
        }
        shard.busy.insert(id, VecDeque::new());
        Some(Guard::new(Arc::clone(self), id))
    }
}
