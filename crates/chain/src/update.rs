//! Updates at the head: the meaning of a client's request, and whether it was done before.

use millpond_types::Tick;
use millpond_types::cluster::ChunkVersion;
use millpond_types::limits::{CHAIN_PENDING_MAX, CHUNK_BYTES_MAX};

use crate::credible::VERSION_MAX;
use crate::dedup::Seen;
use crate::event::{Effect, RequestId, StageRequest, StoreOp, Turn};
use crate::message::{
    Answer, Content, Meta, Op, Outcome, Payload, Refusal, Reply, Update, UpdateRequest, Write,
};
use crate::mutation::mutated;
use crate::replica::{Job, Replica};
use crate::seal::Gate;
use crate::slot::{Pending, Stage, Waiting};

/// The hint of a full queue: one round through the chain is a few milliseconds.
pub(crate) const BUSY_HINT_MS: u32 = 20;

/// Meaning of an operation, given the committed version.
enum Meaning<P> {
    Write(Write<P>),
    Answer(Answer),
    Refuse(Refusal),
}

impl<P: Payload> Replica<P> {
    pub(crate) fn on_update(
        &mut self,
        request: RequestId,
        body: UpdateRequest<P>,
        turn: &mut Turn<'_, P>,
    ) {
        if let Some(why) = self.refusal(&body, turn) {
            return Self::refuse(request, why, turn);
        }
        let probe = matches!(body.op, Op::Probe);
        match self.seen(&body, turn.now) {
            Seen::Answered(answer) => {
                return turn.emit(Effect::Reply(request, answer.into()));
            }
            Seen::Superseded => return Self::refuse(request, Refusal::Superseded, turn),
            Seen::Full => return Self::refuse(request, Refusal::Busy(BUSY_HINT_MS), turn),
            Seen::Unknown => {}
        }
        if !probe && self.join_under_way(request, &body, turn) {
            return;
        }
        let grows = !matches!(body.op, Op::Remove | Op::Bury | Op::Probe);
        let room = self.space.room && self.space_below.room;
        if grows && !room {
            return Self::refuse(request, Refusal::NoSpace, turn);
        }
        let full = self.pendings >= CHAIN_PENDING_MAX;
        if full || !self.enqueue(body.chunk, Waiting::Update(request, body), turn) {
            Self::refuse(request, Refusal::Busy(BUSY_HINT_MS), turn);
        }
    }

    fn seen(&mut self, body: &UpdateRequest<P>, now: Tick) -> Seen {
        // A probe changes nothing, so it is not recorded: its tag is ignored.
        let anew = matches!(body.op, Op::Probe) || mutated!(self, NoDedup);
        if anew { Seen::Unknown } else { self.dedup.seen(body.tag, now) }
    }

    /// The reason why this replica rejects the request outright.
    fn refusal(&self, body: &UpdateRequest<P>, turn: &mut Turn<'_, P>) -> Option<Refusal> {
        let mine = self.view.version();
        let newest = self.next.as_ref().map_or(mine, |next| next.version);
        if body.version > newest {
            turn.emit(Effect::NeedRouting(body.version));
            return Some(Refusal::Behind);
        }
        if body.version > mine {
            return Some(Refusal::Behind);
        }
        if body.version < mine && !mutated!(self, IgnoreChainVersion) {
            return Some(Refusal::Stale(newest));
        }
        if !self.serving() || !self.view.is_head() || self.retired {
            return Some(Refusal::NotServing);
        }
        let crc = body.op.payload().map(Payload::crc);
        if crc.is_some_and(|crc| crc != body.crc) && !mutated!(self, SkipChecksum) {
            return Some(Refusal::BadChecksum);
        }
        let end = match &body.op {
            Op::Put(bytes)
            | Op::Replace(bytes)
            | Op::Append(bytes)
            | Op::Import(bytes)
            | Op::Seal(bytes) => bytes.len(),
            Op::Write { offset, bytes } => (*offset as usize).saturating_add(bytes.len()),
            Op::Truncate { len } => *len as usize,
            Op::Remove | Op::Bury | Op::Probe => 0,
        };
        let buries = matches!(body.op, Op::Bury) == body.tag.lane.is_burial();
        // An update that names its own chunk would wait for itself.
        let buries = buries && body.seal != Some(body.chunk);
        (end > CHUNK_BYTES_MAX || !buries).then_some(Refusal::Invalid)
    }

    /// Lets a retry of a queued or pending update take its place: the retry gets the answer. The
    /// client has given the earlier attempt up, so its request need not wait.
    fn join_under_way(
        &mut self,
        request: RequestId,
        body: &UpdateRequest<P>,
        turn: &mut Turn<'_, P>,
    ) -> bool {
        if mutated!(self, NoDedup) {
            return false;
        }
        let Some(slot) = self.slots.get_mut(&body.chunk) else { return false };
        let before = if let Some(pending) = &mut slot.pending
            && pending.update.tag == body.tag
        {
            pending.waiter.replace(request)
        } else {
            let same = slot.queue.iter_mut().find_map(|waiting| match waiting {
                Waiting::Update(known, queued)
                    if queued.tag == body.tag && !matches!(queued.op, Op::Probe) =>
                {
                    Some(known)
                }
                _ => None,
            });
            let Some(known) = same else { return false };
            Some(std::mem::replace(known, request))
        };
        if let Some(before) = before {
            turn.emit(Effect::Replaced(before));
        }
        true
    }

    /// Decides the meaning of the request under the free lock, and starts it.
    pub(crate) fn begin_update(
        &mut self,
        request: RequestId,
        body: UpdateRequest<P>,
        turn: &mut Turn<'_, P>,
    ) {
        let slot = self.slots.get(&body.chunk).expect("the queue's slot");
        let committed = slot.committed;
        if let Some(reply) = self.decided_before(&body, committed, turn.now) {
            return turn.emit(Effect::Reply(request, reply));
        }
        match self.gate(&body, turn) {
            Gate::Open => self.decide(request, body, turn),
            Gate::Closed(why) => Self::refuse(request, why, turn),
            Gate::Ask(seal) => self.await_seal(seal, request, body),
            Gate::Drain(under_way) => self.drain(under_way, request, body, turn.now),
        }
    }

    /// Decides the meaning of an update that waits for nothing any more, and starts it.
    pub(crate) fn decide(
        &mut self,
        request: RequestId,
        body: UpdateRequest<P>,
        turn: &mut Turn<'_, P>,
    ) {
        let slot = self.slots.get(&body.chunk).expect("the queue's slot");
        let committed = slot.committed;
        let base = slot.committed_version();
        let probe = matches!(body.op, Op::Probe);
        let write = match meaning(body.op, committed.as_ref()) {
            Meaning::Write(write) => write,
            // Such an answer is a read: a head that was cut off must not give it.
            Meaning::Answer(_) if !self.reads_allowed(turn.now) => {
                return Self::refuse(request, Refusal::NotServing, turn);
            }
            Meaning::Answer(answer) => {
                if !probe {
                    self.dedup.record(body.tag, answer, turn.now);
                }
                return turn.emit(Effect::Reply(request, answer.into()));
            }
            Meaning::Refuse(why) => return Self::refuse(request, why, turn),
        };
        if !write.stands_alone() && self.is_lost(body.chunk) {
            // No replica could store a version made from it, and a version that others have seen is
            // never taken back.
            Self::refuse(request, Refusal::Corrupt, turn);
            return self.look_again(body.chunk, turn);
        }
        if base >= VERSION_MAX {
            // Only a forged message makes such a version, which has no successor.
            return Self::refuse(request, Refusal::Invalid, turn);
        }
        let update = Update {
            chunk: body.chunk,
            tag: body.tag,
            base,
            version: ChunkVersion(base.0 + 1),
            written: self.view.version(),
            write,
            crc: body.crc,
            durability: body.durability,
        };
        self.begin(update, Some(request), turn);
    }

    /// Checks again, under the lock: a copy of the update may have been done while this one waited,
    /// or before a crash that lost the records of writers but not the chunk's own.
    fn decided_before(
        &mut self,
        body: &UpdateRequest<P>,
        committed: Option<Meta>,
        now: Tick,
    ) -> Option<Reply<P>> {
        match self.seen(body, now) {
            Seen::Answered(answer) => return Some(answer.into()),
            Seen::Superseded => return Some(Reply::Refused(Refusal::Superseded)),
            Seen::Unknown | Seen::Full => {}
        }
        let meta = committed?;
        if matches!(body.op, Op::Probe) || mutated!(self, NoDedup) {
            return None;
        }
        if meta.tag == body.tag {
            let Meta { version, content, .. } = meta;
            return Some(Reply::Done(Outcome { chunk: body.chunk, version, content }));
        }
        // The update may have been done before the records were lost. It was not if the chunk last
        // changed before the client first asked, or if the same writer's previous update is still
        // the last.
        let untouched =
            meta.written < body.issued || meta.tag.lane == body.tag.lane && meta.tag < body.tag;
        let unknowable = body.issued < self.dedup.complete_since && !untouched;
        unknowable.then_some(Reply::Refused(Refusal::Undecided))
    }

    /// Stages a version and passes it on. The caller has checked the lock and the base.
    pub(crate) fn begin(
        &mut self,
        update: Update<P>,
        waiter: Option<RequestId>,
        turn: &mut Turn<'_, P>,
    ) {
        let chunk = update.chunk;
        let head = self.view.is_head();
        let early = self.early.remove(&chunk).map(|(version, _)| version);
        let slot = self.slots.get_mut(&chunk).expect("a slot was made for the update");
        assert!(!slot.locked(), "one pending version per chunk");
        let collect = matches!(update.write, Write::Collect);
        let mut pending = Pending::new(update, waiter, turn.now);
        pending.shared = !head;
        pending.above = head || early == Some(pending.update.version);
        slot.pending = Some(pending);
        self.pendings += 1;
        if collect {
            // Nothing to store: the commit forgets the chunk.
            self.set_stage(chunk, Stage::Done(Content::Tombstone));
        } else {
            self.stage(chunk, turn);
        }
        self.pass_on(chunk, turn);
        self.progress(chunk, turn);
    }

    pub(crate) fn set_stage(&mut self, chunk: millpond_types::ChunkId, stage: Stage) {
        if let Some(pending) = self.pending_mut(chunk) {
            pending.stage = stage;
        }
    }

    /// Asks the store to stage the chunk's pending version, or to put it in place at once.
    pub(crate) fn stage(&mut self, chunk: millpond_types::ChunkId, turn: &mut Turn<'_, P>) {
        let not_durable = mutated!(self, StageNotDurable);
        let direct = self.needs_no_stage(chunk);
        let Some(pending) = self.pending_mut(chunk) else { return };
        pending.stage = Stage::Running;
        pending.direct = direct;
        let update = &pending.update;
        let request = StageRequest {
            chunk,
            version: update.version,
            written: update.written,
            tag: update.tag,
            write: update.write.clone(),
            durability: if not_durable { millpond_types::Ack::Memory } else { update.durability },
        };
        let op = if direct { StoreOp::Put(request) } else { StoreOp::Stage(request) };
        self.store(Job::Stage(chunk), op, turn);
    }

    /// Whether the pending version may be stored as the committed one at once: it replaces nothing,
    /// and no other replica takes part in writes. None joins before it is stored:
    /// [`Self::try_adopt`] waits.
    fn needs_no_stage(&self, chunk: millpond_types::ChunkId) -> bool {
        let alone = self.serving() && self.view.is_head() && self.view.successor().is_none();
        let stays = alone && self.next.is_none();
        let Some(slot) = self.slots.get(&chunk).filter(|_| stays) else { return false };
        let is_new = |pending: &Pending<P>| {
            !pending.shared && matches!(pending.update.write, Write::Whole(_))
        };
        slot.committed.is_none() && slot.pending.as_ref().is_some_and(is_new)
    }

    pub(crate) fn pending_mut(
        &mut self,
        chunk: millpond_types::ChunkId,
    ) -> Option<&mut Pending<P>> {
        self.slots.get_mut(&chunk).and_then(|slot| slot.pending.as_mut())
    }
}

fn meaning<P: Payload>(op: Op<P>, committed: Option<&Meta>) -> Meaning<P> {
    let data = committed.and_then(Meta::data);
    match (op, committed, data) {
        (Op::Put(_) | Op::Import(_) | Op::Seal(_) | Op::Probe, Some(meta), Some(_)) => {
            Meaning::Answer(Answer::Exists(meta.version))
        }
        // Deleted while it was moving here. A chunk that was deleted before the move may come back.
        (Op::Import(_), Some(meta), None) if meta.tag.lane.is_burial() => {
            Meaning::Answer(Answer::Exists(meta.version))
        }
        (Op::Put(bytes) | Op::Replace(bytes) | Op::Import(bytes) | Op::Seal(bytes), _, _)
        | (Op::Write { offset: 0, bytes } | Op::Append(bytes), _, None) => {
            Meaning::Write(Write::Whole(bytes))
        }
        // It covers all committed bytes, so no replica needs to read them.
        (Op::Write { offset: 0, bytes }, _, Some((len, _))) if bytes.len() >= len as usize => {
            Meaning::Write(Write::Whole(bytes))
        }
        (Op::Write { offset, bytes }, _, _) => Meaning::Write(Write::Part { offset, bytes }),
        (Op::Append(bytes), _, Some((offset, _))) => {
            let fits = (offset as usize).saturating_add(bytes.len()) <= CHUNK_BYTES_MAX;
            if fits {
                Meaning::Write(Write::Part { offset, bytes })
            } else {
                Meaning::Refuse(Refusal::Invalid)
            }
        }
        (Op::Truncate { .. } | Op::Remove, _, None) | (Op::Probe, _, _) => {
            Meaning::Answer(Answer::NotFound)
        }
        (Op::Truncate { len }, _, Some(_)) => Meaning::Write(Write::Truncate { len }),
        (Op::Remove, _, Some(_)) | (Op::Bury, _, _) => Meaning::Write(Write::Tombstone),
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::Crc32c;
    use millpond_types::cluster::ChainVersion;

    use super::*;
    use crate::message::{Content, Lane, Tag};

    #[derive(Clone, Debug)]
    struct Bytes;

    impl Payload for Bytes {
        fn len(&self) -> usize {
            1
        }

        fn crc(&self) -> Crc32c {
            Crc32c(1)
        }
    }

    fn is(op: Op<Bytes>, committed: Option<&Meta>) -> &'static str {
        match meaning(op, committed) {
            Meaning::Write(Write::Whole(_)) => "written",
            Meaning::Write(Write::Part { .. }) => "a part",
            Meaning::Write(Write::Tombstone) => "buried",
            Meaning::Answer(Answer::Exists(_)) => "exists",
            Meaning::Answer(Answer::NotFound) => "not found",
            _ => "other",
        }
    }

    #[test]
    fn what_was_buried_is_not_imported_and_other_tombstones_do_not_mind() {
        let by = |lane, content| Meta {
            version: ChunkVersion(3),
            written: ChainVersion(1),
            content,
            tag: Tag { lane, sequence: 1 },
        };
        let client = Lane { client: 7, channel: 0 };
        assert!(client.burial().is_burial());
        assert!(!client.is_burial());
        let data = by(client, Content::Data { len: 1, crc: Crc32c(1) });
        let buried = by(client.burial(), Content::Tombstone);
        let deleted = by(client, Content::Tombstone);
        let cases = [None, Some(&data), Some(&buried), Some(&deleted)];
        let imports = cases.map(|committed| is(Op::Import(Bytes), committed));
        assert_eq!(imports, ["written", "exists", "exists", "written"]);
        let puts = cases.map(|committed| is(Op::Put(Bytes), committed));
        assert_eq!(puts, ["written", "exists", "written", "written"]);
        let probes = cases.map(|committed| is(Op::Probe, committed));
        assert_eq!(probes, ["not found", "exists", "not found", "not found"]);
        assert!(cases.iter().all(|committed| is(Op::Bury, *committed) == "buried"));
    }

    #[test]
    fn a_write_that_covers_the_chunk_is_a_whole_one() {
        let holds = |len| Meta {
            version: ChunkVersion(3),
            written: ChainVersion(1),
            content: Content::Data { len, crc: Crc32c(1) },
            tag: Tag::default(),
        };
        let write = |offset| Op::Write { offset, bytes: Bytes };
        let (none, empty, equal, longer) = (None, Some(holds(0)), Some(holds(1)), Some(holds(2)));
        let at_start = [none, empty, equal, longer].map(|had| is(write(0), had.as_ref()));
        assert_eq!(at_start, ["written", "written", "written", "a part"]);
        let behind = [none, empty, equal, longer].map(|had| is(write(1), had.as_ref()));
        assert_eq!(behind, ["a part"; 4]);
    }
}
