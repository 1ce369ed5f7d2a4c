//! Resync, the receiving side: the syncing target compares, installs, and reports when it is done.

use std::collections::BTreeMap;

use millpond_types::cluster::ChainVersion;
use millpond_types::limits::RESYNC_PAGE_CHUNKS;
use millpond_types::{Ack, ChunkId};

use crate::event::{Alarm, Effect, StageRequest, StoreOp, Turn};
use crate::message::{LaneRecord, Meta, Payload, PeerBody, SyncBody, Write};
use crate::mutation::mutated;
use crate::replica::{Job, Replica};
use crate::slot::{Install, Lock, Waiting};

/// A page of the source's list, while the local store is being listed.
#[derive(Clone, Debug)]
struct Page {
    nonce: u64,
    until: Option<ChunkId>,
    items: Vec<(ChunkId, Meta)>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sink {
    /// All chunks up to here are equal to the source's.
    cursor: Option<ChunkId>,
    /// All chunks are equal, durably.
    pub(crate) done: bool,
    page: Option<Page>,
}

impl<P: Payload> Replica<P> {
    fn sink_say(&self, body: SyncBody<P>, turn: &mut Turn<'_, P>) {
        if let Some(source) = self.view.predecessor() {
            self.send(source, PeerBody::Sync(body), turn);
        }
    }

    pub(crate) fn on_hello(&self, turn: &mut Turn<'_, P>) {
        let Sink { cursor, done, .. } = self.sink;
        self.sink_say(SyncBody::Progress { cursor, done }, turn);
    }

    pub(crate) fn on_list(
        &mut self,
        page: (u64, Option<ChunkId>, Option<ChunkId>),
        items: Vec<(ChunkId, Meta)>,
        turn: &mut Turn<'_, P>,
    ) {
        let (nonce, after, until) = page;
        if self.sink.page.as_ref().is_some_and(|page| page.nonce >= nonce) {
            return; // A copy of the page being compared, or older.
        }
        self.sink.cursor = self.sink.cursor.max(after);
        self.sink.page = Some(Page { nonce, until, items });
        self.jobs.retain(|_, job| !matches!(job, Job::SinkList));
        let list = StoreOp::List { after, until, max: 2 * RESYNC_PAGE_CHUNKS };
        self.store(Job::SinkList, list, turn);
    }

    pub(crate) fn on_sink_page(
        &mut self,
        mine: Vec<(ChunkId, Meta)>,
        complete: bool,
        turn: &mut Turn<'_, P>,
    ) {
        let Some(page) = self.sink.page.take() else { return };
        // With many chunks that the source lacks, the local list may end before the page does.
        let until = if complete { page.until } else { mine.last().map(|(chunk, _)| *chunk) };
        let theirs = page.items.into_iter().filter(|(chunk, _)| until.is_none_or(|u| *chunk <= u));
        let mut differ: BTreeMap<ChunkId, (Option<Meta>, Option<Meta>)> =
            theirs.map(|(chunk, meta)| (chunk, (Some(meta), None))).collect();
        for (chunk, meta) in mine {
            differ.entry(chunk).or_default().1 = Some(meta);
        }
        let items = differ.into_iter().filter(|(_, (theirs, mine))| theirs != mine);
        let items = items.map(|(chunk, (_, mine))| (chunk, mine)).collect();
        self.sink_say(SyncBody::Differ { nonce: page.nonce, until, items }, turn);
    }

    pub(crate) fn on_put(&mut self, chunk: ChunkId, install: Install<P>, turn: &mut Turn<'_, P>) {
        let slot = self.slot(chunk, turn);
        let queued = slot.queue.iter().any(|waiting| matches!(waiting, Waiting::Install(_)));
        if slot.known && slot.locked() || queued {
            return; // The source sends it again.
        }
        let _dropped_when_full = self.enqueue(chunk, Waiting::Install(install), turn);
    }

    /// Gives the free chunk the source's state, if its own is still the one that the source
    /// expects.
    pub(crate) fn begin_install(
        &mut self,
        chunk: ChunkId,
        install: Install<P>,
        turn: &mut Turn<'_, P>,
    ) {
        let ignore = mutated!(self, ResyncIgnoresExpect);
        let Some(slot) = self.slots.get_mut(&chunk) else { return };
        if slot.committed == install.meta || slot.committed != install.expect && !ignore {
            let meta = slot.committed;
            return self.sink_say(SyncBody::Has { chunk, meta }, turn);
        }
        let Some(meta) = install.meta else {
            (slot.committed, slot.lost, slot.repair) = (None, false, None);
            turn.emit(Effect::Remove(chunk));
            return self.sink_say(SyncBody::Has { chunk, meta: None }, turn);
        };
        if install.lost {
            return self.install_lost(chunk, meta, install.bytes, turn);
        }
        let write = match (meta.data(), install.bytes) {
            (None, _) => Write::Tombstone,
            (Some((_, crc)), Some(bytes)) if crc == bytes.crc() => Write::Whole(bytes),
            _ => return, // Damaged on the way: the source sends it again.
        };
        slot.lock = Some(Lock::Install { meta, lost: false });
        let Meta { version, written, tag, .. } = meta;
        // One barrier at the end makes all of them durable.
        let durability = Ack::Memory;
        let stage = StageRequest { chunk, version, written, tag, write, durability };
        self.store(Job::Install(chunk), StoreOp::Stage(stage), turn);
    }

    /// Records the version of a chunk whose bytes no replica has, and that it must not be read.
    fn install_lost(
        &mut self,
        chunk: ChunkId,
        meta: Meta,
        label: Option<P>,
        turn: &mut Turn<'_, P>,
    ) {
        let nothing = mutated!(self, LostAsNothing);
        let empty = mutated!(self, LostAsEmpty);
        let (Some(slot), Some(label)) = (self.slots.get_mut(&chunk), label) else { return };
        if meta.data().is_none_or(|(len, _)| len == 0) {
            return; // A deletion or an empty chunk has no bytes to lose.
        }
        if nothing {
            return self.sink_say(SyncBody::Has { chunk, meta: Some(meta) }, turn);
        }
        slot.lock = Some(Lock::Install { meta, lost: true });
        turn.emit(Effect::Alarm(Alarm::Lost(chunk)));
        let Meta { version, written, tag, .. } = meta;
        let op = if empty {
            let (write, durability) = (Write::Whole(label), Ack::Memory);
            StoreOp::Stage(StageRequest { chunk, version, written, tag, write, durability })
        } else {
            StoreOp::StageLost(chunk, meta, label)
        };
        self.store(Job::Install(chunk), op, turn);
    }

    pub(crate) fn on_installed(&mut self, chunk: ChunkId, stored: bool, turn: &mut Turn<'_, P>) {
        let Some(slot) = self.slots.get_mut(&chunk) else { return };
        let Some(Lock::Install { meta, lost }) = slot.lock.take() else { return };
        if stored {
            (slot.committed, slot.lost, slot.repair) = (Some(meta), lost, None);
            turn.emit(Effect::Commit(chunk, meta.version));
            self.sink_say(SyncBody::Has { chunk, meta: Some(meta) }, turn);
        } else {
            turn.emit(Effect::Unstage(chunk));
        }
        self.pump(chunk, turn);
    }

    pub(crate) fn on_finish(
        &mut self,
        lanes: &[LaneRecord],
        complete_since: ChainVersion,
        turn: &mut Turn<'_, P>,
    ) {
        if self.sink.done {
            return self.on_hello(turn);
        }
        if self.jobs.values().any(|job| matches!(job, Job::SinkSync)) {
            return;
        }
        if self.mend.is_some() {
            return; // Some of the lost chunks may be found; the source asks again.
        }
        if mutated!(self, NoDedupHandover) {
            self.dedup.complete_since = ChainVersion(0);
        } else {
            for LaneRecord { tag, answer } in lanes {
                self.dedup.record(*tag, *answer, turn.now);
            }
            self.dedup.complete_since = complete_since;
        }
        self.store(Job::SinkSync, StoreOp::Sync, turn);
    }

    pub(crate) fn on_sink_synced(&mut self, turn: &mut Turn<'_, P>) {
        self.sink.done = true;
        self.on_hello(turn);
    }
}
