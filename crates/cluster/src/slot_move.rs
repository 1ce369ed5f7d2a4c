//! A slot's way to another chain: the part of the head of the old chain.
//!
//! `docs/placement.md` has the rules of the other participants, and why nothing is lost or comes
//! back. In short: once its routing shows that the slot leaves, the head admits no more puts. It
//! waits for the updates that it admitted before, then copies chunk by chunk and removes those that
//! have arrived. The slot is done when one pass over the whole list finds nothing. A new head of
//! the chain starts again; chunks that are gone need not be copied again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use millpond_types::cluster::SlotDone;
use millpond_types::limits::{SLOT_JOBS_MAX, SLOT_PAGE_CHUNKS, SLOT_RETRY_MS};
use millpond_types::{ChunkId, Tick};

/// An event.
#[derive(Clone, Debug)]
pub enum SlotEvent<'a> {
    /// Time passed; these chunks of the chain have updates in flight.
    Tick {
        /// All busy chunks, of every slot.
        busy: &'a BTreeSet<ChunkId>,
    },
    /// To [`SlotEffect::List`]; `None` when the store failed.
    Page(Option<SlotChunks>),
    /// To [`SlotEffect::Copy`].
    Copied(ChunkId, Copied),
    /// To [`SlotEffect::Remove`]: true once it is gone, by any removal.
    Removed(ChunkId, bool),
}

/// A page of the slot's chunks, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotChunks {
    /// Chunks with bytes.
    pub chunks: Vec<ChunkId>,
    /// Whether there are tombstones of burials among them, from when the slot came here. They must
    /// be gone before it may come here again: they would keep chunks from moving.
    pub graves: bool,
    /// Whether this is the last page.
    pub complete: bool,
}

/// Result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// The new chain has it, or had it and deleted it: `Done` or `Exists`.
    There,
    /// The old chain does not have it any more.
    Gone,
    /// Unknown. It is tried again.
    Failed,
}

/// An effect. Every one except `Done` is answered, at the latest with a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotEffect {
    /// List the committed chunks of the slot after this one.
    List {
        /// Begin, exclusive.
        after: Option<ChunkId>,
        /// Most chunks.
        max: usize,
    },
    /// Read the committed version and import it at the head of the new chain. The last attempt is
    /// sent at most `SLOT_COPY_MS_MAX` after the read began. An expired chunk is not copied:
    /// `There`.
    Copy(ChunkId),
    /// Remove it from the old chain, with a lane of the mover.
    Remove(ChunkId),
    /// Everything is moved: report it with every heartbeat until the routing shows it.
    Done(SlotDone),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Earlier admitted updates are in flight.
    Settling,
    /// A page was requested.
    Listing,
    /// The page's chunks are being moved.
    Moving,
    /// Some chunk failed, or a tombstone is still needed.
    Pausing(Tick),
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Copy,
    Remove,
}

/// One slot that leaves a chain, at the chain's head.
#[derive(Clone, Debug)]
pub struct SlotMove {
    done: SlotDone,
    phase: Phase,
    /// Chunks that are busy since before puts were refused.
    waits: BTreeSet<ChunkId>,
    todo: VecDeque<ChunkId>,
    jobs: BTreeMap<ChunkId, Job>,
    /// End of the current page, and whether it is the last.
    cursor: Option<ChunkId>,
    complete: bool,
    /// Whether this pass over the list has found a chunk, and whether one failed.
    found: bool,
    failed: bool,
    /// Passes over the whole list without failures, since the last one with a failure.
    looks: u32,
    moved: u64,
}

impl SlotMove {
    /// Starts a move, or restarts it at a new head. `busy` are all chunks of the chain with updates
    /// in flight; the caller must refuse puts into the slot before it collects them.
    #[must_use]
    pub fn new(done: SlotDone, busy: BTreeSet<ChunkId>) -> Self {
        Self {
            done,
            phase: Phase::Settling,
            waits: busy,
            todo: VecDeque::new(),
            jobs: BTreeMap::new(),
            cursor: None,
            complete: false,
            found: false,
            failed: false,
            looks: 0,
            moved: 0,
        }
    }

    /// The move: slot, source and destination.
    #[must_use]
    pub const fn what(&self) -> SlotDone {
        self.done
    }

    /// Chunks that have arrived since this head began.
    #[must_use]
    pub const fn moved(&self) -> u64 {
        self.moved
    }

    /// Approximate progress of the slot, in thousandths. Chunks move in the order of their ids,
    /// which are hashes, so the position among all ids is the part of the chunks that is done.
    #[must_use]
    pub fn through(&self) -> u16 {
        if self.looks > 0 || self.is_done() {
            return 1000;
        }
        let next = self.jobs.keys().next().into_iter().chain(self.todo.front()).min();
        match (next, self.phase) {
            (Some(next), _) => position(*next),
            (None, Phase::Listing) => self.cursor.map_or(0, position),
            (None, _) => 0,
        }
    }

    /// Whether everything is moved.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Processes one event and appends the effects.
    pub fn step(&mut self, now: Tick, event: SlotEvent<'_>, effects: &mut Vec<SlotEffect>) {
        match event {
            SlotEvent::Tick { busy } => self.tick(now, busy, effects),
            SlotEvent::Page(page) => {
                if self.phase != Phase::Listing {
                    return;
                }
                if let Some(SlotChunks { chunks, graves, complete }) = page {
                    self.failed |= graves;
                    self.found |= !chunks.is_empty();
                    self.cursor = chunks.last().copied().or(self.cursor);
                    self.complete = complete;
                    self.todo.extend(chunks);
                } else {
                    (self.failed, self.complete) = (true, true);
                }
                self.phase = Phase::Moving;
            }
            SlotEvent::Copied(chunk, copied) => {
                if self.jobs.get(&chunk) != Some(&Job::Copy) {
                    return;
                }
                self.failed |= copied == Copied::Failed;
                if copied == Copied::There {
                    self.jobs.insert(chunk, Job::Remove);
                    effects.push(SlotEffect::Remove(chunk));
                } else {
                    self.jobs.remove(&chunk);
                }
            }
            SlotEvent::Removed(chunk, gone) => {
                if self.jobs.get(&chunk) != Some(&Job::Remove) {
                    return;
                }
                self.jobs.remove(&chunk);
                self.failed |= !gone;
                self.moved += u64::from(gone);
            }
        }
        self.go_on(now, effects);
    }

    fn tick(&mut self, now: Tick, busy: &BTreeSet<ChunkId>, effects: &mut Vec<SlotEffect>) {
        match self.phase {
            Phase::Settling => {
                self.waits.retain(|chunk| busy.contains(chunk));
                if self.waits.is_empty() {
                    self.look_through(effects);
                }
            }
            Phase::Pausing(until) if now >= until => self.look_through(effects),
            _ => {}
        }
    }

    /// Starts a pass at the beginning of the list.
    fn look_through(&mut self, effects: &mut Vec<SlotEffect>) {
        (self.cursor, self.found, self.failed) = (None, false, false);
        self.list(effects);
    }

    fn list(&mut self, effects: &mut Vec<SlotEffect>) {
        self.phase = Phase::Listing;
        effects.push(SlotEffect::List { after: self.cursor, max: SLOT_PAGE_CHUNKS });
    }

    /// Starts copies, and continues when the page is done.
    fn go_on(&mut self, now: Tick, effects: &mut Vec<SlotEffect>) {
        if self.phase != Phase::Moving {
            return;
        }
        while self.jobs.len() < SLOT_JOBS_MAX
            && let Some(chunk) = self.todo.pop_front()
        {
            self.jobs.insert(chunk, Job::Copy);
            effects.push(SlotEffect::Copy(chunk));
        }
        if !self.jobs.is_empty() {
            return;
        }
        match (self.complete, self.failed, self.found) {
            (false, ..) => self.list(effects),
            (true, true, _) => {
                self.looks = 0;
                self.phase = Phase::Pausing(now.plus(Duration::from_millis(SLOT_RETRY_MS)));
            }
            (true, false, true) => {
                self.looks += 1;
                self.look_through(effects);
            }
            (true, false, false) => {
                self.phase = Phase::Done;
                effects.push(SlotEffect::Done(self.done));
            }
        }
    }
}

/// The share of all ids before `chunk`, in thousandths.
fn position(chunk: ChunkId) -> u16 {
    let part = (chunk.0 >> 112) * 1000 / 65_536;
    u16::try_from(part).unwrap_or(1000)
}

#[cfg(test)]
mod tests;
