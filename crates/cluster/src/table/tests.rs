//! Every combination of public states, local states and freshness for chains of 1 to 4 targets.

use millpond_types::cluster::{
    Chain, ChainId, ChainTarget, ChainVersion, DiskId, LocalState, NodeId, TargetId, TargetState,
};

use super::{Report, next_chain};
use TargetState::{LastServing, Offline, Serving, Syncing, Waiting};

const STATES: [TargetState; 5] = [Serving, LastServing, Syncing, Waiting, Offline];
const VERSION: ChainVersion = ChainVersion(7);
/// Every report that differs in effect: UPTODATE counts only at this version.
const REPORTS: [Report; 4] = [
    Report { local: LocalState::UpToDate, at: VERSION },
    Report { local: LocalState::UpToDate, at: ChainVersion(6) },
    Report { local: LocalState::Online, at: VERSION },
    Report { local: LocalState::Offline, at: VERSION },
];

fn chain(states: &[TargetState]) -> Chain {
    let targets = states
        .iter()
        .zip(1..)
        .map(|(state, n)| ChainTarget {
            target: TargetId(n),
            disk: DiskId::default(),
            node: NodeId::default(),
            state: *state,
        })
        .collect();
    Chain { id: ChainId(1), version: VERSION, targets }
}

fn states(chain: &Chain) -> Vec<TargetState> {
    chain.targets.iter().map(|member| member.state).collect()
}

/// All words of `len` letters.
fn words<T: Copy>(letters: &[T], len: usize) -> Vec<Vec<T>> {
    (0..len).fold(vec![Vec::new()], |words, _| {
        words
            .into_iter()
            .flat_map(|word| letters.iter().map(move |letter| [&word[..], &[*letter]].concat()))
            .collect()
    })
}

fn for_all(mut check: impl FnMut(&Chain, &[Report])) -> usize {
    let mut cases = 0;
    for len in 1..=4 {
        let reports = words(&REPORTS, len);
        for public in words(&STATES, len) {
            let chain = chain(&public);
            for report in &reports {
                check(&chain, report);
                cases += 1;
            }
        }
    }
    cases
}

fn count(chain: &Chain, state: TargetState) -> usize {
    chain.targets.iter().filter(|member| member.state == state).count()
}

/// Invariants of every chain of a running cluster: the states that steps lead to.
fn is_sound(chain: &Chain) -> bool {
    let order: Vec<u8> = chain
        .targets
        .iter()
        .map(|member| match member.state {
            Serving => 0,
            Syncing => 1,
            _ => 2,
        })
        .collect();
    let (serving, last) = (count(chain, Serving), count(chain, LastServing));
    order.is_sorted()
        && count(chain, Syncing) <= usize::from(serving > 0)
        && last <= usize::from(serving == 0)
}

fn heard(report: Report) -> LocalState {
    match report {
        Report { local: LocalState::UpToDate, at } if at != VERSION => LocalState::Online,
        Report { local, .. } => local,
    }
}

/// The transitions of the table, written out independently of the code under test.
fn is_in_table(from: TargetState, to: TargetState, local: LocalState) -> bool {
    match (from, local) {
        (Serving, LocalState::Offline) => matches!(to, LastServing | Offline),
        (LastServing, LocalState::Offline) => to == LastServing,
        (_, LocalState::Offline) => to == Offline,
        (Serving | LastServing, _) | (Syncing, LocalState::UpToDate) => to == Serving,
        (Syncing, LocalState::Online) => matches!(to, Syncing | Waiting),
        (Waiting | Offline, _) => matches!(to, Syncing | Waiting),
    }
}

#[test]
fn every_combination_keeps_the_invariants() {
    let mut sound = 0;
    let cases = for_all(|before, reports| {
        let after = next_chain(before, reports).unwrap_or_else(|| before.clone());
        let context = || format!("{:?} {reports:?} -> {:?}", states(before), states(&after));

        assert!(is_sound(&after), "{}", context());
        let had = count(before, Serving) + count(before, LastServing) > 0;
        let has = count(&after, Serving) + count(&after, LastServing) > 0;
        assert_eq!(had, has, "data is remembered, and never invented: {}", context());

        let changed = after.targets != before.targets;
        assert_eq!(after.version.0, before.version.0 + u32::from(changed), "{}", context());
        let mut members: Vec<_> = after.targets.iter().map(|m| m.target).collect();
        members.sort_unstable();
        assert!(members.iter().map(|t| t.0).eq(1..=u32::try_from(reports.len()).unwrap()));
        sound += usize::from(is_sound(before));
    });
    assert_eq!(cases, 20 + 400 + 8_000 + 160_000);
    assert!(sound > 10_000, "{sound} of the cases start from a sound chain");
}

#[test]
fn no_transition_is_outside_the_table() {
    for_all(|before, reports| {
        if !is_sound(before) {
            return;
        }
        let after = next_chain(before, reports).unwrap_or_else(|| before.clone());
        for (member, report) in before.targets.iter().zip(reports) {
            let to = after.targets.iter().find(|m| m.target == member.target).unwrap().state;
            assert!(
                is_in_table(member.state, to, heard(*report)),
                "{:?} {reports:?}: {:?} became {to:?}",
                states(before),
                member.state
            );
        }
        let serves = count(&after, Serving) > 0;
        // The conditions of the cells that have one.
        for member in &after.targets {
            match member.state {
                Waiting => assert!(!serves || count(&after, Syncing) == 1, "a free place is used"),
                LastServing => assert!(!serves),
                _ => {}
            }
        }
    });
}

#[test]
fn the_order_is_kept_among_equals() {
    for_all(|before, reports| {
        let after = next_chain(before, reports).unwrap_or_else(|| before.clone());
        let was = |id: TargetId| before.targets.iter().position(|m| m.target == id).unwrap();
        let old = |id: TargetId| before.targets[was(id)].state;
        let kept = |want: &dyn Fn(TargetState, TargetState) -> bool| {
            let places: Vec<usize> = after
                .targets
                .iter()
                .filter(|m| want(old(m.target), m.state))
                .map(|m| was(m.target))
                .collect();
            places.is_sorted()
        };
        assert!(kept(&|from, to| from == Serving && to == Serving), "serving ones");
        assert!(kept(&|from, to| from != Serving && to == Serving), "promoted ones");
        assert!(kept(&|_, to| !matches!(to, Serving | Syncing)), "the rest");
        let first_promoted = after
            .targets
            .iter()
            .position(|m| m.state == Serving && old(m.target) != Serving)
            .unwrap_or(usize::MAX);
        let last_kept = after
            .targets
            .iter()
            .rposition(|m| m.state == Serving && old(m.target) == Serving)
            .unwrap_or(0);
        assert!(first_promoted >= last_kept, "a new one joins at the tail");
    });
}

/// With the same reports a chain comes to rest in one step: a report of an older version no longer
/// promotes.
#[test]
fn a_fixpoint_is_reached_in_one_step() {
    for_all(|before, reports| {
        let Some(after) = next_chain(before, reports) else { return };
        let moved: Vec<Report> = after
            .targets
            .iter()
            .map(|m| reports[before.targets.iter().position(|b| b.target == m.target).unwrap()])
            .collect();
        let again = next_chain(&after, &moved);
        assert_eq!(again, None, "{:?} {reports:?}", states(before));
    });
}

/// From every sound chain, targets that stay up and report it end up serving all together, if any
/// of them ever held data.
#[test]
fn progress_ends_with_all_serving() {
    for len in 1..=4 {
        for public in words(&STATES, len) {
            let mut chain = chain(&public);
            if !is_sound(&chain) || count(&chain, Serving) + count(&chain, LastServing) == 0 {
                continue;
            }
            for _ in 0..2 * len {
                let report = Report { local: LocalState::UpToDate, at: chain.version };
                let Some(next) = next_chain(&chain, &vec![report; len]) else { break };
                chain = next;
            }
            assert_eq!(count(&chain, Serving), len, "{public:?}");
        }
    }
}

#[test]
fn a_stale_word_of_being_up_to_date_does_not_promote() {
    let before = chain(&[Serving, Syncing]);
    let stale = Report { local: LocalState::UpToDate, at: ChainVersion(6) };
    assert_eq!(next_chain(&before, &[REPORTS[0], stale]), None);
    let fresh = next_chain(&before, &[REPORTS[0], REPORTS[0]]).unwrap();
    assert_eq!(states(&fresh), [Serving, Serving]);
}

#[test]
fn one_that_is_up_to_date_takes_over_when_the_others_vanish() {
    let after = next_chain(&chain(&[Serving, Syncing]), &[REPORTS[3], REPORTS[0]]).unwrap();
    assert_eq!(states(&after), [Serving, Offline]);
    assert_eq!(after.targets[0].target, TargetId(2));
    let both = next_chain(&chain(&[Serving, Serving]), &[REPORTS[3], REPORTS[3]]).unwrap();
    assert_eq!(states(&both), [LastServing, Offline]);
}
