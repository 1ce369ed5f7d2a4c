//! Golden values of stored records and of messages; decoders detect every damaged byte.

use std::collections::BTreeMap;

use super::Record;
use crate::checksum::Crc32c;
use crate::cluster::{
    Chain, ChainId, ChainRecord, ChainTarget, ChainVersion, ClusterRecord, ConfigRecord,
    ConfigVersion, DiskId, DiskOffer, DiskRecord, DiskReport, DiskState, EventRecord, Grant,
    HeadRecord, Heartbeat, HeartbeatAnswer, Incarnation, LeaseRecord, LocalState, NodeId, NodeInfo,
    NodeRecord, NodeState, QuotaLimit, QuotaReport, Refusal, Register, RegisterAnswer, Routing,
    RoutingDiff, RoutingUpdate, RoutingVersion, SlotChange, SlotDone, SlotPage, SlotPlace,
    SlotProgress, SlotsMoved, TableSet, TargetId, TargetMove, TargetReport, TargetState, Term,
    TermRecord, UpdateError, keys,
};
use crate::ids::{ClusterSecret, GroupId, SlotId, Uuid128};
use crate::units::UnixSeconds;
use crate::wire::WireError;

fn uuid(n: u8) -> Uuid128 {
    Uuid128([n; 16])
}

fn chain(id: u32) -> Chain {
    let member = |n: u8, state| ChainTarget {
        target: TargetId(u32::from(n) + 10 * id),
        disk: DiskId(uuid(n)),
        node: NodeId(uuid(n + 100)),
        state,
    };
    let targets = vec![
        member(1, TargetState::Serving),
        member(2, TargetState::Syncing),
        member(3, TargetState::LastServing),
    ];
    Chain { id: ChainId(id), version: ChainVersion(9), targets }
}

fn node_record() -> NodeRecord {
    NodeRecord {
        id: NodeId(uuid(101)),
        incarnation: Incarnation(0xfeed),
        addresses: vec!["10.0.0.1:7400".to_owned(), "[::1]:7400".to_owned()],
        host: "one".to_owned(),
        domain: "rack-1".to_owned(),
        build: "0.1.0".to_owned(),
        protocol: 1,
        state: NodeState::Draining,
        meta: true,
    }
}

fn config() -> ConfigRecord {
    let values = BTreeMap::from([("rebalance.paused".to_owned(), "true".to_owned())]);
    ConfigRecord { version: ConfigVersion(3), values }
}

fn slot_page() -> SlotPage {
    let mut places = vec![SlotPlace { chain: ChainId(1), old: None }; 1024];
    places[7] = SlotPlace { chain: ChainId(2), old: Some(ChainId(1)) };
    SlotPage { page: 63, places }
}

/// Seals, opens, compares; then damages every byte in turn.
fn check<R: Record + PartialEq + std::fmt::Debug>(record: &R, golden: u32) {
    let bytes = record.seal();
    // Without its own checksum: a CRC over bytes that include their CRC is the same for every
    // record.
    let sum = Crc32c::of(&bytes[..bytes.len() - 4]);
    assert_eq!(R::open(&bytes).as_ref(), Ok(record));
    assert_eq!(sum, Crc32c(golden), "the bytes of a record never change");
    for i in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[i] ^= 0x10;
        assert!(R::open(&damaged).is_err(), "byte {i} of kind {}", R::KIND);
        assert!(R::open(&bytes[..i]).is_err(), "{i} bytes of kind {}", R::KIND);
    }
}

#[test]
fn golden_records_never_change() {
    let term = TermRecord {
        term: Term(4),
        manager: NodeId(uuid(101)),
        addresses: vec!["10.0.0.1:7401".to_owned()],
    };
    check(&term, GOLDEN[0]);
    check(&LeaseRecord { term: Term(4), renewal: 77, released: true }, GOLDEN[1]);
    let head = HeadRecord {
        transaction: 5,
        routing: RoutingVersion(6),
        next_event: 7,
        next_target: 8,
        next_chain: 9,
    };
    check(&head, GOLDEN[2]);
    let more = TableSet::default();
    let cluster = ClusterRecord { cluster: uuid(9), replicas: 3, seed: 42, more, secret: None };
    check(&cluster, GOLDEN[3]);
    let more = more.with(1).with(6).with(0).with(7);
    assert_eq!(more.iter().collect::<Vec<_>>(), [1, 6]);
    assert_eq!(
        [1, 1 << 7, 1 << 6].map(TableSet::of_bits),
        [None, None, Some(TableSet::default().with(6))]
    );
    let cluster = ClusterRecord { more, ..cluster };
    assert_eq!(ClusterRecord::open(&cluster.seal()), Ok(cluster));
    for more in [TableSet::default(), cluster.more] {
        let keyed = ClusterRecord { more, secret: Some(ClusterSecret([5; 16])), ..cluster };
        assert_eq!(ClusterRecord::open(&keyed.seal()), Ok(keyed));
    }
    assert_eq!([0, 1, 2, 6, 7, 255].map(|table| cluster.replicas_of(table)), [3, 1, 0, 6, 0, 0]);
    check(&node_record(), GOLDEN[4]);
    let disk = DiskRecord {
        id: DiskId(uuid(1)),
        node: NodeId(uuid(101)),
        capacity_bytes: 1 << 40,
        state: DiskState::Lost,
    };
    check(&disk, GOLDEN[5]);
    let moving = Some(TargetMove { add: TargetId(3), drop: Some(TargetId(1)) });
    check(&ChainRecord { chain: chain(1), moving }, GOLDEN[6]);
    check(&slot_page(), GOLDEN[7]);
    check(&config(), GOLDEN[8]);
    let event = EventRecord {
        number: 12,
        at: UnixSeconds(1_700_000_000),
        chain: Some(ChainId(1)),
        text: "node one is gone".to_owned(),
    };
    check(&event, GOLDEN[9]);
}

/// CRC-32C of each sealed record above, in order.
const GOLDEN: [u32; 10] = [
    0x0988_c5ab,
    0x9969_a94c,
    0x611c_f60f,
    0x5c87_0b4a,
    0xcc4e_7619,
    0x3fc0_8780,
    0x0c05_92b8,
    0xa4b2_9a10,
    0x1838_e117,
    0x5819_5767,
];

#[test]
fn a_nodes_record_of_an_earlier_build_has_no_meta_role() {
    let record = node_record();
    let bytes = record.seal();
    // The record without the byte that protocol 5 added, and with a new checksum.
    let mut before = bytes[..bytes.len() - 5].to_vec();
    let sum = Crc32c::of(&before);
    assert_eq!(sum, Crc32c(0xa30b_33dd), "as it was stored then");
    before.extend_from_slice(&sum.0.to_le_bytes());
    assert_eq!(NodeRecord::open(&before), Ok(NodeRecord { meta: false, ..record }));
}

#[test]
fn a_newer_record_and_another_kind_are_named() {
    let mut bytes = config().seal();
    bytes.truncate(bytes.len() - 4);
    bytes[3] = 2;
    let sum = Crc32c::of(&bytes).0;
    bytes.extend_from_slice(&sum.to_le_bytes());
    assert_eq!(ConfigRecord::open(&bytes), Err(WireError::Version(2)));
    assert_eq!(EventRecord::open(&config().seal()), Err(WireError::Field("record kind")));
    assert_eq!(ConfigRecord::open(b"hello world"), Err(WireError::Field("record magic")));
}

#[test]
fn keys_come_in_the_order_of_their_numbers() {
    let chains: Vec<_> =
        [1, 255, 256, 65_536].into_iter().map(|n| keys::chain(ChainId(n))).collect();
    assert!(chains.is_sorted());
    assert_eq!(keys::event(1), keys::event(1 + 4096), "the log is a ring");
}

fn routing() -> Routing {
    let node = NodeInfo {
        id: NodeId(uuid(101)),
        addresses: vec!["10.0.0.1:7400".to_owned()],
        domain: "rack-1".to_owned(),
        state: NodeState::Active,
        meta: true,
    };
    let mut routing = Routing {
        cluster: uuid(9),
        version: RoutingVersion(5),
        nodes: BTreeMap::from([(node.id, node)]),
        chains: [1, 2].into_iter().map(|id| (ChainId(id), chain(id))).collect(),
        ..Routing::default()
    };
    routing.set_place(SlotId(3), SlotPlace { chain: ChainId(1), old: Some(ChainId(2)) });
    routing
}

fn diff(from: u64, to: u64) -> RoutingUpdate {
    let place = SlotPlace { chain: ChainId(2), old: None };
    RoutingUpdate::Diff(
        uuid(9),
        RoutingDiff {
            from: RoutingVersion(from),
            to: RoutingVersion(to),
            nodes: Vec::new(),
            nodes_gone: vec![NodeId(uuid(101))],
            chains: vec![chain(3)],
            slots: vec![SlotChange { slot: SlotId(3), place }],
        },
    )
}

#[test]
fn golden_messages_never_change() {
    let mut seen = Vec::new();
    for update in [RoutingUpdate::Full(Box::new(routing())), diff(5, 7)] {
        let bytes = update.encode();
        assert_eq!(RoutingUpdate::decode(&bytes).as_ref(), Ok(&update));
        seen.push(Crc32c::of(&bytes).0);
        for end in [0, 1, 20, 40, bytes.len() - 1] {
            assert!(RoutingUpdate::decode(&bytes[..end]).is_err(), "{end} bytes");
        }
    }
    let register = register();
    assert_eq!(Register::decode(&register.encode()).as_ref(), Ok(&register));
    seen.push(Crc32c::of(&register.encode()).0);
    let heartbeat = heartbeat();
    assert_eq!(Heartbeat::decode(&heartbeat.encode()).as_ref(), Ok(&heartbeat));
    seen.push(Crc32c::of(&heartbeat.encode()).0);
    assert_eq!(seen, MESSAGES);
    let end = heartbeat.encode().len();
    assert!((0..end).all(|end| Heartbeat::decode(&heartbeat.encode()[..end]).is_err()));
}

/// CRC-32C of a whole routing, a difference, a registration and a heartbeat.
const MESSAGES: [u32; 4] = [0x1caa_0b7d, 0x7095_26b4, 0xf18a_be3f, 0x13b0_9493];

fn register() -> Register {
    Register {
        node: NodeId(uuid(101)),
        incarnation: Incarnation(1),
        cluster: uuid(9),
        addresses: vec!["10.0.0.1:7400".to_owned()],
        host: "one".to_owned(),
        domain: "rack-1".to_owned(),
        build: "0.1.0".to_owned(),
        protocol: 1,
        meta: true,
        disks: vec![DiskOffer { id: DiskId(uuid(1)), capacity_bytes: 1 << 40 }],
    }
}

fn heartbeat() -> Heartbeat {
    Heartbeat {
        node: NodeId(uuid(101)),
        incarnation: Incarnation(1),
        number: 17,
        routing: RoutingVersion(5),
        config: ConfigVersion(3),
        stopping: false,
        targets: vec![TargetReport {
            target: TargetId(11),
            chain: ChainId(1),
            at: ChainVersion(9),
            local: LocalState::UpToDate,
            used_bytes: 1 << 30,
            behind_bytes: 5,
        }],
        disks: vec![DiskReport {
            disk: DiskId(uuid(1)),
            capacity_bytes: 1 << 40,
            used_bytes: 1 << 30,
            healthy: true,
        }],
        slots_done: vec![SlotDone { slot: SlotId(3), from: ChainId(2), to: ChainId(1) }],
        slots_moved: SlotsMoved {
            chunks: 7,
            bytes: 1 << 40,
            failures: 2,
            moving: vec![SlotProgress { slot: SlotId(4), chunks: 5, bytes: 6, through: 1000 }],
        },
        queue_depth: 4,
        quotas: vec![QuotaReport {
            namespace: GroupId(7),
            quota_bytes: 1 << 40,
            evicts: true,
            used_bytes: 1 << 30,
            limit_bytes: 1 << 31,
        }],
    }
}

#[test]
fn every_answer_survives_its_bytes() {
    let (node, host) = (NodeId(uuid(101)), "one".to_owned());
    let refusals = [
        Refusal::Unregistered,
        Refusal::Running { node, host: host.clone(), addresses: "10.0.0.1:7400".to_owned() },
        Refusal::Superseded { node, host: host.clone() },
        Refusal::DiskElsewhere { disk: DiskId(uuid(1)), node, host },
        Refusal::Cluster { ours: uuid(1), theirs: uuid(2) },
        Refusal::Protocol { ours: 1, theirs: 2 },
        Refusal::Field("host".to_owned()),
    ];
    let mut answers = vec![
        RegisterAnswer::Accepted { cluster: uuid(9), routing: RoutingVersion(5), secret: None },
        RegisterAnswer::Accepted {
            cluster: uuid(9),
            routing: RoutingVersion(5),
            secret: Some(ClusterSecret([7; 16])),
        },
        RegisterAnswer::Retry { after_ms: 200 },
        RegisterAnswer::NotPrimary(vec!["10.0.0.2:7401".to_owned()]),
    ];
    let grant = Grant {
        number: 17,
        lease_ms: 2000,
        routing: RoutingVersion(5),
        config: Some(config()),
        retire: vec![TargetId(11)],
        quotas: vec![QuotaLimit { namespace: GroupId(7), limit_bytes: 1 << 31 }],
    };
    let mut beats = vec![
        HeartbeatAnswer::Granted(grant),
        HeartbeatAnswer::Granted(Grant::default()),
        HeartbeatAnswer::NotPrimary(Vec::new()),
    ];
    for why in refusals {
        answers.push(RegisterAnswer::Refused(why.clone()));
        beats.push(HeartbeatAnswer::Refused { number: 17, why });
    }
    for answer in answers {
        assert_eq!(RegisterAnswer::decode(&answer.encode()), Ok(answer));
    }
    for beat in beats {
        assert_eq!(HeartbeatAnswer::decode(&beat.encode()), Ok(beat));
    }
}

#[test]
fn updates_apply_once_and_never_backwards() {
    let mut copy = Routing::default();
    assert_eq!(copy.apply(RoutingUpdate::Full(Box::new(routing()))), Ok(true));
    let gap = UpdateError::Gap { have: RoutingVersion(5), from: RoutingVersion(6) };
    assert_eq!(copy.apply(diff(6, 7)), Err(gap));
    assert_eq!(copy.apply(diff(4, 7)), Ok(true), "items are whole, so an older start fits too");
    assert_eq!(copy.apply(diff(5, 7)), Ok(false));
    assert_eq!(copy.apply(RoutingUpdate::Full(Box::new(routing()))), Ok(false));
    assert_eq!(copy.version, RoutingVersion(7));
    assert_eq!(copy.place(SlotId(3)), SlotPlace { chain: ChainId(2), old: None });
    assert!(copy.nodes.is_empty() && copy.chains.len() == 3);
    let other = Routing { cluster: uuid(8), version: RoutingVersion(9), ..Routing::default() };
    assert!(copy.apply(RoutingUpdate::Full(Box::new(other))).is_err());
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in proptest::collection::vec(0u8.., 0..200)) {
        let _ = RoutingUpdate::decode(&bytes);
        let _ = Register::decode(&bytes);
        let _ = RegisterAnswer::decode(&bytes);
        let _ = Heartbeat::decode(&bytes);
        let _ = HeartbeatAnswer::decode(&bytes);
        let _ = ChainRecord::read_body(&mut super::Reader::new(&bytes));
        let _ = NodeRecord::read_body(&mut super::Reader::new(&bytes));
        let _ = ConfigRecord::read_body(&mut super::Reader::new(&bytes));
        let _ = EventRecord::open(&bytes);
    }
}
