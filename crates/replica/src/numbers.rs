//! Counters of this node's replicas, for monitoring. Read only.

use std::sync::atomic::Ordering;

use millpond_types::cluster::TargetState;

use super::Host;
use super::hosted::Hosted;

/// States and work of this node's replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaNumbers {
    /// Replicas that the routing calls `SERVING`.
    pub serving: u64,
    /// Replicas that it calls `LAST_SERVING`.
    pub last_serving: u64,
    /// Replicas that it calls `SYNCING`.
    pub syncing: u64,
    /// Replicas that it calls `WAITING`.
    pub waiting: u64,
    /// Replicas that it calls `OFFLINE`.
    pub offline: u64,
    /// Chains that this node is the head of.
    pub heads: u64,
    /// Replicas that stopped by themselves.
    pub stopped: u64,
    /// Chunks that are committed here.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Versions that are stored and not committed.
    pub staged: u64,
    /// Deleted chunks that are remembered.
    pub tombstones: u64,
    /// Chunks that this node's replicas were brought up to date without, since no replica had good
    /// bytes.
    pub lost: u64,
    /// Blocks that heads here evicted to make room, since the start.
    pub evictions: u64,
    /// Messages of other nodes that no correct replica sends: refused, since the start.
    pub refused: u64,
    /// Replicas on other nodes that this node is bringing up to date.
    pub resyncs: u64,
    /// Chunks still to be compared with them.
    pub resync_chunks_left: u64,
    /// Bytes of those.
    pub resync_bytes_left: u64,
    /// Slots that are leaving chains headed here.
    pub slot_moves: u64,
    /// Chunks copied to their new chains since the start.
    pub slot_chunks: u64,
    /// Their bytes.
    pub slot_bytes: u64,
    /// Failed copies and removals, each of which was retried, since the start.
    pub slot_failures: u64,
    /// Links to other nodes.
    pub links: LinkNumbers,
}

/// Messages that wait for the links to other nodes, or were lost on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkNumbers {
    /// Links that are open.
    pub open: u64,
    /// Waiting messages.
    pub queued_messages: u64,
    /// Bytes of those.
    pub queued_bytes: u64,
    /// Messages dropped since the links were opened.
    pub dropped: u64,
}

impl Host {
    /// Counters of this node's replicas.
    pub fn numbers(&self) -> ReplicaNumbers {
        let moved = self.movers.moved();
        let mut numbers = ReplicaNumbers {
            slot_moves: moved.moving.len() as u64,
            slot_chunks: moved.chunks,
            slot_bytes: moved.bytes,
            slot_failures: moved.failures,
            links: self.links().numbers(),
            evictions: self.evicted.load(Ordering::Relaxed),
            refused: self.refused(),
            ..ReplicaNumbers::default()
        };
        for hosted in self.all() {
            numbers.add(&hosted);
        }
        numbers
    }
}

impl ReplicaNumbers {
    fn add(&mut self, hosted: &Hosted) {
        let state = hosted.state();
        let member = state.view.targets.iter().find(|member| member.target == hosted.target);
        let place = match member.map(|member| member.state) {
            Some(TargetState::Serving) => &mut self.serving,
            Some(TargetState::LastServing) => &mut self.last_serving,
            Some(TargetState::Syncing) => &mut self.syncing,
            Some(TargetState::Waiting) => &mut self.waiting,
            Some(TargetState::Offline) | None => &mut self.offline,
        };
        *place += 1;
        self.heads += u64::from(state.replica.is_head_serving());
        self.stopped += u64::from(state.replica.stopped());
        let chunks = state.image.committed.len() as u64;
        self.chunks += chunks;
        self.bytes += state.image.used_bytes;
        self.staged += state.image.staged.len() as u64;
        self.tombstones += state.image.tombstones.len() as u64;
        if let Some(progress) = state.replica.resync_progress().filter(|it| !it.done) {
            // Ids are hashes: the share of chunks left equals the share of ids left.
            let part = left_of(progress.cursor.map_or(0, |cursor| cursor.0));
            self.resyncs += 1;
            self.resync_chunks_left += part.of(chunks);
            self.resync_bytes_left += part.of(state.image.used_bytes);
        }
        self.lost += state.image.lost.len() as u64;
    }
}

/// A fraction of a whole, in 65,536ths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part(u64);

impl Part {
    fn of(self, whole: u64) -> u64 {
        let part = u128::from(whole) * u128::from(self.0) / 65_536;
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

/// The fraction of all ids after `cursor`.
fn left_of(cursor: u128) -> Part {
    Part(65_536 - u64::try_from(cursor >> 112).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::{Part, left_of};

    #[test]
    fn as_much_is_left_as_there_are_ids_behind_the_cursor() {
        assert_eq!(left_of(0), Part(65_536));
        assert_eq!(left_of(0).of(1 << 40), 1 << 40);
        assert_eq!(left_of(1 << 127).of(1000), 500);
        assert_eq!(left_of(u128::MAX).of(65_536), 1);
        assert_eq!(left_of(0).of(u64::MAX), u64::MAX);
    }
}
