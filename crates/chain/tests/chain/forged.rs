//! Peers that send arbitrary messages, in every state of a chain: nothing panics, and impossible
//! messages are rejected with an error that names the fault.

use millpond_chain::{
    Alarm, Answer, Content, Lane, LaneRecord, Meta, Outcome, Payload as _, PeerBody, Space,
    SyncBody, Tag, Update, Write,
};
use millpond_types::cluster::{ChainVersion, ChunkVersion, TargetState};
use millpond_types::{Ack, ChunkId, Crc32c, Pcg, Tick};

use crate::cluster::{Bytes, Cluster, by, done, of, part, put, read, remove, replace};

struct Forger(Pcg);

impl Forger {
    fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.coin().then(|| make(self))
    }

    /// Plausible numbers, and the extremes.
    fn number(&mut self) -> u64 {
        const ENDS: [u64; 7] =
            [0, 1 << 62, (1 << 62) - 1, 1 << 63, u64::MAX - 1, u64::MAX, 1 << 32];
        match self.below(4) {
            0 => ENDS[usize::try_from(self.below(7)).unwrap()],
            _ => self.below(9),
        }
    }

    fn version(&mut self) -> ChunkVersion {
        ChunkVersion(self.number())
    }

    fn chunk(&mut self) -> ChunkId {
        ChunkId(u128::from(5 + self.below(4)))
    }

    fn chain_version(&mut self) -> ChainVersion {
        ChainVersion(u32::try_from(self.number() & 0xffff_ffff).unwrap())
    }

    fn tag(&mut self) -> Tag {
        let lane = Lane { client: u128::from(self.below(4)), channel: 0 };
        Tag { lane, sequence: self.number() }
    }

    fn bytes(&mut self) -> Bytes {
        Bytes::of(&b"forged bytes"[..usize::try_from(self.below(13)).unwrap()])
    }

    fn content(&mut self) -> Content {
        let bytes = self.bytes();
        let len = u32::try_from(bytes.len()).unwrap();
        match self.below(4) {
            0 => Content::Tombstone,
            1 => Content::Data { len: len + 1, crc: Crc32c(3) },
            _ => Content::Data { len, crc: bytes.crc() },
        }
    }

    fn meta(&mut self) -> Meta {
        let (version, written) = (self.version(), self.chain_version());
        Meta { version, written, content: self.content(), tag: self.tag() }
    }

    fn update(&mut self) -> Update<Bytes> {
        let base = self.version();
        let version =
            if self.below(4) == 0 { self.version() } else { ChunkVersion(base.0.wrapping_add(1)) };
        let bytes = self.bytes();
        let crc = bytes.crc();
        let write = match self.below(5) {
            0 => Write::Part { offset: u32::try_from(self.below(20)).unwrap(), bytes },
            1 => Write::Truncate { len: u32::try_from(self.below(20)).unwrap() },
            2 => Write::Tombstone,
            3 => Write::Collect,
            _ => Write::Whole(bytes),
        };
        let (tag, written) = (self.tag(), self.chain_version());
        let durability = if self.coin() { Ack::Disk } else { Ack::Memory };
        Update { chunk: self.chunk(), tag, base, version, written, write, crc, durability }
    }

    fn lane(&mut self) -> LaneRecord {
        let outcome =
            Outcome { chunk: self.chunk(), version: self.version(), content: self.content() };
        let answer = match self.below(3) {
            0 => Answer::NotFound,
            1 => Answer::Exists(self.version()),
            _ => Answer::Done(outcome),
        };
        LaneRecord { tag: self.tag(), answer }
    }

    fn sync(&mut self) -> SyncBody<Bytes> {
        let (nonce, chunk) = (self.number(), self.chunk());
        let count = self.below(4);
        match self.below(8) {
            0 => SyncBody::Hello,
            1 => SyncBody::Progress { cursor: self.maybe(Self::chunk), done: self.coin() },
            2 => {
                let items = (0..count).map(|_| (self.chunk(), self.meta())).collect();
                SyncBody::List {
                    nonce,
                    after: self.maybe(Self::chunk),
                    until: self.maybe(Self::chunk),
                    items,
                }
            }
            3 => {
                let items = (0..count).map(|_| (self.chunk(), self.maybe(Self::meta))).collect();
                SyncBody::Differ { nonce, until: self.maybe(Self::chunk), items }
            }
            4 => {
                let (expect, meta) = (self.maybe(Self::meta), self.maybe(Self::meta));
                SyncBody::Put { chunk, expect, meta, bytes: self.maybe(Self::bytes) }
            }
            5 => {
                let (expect, meta) = (self.maybe(Self::meta), self.meta());
                SyncBody::Lost { chunk, expect, meta, label: self.bytes() }
            }
            6 => SyncBody::Has { chunk, meta: self.maybe(Self::meta) },
            _ => {
                let lanes = (0..count).map(|_| self.lane()).collect();
                SyncBody::Finish { lanes, complete_since: self.chain_version() }
            }
        }
    }

    fn body(&mut self) -> PeerBody<Bytes> {
        let (nonce, chunk, version) = (self.number(), self.chunk(), self.version());
        let sent = Tick(self.number());
        match self.below(18) {
            0..=3 => PeerBody::Forward { update: self.update(), ready: self.coin() },
            4 => PeerBody::Ready { chunk, version },
            5 => PeerBody::Ack { chunk, version, meta: self.maybe(Self::meta) },
            6 => PeerBody::Stale,
            7 => PeerBody::TailQuery { nonce, chunk },
            8 => PeerBody::TailAnswer { nonce, committed: version },
            9 => PeerBody::LeaseAsk { sent },
            10 => PeerBody::LeaseGrant { sent },
            11 => {
                if self.coin() {
                    PeerBody::JoinAsk
                } else {
                    PeerBody::JoinAnswer
                }
            }
            12 => PeerBody::Fetch { nonce, chunk },
            13 => PeerBody::Fetched { chunk, meta: self.meta(), bytes: self.bytes() },
            14 => PeerBody::NoCopy { nonce, chunk },
            15 => PeerBody::Room(Space { room: self.coin(), excess: self.number() }),
            _ => PeerBody::Sync(self.sync()),
        }
    }

    fn target(&mut self) -> u32 {
        u32::try_from(1 + self.below(3)).unwrap()
    }

    /// Performs one step, honest or not.
    fn act(&mut self, cluster: &mut Cluster, sequence: u64) {
        let (one, other) = (self.target(), u32::try_from(self.below(5)).unwrap());
        let chunk = u128::from(5 + self.below(4));
        match self.below(24) {
            0..=9 => {
                let body = self.body();
                cluster.say(other, one, body);
            }
            10..=14 => {
                let request = match self.below(4) {
                    0 => replace(sequence, b"honest"),
                    1 => put(sequence, b"honest bytes"),
                    2 => part(sequence, 3, b"part"),
                    _ => remove(sequence),
                };
                cluster.update(one, of(chunk, by(sequence.into(), request)));
            }
            15 => drop(cluster.read(one, read())),
            16 => cluster.damage(one),
            17 => cluster.hold_messages_to(one),
            18 => cluster.release(),
            19 | 20 => {
                let states = [
                    TargetState::Serving,
                    TargetState::Syncing,
                    TargetState::Offline,
                    TargetState::Waiting,
                ];
                let state = states[usize::try_from(self.below(4)).unwrap()];
                cluster.decide(one, state);
            }
            21 => cluster.run(),
            _ => cluster.deliver(),
        }
    }
}

#[test]
fn no_message_panics_in_any_state() {
    let mut refused = 0;
    for seed in 0..1500 {
        let mut forger = Forger(Pcg::new(seed, 31));
        let mut cluster = Cluster::serving(3);
        cluster.is_hostile = true;
        let written = cluster.update(1, replace(1, b"before"));
        cluster.settle(written);
        for sequence in 2..60 {
            forger.act(&mut cluster, sequence);
        }
        cluster.release();
        cluster.run();
        refused +=
            cluster.alarms.iter().filter(|(_, alarm)| matches!(alarm, Alarm::Refused(..))).count();
    }
    assert!(refused > 1000, "{refused} refused");
}

/// A forged message gave the tail the last possible version; it became the head, and the next
/// update had none.
#[test]
fn a_version_that_leaves_none_for_the_next_update_is_refused() {
    let mut cluster = Cluster::serving(2);
    cluster.is_hostile = true;
    let written = cluster.update(1, put(1, b"good"));
    assert!(done(&cluster.settle(written)));
    for version in [u64::MAX, u64::MAX - 1, 1 << 63, 7] {
        let update = Update {
            chunk: ChunkId(7),
            tag: Tag { lane: Lane { client: 5, channel: 0 }, sequence: 1 },
            base: ChunkVersion(1),
            version: ChunkVersion(version),
            written: ChainVersion(1),
            write: Write::Whole(Bytes::of(b"forged")),
            crc: Bytes::of(b"forged").crc(),
            durability: Ack::Memory,
        };
        cluster.say(1, 2, PeerBody::Forward { update, ready: true });
    }
    cluster.run();
    assert_eq!(cluster.alarms.len(), 4, "{:?}", cluster.alarms);
    cluster.change(1, TargetState::Offline);
    let removed = cluster.update(2, by(2, remove(1)));
    let reply = cluster.settle(removed);
    assert!(done(&reply), "{reply:?}");
}
