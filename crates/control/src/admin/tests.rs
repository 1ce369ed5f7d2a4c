use millpond_cluster::manager::{
    AdminAnswer, AdminCommand, ChainStatus, DiskStatus, NodeStatus, SlotStatus, TargetStatus,
};
use millpond_types::cluster::{
    ChainId, ChainVersion, ConfigRecord, ConfigVersion, DiskId, DiskState, EventRecord, LocalState,
    NodeId, NodeState, RoutingVersion, SlotProgress, TargetId, TargetMove, TargetState,
};
use millpond_types::ids::{SlotId, Uuid128};
use millpond_types::limits::META_BYTES_MAX;
use millpond_types::units::UnixSeconds;

use super::{Answer, Command, decode_answer, decode_command, encode_answer, encode_command};

const UUID: Uuid128 = Uuid128([0x6f; 16]);

#[test]
fn every_command_arrives_as_it_was_meant() {
    let id = UUID.to_string();
    let (node, disk) = (NodeId(UUID), DiskId(UUID));
    let all = [
        (Command::Form { replicas: 3 }, AdminCommand::Form { replicas: 3 }),
        (
            Command::Set { name: "a".into(), value: "b".into() },
            AdminCommand::Set { name: "a".into(), value: "b".into() },
        ),
        (
            Command::DrainNode { node: id.clone(), on: true },
            AdminCommand::DrainNode { node, on: true },
        ),
        (
            Command::DrainDisk { disk: id.clone(), on: false },
            AdminCommand::DrainDisk { disk, on: false },
        ),
        (Command::LoseDisk { disk: id.clone() }, AdminCommand::LoseDisk { disk }),
        (Command::RemoveNode { node: id.clone() }, AdminCommand::RemoveNode { node }),
        (
            Command::MoveTarget { chain: 7, target: 9, disk: id },
            AdminCommand::MoveTarget { chain: ChainId(7), from: TargetId(9), to: disk },
        ),
        (Command::Status {}, AdminCommand::Status),
        (
            Command::Chains { after: 5, unhealthy: true },
            AdminCommand::Chains { after: ChainId(5), unhealthy: true },
        ),
        (Command::Slots {}, AdminCommand::Slots),
        (Command::Config {}, AdminCommand::Config),
        (Command::Events { from: 12 }, AdminCommand::Events { from: 12 }),
    ];
    for (said, meant) in all {
        assert_eq!(decode_command(&encode_command(&said)).unwrap(), meant);
    }
    let short = decode_command(br#"{"command":"chains"}"#).unwrap();
    assert_eq!(short, AdminCommand::Chains { after: ChainId::NONE, unhealthy: false });
}

#[test]
fn what_is_wrong_with_a_request_is_named() {
    for (json, named) in [
        ("", "EOF"),
        ("[]", "command"),
        (r#"{"command":"explode"}"#, "drain_node"),
        (r#"{"command":"form"}"#, "replicas"),
        (r#"{"command":"form","replicas":300}"#, "u8"),
        (r#"{"command":"form","replicas":3,"extra":1}"#, "extra"),
        (r#"{"command":"status","extra":1}"#, "extra"),
        (r#"{"command":"remove_node","node":"n1"}"#, "'node'"),
        (r#"{"command":"move_target","chain":1,"target":1,"disk":"zz"}"#, "'disk'"),
    ] {
        let error = decode_command(json.as_bytes()).unwrap_err();
        assert!(error.to_string().contains(named), "{json}: {error}");
    }
}

#[test]
fn answers_survive_the_way() {
    let target = TargetStatus {
        target: TargetId(9),
        disk: DiskId(UUID),
        node: NodeId(UUID),
        state: TargetState::Syncing,
        local: Some(LocalState::Online),
        used_bytes: 1 << 40,
        behind_bytes: 5,
    };
    let chain = ChainStatus {
        id: ChainId(7),
        version: ChainVersion(3),
        targets: vec![target],
        moving: Some(TargetMove { add: TargetId(9), drop: Some(TargetId(2)) }),
        slots: 64,
    };
    let page = millpond_cluster::manager::ChainPage { chains: vec![chain], next: Some(ChainId(7)) };
    let told = SlotProgress { slot: SlotId(65_535), chunks: 3, bytes: 4, through: 5 };
    let slot =
        |progress| SlotStatus { slot: SlotId(65_535), from: ChainId(1), to: ChainId(2), progress };
    let values = [("repair.after".to_owned(), "1h".to_owned())].into();
    let event = EventRecord {
        number: 4,
        at: UnixSeconds(1_700_000_000),
        chain: None,
        text: "\"é\"".into(),
    };
    for answer in [
        AdminAnswer::Done("so".into()),
        AdminAnswer::Refused("no".into()),
        AdminAnswer::Status(Box::default()),
        AdminAnswer::Chains(page),
        AdminAnswer::Slots(vec![slot(None), slot(Some(told))]),
        AdminAnswer::Config(ConfigRecord { version: ConfigVersion(2), values }),
        AdminAnswer::Events(vec![event]),
        AdminAnswer::NotPrimary(vec!["a:1".into()]),
    ] {
        let read = decode_answer(&encode_answer(&answer)).unwrap();
        assert_eq!(read, Answer::from(&answer));
    }
}

#[test]
fn an_answer_of_a_newer_manager_is_read() {
    let json =
        br#"{"answer":"status","replicas":3,"from_the_future":[1],"nodes":[{"id":"x","hue":1}]}"#;
    let Answer::Status(status) = decode_answer(json).unwrap() else { panic!() };
    assert_eq!((status.replicas, status.nodes[0].id.as_str()), (3, "x"));
    assert!(decode_answer(br#"{"answer":"song"}"#).is_err());
}

#[test]
fn the_status_of_the_largest_cluster_fits_a_reply() {
    let node = NodeStatus {
        id: NodeId(UUID),
        host: "h".repeat(60),
        addresses: vec!["a".repeat(60); 2],
        domain: UUID.to_string(),
        build: "0.1.0".into(),
        alive: true,
        silent_ms: Some(400),
        state: NodeState::Active,
        routing: RoutingVersion(u64::from(u32::MAX)),
        config: ConfigVersion(9),
        queue_depth: 100,
        targets: 65_536,
    };
    let disk = DiskStatus {
        id: DiskId(UUID),
        node: NodeId(UUID),
        capacity_bytes: u64::MAX,
        used_bytes: u64::MAX,
        healthy: true,
        state: DiskState::Active,
        targets: 256,
    };
    let mut status = millpond_cluster::manager::Status {
        nodes: vec![node; 16_384],
        disks: vec![disk; 262_144],
        ..Default::default()
    };
    status.nodes[16_000].alive = false;
    status.disks[262_000].healthy = false;
    let json = encode_answer(&AdminAnswer::Status(Box::new(status)));
    assert!(json.len() < META_BYTES_MAX, "{}", json.len());
    let Answer::Status(status) = decode_answer(&json).unwrap() else { panic!() };
    assert_eq!((status.nodes.len(), status.nodes_left_out), (4_000, 12_384));
    assert!(!status.nodes[0].alive);
    assert!(!status.disks[0].healthy);
}
