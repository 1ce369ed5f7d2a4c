//! What goes into the state machine and what comes out: plain data.

use millpond_types::cluster::{
    Chain, ChainId, ChainVersion, ChunkVersion, LocalState, TargetId, TargetState,
};
use millpond_types::{Ack, ChunkId, Tick};

use crate::message::{
    Content, Meta, Payload, Peer, ReadRequest, Reply, Space, UpdateRequest, Write,
};

/// Names a client's request at this replica; made by the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names a store operation; made by the state machine, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Something happened. The shell reads the clock after it took the event, never before.
#[derive(Clone, Debug)]
pub enum Event<P> {
    /// A description of the chain, new or old, from anybody who got it from a manager.
    Routing(Chain),
    /// The manager answered the heartbeat sent at `sent` (this clock), knowing `version`.
    Lease {
        /// When the heartbeat left.
        sent: Tick,
        /// The chain's version at the manager when it answered.
        version: ChainVersion,
    },
    /// A client wants to write.
    Update(RequestId, UpdateRequest<P>),
    /// A client wants to read.
    Read(RequestId, ReadRequest),
    /// Another replica says something.
    Peer(TargetId, Peer<P>),
    /// A store operation ended.
    Stored(Token, Result<StoreAnswer<P>, StoreError>),
    /// The store failed outside an operation: the replica must stop.
    StoreFailed,
    /// The scrubber found the committed bytes of a chunk damaged.
    Damaged(ChunkId),
    /// How full the disk is.
    Space(Space),
    /// So many bytes may be sent for resync from now on; what was left before is forfeit.
    Budget {
        /// How many.
        bytes: u64,
    },
    /// Leave (or, when false, no longer leave) the chain: drain, graceful stop.
    Retire(bool),
    /// Time passed; wanted every `limits::CHAIN_TICK_MS`.
    Tick,
}

/// Something to do, in this order.
#[derive(Clone, Debug)]
pub enum Effect<P> {
    /// Answer a client.
    Reply(RequestId, Reply<P>),
    /// A retry takes this request's place and gets its answer: its client has given it up.
    Replaced(RequestId),
    /// Send to another replica of the chain. Loss is repaired by sending again.
    Send(TargetId, Peer<P>),
    /// Do it and answer with [`Event::Stored`].
    Store(Token, StoreOp<P>),
    /// Make the staged version the committed one. Seen by every later operation at once; may
    /// reach the disk later, but before any later change of the same chunk does.
    Commit(ChunkId, ChunkVersion),
    /// Forget the chunk: committed and staged. As lazy as [`Effect::Commit`].
    Remove(ChunkId),
    /// Forget a staged version that was refused.
    Unstage(ChunkId),
    /// Somebody knows this version of the chain: fetch it from the manager.
    NeedRouting(ChainVersion),
    /// What the next heartbeats shall say; send one now.
    Report(LocalReport),
    /// Tell a human.
    Alarm(Alarm),
}

/// What a node reports of a target. The manager believes `UpToDate` of a syncing target only
/// for the very chain version that it has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalReport {
    /// The chain.
    pub chain: ChainId,
    /// The target.
    pub target: TargetId,
    /// Its state.
    pub state: LocalState,
    /// The chain version that the target acts on.
    pub version: ChainVersion,
}

/// A store operation with an answer.
#[derive(Clone, Debug)]
pub enum StoreOp<P> {
    /// What is there of this chunk? Answer: `Entry`, or `Lost`.
    Lookup(ChunkId),
    /// Store a version beside the committed one. Answer: `Staged`, once it is as durable as asked.
    Stage(StageRequest<P>),
    /// Store a version, all of its bytes, as the committed one, where there is none. Reads see it once it is
    /// as durable as asked. Answer: `Staged`, and nothing is left to commit.
    Put(StageRequest<P>),
    /// Put good bytes in the place of the damaged ones of the committed version. Answer: `Done`.
    Restore(ChunkId, Meta, P),
    /// Read the staged version if it is this one, else the committed one. Answer: `Bytes`.
    Read(ReadOp),
    /// What is kept beside the committed version's bytes, which may be damaged. Answer: `Bytes`, with a
    /// payload that has none.
    Label(ChunkId),
    /// Store beside the committed version that this one, of which the label is kept, is lost: whoever reads
    /// it hears `Corrupt`, until a version is committed over it or it is restored. Answer: `Staged`.
    StageLost(ChunkId, Meta, P),
    /// Committed versions in `(after, until]`, at most `max`. Answer: `Page`.
    List {
        /// Begin, exclusive.
        after: Option<ChunkId>,
        /// End, inclusive.
        until: Option<ChunkId>,
        /// How many.
        max: usize,
    },
    /// Tombstones after this chunk, at most so many. Answer: `Page`.
    ListTombstones(Option<ChunkId>, usize),
    /// Committed versions that the store has no bytes of, after this chunk, at most so many. Answer: `Page`.
    ListLost(Option<ChunkId>, usize),
    /// All staged versions. Answer: `Page`.
    ListStaged,
    /// Forget all staged versions, durably. Answer: `Done`.
    DiscardStaged,
    /// Make everything before durable. Answer: `Done`.
    Sync,
    /// Remember durably that the target acted on this chain version. Answer: `Done`.
    SaveVersion(ChainVersion),
}

/// A version to store.
#[derive(Clone, Debug)]
pub struct StageRequest<P> {
    /// The chunk.
    pub chunk: ChunkId,
    /// The version it makes.
    pub version: ChunkVersion,
    /// For the version's [`Meta`].
    pub written: ChainVersion,
    /// For the version's [`Meta`].
    pub tag: crate::message::Tag,
    /// What to write.
    pub write: Write<P>,
    /// When to answer.
    pub durability: Ack,
}

/// A read of the store.
#[derive(Clone, Copy, Debug)]
pub struct ReadOp {
    /// The chunk.
    pub chunk: ChunkId,
    /// The staged version that is wanted; `None` wants the committed one.
    pub version: Option<ChunkVersion>,
    /// First byte.
    pub offset: u32,
    /// At most so many.
    pub len: u32,
}

/// The answer of a store operation.
#[derive(Clone, Debug)]
pub enum StoreAnswer<P> {
    /// To `Lookup`: the committed version.
    Entry(Option<Meta>),
    /// To `Lookup`: the committed version, of which there are no bytes.
    Lost(Meta),
    /// To `Stage` and `Put`: what the version holds.
    Staged(Content),
    /// To `Read`: the version and its bytes; a tombstone has none.
    Bytes(Option<(Meta, Option<P>)>),
    /// To the lists, in order.
    Page {
        /// The chunks.
        items: Vec<(ChunkId, Meta)>,
        /// True when there are no more in the range.
        complete: bool,
    },
    /// To the others.
    Done,
}

/// Why a store operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The disk is full.
    NoSpace,
    /// The bytes that were to be read are damaged.
    Corrupt,
    /// The disk does not work.
    Io,
}

/// What a human should hear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// The store failed; the replica stopped.
    StoreFailed,
    /// Two replicas hold different bytes under one version; the replica stopped.
    Diverged(ChunkId),
    /// The routing gives this replica a state that it cannot have come to; it stopped.
    Impossible(TargetState),
    /// No other replica has a copy that could repair this chunk.
    Unrepairable(ChunkId),
    /// This replica is brought up to date without the bytes of this chunk, which nobody has.
    Lost(ChunkId),
    /// A message that no replica sends was refused: its sender, as far as it tells, and the fault in it.
    Refused(TargetId, &'static str),
}

/// One turn of the state machine: the time, and where effects go.
pub(crate) struct Turn<'a, P> {
    pub(crate) now: Tick,
    pub(crate) effects: &'a mut Vec<Effect<P>>,
}

impl<P: Payload> Turn<'_, P> {
    pub(crate) fn emit(&mut self, effect: Effect<P>) {
        self.effects.push(effect);
    }
}
