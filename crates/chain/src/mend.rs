//! The search for chunks that are lost here, repeated when other replicas take part in writes: a
//! good copy that comes back is fetched without a read or the scrubber.
//!
//! Lists of a resync compare versions only, and a lost chunk has the version of a good one. So a
//! syncing target is up to date only once it has asked for the chunks that it lacks bytes of.

use std::collections::{BTreeSet, VecDeque};

use millpond_types::ChunkId;
use millpond_types::cluster::{TargetId, TargetState};
use millpond_types::limits::CHAIN_REPAIRS_MAX;

use crate::event::{ReadOp, StoreOp, Turn};
use crate::message::{Meta, Payload};
use crate::replica::{Found, Job, Replica};

/// One round over all chunks that are lost here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mend {
    /// Unchecked chunks that only the replica's memory marks as lost.
    damaged: VecDeque<ChunkId>,
    /// Position in the store's list.
    cursor: Option<ChunkId>,
    listed: bool,
    /// Searches in flight; bounded like all repairs.
    open: BTreeSet<ChunkId>,
}

impl<P: Payload> Replica<P> {
    /// Starts a round for a new version of the chain: other replicas may have copies that were
    /// missing before.
    pub(crate) fn mend_restart(&mut self, turn: &mut Turn<'_, P>) {
        let writers: BTreeSet<(TargetId, TargetState)> = self.view.writers().collect();
        let news = !writers.is_subset(&self.mend_writers);
        self.mend_writers = writers;
        if self.view.holders().is_empty() {
            self.mend = None;
        } else if news {
            self.jobs.retain(|_, job| !matches!(job, Job::LostList));
            let damaged = self.lost.keys().copied().collect();
            self.mend = Some(Mend { damaged, ..Mend::default() });
            self.mend_tick(turn);
        }
    }

    /// Starts as many more searches as the bounds allow; the round ends when nothing is left.
    pub(crate) fn mend_tick(&mut self, turn: &mut Turn<'_, P>) {
        let Some(mut mend) = self.mend.take() else { return };
        mend.open.retain(|chunk| self.searching(*chunk) || self.looking(*chunk));
        let searches = self.slots.values().filter(|slot| slot.repair.is_some()).count();
        let mut room = CHAIN_REPAIRS_MAX.saturating_sub(searches.max(mend.open.len()));
        while room > 0
            && let Some(chunk) = mend.damaged.pop_front()
        {
            mend.open.insert(chunk);
            self.look_again(chunk, turn);
            room -= 1;
        }
        let listing = self.jobs.values().any(|job| matches!(job, Job::LostList));
        if room > 0 && !mend.listed && !listing {
            self.store(Job::LostList, StoreOp::ListLost(mend.cursor, room), turn);
        }
        let over = mend.listed && mend.damaged.is_empty() && mend.open.is_empty();
        self.mend = (!over).then_some(mend);
    }

    pub(crate) fn on_lost_page(
        &mut self,
        items: &[(ChunkId, Meta)],
        complete: bool,
        turn: &mut Turn<'_, P>,
    ) {
        let mut left_out = false;
        for (chunk, _) in items {
            self.begin_repair(*chunk, turn);
            if !self.searching(*chunk) {
                left_out = true; // Reads have begun searches in the meantime: continue with the next tick.
                break;
            }
            if let Some(mend) = &mut self.mend {
                mend.open.insert(*chunk);
                mend.cursor = Some(*chunk);
            }
        }
        if let Some(mend) = &mut self.mend {
            mend.listed = complete && !left_out;
        }
        self.mend_tick(turn);
    }

    fn searching(&self, chunk: ChunkId) -> bool {
        self.slots.get(&chunk).is_some_and(|slot| slot.repair.is_some())
    }

    fn looking(&self, chunk: ChunkId) -> bool {
        self.jobs.values().any(|job| matches!(job, Job::Recheck(of) if *of == chunk))
    }

    /// Reads the damaged place again, and searches for a copy if it is still damaged.
    pub(crate) fn look_again(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        if self.slots.get(&chunk).is_some_and(|slot| slot.lost) {
            return self.begin_repair(chunk, turn); // There is nothing to read.
        }
        if !self.searching(chunk) && !self.looking(chunk) {
            let read = ReadOp { chunk, version: None, offset: 0, len: u32::MAX };
            self.store(Job::Recheck(chunk), StoreOp::Read(read), turn);
        }
    }

    pub(crate) fn on_rechecked(
        &mut self,
        chunk: ChunkId,
        found: Option<&Found<P>>,
        turn: &mut Turn<'_, P>,
    ) {
        match found {
            Some(Some((meta, Some(_)))) => self.on_whole_read(chunk, meta),
            Some(_) => {} // Removed in the meantime.
            None => self.begin_repair(chunk, turn),
        }
    }

    /// Unmarks a chunk that could be read after all.
    pub(crate) fn on_whole_read(&mut self, chunk: ChunkId, meta: &Meta) {
        if self.lost.get(&chunk) == Some(meta) {
            self.lost.remove(&chunk);
        }
    }
}
