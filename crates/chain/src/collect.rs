//! The end of tombstones.
//!
//! A deletion leaves its version behind, so that the next write continues the count and a message
//! from before the deletion is recognised. The head forgets it, on every replica and as
//! one more update under the chunk's lock, once no message can be that old.

use std::collections::BTreeMap;

use millpond_types::cluster::ChunkVersion;
use millpond_types::limits::TOMBSTONES_MAX;
use millpond_types::{Ack, ChunkId, Crc32c, Tick};

use crate::event::{StoreOp, Turn};
use crate::forward::own_tag;
use crate::message::{Meta, Payload, Update, Write};
use crate::replica::{Job, Replica};
use crate::slot::Waiting;

/// Pages of tombstones are read this often, in milliseconds: 256 a second.
const ROUND_MS: u128 = 1000;
/// Tombstones in one page.
const PAGE: usize = 256;

#[derive(Clone, Debug, Default)]
pub(crate) struct Collector {
    cursor: Option<ChunkId>,
    listed: Tick,
    /// Tombstones seen, and when first: their age is at least that.
    watched: BTreeMap<ChunkId, (ChunkVersion, Tick)>,
}

impl<P: Payload> Replica<P> {
    pub(crate) fn collect_tick(&mut self, turn: &mut Turn<'_, P>) {
        let listing = self.jobs.values().any(|job| matches!(job, Job::CollectList));
        let early = turn.now.since(self.collector.listed).as_millis() < ROUND_MS;
        if !self.serving() || !self.view.is_head() || listing || early {
            return;
        }
        self.collector.listed = turn.now;
        let keep = u128::from(self.identity.tombstone_keep_ms);
        let old = |seen: &Tick| turn.now.since(*seen).as_millis() >= keep;
        let due: Vec<(ChunkId, ChunkVersion)> = self
            .collector
            .watched
            .iter()
            .filter(|(_, (_, seen))| old(seen))
            .map(|(chunk, (version, _))| (*chunk, *version))
            .collect();
        for (chunk, version) in due {
            self.collector.watched.remove(&chunk);
            // A busy chunk is looked at again in a later round.
            let _dropped_when_full = self.enqueue(chunk, Waiting::Collect(version), turn);
        }
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
            let room = collector.watched.len() < TOMBSTONES_MAX;
            match collector.watched.get_mut(chunk) {
                Some(seen) if seen.0 != meta.version => *seen = (meta.version, turn.now),
                None if room => {
                    collector.watched.insert(*chunk, (meta.version, turn.now));
                }
                Some(_) | None => {}
            }
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
        if !committed.as_ref().is_some_and(tombstone) {
            return; // Written again meanwhile.
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
