//! A seed determines a run completely.

use millpond_sim::run;

#[test]
fn a_seed_replays_exactly() {
    for seed in [1, 2, 3, 0x5eed] {
        let first = run(seed, None, false);
        let again = run(seed, None, true);
        assert_eq!(first.trace_hash, again.trace_hash, "seed {seed:#x}");
        assert_eq!(first.stats.events, again.stats.events, "seed {seed:#x}");
        assert_ne!(first.trace_hash, run(seed + 100, None, false).trace_hash);
    }
}

#[test]
fn runs_do_what_they_are_for() {
    let mut total = millpond_sim::Stats::default();
    for seed in 0..40 {
        total.add(&run(seed, None, false).stats);
    }
    assert!(total.operations > 5_000, "clients work: {total:?}");
    assert!(total.faults > 300, "things go wrong: {total:?}");
    assert!(total.resyncs > 40, "targets come back: {total:?}");
    assert!(total.elsewhere > 200, "there are chain tables beside the first: {total:?}");
    assert!(total.unknown * 20 < total.operations, "outcomes are known: {total:?}");
    assert!(total.too_hard * 100 < 40, "histories are checked: {total:?}");
}
