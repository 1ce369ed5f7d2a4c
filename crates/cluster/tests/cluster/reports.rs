//! What operators are told.

use millpond_cluster::manager::{AdminAnswer, AdminCommand, ChainPage};
use millpond_types::cluster::{ChainId, LocalState, TargetState, Term};

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
