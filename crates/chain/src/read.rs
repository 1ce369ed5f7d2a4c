//! Reads: by any serving replica, with the tail's answer while a version is pending.
//!
//! Apportioned queries as in CRAQ (Terrace & Freedman, USENIX ATC 2009, section 2.3). Each read
//! asks the tail again: an answer given before the read began may be older than a version that
//! another client has read since.

use millpond_types::cluster::{ChunkVersion, TargetId};
use millpond_types::limits::{CHAIN_READS_MAX, CHAIN_WAIT_MS};
use millpond_types::{ChunkId, Tick};

use crate::event::{Effect, ReadOp, RequestId, StoreAnswer, StoreError, StoreOp, Turn};
use crate::message::{Payload, PeerBody, ReadRequest, Refusal, Reply, Write};
use crate::mutation::mutated;
use crate::replica::{Job, Replica, resend_due};
use crate::slot::{Pending, Stage, Waiting};
use crate::update::BUSY_HINT_MS;

/// A read that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) request: RequestId,
    read: ReadRequest,
    since: Tick,
    sent: Tick,
    /// The version that the tail answered; the read waits until it is staged here.
    decided: Option<ChunkVersion>,
}

/// State of a chunk for a read.
enum Known {
    Committed,
    Nothing,
    Staged(ChunkVersion),
    AskTail,
}

impl<P: Payload> Replica<P> {
    pub(crate) fn on_read(
        &mut self,
        request: RequestId,
        read: ReadRequest,
        turn: &mut Turn<'_, P>,
    ) {
        if read.version > self.view.version() {
            turn.emit(Effect::NeedRouting(read.version));
        }
        let unleased = mutated!(self, ReadWithoutLease) && self.serving();
        if !self.reads_allowed(turn.now) && !unleased {
            return Self::refuse(request, Refusal::NotServing, turn);
        }
        match self.known(read.chunk) {
            Known::Nothing => turn.emit(Effect::Reply(request, Reply::NotFound)),
            Known::Committed => self.read_store(request, read, None, turn),
            Known::Staged(version) => {
                let decided = Some(version);
                self.park(
                    Reading { request, read, since: turn.now, sent: turn.now, decided },
                    turn,
                );
                self.wake_reads(read.chunk, turn);
            }
            Known::AskTail => {
                let sent = turn.now;
                self.park(Reading { request, read, since: sent, sent, decided: None }, turn);
            }
        }
    }

    /// Whether the committed version of `chunk` in the store answers a read that arrived before
    /// `now`.
    ///
    /// `now` is the monotonic clock, read after the arrival. If true, the shell may read the store
    /// by itself, as [`Event::Read`](crate::Event::Read) would. All effects of earlier steps must
    /// be executed before, and the store's read must begin before the next step. Report damaged
    /// bytes with [`Event::Damaged`](crate::Event::Damaged).
    #[must_use]
    pub fn committed_now(&self, now: Tick, chunk: ChunkId) -> bool {
        self.reads_allowed(now) && matches!(self.known(chunk), Known::Committed)
    }

    fn known(&self, chunk: ChunkId) -> Known {
        let pending = self.slots.get(&chunk).and_then(|slot| slot.pending.as_ref());
        let Some(pending) = pending else { return Known::Committed };
        if mutated!(self, SkipTailQuery) {
            return Known::Committed;
        }
        if matches!(pending.update.write, Write::Collect) {
            return Known::Nothing;
        }
        if pending.known_committed || mutated!(self, ReadPending) {
            return Known::Staged(pending.update.version);
        }
        match (self.view.is_tail(), pending.inherited) {
            (true, false) => Known::Committed,
            (true, true) => Known::Staged(pending.update.version),
            (false, _) => Known::AskTail,
        }
    }

    fn park(&mut self, reading: Reading, turn: &mut Turn<'_, P>) {
        if self.reads.len() >= CHAIN_READS_MAX {
            return Self::refuse(reading.request, Refusal::Busy(BUSY_HINT_MS), turn);
        }
        let nonce = self.name();
        self.reads.insert(nonce, reading);
        if reading.decided.is_none() {
            self.ask_tail(nonce, reading.read.chunk, turn);
        }
    }

    fn ask_tail(&self, nonce: u64, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        let syncing = self.view.syncing().filter(|_| mutated!(self, SyncingIsTail));
        if let Some(tail) = syncing.or(self.view.tail()) {
            self.send(tail, PeerBody::TailQuery { nonce, chunk }, turn);
        }
    }

    fn read_store(
        &mut self,
        request: RequestId,
        read: ReadRequest,
        version: Option<ChunkVersion>,
        turn: &mut Turn<'_, P>,
    ) {
        let ReadRequest { chunk, offset, len, .. } = read;
        let op = StoreOp::Read(ReadOp { chunk, version, offset, len });
        self.store(Job::Read(request, chunk, version), op, turn);
    }

    pub(crate) fn on_tail_query(
        &mut self,
        from: TargetId,
        nonce: u64,
        chunk: ChunkId,
        turn: &mut Turn<'_, P>,
    ) {
        if !self.speaks_as_tail(turn.now) {
            return; // The asking replica asks again, or gives up.
        }
        let slot = self.slot(chunk, turn);
        if slot.inherited() {
            return;
        }
        if slot.known {
            let committed = slot.committed_version();
            self.answer_tail(from, nonce, committed, turn);
        } else {
            let _dropped_when_full = self.enqueue(chunk, Waiting::TailQuery(from, nonce), turn);
        }
    }

    fn speaks_as_tail(&self, now: Tick) -> bool {
        let tail = self.view.is_tail() && self.reads_allowed(now);
        tail || mutated!(self, SyncingIsTail)
    }

    pub(crate) fn answer_tail(
        &mut self,
        to: TargetId,
        nonce: u64,
        committed: ChunkVersion,
        turn: &mut Turn<'_, P>,
    ) {
        // The question waited for the store: the lease may have ended, the chain changed.
        if self.speaks_as_tail(turn.now) {
            self.send(to, PeerBody::TailAnswer { nonce, committed }, turn);
        }
    }

    pub(crate) fn on_tail_answer(
        &mut self,
        nonce: u64,
        committed: ChunkVersion,
        turn: &mut Turn<'_, P>,
    ) {
        let Some(reading) = self.reads.get_mut(&nonce).filter(|r| r.decided.is_none()) else {
            return;
        };
        let read = reading.read;
        let request = reading.request;
        let slot = self.slots.get_mut(&read.chunk);
        if let Some(pending) = slot.and_then(|slot| slot.pending.as_mut())
            && pending.update.version == committed
        {
            pending.known_committed = true;
            reading.decided = Some(committed);
            return self.wake_reads(read.chunk, turn);
        }
        // The version that was pending is committed here by now, or not yet at the tail: either way
        // the committed version is the tail's, or newer.
        self.reads.remove(&nonce);
        self.read_store(request, read, None, turn);
    }

    /// Answers reads that waited for the chunk's pending version to be staged or committed.
    pub(crate) fn wake_reads(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        let pending = self.slots.get(&chunk).and_then(|slot| slot.pending.as_ref());
        let undecided = |p: &&Pending<P>| !matches!(p.stage, Stage::Done(_)) || p.inherited;
        let not_staged = pending.filter(undecided).map(|pending| pending.update.version);
        let ready: Vec<u64> = self
            .reads
            .iter()
            .filter(|(_, reading)| reading.read.chunk == chunk)
            .filter(|(_, reading)| reading.decided.is_some_and(|v| Some(v) != not_staged))
            .map(|(nonce, _)| *nonce)
            .collect();
        for nonce in ready {
            let reading = self.reads.remove(&nonce).expect("it was just seen");
            self.read_store(reading.request, reading.read, reading.decided, turn);
        }
    }

    pub(crate) fn on_bytes(
        &mut self,
        request: RequestId,
        wanted: (ChunkId, Option<ChunkVersion>),
        result: Result<StoreAnswer<P>, StoreError>,
        turn: &mut Turn<'_, P>,
    ) {
        let (chunk, version) = wanted;
        let reply = match result {
            Ok(StoreAnswer::Bytes(found)) => {
                if let Some((meta, Some(bytes))) = &found
                    && meta.data().is_some_and(|(len, _)| len as usize == bytes.len())
                {
                    self.on_whole_read(chunk, meta);
                }
                let read_version = found.as_ref().map_or(ChunkVersion(0), |(meta, _)| meta.version);
                if version.is_some_and(|version| read_version < version) {
                    // The staged version went away with this replica's place in the chain.
                    Reply::Refused(Refusal::NotServing)
                } else {
                    match found.map(|(meta, bytes)| (meta.version, meta.data(), bytes)) {
                        Some((version, Some((chunk_len, _)), Some(bytes))) => {
                            Reply::Data { version, chunk_len, bytes }
                        }
                        _ => Reply::NotFound,
                    }
                }
            }
            Err(StoreError::Corrupt) => {
                self.on_damaged(chunk, turn);
                Reply::Refused(Refusal::Corrupt)
            }
            _ => Reply::Refused(Refusal::NotServing),
        };
        turn.emit(Effect::Reply(request, reply));
    }

    /// Asks again, and gives up reads that waited too long.
    pub(crate) fn reads_tick(&mut self, turn: &mut Turn<'_, P>) {
        let now = turn.now;
        let mut again = Vec::new();
        let mut given_up = Vec::new();
        for (nonce, reading) in &mut self.reads {
            if now.since(reading.since).as_millis() > u128::from(CHAIN_WAIT_MS) {
                given_up.push(*nonce);
            } else if reading.decided.is_none() && resend_due(Some(reading.sent), now) {
                reading.sent = now;
                again.push((*nonce, reading.read.chunk));
            }
        }
        for (nonce, chunk) in again {
            self.ask_tail(nonce, chunk, turn);
        }
        for nonce in given_up {
            let reading = self.reads.remove(&nonce).expect("it was just seen");
            Self::refuse(reading.request, Refusal::NotServing, turn);
        }
    }
}
