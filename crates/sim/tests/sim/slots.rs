//! Slots that move between chains (`docs/placement.md`).

use millpond_sim::{SlotFlaw, run_slots};

/// Seeds of every CI run.
const SEEDS: u64 = 2000;

#[test]
fn keys_of_a_moving_slot_stay_linearizable() {
    for seed in 0..SEEDS {
        if let Some(failure) = run_slots(seed, None) {
            panic!("seed {seed:#x}: {failure}");
        }
    }
}

#[test]
fn every_rule_of_a_move_is_needed() {
    for flaw in SlotFlaw::ALL {
        let seen = (0..5 * SEEDS).find(|seed| run_slots(*seed, Some(flaw)).is_some());
        let seen = seen.unwrap_or_else(|| panic!("{flaw:?} is not seen in {} seeds", 5 * SEEDS));
        println!("{flaw:?} is seen by seed {seen:#x}");
    }
}
