//! Damaged chunks: the committed version is fetched whole from another replica.

use millpond_types::ChunkId;
use millpond_types::cluster::TargetId;
use millpond_types::limits::CHAIN_REPAIRS_MAX;

use crate::event::{Alarm, Effect, ReadOp, StoreError, StoreOp, Turn};
use crate::message::{Meta, Payload, PeerBody, Write};
use crate::replica::{Job, Replica, resend_due};
use crate::slot::{Lock, Repair, Stage};

impl<P: Payload> Replica<P> {
    /// The scrubber or a read met bad bytes.
    pub(crate) fn on_damaged(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        if self.writes() {
            self.begin_repair(chunk, turn);
        }
    }

    pub(crate) fn begin_repair(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        if self.view.holders().is_empty() {
            return turn.emit(Effect::Alarm(Alarm::Unrepairable(chunk)));
        }
        let repairs = self.slots.values().filter(|slot| slot.repair.is_some()).count();
        if repairs >= CHAIN_REPAIRS_MAX {
            return; // The scrubber, or the next read, meets it again.
        }
        let now = turn.now;
        let slot = self.slot(chunk, turn);
        if slot.repair.is_none() {
            slot.repair = Some(Repair { asked: 0, sent: now });
            self.ask_copy(chunk, turn);
        }
    }

    fn ask_copy(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        let holders = self.view.holders();
        let Some(slot) = self.slots.get_mut(&chunk) else { return };
        let Some(repair) = &mut slot.repair else { return };
        repair.sent = turn.now;
        repair.asked += 1;
        if holders.is_empty() || repair.asked > 4 * holders.len() {
            // Gone for now; a pending version that needs it starts the search again.
            slot.repair = None;
            turn.emit(Effect::Alarm(Alarm::Unrepairable(chunk)));
            return self.pump(chunk, turn);
        }
        let holder = holders[repair.asked % holders.len()];
        self.send(holder, PeerBody::Fetch { chunk }, turn);
    }

    /// Another replica's copy is damaged. A damaged copy here stays unanswered.
    pub(crate) fn on_fetch(&mut self, from: TargetId, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        let read = ReadOp { chunk, version: None, offset: 0, len: u32::MAX };
        self.store(Job::Fetch(from, chunk), StoreOp::Read(read), turn);
    }

    pub(crate) fn on_fetched(
        &mut self,
        chunk: ChunkId,
        meta: Meta,
        bytes: P,
        turn: &mut Turn<'_, P>,
    ) {
        let good = meta.data().is_some_and(|(_, crc)| crc == bytes.crc());
        let Some(slot) = self.slots.get_mut(&chunk) else { return };
        if slot.repair.is_none() || !slot.known || slot.lock.is_some() || !good {
            return;
        }
        if let Some(pending) = &mut slot.pending {
            let failed = matches!(pending.stage, Stage::Failed(StoreError::Corrupt, _));
            let update = &mut pending.update;
            if failed && update.version == meta.version && update.tag == meta.tag {
                // The holder has committed what could not be made from the damaged base.
                update.crc = bytes.crc();
                update.write = Write::Whole(bytes);
                slot.repair = None;
                return self.stage(chunk, turn);
            }
            if !failed {
                return; // The version under way may replace the damaged one.
            }
        }
        if slot.committed == Some(meta) {
            slot.lock = Some(Lock::Restore);
            self.store(Job::Restore(chunk), StoreOp::Restore(chunk, meta, bytes), turn);
        } else if slot.pending.is_none() {
            // Another version took its place; it was written whole or made from good bytes.
            slot.repair = None;
            self.pump(chunk, turn);
        }
    }

    pub(crate) fn on_restored(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        if self.end_restore(chunk) {
            self.stage(chunk, turn);
        }
        self.pump(chunk, turn);
    }

    pub(crate) fn on_not_restored(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        self.end_restore(chunk);
        self.pump(chunk, turn);
    }

    /// Whether a pending version waits for what was to be restored.
    fn end_restore(&mut self, chunk: ChunkId) -> bool {
        let Some(slot) = self.slots.get_mut(&chunk) else { return false };
        assert!(slot.lock == Some(Lock::Restore), "only a repair restores");
        slot.lock = None;
        slot.repair = None;
        slot.pending.is_some()
    }

    pub(crate) fn repair_tick(&mut self, turn: &mut Turn<'_, P>) {
        let now = turn.now;
        let mut again = Vec::new();
        let mut start = Vec::new();
        for (chunk, slot) in &self.slots {
            let failed = |p: &crate::slot::Pending<P>| matches!(p.stage, Stage::Failed(StoreError::Corrupt, at) if resend_due(Some(at), now));
            match slot.repair {
                Some(repair) if resend_due(Some(repair.sent), now) && slot.lock.is_none() => {
                    again.push(*chunk);
                }
                None if slot.pending.as_ref().is_some_and(failed) => start.push(*chunk),
                _ => {}
            }
        }
        for chunk in again {
            self.ask_copy(chunk, turn);
        }
        for chunk in start {
            self.begin_repair(chunk, turn);
        }
    }
}
