//! Types that reads and writes of blocks share.

use std::sync::Arc;
use std::time::Duration;

use millpond_env::{RealClock, SharedBuf};
use millpond_types::wire::GetItem;
use millpond_types::{ChunkId, Tick};
use parking_lot::Mutex;

/// The chunk store of one disk.
pub type Engine = millpond_engine::Engine<millpond_env::FileDisk>;

/// Damaged chunks of a replica's disk that wait to be repaired from another replica.
#[derive(Clone, Debug, Default)]
pub struct DamagedChunks(Arc<Mutex<Vec<ChunkId>>>);

/// Chunks beyond this number are left to the next scrub.
const DAMAGED_MAX: usize = 4096;

impl DamagedChunks {
    /// Adds a chunk.
    pub fn push(&self, id: ChunkId) {
        let mut waiting = self.0.lock();
        if waiting.len() < DAMAGED_MAX && !waiting.contains(&id) {
            waiting.push(id);
        }
    }

    /// Takes all chunks.
    #[must_use]
    pub fn take(&self) -> Vec<ChunkId> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Outcome of a get.
#[derive(Debug, Default)]
pub struct GetOutcome {
    /// Outcome per key, without pool offsets.
    pub items: Vec<GetItem>,
    /// The values of the `Ok` items, in order.
    pub values: Vec<SharedBuf>,
}

/// Time left until `deadline`; `None` when it has passed.
#[must_use]
pub fn time_left(deadline: Tick) -> Option<Duration> {
    let now = RealClock::tick();
    (now < deadline).then(|| deadline.since(now))
}
