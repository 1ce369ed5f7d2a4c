//! Messages of clients and replicas about chunks.

use std::fmt;

use millpond_types::cluster::{ChainVersion, ChunkVersion};
use millpond_types::{Ack, ChunkId, Crc32c};

/// Bytes of an update or a chunk: a counted handle of a buffer in production, a small vector in
/// the simulator. Clones share the bytes.
pub trait Payload: Clone + fmt::Debug {
    /// Number of bytes.
    fn len(&self) -> usize;

    /// Checksum computed over the received bytes, not the one that the sender claims.
    fn crc(&self) -> Crc32c;

    /// True when there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A writer: one client and one of its channels. It has one update in flight at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    /// The client, a random number made at its start. 0 is the chain itself.
    pub client: u128,
    /// Its channel.
    pub channel: u32,
}

impl Lane {
    /// Set in the channel of lanes for burials.
    const BURIAL: u32 = 1 << 31;

    /// The lane for burials of this writer ([`Op::Bury`]); its own channels are below 2^31.
    #[must_use]
    pub const fn burial(self) -> Self {
        Self { channel: self.channel | Self::BURIAL, ..self }
    }

    /// Whether tombstones of this lane mark chunks that were deleted while they were moving here.
    #[must_use]
    pub const fn is_burial(&self) -> bool {
        self.channel & Self::BURIAL != 0
    }
}

/// Free space of a replica's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Whether it has room for more updates than are in flight.
    pub room: bool,
    /// Bytes that this chain should remove, if it may, so that the disk keeps free space.
    pub excess: u64,
}

impl Space {
    /// Space of a disk with plenty of room.
    pub const AMPLE: Self = Self { room: true, excess: 0 };

    /// Combines two replicas: room only if both have it, and the excess of the fuller one.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { room: self.room && other.room, excess: self.excess.max(other.excess) }
    }
}

/// Id of one update for ever: a retry carries the tag of its first attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// The writer.
    pub lane: Lane,
    /// Grows by at least one with every update of the lane.
    pub sequence: u64,
}

/// Content of a chunk at one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Bytes.
    Data {
        /// Number of bytes.
        len: u32,
        /// Their checksum.
        crc: Crc32c,
    },
    /// Nothing: it was deleted, and the version of the deletion is kept.
    Tombstone,
}

/// One version of a chunk without its bytes. Equal on every replica that holds the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The version.
    pub version: ChunkVersion,
    /// The chain version under which the head admitted the update that made it.
    pub written: ChainVersion,
    /// Its content.
    pub content: Content,
    /// The update that made it.
    pub tag: Tag,
}

impl Meta {
    /// Length and checksum of the bytes; `None` for a tombstone.
    #[must_use]
    pub const fn data(&self) -> Option<(u32, Crc32c)> {
        match self.content {
            Content::Data { len, crc } => Some((len, crc)),
            Content::Tombstone => None,
        }
    }
}

/// A client's operation on a chunk.
#[derive(Clone, Debug)]
pub enum Op<P> {
    /// Write the whole chunk unless it exists.
    Put(P),
    /// Write the whole chunk, replacing any present one.
    Replace(P),
    /// Write a part; a gap before it is filled with zeros.
    Write {
        /// First byte to write.
        offset: u32,
        /// The bytes.
        bytes: P,
    },
    /// Write after the last byte.
    Append(P),
    /// Cut or extend with zeros to this length.
    Truncate {
        /// Length afterwards.
        len: u32,
    },
    /// Delete.
    Remove,
    /// Write a chunk of a slot that moves here, unless it exists or was buried.
    Import(P),
    /// Delete in a slot that moves here: leaves a tombstone even without a chunk, since the chunk
    /// may still arrive. Its tag is of a [`Lane::burial`], which distinguishes the tombstone.
    Bury,
    /// Write the whole chunk unless it exists, once all updates in flight have ended. From then on
    /// updates that name it as their seal are refused.
    Seal(P),
    /// Report whether a chunk exists, after all earlier updates of it. It is not recorded, so any
    /// tag will do.
    Probe,
}

impl<P> Op<P> {
    /// The bytes it carries.
    pub const fn payload(&self) -> Option<&P> {
        match self {
            Self::Put(bytes)
            | Self::Replace(bytes)
            | Self::Append(bytes)
            | Self::Import(bytes)
            | Self::Seal(bytes)
            | Self::Write { bytes, .. } => Some(bytes),
            Self::Truncate { .. } | Self::Remove | Self::Bury | Self::Probe => None,
        }
    }
}

/// A client's update of a chunk.
#[derive(Clone, Debug)]
pub struct UpdateRequest<P> {
    /// Chain version known to the client.
    pub version: ChainVersion,
    /// Chain version known to the client at the first attempt.
    pub issued: ChainVersion,
    /// Id of the update.
    pub tag: Tag,
    /// The chunk.
    pub chunk: ChunkId,
    /// The operation.
    pub op: Op<P>,
    /// Checksum of the payload as the client computed it.
    pub crc: Crc32c,
    /// Durability at which each replica may call it stored.
    pub durability: Ack,
    /// Refuse the update while this chunk exists; another client writes it with [`Op::Seal`].
    pub seal: Option<ChunkId>,
}

/// A client's read of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest {
    /// Chain version known to the client.
    pub version: ChainVersion,
    /// The chunk.
    pub chunk: ChunkId,
    /// First byte wanted.
    pub offset: u32,
    /// Most bytes wanted.
    pub len: u32,
}

/// The write of a replica, after the head has decided the meaning of the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write<P> {
    /// The whole chunk.
    Whole(P),
    /// A part of it over the version before.
    Part {
        /// First byte.
        offset: u32,
        /// The bytes.
        bytes: P,
    },
    /// A new length over the version before.
    Truncate {
        /// Length afterwards.
        len: u32,
    },
    /// A deletion that leaves a tombstone.
    Tombstone,
    /// The end of a tombstone: as if the chunk had never existed.
    Collect,
}

impl<P: Payload> Write<P> {
    /// The bytes it carries.
    pub const fn payload(&self) -> Option<&P> {
        match self {
            Self::Whole(bytes) | Self::Part { bytes, .. } => Some(bytes),
            Self::Truncate { .. } | Self::Tombstone | Self::Collect => None,
        }
    }

    /// True when the previous version does not matter.
    pub(crate) const fn stands_alone(&self) -> bool {
        !matches!(self, Self::Part { .. } | Self::Truncate { .. })
    }
}

/// One version of a chunk on its way down the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update<P> {
    /// The chunk.
    pub chunk: ChunkId,
    /// Id of the update.
    pub tag: Tag,
    /// The version it is made from; 0 when the chunk did not exist.
    pub base: ChunkVersion,
    /// The version it makes.
    pub version: ChunkVersion,
    /// The chain version under which the head admitted it.
    pub written: ChainVersion,
    /// The write.
    pub write: Write<P>,
    /// Checksum of the payload.
    pub crc: Crc32c,
    /// Durability at which a replica may call it stored.
    pub durability: Ack,
}

/// A message of one replica to another. It carries the sender's chain version and is valid only for
/// a receiver that acts on the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer<P> {
    /// The sender's chain version.
    pub version: ChainVersion,
    /// Its content.
    pub body: PeerBody<P>,
}

impl<P: Payload> Peer<P> {
    /// The bytes it carries.
    pub const fn payload(&self) -> Option<&P> {
        match &self.body {
            PeerBody::Forward { update, .. } => update.write.payload(),
            PeerBody::Fetched { bytes, .. } => Some(bytes),
            PeerBody::Sync(SyncBody::Put { bytes, .. }) => bytes.as_ref(),
            PeerBody::Sync(SyncBody::Lost { label, .. }) => Some(label),
            _ => None,
        }
    }
}

/// The kinds of messages between replicas. All may be lost, repeated and reordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerBody<P> {
    /// To the successor: store this and pass it on.
    Forward {
        /// The version to store.
        update: Update<P>,
        /// The sender and all above it have stored it.
        ready: bool,
    },
    /// To the successor: the sender and all above it have stored the version.
    Ready {
        /// The chunk.
        chunk: ChunkId,
        /// The version.
        version: ChunkVersion,
    },
    /// To the predecessor: the version is committed here and below.
    Ack {
        /// The chunk.
        chunk: ChunkId,
        /// The version.
        version: ChunkVersion,
        /// The version committed here, to compare; `None` when the chunk is gone.
        meta: Option<Meta>,
    },
    /// The sender knows a newer version of the chain.
    Stale,
    /// To the tail: asks for the committed version.
    TailQuery {
        /// Id of the question.
        nonce: u64,
        /// The chunk.
        chunk: ChunkId,
    },
    /// From the tail.
    TailAnswer {
        /// Id of the question.
        nonce: u64,
        /// The committed version; 0 when there is none.
        committed: ChunkVersion,
    },
    /// To the other serving targets: asks for a peer lease.
    LeaseAsk {
        /// The asker's clock, echoed in the grant.
        sent: millpond_types::Tick,
    },
    /// The sender acts on no chain version without the receiver until the grant has run out.
    LeaseGrant {
        /// The asker's clock when it asked.
        sent: millpond_types::Tick,
    },
    /// From a promoted target to its predecessor: asks whether it acts on this version.
    JoinAsk,
    /// It does.
    JoinAnswer,
    /// Asks for the committed version of this chunk, as the sender's copy is damaged.
    Fetch {
        /// Id of the search, for [`PeerBody::NoCopy`]; 0 requests none.
        nonce: u64,
        /// The chunk.
        chunk: ChunkId,
    },
    /// A whole chunk, committed at the sender.
    Fetched {
        /// The chunk.
        chunk: ChunkId,
        /// Its version.
        meta: Meta,
        /// Its bytes.
        bytes: P,
    },
    /// To `Fetch`: the sender has no good bytes of the chunk, and none are in flight to it.
    NoCopy {
        /// Id of the search.
        nonce: u64,
        /// The chunk.
        chunk: ChunkId,
    },
    /// Free space of the disks of the sender and all below it.
    Room(Space),
    /// One step of a resync.
    Sync(SyncBody<P>),
}

/// Messages of a resync: from the source (the last serving target) and from the sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncBody<P> {
    /// Source: asks for the sink's progress.
    Hello,
    /// Sink: its progress.
    Progress {
        /// All chunks up to this one were compared; `None` before the first.
        cursor: Option<ChunkId>,
        /// All chunks are equal and stored durably.
        done: bool,
    },
    /// Source: its chunks in `(after, until]`, to compare.
    List {
        /// Id of the page.
        nonce: u64,
        /// Begin, exclusive; all before it are equal.
        after: Option<ChunkId>,
        /// End, inclusive; `None` is the end of all chunks.
        until: Option<ChunkId>,
        /// The chunks, in order.
        items: Vec<(ChunkId, Meta)>,
    },
    /// Sink: the chunks up to `until` that differ.
    Differ {
        /// Id of the page.
        nonce: u64,
        /// End of the compared range, inclusive; `None` is the end of all chunks.
        until: Option<ChunkId>,
        /// The sink's state of each chunk that differs.
        items: Vec<(ChunkId, Option<Meta>)>,
    },
    /// Source: gives a chunk this state, if the sink's is still as it reported.
    Put {
        /// The chunk.
        chunk: ChunkId,
        /// The state that the sink reported.
        expect: Option<Meta>,
        /// The new state; `None` removes it.
        meta: Option<Meta>,
        /// Its bytes, unless it is removed or a tombstone.
        bytes: Option<P>,
    },
    /// Source: like `Put`, for a chunk of which no participant has good bytes. The sink records its
    /// version, and that it is lost.
    Lost {
        /// The chunk.
        chunk: ChunkId,
        /// The state that the sink reported.
        expect: Option<Meta>,
        /// The lost version.
        meta: Meta,
        /// The label that the store keeps beside the bytes, as a payload without any.
        label: P,
    },
    /// Sink: its current state of a chunk.
    Has {
        /// The chunk.
        chunk: ChunkId,
        /// The sink's state.
        meta: Option<Meta>,
    },
    /// Source: all pages are compared; the sink must record these writers and make everything
    /// durable.
    Finish {
        /// The last update of each lane.
        lanes: Vec<LaneRecord>,
        /// Updates first issued before this chain version may be missing in `lanes`.
        complete_since: ChainVersion,
    },
}

/// The last update of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneRecord {
    /// The lane and its last sequence.
    pub tag: Tag,
    /// The answer it got.
    pub answer: Answer,
}

/// The final answer to an update. An answer that changed nothing is recorded too: a late copy of
/// the request must not change anything either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was done.
    Done(Outcome),
    /// `Put` found this version.
    Exists(ChunkVersion),
    /// There was nothing to change.
    NotFound,
}

impl<P> From<Answer> for Reply<P> {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Done(outcome) => Self::Done(outcome),
            Answer::Exists(version) => Self::Exists { version },
            Answer::NotFound => Self::NotFound,
        }
    }
}

/// Result of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The chunk it changed.
    pub chunk: ChunkId,
    /// The version it made.
    pub version: ChunkVersion,
    /// The chunk's content after it.
    pub content: Content,
}

/// The answer to a client.
#[derive(Clone, Debug)]
pub enum Reply<P> {
    /// The update is stored on every replica that takes part.
    Done(Outcome),
    /// `Put` found a chunk and left it.
    Exists {
        /// Its version.
        version: ChunkVersion,
    },
    /// The chunk does not exist, for a read, `Truncate` or `Remove`.
    NotFound,
    /// The bytes read.
    Data {
        /// The version they belong to.
        version: ChunkVersion,
        /// Length of the whole chunk.
        chunk_len: u32,
        /// The requested bytes, up to the end of the chunk.
        bytes: P,
    },
    /// Not done. A client that gives an update up after this must treat its outcome as unknown: an
    /// earlier copy of the request may still be in flight.
    Refused(Refusal),
}

/// The reason why a request was not done, and how its client should react.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The chain has this newer version: fetch it, send again.
    Stale(ChainVersion),
    /// This replica does not know the request's chain version yet: send again soon.
    Behind,
    /// This replica cannot answer now (not serving, no lease, not the head): ask another.
    NotServing,
    /// A queue is full: wait this many milliseconds.
    Busy(u32),
    /// A replica's disk is full.
    NoSpace,
    /// This replica's copy is damaged; it is being repaired. Ask another.
    Corrupt,
    /// The payload differs from the one that the client sent: send it again.
    BadChecksum,
    /// Offset or length beyond what a chunk can hold.
    Invalid,
    /// A later update of the same lane was done: the client itself gave this one up.
    Superseded,
    /// The chain lost its memory, so it cannot know whether the update was done before.
    Undecided,
    /// The seal that the update names exists. No copy of the update will be done while it does.
    Sealed,
}
