//! Seeds of the cluster's messages and records.

use std::collections::BTreeMap;

use millpond_types::cluster::{
    Chain, ChainId, ChainRecord, ChainTarget, ChainVersion, ConfigRecord, ConfigVersion, DiskId,
    DiskOffer, DiskRecord, EventRecord, Grant, Heartbeat, HeartbeatAnswer, LocalState, NodeId,
    NodeInfo, NodeRecord, NodeState, QuotaLimit, QuotaReport, Register, RegisterAnswer,
    RoutingDiff, RoutingUpdate, RoutingVersion, SlotChange, SlotPlace, SlotProgress, SlotsMoved,
    TargetId, TargetMove, TargetReport, TargetState, TermRecord,
};
use millpond_types::namespace::{NamespaceInfo, NamespaceOptions};
use millpond_types::wire::{
    NamespaceTableReply, NamespaceTableRequest, Record, RoutingRequest, SlotAnswer, SlotAsk,
    SlotOp, SlotOutcome, SuspectRequest,
};
use millpond_types::{ChunkId, Crc32c, GroupId, SlotId, Uuid128};

use crate::seeds::Seeds;

fn uuid(n: u8) -> Uuid128 {
    Uuid128([n; 16])
}

fn chain() -> Chain {
    let member = |n: u8, state| ChainTarget {
        target: TargetId(u32::from(n)),
        disk: DiskId(uuid(n)),
        node: NodeId(uuid(n + 100)),
        state,
    };
    let targets = vec![member(1, TargetState::Serving), member(2, TargetState::Syncing)];
    Chain { id: ChainId(1), version: ChainVersion(3), targets }
}

fn messages() -> Vec<Vec<u8>> {
    let node = NodeInfo {
        id: NodeId(uuid(101)),
        addresses: vec!["10.0.0.1:7400".into()],
        domain: "rack".into(),
        state: NodeState::Active,
        meta: true,
    };
    let place = SlotPlace { chain: ChainId(1), old: Some(ChainId(2)) };
    let diff = RoutingDiff {
        from: RoutingVersion(1),
        to: RoutingVersion(2),
        nodes: vec![node],
        nodes_gone: vec![NodeId(uuid(7))],
        chains: vec![chain()],
        slots: vec![SlotChange { slot: SlotId(3), place }],
    };
    let register = Register {
        addresses: vec!["10.0.0.1:7400".into()],
        host: "one".into(),
        disks: vec![DiskOffer { id: DiskId(uuid(1)), capacity_bytes: 1 << 40 }],
        ..Register::default()
    };
    let report = TargetReport {
        target: TargetId(1),
        chain: ChainId(1),
        at: ChainVersion(3),
        local: LocalState::UpToDate,
        used_bytes: 1,
        behind_bytes: 2,
    };
    let moving = vec![SlotProgress { slot: SlotId(3), chunks: 4, bytes: 5, through: 6 }];
    let slots_moved = SlotsMoved { chunks: 1, bytes: 2, failures: 3, moving };
    let quotas = vec![QuotaReport { quota_bytes: 9, limit_bytes: 3, ..QuotaReport::default() }];
    let targets = vec![report];
    let heartbeat = Heartbeat { targets, slots_moved, quotas, ..Heartbeat::default() };
    let (retire, quotas) = (vec![TargetId(1)], vec![QuotaLimit::default()]);
    let grant = Grant { config: Some(config()), retire, quotas, ..Grant::default() };
    let retry = RegisterAnswer::Retry { after_ms: 200 };
    let bodies = [
        RoutingUpdate::Diff(uuid(9), diff).encode(),
        register.encode(),
        retry.encode(),
        heartbeat.encode(),
        HeartbeatAnswer::Granted(grant).encode(),
    ];
    (0u8..).zip(bodies).map(|(kind, body)| [&[kind][..], &body[..]].concat()).collect()
}

fn slot_ask() -> SlotAsk {
    SlotAsk {
        id: 5,
        from: NodeId(uuid(101)),
        op: SlotOp::Probe,
        lease_ms: 8,
        slot: SlotId(7),
        chain: ChainId(1),
        other: ChainId(2),
        routing: RoutingVersion(3),
        chunk: ChunkId(9),
        crc: Crc32c::EMPTY,
        attrs: vec![1, 2],
    }
}

fn control() -> Vec<Vec<u8>> {
    let routing = RoutingRequest { cluster: uuid(9), have: RoutingVersion(2) };
    let options = NamespaceOptions::default();
    let info = NamespaceInfo { id: GroupId(1), name: "default".into(), options };
    let table =
        NamespaceTableReply { version: 3, namespaces: vec![info], dropping: vec![GroupId(2)] };
    let bodies = [
        routing.encode(),
        SuspectRequest { node: NodeId(uuid(101)) }.encode(),
        NamespaceTableRequest { have: 2 }.encode(),
        table.encode(),
        SlotAnswer { id: 4, outcome: SlotOutcome::Exists }.encode(),
        slot_ask().encode(),
    ];
    (0u8..).zip(bodies).map(|(kind, body)| [&[kind][..], &body[..]].concat()).collect()
}

fn config() -> ConfigRecord {
    let values = BTreeMap::from([("rebalance.paused".to_owned(), "true".to_owned())]);
    ConfigRecord { version: ConfigVersion(2), values }
}

fn records() -> Vec<Vec<u8>> {
    let moving = Some(TargetMove { add: TargetId(2), drop: Some(TargetId(1)) });
    let sealed = [
        ChainRecord { chain: chain(), moving }.seal(),
        NodeRecord { addresses: vec!["10.0.0.1:7400".into()], ..NodeRecord::default() }.seal(),
        DiskRecord { id: DiskId(uuid(1)), ..DiskRecord::default() }.seal(),
        TermRecord { addresses: vec!["m".into()], ..TermRecord::default() }.seal(),
        EventRecord { text: "node one is gone".into(), ..EventRecord::default() }.seal(),
        config().seal(),
    ];
    // The target adds the checksum.
    sealed.into_iter().map(|bytes| bytes[..bytes.len() - 4].to_vec()).collect()
}

/// Seeds of the targets.
pub(crate) fn all() -> Vec<Seeds> {
    vec![
        ("cluster_messages", messages()),
        ("cluster_control", control()),
        ("cluster_records", records()),
    ]
}
