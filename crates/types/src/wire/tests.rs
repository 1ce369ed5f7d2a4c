//! Every message survives a round trip, and no cut or flipped byte makes a decoder panic.

use proptest::prelude::*;

use super::*;
use crate::checksum::Crc32c;
use crate::cluster::{ChainId, ChainVersion, ChunkVersion, Incarnation, NodeId, RoutingVersion};
use crate::ids::{BlockKey, ChunkId, DataId, FileChunk, GroupId, SlotId, Uuid128};
use crate::limits::{CHUNK_BYTES_MAX, FILE_PARTS_MAX};
use crate::namespace::{Ack, NamespaceInfo, NamespaceOptions, Priority};
use crate::units::ByteSize;

fn key(n: u8) -> BlockKey {
    BlockKey::new(&[n; 32]).unwrap()
}

fn tag(n: u32) -> ItemTag {
    ItemTag {
        channel: n,
        sequence: u64::from(n) << 40,
        chain: ChainId(n + 1),
        issued: ChainVersion(n),
    }
}

fn planned() -> Planned {
    Planned { by: RoutingVersion(9), needs: RoutingVersion(4) }
}

fn keys_request(leaders: Leaders) -> KeysRequest {
    let (namespace, planned) = (GroupId(3), planned());
    let keys = vec![key(1), key(2), key(3)];
    KeysRequest { namespace, planned, keys, leaders, tags: None }
}

type Decoder = fn(&[u8]) -> bool;
type Sample = (&'static str, Vec<u8>, Decoder);

fn samples() -> Vec<Sample> {
    let mut all = batch_samples();
    all.extend(control_samples());
    all.extend(reply_samples());
    all.extend(file_samples());
    all
}

fn batch_samples() -> Vec<Sample> {
    let each = Leaders::Each(vec![key(1), key(1), key(3)]);
    let put = PutRequest {
        namespace: GroupId(1),
        planned: planned(),
        arena_offset: 4096,
        keys: vec![key(1), key(2)],
        items: vec![PutItem { len: 5, crc: Crc32c(9) }, PutItem { len: 0, crc: Crc32c(0) }],
        leaders: Leaders::Runs,
        tags: Some(Tags { client: 7, items: vec![tag(1), tag(2)] }),
    };
    let get = GetRequest {
        namespace: GroupId(1),
        planned: planned(),
        keys: vec![key(1)],
        room: vec![77],
        leaders: Leaders::Own,
    };
    let list = ListRequest { namespace: GroupId(1), prefix: vec![1], cursor: 2, limit: 3 };
    let prefix = MatchRequest { keys: keys_request(each.clone()), lease_ms: 9, each: true };
    vec![
        ("put", put.encode(), |b| PutRequest::decode(b).is_ok()),
        ("get", get.encode(), |b| GetRequest::decode(b).is_ok()),
        ("keys", keys_request(each).encode(), |b| KeysRequest::decode(b).is_ok()),
        ("match", prefix.encode(), |b| MatchRequest::decode(b).is_ok()),
        ("list", list.encode(), |b| ListRequest::decode(b).is_ok()),
    ]
}

fn slot_ask() -> SlotAsk {
    SlotAsk {
        id: 7,
        from: NodeId(Uuid128([4; 16])),
        op: SlotOp::Import,
        lease_ms: crate::limits::LEASE_MS_MAX,
        slot: SlotId(65_535),
        chain: ChainId(3),
        other: ChainId(4),
        routing: RoutingVersion(9),
        chunk: ChunkId(u128::MAX - 1),
        crc: Crc32c(5),
        attrs: vec![1, 2, 3],
    }
}

fn control_samples() -> Vec<Sample> {
    let hello = Hello { version_min: 1, version_max: 2, client: "t".into(), token: vec![1, 2] };
    let options = NamespaceOptions::default();
    let open = NamespaceOpen { name: "model".into(), create: true, options };
    let name = NamespaceRef { name: "n".into() };
    let set = NamespaceSet {
        name: "n".into(),
        quota: Some(ByteSize(1 << 40)),
        ttl_seconds: Some(60),
        priority: Some(Priority::High),
    };
    let stats = StatsRequest { namespace: GroupId(1) };
    let routing = RoutingRequest { cluster: Uuid128([1; 16]), have: RoutingVersion(2) };
    let suspect = SuspectRequest { node: NodeId(Uuid128([4; 16])) };
    vec![
        ("hello", hello.encode(), |b| Hello::decode(b).is_ok()),
        ("open", open.encode(), |b| NamespaceOpen::decode(b).is_ok()),
        ("ref", name.encode(), |b| NamespaceRef::decode(b).is_ok()),
        ("set", set.encode(), |b| NamespaceSet::decode(b).is_ok()),
        ("stats", stats.encode(), |b| StatsRequest::decode(b).is_ok()),
        ("attach", ShmAttach { payload_bytes: 1, lends: true }.encode(), |b| {
            ShmAttach::decode(b).is_ok()
        }),
        ("routing", routing.encode(), |b| RoutingRequest::decode(b).is_ok()),
        ("suspect", suspect.encode(), |b| SuspectRequest::decode(b).is_ok()),
        ("table", NamespaceTableRequest { have: 3 }.encode(), |b| {
            NamespaceTableRequest::decode(b).is_ok()
        }),
        ("slot ask", slot_ask().encode(), |b| SlotAsk::decode(b, 7).is_ok()),
        ("slot answer", SlotAnswer { id: 1, outcome: SlotOutcome::Exists }.encode(), |b| {
            SlotAnswer::decode(b).is_ok()
        }),
        ("release", ShmRelease { hold: 1 }.encode(), |b| ShmRelease::decode(b).is_ok()),
    ]
}

fn reply_samples() -> Vec<Sample> {
    let hello = HelloReply {
        version: 1,
        server: "0.1".into(),
        node: Uuid128([1; 16]),
        boot_id: Uuid128([2; 16]),
        socket_path: "a/b".into(),
        shm: true,
        in_flight_max: 4,
        cluster: Uuid128([3; 16]),
        incarnation: Incarnation(5),
    };
    let options = NamespaceOptions::default();
    let info = NamespaceInfo { id: GroupId(9), name: "model".into(), options };
    let error = ErrorReply { retry_after_ms: 1, message: "m".into() };
    let got = GetItem { status: ItemStatus::Ok, len: 3, crc: Crc32c(4), pool_offset: 8 };
    let got = GetReply { hold: 1, items: vec![got] };
    let listed = KeyInfo { key: key(5), len: 6, expires: 7, pinned: true };
    let listed = ListReply { cursor: 1, keys: vec![listed] };
    let attached =
        ShmAttachReply { pool_bytes: 1, arena_bytes: 9, ring_bytes: 2, payload_offset: 4 };
    let table = NamespaceTableReply {
        version: 4,
        namespaces: vec![info.clone()],
        dropping: vec![GroupId(2)],
    };
    let namespaces = NamespacesReply { namespaces: vec![info] };
    vec![
        ("error", error.encode(), |b| ErrorReply::decode(b).is_ok()),
        ("hello reply", hello.encode(), |b| HelloReply::decode(b).is_ok()),
        ("namespace table", table.encode(), |b| NamespaceTableReply::decode(b).is_ok()),
        ("namespaces", namespaces.encode(), |b| NamespacesReply::decode(b).is_ok()),
        ("statuses", StatusReply { items: vec![ItemStatus::Exists] }.encode(), |b| {
            StatusReply::decode(b).is_ok()
        }),
        ("got", got.encode(), |b| GetReply::decode(b).is_ok()),
        ("matched", MatchReply { matched: 2, leased: 1 }.encode(), |b| {
            MatchReply::decode(b).is_ok()
        }),
        ("listed", listed.encode(), |b| ListReply::decode(b).is_ok()),
        ("values", StatsReply { values: vec![("a".into(), 1)] }.encode(), |b| {
            StatsReply::decode(b).is_ok()
        }),
        ("attached", attached.encode(), |b| ShmAttachReply::decode(b).is_ok()),
    ]
}

/// A chunk on chain 3, the chain of `tag(2)`.
fn placed(index: u32) -> PlacedChunk {
    PlacedChunk { chain: ChainId(3), chunk: FileChunk { data: DataId(1 << 40), index } }
}

fn file_write() -> ChunkWriteRequest {
    let part = WritePart { at: placed(4), offset: 4096, len: 5, crc: Crc32c(9) };
    let tags = Some(Tags { client: 7, items: vec![tag(2)] });
    ChunkWriteRequest { ack: Ack::Disk, parts: vec![part], tags, arena: Vec::new() }
}

fn bases(lens: &[u32]) -> ChunkBases {
    let base = |(data, len): (u64, &u32)| ChunkBase { data: DataId(data), len: *len };
    ChunkBases::new(&(1 << 33..).zip(lens).map(base).collect::<Vec<_>>()).unwrap()
}

fn changes() -> Vec<Cut> {
    let seal = PlacedChunk { chunk: placed(4).chunk.seal(), ..placed(4) };
    vec![
        Cut { at: placed(4), change: ChunkChange::Cut(77) },
        Cut { at: placed(5), change: ChunkChange::Remove },
        Cut { at: seal, change: ChunkChange::Seal },
        Cut { at: placed(6), change: ChunkChange::Copy(bases(&[5, 5, 1, 0])) },
        Cut { at: placed(4), change: ChunkChange::Collect },
        Cut { at: seal, change: ChunkChange::Collect },
    ]
}

#[test]
fn seals_are_no_chunks_of_bytes_and_bases_only_get_shorter() {
    let all = ChunkUpdateRequest { ack: Ack::Disk, cuts: changes(), tags: None };
    assert_eq!(ChunkUpdateRequest::decode(&all.encode()), Ok(all.clone()));
    let seal = all.cuts[2].at;
    for change in [ChunkChange::Remove, ChunkChange::Cut(1), ChunkChange::Copy(bases(&[1]))] {
        let cuts = vec![Cut { at: seal, change }];
        let refused = ChunkUpdateRequest { cuts, ..all.clone() }.encode();
        assert!(ChunkUpdateRequest::decode(&refused).is_err(), "{change:?} of a seal");
    }
    let cuts = vec![Cut { at: placed(4), change: ChunkChange::Seal }];
    let refused = ChunkUpdateRequest { cuts, ..all }.encode();
    assert!(ChunkUpdateRequest::decode(&refused).is_err(), "a seal of bytes");
    let mut write = file_write();
    write.parts[0].at = seal;
    assert!(ChunkWriteRequest::decode(&write.encode()).is_err(), "bytes in a seal");
    let base = |len| ChunkBase { data: DataId(1), len };
    assert_eq!(ChunkBases::new(&[base(1), base(2)]), None);
    assert_eq!(ChunkBases::new(&[base(1); 5]), None);
    assert_eq!(ChunkBases::new(&[base(u32::MAX)]), None);
    assert_eq!(ChunkBases::new(&[]), Some(ChunkBases::NONE));
}

fn file_samples() -> Vec<Sample> {
    let read = ReadPart { at: placed(4), offset: 4096, len: 5, bases: bases(&[9, 9, 4]) };
    let cuts = changes();
    let cut = ChunkUpdateRequest { ack: Ack::Memory, cuts, tags: None };
    let list =
        ChunkListRequest { data: Some(DataId(9)), chain: Some(ChainId(3)), cursor: 2, limit: 3 };
    let stat = ChunkStat { version: ChunkVersion(1 << 40), len: 6 };
    let stats = ChunkStatReply { items: vec![(ItemStatus::Ok, stat)] };
    let chunks = vec![FileChunkInfo { at: placed(4), stat }];
    vec![
        ("chunk read", ChunkReadRequest { parts: vec![read] }.encode(), |b| {
            ChunkReadRequest::decode(b).is_ok()
        }),
        ("chunk write", file_write().encode(), |b| ChunkWriteRequest::decode(b).is_ok()),
        ("chunk update", cut.encode(), |b| ChunkUpdateRequest::decode(b).is_ok()),
        ("chunk list", list.encode(), |b| ChunkListRequest::decode(b).is_ok()),
        ("chunk stat", ChunkStatRequest { chunks: vec![placed(4)] }.encode(), |b| {
            ChunkStatRequest::decode(b).is_ok()
        }),
        ("chunk stats", stats.encode(), |b| ChunkStatReply::decode(b).is_ok()),
        ("chunks listed", ChunkListReply { cursor: 1, chunks }.encode(), |b| {
            ChunkListReply::decode(b).is_ok()
        }),
    ]
}

#[test]
fn parts_of_files_have_bounds_that_are_named() {
    let write = file_write();
    assert_eq!(ChunkWriteRequest::decode(&write.encode()), Ok(write.clone()));
    let refusal = |change: &dyn Fn(&mut ChunkWriteRequest)| {
        let mut request = write.clone();
        change(&mut request);
        match ChunkWriteRequest::decode(&request.encode()) {
            Err(WireError::Field(field)) => field,
            other => panic!("{other:?}"),
        }
    };
    let most = u32::try_from(CHUNK_BYTES_MAX).unwrap();
    let long = refusal(&|request| request.parts[0].len = most - 4095);
    assert_eq!(long, "end of a part (at most 64 MiB)");
    let wrapping = refusal(&|request| request.parts[0].offset = u32::MAX);
    assert_eq!(wrapping, "end of a part (at most 64 MiB)");
    assert_eq!(refusal(&|request| request.parts[0].at.chain = ChainId(8)), "chain of a tag");
    assert_eq!(refusal(&|request| request.parts[0].len = 0), "length of a part (not 0)");
    let many = refusal(&|request| request.parts = vec![request.parts[0]; FILE_PARTS_MAX + 1]);
    assert_eq!(many, "parts");
    let bytes = refusal(&|request| {
        request.parts = vec![WritePart { offset: 0, len: most, ..request.parts[0] }; 5];
        request.tags = None;
    });
    assert_eq!(bytes, "bytes of all parts (at most 256 MiB)");
    // With an arena every part has its offset; without it none has.
    let placed = ChunkWriteRequest { arena: vec![1 << 40], ..write.clone() };
    assert_eq!(ChunkWriteRequest::decode(&placed.encode()), Ok(placed.clone()));
    let more = ChunkWriteRequest { arena: vec![1, 2], ..write.clone() };
    assert_eq!(ChunkWriteRequest::decode(&more.encode()), Err(WireError::Trailing(8)));
    let bytes = placed.encode();
    for cut in write.encode().len() + 1..bytes.len() {
        assert_eq!(ChunkWriteRequest::decode(&bytes[..cut]), Err(WireError::Truncated));
    }
}

#[test]
fn every_message_decodes_and_every_cut_is_refused() {
    for (name, bytes, decodes) in samples() {
        assert!(decodes(&bytes), "{name}");
        for cut in 0..bytes.len() {
            assert!(!decodes(&bytes[..cut]), "{name} cut at {cut}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(!decodes(&longer), "{name} with a byte too many");
    }
}

#[test]
fn a_lease_between_heads_is_no_longer_than_a_clients() {
    let ask = slot_ask();
    assert_eq!(SlotAsk::decode(&ask.encode(), 7), Ok(ask.clone()));
    let longer = SlotAsk { lease_ms: ask.lease_ms + 1, ..ask };
    assert_eq!(SlotAsk::decode(&longer.encode(), 7), Err(WireError::Field("lease")));
}

#[test]
fn explicit_leaders_survive_the_short_form() {
    let request = keys_request(Leaders::Each(vec![key(1), key(1), key(3)]));
    assert_eq!(KeysRequest::decode(&request.encode()), Ok(request));
}

#[test]
fn header_refuses_every_flipped_bit() {
    let header = FrameHeader {
        flags: FLAG_REPLY,
        verb: Verb::Get as u16,
        request_id: 7,
        meta_len: 12,
        payload_len: 34,
        deadline_or_status: 0,
        meta_crc: Crc32c(5),
        proof: 9,
    };
    let bytes = header.encode();
    assert_eq!(FrameHeader::decode(&bytes), Ok(header));
    for bit in 0..HEADER_BYTES * 8 {
        let mut bad = bytes;
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(FrameHeader::decode(&bad).is_err(), "bit {bit}");
    }
}

/// A reply proves which request it answers; the id alone is not enough.
#[test]
fn a_reply_answers_one_request_and_no_other() {
    let request = FrameHeader { proof: 77, ..FrameHeader::request(Verb::Get, 7, b"key") };
    let reply = FrameHeader::reply(request.asked(), Verb::Get, Status::Ok, b"value");
    assert_eq!(
        FrameHeader::decode(&reply.encode()).unwrap().check_answers(request.asked()),
        Ok(())
    );
    let others = [
        FrameHeader { proof: 78, ..request },
        FrameHeader { request_id: 8, ..request },
        FrameHeader { verb: Verb::Contains as u16, ..request },
        FrameHeader { proof: 77, ..FrameHeader::request(Verb::Get, 7, b"kez") },
    ];
    for other in others {
        assert_eq!(reply.check_answers(other.asked()), Err(WireError::Answer), "{other:?}");
    }
    assert_eq!(request.check_answers(request.asked()), Err(WireError::Field("flags")));
    let unasked = |verb, status| FrameHeader {
        proof: 0,
        ..FrameHeader::reply(request.asked(), verb, status, b"")
    };
    assert_eq!(unasked(Verb::Hello, Status::Busy).check_answers(request.asked()), Ok(()));
    for (verb, status) in
        [(Verb::Hello, Status::Ok), (Verb::Get, Status::Ok), (Verb::Get, Status::Busy)]
    {
        assert_eq!(unasked(verb, status).check_answers(request.asked()), Err(WireError::Answer));
    }
}

#[test]
fn a_huge_count_in_a_short_message_allocates_nothing() {
    let mut w = Writer::default();
    w.u32(1);
    w.count(16_384);
    assert_eq!(GetRequest::decode(&w.into_bytes()), Err(WireError::Truncated));
}

proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for (_, _, decodes) in samples() {
            let _ = decodes(&bytes);
        }
    }

    #[test]
    fn flipped_messages_never_panic(which in 0usize..34, at in any::<usize>(), bits in 1u8..) {
        let (_, mut bytes, decodes) = samples().swap_remove(which);
        let at = at % bytes.len();
        bytes[at] ^= bits;
        let _ = decodes(&bytes);
    }
}
