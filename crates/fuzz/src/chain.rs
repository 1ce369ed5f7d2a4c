//! Seeds of the messages between replicas.

use millpond_chain::{
    Answer, Content, Envelope, Lane, LaneRecord, Meta, Outcome, Payload, Peer, PeerBody, Space,
    SyncBody, Tag, Update, Write,
};
use millpond_types::cluster::{ChainId, ChainVersion, ChunkVersion, TargetId};
use millpond_types::{Ack, ChunkId, Crc32c, Tick};

use crate::seeds::Seeds;

/// A payload of which only the length matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes {
    /// Number of bytes.
    pub len: u32,
}

impl Payload for Bytes {
    fn len(&self) -> usize {
        self.len as usize
    }

    fn crc(&self) -> Crc32c {
        Crc32c::EMPTY
    }
}

const CHUNK: ChunkId = ChunkId(7);
const BYTES: Bytes = Bytes { len: 4096 };

fn meta(content: Content) -> Meta {
    let tag = Tag { lane: Lane { client: 9, channel: 1 }, sequence: 5 };
    Meta { version: ChunkVersion(3), written: ChainVersion(2), content, tag }
}

fn data() -> Meta {
    meta(Content::Data { len: 4096, crc: Crc32c(8) })
}

fn forward(write: Write<Bytes>) -> PeerBody<Bytes> {
    let update = Update {
        chunk: CHUNK,
        tag: data().tag,
        base: ChunkVersion(2),
        version: ChunkVersion(3),
        written: ChainVersion(2),
        write,
        crc: Crc32c(8),
        durability: Ack::Disk,
    };
    PeerBody::Forward { update, ready: true }
}

fn sync() -> Vec<SyncBody<Bytes>> {
    let outcome = Outcome { chunk: CHUNK, version: ChunkVersion(3), content: Content::Tombstone };
    let answers = [Answer::Done(outcome), Answer::Exists(ChunkVersion(3)), Answer::NotFound];
    let lanes = answers.map(|answer| LaneRecord { tag: data().tag, answer }).to_vec();
    let (after, until) = (Some(CHUNK), None);
    let gone = meta(Content::Tombstone);
    vec![
        SyncBody::Hello,
        SyncBody::Progress { cursor: after, done: false },
        SyncBody::List { nonce: 1, after, until, items: vec![(CHUNK, data()), (CHUNK, gone)] },
        SyncBody::Differ { nonce: 1, until, items: vec![(CHUNK, None), (CHUNK, Some(gone))] },
        SyncBody::Put { chunk: CHUNK, expect: None, meta: Some(data()), bytes: Some(BYTES) },
        SyncBody::Put { chunk: CHUNK, expect: Some(gone), meta: None, bytes: None },
        SyncBody::Has { chunk: CHUNK, meta: Some(data()) },
        SyncBody::Finish { lanes, complete_since: ChainVersion(1) },
        SyncBody::Lost { chunk: CHUNK, expect: Some(gone), meta: data(), label: Bytes { len: 0 } },
    ]
}

fn bodies() -> Vec<PeerBody<Bytes>> {
    let version = ChunkVersion(3);
    let mut bodies = vec![
        forward(Write::Whole(BYTES)),
        forward(Write::Part { offset: 4096, bytes: BYTES }),
        forward(Write::Truncate { len: 1 }),
        forward(Write::Tombstone),
        forward(Write::Collect),
        PeerBody::Ready { chunk: CHUNK, version },
        PeerBody::Ack { chunk: CHUNK, version, meta: Some(data()) },
        PeerBody::Stale,
        PeerBody::TailQuery { nonce: 1, chunk: CHUNK },
        PeerBody::TailAnswer { nonce: 1, committed: version },
        PeerBody::LeaseAsk { sent: Tick(1) },
        PeerBody::LeaseGrant { sent: Tick(1) },
        PeerBody::JoinAsk,
        PeerBody::JoinAnswer,
        PeerBody::Fetch { nonce: 4, chunk: CHUNK },
        PeerBody::Fetched { chunk: CHUNK, meta: data(), bytes: BYTES },
        PeerBody::Room(Space { room: false, excess: 1 << 20 }),
    ];
    bodies.extend(sync().into_iter().map(PeerBody::Sync));
    bodies.push(PeerBody::NoCopy { nonce: 4, chunk: CHUNK });
    bodies
}

/// Seeds of the target.
pub(crate) fn all() -> Vec<Seeds> {
    let encode = |body| {
        let peer = Peer { version: ChainVersion(4), body };
        let message = Envelope { chain: ChainId(1), from: TargetId(2), to: TargetId(3), peer };
        message.encode(|_| b"a key".to_vec()).0
    };
    vec![("chain_message", bodies().into_iter().map(encode).collect())]
}
