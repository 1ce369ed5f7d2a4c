//! One busy chunk: its lock, its pending version, its queue.

use std::collections::{BTreeSet, VecDeque};

use millpond_types::Tick;
use millpond_types::cluster::{ChunkVersion, TargetId};

use crate::event::{RequestId, StoreError};
use crate::message::{Content, Meta, Op, Tag, Update, UpdateRequest};

/// Progress of the local copy of a pending version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The store is writing it.
    Running,
    /// Stored, with the requested durability.
    Done(Content),
    /// The store refused at this time; it is tried again.
    Failed(StoreError, Tick),
}

/// A version between stage and commit.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on each other")]
pub(crate) struct Pending<P> {
    pub(crate) update: Update<P>,
    /// The client to answer, at the head.
    pub(crate) waiter: Option<RequestId>,
    pub(crate) stage: Stage,
    /// Whether it is stored as the committed version at once.
    pub(crate) direct: bool,
    /// Time of the first request to the store.
    pub(crate) since: Tick,
    /// Whether all above have stored it. Until then it must not be committed, and so not be read:
    /// they could lose it and be the ones that bring the chain back.
    pub(crate) above: bool,
    /// Whether the successor knows that all above it have stored it.
    pub(crate) told_ready: bool,
    /// Whether the successor committed it.
    pub(crate) acked: bool,
    /// The version that the successor committed, to compare with the local stage.
    pub(crate) acked_meta: Option<Meta>,
    /// Time when it was last passed on in this version of the chain.
    pub(crate) sent: Option<Tick>,
    /// Whether another replica has it, or had: it may have been committed and read there.
    pub(crate) shared: bool,
    /// Whether it was stored here at least once. Before that no replica commits it.
    pub(crate) stored: bool,
    /// All bytes of the version, for a successor that lacks the version before.
    pub(crate) whole: Option<P>,
    /// Whether the store is reading them.
    pub(crate) reading_whole: bool,
    /// Whether it was in flight when this replica became the tail: the previous tail may have
    /// committed it and shown it to readers. Until it is committed here, the committed version is
    /// unknown.
    pub(crate) inherited: bool,
    /// Whether the tail reported it as committed: reads may answer this version.
    pub(crate) known_committed: bool,
}

impl<P> Pending<P> {
    pub(crate) const fn new(update: Update<P>, waiter: Option<RequestId>, now: Tick) -> Self {
        Self {
            update,
            waiter,
            stage: Stage::Running,
            direct: false,
            since: now,
            above: false,
            told_ready: false,
            acked: false,
            acked_meta: None,
            sent: None,
            shared: false,
            stored: false,
            whole: None,
            reading_whole: false,
            inherited: false,
            known_committed: false,
        }
    }

    /// Whether the store is making it the committed version.
    pub(crate) const fn is_put(&self) -> bool {
        self.direct && matches!(self.stage, Stage::Running)
    }

    /// Whether it is stored here and by all above.
    pub(crate) const fn ready(&self) -> bool {
        self.above && matches!(self.stage, Stage::Done(_))
    }

    /// The version's metadata once committed.
    pub(crate) const fn meta(&self, content: Content) -> Meta {
        Meta {
            version: self.update.version,
            written: self.update.written,
            content,
            tag: self.update.tag,
        }
    }
}

/// An operation that waits for the chunk.
#[derive(Clone, Debug)]
pub(crate) enum Waiting<P> {
    Update(RequestId, UpdateRequest<P>),
    Forward(Update<P>),
    TailQuery(TargetId, u64),
    /// The source of a resync needs the lock.
    Send,
    /// The sink of a resync needs the lock.
    Install(Install<P>),
    /// A tombstone of this version is old enough to be collected.
    Collect(ChunkVersion),
}

/// The state that a resync's source wants the sink to have.
#[derive(Clone, Debug)]
pub(crate) struct Install<P> {
    pub(crate) expect: Option<Meta>,
    pub(crate) meta: Option<Meta>,
    pub(crate) bytes: Option<P>,
    /// Whether the bytes are lost: then there are none here.
    pub(crate) lost: bool,
}

/// Holder of the lock, when it is not a pending version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    /// The source of a resync, until the sink has the chunk.
    Send,
    /// The sink of a resync, until this version, or its loss, is stored.
    Install { meta: Meta, lost: bool },
    /// Repair, until good bytes are in place.
    Restore,
    /// The next update, while the store is asked for its seal.
    Ask,
    /// A seal that waits for the updates before it.
    Drain,
}

/// A search for good bytes of the committed version; over when another one is committed.
#[derive(Clone, Debug)]
pub(crate) struct Repair {
    pub(crate) nonce: u64,
    /// Number of requests so far; it selects the next replica to ask.
    pub(crate) asked: usize,
    pub(crate) sent: Tick,
    /// Replicas that reported since the search began that they have no copy.
    pub(crate) without: BTreeSet<TargetId>,
}

#[derive(Clone, Debug)]
pub(crate) struct Slot<P> {
    /// Whether the store has reported the committed version.
    pub(crate) known: bool,
    pub(crate) committed: Option<Meta>,
    /// Whether the store has no bytes of the committed version.
    pub(crate) lost: bool,
    pub(crate) pending: Option<Pending<P>>,
    pub(crate) lock: Option<Lock>,
    pub(crate) queue: VecDeque<Waiting<P>>,
    pub(crate) repair: Option<Repair>,
}

impl<P> Slot<P> {
    pub(crate) const fn new() -> Self {
        Self {
            known: false,
            committed: None,
            lost: false,
            pending: None,
            lock: None,
            queue: VecDeque::new(),
            repair: None,
        }
    }

    pub(crate) fn committed_version(&self) -> ChunkVersion {
        self.committed.map_or(ChunkVersion(0), |meta| meta.version)
    }

    pub(crate) const fn locked(&self) -> bool {
        !self.known || self.pending.is_some() || self.lock.is_some()
    }

    /// Whether the committed version is unknown.
    pub(crate) fn inherited(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.inherited)
    }

    /// Whether an update of this tag is pending or queued.
    pub(crate) fn has(&self, tag: Tag) -> bool {
        let queued = |waiting: &Waiting<P>| match waiting {
            Waiting::Update(_, body) => body.tag == tag && !matches!(body.op, Op::Probe),
            Waiting::Forward(update) => update.tag == tag,
            _ => false,
        };
        self.pending.as_ref().is_some_and(|pending| pending.update.tag == tag)
            || self.queue.iter().any(queued)
    }

    /// Whether the slot can be forgotten: the store alone needs to know the chunk.
    pub(crate) fn idle(&self) -> bool {
        !self.locked() && self.queue.is_empty() && self.repair.is_none()
    }
}
