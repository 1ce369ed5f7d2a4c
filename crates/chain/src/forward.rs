//! A version's way down the chain and the commit's way back.

use millpond_types::ChunkId;
use millpond_types::cluster::{ChunkVersion, TargetId};
use millpond_types::limits::{CHAIN_PENDING_MAX, CHAIN_WAIT_MS};

use crate::event::{Alarm, Effect, ReadOp, StoreError, StoreOp, Turn};
use crate::message::{
    Answer, Content, Meta, Outcome, Payload, PeerBody, Refusal, Reply, Space, Tag, Update, Write,
};
use crate::mutation::mutated;
use crate::replica::{Found, Job, Replica, resend_due};
use crate::slot::{Lock, Stage, Waiting};

impl<P: Payload> Replica<P> {
    /// The replica that must commit before this one.
    fn next_writer(&self) -> Option<TargetId> {
        let next = self.view.successor()?;
        let skip = mutated!(self, SyncingMissesWrites) && self.view.syncing() == Some(next);
        (!skip).then_some(next)
    }

    /// Sends the chunk's pending version to the successor, in a form that it can use.
    pub(crate) fn pass_on(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        let Some(next) = self.next_writer() else { return };
        let syncing = self.view.syncing() == Some(next);
        let now = turn.now;
        let Some(pending) = self.pending_mut(chunk) else { return };
        let mut update = pending.update.clone();
        // A syncing successor may lack the version that this one is based on.
        if syncing && !update.write.stands_alone() {
            let Some(whole) = pending.whole.clone() else { return self.read_whole(chunk, turn) };
            update.crc = whole.crc();
            update.write = Write::Whole(whole);
        }
        pending.sent = Some(now);
        pending.shared = true;
        let ready = pending.ready();
        pending.told_ready = ready;
        self.send(next, PeerBody::Forward { update, ready }, turn);
    }

    /// Sends `Ready` to the successor once this replica and all above it have stored the version
    /// sent before.
    fn pass_ready(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        let Some(next) = self.next_writer() else { return };
        let Some(pending) = self.pending_mut(chunk) else { return };
        if pending.sent.is_some() && pending.ready() && !pending.told_ready {
            pending.told_ready = true;
            let version = pending.update.version;
            self.send(next, PeerBody::Ready { chunk, version }, turn);
        }
    }

    pub(crate) fn on_ready(
        &mut self,
        from: TargetId,
        chunk: ChunkId,
        version: ChunkVersion,
        turn: &mut Turn<'_, P>,
    ) {
        if self.view.predecessor() != Some(from) {
            return;
        }
        if let Some(pending) = self.pending_mut(chunk)
            && pending.update.version == version
        {
            pending.above = true;
            return self.progress(chunk, turn);
        }
        // Small messages may overtake large ones. A `Ready` beyond the limit comes again with the
        // next copy of the `Forward`.
        if self.early.len() < CHAIN_PENDING_MAX {
            self.early.insert(chunk, (version, turn.now));
        }
    }

    /// Reads all bytes of the pending version once they are staged.
    fn read_whole(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        let Some(pending) = self.pending_mut(chunk) else { return };
        if pending.reading_whole || !matches!(pending.stage, Stage::Done(_)) {
            return;
        }
        pending.reading_whole = true;
        let version = Some(pending.update.version);
        let read = ReadOp { chunk, version, offset: 0, len: u32::MAX };
        self.store(Job::Whole(chunk), StoreOp::Read(read), turn);
    }

    pub(crate) fn on_whole(
        &mut self,
        chunk: ChunkId,
        found: Option<Found<P>>,
        turn: &mut Turn<'_, P>,
    ) {
        let Some(pending) = self.pending_mut(chunk) else { return };
        pending.reading_whole = false;
        match found {
            Some(Some((meta, Some(bytes)))) if meta.version == pending.update.version => {
                pending.whole = Some(bytes);
                self.pass_on(chunk, turn);
            }
            // Damaged since it was staged, and not sent down yet: stage it again.
            None => self.stage(chunk, turn),
            Some(_) => {}
        }
    }

    pub(crate) fn on_forward(
        &mut self,
        from: TargetId,
        update: Update<P>,
        ready: bool,
        turn: &mut Turn<'_, P>,
    ) {
        let fenced = self.view.predecessor() != Some(from) && !mutated!(self, IgnoreChainVersion);
        let crc = update.write.payload().map(Payload::crc);
        let damaged = crc.is_some_and(|crc| crc != update.crc) && !mutated!(self, SkipChecksum);
        if fenced || damaged {
            return; // The predecessor sends it again.
        }
        if ready {
            self.on_ready(from, update.chunk, update.version, turn);
        }
        let slot = self.slot(update.chunk, turn);
        if !slot.locked() && slot.queue.is_empty() {
            return self.begin_forward(update, turn);
        }
        if let Some(pending) = &slot.pending
            && slot.known
            && update.version <= pending.update.version
        {
            return; // A copy of the current version, or older.
        }
        let version = update.version;
        let queued = slot
            .queue
            .iter()
            .any(|waiting| matches!(waiting, Waiting::Forward(known) if known.version == version));
        if !queued {
            // A full queue drops it; the predecessor sends it again.
            let _dropped_when_full = self.enqueue(update.chunk, Waiting::Forward(update), turn);
        }
    }

    /// Accepts the version under the free lock, or acknowledges that it is here already.
    pub(crate) fn begin_forward(&mut self, update: Update<P>, turn: &mut Turn<'_, P>) {
        let chunk = update.chunk;
        let slot = self.slots.get(&chunk).expect("a slot was made for the update");
        let committed = slot.committed_version();
        let meta = slot.committed;
        let collect = matches!(update.write, Write::Collect);
        let alone = self.view.state() == Some(millpond_types::cluster::TargetState::Syncing)
            && update.write.stands_alone();
        // A syncing target may also hold versions that do not come from this chain's history (it
        // missed a deletion and its collection, or others lost memory). The resync will compare
        // them later.
        let here = committed >= update.version || collect && committed != update.base;
        if here {
            self.ack(chunk, update.version, meta, turn);
            return self.pump(chunk, turn);
        }
        if committed == update.base || alone {
            self.begin(update, None, turn);
            return;
        }
        if !mutated!(self, IgnoreChainVersion) {
            self.fail(Alarm::Diverged(chunk), turn);
        }
    }

    fn ack(
        &self,
        chunk: ChunkId,
        version: ChunkVersion,
        meta: Option<Meta>,
        turn: &mut Turn<'_, P>,
    ) {
        if let Some(before) = self.view.predecessor() {
            self.send(before, PeerBody::Ack { chunk, version, meta }, turn);
        }
    }

    pub(crate) fn on_ack(
        &mut self,
        from: TargetId,
        chunk: ChunkId,
        committed: (ChunkVersion, Option<Meta>),
        turn: &mut Turn<'_, P>,
    ) {
        let (version, meta) = committed;
        if self.view.successor() != Some(from) && !mutated!(self, IgnoreChainVersion) {
            return;
        }
        let Some(pending) = self.pending_mut(chunk) else { return };
        if pending.update.version != version || pending.acked {
            return;
        }
        pending.acked = true;
        pending.acked_meta = meta;
        self.progress(chunk, turn);
    }

    pub(crate) fn on_staged(&mut self, chunk: ChunkId, content: Content, turn: &mut Turn<'_, P>) {
        let Some(pending) = self.pending_mut(chunk) else { return };
        pending.stage = Stage::Done(content);
        pending.stored = true;
        if pending.sent.is_none() {
            self.pass_on(chunk, turn);
        }
        self.wake_reads(chunk, turn);
        self.progress(chunk, turn);
    }

    pub(crate) fn on_stage_failed(
        &mut self,
        chunk: ChunkId,
        why: StoreError,
        turn: &mut Turn<'_, P>,
    ) {
        let Some(pending) = self.pending_mut(chunk) else { return };
        pending.stage = Stage::Failed(why, turn.now);
        if !pending.shared {
            return self.abandon(chunk, why, turn);
        }
        // Others have it and may commit it, so this replica needs it too.
        if why == StoreError::Corrupt {
            self.begin_repair(chunk, turn);
        }
    }

    /// Takes back an update that no other replica has seen, or will see.
    pub(crate) fn abandon(&mut self, chunk: ChunkId, why: StoreError, turn: &mut Turn<'_, P>) {
        let Some(slot) = self.slots.get_mut(&chunk) else { return };
        let Some(pending) = slot.pending.take() else { return };
        self.pendings -= 1;
        turn.emit(Effect::Unstage(chunk));
        if let Some(request) = pending.waiter {
            let refusal = if why == StoreError::Corrupt {
                turn.emit(Effect::Alarm(Alarm::Unrepairable(chunk)));
                Refusal::Corrupt
            } else {
                Refusal::NoSpace
            };
            turn.emit(Effect::Reply(request, Reply::Refused(refusal)));
        }
        self.wake_reads(chunk, turn);
        self.drain_ended(chunk, turn);
        self.pump(chunk, turn);
    }

    /// Commits the pending version if it is stored here and committed by all below.
    pub(crate) fn progress(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        let last = self.next_writer().is_none();
        let early = mutated!(self, CommitBeforeForward);
        let early_ack = mutated!(self, AckBeforeTail);
        let unready = mutated!(self, CommitBeforeReady);
        let Some(pending) = self.pending_mut(chunk) else { return };
        let Stage::Done(content) = pending.stage else { return };
        let meta = pending.meta(content);
        let below = last || pending.acked;
        let above = pending.above || unready;
        if early_ack && let Some(request) = pending.waiter.take() {
            let outcome = Outcome { chunk, version: meta.version, content };
            turn.emit(Effect::Reply(request, Reply::Done(outcome)));
        }
        if !(below && above || early) {
            return self.pass_ready(chunk, turn);
        }
        if let Some(theirs) = pending.acked_meta
            && theirs.version == meta.version
            && theirs.tag == meta.tag
            && theirs.content != content
        {
            return self.fail(Alarm::Diverged(chunk), turn);
        }
        self.commit(chunk, meta, turn);
    }

    fn commit(&mut self, chunk: ChunkId, meta: Meta, turn: &mut Turn<'_, P>) {
        let forget = mutated!(self, ForgetTombstone) && meta.data().is_none();
        let serving = self.serving();
        let slot = self.slots.get_mut(&chunk).expect("it has a pending version");
        let pending = slot.pending.take().expect("it is being committed");
        let grows = slot.committed_version() < meta.version;
        assert!(grows || !serving, "versions of a serving replica grow");
        self.pendings -= 1;
        // The previously committed version needs no good bytes any more.
        (slot.lost, slot.repair) = (false, None);
        self.lost.remove(&chunk);
        if forget || matches!(pending.update.write, Write::Collect) {
            slot.committed = None;
            turn.emit(Effect::Remove(chunk));
        } else {
            slot.committed = Some(meta);
            if !pending.direct {
                turn.emit(Effect::Commit(chunk, meta.version));
            }
            if meta.data().is_none() && self.view.is_head() {
                self.collector.watch(chunk, &meta, turn.now);
            }
        }
        let committed = slot.committed;
        let outcome = Outcome { chunk, version: meta.version, content: meta.content };
        self.dedup.record(meta.tag, Answer::Done(outcome), turn.now);
        if let Some(request) = pending.waiter {
            turn.emit(Effect::Reply(request, Reply::Done(outcome)));
        }
        self.ack(chunk, meta.version, committed, turn);
        self.wake_reads(chunk, turn);
        self.drain_ended(chunk, turn);
        self.pump(chunk, turn);
    }

    /// Sends unacknowledged versions again, and stages again those that the store refused.
    pub(crate) fn resend_forwards(&mut self, turn: &mut Turn<'_, P>) {
        let now = turn.now;
        self.early.retain(|_, (_, at)| !resend_due(Some(*at), now));
        let mut late = Vec::new();
        let mut refused = Vec::new();
        for (chunk, slot) in &self.slots {
            let Some(pending) = &slot.pending else { continue };
            if !pending.acked && resend_due(pending.sent, now) {
                late.push(*chunk);
            }
            if let Stage::Failed(StoreError::NoSpace, at) = pending.stage
                && resend_due(Some(at), now)
            {
                refused.push((*chunk, pending.since));
            }
        }
        for chunk in late {
            self.pass_on(chunk, turn);
        }
        for (chunk, since) in refused {
            if now.since(since).as_millis() > u128::from(CHAIN_WAIT_MS) {
                // The other replicas must not wait for ever: leave the chain, come back when empty.
                return self.fail(Alarm::StoreFailed, turn);
            }
            self.stage(chunk, turn);
        }
    }

    /// Continues every pending version under a new version of the chain.
    pub(crate) fn resume_pendings(&mut self, new_tail: bool, turn: &mut Turn<'_, P>) {
        if mutated!(self, ForgetPending) {
            for slot in self.slots.values_mut() {
                if slot.pending.take().is_some() {
                    self.pendings -= 1;
                }
            }
        }
        let mut chunks = Vec::new();
        let head = self.view.is_head();
        self.early.clear();
        for (chunk, slot) in &mut self.slots {
            // Messages of an earlier predecessor are void; the new one sends them again.
            slot.queue.retain(|waiting| matches!(waiting, Waiting::Update(..)));
            if slot.lock == Some(Lock::Send) {
                slot.lock = None;
            }
            if let Some(repair) = &mut slot.repair {
                repair.without.clear(); // Other replicas may be there now.
            }
            if let Some(pending) = &mut slot.pending {
                // The successor may be another, and a resync must not miss this version.
                pending.above |= head;
                pending.inherited |= new_tail;
                pending.acked = false;
                pending.acked_meta = None;
                pending.sent = None;
            }
            chunks.push(*chunk);
        }
        for chunk in chunks {
            self.pass_on(chunk, turn);
            self.progress(chunk, turn);
            self.pump(chunk, turn);
        }
    }

    /// Takes the bytes that replicas below want this chain to remove; they report again while
    /// needed.
    pub fn take_excess_below(&mut self) -> u64 {
        std::mem::take(&mut self.space_below.excess)
    }

    /// Reports the free space here and below to the predecessor.
    pub(crate) fn room_tick(&mut self, turn: &mut Turn<'_, P>) {
        let Some(before) = self.view.predecessor() else { return };
        let below = self.view.successor().map_or(Space::AMPLE, |_| self.space_below);
        let space = self.space.and(below);
        let told = self.room_told;
        let news = told.is_none_or(|(room, _)| room != space.room);
        // Sent again at times: after a lost message the head could refuse for ever.
        if news || resend_due(told.map(|(_, at)| at), turn.now) {
            self.room_told = Some((space.room, turn.now));
            self.send(before, PeerBody::Room(space), turn);
        }
    }
}

/// The tag of updates that the chain makes itself.
pub(crate) fn own_tag() -> Tag {
    Tag::default()
}
