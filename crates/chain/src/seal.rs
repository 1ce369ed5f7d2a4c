//! Seals: once a seal is written, the chunks whose updates name it stay unchanged.
//!
//! The head alone decides, so only its order matters. It asks the store for the seal before each
//! update that names one, and begins none while the seal is in flight. The seal itself waits for
//! all updates that were pending when its turn came, whichever head admitted them: those of an
//! earlier head are pending here too. So when a seal is answered, every update that names it is
//! committed or refused. A later head has the seal like every committed chunk.

use std::collections::{BTreeMap, BTreeSet};

use millpond_types::limits::CHAIN_WAIT_MS;
use millpond_types::{ChunkId, Tick};

use crate::event::{RequestId, Turn};
use crate::message::{Meta, Op, Payload, Refusal, UpdateRequest};
use crate::mutation::mutated;
use crate::replica::Replica;
use crate::slot::{Lock, Waiting};
use crate::update::BUSY_HINT_MS;

/// Condition for starting an update.
pub(crate) enum Gate {
    /// It may start.
    Open,
    /// It must not start.
    Closed(Refusal),
    /// The store must first be asked for this seal.
    Ask(ChunkId),
    /// It is a seal, and updates of these chunks are in flight.
    Drain(BTreeSet<ChunkId>),
}

/// A seal that waits for the updates before it.
#[derive(Debug)]
struct Drain<P> {
    request: RequestId,
    body: UpdateRequest<P>,
    /// Chunks with a pending version from that time that has not ended.
    left: BTreeSet<ChunkId>,
    since: Tick,
}

/// Updates that wait for a seal, and seals that wait for updates.
#[derive(Debug)]
pub(crate) struct Seals<P> {
    asking: BTreeMap<ChunkId, BTreeSet<ChunkId>>,
    draining: BTreeMap<ChunkId, Drain<P>>,
}

impl<P> Default for Seals<P> {
    fn default() -> Self {
        Self { asking: BTreeMap::new(), draining: BTreeMap::new() }
    }
}

impl<P> Seals<P> {
    /// Clients that wait for seals to be written; the others wait in queues.
    pub(crate) fn into_requests(self) -> impl Iterator<Item = RequestId> {
        self.draining.into_values().map(|drain| drain.request)
    }
}

impl<P: Payload> Replica<P> {
    /// Whether an update whose turn has come may start.
    pub(crate) fn gate(&mut self, body: &UpdateRequest<P>, turn: &mut Turn<'_, P>) -> Gate {
        if matches!(body.op, Op::Seal(_)) {
            return self.before_seal(body.chunk);
        }
        let Some(seal) = body.seal else { return Gate::Open };
        let pass = mutated!(self, PassUnderSeal);
        let slot = self.slot(seal, turn);
        if !slot.known {
            return Gate::Ask(seal);
        }
        if slot.committed.as_ref().and_then(Meta::data).is_some() {
            return Gate::Closed(Refusal::Sealed);
        }
        // The pending seal may fail: only a committed one tells a client that it must not continue
        // here.
        if (slot.locked() || !slot.queue.is_empty()) && !pass {
            return Gate::Closed(Refusal::Busy(BUSY_HINT_MS));
        }
        Gate::Open
    }

    fn before_seal(&self, seal: ChunkId) -> Gate {
        let committed = self.slots.get(&seal).and_then(|slot| slot.committed);
        if committed.as_ref().and_then(Meta::data).is_some() || mutated!(self, SealAtOnce) {
            return Gate::Open;
        }
        // It is not recorded which of them name the seal; waiting for all takes no longer.
        let pending = self.slots.iter().filter(|(_, slot)| slot.pending.is_some());
        let under_way: BTreeSet<ChunkId> = pending.map(|(chunk, _)| *chunk).collect();
        if under_way.is_empty() { Gate::Open } else { Gate::Drain(under_way) }
    }

    /// Puts an update back until the store has answered whether its seal exists.
    pub(crate) fn await_seal(&mut self, seal: ChunkId, request: RequestId, body: UpdateRequest<P>) {
        let chunk = body.chunk;
        let Some(slot) = self.slots.get_mut(&chunk) else { return };
        slot.lock = Some(Lock::Ask);
        slot.queue.push_front(Waiting::Update(request, body));
        self.seals.asking.entry(seal).or_default().insert(chunk);
    }

    /// Starts the updates that name a seal, once the store has answered for it.
    pub(crate) fn tell_of_seal(&mut self, seal: ChunkId, turn: &mut Turn<'_, P>) {
        for chunk in self.seals.asking.remove(&seal).unwrap_or_default() {
            self.unlock(chunk, Lock::Ask);
            self.pump(chunk, turn);
        }
    }

    /// Makes a seal wait for the updates in flight.
    pub(crate) fn drain(
        &mut self,
        left: BTreeSet<ChunkId>,
        request: RequestId,
        body: UpdateRequest<P>,
        since: Tick,
    ) {
        let seal = body.chunk;
        let Some(slot) = self.slots.get_mut(&seal) else { return };
        slot.lock = Some(Lock::Drain);
        self.seals.draining.insert(seal, Drain { request, body, left, since });
    }

    /// Notes that a pending version has ended, and writes the seals that waited only for it.
    pub(crate) fn drain_ended(&mut self, chunk: ChunkId, turn: &mut Turn<'_, P>) {
        let mut free = Vec::new();
        for (seal, drain) in &mut self.seals.draining {
            if drain.left.remove(&chunk) && drain.left.is_empty() {
                free.push(*seal);
            }
        }
        for seal in free {
            let Some(drain) = self.seals.draining.remove(&seal) else { continue };
            self.unlock(seal, Lock::Drain);
            self.decide(drain.request, drain.body, turn);
            self.pump(seal, turn);
        }
    }

    /// Gives up seals that waited too long: an update that waits for a copy of damaged bytes must
    /// not keep them from being written.
    pub(crate) fn drain_tick(&mut self, turn: &mut Turn<'_, P>) {
        let wait = u128::from(CHAIN_WAIT_MS);
        let late = |drain: &Drain<P>| turn.now.since(drain.since).as_millis() > wait;
        let draining = self.seals.draining.iter().filter(|(_, drain)| late(drain));
        let late: Vec<ChunkId> = draining.map(|(seal, _)| *seal).collect();
        for seal in late {
            let Some(drain) = self.seals.draining.remove(&seal) else { continue };
            Self::refuse(drain.request, Refusal::Busy(BUSY_HINT_MS), turn);
            self.unlock(seal, Lock::Drain);
            self.pump(seal, turn);
        }
    }

    fn unlock(&mut self, chunk: ChunkId, held: Lock) {
        if let Some(slot) = self.slots.get_mut(&chunk) {
            assert!(slot.lock == Some(held), "who waits for a seal holds the lock");
            slot.lock = None;
        }
    }
}
