//! Seeds that must hold.

use crate::failures;

/// Seeds of every CI run; `make sim SEEDS=100000` runs the rest.
const SEEDS: u64 = 400;

/// Seeds that once found a bug, with its description (`docs/replication.md`). The schedule of a
/// seed changes with every change of the simulator, so each bug also has a test of its own.
const ONCE_FAILED: [u64; 14] = [
    68,          // a late copy of a Remove that had been answered "not found" deleted a newer chunk
    484,         // the same, at a single replica
    756,         // the same, across a change of the chain
    1196,        // the same, with two chains
    886,         // a stopped replica was never opened again
    2242,        // the same, after all faults had ended
    0xf9932,     // a version that was shown was lost with the tail: the head had not stored it yet
    0x155,       // a head that was cut off answered "not found"
    0x728,       // the same
    0x001e_9b20, // a new tail denied a version that the old one had shown
    0x5224,      // a stopping node revoked its report when a lease came late
    0x1e92,      // an old heartbeat took a serving target from a node, at a new primary
    0xeca7,      // the disk of a node that had been cut off for long was never used again
    0x006b_0db9, // a drained replica read again after the drain, in the version it knew
];

fn hold(seeds: &[u64]) {
    let failed = failures(seeds, None);
    let text: Vec<String> = failed
        .iter()
        .map(|o| format!("make sim SEED={:#x}: {}", o.seed, o.failure.as_deref().unwrap()))
        .collect();
    assert!(failed.is_empty(), "{}", text.join("\n"));
}

#[test]
fn seeds_hold() {
    hold(&(0..SEEDS).collect::<Vec<_>>());
}

#[test]
fn seeds_that_once_failed_hold() {
    hold(&ONCE_FAILED);
}
