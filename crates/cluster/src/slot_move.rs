//! A slot's way to another chain: what the head of the chain that it leaves does.
//!
//! `docs/placement.md` has the rules of everybody else, and why nothing is lost or comes back. In
//! short: once its routing says that the slot leaves, the head admits no more puts; it waits for
//! the updates that it admitted before, then copies chunk by chunk and removes what has arrived.
//! The slot is done when the whole list, looked through from its begin, is empty. A new head of the
//! chain begins anew; what is gone need not be copied again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use millpond_types::cluster::SlotDone;
use millpond_types::limits::{SLOT_JOBS_MAX, SLOT_PAGE_CHUNKS, SLOT_RETRY_MS};
use millpond_types::{ChunkId, Tick};

/// What happened.
#[derive(Clone, Debug)]
pub enum SlotEvent<'a> {
    /// Time passed; these chunks of the chain have updates under way.
    Tick {
        /// All of them, of whatever slot.
        busy: &'a BTreeSet<ChunkId>,
    },
    /// To [`SlotEffect::List`]; none when the store could not say.
    Page(Option<SlotChunks>),
    /// To [`SlotEffect::Copy`].
    Copied(ChunkId, Copied),
    /// To [`SlotEffect::Remove`]: true once it is gone, whoever removed it.
    Removed(ChunkId, bool),
}

/// A page of the slot's chunks, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotChunks {
    /// Those with bytes.
    pub chunks: Vec<ChunkId>,
    /// There are tombstones of burials among them, from when the slot came here. They must be
    /// gone before it may come here again: they would keep chunks from coming along.
    pub graves: bool,
    /// There are no more after them.
    pub complete: bool,
}

/// What came of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// The new chain has it, or had it and deleted it: `Done` or `Exists`.
    There,
    /// The old chain has it no more.
    Gone,
    /// Not known. It is tried again.
    Failed,
}

/// Something to do. Everything but `Done` is answered, in the end with a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotEffect {
    /// Which chunks of the slot are committed here, after this one?
    List {
        /// Begin, exclusive.
        after: Option<ChunkId>,
        /// How many at most.
        max: usize,
    },
    /// Read the committed version and import it at the head of the new chain. The last attempt
    /// leaves at most `SLOT_COPY_MS_MAX` after the read began. One that expired is not copied: `There`.
    Copy(ChunkId),
    /// Remove it from the old chain, with a lane of the mover.
    Remove(ChunkId),
    /// Everything is moved: say so with every heartbeat until the routing shows it.
    Done(SlotDone),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Updates that were admitted before are under way.
    Settling,
    /// A page was asked for.
    Listing,
    /// The page's chunks are on their way.
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
    /// Busy since before puts were refused.
    waits: BTreeSet<ChunkId>,
    todo: VecDeque<ChunkId>,
    jobs: BTreeMap<ChunkId, Job>,
    /// End of the page under way, and whether it is the last.
    cursor: Option<ChunkId>,
    complete: bool,
    /// This look through the list has found something, or failed at something.
    found: bool,
    failed: bool,
    /// Looks through the whole list in which nothing failed, since one in which something did.
    looks: u32,
    moved: u64,
}

impl SlotMove {
    /// Begins, or begins anew at a new head. Puts into the slot are refused from before `busy` was
    /// taken: all chunks of the chain that have updates under way.
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

    /// What moves where.
    #[must_use]
    pub const fn what(&self) -> SlotDone {
        self.done
    }

    /// Chunks that have arrived since this head began.
    #[must_use]
    pub const fn moved(&self) -> u64 {
        self.moved
    }

    /// About how much of the slot is through, in thousandths. Its chunks go in the order of their
    /// ids, which are hashes: as much of the chunks as of all ids.
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

    /// Everything is moved.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Takes one event in and appends what is to be done.
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

    /// From the begin of the list.
    fn look_through(&mut self, effects: &mut Vec<SlotEffect>) {
        (self.cursor, self.found, self.failed) = (None, false, false);
        self.list(effects);
    }

    fn list(&mut self, effects: &mut Vec<SlotEffect>) {
        self.phase = Phase::Listing;
        effects.push(SlotEffect::List { after: self.cursor, max: SLOT_PAGE_CHUNKS });
    }

    /// Starts copies, and goes on when the page is done.
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

/// The part of all ids before one, in thousandths.
fn position(chunk: ChunkId) -> u16 {
    let part = (chunk.0 >> 112) * 1000 / 65_536;
    u16::try_from(part).unwrap_or(1000)
}

#[cfg(test)]
mod tests;
