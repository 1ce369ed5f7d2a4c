//! Inputs and outputs of the state machine: plain data.

use millpond_types::cluster::{
    Chain, ChainId, ChainVersion, ChunkVersion, LocalState, TargetId, TargetState,
};
use millpond_types::{Ack, ChunkId, Tick};

use crate::message::{
    Content, Meta, Payload, Peer, ReadRequest, Reply, Space, UpdateRequest, Write,
};

/// Id of a client's request at this replica; made by the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Id of a store operation; made by the state machine, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// An input. The shell reads the clock after it took the event, never before.
#[derive(Clone, Debug)]
pub enum Event<P> {
    /// A description of the chain, new or old, that any process got from a manager.
    Routing(Chain),
    /// The manager answered the heartbeat sent at `sent` (this clock), knowing `version`.
    Lease {
        /// When the heartbeat left.
        sent: Tick,
        /// The chain's version at the manager when it answered.
        version: ChainVersion,
    },
    /// A client's update.
    Update(RequestId, UpdateRequest<P>),
    /// A client's read.
    Read(RequestId, ReadRequest),
    /// A message of another replica.
    Peer(TargetId, Peer<P>),
    /// A store operation ended.
    Stored(Token, Result<StoreAnswer<P>, StoreError>),
    /// The store failed outside an operation: the replica must stop.
    StoreFailed,
    /// The scrubber found the committed bytes of a chunk damaged.
    Damaged(ChunkId),
    /// Free space of the disk.
    Space(Space),
    /// New budget for resync: unused bytes of the previous one expire.
    Budget {
        /// Number of bytes.
        bytes: u64,
    },
    /// Leave (or, when false, no longer leave) the chain: drain, graceful stop.
    Retire(bool),
    /// Time passed; sent every `limits::CHAIN_TICK_MS`.
    Tick,
}

/// An output; the shell executes effects in order.
#[derive(Clone, Debug)]
pub enum Effect<P> {
    /// Answer a client.
    Reply(RequestId, Reply<P>),
    /// A retry takes this request's place and gets its answer: the client has given this request
    /// up.
    Replaced(RequestId),
    /// Send to another replica of the chain. Lost messages are sent again.
    Send(TargetId, Peer<P>),
    /// Execute it and answer with [`Event::Stored`].
    Store(Token, StoreOp<P>),
    /// Make the staged version the committed one. Every later operation sees it at once. It may
    /// reach the disk later, but before any later change of the same chunk does.
    Commit(ChunkId, ChunkVersion),
    /// Forget the chunk: committed and staged. As lazy as [`Effect::Commit`].
    Remove(ChunkId),
    /// Forget a refused staged version.
    Unstage(ChunkId),
    /// Another process knows this version of the chain: fetch it from the manager.
    NeedRouting(ChainVersion),
    /// Content of the next heartbeats; send one now.
    Report(LocalReport),
    /// Alert an operator.
    Alarm(Alarm),
}

/// A node's report of a target. The manager accepts `UpToDate` of a syncing target only for its own
/// current chain version.
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
    /// Look up a chunk's state. Answer: `Entry`, or `Lost`.
    Lookup(ChunkId),
    /// Store a version beside the committed one. Answer: `Staged`, once it has the requested
    /// durability.
    Stage(StageRequest<P>),
    /// Store a whole version as the committed one, where there is none. Reads see it once it has
    /// the requested durability. Answer: `Staged`; no commit follows.
    Put(StageRequest<P>),
    /// Replace the damaged bytes of the committed version by good ones. Answer: `Done`.
    Restore(ChunkId, Meta, P),
    /// Read the staged version if it is this one, otherwise the committed one. Answer: `Bytes`.
    Read(ReadOp),
    /// Read the label kept beside the committed version's bytes, which may be damaged. Answer:
    /// `Bytes`, with an empty payload.
    Label(ChunkId),
    /// Record beside the committed version that this version is lost, and keep its label. Reads of
    /// it return `Corrupt`, until a version is committed over it or it is restored. Answer:
    /// `Staged`.
    StageLost(ChunkId, Meta, P),
    /// Committed versions in `(after, until]`, at most `max`. Answer: `Page`.
    List {
        /// Begin, exclusive.
        after: Option<ChunkId>,
        /// End, inclusive.
        until: Option<ChunkId>,
        /// Most versions to list.
        max: usize,
    },
    /// Tombstones after this chunk, at most this many. Answer: `Page`.
    ListTombstones(Option<ChunkId>, usize),
    /// Committed versions after this chunk without bytes in the store, at most this many. Answer:
    /// `Page`.
    ListLost(Option<ChunkId>, usize),
    /// All staged versions. Answer: `Page`.
    ListStaged,
    /// Forget all staged versions, durably. Answer: `Done`.
    DiscardStaged,
    /// Make all earlier operations durable. Answer: `Done`.
    Sync,
    /// Record durably that the target acted on this chain version. Answer: `Done`.
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
    /// The bytes or the change.
    pub write: Write<P>,
    /// Durability at which to answer.
    pub durability: Ack,
}

/// A read of the store.
#[derive(Clone, Copy, Debug)]
pub struct ReadOp {
    /// The chunk.
    pub chunk: ChunkId,
    /// The wanted staged version; `None` for the committed one.
    pub version: Option<ChunkVersion>,
    /// First byte.
    pub offset: u32,
    /// Most bytes to read.
    pub len: u32,
}

/// The answer of a store operation.
#[derive(Clone, Debug)]
pub enum StoreAnswer<P> {
    /// To `Lookup`: the committed version.
    Entry(Option<Meta>),
    /// To `Lookup`: the committed version, whose bytes are lost.
    Lost(Meta),
    /// To `Stage` and `Put`: content of the version.
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

/// Reason why a store operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// The disk is full.
    NoSpace,
    /// The requested bytes are damaged.
    Corrupt,
    /// The disk does not work.
    Io,
}

/// Message for an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// The store failed; the replica stopped.
    StoreFailed,
    /// Two replicas hold different bytes under one version; the replica stopped.
    Diverged(ChunkId),
    /// The routing gives this replica a state that it cannot have reached; it stopped.
    Impossible(TargetState),
    /// No other replica has a copy that could repair this chunk.
    Unrepairable(ChunkId),
    /// This replica is brought up to date without the bytes of this chunk, which no replica has.
    Lost(ChunkId),
    /// A message that no replica can send was refused: its claimed sender, and the fault in it.
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
