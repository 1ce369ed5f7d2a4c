//! Changes of the chain: when a replica acts on a new version, and how it enters and leaves.
//!
//! A restarted replica has lost its knowledge of updates in flight, so it continues only after a
//! version in which it has no part. The chain has then noticed its absence, and either brings it up
//! to date (SYNCING) or relies on the data on its disk (LASTSRV). `SaveVersion` distinguishes such
//! versions from ones that were there before the crash.

use millpond_types::ChunkId;
use millpond_types::cluster::{Chain, TargetId, TargetState};

use crate::event::{Alarm, Effect, StoreOp, Turn};
use crate::message::{Answer, Meta, Outcome, Payload, PeerBody, Space};
use crate::mutation::mutated;
use crate::replica::{Job, Mode, Replica, resend_due};
use crate::slot::Pending;
use crate::view::View;

impl<P: Payload> Replica<P> {
    pub(crate) fn on_routing(&mut self, chain: Chain, turn: &mut Turn<'_, P>) {
        let newest = self.next.as_ref().map_or(self.view.version(), |next| next.version);
        if chain.id == self.identity.chain && chain.version > newest {
            self.next = Some(chain);
            self.try_adopt(turn);
        }
    }

    /// Acts on the newest version once nothing forbids it.
    pub(crate) fn try_adopt(&mut self, turn: &mut Turn<'_, P>) {
        if self.mode == Mode::Entering {
            self.enter(turn);
        }
        if self.mode == Mode::Entering || self.mode == Mode::Failed {
            return;
        }
        let Some(next) = &self.next else { return };
        if self.puts() {
            return;
        }
        let next = View::new(next.clone(), self.identity.target);
        #[cfg(feature = "mutations")]
        if mutated!(self, IgnorePeerGrant) {
            self.leases.forget_granted();
            self.silent_until = turn.now;
        }
        // A grant promises to act on no version without its holder. A restarted process may have
        // forgotten grants.
        if self.leases.forbids(&next, turn.now) {
            return;
        }
        if turn.now < self.silent_until && next.state() == Some(TargetState::Serving) {
            return;
        }
        self.next = None;
        self.adopt(next, turn);
    }

    /// Whether the store is making a version the committed one without a stage, as no other replica
    /// takes part in writes. A replica that joins must find it committed, or not at all.
    fn puts(&self) -> bool {
        self.slots.values().any(|slot| slot.pending.as_ref().is_some_and(Pending::is_put))
    }

    /// Adopts a newer version of the chain that waited for a put to end.
    pub(crate) fn adopt_after_put(&mut self, turn: &mut Turn<'_, P>) {
        if self.next.is_some() {
            self.try_adopt(turn);
        }
    }

    fn adopt(&mut self, next: View, turn: &mut Turn<'_, P>) {
        let before = std::mem::replace(&mut self.view, next);
        let in_sequence =
            self.view.version().0 == before.version().0 + 1 || mutated!(self, UpToDateAfterGap);
        self.leases.adopt(&self.view);
        match (self.mode, self.view.state()) {
            (Mode::Failed | Mode::Entering, _) => unreachable!("checked by the caller"),
            (Mode::Down, state) => self.look_for_notice(state, turn),
            (Mode::Serving { .. }, Some(TargetState::Serving)) => self.reconfigure(turn),
            (Mode::Syncing, Some(TargetState::Serving)) if self.sink.done => {
                let joined = self.view.predecessor().is_none();
                self.mode = Mode::Serving { joined };
                self.asked_join = None;
                self.reconfigure(turn);
                self.join_tick(turn);
            }
            (Mode::Syncing, Some(TargetState::Syncing)) if in_sequence => self.reconfigure(turn),
            (Mode::Idle, Some(TargetState::Serving)) => {
                // Only the last serving target comes back without a resync.
                let last = [Some(TargetState::LastServing), Some(TargetState::Serving)];
                if last.contains(&before.state()) {
                    self.mode = Mode::Entering;
                    self.enter(turn);
                } else {
                    self.fail(Alarm::Impossible(TargetState::Serving), turn);
                }
            }
            (Mode::Syncing, Some(TargetState::Serving)) => {
                self.fail(Alarm::Impossible(TargetState::Serving), turn);
            }
            (_, Some(TargetState::Syncing)) => {
                self.reset(turn);
                self.mode = Mode::Entering;
                self.enter(turn);
            }
            _ => {
                self.reset(turn);
                self.mode = Mode::Idle;
            }
        }
    }

    fn look_for_notice(&mut self, state: Option<TargetState>, turn: &mut Turn<'_, P>) {
        let writes = matches!(state, Some(TargetState::Serving | TargetState::Syncing));
        if writes && mutated!(self, ServeAfterRestart) {
            self.restarted = false;
            self.mode = if state == Some(TargetState::Serving) {
                Mode::Serving { joined: true }
            } else {
                Mode::Syncing
            };
            return self.reconfigure(turn);
        }
        if !writes && self.view.version() > self.identity.saved {
            self.mode = Mode::Idle;
        }
    }

    /// Applies a change of the chain around a replica that keeps its role.
    fn reconfigure(&mut self, turn: &mut Turn<'_, P>) {
        for reading in std::mem::take(&mut self.reads).into_values() {
            Self::refuse(reading.request, crate::message::Refusal::NotServing, turn);
        }
        self.space_below = Space::AMPLE;
        self.room_told = None;
        let new_tail = !self.was_tail && self.view.is_tail();
        self.was_tail = self.view.is_tail();
        self.source_restart(turn);
        self.resume_pendings(new_tail && !mutated!(self, TrustInherited), turn);
        self.mend_restart(turn);
    }

    /// Takes the steps from `Idle` to a role, each after the one before has ended.
    fn enter(&mut self, turn: &mut Turn<'_, P>) {
        // Stages of an earlier role may still change the disk until they have ended.
        let busy = |job: &Job| matches!(job, Job::SaveVersion | Job::Discard | Job::ListStaged);
        if !self.storing.is_empty() || self.jobs.values().any(busy) {
            return;
        }
        let version = self.view.version();
        if self.identity.saved < version {
            return self.store(Job::SaveVersion, StoreOp::SaveVersion(version), turn);
        }
        match self.view.state() {
            Some(TargetState::Serving) if !mutated!(self, LastServingDropsStaged) => {
                self.store(Job::ListStaged, StoreOp::ListStaged, turn);
            }
            _ => self.store(Job::Discard, StoreOp::DiscardStaged, turn),
        }
    }

    pub(crate) fn on_version_saved(&mut self, turn: &mut Turn<'_, P>) {
        self.identity.saved = self.view.version();
        self.try_adopt(turn);
    }

    /// Continues entering: no version is staged any more.
    pub(crate) fn on_discarded(&mut self, turn: &mut Turn<'_, P>) {
        if self.view.state() == Some(TargetState::Serving) {
            return self.on_staged_list(&[], turn);
        }
        // The source hands over its records of writers at the end.
        self.dedup.forget(self.view.version());
        self.restarted = false;
        self.mode = Mode::Syncing;
        self.reconfigure(turn);
        self.try_adopt(turn);
    }

    /// Commits all staged versions of the last serving target when it is back. Every acknowledged
    /// version is committed or staged here, and any staged one may have been acknowledged.
    pub(crate) fn on_staged_list(&mut self, staged: &[(ChunkId, Meta)], turn: &mut Turn<'_, P>) {
        if self.restarted {
            self.dedup.forget(self.view.version());
            self.restarted = false;
        }
        for (chunk, meta) in staged {
            turn.emit(Effect::Commit(*chunk, meta.version));
            let Meta { version, content, tag, .. } = *meta;
            let answer = Answer::Done(Outcome { chunk: *chunk, version, content });
            self.dedup.record(tag, answer, turn.now);
        }
        self.mode = Mode::Serving { joined: self.view.predecessor().is_none() };
        self.reconfigure(turn);
        self.try_adopt(turn);
    }

    /// Asks the predecessor to join. A promoted target answers reads only once its predecessor acts
    /// on the promotion: until then the predecessor, as the tail of the previous version, may
    /// report a version as not committed that this replica has committed.
    pub(crate) fn join_tick(&mut self, turn: &mut Turn<'_, P>) {
        if self.mode != (Mode::Serving { joined: false }) {
            return;
        }
        let Some(before) = self.view.predecessor() else {
            // The old tail has left the chain, which took until the end of its lease.
            self.mode = Mode::Serving { joined: true };
            return;
        };
        if resend_due(self.asked_join, turn.now) {
            self.asked_join = Some(turn.now);
            self.send(before, PeerBody::JoinAsk, turn);
        }
    }

    pub(crate) fn on_join_ask(&self, from: TargetId, turn: &mut Turn<'_, P>) {
        // A replica that has not joined itself cannot vouch for those before it.
        let joined = self.mode == Mode::Serving { joined: true };
        if joined && self.view.successor() == Some(from) {
            self.send(from, PeerBody::JoinAnswer, turn);
        }
    }

    pub(crate) fn on_join_answer(&mut self, from: TargetId) {
        if self.serving() && self.view.predecessor() == Some(from) {
            self.mode = Mode::Serving { joined: true };
        }
    }

    /// Renews the peer lease: while the manager is silent, reads rest on the grants of all others.
    pub(crate) fn lease_tick(&mut self, turn: &mut Turn<'_, P>) {
        let due = resend_due(self.asked_peers, turn.now);
        if !self.serving() || !due || !self.leases.must_ask_peers(turn.now, &self.view) {
            return;
        }
        self.asked_peers = Some(turn.now);
        for peer in self.view.holders() {
            self.send(peer, PeerBody::LeaseAsk { sent: turn.now }, turn);
        }
    }

    pub(crate) fn on_lease_ask(
        &mut self,
        from: TargetId,
        sent: millpond_types::Tick,
        turn: &mut Turn<'_, P>,
    ) {
        // Not once a newer version is known: grants must end before it can be acted on.
        if self.next.is_none() && self.view.serves(from) {
            self.leases.grant(from, turn.now);
            self.send(from, PeerBody::LeaseGrant { sent }, turn);
        }
    }
}
