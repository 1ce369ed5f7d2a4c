//! Deliberate protocol bugs: the simulator must see each of them.

use millpond_sim::Mutation;

use crate::failures;

/// Seeds tried when the one below no longer shows the bug: the schedule behind a seed moves with
/// every change of the protocol or of the simulator.
const SEARCH: u64 = 8000;

/// A seed that shows each bug (`millpond-sim --mutation all --seeds 8000` finds others).
const SEEN_BY: &[(Mutation, u64)] = &[
    (Mutation::SkipTailQuery, 0x1),
    (Mutation::ReadPending, 0x3),
    (Mutation::ReadWithoutLease, 0x6e),
    (Mutation::LeaseFromAnswer, 0xe38),
    (Mutation::IgnorePeerGrant, 0x8e),
    (Mutation::IgnoreChainVersion, 0xc5),
    (Mutation::CommitBeforeForward, 0x0),
    (Mutation::CommitBeforeReady, 0x81),
    (Mutation::AckBeforeTail, 0x0),
    (Mutation::NoDedup, 0x0),
    (Mutation::NoDedupHandover, 0x17),
    (Mutation::ForgetPending, 0x0),
    (Mutation::TrustInherited, 0x512),
    (Mutation::SyncingIsTail, 0x64),
    (Mutation::SyncingMissesWrites, 0x0),
    (Mutation::ResyncSkipsLocked, 0x17),
    (Mutation::ResyncIgnoresExpect, 0x1d4e),
    (Mutation::UpToDateAfterGap, 0x494),
    (Mutation::ForgetTombstone, 0x1),
    (Mutation::StageNotDurable, 0x1),
    (Mutation::LastServingDropsStaged, 0x3),
    (Mutation::ServeAfterRestart, 0x3c),
    (Mutation::SkipJoin, 0x1305),
    (Mutation::SkipChecksum, 0x0),
];

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
