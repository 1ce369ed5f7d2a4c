//! Managers that die, freeze, or lose the store.

use std::time::Duration;

use millpond_cluster::manager::{Event, Manager, ManagerOptions, Role};
use millpond_types::cluster::keys;

use crate::world::{StoreMode, World, options};

fn freeze_primary(world: &mut World) -> usize {
    let seat = world.primary().unwrap();
    world.seats[seat].frozen = true;
    seat
}

#[test]
fn a_standby_takes_over_in_under_seven_seconds_and_no_chain_notices() {
    let mut world = World::formed(3, 3, 2);
    world.run(2_000);
    let before = world.stored_chains().clone();
    freeze_primary(&mut world);
    let took = world.until(10_000, |world| world.primary().is_some());
    assert!(took < Duration::from_secs(7), "{took:?}");
    assert!(took > Duration::from_secs(4), "the lease was respected: {took:?}");
    world.run(10_000);
    assert_eq!(*world.stored_chains(), before, "a new primary learns leases, it changes nothing");
    assert!(world.nodes.values().all(|node| node.lease_until > world.now));
}

#[test]
fn there_is_no_freeze_after_a_take_over() {
    let mut world = World::formed(2, 3, 2);
    world.run(1_000);
    freeze_primary(&mut world);
    world.until(10_000, |world| world.primary().is_some());
    world.run(600);
    world.kill(3);
    let took = world.until(3_000, |world| world.serving_on(3) == 0);
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn a_node_that_died_with_the_primary_is_dropped_when_its_lease_is_over() {
    let mut world = World::formed(2, 3, 2);
    world.run(1_000);
    freeze_primary(&mut world);
    world.node(3).cut_off = true;
    world.until(10_000, |world| world.primary().is_some());
    let took = world.until(5_000, |world| world.serving_on(3) == 0);
    assert!(took < Duration::from_millis(2_400), "{took:?}");
}

/// A history that `chaos` found: the previous primary took a node's targets while the node was
/// away.
#[test]
fn a_new_primary_grants_no_lease_for_what_the_old_one_took() {
    let mut world = World::formed(2, 3, 2);
    world.run(1_000);
    world.node(3).cut_off = true;
    world.until(3_000, |world| world.serving_on(3) == 0);
    freeze_primary(&mut world);
    world.until(10_000, |world| world.primary().is_some());
    world.node(3).cut_off = false;
    // `check_reads` panics when the node reads targets that it lost.
    world.until(10_000, |world| world.is_whole(256, 2));
}

#[test]
fn an_old_primary_that_wakes_up_changes_nothing() {
    let mut world = World::formed(2, 3, 2);
    world.run(1_000);
    let old = freeze_primary(&mut world);
    world.until(10_000, |world| world.primary().is_some());
    world.run(500);
    let new = world.primary().unwrap();
    let commits = world.commits;
    world.seats[old].frozen = false;
    world.run(200);
    assert_eq!(world.seats[old].manager.role(), Role::Standby);
    assert_eq!(world.primary(), Some(new));
    assert!(world.commits <= commits + 1, "only renewals of the new one");
}

#[test]
fn a_primary_without_a_store_steps_down_and_stops_granting() {
    let mut world = World::formed(1, 3, 2);
    world.run(1_000);
    world.store_mode = StoreMode::Fails;
    world.run(5_000);
    assert_eq!(world.seats[0].manager.role(), Role::Standby);
    world.run(2_500);
    assert!(world.nodes.values().all(|node| node.lease_until <= world.now));
    world.store_mode = StoreMode::Works;
    world.until(10_000, |world| world.primary().is_some() && world.is_whole(256, 2));
}

#[test]
fn a_lost_answer_of_the_store_is_found_out() {
    let mut world = World::formed(1, 3, 2);
    world.store_mode = StoreMode::LosesAnswers;
    world.kill(3);
    let took = world.until(3_000, |world| world.serving_on(3) == 0);
    assert!(took < Duration::from_secs(2), "{took:?}");
    world.run(1_000);
    assert_eq!(world.seats[0].manager.role(), Role::Primary, "HEAD told that it was done");
    world.store_mode = StoreMode::Works;
    world.restart(3);
    world.until(10_000, |world| world.is_whole(256, 2));
}

/// Makes the primary give its lease back; returns its seat.
fn resign(world: &mut World) -> usize {
    let old = world.primary().unwrap();
    let (now, mut effects) = (world.now.plus(Duration::from_secs(1_000 * old as u64)), Vec::new());
    world.seats[old].manager.step(now, Event::Resign, &mut effects);
    let mut released = false;
    for effect in effects {
        if let millpond_cluster::manager::Effect::Store { request, .. } = effect {
            let millpond_cluster::manager::StoreRequest::Commit { writes, .. } = request else {
                continue;
            };
            for (key, value) in writes {
                released |= key == keys::LEASE;
                world.store.insert(key, value.unwrap());
            }
        }
    }
    assert!(released);
    old
}

#[test]
fn a_primary_that_resigns_is_followed_at_once() {
    let mut world = World::formed(2, 3, 2);
    world.run(1_000);
    let old = resign(&mut world);
    let took = world.until(3_000, |world| world.primary().is_some_and(|seat| seat != old));
    assert!(took <= Duration::from_millis(600), "{took:?}");
    assert!(world.is_whole(256, 2));
}

/// A history that `make sim SEED=0x1e92` found: an old heartbeat was the first that a new primary
/// received from a node, which served by the lease of the previous primary.
#[test]
fn a_heartbeat_of_long_ago_takes_nothing_from_a_node_that_serves() {
    let mut world = World::formed(2, 3, 2);
    world.run(1_000);
    let now = world.now;
    let node = world.node(3);
    let disk = node.disks[0];
    node.bad_disks.insert(disk);
    let late = node.heartbeat(now);
    node.bad_disks.clear();
    // The routing advances in the meantime.
    world.kill(1);
    world.until(3_000, |world| world.serving_on(1) == 0);
    world.restart(1);
    world.until(10_000, |world| world.is_whole(256, 2));
    let old = resign(&mut world);
    world.node(3).cut_off = true;
    world.until(3_000, |world| world.primary().is_some_and(|seat| seat != old));
    let now = world.now;
    assert!(world.node(3).lease_until > now, "it may serve");
    let (before, new) = (world.stored_chains().clone(), world.primary().unwrap());
    // `check_reads` panics when the node reads targets that it lost.
    world.arrives(new, 3, late);
    world.run(100);
    assert_eq!(*world.stored_chains(), before);
    // Its new reports count, and count at once.
    let node = world.node(3);
    node.cut_off = false;
    node.bad_disks.insert(disk);
    world.until(2_000, |world| world.serving_on(3) == 0);
}

#[test]
fn everything_is_read_back_by_a_manager_that_knows_nothing() {
    let mut world = World::formed(1, 4, 3);
    world.run(1_000);
    let before = world.primary_manager().routing().unwrap().clone();
    world.seats[0].manager = Manager::new(options(5, None));
    world.until(10_000, |world| world.primary().is_some());
    assert_eq!(*world.primary_manager().routing().unwrap(), before);
    let status = world.status();
    assert_eq!((status.chains_whole, status.replicas), (256, 3));
}

#[test]
fn a_damaged_record_keeps_a_manager_from_deciding() {
    let mut world = World::formed(1, 3, 2);
    let key = keys::chain(millpond_types::cluster::ChainId(7));
    world.store.get_mut(&key).unwrap()[9] ^= 1;
    world.seats[0].manager = Manager::new(options(5, None));
    world.run(12_000);
    assert_eq!(world.primary(), None);
    assert!(world.events.iter().any(|text| text.contains("unreadable")), "{:?}", world.events);
    world.store.get_mut(&key).unwrap()[9] ^= 1;
    world.until(15_000, |world| world.primary().is_some() && world.is_whole(256, 2));
}

/// No other process can have the store of this manager: the previous primary is dead.
#[test]
fn who_has_the_store_alone_waits_for_no_lease() {
    for (is_alone, waits) in [(true, false), (false, true)] {
        let mut world = World::formed(1, 1, 1);
        world.run(1_000);
        let options = ManagerOptions { is_alone, ..options(0, None) };
        world.seats[0].manager = Manager::new(options);
        let took = world.until(10_000, |world| world.primary().is_some());
        assert_eq!(took > Duration::from_secs(4), waits, "{took:?}");
        assert!(waits || took < Duration::from_millis(100), "{took:?}");
    }
}

/// A busy machine may delay a process for any time.
#[test]
fn who_has_the_store_alone_goes_on_however_late_it_is() {
    for (is_alone, goes_on) in [(true, true), (false, false)] {
        let mut world = World::formed(1, 1, 1);
        let options = ManagerOptions { is_alone, ..options(0, None) };
        world.seats[0].manager = Manager::new(options);
        world.until(20_000, |world| world.primary().is_some());
        world.seats[0].frozen = true;
        world.run(10_000);
        world.seats[0].frozen = false;
        world.run(20);
        assert_eq!(world.primary().is_some(), goes_on, "alone: {is_alone}");
        // Also without an answer of the store.
        world.until(20_000, |world| world.primary().is_some());
        world.seats[0].cut_off = true;
        world.run(10_000);
        assert_eq!(world.primary().is_some(), goes_on, "alone: {is_alone}");
        world.seats[0].cut_off = false;
        world.until(20_000, |world| world.primary().is_some());
    }
}
