//! Joining, identity, leases, configuration.

use std::time::Duration;

use millpond_cluster::manager::{AdminAnswer, AdminCommand};
use millpond_types::cluster::{Refusal, TargetState};

use crate::world::{World, disk_id, node_id};

#[test]
fn a_cluster_forms_by_itself_and_everybody_has_the_routing() {
    let world = World::formed(1, 3, 2);
    let routing = world.primary_manager().routing().unwrap().clone();
    assert_eq!((routing.nodes.len(), routing.chains.len()), (3, 256));
    let mut world = world;
    world.run(1_000);
    for node in world.nodes.values() {
        assert_eq!(node.routing, routing);
    }
    assert!(world.status().problems.is_empty(), "{:?}", world.status().problems);
}

#[test]
fn a_silent_host_is_dropped_when_its_lease_has_run_out_and_not_before() {
    let mut world = World::formed(1, 3, 2);
    world.node(3).cut_off = true;
    let held = world.serving_on(3);
    assert!(held > 100);
    let took = world.until(3_000, |world| world.serving_on(3) == 0);
    // A lease of 2 s from the last heartbeat, up to 500 ms ago, and the margin of 250 ms.
    assert!(took > Duration::from_millis(1_700), "{took:?}");
    assert!(took < Duration::from_millis(2_600), "{took:?}");
    let problems = world.status().problems;
    assert!(problems[0].what.contains("is gone"), "{problems:?}");
    world.node(3).cut_off = false;
    world.until(10_000, |world| world.is_whole(256, 2));
}

#[test]
fn a_process_that_died_is_noticed_in_under_a_second() {
    let mut world = World::formed(1, 3, 2);
    world.kill(3);
    let took = world.until(3_000, |world| world.serving_on(3) == 0);
    assert!(took < Duration::from_secs(1), "by itself: {took:?}");
    world.restart(3);
    world.until(10_000, |world| world.is_whole(256, 2));
    world.run(700);
    world.kill(3);
    world.suspect(3);
    let took = world.until(3_000, |world| world.serving_on(3) == 0);
    assert!(took < Duration::from_millis(100), "after a suspicion: {took:?}");
}

#[test]
fn suspicion_of_a_node_that_lives_does_nothing() {
    let mut world = World::formed(1, 3, 2);
    for _ in 0..20 {
        world.suspect(2);
        world.run(50);
    }
    assert!(world.is_whole(256, 2));
    assert!(world.serving_on(2) > 100);
}

#[test]
fn a_graceful_stop_takes_effect_at_once() {
    let mut world = World::formed(1, 3, 2);
    let node = world.node(2);
    node.stopping = true;
    node.say_now();
    let took = world.until(3_000, |world| world.serving_on(2) == 0);
    assert!(took <= Duration::from_millis(100), "{took:?}");
}

#[test]
fn a_node_that_was_away_gets_no_lease_before_it_knows() {
    let mut world = World::formed(1, 3, 2);
    world.node(3).cut_off = true;
    world.until(3_000, |world| world.serving_on(3) == 0);
    // `check_reads` runs after every event: it would panic here if the grant came too soon.
    world.node(3).cut_off = false;
    world.until(3_000, |world| world.nodes[&3].lease_until > world.now);
    let stored = world.stored_chains().clone();
    let node = &world.nodes[&3];
    let stale = node.routing.chains.values().filter(|chain| {
        let serves = chain.serving().any(|m| m.node == node.id);
        serves && !stored[&chain.id].serving().any(|m| m.node == node.id)
    });
    assert_eq!(stale.count(), 0);
}

#[test]
fn a_second_process_with_the_same_identity_is_refused_by_name() {
    let mut world = World::formed(1, 3, 2);
    world.add_node(77);
    let twin = world.node(77);
    twin.id = node_id(2);
    twin.address = "10.0.0.77:7400".to_owned();
    world.until(3_000, |world| world.nodes[&77].refused.is_some());
    let refusal = world.nodes[&77].refused.clone().unwrap();
    assert!(matches!(refusal, Refusal::Running { .. }), "{refusal}");
    let text = refusal.to_string();
    assert!(text.contains("10.0.0.2:7400"), "it says where the other one runs: {text}");
    assert!(world.is_whole(256, 2), "the first one is not disturbed");
}

#[test]
fn a_restart_is_let_in_at_once_and_syncs_anew() {
    let mut world = World::formed(1, 3, 2);
    world.kill(2);
    world.run(100);
    world.restart(2);
    world.node(2).slow = true;
    let took = world.until(3_000, |world| world.nodes[&2].registered);
    assert!(took < Duration::from_millis(800), "{took:?}");
    world.run(500);
    let states = |world: &World| {
        let chains = world.stored_chains().values();
        let members = chains.flat_map(|chain| &chain.targets);
        members.filter(|m| m.node == node_id(2)).map(|m| m.state).collect::<Vec<_>>()
    };
    assert!(states(&world).iter().all(|state| *state == TargetState::Syncing));
    world.node(2).slow = false;
    world.until(5_000, |world| world.is_whole(256, 2));
}

#[test]
fn a_restart_that_nobody_noticed_still_syncs() {
    let mut world = World::formed(1, 3, 2);
    // Back within the lease: its memory is lost all the same.
    world.restart(2);
    world.node(2).slow = true;
    world.until(3_000, |world| world.nodes[&2].registered);
    world.run(500);
    assert_eq!(world.serving_on(2), 0);
    world.node(2).slow = false;
    world.until(5_000, |world| world.is_whole(256, 2));
}

#[test]
fn another_address_is_the_same_node() {
    let mut world = World::formed(1, 3, 2);
    let before = world.stored_chains().clone();
    let node = world.node(2);
    node.address = "192.168.7.7:9999".to_owned();
    node.registered = false;
    world.run(1_000);
    assert_eq!(*world.stored_chains(), before, "no chain changed");
    let routing = world.primary_manager().routing().unwrap();
    assert_eq!(routing.nodes[&node_id(2)].addresses, ["192.168.7.7:9999"]);
    assert_eq!(world.nodes[&1].routing.nodes[&node_id(2)].addresses, ["192.168.7.7:9999"]);
}

#[test]
fn a_disk_that_moved_to_another_server_comes_along() {
    let mut world = World::formed(1, 3, 2);
    world.kill(3);
    world.until(3_000, |world| world.serving_on(3) == 0);
    world.add_node(4);
    world.node(4).disks = vec![disk_id(3)];
    world.until(10_000, |world| world.is_whole(256, 2));
    assert!(world.serving_on(4) > 100);
    // The old server comes back with a claim to the same disk.
    world.restart(3);
    world.until(3_000, |world| world.nodes[&3].refused.is_some());
    let refusal = world.nodes[&3].refused.clone().unwrap();
    assert!(matches!(refusal, Refusal::DiskElsewhere { .. }), "{refusal}");
}

#[test]
fn strangers_are_turned_away_by_name() {
    let mut world = World::formed(1, 3, 2);
    world.add_node(8);
    world.node(8).routing.cluster = millpond_types::ids::Uuid128([1; 16]);
    world.add_node(9);
    world.node(9).domain = "x".repeat(300);
    world.run(500);
    assert!(matches!(world.nodes[&8].refused, Some(Refusal::Cluster { .. })));
    assert!(world.nodes[&9].refused.clone().unwrap().to_string().contains("failure domain"));
}

#[test]
fn settings_reach_every_node_and_slips_are_refused() {
    let mut world = World::formed(1, 3, 2);
    let set = |name: &str, value: &str| AdminCommand::Set {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let AdminAnswer::Refused(text) = world.admin(set("rebalance.pause", "true")) else {
        panic!("accepted");
    };
    assert!(text.contains("rebalance.paused"), "{text}");
    let answer = world.admin(set("rebalance.paused", "true"));
    assert!(matches!(answer, AdminAnswer::Done(_)), "{answer:?}");
    world.run(1_100);
    for node in world.nodes.values() {
        assert_eq!(node.config.values["rebalance.paused"], "true");
    }
    let status = world.status();
    assert!(status.paused);
    assert!(
        status.nodes.iter().all(|node| node.config == status.config),
        "nodes say what they run"
    );
}

#[test]
fn a_failing_disk_loses_its_place_and_gets_it_back() {
    let mut world = World::formed(1, 3, 2);
    let node = world.node(1);
    node.bad_disks.insert(disk_id(1));
    world.until(1_000, |world| world.serving_on(1) == 0);
    assert!(world.status().problems.iter().any(|problem| problem.what.contains("is failing")));
    world.node(1).bad_disks.clear();
    world.until(10_000, |world| world.is_whole(256, 2));
}

#[test]
fn the_last_replica_is_waited_for() {
    let mut world = World::formed(1, 2, 2);
    world.kill(1);
    world.until(3_000, |world| world.serving_on(1) == 0);
    world.kill(2);
    world.until(3_000, |world| world.serving_on(2) == 0);
    let waits = |world: &World| {
        let chains = world.stored_chains().values();
        chains.flat_map(|c| &c.targets).filter(|m| m.state == TargetState::LastServing).count()
    };
    assert_eq!(waits(&world), 256);
    world.restart(1);
    world.run(4_000);
    assert_eq!(world.serving_on(1), 0, "it may lack what the other one acknowledged alone");
    world.restart(2);
    world.until(10_000, |world| world.is_whole(256, 2));
}
