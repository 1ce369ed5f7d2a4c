//! What clients and replicas say to each other about chunks.

use std::fmt;

use millpond_types::cluster::{ChainVersion, ChunkVersion};
use millpond_types::{Ack, ChunkId, Crc32c};

/// Bytes of an update or a chunk: a counted handle of a buffer in production, a small vector in
/// the simulator. Clones share the bytes.
pub trait Payload: Clone + fmt::Debug {
    /// Number of bytes.
    fn len(&self) -> usize;

    /// Checksum of the bytes as they arrived here, not as their sender claims.
    fn crc(&self) -> Crc32c;

    /// True when there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A writer: one client and one of its channels. It has one update under way at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    /// The client, a random number made at its start. 0 is the chain itself.
    pub client: u128,
    /// Its channel.
    pub channel: u32,
}

impl Lane {
    /// Set in the channel of lanes that bury.
    const BURIAL: u32 = 1 << 31;

    /// The lane in which this writer buries ([`Op::Bury`]); its own channels are below 2^31.
    #[must_use]
    pub const fn burial(self) -> Self {
        Self { channel: self.channel | Self::BURIAL, ..self }
    }

    /// Tombstones of this lane mark what was deleted while it was on its way here.
    #[must_use]
    pub const fn is_burial(&self) -> bool {
        self.channel & Self::BURIAL != 0
    }
}

/// How full a replica's disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Whether it has room for more updates than are under way.
    pub room: bool,
    /// Bytes that this chain should give up, where it may, so that it keeps some.
    pub excess: u64,
}

impl Space {
    /// Of a disk that wants for nothing.
    pub const AMPLE: Self = Self { room: true, excess: 0 };

    /// Of two replicas: room only where both have it, and what the fuller one needs.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { room: self.room && other.room, excess: self.excess.max(other.excess) }
    }
}

/// Names one update for ever: a retry carries the tag of its first attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag {
    /// Who writes.
    pub lane: Lane,
    /// Grows by at least one with every update of the lane.
    pub sequence: u64,
}

/// What a chunk holds at one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Bytes.
    Data {
        /// How many.
        len: u32,
        /// Their checksum.
        crc: Crc32c,
    },
    /// Nothing: it was deleted, and the version of the deletion is remembered.
    Tombstone,
}

/// One version of a chunk without its bytes. Equal on every replica that holds the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The version.
    pub version: ChunkVersion,
    /// The chain version under which the head admitted the update that made it.
    pub written: ChainVersion,
    /// What it holds.
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

/// What a client wants done to a chunk.
#[derive(Clone, Debug)]
pub enum Op<P> {
    /// Write the whole chunk unless it exists.
    Put(P),
    /// Write the whole chunk, whatever was there.
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
    /// A chunk of a slot that moves here: write it unless it exists, or was buried.
    Import(P),
    /// Delete in a slot that moves here: leaves a tombstone even where nothing is, since the chunk
    /// may be on its way. Its tag is of a [`Lane::burial`], which tells the tombstone from others.
    Bury,
    /// Write the whole chunk unless it exists, once all updates that were under way have ended: from
    /// then on updates that name it as their seal are refused.
    Seal(P),
    /// Is there a chunk? Answered after all updates of it that came before. Nobody remembers it: any
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
    /// Chain version the client believes in.
    pub version: ChainVersion,
    /// Chain version it believed in at the first attempt.
    pub issued: ChainVersion,
    /// Names the update.
    pub tag: Tag,
    /// The chunk.
    pub chunk: ChunkId,
    /// What to do.
    pub op: Op<P>,
    /// Checksum of the payload as the client computed it.
    pub crc: Crc32c,
    /// When each replica may call it stored.
    pub durability: Ack,
    /// Not while there is this chunk, which another client put there with [`Op::Seal`].
    pub seal: Option<ChunkId>,
}

/// A client's read of a chunk.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest {
    /// Chain version the client believes in.
    pub version: ChainVersion,
    /// The chunk.
    pub chunk: ChunkId,
    /// First byte wanted.
    pub offset: u32,
    /// At most so many bytes.
    pub len: u32,
}

/// What a replica writes, after the head has decided what the operation means.
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
    /// The end of a tombstone: the chunk is as if it had never been.
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

    /// True when the version before does not matter.
    pub(crate) const fn stands_alone(&self) -> bool {
        !matches!(self, Self::Part { .. } | Self::Truncate { .. })
    }
}

/// One version of a chunk on its way down the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update<P> {
    /// The chunk.
    pub chunk: ChunkId,
    /// Names the update.
    pub tag: Tag,
    /// The version it is made from; 0 when the chunk did not exist.
    pub base: ChunkVersion,
    /// The version it makes.
    pub version: ChunkVersion,
    /// The chain version under which the head admitted it.
    pub written: ChainVersion,
    /// What to write.
    pub write: Write<P>,
    /// Checksum of the payload.
    pub crc: Crc32c,
    /// When a replica may call it stored.
    pub durability: Ack,
}

/// What one replica says to another. Every message carries the sender's chain version and
/// counts only for a receiver that acts on the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer<P> {
    /// The sender's chain version.
    pub version: ChainVersion,
    /// What it says.
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
        /// What to store.
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
        /// What is committed here, to compare; `None` when the chunk is gone.
        meta: Option<Meta>,
    },
    /// The sender knows a newer version of the chain.
    Stale,
    /// To the tail: which version is committed?
    TailQuery {
        /// Names the question.
        nonce: u64,
        /// The chunk.
        chunk: ChunkId,
    },
    /// From the tail.
    TailAnswer {
        /// Names the question.
        nonce: u64,
        /// The committed version; 0 when there is none.
        committed: ChunkVersion,
    },
    /// To the other serving targets: may I read for a second?
    LeaseAsk {
        /// The asker's clock, echoed in the grant.
        sent: millpond_types::Tick,
    },
    /// The sender acts on no chain version without the receiver until the grant has run out.
    LeaseGrant {
        /// The asker's clock when it asked.
        sent: millpond_types::Tick,
    },
    /// From a promoted target to its predecessor: do you act on this version?
    JoinAsk,
    /// Yes.
    JoinAnswer,
    /// Send me the committed version of this chunk; mine is damaged.
    Fetch {
        /// Names the search, for [`PeerBody::NoCopy`]; 0 wants none.
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
    /// To `Fetch`: the sender has no good bytes of the chunk, and none are on their way to it.
    NoCopy {
        /// Names the search.
        nonce: u64,
        /// The chunk.
        chunk: ChunkId,
    },
    /// How the disks of the sender and all below it are.
    Room(Space),
    /// One step of a resync.
    Sync(SyncBody<P>),
}

/// Messages of a resync: from the source (the last serving target) and from the sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncBody<P> {
    /// Source: how far are you?
    Hello,
    /// Sink: so far.
    Progress {
        /// Everything up to this chunk was compared; `None` before the first.
        cursor: Option<ChunkId>,
        /// Everything is equal and stored durably.
        done: bool,
    },
    /// Source: these are my chunks in `(after, until]`; which of yours differ?
    List {
        /// Names the page.
        nonce: u64,
        /// Begin, exclusive; all before it are equal.
        after: Option<ChunkId>,
        /// End, inclusive; `None` is the end of all chunks.
        until: Option<ChunkId>,
        /// The chunks, in order.
        items: Vec<(ChunkId, Meta)>,
    },
    /// Sink: these, up to `until`.
    Differ {
        /// Names the page.
        nonce: u64,
        /// End of what was compared, inclusive; `None` is the end of all chunks.
        until: Option<ChunkId>,
        /// What the sink has of each chunk that differs.
        items: Vec<(ChunkId, Option<Meta>)>,
    },
    /// Source: make your chunk like this, if it still is as you said.
    Put {
        /// The chunk.
        chunk: ChunkId,
        /// What the sink said it has.
        expect: Option<Meta>,
        /// What it shall have; `None` removes it.
        meta: Option<Meta>,
        /// Its bytes, unless it is removed or a tombstone.
        bytes: Option<P>,
    },
    /// Source: as `Put`, of a chunk of which nobody who takes part has good bytes. Remember which version
    /// it is and that it is lost.
    Lost {
        /// The chunk.
        chunk: ChunkId,
        /// What the sink said it has.
        expect: Option<Meta>,
        /// The version that is lost.
        meta: Meta,
        /// What the store keeps beside the bytes, as a payload without any.
        label: P,
    },
    /// Sink: this is what I have now.
    Has {
        /// The chunk.
        chunk: ChunkId,
        /// What the sink has.
        meta: Option<Meta>,
    },
    /// Source: all pages are compared; remember these writers and make everything durable.
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
    /// What was answered.
    pub answer: Answer,
}

/// The final answer to an update. Also one that changed nothing is remembered: a copy of the
/// request that arrives later must not change something then.
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

/// What an update did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The chunk it changed.
    pub chunk: ChunkId,
    /// The version it made.
    pub version: ChunkVersion,
    /// What the chunk held then.
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
    /// There is no such chunk: of a read, `Truncate` or `Remove`.
    NotFound,
    /// The bytes read.
    Data {
        /// The version they belong to.
        version: ChunkVersion,
        /// Length of the whole chunk.
        chunk_len: u32,
        /// The bytes asked for, as far as the chunk reaches.
        bytes: P,
    },
    /// Not done. A client that gives an update up after this must call its outcome unknown: an
    /// earlier copy of the request may still be under way.
    Refused(Refusal),
}

/// Why a request was not done, and what its client should do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The chain has this newer version: learn it, send again.
    Stale(ChainVersion),
    /// This replica has not heard of the request's chain version yet: send again soon.
    Behind,
    /// This replica cannot answer now (not serving, no lease, not the head): ask another.
    NotServing,
    /// A queue is full: wait this many milliseconds.
    Busy(u32),
    /// A replica's disk is full.
    NoSpace,
    /// This replica's copy is damaged; it is being repaired. Ask another.
    Corrupt,
    /// The payload is not what the client sent: send it again.
    BadChecksum,
    /// Offset or length beyond what a chunk can hold.
    Invalid,
    /// A later update of the same lane was done: the client itself gave this one up.
    Superseded,
    /// Whether the update was done before the chain lost its memory is unknowable.
    Undecided,
    /// There is the seal that the update names. No copy of it will be done as long as it is there.
    Sealed,
}
