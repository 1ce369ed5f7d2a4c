//! Reports for operators: a summary of the cluster, and chain by chain.

use std::collections::BTreeMap;

use millpond_types::cluster::{
    ChainId, ChainRecord, ChainTarget, DiskRecord, NodeRecord, SlotProgress,
};
use millpond_types::ids::SlotId;
use millpond_types::units::Tick;

use super::Cx;
use super::commit::plan_disks;
use super::primary::{Live, Primary};
use super::settings::Rules;
use super::state::{domain_name, is_serving};
use super::status::{
    ChainPage, ChainStatus, DiskStatus, NodeStatus, Problem, SlotStatus, SlotTotals, Status,
    TargetStatus,
};

/// Chains in one page: about 300 KiB as JSON.
const PAGE_CHAINS: usize = 500;

impl Primary {
    pub(super) fn status(&self, cx: &Cx<'_>) -> Status {
        let state = &self.state;
        let disks = plan_disks(state);
        let view = state.plan_view(&disks, cx.options);
        let mut status = Status {
            cluster: state.cluster.cluster,
            term: self.lease.term(),
            primary: cx.options.addresses.clone(),
            routing: state.head.routing,
            config: state.config.version,
            replicas: state.cluster.replicas,
            more: state.cluster.more,
            progress: self.planner.progress(&view),
            paused: Rules::of(&state.config).paused,
            subscribers: self.publisher.subscribers(),
            nodes: state.nodes.values().map(|node| self.node_status(node, cx.now)).collect(),
            disks: state.disks.values().map(|disk| self.disk_status(disk)).collect(),
            ..Status::default()
        };
        for record in state.chains.values() {
            let serving = record.chain.serving().count();
            let wanted = state.cluster.replicas_of(record.chain.id.table());
            let whole = serving >= usize::from(wanted);
            let place = match (serving, whole) {
                (0, _) => &mut status.chains_down,
                (_, true) => &mut status.chains_whole,
                (_, false) => &mut status.chains_degraded,
            };
            *place += 1;
            for member in &record.chain.targets {
                status.targets.add(member.state);
            }
        }
        let reports = self.nodes.live.values().flat_map(|live| live.reports.values());
        status.behind_bytes = reports.map(|report| report.behind_bytes).sum();
        status.slots = self.slot_totals(&status);
        status.problems = self.problems(&status);
        status
    }

    fn node_status(&self, node: &NodeRecord, now: Tick) -> NodeStatus {
        let unknown = Live::default();
        let live = self.nodes.live.get(&node.id).unwrap_or(&unknown);
        let targets = self.state.chains_of(node.id).map(|id| {
            let members = &self.state.chains[&id].chain.targets;
            members.iter().filter(|member| member.node == node.id).count()
        });
        let silent = live.heard.map(|heard| now.since(heard).as_millis());
        NodeStatus {
            id: node.id,
            host: node.host.clone(),
            addresses: node.addresses.clone(),
            domain: domain_name(node),
            build: node.build.clone(),
            alive: live.is_up(),
            silent_ms: silent.and_then(|ms| u64::try_from(ms).ok()),
            state: node.state,
            routing: live.routing,
            config: live.config,
            queue_depth: live.queue_depth,
            targets: targets.sum(),
        }
    }

    fn disk_status(&self, disk: &DiskRecord) -> DiskStatus {
        let live = self.nodes.live.get(&disk.node).filter(|live| live.is_up());
        let report = live.and_then(|live| live.disks.get(&disk.id));
        let targets = self.state.chains_of(disk.node).map(|id| {
            let members = &self.state.chains[&id].chain.targets;
            members.iter().filter(|member| member.disk == disk.id).count()
        });
        DiskStatus {
            id: disk.id,
            node: disk.node,
            capacity_bytes: disk.capacity_bytes,
            used_bytes: report.map_or(0, |report| report.used_bytes),
            healthy: report.is_some_and(|report| report.healthy),
            state: disk.state,
            targets: targets.sum(),
        }
    }

    fn problems(&self, status: &Status) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut problem = |what: String, advice: &str| {
            problems.push(Problem { what, advice: advice.to_owned() });
        };
        if status.chains_down > 0 {
            problem(
                format!("{} chains have no serving replica", status.chains_down),
                "start the nodes named in 'millpond admin events': only they have the newest data",
            );
        }
        for node in status.nodes.iter().filter(|node| !node.alive) {
            let advice = if node.targets == 0 {
                "it holds no data: start it, or run 'millpond admin remove'"
            } else {
                "start it, or replace it: its data is rebuilt after 'repair.after'"
            };
            problem(format!("node {} on host '{}' is gone", node.id, node.host), advice);
        }
        for disk in status.disks.iter().filter(|disk| !disk.healthy && disk.targets > 0) {
            let alive = status.nodes.iter().any(|node| node.id == disk.node && node.alive);
            if alive {
                problem(
                    format!("disk {} of node {} is failing", disk.id, disk.node),
                    "replace it; 'millpond admin lose DISK' rebuilds its data at once",
                );
            }
        }
        if let Some(blocked) = self.planner.blocked() {
            problem(format!("data cannot be placed: {blocked}"), "add nodes or end a drain");
        }
        if status.replicas == 0 {
            problem(
                "the cluster has no chains yet".to_owned(),
                "start enough nodes, then 'millpond admin form --replicas N'",
            );
        }
        if status.chains_degraded > 0 {
            problem(
                format!("{} chains serve with fewer replicas than wanted", status.chains_degraded),
                "wait while 'syncing' goes down; otherwise check the nodes and disks above",
            );
        }
        if status.paused {
            problem("moves are paused".to_owned(), "'millpond admin resume' continues them");
        }
        problems
    }

    /// The next page of chains.
    pub(super) fn chain_page(&self, after: ChainId, unhealthy: bool) -> ChainPage {
        let all = self.state.chains.range(ChainId(after.0.saturating_add(1))..);
        let mut wanted = all.map(|(_, record)| record).filter(|record| {
            let whole = record.chain.targets.iter().all(|member| is_serving(member.state));
            !unhealthy || !whole || record.moving.is_some()
        });
        let records: Vec<&ChainRecord> = wanted.by_ref().take(PAGE_CHAINS).collect();
        let last = records.last().map(|record| record.chain.id);
        let mut slots: BTreeMap<ChainId, usize> = BTreeMap::new();
        for place in &self.state.slots {
            *slots.entry(place.chain).or_default() += 1;
        }
        let status = |record: &ChainRecord| ChainStatus {
            id: record.chain.id,
            version: record.chain.version,
            targets: record.chain.targets.iter().map(|member| self.target(member)).collect(),
            moving: record.moving,
            slots: slots.get(&record.chain.id).copied().unwrap_or(0),
        };
        ChainPage {
            chains: records.into_iter().map(status).collect(),
            next: last.filter(|_| wanted.next().is_some()),
        }
    }

    fn target(&self, member: &ChainTarget) -> TargetStatus {
        let live = self.nodes.live.get(&member.node).filter(|live| live.is_up());
        let report = live.and_then(|live| live.reports.get(&member.target));
        TargetStatus {
            target: member.target,
            disk: member.disk,
            node: member.node,
            state: member.state,
            local: report.map(|report| report.local),
            used_bytes: report.map_or(0, |report| report.used_bytes),
            behind_bytes: report.map_or(0, |report| report.behind_bytes),
        }
    }

    /// Totals of the living nodes' work on slot moves.
    fn slot_totals(&self, status: &Status) -> SlotTotals {
        let mut totals =
            SlotTotals { bytes_per_second: self.pace.bytes_per_second(), ..SlotTotals::default() };
        for live in self.nodes.live.values().filter(|live| live.is_up()) {
            totals.chunks += live.slots_moved.chunks;
            totals.bytes += live.slots_moved.bytes;
            totals.failures += live.slots_moved.failures;
        }
        let progress = status.progress;
        // Waiting slots do not start while paused.
        let held = status.paused && progress.slots_waiting > 0;
        let slots = progress.slots_running + progress.slots_waiting;
        if slots > 0 && !held {
            let through = Self::through(&self.slots_reported());
            let left = (slots as u64 * 1000).saturating_sub(through);
            totals.seconds_left = self.pace.seconds_for(left);
        }
        totals
    }

    /// Progress of the moving slots, as reported by the nodes that move them.
    pub(super) fn slots_reported(&self) -> BTreeMap<SlotId, SlotProgress> {
        let mut all: BTreeMap<SlotId, SlotProgress> = BTreeMap::new();
        let live = self.nodes.live.values().filter(|live| live.is_up());
        for told in live.flat_map(|live| &live.slots_moved.moving) {
            if !self.state.slots_moving.contains(&told.slot.0) {
                continue;
            }
            // Two heads may work on it for a moment: the earlier one has more progress.
            let most = all.entry(told.slot).or_insert(*told);
            if told.through > most.through {
                *most = *told;
            }
        }
        all
    }

    /// Sum of the slots' progress, in thousandths of a slot.
    pub(super) fn through(reported: &BTreeMap<SlotId, SlotProgress>) -> u64 {
        reported.values().map(|slot| u64::from(slot.through.min(1000))).sum()
    }

    /// The slots that move, in order.
    pub(super) fn slots_moving(&self) -> Vec<SlotStatus> {
        let reported = self.slots_reported();
        let moving = self.state.slots_moving.iter().filter_map(|slot| {
            let place = self.state.slots[usize::from(*slot)];
            let (slot, from, to) = (SlotId(*slot), place.old?, place.chain);
            Some(SlotStatus { slot, from, to, progress: reported.get(&slot).copied() })
        });
        moving.collect()
    }
}
