//! Reports for operators.

use millpond_cluster::manager::{AdminAnswer, AdminCommand, ChainPage};
use millpond_types::SlotId;
use millpond_types::cluster::{ChainId, LocalState, SlotProgress, SlotsMoved, TargetState, Term};

use crate::world::{World, disk_id, node_id};

fn page(world: &mut World, after: ChainId, unhealthy: bool) -> ChainPage {
    match world.admin(AdminCommand::Chains { after, unhealthy }) {
        AdminAnswer::Chains(page) => page,
        other => panic!("{other:?}"),
    }
}

#[test]
fn chains_come_with_their_targets_and_slots() {
    let mut world = World::formed(1, 3, 2);
    world.run(1_000);
    let all = page(&mut world, ChainId::NONE, false);
    assert_eq!((all.chains.len(), all.next), (256, None));
    assert_eq!(all.chains.iter().map(|chain| chain.slots).sum::<usize>(), 65_536);
    let first = &all.chains[0];
    assert_eq!((first.id, first.targets.len(), first.moving), (ChainId(1), 2, None));
    assert!(first.targets.iter().all(|target| target.local == Some(LocalState::UpToDate)));
    assert_eq!(page(&mut world, ChainId(250), false).chains[0].id, ChainId(251));
    assert!(page(&mut world, ChainId(u32::MAX), false).chains.is_empty());
    assert!(page(&mut world, ChainId::NONE, true).chains.is_empty());
    let status = world.status();
    assert_eq!((status.term, status.targets.serving), (Term(1), 512));
}

#[test]
fn unhealthy_chains_are_those_of_the_node_that_is_gone() {
    let mut world = World::formed(1, 3, 2);
    let held = world.serving_on(3);
    world.kill(3);
    world.until(3_000, |world| world.serving_on(3) == 0);
    let ill = page(&mut world, ChainId::NONE, true);
    assert_eq!(ill.chains.len(), held);
    for chain in &ill.chains {
        let lost = chain.targets.last().unwrap();
        assert_eq!((lost.node, lost.state, lost.local), (node_id(3), TargetState::Offline, None));
    }
    let status = world.status();
    assert_eq!((status.targets.serving, status.targets.offline), (512 - held, held));
    assert_eq!(status.chains_degraded, held);
}

#[test]
fn moves_and_settings_are_told_while_they_are_under_way() {
    let mut world = World::formed(1, 4, 2);
    world.admin(AdminCommand::Set { name: "repair.after".to_owned(), value: "1h".to_owned() });
    let AdminAnswer::Config(config) = world.admin(AdminCommand::Config) else { panic!() };
    assert_eq!(config.values["repair.after"], "1h");
    let chain = world.stored_chains()[&ChainId(1)].clone();
    let holds = |n: u32| chain.targets.iter().any(|member| member.disk == disk_id(n));
    let to = disk_id((1..=4).find(|n| !holds(*n)).unwrap());
    let from = chain.targets[0].target;
    world.admin(AdminCommand::MoveTarget { chain: ChainId(1), from, to });
    let ill = page(&mut world, ChainId::NONE, true);
    let moving = ill.chains[0].moving.unwrap();
    assert_eq!((ill.chains.len(), moving.drop), (1, Some(from)));
    assert!(ill.chains[0].targets.iter().any(|m| m.target == moving.add && m.disk == to));
    world.until(60_000, |world| world.stored_chains()[&ChainId(1)].targets.len() == 2);
    let AdminAnswer::Slots(slots) = world.admin(AdminCommand::Slots) else { panic!() };
    assert!(slots.is_empty(), "{slots:?}");
}

fn slots(world: &mut World) -> Vec<(u16, Option<SlotProgress>)> {
    match world.admin(AdminCommand::Slots) {
        AdminAnswer::Slots(all) => {
            all.iter().map(|status| (status.slot.0, status.progress)).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_is_told_how_far_slots_are_and_when_they_will_be_there() {
    let mut world = World::formed(1, 3, 2);
    world.run(1_000);
    for n in 1..=3 {
        world.node(n).moved = Some(SlotsMoved { bytes: 1000 << 20, ..SlotsMoved::default() });
    }
    world.run(1_000);
    for slot in [7, 8] {
        let home = world.primary_manager().routing().unwrap().place(SlotId(slot)).chain;
        let to = ChainId(home.0 % 256 + 1);
        let answer = world.admin(AdminCommand::MoveSlot { slot: SlotId(slot), to });
        assert!(matches!(answer, AdminAnswer::Done(_)), "{answer:?}");
    }
    world.run(1_000);
    assert_eq!(slots(&mut world), [(7, None), (8, None)], "no node has said anything");
    assert_eq!(world.status().slots.seconds_left, None);
    // 10 thousandths and 1 MiB in a second; bytes copied before the move do not count for the pace.
    for second in 1..=20 {
        let moving = SlotProgress {
            slot: SlotId(7),
            chunks: second,
            bytes: second << 20,
            through: u16::try_from(second * 10).unwrap(),
        };
        let stale = SlotProgress { slot: SlotId(9), through: 1000, ..moving };
        let moved = SlotsMoved {
            chunks: 100 + second,
            bytes: (1000 + second) << 20,
            failures: 3,
            moving: vec![moving, stale],
        };
        world.node(2).moved = Some(moved);
        world.run(1_000);
    }
    let told = slots(&mut world);
    assert_eq!((told[0].0, told[0].1.unwrap().chunks, told[1]), (7, 20, (8, None)));
    let totals = world.status().slots;
    assert_eq!((totals.chunks, totals.bytes, totals.failures), (120, 3020 << 20, 3));
    assert!((900 << 10..1200 << 10).contains(&totals.bytes_per_second), "{totals:?}");
    let left = totals.seconds_left.unwrap();
    assert!((170..=200).contains(&left), "1800 thousandths are left, 10 go in a second: {left}");
    world.kill(2);
    world.until(10_000, |world| world.serving_on(2) == 0);
    assert_eq!(slots(&mut world), [(7, None), (8, None)], "nobody moves them");
    for n in [1, 3] {
        world.node(n).moved = None;
    }
    world.run(2_000);
    assert_eq!((slots(&mut world), world.status().slots.seconds_left), (Vec::new(), None));
}

#[test]
fn the_log_is_read_in_pages() {
    let mut world = World::formed(1, 3, 2);
    for n in 0..1_100 {
        let value = format!("{}s", n + 1);
        world.admin(AdminCommand::Set { name: "repair.after".to_owned(), value });
    }
    let (mut from, mut seen) = (0, 0);
    loop {
        let AdminAnswer::Events(events) = world.admin(AdminCommand::Events { from }) else {
            panic!()
        };
        assert!(events.len() <= 1_000);
        let Some(last) = events.last() else { break };
        (from, seen) = (last.number + 1, seen + events.len());
    }
    assert!(seen > 1_100, "{seen}");
}
