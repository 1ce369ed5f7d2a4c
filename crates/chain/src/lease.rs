//! Read leases: held from the manager or from all peers, and granted to peers.
//!
//! The holder counts from the moment it asked and stops 10 % early; the granter counts from the
//! moment it answered and stops 10 % late (`LEASE_SKEW_PERCENT`). Therefore only the rates of the
//! two clocks matter, never their settings. Leases as in Gray & Cheriton, SOSP 1989.

use std::collections::BTreeMap;
use std::time::Duration;

use millpond_types::Tick;
use millpond_types::cluster::{ChainVersion, TargetId};
use millpond_types::limits::{CHAIN_TICK_MS, LEASE_SKEW_PERCENT, NODE_LEASE_MS, PEER_LEASE_MS};

use crate::view::View;

/// Time for which a holder may use a lease of `ms` milliseconds.
const fn held(ms: u64) -> Duration {
    Duration::from_micros(ms * 10 * (100 - LEASE_SKEW_PERCENT) as u64)
}

/// Time for which a granter must honor a lease of `ms` milliseconds.
const fn given(ms: u64) -> Duration {
    Duration::from_micros(ms * 10 * (100 + LEASE_SKEW_PERCENT) as u64)
}

#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// The manager's lease, with the chain version it knew: the lease does not cover a version that
    /// the manager knows and this replica does not.
    manager: Option<(ChainVersion, Tick)>,
    manager_next: Option<(ChainVersion, Tick)>,
    peers: BTreeMap<TargetId, Tick>,
    granted: BTreeMap<TargetId, Tick>,
}

impl Leases {
    /// Records the manager's answer to a heartbeat sent at `sent`.
    pub(crate) fn manager_answered(&mut self, sent: Tick, version: ChainVersion, view: &View) {
        let lease = (version, sent.plus(held(NODE_LEASE_MS)));
        let place =
            if version > view.version() { &mut self.manager_next } else { &mut self.manager };
        if place.is_none_or(|(_, until)| until < lease.1) {
            *place = Some(lease);
        }
    }

    /// Records a peer's grant for the request sent at `sent`.
    pub(crate) fn peer_granted(&mut self, peer: TargetId, sent: Tick) {
        let until = sent.plus(held(PEER_LEASE_MS));
        let known = self.peers.entry(peer).or_insert(until);
        *known = (*known).max(until);
    }

    /// Switches to a new version of the chain.
    pub(crate) fn adopt(&mut self, view: &View) {
        if let Some(next) = self.manager_next.take_if(|(version, _)| *version <= view.version())
            && self.manager.is_none_or(|(_, until)| until < next.1)
        {
            self.manager = Some(next);
        }
        self.peers.retain(|peer, _| view.holders().contains(peer));
    }

    pub(crate) fn valid(&self, now: Tick, view: &View) -> bool {
        self.manager_valid(now) || self.peers_valid(now, view)
    }

    pub(crate) fn manager_valid(&self, now: Tick) -> bool {
        self.manager.is_some_and(|(_, until)| now < until)
    }

    /// Whether all peers' grants are valid. The syncing target counts as a peer: when it is up to
    /// date, the step that drops the last serving one promotes it. A target without any peer cannot
    /// be replaced.
    fn peers_valid(&self, now: Tick, view: &View) -> bool {
        let granted = |peer| self.peers.get(&peer).is_some_and(|until| now < *until);
        view.holders().into_iter().all(granted)
    }

    /// Whether to ask the peers, as the manager is silent and its lease ends soon.
    pub(crate) fn must_ask_peers(&self, now: Tick, view: &View) -> bool {
        let soon = now.plus(Duration::from_millis(NODE_LEASE_MS / 4));
        let peers_soon = now.plus(Duration::from_millis(6 * CHAIN_TICK_MS));
        !self.manager_valid(soon) && !self.peers_valid(peers_soon, view)
    }

    /// Promises `peer` to act on no chain version without it for a while.
    pub(crate) fn grant(&mut self, peer: TargetId, now: Tick) {
        self.granted.insert(peer, now.plus(given(PEER_LEASE_MS)));
    }

    /// Whether a grant to a target that does not serve in `next` is still valid.
    pub(crate) fn forbids(&mut self, next: &View, now: Tick) -> bool {
        self.granted.retain(|_, until| now < *until);
        self.granted.keys().any(|peer| !next.serves(*peer))
    }

    /// Time by which all grants of an earlier life of this process have ended.
    pub(crate) fn silence_until(start: Tick) -> Tick {
        start.plus(given(PEER_LEASE_MS))
    }

    /// Drops all held leases: the replica stopped serving.
    pub(crate) fn drop_held(&mut self) {
        self.manager = None;
        self.manager_next = None;
        self.peers.clear();
    }

    /// Deliberate bug: granted leases are forgotten.
    #[cfg(feature = "mutations")]
    pub(crate) fn forget_granted(&mut self) {
        self.granted.clear();
    }
}

#[cfg(test)]
mod tests {
    use millpond_types::cluster::{Chain, ChainTarget, DiskId, NodeId, TargetState};

    use super::*;

    fn view(version: u32, serving: &[u32]) -> View {
        let member = |n: &u32| ChainTarget {
            target: TargetId(*n),
            disk: DiskId::default(),
            node: NodeId::default(),
            state: TargetState::Serving,
        };
        let targets = serving.iter().map(member).collect();
        let version = ChainVersion(version);
        View::new(Chain { version, targets, ..Chain::default() }, TargetId(1))
    }

    fn ms(n: u64) -> Tick {
        Tick(n * 1000)
    }

    #[test]
    fn the_holder_stops_before_the_giver() {
        let both = view(1, &[1, 2]);
        let mut holder = Leases::default();
        let mut giver = Leases::default();
        giver.grant(TargetId(1), ms(0));
        holder.peer_granted(TargetId(2), ms(0));
        assert!(holder.valid(ms(899), &both));
        assert!(!holder.valid(ms(900), &both));
        let without = view(2, &[2]);
        assert!(giver.forbids(&without, ms(1099)));
        assert!(!giver.forbids(&without, ms(1100)));
    }

    #[test]
    fn a_lease_of_a_newer_chain_version_counts_once_that_version_is_acted_on() {
        let old = view(1, &[1, 2]);
        let mut leases = Leases::default();
        leases.manager_answered(ms(0), ChainVersion(2), &old);
        assert!(!leases.valid(ms(1), &old));
        let new = view(2, &[1, 2]);
        leases.adopt(&new);
        assert!(leases.valid(ms(1), &new));
        assert!(!leases.valid(ms(1800), &new));
    }

    #[test]
    fn a_peer_lease_needs_every_peer() {
        let three = view(1, &[1, 2, 3]);
        let mut leases = Leases::default();
        leases.peer_granted(TargetId(2), ms(0));
        assert!(!leases.valid(ms(1), &three));
        leases.peer_granted(TargetId(3), ms(0));
        assert!(leases.valid(ms(1), &three));
    }
}
