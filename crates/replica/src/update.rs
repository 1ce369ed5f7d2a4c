//! The KV verbs that write, over chains: the head of the key's chain answers.
//!
//! While a slot moves, the head of the new chain answers, and asks the old chain's head as
//! docs/placement.md says: before a put, whether the key is there; after a delete, to remove it
//! there too. `Moved` means that the chain will never do the update, `Behind` that it may have done
//! it, or may do it later.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millpond_chain::{Event, Lane, Op, Refusal, Reply, Tag, UpdateRequest};
use millpond_env::{JoinHandle, RealClock, SharedBuf, sleep, spawn};
use millpond_types::cluster::{ChainId, ChainVersion};
use millpond_types::wire::{ItemStatus, ItemTag, KeysRequest, SlotOp, SlotOutcome};
use millpond_types::{
    Ack, BlockKey, ChunkId, Crc32c, GroupId, NamespaceOptions, SlotId, placement,
};

use super::Host;
use super::attrs::{Block, Owner};
use super::blob::Blob;
use super::hosted::Hosted;
use super::kv::{refused, unix_seconds};
use super::relay::Question;

/// Time for which the other chain of a moving slot is asked; then the client asks again.
const ASK: Duration = Duration::from_secs(2);
/// Time limit for a put that waits for room on a full disk, the limit without an eviction in that
/// time, and the interval of looks.
const ROOM_MAX: Duration = Duration::from_secs(3);
const ROOM_PATIENCE: Duration = Duration::from_millis(500);
const ROOM_LOOK: Duration = Duration::from_millis(20);

/// An update of a client: the slot of its key, and its tag.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    slot: SlotId,
    tag: Tag,
    /// The chain that the client names; none stands for the slot's chain.
    chain: Option<ChainId>,
    /// The chain version that the client knew at the first attempt.
    issued: Option<ChainVersion>,
}

impl Update {
    /// The update of a key in the run that begins with `leader`.
    pub(crate) fn new(group: GroupId, leader: &BlockKey, tag: Option<(u128, ItemTag)>) -> Self {
        let slot = placement::slot(group, leader);
        match tag {
            Some((client, item)) => {
                let lane = Lane { client, channel: item.channel };
                let tag = Tag { lane, sequence: item.sequence };
                Self { slot, tag, chain: Some(item.chain), issued: Some(item.issued) }
            }
            None => Self { slot, tag: Tag::default(), chain: None, issued: None },
        }
    }

    /// The same update as a burial.
    const fn burial(self) -> Self {
        let tag = Tag { lane: self.tag.lane.burial(), sequence: self.tag.sequence };
        Self { tag, ..self }
    }

    /// The same update as a new one, after the whole chain lost its memory of writers and any
    /// updates under way with it: at worst it is done twice, which is harmless for a block that
    /// never changes.
    const fn anew(self) -> Self {
        Self { issued: None, ..self }
    }
}

/// A change of a chunk.
#[derive(Clone)]
pub(super) struct Change {
    pub(super) chunk: ChunkId,
    pub(super) op: Op<Blob>,
    /// Checksum of the bytes, as computed by their sender.
    pub(super) crc: Crc32c,
    pub(super) durability: Ack,
}

/// Place of an update: the head of its chain, and the chain that its slot comes from.
type Entry = (Arc<Hosted>, Option<ChainId>);
/// The chain's reply, or the reason why it was not asked.
type Answer = Result<Reply<Blob>, ItemStatus>;

const fn answer(answer: &Answer) -> ItemStatus {
    match answer {
        Ok(Reply::Done(_)) => ItemStatus::Ok,
        Ok(Reply::Exists { .. }) => ItemStatus::Exists,
        Ok(Reply::NotFound) => ItemStatus::Miss,
        Ok(Reply::Refused(why)) => refused(*why, ItemStatus::Behind),
        Ok(Reply::Data { .. }) => ItemStatus::Behind,
        Err(status) => *status,
    }
}

impl Host {
    /// Finds the place of an update.
    fn entry(&self, update: &Update, chunk: ChunkId) -> Result<Entry, ItemStatus> {
        let place = self.routing().place(update.slot);
        let chain = update.chain.unwrap_or(place.chain);
        let head = self.replicas_of(chain).find(|hosted| hosted.is_head());
        let head = head.ok_or(ItemStatus::Behind)?;
        if chain == place.chain {
            return Ok((head, place.old));
        }
        // The slot has left. An earlier outcome is reported all the same.
        let known = head.knows(chunk, update) || head.knows(chunk, &update.burial());
        if known { Ok((head, None)) } else { Err(ItemStatus::Moved) }
    }

    /// Whether a put can be taken here; the error is the answer to it.
    pub(crate) fn takes(&self, update: &Update, chunk: ChunkId) -> Result<(), ItemStatus> {
        self.entry(update, chunk).map(|_| ())
    }

    /// The head at which a put would add a block; none if it would not, as far as is known here.
    pub(super) fn adds_at(&self, update: &Update, chunk: ChunkId) -> Option<Arc<Hosted>> {
        let (head, _) = self.entry(update, chunk).ok()?;
        // A known update counts too: one that may have been done long ago is done again.
        let comes = !head.store.has(chunk) && head.store.staged_meta(chunk).is_none();
        comes.then_some(head)
    }

    /// Stores a block of this node's own, as its own leader.
    pub async fn put_own(
        self: &Arc<Self>,
        of: (GroupId, &NamespaceOptions),
        key: &BlockKey,
        value: (SharedBuf, Crc32c),
    ) -> ItemStatus {
        self.put(of, Update::new(of.0, key, None), key, value).await
    }

    /// Stores a block on every replica of its chain.
    pub(crate) async fn put(
        self: &Arc<Self>,
        (group, options): (GroupId, &NamespaceOptions),
        update: Update,
        key: &BlockKey,
        (bytes, crc): (SharedBuf, Crc32c),
    ) -> ItemStatus {
        if self.is_own_leader(group, (key, update.slot)) {
            return ItemStatus::Exists;
        }
        let expires = match options.ttl_seconds {
            0 => 0,
            ttl => unix_seconds().saturating_add(ttl),
        };
        let block = Block {
            group,
            slot: update.slot,
            expires,
            priority: options.priority as u8,
            evictable: options.evict,
            key: *key,
        };
        let blob = Blob::arrived(bytes, block.encode().into());
        let chunk = self.around.ids().block(group, key);
        let change = Change { chunk, op: Op::Put(blob), crc, durability: options.ack };
        let mut first = self.try_put(&update, change.clone()).await;
        if matches!(first, Ok(Reply::Refused(Refusal::NoSpace))) {
            first = self.put_when_there_is_room(&update, &change).await;
        }
        // An existing block is reported only under its own key; under another key not even its
        // existence is.
        if matches!(first, Ok(Reply::Exists { .. }))
            && self.is_of_another(&update, chunk, &Owner::Block(block))
        {
            return ItemStatus::Corrupt;
        }
        let again = match &first {
            Ok(Reply::Refused(Refusal::Undecided)) => true,
            // An expired block is never shown: the new one takes its place. The chain remembers the
            // answer to this update, so the put is a new one.
            Ok(Reply::Exists { .. }) => self.makes_way(&update, chunk).await,
            _ => false,
        };
        if again { answer(&self.try_put(&update.anew(), change).await) } else { answer(&first) }
    }

    /// Repeats a put that met a full disk, as long as blocks leave to make room for it.
    async fn put_when_there_is_room(self: &Arc<Self>, update: &Update, change: &Change) -> Answer {
        let until = RealClock::tick().plus(ROOM_MAX);
        let (mut gone, mut going_at) = (self.evicted.load(Ordering::Relaxed), RealClock::tick());
        loop {
            sleep(ROOM_LOOK).await;
            let (now, gone_now) = (RealClock::tick(), self.evicted.load(Ordering::Relaxed));
            if gone_now != gone {
                (gone, going_at) = (gone_now, now);
            }
            let reply = self.try_put(&update.anew(), change.clone()).await;
            let is_full = matches!(reply, Ok(Reply::Refused(Refusal::NoSpace)));
            if !is_full || now >= until || now.since(going_at) >= ROOM_PATIENCE {
                return reply;
            }
        }
    }

    /// Whether the chunk at the head of its chain belongs to another name.
    fn is_of_another(&self, update: &Update, chunk: ChunkId, owner: &Owner) -> bool {
        self.entry(update, chunk).is_ok_and(|(head, _)| head.store.is_of_another(chunk, owner))
    }

    /// Whether the block that a put met has expired and is leaving.
    async fn makes_way(self: &Arc<Self>, update: &Update, chunk: ChunkId) -> bool {
        let Ok((head, _)) = self.entry(update, chunk) else { return false };
        self.remove_expired(&head, chunk).await
    }

    async fn try_put(self: &Arc<Self>, update: &Update, change: Change) -> Answer {
        let (head, old) = self.entry(update, change.chunk)?;
        if let Some(old) = old
            && !head.knows(change.chunk, update)
        {
            match self.ask_old(SlotOp::Probe, update, (old, head.chain), change.chunk).await {
                SlotOutcome::NotFound => {}
                SlotOutcome::Exists => return Err(ItemStatus::Exists),
                _ => return Err(ItemStatus::Behind),
            }
        }
        self.update(&head, update, change).await
    }

    /// Deletes a block on every replica of its chain.
    async fn delete(self: &Arc<Self>, update: Update, chunk: ChunkId, ack: Ack) -> ItemStatus {
        match self.try_delete(&update, chunk, ack).await {
            Ok(Reply::Refused(Refusal::Undecided)) => {
                answer(&self.try_delete(&update.anew(), chunk, ack).await)
            }
            other => answer(&other),
        }
    }

    async fn try_delete(self: &Arc<Self>, update: &Update, chunk: ChunkId, ack: Ack) -> Answer {
        let (head, old) = self.entry(update, chunk)?;
        let burial = update.burial();
        // A burial received before the move ended continues as one.
        let buries = old.is_some() || !head.knows(chunk, update) && head.knows(chunk, &burial);
        let (update, op) = if buries { (&burial, Op::Bury) } else { (update, Op::Remove) };
        let change = Change { chunk, op, crc: Crc32c::EMPTY, durability: ack };
        let reply = self.update(&head, update, change).await?;
        if let (Some(old), Reply::Done(_)) = (old, &reply) {
            match self.ask_old(SlotOp::Remove, update, (old, head.chain), chunk).await {
                SlotOutcome::Done => {}
                _ => return Err(ItemStatus::Behind),
            }
        }
        Ok(reply)
    }

    async fn ask_old(
        self: &Arc<Self>,
        op: SlotOp,
        update: &Update,
        chains: (ChainId, ChainId),
        chunk: ChunkId,
    ) -> SlotOutcome {
        let slot = update.slot;
        let question = Question { op, slot, chains, chunk, blob: None, leased: None };
        self.ask_head(&question, RealClock::tick().plus(ASK)).await
    }

    async fn update(&self, head: &Arc<Hosted>, update: &Update, change: Change) -> Answer {
        let Change { chunk, op, crc, durability } = change;
        let mut tag = update.tag;
        if update.issued.is_none() {
            tag = self.own_tag();
            tag.lane = if update.tag.lane.is_burial() { tag.lane.burial() } else { tag.lane };
        }
        let mut left = false;
        let reply = head.ask(|request, state| {
            // Checked under the lock: an update admitted after the mover began would be lost.
            let known = |issued| state.replica.knows(chunk, tag, issued);
            left = state.has_left(update.slot) && !update.issued.is_some_and(known);
            if left {
                return None;
            }
            let version = state.replica.chain_version();
            let issued = update.issued.unwrap_or(version);
            let seal = None;
            let update = UpdateRequest { version, issued, tag, chunk, op, crc, durability, seal };
            Some(Event::Update(request, update))
        });
        let reply = reply.await;
        reply.ok_or(if left { ItemStatus::Moved } else { ItemStatus::Behind })
    }

    /// A tag for updates of the node itself, which are never retried.
    pub(super) fn own_tag(&self) -> Tag {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        Tag { lane: Lane::default(), sequence }
    }

    /// Deletes the keys of a request.
    pub async fn delete_keys(
        self: &Arc<Self>,
        request: &KeysRequest,
        options: &NamespaceOptions,
    ) -> Vec<ItemStatus> {
        let mut tasks: Vec<JoinHandle<ItemStatus>> = Vec::with_capacity(request.keys.len());
        for (index, key) in request.keys.iter().enumerate() {
            let leader = request.leaders.leader(&request.keys, index, options.run_blocks);
            let tag = request.tags.as_ref().map(|tags| (tags.client, tags.items[index]));
            let update = Update::new(request.namespace, leader, tag);
            let chunk = self.around.ids().block(request.namespace, key);
            let owner = Owner::block(request.namespace, *key);
            if self.is_of_another(&update, chunk, &owner) {
                tasks.push(spawn(std::future::ready(ItemStatus::Miss)));
                continue;
            }
            let (host, ack) = (Arc::clone(self), options.ack);
            let own = self.is_own_leader(request.namespace, (key, update.slot));
            let own = own.then(|| Update::new(request.namespace, key, None));
            tasks.push(spawn(async move {
                let status = host.delete(update, chunk, ack).await;
                match own {
                    Some(own) if status == ItemStatus::Miss => host.delete(own, chunk, ack).await,
                    _ => status,
                }
            }));
        }
        let mut items = Vec::with_capacity(tasks.len());
        for task in tasks {
            items.push(task.await.unwrap_or(ItemStatus::Behind));
        }
        items
    }
}

impl Hosted {
    /// Whether it heads its chain and serves.
    pub(super) fn is_head(&self) -> bool {
        self.state().replica.is_head_serving()
    }

    /// Whether the update was done here, may have been, or is under way.
    fn knows(&self, chunk: ChunkId, update: &Update) -> bool {
        let state = self.state();
        update.issued.is_some_and(|issued| state.replica.knows(chunk, update.tag, issued))
    }

    /// Makes an update of the node itself, regardless of the place of the chunk's slot.
    pub(super) async fn change(self: &Arc<Self>, tag: Tag, change: Change) -> Option<Reply<Blob>> {
        let Change { chunk, op, crc, durability } = change;
        self.ask(|request, state| {
            let version = state.replica.chain_version();
            let issued = version;
            let seal = None;
            let update = UpdateRequest { version, issued, tag, chunk, op, crc, durability, seal };
            Some(Event::Update(request, update))
        })
        .await
    }
}
