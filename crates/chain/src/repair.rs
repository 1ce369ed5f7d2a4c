//! Damaged chunks: the committed version is fetched whole from another replica.

use std::collections::BTreeSet;

use millpond_types::ChunkId;
use millpond_types::cluster::TargetId;
use millpond_types::limits::{CHAIN_LOST_MAX, CHAIN_REPAIRS_MAX};

use crate::event::{Alarm, Effect, ReadOp, StoreError, StoreOp, Turn};
use crate::message::{Meta, Payload, PeerBody, Write};
use crate::replica::{Found, Job, Replica, resend_due};
use crate::slot::{Lock, Repair, Slot, Stage};

impl<P: Payload> Replica<P> {
    /// Starts the repair of a chunk with damaged bytes, found by the scrubber or a read.
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
            return; // The scrubber, or the next read, finds it again.
        }
        let now = turn.now;
        let searching = self.slot(chunk, turn).repair.is_some();
        if !searching {
            let nonce = self.name();
            let repair = Repair { nonce, asked: 0, sent: now, without: BTreeSet::new() };
            self.slot(chunk, turn).repair = Some(repair);
            self.forget_lost(chunk);
            self.ask_copy(chunk, turn);
        }
    }

    fn ask_copy(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        let holders = self.view.holders();
        let Some(slot) = self.slots.get_mut(&chunk) else { return };
        let Some(repair) = &mut slot.repair else { return };
        repair.sent = turn.now;
        repair.asked += 1;
        let open: Vec<TargetId> =
            holders.iter().copied().filter(|holder| !repair.without.contains(holder)).collect();
        if open.is_empty() || repair.asked > 4 * holders.len() {
            // Lost for now; a pending version that needs it starts the search again.
            slot.repair = None;
            turn.emit(Effect::Alarm(Alarm::Unrepairable(chunk)));
            return self.pump(chunk, turn);
        }
        let holder = open[repair.asked % open.len()];
        let nonce = repair.nonce;
        self.send(holder, PeerBody::Fetch { nonce, chunk }, turn);
    }

    /// Sends a good copy to a replica with a damaged one.
    pub(crate) fn on_fetch(
        &mut self,
        from: TargetId,
        nonce: u64,
        chunk: ChunkId,
        turn: &mut Turn<'_, P>,
    ) {
        let read = ReadOp { chunk, version: None, offset: 0, len: u32::MAX };
        // The bytes may be replaced before the answer: then a failure proves nothing.
        let nonce = if self.copy_may_come(chunk) { 0 } else { nonce };
        self.store(Job::Fetch(from, chunk, nonce), StoreOp::Read(read), turn);
    }

    pub(crate) fn on_copy_read(
        &mut self,
        (to, nonce): (TargetId, u64),
        chunk: ChunkId,
        found: Found<P>,
        turn: &mut Turn<'_, P>,
    ) {
        if let Some((meta, Some(bytes))) = found {
            self.on_whole_read(chunk, &meta);
            self.send(to, PeerBody::Fetched { chunk, meta, bytes }, turn);
        } else if nonce != 0 && !self.copy_may_come(chunk) {
            self.send(to, PeerBody::NoCopy { nonce, chunk }, turn);
        }
    }

    /// Whether other bytes are about to replace the committed ones here.
    fn copy_may_come(&self, chunk: ChunkId) -> bool {
        let changes = |slot: &Slot<P>| {
            let lock = matches!(slot.lock, Some(Lock::Restore | Lock::Install { .. }));
            slot.pending.is_some() || lock
        };
        self.slots.get(&chunk).is_some_and(changes)
    }

    /// Notes that another replica's copy is damaged as well, or absent.
    pub(crate) fn on_no_copy(
        &mut self,
        from: TargetId,
        nonce: u64,
        chunk: ChunkId,
        turn: &mut Turn<'_, P>,
    ) {
        let Some(slot) = self.slots.get(&chunk) else { return };
        if slot.repair.as_ref().is_some_and(|repair| repair.nonce == nonce) {
            self.rule_out(from, chunk, turn);
        }
    }

    /// Excludes a replica without a copy and asks the next one; when none has a copy, the chunk is
    /// lost for now.
    fn rule_out(&mut self, holder: TargetId, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        let Some(slot) = self.slots.get_mut(&chunk) else { return };
        // With a pending version, others may soon commit the bytes that are missing here.
        if !slot.known || slot.pending.is_some() || slot.lock == Some(Lock::Restore) {
            return;
        }
        let Some(repair) = &mut slot.repair else { return };
        if !repair.without.insert(holder) {
            return;
        }
        let all = self.view.holders().iter().all(|holder| repair.without.contains(holder));
        if all {
            self.note_lost(chunk);
            if let Some(meta) = self.slots.get(&chunk).and_then(|slot| slot.committed)
                && (self.lost.len() < CHAIN_LOST_MAX || self.lost.contains_key(&chunk))
            {
                self.lost.insert(chunk, meta);
            }
        }
        self.ask_copy(chunk, turn);
    }

    pub(crate) fn on_fetched(
        &mut self,
        from: TargetId,
        chunk: ChunkId,
        (meta, bytes): (Meta, P),
        turn: &mut Turn<'_, P>,
    ) {
        let good = meta.data().is_some_and(|(_, crc)| crc == bytes.crc());
        let serving = self.serving();
        let Some(slot) = self.slots.get_mut(&chunk) else { return };
        if slot.repair.is_none() || !slot.known || slot.lock.is_some() || !good {
            return;
        }
        if let Some(pending) = &mut slot.pending {
            let failed = matches!(pending.stage, Stage::Failed(StoreError::Corrupt, _));
            let update = &mut pending.update;
            if failed && update.version == meta.version && update.tag == meta.tag {
                // The holder has committed the version that could not be made from the damaged
                // base.
                update.crc = bytes.crc();
                update.write = Write::Whole(bytes);
                slot.repair = None;
                return self.stage(chunk, turn);
            }
            if !failed {
                return; // The pending version may replace the damaged one.
            }
        }
        if slot.committed == Some(meta) {
            slot.lock = Some(Lock::Restore);
            self.store(Job::Restore(chunk), StoreOp::Restore(chunk, meta, bytes), turn);
        } else if slot.pending.is_none() && self.view.syncing() == Some(from) {
            // It will get this version from here, so its own copies are not needed.
            self.rule_out(from, chunk, turn);
        } else if slot.pending.is_none() && !serving {
            // It comes with the resync.
            slot.repair = None;
            self.pump(chunk, turn);
        }
    }

    pub(crate) fn on_restored(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        self.lost.remove(&chunk);
        self.forget_lost(chunk);
        if let Some(slot) = self.slots.get_mut(&chunk) {
            slot.lost = false;
        }
        if self.end_restore(chunk) {
            self.stage(chunk, turn);
        }
        self.pump(chunk, turn);
    }

    pub(crate) fn on_not_restored(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        self.end_restore(chunk);
        self.pump(chunk, turn);
    }

    /// Whether a pending version waits for the restored bytes.
    fn end_restore(&mut self, chunk: ChunkId) -> bool {
        let Some(slot) = self.slots.get_mut(&chunk) else { return false };
        assert!(slot.lock == Some(Lock::Restore), "only a repair restores");
        slot.lock = None;
        slot.repair = None;
        slot.pending.is_some()
    }

    /// Whether the committed version has no bytes here and, when the others were last asked, no
    /// good ones anywhere: nothing can be made from it.
    pub(crate) fn is_lost(&self, chunk: ChunkId) -> bool {
        let Some(slot) = self.slots.get(&chunk) else { return false };
        slot.lost || slot.committed.is_some() && self.lost.get(&chunk) == slot.committed.as_ref()
    }

    /// Whether no serving replica is left that has seen the pending version, which was never stored
    /// here and so never committed. Replicas that left forget it before they come back.
    fn has_alone(&self, chunk: ChunkId) -> bool {
        let alone = self.view.is_head() && self.view.is_tail();
        let pending = self.slots.get(&chunk).and_then(|slot| slot.pending.as_ref());
        alone && pending.is_some_and(|pending| !pending.stored)
    }

    pub(crate) fn repair_tick(&mut self, turn: &mut Turn<'_, P>) {
        let now = turn.now;
        let mut again = Vec::new();
        let mut start = Vec::new();
        for (chunk, slot) in &self.slots {
            let failed = |p: &crate::slot::Pending<P>| matches!(p.stage, Stage::Failed(StoreError::Corrupt, at) if resend_due(Some(at), now));
            match &slot.repair {
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
            if self.has_alone(chunk) {
                self.abandon(chunk, StoreError::Corrupt, turn);
            } else {
                self.begin_repair(chunk, turn);
            }
        }
    }
}
