//! Questions between the heads of two chains while a slot moves between them (docs/placement.md),
//! sent over the links and repeated until they are answered.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_chain::{Op, Refusal, Reply};
use millpond_env::{RealClock, sleep, timeout};
use millpond_types::cluster::{ChainId, NodeId, RoutingVersion, TargetState};
use millpond_types::limits::LEASE_MS_MAX;
use millpond_types::wire::{SlotAnswer, SlotAsk, SlotOp, SlotOutcome, Verb};
use millpond_types::{Ack, ChunkId, Crc32c, SlotId, Tick};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Host;
use super::blob::Blob;
use super::hosted::Hosted;
use super::update::Change;

/// A question without an answer is asked again after this time.
const AGAIN: Duration = Duration::from_millis(250);
/// Same as `AGAIN`, for a question that carries a chunk.
const AGAIN_WITH_BYTES: Duration = Duration::from_secs(1);
/// Pause before a node that could not answer yet is asked again.
const BEHIND: Duration = Duration::from_millis(20);

/// Questions that wait for an answer.
#[derive(Debug, Default)]
pub(super) struct Asks {
    numbered: AtomicU64,
    waiting: Mutex<HashMap<u64, oneshot::Sender<SlotOutcome>>>,
    /// Slots with moves that all replicas of the old chain know, and the version of each move.
    known: Mutex<HashMap<SlotId, RoutingVersion>>,
}

/// Forgets a question once its caller no longer waits.
struct Waiting<'a> {
    asks: &'a Asks,
    id: u64,
    answer: oneshot::Receiver<SlotOutcome>,
}

impl Asks {
    fn begin(&self) -> Waiting<'_> {
        let id = self.numbered.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, answer) = oneshot::channel();
        self.waiting.lock().insert(id, sender);
        Waiting { asks: self, id, answer }
    }

    pub(super) fn answered(&self, answer: SlotAnswer) {
        if let Some(waiting) = self.waiting.lock().remove(&answer.id) {
            let _gone = waiting.send(answer.outcome);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.asks.waiting.lock().remove(&self.id);
    }
}

/// A question.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) op: SlotOp,
    pub(super) slot: SlotId,
    /// The chain that is asked, and the other chain.
    pub(super) chains: (ChainId, ChainId),
    pub(super) chunk: ChunkId,
    pub(super) blob: Option<Blob>,
    /// For `Import` and `Lease`: time until which the chunk must not be evicted.
    pub(super) leased: Option<Tick>,
}

impl Question {
    /// Remaining time of the lease, in milliseconds.
    fn lease_ms(&self) -> u32 {
        let left = self.leased.map_or(Duration::ZERO, |until| until.since(RealClock::tick()));
        u32::try_from(left.as_millis()).unwrap_or(u32::MAX).min(LEASE_MS_MAX)
    }
}

impl Host {
    /// Asks the head of a chain until it answers; `Behind` if it does not before `until`.
    pub(super) async fn ask_head(
        self: &Arc<Self>,
        question: &Question,
        until: Tick,
    ) -> SlotOutcome {
        while RealClock::tick() < until {
            let news = self.news();
            let chain = news.routing.chains.get(&question.chains.0);
            let head = chain.and_then(|chain| chain.serving().next()).map(|member| member.node);
            let outcome = match head {
                Some(node) => self.ask_node(node, question, until).await,
                None => SlotOutcome::Behind,
            };
            if outcome != SlotOutcome::Behind {
                return outcome;
            }
            sleep(BEHIND).await;
        }
        SlotOutcome::Behind
    }

    /// Asks a node once; `Behind` if it does not answer.
    pub(super) async fn ask_node(
        self: &Arc<Self>,
        node: NodeId,
        question: &Question,
        until: Tick,
    ) -> SlotOutcome {
        let mut waiting = self.asks.begin();
        let ask = SlotAsk {
            id: waiting.id,
            from: self.node,
            op: question.op,
            slot: question.slot,
            chain: question.chains.0,
            other: question.chains.1,
            routing: self.news().since(question.slot),
            chunk: question.chunk,
            lease_ms: question.lease_ms(),
            crc: question.blob.as_ref().map_or(Crc32c::EMPTY, millpond_chain::Payload::crc),
            attrs: question.blob.as_ref().map(|blob| blob.block.to_vec()).unwrap_or_default(),
        };
        if node == self.node {
            return Box::pin(self.slot_op(&ask, question.blob.clone())).await;
        }
        let bytes = question.blob.as_ref().map(|blob| blob.bytes.clone());
        let again = if bytes.is_some() { AGAIN_WITH_BYTES } else { AGAIN };
        self.around.links.post(node, ask.chain, (Verb::SlotAsk, &ask.encode()), bytes);
        let left = until.since(RealClock::tick()).min(again);
        match timeout(left, &mut waiting.answer).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) | Err(_) => SlotOutcome::Behind,
        }
    }

    /// Carries out a question from another node and answers it.
    pub async fn slot_asked(self: Arc<Self>, ask: SlotAsk, blob: Option<Blob>) {
        let outcome = self.slot_op(&ask, blob).await;
        let answer = SlotAnswer { id: ask.id, outcome }.encode();
        self.around.links.post(ask.from, ask.chain, (Verb::SlotAnswer, &answer), None);
    }

    /// Takes an answer from another node.
    pub fn slot_answered(&self, answer: SlotAnswer) {
        self.asks.answered(answer);
    }

    async fn slot_op(self: &Arc<Self>, ask: &SlotAsk, blob: Option<Blob>) -> SlotOutcome {
        let routing = self.routing();
        let place = routing.place(ask.slot);
        let meant = match ask.op {
            SlotOp::Probe | SlotOp::Remove | SlotOp::Know => (ask.other, Some(ask.chain)),
            SlotOp::Import | SlotOp::Pin | SlotOp::Unpin | SlotOp::Lease => {
                (ask.chain, Some(ask.other))
            }
        };
        if routing.version < ask.routing || (place.chain, place.old) != meant {
            return SlotOutcome::Behind;
        }
        match ask.op {
            SlotOp::Pin | SlotOp::Unpin => return self.pin_copy(ask).await,
            SlotOp::Know => return SlotOutcome::Done,
            SlotOp::Probe | SlotOp::Remove | SlotOp::Import | SlotOp::Lease => {}
        }
        let head = self.replicas_of(ask.chain).find(|hosted| hosted.is_head());
        let Some(head) = head else { return SlotOutcome::Behind };
        match (ask.op, blob) {
            (SlotOp::Probe, None) => {
                // A put that was admitted by older routing comes first, and no further one is
                // admitted.
                self.slot_leaves(&head, ask.slot);
                if !self.all_know(ask.slot, (ask.chain, ask.other)).await {
                    return SlotOutcome::Behind;
                }
                self.slot_update(&head, ask, Op::Probe).await
            }
            (SlotOp::Remove, None) => {
                self.slot_leaves(&head, ask.slot);
                self.slot_update(&head, ask, Op::Remove).await
            }
            (SlotOp::Import, Some(blob)) => {
                let outcome = self.slot_update(&head, ask, Op::Import(blob)).await;
                // An absent copy was buried and needs no lease.
                let leases = outcome == SlotOutcome::Done && ask.lease_ms > 0;
                if leases && head.lease_copy(ask) == SlotOutcome::Behind {
                    return SlotOutcome::Behind;
                }
                outcome
            }
            (SlotOp::Lease, None) => head.lease_copy(ask),
            _ => SlotOutcome::Behind,
        }
    }

    /// Makes sure that all replicas of the old chain know that the slot moves. Until then nothing
    /// of the slot may be stored at the new chain or removed from the old one: a replica that does
    /// not know of the move answers, for the whole cluster, clients that do not know of it either.
    ///
    /// Replicas that join the chain later do so by newer routing.
    pub(super) async fn all_know(
        self: &Arc<Self>,
        slot: SlotId,
        chains: (ChainId, ChainId),
    ) -> bool {
        let news = self.news();
        let since = news.since(slot);
        if self.asks.known.lock().get(&slot) == Some(&since) {
            return true;
        }
        let Some(chain) = news.routing.chains.get(&chains.0) else { return false };
        let until = RealClock::tick().plus(AGAIN);
        let op = SlotOp::Know;
        let question = Question { op, slot, chains, chunk: ChunkId(0), blob: None, leased: None };
        for member in &chain.targets {
            let reads = matches!(member.state, TargetState::Serving | TargetState::Syncing);
            if reads && self.ask_node(member.node, &question, until).await != SlotOutcome::Done {
                return false;
            }
        }
        let mut known = self.asks.known.lock();
        known.retain(|slot, _| news.routing.place(*slot).old.is_some());
        known.insert(slot, since);
        true
    }

    async fn slot_update(&self, head: &Arc<Hosted>, ask: &SlotAsk, op: Op<Blob>) -> SlotOutcome {
        let probes = matches!(op, Op::Probe);
        let change = Change { chunk: ask.chunk, op, crc: ask.crc, durability: Ack::Disk };
        match head.change(self.own_tag(), change).await {
            Some(Reply::Exists { .. }) if probes => SlotOutcome::Exists,
            Some(Reply::NotFound) if probes => SlotOutcome::NotFound,
            Some(Reply::Done(_) | Reply::Exists { .. } | Reply::NotFound) => SlotOutcome::Done,
            Some(Reply::Refused(Refusal::NoSpace)) => SlotOutcome::NoSpace,
            Some(Reply::Refused(_) | Reply::Data { .. }) | None => SlotOutcome::Behind,
        }
    }

    /// Pins, or unpins, this node's replica of a copy that arrived at the new chain.
    async fn pin_copy(&self, ask: &SlotAsk) -> SlotOutcome {
        for hosted in self.replicas_of(ask.chain) {
            let engine = &self.disks[hosted.disk].engine;
            if hosted.state().flipping(ask.chunk) {
                return SlotOutcome::Behind;
            }
            if engine.set_pinned(hosted.store.id(ask.chunk), ask.op == SlotOp::Pin).await.is_err() {
                return SlotOutcome::Behind;
            }
        }
        SlotOutcome::Done
    }
}

impl Hosted {
    /// Keeps a copy that arrived here from eviction for a while. If leases have used up their
    /// share, the copy stays without one: leases of clients are refused then as well.
    fn lease_copy(&self, ask: &SlotAsk) -> SlotOutcome {
        if self.state().flipping(ask.chunk) {
            return SlotOutcome::Behind;
        }
        let until = RealClock::tick().plus(Duration::from_millis(u64::from(ask.lease_ms)));
        let (engine, id) = (&self.store.engine, self.store.id(ask.chunk));
        if engine.lease(id, until) || engine.lookup(id).is_some() {
            SlotOutcome::Done
        } else {
            SlotOutcome::NotFound
        }
    }
}
