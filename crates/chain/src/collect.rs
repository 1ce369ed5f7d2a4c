//! The end of tombstones.
//!
//! A deletion leaves its version behind, so that the next write continues the count and a message
//! from before the deletion is recognized. The head removes the tombstone on every replica, as one
//! more update under the chunk's lock, once no message can be that old. No client retries a removal
//! that a node made by itself, for room: the tombstone of an eviction outlives messages, not
//! retries.
//!
//! A head sees most tombstones being made. It finds the tombstones of an earlier head, and those
//! beyond the limit of its memory, by listing all of them.

use std::collections::{BTreeMap, VecDeque};

use millpond_types::cluster::ChunkVersion;
use millpond_types::limits::TOMBSTONES_MAX;
use millpond_types::{Ack, ChunkId, Crc32c, Tick};

use crate::credible::VERSION_MAX;
use crate::event::{StoreOp, Turn};
use crate::forward::own_tag;
use crate::message::{Lane, Meta, Payload, Update, Write};
use crate::mutation::mutated;
use crate::replica::{Job, Replica};
use crate::slot::Waiting;

/// Pages of tombstones are read this often, in milliseconds: 256 a second.
const ROUND_MS: u128 = 1000;
/// Tombstones in one page.
const PAGE: usize = 256;
/// Tombstones collected in one tick: with ticks of 50 ms, as many as a disk evicts blocks.
const TICK_MAX: usize = 256;

#[derive(Clone, Debug, Default)]
pub(crate) struct Collector {
    cursor: Option<ChunkId>,
    listed: Tick,
    /// Known tombstones, by origin and in order of time.
    own: VecDeque<Seen>,
    clients: VecDeque<Seen>,
    /// The newest tombstone of each chunk.
    watched: BTreeMap<ChunkId, ChunkVersion>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    chunk: ChunkId,
    version: ChunkVersion,
    /// The tombstone is at least as old.
    at: Tick,
}

impl Collector {
    /// Remembers a tombstone that has been committed.
    pub(crate) fn watch(&mut self, chunk: ChunkId, meta: &Meta, now: Tick) {
        let known = self.watched.get(&chunk) == Some(&meta.version);
        if known || self.own.len() + self.clients.len() >= TOMBSTONES_MAX {
            return;
        }
        self.watched.insert(chunk, meta.version);
        let own = meta.tag.lane == Lane::default();
        let queue = if own { &mut self.own } else { &mut self.clients };
        queue.push_back(Seen { chunk, version: meta.version, at: now });
    }

    /// Takes and returns the tombstones that are old enough.
    fn due(&mut self, (own_ms, clients_ms): (u64, u64), now: Tick) -> Vec<(ChunkId, ChunkVersion)> {
        let mut due = Vec::new();
        for (queue, keep) in [(&mut self.own, own_ms), (&mut self.clients, clients_ms)] {
            let old = |seen: &mut Seen| now.since(seen.at).as_millis() >= u128::from(keep);
            while due.len() < TICK_MAX
                && let Some(seen) = queue.pop_front_if(old)
            {
                // Otherwise the chunk was written and deleted again, and its newer tombstone must
                // age.
                if self.watched.get(&seen.chunk) == Some(&seen.version) {
                    self.watched.remove(&seen.chunk);
                    due.push((seen.chunk, seen.version));
                }
            }
        }
        due
    }
}

impl<P: Payload> Replica<P> {
    pub(crate) fn collect_tick(&mut self, turn: &mut Turn<'_, P>) {
        if !self.serving() || !self.view.is_head() {
            self.collector = Collector::default();
            return;
        }
        let keep = (self.identity.evicted_keep_ms, self.identity.tombstone_keep_ms);
        let keep = if mutated!(self, CollectAtOnce) { (0, 0) } else { keep };
        for (chunk, version) in self.collector.due(keep, turn.now) {
            // A busy chunk is tried again in a later round.
            let _dropped_when_full = self.enqueue(chunk, Waiting::Collect(version), turn);
        }
        let listing = self.jobs.values().any(|job| matches!(job, Job::CollectList));
        let early = turn.now.since(self.collector.listed).as_millis() < ROUND_MS;
        if listing || early {
            return;
        }
        self.collector.listed = turn.now;
        let op = StoreOp::ListTombstones(self.collector.cursor, PAGE);
        self.store(Job::CollectList, op, turn);
    }

    pub(crate) fn on_collect_page(
        &mut self,
        items: &[(ChunkId, Meta)],
        complete: bool,
        turn: &mut Turn<'_, P>,
    ) {
        let collector = &mut self.collector;
        collector.cursor = if complete { None } else { items.last().map(|(chunk, _)| *chunk) };
        for (chunk, meta) in items {
            collector.watch(*chunk, meta, turn.now);
        }
    }

    pub(crate) fn begin_collect(
        &mut self,
        chunk: ChunkId,
        version: ChunkVersion,
        turn: &mut Turn<'_, P>,
    ) {
        let committed = self.slots.get(&chunk).and_then(|slot| slot.committed);
        let tombstone = |meta: &Meta| meta.version == version && meta.data().is_none();
        if version >= VERSION_MAX || !committed.as_ref().is_some_and(tombstone) {
            return; // Written again in the meantime.
        }
        let update = Update {
            chunk,
            tag: own_tag(),
            base: version,
            version: ChunkVersion(version.0 + 1),
            written: self.view.version(),
            write: Write::Collect,
            crc: Crc32c::EMPTY,
            durability: Ack::Memory,
        };
        self.begin(update, None, turn);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::message::{Content, Tag};

    fn tombstone(version: u64, client: u128) -> Meta {
        Meta {
            version: ChunkVersion(version),
            written: millpond_types::cluster::ChainVersion(1),
            tag: Tag { lane: Lane { client, channel: 0 }, sequence: version },
            content: Content::Tombstone,
        }
    }

    fn at(ms: u64) -> Tick {
        Tick(0).plus(Duration::from_millis(ms))
    }

    #[test]
    fn a_tombstone_is_kept_as_long_as_its_maker_needs() {
        let mut collector = Collector::default();
        collector.watch(ChunkId(1), &tombstone(3, 0), at(0));
        collector.watch(ChunkId(2), &tombstone(4, 9), at(0));
        assert_eq!(collector.due((10, 100), at(9)), []);
        assert_eq!(collector.due((10, 100), at(10)), [(ChunkId(1), ChunkVersion(3))]);
        assert_eq!(collector.due((10, 100), at(99)), []);
        assert_eq!(collector.due((10, 100), at(100)), [(ChunkId(2), ChunkVersion(4))]);
        assert_eq!(collector.due((10, 100), at(1000)), []);
    }

    #[test]
    fn the_newest_tombstone_of_a_chunk_is_waited_for() {
        let mut collector = Collector::default();
        collector.watch(ChunkId(1), &tombstone(3, 0), at(0));
        collector.watch(ChunkId(1), &tombstone(3, 0), at(5));
        collector.watch(ChunkId(1), &tombstone(6, 0), at(7));
        assert_eq!(collector.due((10, 100), at(12)), []);
        assert_eq!(collector.due((10, 100), at(17)), [(ChunkId(1), ChunkVersion(6))]);
        assert!(collector.watched.is_empty() && collector.own.is_empty());
    }

    #[test]
    fn no_more_are_watched_than_there_is_room_for_nor_collected_in_one_go() {
        let mut collector = Collector::default();
        for n in 0..TOMBSTONES_MAX as u128 + 5 {
            collector.watch(ChunkId(n), &tombstone(1, n % 2), at(0));
        }
        assert_eq!(collector.watched.len(), TOMBSTONES_MAX);
        let mut sum = 0;
        while let n @ 1.. = collector.due((10, 10), at(10)).len() {
            assert!(n <= TICK_MAX);
            sum += n;
        }
        assert_eq!(sum, TOMBSTONES_MAX);
    }
}
