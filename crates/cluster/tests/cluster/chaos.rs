//! Any event in any order: `World` checks the promises after every event.

use millpond_cluster::manager::Manager;
use proptest::prelude::{ProptestConfig, Strategy, any, prop, prop_assert, prop_oneof, proptest};

use crate::world::{StoreMode, World, options};

#[derive(Clone, Debug)]
enum Act {
    Kill(u32),
    Restart(u32),
    CutOff(u32, bool),
    Stop(u32),
    FailDisk(u32, bool),
    Freeze(usize, bool),
    CutStore(usize, bool),
    NewManager(usize),
    Store(u8),
    Suspect(u32),
    Run(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => (1u32..5).prop_map(Act::Kill),
        3 => (1u32..5).prop_map(Act::Restart),
        4 => (1u32..5, any::<bool>()).prop_map(|(n, on)| Act::CutOff(n, on)),
        1 => (1u32..5).prop_map(Act::Stop),
        1 => (1u32..5, any::<bool>()).prop_map(|(n, on)| Act::FailDisk(n, on)),
        3 => (0usize..2, any::<bool>()).prop_map(|(n, on)| Act::Freeze(n, on)),
        2 => (0usize..2, any::<bool>()).prop_map(|(n, on)| Act::CutStore(n, on)),
        1 => (0usize..2).prop_map(Act::NewManager),
        2 => (0u8..4).prop_map(Act::Store),
        1 => (1u32..5).prop_map(Act::Suspect),
        8 => (25u64..4_000).prop_map(Act::Run),
    ]
}

fn perform(world: &mut World, act: &Act) {
    match act {
        Act::Kill(n) => world.kill(*n),
        Act::Restart(n) => world.restart(*n),
        Act::CutOff(n, on) => world.node(*n).cut_off = *on,
        Act::Stop(n) => world.node(*n).stopping = true,
        Act::FailDisk(n, on) => {
            let disk = crate::world::disk_id(*n);
            if *on {
                world.node(*n).bad_disks.insert(disk);
            } else {
                world.node(*n).bad_disks.clear();
            }
        }
        Act::Freeze(seat, on) => world.seats[*seat].frozen = *on,
        Act::CutStore(seat, on) => world.seats[*seat].cut_off = *on,
        Act::NewManager(seat) => {
            let seat_number = u32::try_from(*seat).unwrap();
            world.seats[*seat].manager = Manager::new(options(seat_number, None));
        }
        Act::Store(0) => world.store_mode = StoreMode::Fails,
        Act::Store(1) => world.store_mode = StoreMode::LosesAnswers,
        Act::Store(_) => world.store_mode = StoreMode::Works,
        Act::Suspect(n) => {
            if world.primary().is_some() {
                world.suspect(*n);
            }
        }
        Act::Run(ms) => world.run(*ms),
    }
}

/// `PROPTEST_CASES` raises the number of cases.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: cases.unwrap_or(40), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// No history lets a node answer reads of a chain that has continued without it, loses the last
    /// replica of a chain, or skips a version; and once all is healed every chain is whole.
    #[test]
    fn no_history_breaks_a_promise(acts in prop::collection::vec(act(), 1..30)) {
        let mut world = World::formed(2, 4, 2);
        for act in &acts {
            perform(&mut world, act);
        }
        world.store_mode = StoreMode::Works;
        for seat in &mut world.seats {
            (seat.frozen, seat.cut_off) = (false, false);
        }
        for n in 1..5 {
            let node = world.node(n);
            node.cut_off = false;
            node.bad_disks.clear();
            if !node.alive || node.stopping || node.refused.take().is_some() {
                world.restart(n);
            }
        }
        // A manager that still believes to be primary finds out, and a lease may have to run out.
        world.run(8_000);
        world.until(60_000, |world| world.is_whole(256, 2));
        world.run(3_000);
        let routing = world.primary_manager().routing().unwrap().clone();
        for node in world.nodes.values() {
            prop_assert!(node.routing == routing, "node {} has old routing", node.id);
            prop_assert!(node.lease_until > world.now);
        }
    }
}
