//! Registration, heartbeats and results of probes.

use std::collections::BTreeMap;

use millpond_types::cluster::{
    ChainId, DiskReport, DiskState, Grant, Heartbeat, HeartbeatAnswer, Incarnation, NodeId,
    NodeRecord, NodeState, Refusal, Register, RegisterAnswer, SlotsMoved, TargetId, TargetReport,
};
use millpond_types::ids::Uuid128;
use millpond_types::limits::{ADDRESSES_MAX, NODE_DISKS_MAX, NODES_MAX};
use millpond_types::units::Tick;

use super::Cx;
use super::event::{Effect, ProbeOutcome, Session};
use super::mutation::mutated;
use super::primary::{Job, Primary, says_new};
use crate::moves::retiring;

/// Time after which a node asks again during a probe.
const RETRY_MS: u32 = 200;
/// Longest host name or domain in bytes.
const NAME_BYTES_MAX: usize = 200;

impl Primary {
    pub(super) fn register(&mut self, cx: &mut Cx<'_>, from: Session, register: Register) {
        let answer = match self.admit(cx, &register) {
            Ok(()) => {
                self.jobs.push_back(Job::Register(from, Box::new(register)));
                return;
            }
            Err(answer) => answer,
        };
        cx.effects.push(Effect::Registered { to: from, answer });
    }

    /// Refuses an inadmissible registration before it costs a transaction.
    fn admit(&mut self, cx: &mut Cx<'_>, register: &Register) -> Result<(), RegisterAnswer> {
        let refuse = |refusal| Err(RegisterAnswer::Refused(refusal));
        if let Err(field) = check(register, self.state.nodes.len()) {
            return refuse(Refusal::Field(field.to_owned()));
        }
        if register.protocol != cx.options.protocol {
            let (ours, theirs) = (cx.options.protocol, register.protocol);
            return refuse(Refusal::Protocol { ours, theirs });
        }
        let ours = self.state.cluster.cluster;
        if ours == Uuid128::NIL {
            // The cluster is being founded.
            return Err(RegisterAnswer::Retry { after_ms: RETRY_MS });
        }
        if register.cluster != Uuid128::NIL && register.cluster != ours {
            return refuse(Refusal::Cluster { ours, theirs: register.cluster });
        }
        self.contend(cx, register)?;
        for disk in &register.disks {
            if let Some(refusal) = self.disk_elsewhere(register.node, disk.id) {
                return refuse(refusal);
            }
        }
        Ok(())
    }

    /// Makes sure that another process with this identity is gone before a new one is admitted.
    fn contend(&mut self, cx: &mut Cx<'_>, register: &Register) -> Result<(), RegisterAnswer> {
        let node = register.node;
        let Some(record) = self.state.nodes.get(&node) else { return Ok(()) };
        let Some(live) = self.nodes.live.get_mut(&node) else { return Ok(()) };
        if record.incarnation == register.incarnation || !live.is_up() {
            return Ok(());
        }
        let since = match live.contender {
            Some((contender, since)) if contender == register.incarnation => since,
            _ => cx.now,
        };
        live.contender = Some((register.incarnation, since));
        let shown = |at: Option<Tick>| at.is_some_and(|at| at > since);
        if shown(live.heard) || shown(live.found) {
            return Err(RegisterAnswer::Refused(Refusal::Running {
                node,
                host: record.host.clone(),
                addresses: record.addresses.join(", "),
            }));
        }
        self.probe(cx, node);
        Err(RegisterAnswer::Retry { after_ms: RETRY_MS })
    }

    /// A disk that was moved to another server is admitted, unless its old server still has it.
    fn disk_elsewhere(
        &self,
        node: NodeId,
        disk: millpond_types::cluster::DiskId,
    ) -> Option<Refusal> {
        let owner = self.state.disks.get(&disk)?.node;
        let live = self.nodes.live.get(&owner)?;
        let has = live.heard.is_none() || live.disks.contains_key(&disk);
        if owner == node || !live.is_up() || !has {
            return None;
        }
        let host = self.state.nodes.get(&owner).map(|record| record.host.clone());
        Some(Refusal::DiskElsewhere { disk, node: owner, host: host.unwrap_or_default() })
    }

    pub(super) fn heartbeat(&mut self, cx: &mut Cx<'_>, from: Session, heartbeat: Heartbeat) {
        let number = heartbeat.number;
        let answer = match self.hear(cx, heartbeat) {
            Some(Ok(grant)) => HeartbeatAnswer::Granted(grant),
            Some(Err(why)) => HeartbeatAnswer::Refused { number, why },
            // It came late; the newer one was answered.
            None => return,
        };
        cx.effects.push(Effect::Beat { to: from, answer });
    }

    fn hear(&mut self, cx: &mut Cx<'_>, heartbeat: Heartbeat) -> Option<Result<Grant, Refusal>> {
        let (node, number) = (heartbeat.node, heartbeat.number);
        let record = self.state.nodes.get(&node);
        let (Some(record), Some(live)) = (record, self.nodes.live.get_mut(&node)) else {
            return Some(Err(Refusal::Unregistered));
        };
        if record.incarnation != heartbeat.incarnation {
            return Some(Err(if live.previous == Some(heartbeat.incarnation) {
                Refusal::Superseded { node, host: record.host.clone() }
            } else {
                Refusal::Unregistered
            }));
        }
        if live.heard.is_some() && number <= live.number {
            return None;
        }
        let first = live.heard.is_none();
        let missing = |disk: &DiskReport| {
            let record = self.state.disks.get(&disk.disk);
            disk.healthy
                && record.is_some_and(|kept| kept.node == node && kept.state == DiskState::Missing)
        };
        if (live.down.is_some() || first) && heartbeat.disks.iter().any(missing) {
            // It was away for so long that a disk was given up. The disk takes data again once the
            // node has registered.
            return Some(Err(Refusal::Unregistered));
        }
        let back = live.down.take().is_some() || first;
        live.heard = Some(cx.now);
        live.number = number;
        live.lease_until = cx.now.plus(cx.options.node_lease + cx.options.margin);
        live.queue_depth = heartbeat.queue_depth;
        if back {
            live.given_up.clear();
        }
        if heartbeat.routing < live.since {
            live.routing = heartbeat.routing;
            return Some(Ok(self.grant(cx, node, number)));
        }
        let all = back
            || live.routing < live.since
            || live.stopping != heartbeat.stopping
            || heartbeat.disks.iter().any(|disk| {
                live.disks.get(&disk.disk).is_none_or(|before| before.healthy != disk.healthy)
            });
        live.stopping = heartbeat.stopping;
        let knew = std::mem::replace(&mut live.routing, heartbeat.routing);
        live.config = heartbeat.config;
        live.failing
            .retain(|id, _| heartbeat.disks.iter().any(|disk| disk.disk == *id && !disk.healthy));
        for disk in heartbeat.disks.iter().filter(|disk| !disk.healthy) {
            live.failing.entry(disk.disk).or_insert(cx.now);
        }
        live.disks = heartbeat.disks.iter().map(|disk| (disk.disk, *disk)).collect();
        let reports: BTreeMap<TargetId, TargetReport> =
            heartbeat.targets.into_iter().map(|report| (report.target, report)).collect();
        let told = reports.values().filter(|now| says_new(live.reports.get(&now.target), now));
        let missing = live.reports.values().filter(|was| !reports.contains_key(&was.target));
        let mut changed: Vec<ChainId> = told.chain(missing).map(|report| report.chain).collect();
        live.reports = reports;
        // Missing reports count once it has the routing that names the targets.
        let changed_at = &self.nodes.changed_at;
        let news = |id: &ChainId| all || changed_at.get(id).is_some_and(|at| *at > knew);
        if all || knew != heartbeat.routing {
            changed.extend(self.state.chains_of(node).filter(news));
        }
        self.dirty.extend(changed.into_iter().filter(|id| self.state.chains.contains_key(id)));
        if !heartbeat.slots_done.is_empty() {
            self.jobs.push_back(Job::SlotsDone(heartbeat.slots_done));
        }
        self.hear_of_slots(cx, (node, first), heartbeat.slots_moved);
        let quotas = self.hear_quotas(node, heartbeat.routing, &heartbeat.quotas);
        Some(Ok(Grant { quotas, ..self.grant(cx, node, number) }))
    }

    /// Notes a node's progress of slots, from its `first` heartbeat or a later one.
    fn hear_of_slots(&mut self, cx: &Cx<'_>, (node, first): (NodeId, bool), moved: SlotsMoved) {
        let Some(live) = self.nodes.live.get_mut(&node) else { return };
        let bytes = moved.bytes;
        let before = std::mem::replace(&mut live.slots_moved, moved);
        // Bytes copied before the first heartbeat do not count for the pace.
        self.pace.copied(if first { 0 } else { bytes.saturating_sub(before.bytes) });
        if self.pace.is_due(cx.now) {
            let some = !self.state.slots_moving.is_empty();
            let through = some.then(|| Self::through(&self.slots_reported()));
            self.pace.look(cx.now, through);
        }
    }

    /// A lease, or none for a node that has yet to learn of targets taken from it.
    fn grant(&self, cx: &Cx<'_>, node: NodeId, number: u64) -> Grant {
        let live = &self.nodes.live[&node];
        let stale = mutated!(cx.options, GrantStaleRouting);
        let fenced = live.routing < live.fence && !stale || live.stopping;
        let lease_ms = if fenced { 0 } else { cx.options.node_lease.as_millis() };
        let config = &self.state.config;
        Grant {
            number,
            lease_ms: u32::try_from(lease_ms).unwrap_or(u32::MAX),
            routing: if stale { live.routing } else { self.state.head.routing },
            config: (live.config != config.version).then(|| config.clone()),
            retire: self
                .state
                .moving
                .iter()
                .filter_map(|id| retiring(self.state.chains.get(id)?))
                .filter(|member| member.node == node)
                .map(|member| member.target)
                .collect(),
            quotas: Vec::new(),
        }
    }

    pub(super) fn probed(
        &mut self,
        cx: &mut Cx<'_>,
        node: NodeId,
        incarnation: Incarnation,
        outcome: ProbeOutcome,
    ) {
        let registered = self.state.nodes.get(&node).map(|record| record.incarnation);
        let Some(live) = self.nodes.live.get_mut(&node) else { return };
        let Some(probed) = live.probed.filter(|_| registered == Some(incarnation)) else { return };
        let gone = match outcome {
            ProbeOutcome::Alive(found) if found == incarnation => {
                live.found = Some(cx.now);
                false
            }
            // Another process listens at its address: a port has one owner.
            ProbeOutcome::Alive(_) | ProbeOutcome::Gone => true,
            ProbeOutcome::Unknown => mutated!(cx.options, SilenceIsDeath),
        };
        // A heartbeat received after the probe was sent overrides it.
        if gone && live.heard.is_none_or(|heard| heard <= probed) {
            self.take_for_gone(cx, node, "its process has ended");
        }
    }
}

fn check(register: &Register, nodes: usize) -> Result<(), &'static str> {
    let named = |text: &str| text.len() <= NAME_BYTES_MAX;
    if register.node.0 == Uuid128::NIL {
        return Err("node identity");
    }
    if register.addresses.is_empty()
        || register.addresses.len() > ADDRESSES_MAX
        || !register.addresses.iter().all(|address| !address.is_empty() && named(address))
    {
        return Err("addresses");
    }
    if !named(&register.host) || !named(&register.build) {
        return Err("host");
    }
    if !named(&register.domain) {
        return Err("failure domain");
    }
    if register.disks.len() > NODE_DISKS_MAX {
        return Err("disks");
    }
    if nodes >= NODES_MAX {
        return Err("number of nodes");
    }
    Ok(())
}

/// The record of a node that registers; the operator's settings stay.
pub(super) fn record_of(register: &Register, state: NodeState) -> NodeRecord {
    NodeRecord {
        id: register.node,
        incarnation: register.incarnation,
        addresses: register.addresses.clone(),
        host: register.host.clone(),
        domain: register.domain.clone(),
        build: register.build.clone(),
        protocol: register.protocol,
        state,
        meta: register.meta,
    }
}
