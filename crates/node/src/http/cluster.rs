//! Metrics of a cluster's node beside its own counters: the cluster by its copy of the routing, its
//! replicas, its links, its manager.

use std::collections::BTreeMap;

use millpond_cluster::manager::Role;
use millpond_types::cluster::{Routing, TargetState};
use millpond_types::metrics::{Family, Page, label};

use millpond_control::member::Member;
use millpond_replica::ReplicaNumbers;
use millpond_replica::local::Service;

/// Writes all of these metrics.
pub(super) fn pages(page: &mut Page, service: &Service, member: &Member) {
    routing(page, &member.routing());
    manager(page, member);
    let numbers = service.host().map(|host| host.numbers()).unwrap_or_default();
    replicas(page, &numbers);
    slots(page, &numbers);
    links(page, &numbers);
}

const fn name(state: TargetState) -> &'static str {
    match state {
        TargetState::Serving => "serving",
        TargetState::LastServing => "last_serving",
        TargetState::Syncing => "syncing",
        TargetState::Waiting => "waiting",
        TargetState::Offline => "offline",
    }
}

const STATES: [TargetState; 5] = [
    TargetState::Serving,
    TargetState::LastServing,
    TargetState::Syncing,
    TargetState::Waiting,
    TargetState::Offline,
];

/// Equal on every node, except while news travels.
fn routing(page: &mut Page, routing: &Routing) {
    let family = ("millpond_cluster_routing_version", "Version of the routing of this node.");
    page.one(family, "gauge", routing.version.0);
    let family = ("millpond_cluster_nodes", "Nodes of the cluster.");
    page.one(family, "gauge", routing.nodes.len() as u64);
    let family = ("millpond_cluster_slots_moving", "Slots that are moving to another chain.");
    page.one(family, "gauge", routing.moving.len() as u64);
    // The line for chains without a serving replica exists even if there are none.
    let mut chains: BTreeMap<(u8, usize), u64> = BTreeMap::from([((0, 0), 0)]);
    let mut targets = [0; STATES.len()];
    for chain in routing.chains.values() {
        let (table, serving) = (chain.id.table(), chain.serving().count());
        chains.entry((table, 0)).or_default();
        *chains.entry((table, serving)).or_default() += 1;
        for member in &chain.targets {
            let at = STATES.iter().position(|state| *state == member.state);
            targets[at.unwrap_or(0)] += 1;
        }
    }
    page.many(
        ("millpond_cluster_chains", "Chains of the cluster by number of serving replicas."),
        "gauge",
        chains.into_iter().map(|((table, serving), count)| {
            let serving = label("serving", &serving.to_string());
            let labels = match table {
                0 => serving,
                table => format!("{serving},{}", label("table", &table.to_string())),
            };
            (labels, count)
        }),
    );
    page.many(
        ("millpond_cluster_targets", "Replicas of the cluster by state."),
        "gauge",
        STATES.iter().zip(targets).map(|(state, count)| (label("state", name(*state)), count)),
    );
}

fn manager(page: &mut Page, member: &Member) {
    let role = member.manager_role();
    let roles =
        [("primary", Role::Primary), ("taking_over", Role::TakingOver), ("standby", Role::Standby)];
    page.many(
        (
            "millpond_manager_role",
            "1 for the role of this node's manager; all 0 without a manager.",
        ),
        "gauge",
        roles.into_iter().map(|(name, it)| (label("role", name), u64::from(role == Some(it)))),
    );
}

fn replicas(page: &mut Page, numbers: &ReplicaNumbers) {
    let states = [
        (TargetState::Serving, numbers.serving),
        (TargetState::LastServing, numbers.last_serving),
        (TargetState::Syncing, numbers.syncing),
        (TargetState::Waiting, numbers.waiting),
        (TargetState::Offline, numbers.offline),
    ];
    page.many(
        ("millpond_replicas", "Replicas on this node by state."),
        "gauge",
        states.into_iter().map(|(state, count)| (label("state", name(state)), count)),
    );
    let gauges: [(Family<'_>, u64); 10] = [
        (("millpond_replica_heads", "Chains with their head on this node."), numbers.heads),
        (("millpond_replicas_stopped", "Replicas that stopped by themselves."), numbers.stopped),
        (("millpond_replica_chunks", "Chunks committed on this node."), numbers.chunks),
        (("millpond_replica_bytes", "Bytes of chunks committed on this node."), numbers.bytes),
        (("millpond_replica_staged", "Versions stored and not committed."), numbers.staged),
        (("millpond_replica_tombstones", "Remembered deletions."), numbers.tombstones),
        (("millpond_replica_lost_chunks", "Lost chunks of replicas on this node."), numbers.lost),
        (("millpond_resyncs", "Replicas that this node is resyncing."), numbers.resyncs),
        (
            ("millpond_resync_left_chunks", "Estimated chunks that resyncs have not compared yet."),
            numbers.resync_chunks_left,
        ),
        (
            ("millpond_resync_left_bytes", "Estimated bytes that resyncs have not compared yet."),
            numbers.resync_bytes_left,
        ),
    ];
    let evictions = ("millpond_replica_evictions_total", "Values that heads on this node evicted.");
    page.one(evictions, "counter", numbers.evictions);
    let refused = ("millpond_replica_refused_messages_total", "Rejected messages.");
    page.one(refused, "counter", numbers.refused);
    for (family, value) in gauges {
        page.one(family, "gauge", value);
    }
}

fn slots(page: &mut Page, numbers: &ReplicaNumbers) {
    let family = (
        "millpond_slot_moves",
        "Slots that are moving away from chains with their head on this node.",
    );
    page.one(family, "gauge", numbers.slot_moves);
    for (family, value) in [
        (
            (
                "millpond_slot_moved_chunks_total",
                "Chunks copied from here to the new chains of slots.",
            ),
            numbers.slot_chunks,
        ),
        (
            (
                "millpond_slot_moved_bytes_total",
                "Bytes copied from here to the new chains of slots.",
            ),
            numbers.slot_bytes,
        ),
        (
            (
                "millpond_slot_failed_total",
                "Failed and retried copies and removals of moving slots.",
            ),
            numbers.slot_failures,
        ),
    ] {
        page.one(family, "counter", value);
    }
}

fn links(page: &mut Page, numbers: &ReplicaNumbers) {
    let links = &numbers.links;
    for (family, kind, value) in [
        (
            ("millpond_links", "Connections of this node's replicas to other nodes."),
            "gauge",
            links.open,
        ),
        (
            ("millpond_link_queued_messages", "Messages that wait for a link."),
            "gauge",
            links.queued_messages,
        ),
        (
            ("millpond_link_queued_bytes", "Bytes that wait for a link."),
            "gauge",
            links.queued_bytes,
        ),
        (
            ("millpond_link_dropped_total", "Dropped messages, which are sent again."),
            "counter",
            links.dropped,
        ),
    ] {
        page.one(family, kind, value);
    }
}
