//! The target-state table (DESIGN section 5): the manager's decisions from the nodes' reports.
//!
//! | public | local ONLINE or UPTODATE | local OFFLINE |
//! |---|---|---|
//! | SERVING | SERVING | LASTSRV if it was the last serving one, else OFFLINE |
//! | LASTSRV | SERVING | LASTSRV |
//! | SYNCING | SERVING if UPTODATE; stays if ONLINE and another serves; else WAITING | OFFLINE |
//! | WAITING | SYNCING when some target serves and none is syncing; else WAITING | OFFLINE |
//! | OFFLINE | as WAITING | OFFLINE |
//!
//! Rows are applied to all members of a chain at once. Further rules, for cases that the table
//! leaves open:
//!
//! - *UPTODATE is a statement about one version of the chain.* A report made at an older version
//!   counts as ONLINE: a target that lost its place and syncs again must not be promoted by a
//!   message from its last attempt.
//! - *Promotion comes before loss.* A target that is up to date at this version has passed on every
//!   acknowledged write. So when its predecessors vanish in the same step it serves alone, and none
//!   of them is the last serving one.
//! - *When all serving targets vanish at once, the first in the order is remembered.* Every write
//!   passes the head first, so it holds every version that any of them acknowledged or showed to a
//!   reader.

use millpond_types::cluster::{Chain, ChainTarget, ChainVersion, LocalState, TargetState};

/// A node's report about one of its targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its state, OFFLINE when the node is gone.
    pub local: LocalState,
    /// The version of the chain that the node knew at the report.
    pub at: ChainVersion,
}

impl Report {
    /// The target is unreachable.
    pub const OFFLINE: Self = Self { local: LocalState::Offline, at: ChainVersion(0) };
    /// The target works; its data is unknown.
    pub const ONLINE: Self = Self { local: LocalState::Online, at: ChainVersion(0) };
}

/// The chain that follows from `chain` when its targets are as `reports` says, one report per
/// target in the chain's order. `None` when nothing changes.
///
/// Total: a chain that no sequence of steps produces (two SYNCING, a LASTSRV beside a SERVING) is
/// led back to one that holds the invariants, and no target that might lack data is promoted.
///
/// # Panics
/// When the numbers of targets and reports differ, or the version is exhausted.
#[must_use]
pub fn next_chain(chain: &Chain, reports: &[Report]) -> Option<Chain> {
    assert_eq!(chain.targets.len(), reports.len(), "one report per target");
    let states = next_states(chain, reports);
    let mut targets: Vec<ChainTarget> = chain
        .targets
        .iter()
        .zip(&states)
        .map(|(member, state)| ChainTarget { state: *state, ..*member })
        .collect();
    // Stable, so that promotion puts a target behind those that served before.
    targets.sort_by_key(|member| {
        let before = chain.targets.iter().find(|old| old.target == member.target);
        rank(member.state, before.map(|old| old.state))
    });
    if targets == chain.targets {
        return None;
    }
    let version = chain.version.0.checked_add(1).expect("a chain changes less than 2^32 times");
    Some(Chain { id: chain.id, version: ChainVersion(version), targets })
}

/// Order of targets: serving ones in their order, then those that join them, then the syncing one,
/// then the rest.
fn rank(now: TargetState, before: Option<TargetState>) -> u8 {
    match (now, before) {
        (TargetState::Serving, Some(TargetState::Serving)) => 0,
        (TargetState::Serving, _) => 1,
        (TargetState::Syncing, _) => 2,
        _ => 3,
    }
}

fn next_states(chain: &Chain, reports: &[Report]) -> Vec<TargetState> {
    let members: Vec<(TargetState, LocalState)> = chain
        .targets
        .iter()
        .zip(reports)
        .map(|(member, report)| (member.state, heard(chain.version, *report)))
        .collect();
    let serves = members.iter().any(|(public, _)| *public == TargetState::Serving);
    let mut next: Vec<TargetState> =
        members.iter().map(|(public, local)| keep(*public, *local, serves)).collect();
    if !next.contains(&TargetState::Serving) {
        remember_last(&members, &mut next);
    }
    start_sync(&mut next);
    next
}

/// A report as it counts at `version`.
fn heard(version: ChainVersion, report: Report) -> LocalState {
    match report.local {
        LocalState::UpToDate if report.at != version => LocalState::Online,
        local => local,
    }
}

/// The next state of one target, before the serving targets are known.
fn keep(public: TargetState, local: LocalState, serves: bool) -> TargetState {
    match (public, local) {
        (_, LocalState::Offline) => TargetState::Offline,
        (TargetState::Serving, _) => TargetState::Serving,
        (TargetState::Syncing, LocalState::UpToDate) if serves => TargetState::Serving,
        // Without a source it waits; `start_sync` decides whether one is left.
        (TargetState::Syncing, _) if serves => TargetState::Syncing,
        _ => TargetState::Waiting,
    }
}

/// With no serving target left, the last one that served comes back, or is remembered.
fn remember_last(members: &[(TargetState, LocalState)], next: &mut [TargetState]) {
    let was = |state| members.iter().position(|(public, _)| *public == state);
    // SERVING goes first: a LASTSRV beside it could only be older.
    let Some(last) = was(TargetState::Serving).or_else(|| was(TargetState::LastServing)) else {
        return;
    };
    next[last] = match members[last].1 {
        LocalState::Offline => TargetState::LastServing,
        LocalState::Online | LocalState::UpToDate => TargetState::Serving,
    };
}

/// At most one target syncs, and only while another one serves.
fn start_sync(next: &mut [TargetState]) {
    let serves = next.contains(&TargetState::Serving);
    let keeps = next.iter().position(|state| *state == TargetState::Syncing);
    let waits = next.iter().position(|state| *state == TargetState::Waiting);
    let syncing = keeps.or(waits).filter(|_| serves);
    for (i, state) in next.iter_mut().enumerate() {
        if matches!(state, TargetState::Syncing | TargetState::Waiting) {
            let syncs = Some(i) == syncing;
            *state = if syncs { TargetState::Syncing } else { TargetState::Waiting };
        }
    }
}

#[cfg(test)]
mod tests;
