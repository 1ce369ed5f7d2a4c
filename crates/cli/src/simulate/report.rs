//! What a simulation found, as text and as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use millpond_cluster::placement::{Recovery, Spread};
use millpond_types::ByteSize;
use serde_json::{Value, json};

/// Everything found.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) nodes: u32,
    pub(super) disks: usize,
    pub(super) domains: u32,
    pub(super) replicas: u8,
    pub(super) chains: usize,
    pub(super) raw_bytes: u128,
    /// Data before replication, at the fill asked for.
    pub(super) data_bytes: u128,
    /// The part of all capacity that is in use when the fullest disk is full.
    pub(super) usable: f64,
    pub(super) balance: Balance,
    pub(super) recovery: Vec<Recovery>,
    pub(super) changes: Vec<Change>,
    pub(super) took: Duration,
}

/// How even a placement is.
#[derive(Debug)]
pub(super) struct Balance {
    /// Chains of each disk, in proportion to its capacity: 1 is its share.
    pub(super) chains: Spread,
    /// Chains of each disk.
    pub(super) counts: Spread,
    /// Fill of each disk in percent.
    pub(super) fill: Spread,
    /// Fill of every disk in percent, for the chart.
    pub(super) fills: Vec<f64>,
}

/// What one change of the fleet did.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) name: String,
    pub(super) disks: usize,
    /// For failures: who serves the reads.
    pub(super) recovery: Option<Recovery>,
    pub(super) replicas_moved: usize,
    pub(super) slots_moved: usize,
    pub(super) chains_added: usize,
    pub(super) moved_bytes: u128,
    /// What the disks that go hold, or the part of those that come: nothing could move less.
    pub(super) least_bytes: u128,
    pub(super) balance: Balance,
    pub(super) took: Duration,
}

impl Change {
    /// Moved against the least that could be.
    pub(super) fn ratio(&self) -> f64 {
        if self.least_bytes == 0 {
            1.0
        } else {
            as_f64(self.moved_bytes) / as_f64(self.least_bytes)
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown to three digits")]
pub(super) fn as_f64(bytes: u128) -> f64 {
    bytes as f64
}

fn size(bytes: u128) -> String {
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    if bytes >> 50 > 0 {
        format!("{:.2} PiB", as_f64(u128::from(bytes)) / f64::powi(2.0, 50))
    } else {
        ByteSize(bytes).to_string()
    }
}

/// Spread of the recoveries: peers, and the busiest peer's part.
pub(super) fn peers(recovery: &[Recovery]) -> (Spread, Spread) {
    #[expect(clippy::cast_precision_loss, reason = "numbers of disks")]
    let peers: Vec<f64> = recovery.iter().map(|found| found.peers as f64).collect();
    let shares: Vec<f64> = recovery.iter().map(|found| found.share_max * 100.0).collect();
    (Spread::of(&peers), Spread::of(&shares))
}

fn row(name: &str, spread: &Spread, digits: usize) -> Vec<String> {
    let number = |value: f64| format!("{value:.digits$}");
    vec![
        name.to_owned(),
        number(spread.min),
        number(spread.mean),
        number(spread.max),
        format!("{:.*}", digits + 1, spread.stddev),
    ]
}

impl Report {
    /// The report for people.
    pub(super) fn text(&self) -> String {
        let mut out = format!(
            "{} nodes, {} disks, {} failure domains; {} chains of {} replicas\n\
             {} raw; {} of data at this fill; {:.1} % of the capacity is usable before a disk is full\n\n",
            self.nodes,
            self.disks,
            self.domains,
            self.chains,
            self.replicas,
            size(self.raw_bytes),
            size(self.data_bytes),
            self.usable * 100.0,
        );
        let head = ["", "min", "mean", "max", "stddev"].map(str::to_owned).to_vec();
        let (peers, shares) = peers(&self.recovery);
        let rows = vec![
            head,
            row("chains per disk", &self.balance.counts, 0),
            row("  against its capacity", &self.balance.chains, 2),
            row("fill of a disk, %", &self.balance.fill, 1),
            row("disks that recover one", &peers, 0),
            row("  busiest one's part, %", &shares, 1),
        ];
        out.push_str(&super::super::output::table(&rows));
        if !self.changes.is_empty() {
            out.push('\n');
            out.push_str(&self.change_table());
        }
        let _ = writeln!(out, "\ntook {:.2} s", self.took.as_secs_f64());
        out
    }

    fn change_table(&self) -> String {
        let head = [
            "change",
            "disks",
            "chains lost",
            "read from",
            "busiest",
            "replicas moved",
            "slots moved",
            "moved",
            "least",
            "ratio",
            "fill after, %",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for change in &self.changes {
            let of = |text: &dyn Fn(&Recovery) -> String| {
                change.recovery.as_ref().map_or_else(|| "-".to_owned(), text)
            };
            rows.push(vec![
                change.name.clone(),
                change.disks.to_string(),
                of(&|found| found.chains_lost.to_string()),
                of(&|found| format!("{} disks", found.peers)),
                of(&|found| format!("{:.1} %", found.share_max * 100.0)),
                change.replicas_moved.to_string(),
                change.slots_moved.to_string(),
                size(change.moved_bytes),
                size(change.least_bytes),
                format!("{:.3}", change.ratio()),
                format!("{:.1} to {:.1}", change.balance.fill.min, change.balance.fill.max),
            ]);
        }
        super::super::output::table(&rows)
    }

    /// The report for programs.
    pub(super) fn json(&self) -> Value {
        let (peers, shares) = peers(&self.recovery);
        json!({
            "nodes": self.nodes,
            "disks": self.disks,
            "domains": self.domains,
            "replicas": self.replicas,
            "chains": self.chains,
            "raw_bytes": as_f64(self.raw_bytes),
            "data_bytes": as_f64(self.data_bytes),
            "usable": self.usable,
            "balance": balance(&self.balance),
            "recovery": { "peers": spread(&peers), "busiest_percent": spread(&shares) },
            "changes": self.changes.iter().map(change).collect::<Vec<_>>(),
            "seconds": self.took.as_secs_f64(),
        })
    }
}

fn spread(spread: &Spread) -> Value {
    json!({
        "min": spread.min, "mean": spread.mean, "max": spread.max, "stddev": spread.stddev,
    })
}

fn balance(balance: &Balance) -> Value {
    json!({
        "chains": spread(&balance.counts),
        "chains_against_capacity": spread(&balance.chains),
        "fill_percent": spread(&balance.fill),
    })
}

fn change(change: &Change) -> Value {
    let recovery = change.recovery.as_ref().map(|found| {
        json!({
            "replicas_lost": found.replicas_lost,
            "chains_lost": found.chains_lost,
            "peers": found.peers,
            "busiest_percent": found.share_max * 100.0,
        })
    });
    json!({
        "change": change.name,
        "disks": change.disks,
        "recovery": recovery,
        "replicas_moved": change.replicas_moved,
        "slots_moved": change.slots_moved,
        "chains_added": change.chains_added,
        "moved_bytes": as_f64(change.moved_bytes),
        "least_bytes": as_f64(change.least_bytes),
        "ratio": change.ratio(),
        "balance": balance(&change.balance),
        "seconds": change.took.as_secs_f64(),
    })
}
