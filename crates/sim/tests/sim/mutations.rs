//! Deliberate protocol bugs: the simulator must see each of them.

use millpond_sim::Mutation;

use crate::failures;

/// Seeds tried when the one below no longer shows the bug: the schedule behind a seed moves with
/// every change of the protocol or of the simulator.
const SEARCH: u64 = 6000;

/// A seed that shows each bug (`millpond-sim --mutation all --seeds 6000` finds others).
const SEEN_BY: &[(Mutation, u64)] = &[];

#[test]
fn every_deliberate_bug_is_seen() {
    let mut missed = Vec::new();
    for mutation in Mutation::ALL {
        let pinned = SEEN_BY.iter().find(|(name, _)| *name == mutation).map(|(_, seed)| *seed);
        if pinned.is_some_and(|seed| !failures(&[seed], Some(mutation)).is_empty()) {
            continue;
        }
        let found = (0..SEARCH).step_by(200).find_map(|from| {
            let seeds: Vec<u64> = (from..from + 200).collect();
            failures(&seeds, Some(mutation)).first().map(|outcome| outcome.seed)
        });
        match found {
            Some(seed) => eprintln!("{mutation:?} is seen by seed {seed:#x} now: write it down"),
            None => missed.push(mutation),
        }
    }
    assert!(missed.is_empty(), "not seen in {SEARCH} seeds: {missed:?}");
}
