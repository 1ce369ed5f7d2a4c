//! Growing, draining, repairing and moving, through the manager.

use millpond_cluster::manager::{AdminAnswer, AdminCommand};
use millpond_types::cluster::{ChainId, TargetId};

use crate::world::{World, disk_id, node_id};

fn at_rest(world: &World) -> bool {
    world.is_whole(256, 2)
        && world.primary_manager().routing().is_some_and(|routing| routing.moving.is_empty())
}

fn replicas_on(world: &World, n: u32) -> usize {
    let members = world.stored_chains().values().flat_map(|chain| &chain.targets);
    members.filter(|member| member.node == node_id(n)).count()
}

#[test]
fn a_new_node_gets_its_share_and_a_drained_one_ends_empty() {
    let mut world = World::formed(1, 3, 2);
    world.add_node(4);
    world.until(120_000, |world| replicas_on(world, 4) >= 127 && at_rest(world));
    let counts: Vec<usize> = (1..=4).map(|n| replicas_on(&world, n)).collect();
    assert!(counts.iter().all(|count| (127..=129).contains(count)), "{counts:?}");

    let answer = world.admin(AdminCommand::RemoveNode { node: node_id(2) });
    assert!(matches!(&answer, AdminAnswer::Refused(why) if why.contains("drain")), "{answer:?}");
    world.admin(AdminCommand::DrainNode { node: node_id(2), on: true });
    world.until(120_000, |world| replicas_on(world, 2) == 0 && at_rest(world));
    let answer = world.admin(AdminCommand::RemoveNode { node: node_id(2) });
    assert!(matches!(&answer, AdminAnswer::Refused(why) if why.contains("stop")), "{answer:?}");
    world.kill(2);
    world.run(2_000);
    let problems = world.status().problems;
    assert!(
        problems[0].advice.contains("admin remove"),
        "nothing is to be made anew: {problems:?}"
    );
    let answer = world.admin(AdminCommand::RemoveNode { node: node_id(2) });
    assert!(matches!(answer, AdminAnswer::Done(_)), "{answer:?}");
    world.run(500);
    assert!(!world.nodes[&1].routing.nodes.contains_key(&node_id(2)), "clients forget it too");
    assert!(world.status().problems.is_empty());
}

#[test]
fn a_disk_that_stays_away_is_made_anew_elsewhere() {
    let mut world = World::formed(1, 4, 2);
    world.admin(AdminCommand::Set { name: "repair.after".to_owned(), value: "10s".to_owned() });
    world.kill(4);
    world.run(8_000);
    assert!(replicas_on(&world, 4) > 100, "not yet: it may come back");
    world.until(120_000, |world| replicas_on(world, 4) == 0 && at_rest(world));
    // It comes back after all, and takes its share again.
    world.restart(4);
    world.until(120_000, |world| replicas_on(world, 4) >= 127 && at_rest(world));
}

/// A history that `make sim SEED=0xeca7` found: the process is the same, so it has no reason of its
/// own to register.
#[test]
fn a_node_that_was_cut_off_for_long_takes_data_again() {
    for fails_over in [false, true] {
        let mut world = World::formed(2, 4, 2);
        world.admin(AdminCommand::Set { name: "repair.after".to_owned(), value: "10s".to_owned() });
        world.node(4).cut_off = true;
        world.until(120_000, |world| replicas_on(world, 4) == 0 && at_rest(world));
        if fails_over {
            let seat = world.primary().unwrap();
            world.seats[seat].frozen = true;
            world.until(10_000, |world| world.primary().is_some());
        }
        world.node(4).cut_off = false;
        world.until(120_000, |world| replicas_on(world, 4) >= 127 && at_rest(world));
    }
}

#[test]
fn a_disk_that_an_operator_gave_up_waits_for_an_operator() {
    let mut world = World::formed(2, 4, 2);
    world.admin(AdminCommand::Set { name: "repair.after".to_owned(), value: "10s".to_owned() });
    world.admin(AdminCommand::LoseDisk { disk: disk_id(4) });
    world.until(120_000, |world| replicas_on(world, 4) == 0 && at_rest(world));
    let seat = world.primary().unwrap();
    world.seats[seat].frozen = true;
    world.until(10_000, |world| world.primary().is_some());
    world.run(5_000);
    world.node(4).cut_off = true;
    world.run(30_000);
    world.node(4).cut_off = false;
    world.run(5_000);
    world.restart(4);
    world.run(30_000);
    assert_eq!(replicas_on(&world, 4), 0);
    world.admin(AdminCommand::DrainDisk { disk: disk_id(4), on: false });
    world.until(120_000, |world| replicas_on(world, 4) >= 127 && at_rest(world));
}

#[test]
fn a_drain_survives_its_manager_and_a_pause_holds_it() {
    let mut world = World::formed(2, 4, 2);
    world.run(1_000);
    world.admin(AdminCommand::DrainNode { node: node_id(1), on: true });
    world.run(700);
    let left = replicas_on(&world, 1);
    assert!((1..128).contains(&left), "{left}");
    let seat = world.primary().unwrap();
    world.seats[seat].frozen = true;
    world.until(10_000, |world| world.primary().is_some());
    let paused = |value: &str| AdminCommand::Set {
        name: "rebalance.paused".to_owned(),
        value: value.to_owned(),
    };
    world.admin(paused("true"));
    world.until(20_000, |world| {
        world.stored_chains().values().all(|chain| chain.targets.len() == 2)
    });
    let held = replicas_on(&world, 1);
    assert!(held > 0);
    world.run(5_000);
    assert_eq!(replicas_on(&world, 1), held);
    world.admin(paused("false"));
    world.until(120_000, |world| replicas_on(world, 1) == 0 && at_rest(world));
}

#[test]
fn one_replica_moves_on_request_and_domains_are_kept_apart() {
    let mut world = World::formed(1, 4, 2);
    let chain = world.stored_chains()[&ChainId(1)].clone();
    let disk = |n: u32| disk_id(n);
    let free = (1..=4).find(|n| chain.targets.iter().all(|m| m.disk != disk(*n))).unwrap();
    let from = chain.targets[0].target;
    let taken = chain.targets[1].disk;
    let ask = |from: TargetId, to| AdminCommand::MoveTarget { chain: ChainId(1), from, to };
    let answer = world.admin(ask(from, taken));
    assert!(matches!(&answer, AdminAnswer::Refused(why) if why.contains("domain")), "{answer:?}");
    let answer = world.admin(ask(TargetId(99_999), disk(free)));
    assert!(matches!(answer, AdminAnswer::Refused(_)), "{answer:?}");
    let answer = world.admin(ask(from, disk(free)));
    assert!(matches!(answer, AdminAnswer::Done(_)), "{answer:?}");
    world.until(20_000, |world| {
        let now = &world.stored_chains()[&ChainId(1)];
        now.targets.len() == 2 && now.targets.iter().any(|m| m.disk == disk(free))
    });
}
