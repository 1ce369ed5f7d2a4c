use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Bytes(Vec<u8>);

impl Payload for Bytes {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn crc(&self) -> Crc32c {
        Crc32c::of(&self.0)
    }
}

/// A label that a store would keep beside these bytes.
fn attrs(bytes: &Bytes) -> Vec<u8> {
    bytes.0.iter().rev().take(ATTRS_BYTES_MAX).copied().collect()
}

fn chunk() -> impl Strategy<Value = ChunkId> {
    any::<u128>().prop_map(ChunkId)
}

fn version() -> impl Strategy<Value = ChunkVersion> {
    any::<u64>().prop_map(ChunkVersion)
}

fn tag() -> impl Strategy<Value = Tag> {
    (any::<u128>(), any::<u32>(), any::<u64>())
        .prop_map(|(client, channel, sequence)| Tag { lane: Lane { client, channel }, sequence })
}

fn len() -> impl Strategy<Value = u32> {
    0..=u32::try_from(CHUNK_BYTES_MAX).unwrap()
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        (len(), any::<u32>()).prop_map(|(len, crc)| Content::Data { len, crc: Crc32c(crc) }),
        Just(Content::Tombstone),
    ]
}

fn meta() -> impl Strategy<Value = Meta> {
    (version(), any::<u32>(), content(), tag()).prop_map(|(version, written, content, tag)| Meta {
        version,
        written: ChainVersion(written),
        content,
        tag,
    })
}

fn bytes() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..600).prop_map(Bytes)
}

fn write() -> impl Strategy<Value = Write<Bytes>> {
    prop_oneof![
        bytes().prop_map(Write::Whole),
        (0..=u32::try_from(CHUNK_BYTES_MAX - 600).unwrap(), bytes())
            .prop_map(|(offset, bytes)| Write::Part { offset, bytes }),
        len().prop_map(|len| Write::Truncate { len }),
        Just(Write::Tombstone),
        Just(Write::Collect),
    ]
}

fn forward() -> impl Strategy<Value = PeerBody<Bytes>> {
    let update = (chunk(), tag(), version(), version(), any::<(u32, u32, bool)>(), write());
    (update, any::<bool>()).prop_map(|((chunk, tag, base, version, rest, write), ready)| {
        let (written, crc, disk) = rest;
        let durability = if disk { Ack::Disk } else { Ack::Memory };
        let (written, crc) = (ChainVersion(written), Crc32c(crc));
        let update = Update { chunk, tag, base, version, written, write, crc, durability };
        PeerBody::Forward { update, ready }
    })
}

fn lane() -> impl Strategy<Value = LaneRecord> {
    let answer = prop_oneof![
        (chunk(), version(), content()).prop_map(|(chunk, version, content)| Answer::Done(
            Outcome { chunk, version, content }
        )),
        version().prop_map(Answer::Exists),
        Just(Answer::NotFound),
    ];
    (tag(), answer).prop_map(|(tag, answer)| LaneRecord { tag, answer })
}

/// A version that had bytes.
fn lost() -> impl Strategy<Value = Meta> {
    let len = 1..=u32::try_from(CHUNK_BYTES_MAX).unwrap();
    (meta(), len, any::<u32>()).prop_map(|(meta, len, crc)| Meta {
        content: Content::Data { len, crc: Crc32c(crc) },
        ..meta
    })
}

fn sync() -> impl Strategy<Value = SyncBody<Bytes>> {
    prop_oneof![
        Just(SyncBody::Hello),
        (of(chunk()), any::<bool>()).prop_map(|(cursor, done)| SyncBody::Progress { cursor, done }),
        (any::<u64>(), of(chunk()), of(chunk()), vec((chunk(), meta()), 0..5))
            .prop_map(|(nonce, after, until, items)| SyncBody::List { nonce, after, until, items }),
        (any::<u64>(), of(chunk()), vec((chunk(), of(meta())), 0..5))
            .prop_map(|(nonce, until, items)| SyncBody::Differ { nonce, until, items }),
        (chunk(), of(meta()), of(meta()), of(bytes()))
            .prop_map(|(chunk, expect, meta, bytes)| SyncBody::Put { chunk, expect, meta, bytes }),
        (chunk(), of(meta()), lost(), bytes())
            .prop_map(|(chunk, expect, meta, label)| SyncBody::Lost { chunk, expect, meta, label }),
        (chunk(), of(meta())).prop_map(|(chunk, meta)| SyncBody::Has { chunk, meta }),
        (vec(lane(), 0..5), any::<u32>()).prop_map(|(lanes, since)| SyncBody::Finish {
            lanes,
            complete_since: ChainVersion(since)
        }),
    ]
}

fn body() -> impl Strategy<Value = PeerBody<Bytes>> {
    prop_oneof![
        forward(),
        forward(),
        (chunk(), version()).prop_map(|(chunk, version)| PeerBody::Ready { chunk, version }),
        (chunk(), version(), of(meta())).prop_map(|(chunk, version, meta)| PeerBody::Ack {
            chunk,
            version,
            meta
        }),
        Just(PeerBody::Stale),
        (any::<u64>(), chunk()).prop_map(|(nonce, chunk)| PeerBody::TailQuery { nonce, chunk }),
        (any::<u64>(), version())
            .prop_map(|(nonce, committed)| PeerBody::TailAnswer { nonce, committed }),
        any::<u64>().prop_map(|sent| PeerBody::LeaseAsk { sent: Tick(sent) }),
        any::<u64>().prop_map(|sent| PeerBody::LeaseGrant { sent: Tick(sent) }),
        Just(PeerBody::JoinAsk),
        Just(PeerBody::JoinAnswer),
        (any::<u64>(), chunk()).prop_map(|(nonce, chunk)| PeerBody::Fetch { nonce, chunk }),
        (any::<u64>(), chunk()).prop_map(|(nonce, chunk)| PeerBody::NoCopy { nonce, chunk }),
        (chunk(), meta(), bytes()).prop_map(|(chunk, meta, bytes)| PeerBody::Fetched {
            chunk,
            meta,
            bytes
        }),
        any::<(bool, u64)>().prop_map(|(room, excess)| PeerBody::Room(Space { room, excess })),
        sync().prop_map(PeerBody::Sync),
        sync().prop_map(PeerBody::Sync),
    ]
}

fn envelope() -> impl Strategy<Value = Envelope<Bytes>> {
    (any::<[u32; 4]>(), body()).prop_map(|([chain, from, to, version], body)| Envelope {
        chain: ChainId(chain),
        from: TargetId(from),
        to: TargetId(to),
        peer: Peer { version: ChainVersion(version), body },
    })
}

fn sent(body: PeerBody<Bytes>) -> Envelope<Bytes> {
    let peer = Peer { version: ChainVersion(4), body };
    Envelope { chain: ChainId(1), from: TargetId(2), to: TargetId(3), peer }
}

proptest! {
    #[test]
    fn every_message_survives_and_none_is_read_from_a_part_of_it(envelope in envelope()) {
        let (meta, payload) = envelope.encode(attrs);
        let head = Head::decode(&meta).unwrap();
        prop_assert_eq!(head.version(), envelope.peer.version);
        let promised = head.payload.as_ref().map(|head| (head.attrs.clone(), head.len as usize));
        prop_assert_eq!(promised, payload.as_ref().map(|bytes| (attrs(bytes), bytes.0.len())));
        prop_assert_eq!(&head.finish(payload).unwrap(), &envelope);
        for cut in 0..meta.len() {
            prop_assert!(Head::decode(&meta[..cut]).is_err(), "cut at {}", cut);
        }
        let longer = [&meta[..], &[0]].concat();
        prop_assert_eq!(Head::decode(&longer), Err(WireError::Trailing(1)));
    }

    #[test]
    fn damaged_bytes_never_panic(envelope in envelope(), at in any::<usize>(), to in any::<u8>()) {
        let (mut meta, payload) = envelope.encode(attrs);
        let at = at % meta.len();
        meta[at] = to;
        if let Ok(head) = Head::decode(&meta)
            && let Ok(read) = head.finish(payload)
        {
            // Every accepted message has one encoding; attributes are not part of the value.
            let (again, _) = read.encode(attrs);
            prop_assert!(again.len() == meta.len());
        }
    }
}

#[test]
fn a_payload_other_than_promised_is_an_error() {
    let bytes = Bytes(vec![1; 9]);
    let (meta, _) = sent(PeerBody::Sync(SyncBody::Put {
        chunk: ChunkId(1),
        expect: None,
        meta: None,
        bytes: Some(bytes),
    }))
    .encode(attrs);
    let wrong = [None, Some(Bytes(vec![1; 8])), Some(Bytes(Vec::new()))];
    for payload in wrong {
        let error = Head::decode(&meta).unwrap().finish(payload);
        assert_eq!(error, Err(WireError::Field("payload length")));
    }
    let (meta, payload) = sent(PeerBody::Stale).encode(attrs);
    assert_eq!(payload, None);
    let error = Head::decode(&meta).unwrap().finish(Some(Bytes(Vec::new())));
    assert_eq!(error, Err(WireError::Field("payload length")), "none is not an empty one");
}

#[test]
fn every_flag_and_kind_is_checked() {
    let messages = [
        sent(PeerBody::Ack { chunk: ChunkId(1), version: ChunkVersion(1), meta: None }),
        sent(PeerBody::Sync(SyncBody::Progress { cursor: None, done: true })),
    ];
    for message in messages {
        let (mut meta, _) = message.encode(attrs);
        *meta.last_mut().unwrap() = 2;
        assert_eq!(Head::decode(&meta), Err(WireError::Field("flag")));
    }
    let (meta, _) = sent(PeerBody::Stale).encode(attrs);
    let known = (0..=u8::MAX).filter(|kind| {
        let changed = [&meta[..16], &[*kind]].concat();
        Head::decode(&changed) != Err(WireError::Field("message kind"))
    });
    assert_eq!(known.count(), 23);
}

#[test]
fn who_asks_for_a_copy_as_before_searches_had_names_is_understood() {
    let named = sent(PeerBody::Fetch { nonce: 0, chunk: ChunkId(5) });
    let (mut meta, _) = sent(PeerBody::Stale).encode(attrs);
    meta[16] = kind::FETCH_UNNAMED;
    meta.extend(5u128.to_le_bytes());
    assert_eq!(Head::decode(&meta).unwrap().finish(None), Ok(named));
}

#[test]
fn lengths_beyond_a_chunk_are_refused() {
    let part = |offset: u32| {
        sent(PeerBody::Forward {
            update: Update {
                chunk: ChunkId(1),
                tag: Tag::default(),
                base: ChunkVersion(1),
                version: ChunkVersion(2),
                written: ChainVersion(1),
                write: Write::Part { offset, bytes: Bytes(vec![0; 16]) },
                crc: Crc32c(0),
                durability: Ack::Disk,
            },
            ready: true,
        })
    };
    let last = u32::try_from(CHUNK_BYTES_MAX - 16).unwrap();
    assert!(Head::decode(&part(last).encode(attrs).0).is_ok());
    for offset in [last + 1, u32::MAX] {
        assert!(Head::decode(&part(offset).encode(attrs).0).is_err(), "{offset}");
    }
}

#[test]
fn a_lying_count_is_refused_before_anything_is_allocated() {
    let lists: [(PeerBody<Bytes>, usize); 3] = [
        (list(Vec::new()), RESYNC_PAGE_CHUNKS),
        (differ(Vec::new()), DIFFER_ITEMS_MAX),
        (finish(Vec::new()), LANES_MAX),
    ];
    for (body, max) in lists {
        let (mut meta, _) = sent(body).encode(attrs);
        let at = meta.len() - 4;
        for (count, error) in [(max, WireError::Truncated), (max + 1, WireError::Field("count"))] {
            meta[at..].copy_from_slice(&u32::try_from(count).unwrap().to_le_bytes());
            assert_eq!(Head::decode(&meta), Err(error));
        }
    }
}

#[test]
fn the_longest_messages_fit_a_frame() {
    let committed = Meta {
        version: ChunkVersion(u64::MAX),
        written: ChainVersion(u32::MAX),
        content: Content::Data { len: 1, crc: Crc32c(2) },
        tag: Tag { lane: Lane { client: u128::MAX, channel: u32::MAX }, sequence: u64::MAX },
    };
    let outcome = Outcome {
        chunk: ChunkId(u128::MAX),
        version: ChunkVersion(u64::MAX),
        content: committed.content,
    };
    let record = LaneRecord { tag: committed.tag, answer: Answer::Done(outcome) };
    let chunk = ChunkId(u128::MAX);
    for body in [
        list(vec![(chunk, committed); RESYNC_PAGE_CHUNKS]),
        differ(vec![(chunk, Some(committed)); DIFFER_ITEMS_MAX]),
        finish(vec![record; LANES_MAX]),
    ] {
        let message = sent(body);
        let (meta, _) = message.encode(attrs);
        assert!(meta.len() <= META_BYTES_MAX, "{} bytes", meta.len());
        assert_eq!(Head::decode(&meta).unwrap().finish(None), Ok(message));
    }
}

#[test]
fn of_nothing_no_bytes_are_lost() {
    let of = |content| {
        let meta = Meta {
            version: ChunkVersion(2),
            written: ChainVersion(1),
            content,
            tag: Tag { lane: Lane { client: 1, channel: 0 }, sequence: 1 },
        };
        let label = Bytes(Vec::new());
        let body = SyncBody::Lost { chunk: ChunkId(1), expect: None, meta, label };
        Head::decode(&sent(PeerBody::Sync(body)).encode(attrs).0)
    };
    let crc = Crc32c(1);
    assert!(of(Content::Data { len: 1, crc }).is_ok());
    for content in [Content::Data { len: 0, crc }, Content::Tombstone] {
        assert_eq!(of(content), Err(WireError::Field("lost content")));
    }
}

fn list(items: Vec<(ChunkId, Meta)>) -> PeerBody<Bytes> {
    let end = Some(ChunkId(u128::MAX));
    PeerBody::Sync(SyncBody::List { nonce: u64::MAX, after: end, until: end, items })
}

fn differ(items: Vec<(ChunkId, Option<Meta>)>) -> PeerBody<Bytes> {
    PeerBody::Sync(SyncBody::Differ { nonce: 1, until: Some(ChunkId(1)), items })
}

fn finish(lanes: Vec<LaneRecord>) -> PeerBody<Bytes> {
    PeerBody::Sync(SyncBody::Finish { lanes, complete_since: ChainVersion(1) })
}
