//! Slots that leave chains headed on this node: the shell round [`SlotMove`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_chain::{Event, Op, ReadRequest, Reply};
use millpond_cluster::{Copied, SlotChunks, SlotEffect, SlotEvent, SlotMove};
use millpond_env::{RealClock, sleep, spawn};
use millpond_types::cluster::{ChainId, Routing, SlotDone, SlotProgress, SlotsMoved};
use millpond_types::limits::SLOT_COPY_MS_MAX;
use millpond_types::wire::{SlotOp, SlotOutcome};
use millpond_types::{Ack, ChunkId, Crc32c, SlotId, Tick};
use parking_lot::Mutex;

use super::Host;
use super::attrs::Block;
use super::blob::Blob;
use super::hosted::Hosted;
use super::kv::unix_seconds;
use super::relay::Question;
use super::update::Change;

/// Chunks checked at a time for those of a slot, under a replica's lock.
const LIST_STEP: usize = 4096;
/// Interval of looks at the pace.
const PACE: Duration = Duration::from_millis(5);

/// A moving slot.
pub(super) struct Mover {
    what: SlotDone,
    hosted: Arc<Hosted>,
    state: Mutex<SlotMove>,
    /// Chunks copied by this head; `bytes` are their bytes.
    chunks: AtomicU64,
    bytes: AtomicU64,
}

impl std::fmt::Debug for Mover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mover").field("what", &self.what).finish_non_exhaustive()
    }
}

impl Mover {
    fn new(hosted: Arc<Hosted>, state: SlotMove) -> Self {
        Self {
            what: state.what(),
            hosted,
            state: Mutex::new(state),
            chunks: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }
}

/// All slots that are leaving chains of this node.
#[derive(Debug, Default)]
pub(super) struct Movers {
    slots: Mutex<BTreeMap<SlotId, Arc<Mover>>>,
    pace: Pace,
    /// Chunks copied to their new chains since the start; `bytes` are their bytes.
    chunks: AtomicU64,
    bytes: AtomicU64,
    /// Copies and removals that failed.
    failures: AtomicU64,
}

/// Limits bytes per second, as a debt that is paid off with time.
#[derive(Debug, Default)]
struct Pace {
    free_at: Mutex<Tick>,
}

impl Pace {
    /// Waits until `bytes` may be sent.
    async fn take(&self, bytes: u64, rate: u64) {
        let cost = bytes.saturating_mul(1_000_000_000) / rate.max(1);
        let cost = Duration::from_nanos(cost);
        let start = {
            let mut free_at = self.free_at.lock();
            let start = (*free_at).max(RealClock::tick());
            *free_at = start.plus(cost);
            start
        };
        while RealClock::tick() < start {
            sleep(PACE).await;
        }
    }
}

impl Movers {
    /// Slots with a finished move.
    pub(super) fn done(&self) -> Vec<SlotDone> {
        let slots = self.slots.lock();
        slots.values().filter(|mover| mover.state.lock().is_done()).map(|m| m.what).collect()
    }

    /// Chunks moved so far, and the progress of moving slots.
    pub(super) fn moved(&self) -> SlotsMoved {
        let slots = self.slots.lock();
        let moving = slots.values().map(|mover| SlotProgress {
            slot: mover.what.slot,
            chunks: mover.chunks.load(Ordering::Relaxed),
            bytes: mover.bytes.load(Ordering::Relaxed),
            through: mover.state.lock().through(),
        });
        SlotsMoved {
            chunks: self.chunks.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            moving: moving.collect(),
        }
    }

    fn copied(&self, mover: &Mover, bytes: u64) {
        for (count, more) in
            [(&self.chunks, 1), (&self.bytes, bytes), (&mover.chunks, 1), (&mover.bytes, bytes)]
        {
            count.fetch_add(more, Ordering::Relaxed);
        }
    }

    fn failed(&self, failed: bool) {
        self.failures.fetch_add(u64::from(failed), Ordering::Relaxed);
    }
}

impl Host {
    /// Starts and ends movers according to routing. A new head of a chain starts from the
    /// beginning.
    fn look_after_slots(self: &Arc<Self>) {
        let routing = self.routing();
        self.end_movers(&routing);
        let mut slots = self.movers.slots.lock();
        for (slot, from) in &routing.moving {
            if slots.contains_key(slot) {
                continue;
            }
            let head = self.replicas_of(*from).find(|hosted| hosted.is_head());
            let Some(hosted) = head else { continue };
            let what = SlotDone { slot: *slot, from: *from, to: routing.place(*slot).chain };
            // Puts are refused before the list of updates under way is taken.
            let busy = self.slot_leaves(&hosted, *slot);
            slots.insert(*slot, Arc::new(Mover::new(hosted, SlotMove::new(what, busy))));
        }
    }

    fn end_movers(&self, routing: &Routing) {
        self.movers.slots.lock().retain(|slot, mover| {
            let place = routing.place(*slot);
            let what = SlotDone { slot: *slot, from: mover.what.from, to: place.chain };
            place.old == Some(what.from) && what == mover.what && mover.hosted.is_head()
        });
    }

    /// Refuses clients' updates of a slot at this head from now on; returns the chunks with updates
    /// under way.
    pub(super) fn slot_leaves(&self, hosted: &Hosted, slot: SlotId) -> BTreeSet<ChunkId> {
        let busy = hosted.leave(slot);
        // The slot may have come back by now: `take_back` for that routing ran before this.
        if is_home(&self.routing(), slot, hosted.chain) {
            hosted.take_back(slot);
        }
        busy
    }

    /// Takes updates again of slots that came back between two versions of routing.
    pub(super) fn take_back(&self, before: &Routing, routing: &Routing) {
        self.end_movers(routing);
        for slot in routing.slots_unlike(before) {
            let chain = routing.place(slot).chain;
            if is_home(routing, slot, chain) {
                self.replicas_of(chain).for_each(|hosted| hosted.take_back(slot));
            }
        }
    }

    /// Advances the movers of a core.
    pub(super) fn move_slots(self: &Arc<Self>, lane: usize) {
        if lane == 0 {
            self.look_after_slots();
        }
        let mine = |mover: &&Arc<Mover>| mover.what.slot.0 as usize % self.lanes() == lane;
        let movers: Vec<Arc<Mover>> =
            self.movers.slots.lock().values().filter(mine).cloned().collect();
        for mover in movers {
            let busy: BTreeSet<ChunkId> = mover.hosted.state().replica.busy().collect();
            self.advance(&mover, SlotEvent::Tick { busy: &busy });
        }
    }

    fn advance(self: &Arc<Self>, mover: &Arc<Mover>, event: SlotEvent<'_>) {
        let mut effects = Vec::new();
        mover.state.lock().step(RealClock::tick(), event, &mut effects);
        for effect in effects {
            let (host, mover) = (Arc::clone(self), Arc::clone(mover));
            match effect {
                SlotEffect::List { after, max } => spawn(async move {
                    let page = list(&mover, after, max).await;
                    host.advance(&mover, SlotEvent::Page(Some(page)));
                })
                .detach(),
                SlotEffect::Copy(chunk) => spawn(async move {
                    let copied = host.copy(&mover, chunk).await;
                    host.movers.failed(copied == Copied::Failed);
                    host.advance(&mover, SlotEvent::Copied(chunk, copied));
                })
                .detach(),
                SlotEffect::Remove(chunk) => spawn(async move {
                    let gone = host.remove_moved(&mover, chunk).await;
                    host.movers.failed(!gone);
                    host.advance(&mover, SlotEvent::Removed(chunk, gone));
                })
                .detach(),
                // Every heartbeat reports it until the routing shows it.
                SlotEffect::Done(SlotDone { slot, from, to }) => {
                    let (slot, from, to) = (slot.0, from.0, to.0);
                    let chunks = mover.state.lock().moved();
                    tracing::info!(slot, from, to, chunks, "a slot has moved");
                    self.around.changed.notify_one();
                }
            }
        }
    }

    /// Copies one chunk to the new chain, with its lease and its pin.
    async fn copy(self: &Arc<Self>, mover: &Mover, chunk: ChunkId) -> Copied {
        let hosted = &mover.hosted;
        if !self.all_know(mover.what.slot, (mover.what.from, mover.what.to)).await {
            return Copied::Failed;
        }
        let len = hosted.store.held(chunk).len;
        self.movers.pace.take(u64::from(len), self.rate()).await;
        let until = RealClock::tick().plus(Duration::from_millis(SLOT_COPY_MS_MAX));
        let blob = match read(hosted, chunk).await {
            Ok(Some(blob)) => blob,
            Ok(None) => return Copied::Gone,
            Err(()) => return Copied::Failed,
        };
        let expired = Block::decode(&blob.block).is_ok_and(|block| block.expired(unix_seconds()));
        if expired {
            return Copied::There;
        }
        let chains = (mover.what.to, mover.what.from);
        let question = Question {
            op: SlotOp::Import,
            slot: mover.what.slot,
            chains,
            chunk,
            blob: Some(blob),
            leased: hosted.store.leased_until(chunk),
        };
        let arrived = self.ask_head(&question, until).await == SlotOutcome::Done;
        if !arrived || !self.keep(hosted, question, until).await {
            return Copied::Failed;
        }
        self.movers.copied(mover, u64::from(len));
        Copied::There
    }

    /// Protects the new copy of a chunk from eviction as well as the chunk itself. Clients pin,
    /// unpin and lease at both chains, so a change in the meantime is seen here or there.
    async fn keep(self: &Arc<Self>, hosted: &Hosted, mut question: Question, until: Tick) -> bool {
        question.blob = None;
        let (chunk, mut pinned) = (question.chunk, false);
        loop {
            let leased = hosted.store.leased_until(chunk);
            if leased > question.leased {
                (question.op, question.leased) = (SlotOp::Lease, leased);
                // A copy that was evicted there in the meantime is copied again.
                if self.ask_head(&question, until).await != SlotOutcome::Done {
                    return false;
                }
            } else if hosted.store.is_pinned(chunk) != pinned {
                pinned = !pinned;
                question.op = if pinned { SlotOp::Pin } else { SlotOp::Unpin };
                if !self.pin_everywhere(&question, until).await {
                    return false;
                }
            } else {
                return true;
            }
        }
    }

    /// Pins, or unpins, a copy on all serving replicas of its chain: any may become the head.
    async fn pin_everywhere(self: &Arc<Self>, question: &Question, until: Tick) -> bool {
        let routing = self.routing();
        let Some(chain) = routing.chains.get(&question.chains.0) else { return false };
        for member in chain.serving() {
            if self.ask_node(member.node, question, until).await != SlotOutcome::Done {
                return false;
            }
        }
        true
    }

    /// Removes a chunk that has arrived. It must stay gone: the slot may come back.
    async fn remove_moved(&self, mover: &Mover, chunk: ChunkId) -> bool {
        let change = Change { chunk, op: Op::Remove, crc: Crc32c::EMPTY, durability: Ack::Disk };
        let reply = mover.hosted.change(self.own_tag(), change).await;
        matches!(reply, Some(Reply::Done(_) | Reply::NotFound))
    }
}

/// Whether a chain has a slot and is not losing it.
fn is_home(routing: &Routing, slot: SlotId, chain: ChainId) -> bool {
    let place = routing.place(slot);
    place.chain == chain && place.old != Some(chain)
}

/// Reads the committed version through the protocol; the error stands for a refused read.
async fn read(hosted: &Arc<Hosted>, chunk: ChunkId) -> Result<Option<Blob>, ()> {
    let reply = hosted.ask(|request, state| {
        let version = state.replica.chain_version();
        Some(Event::Read(request, ReadRequest { version, chunk, offset: 0, len: u32::MAX }))
    });
    match reply.await {
        Some(Reply::Data { bytes, .. }) => Ok(Some(bytes)),
        Some(Reply::NotFound) => Ok(None),
        _ => Err(()),
    }
}

/// A page of the slot's chunks at the old chain.
async fn list(mover: &Mover, mut after: Option<ChunkId>, max: usize) -> SlotChunks {
    use std::ops::Bound::{Excluded, Unbounded};
    let (hosted, mut page) = (&mover.hosted, SlotChunks::default());
    // A version being committed is in no list yet, and no longer counts as an update under way.
    hosted.settled().await;
    loop {
        let ids: Vec<ChunkId> = {
            let state = hosted.state();
            let from = after.map_or(Unbounded, Excluded);
            state.image.committed.range((from, Unbounded)).take(LIST_STEP).copied().collect()
        };
        page.complete = ids.len() < LIST_STEP;
        for chunk in ids {
            after = Some(chunk);
            let Some(version) = hosted.store.version(chunk) else { continue };
            if version.tombstone {
                // Its slot is not known any more.
                page.graves |= version.tag.lane.is_burial();
                continue;
            }
            let slot = Block::decode(&version.block).map(|block| block.slot);
            if slot == Ok(mover.what.slot) {
                page.chunks.push(chunk);
                if page.chunks.len() >= max {
                    page.complete = false;
                    return page;
                }
            }
        }
        if page.complete {
            return page;
        }
        millpond_env::yield_now().await;
    }
}
