//! The fleet to simulate, as the command line describes it.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use millpond_cluster::placement::{Fleet, FleetDisk};
use millpond_types::ByteSize;

/// Shown after the help.
pub(super) const EXAMPLES: &str = "Examples:
  millpond simulate placement --nodes 1000 --disks 16 --replicas 3 --fail disk --fail node
  millpond simulate placement --nodes 60 --disks 8 --domains 6 --fail domain --grow 6
  millpond simulate placement --nodes 12 --disks 4 --capacity 4TiB:3,8TiB:1 --chart out.svg";

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Unit {
    /// One disk.
    Disk,
    /// One node with all its disks.
    Node,
    /// One failure domain with all its nodes.
    Domain,
}

/// A fleet and what happens to it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of nodes.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub(super) nodes: u32,
    /// Number of disks of each node.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(super) disks: u32,
    /// Replicas of each chain.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=6))]
    pub(super) replicas: u8,
    /// Number of failure domains, which the nodes fill in turn. [default: one per node]
    #[arg(long)]
    pub(super) domains: Option<u32>,
    /// Size of the disks, or sizes with weights, for example 4TiB:3,8TiB:1. The disks of a node
    /// have one size, and nodes take the sizes in turn.
    #[arg(long, default_value = "4TiB")]
    pub(super) capacity: String,
    /// Number of chains. [default: as many as Millpond makes]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) chains: Option<u32>,
    /// Fail one of these, and rebuild its data on the others; repeatable.
    #[arg(long, value_enum)]
    pub(super) fail: Vec<Unit>,
    /// Number of nodes to add.
    #[arg(long)]
    pub(super) grow: Option<u32>,
    /// Number of nodes to drain.
    #[arg(long)]
    pub(super) shrink: Option<u32>,
    /// Fill of the fullest disk in percent, for the amounts of moved data.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(super) fill: u8,
    /// Seed of the placement.
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,
    /// Write a chart to this SVG file.
    #[arg(long)]
    pub(super) chart: Option<PathBuf>,
    /// Show no progress.
    #[arg(long)]
    pub(super) quiet: bool,
}

impl Args {
    /// The fleet with `nodes` nodes.
    pub(super) fn fleet(&self, nodes: u32) -> anyhow::Result<Fleet> {
        let domains = self.domains.unwrap_or(nodes);
        ensure!(domains > 0, "--domains 0: use at least 1");
        let sizes = parse_mix(&self.capacity)?;
        let node_of = |disk: u32| disk / self.disks;
        let disks = (0..nodes * self.disks).map(|disk| {
            let node = node_of(disk);
            FleetDisk { domain: node % domains, capacity_bytes: sizes[node as usize % sizes.len()] }
        });
        Ok(Fleet { disks: disks.collect(), domains })
    }

    /// Nodes of the largest fleet: the present ones and those to come.
    pub(super) fn nodes_after(&self) -> u32 {
        self.nodes + self.grow.unwrap_or(0)
    }

    /// The disks of a unit: the first one's.
    pub(super) fn failed(&self, unit: Unit, fleet: &Fleet) -> Vec<u32> {
        (0u32..)
            .zip(&fleet.disks)
            .filter(|(disk, at)| match unit {
                Unit::Disk => *disk == 0,
                Unit::Node => disk / self.disks == 0,
                Unit::Domain => at.domain == 0,
            })
            .map(|(disk, _)| disk)
            .collect()
    }
}

/// `4TiB:3,8TiB:1` as sizes in turn: four of four nodes.
fn parse_mix(text: &str) -> anyhow::Result<Vec<u64>> {
    let mut sizes = Vec::new();
    for part in text.split(',') {
        let (size, weight) = part.split_once(':').unwrap_or((part, "1"));
        let size: ByteSize = size.parse().with_context(|| format!("--capacity {text}"))?;
        let weight: usize = weight
            .trim()
            .parse()
            .with_context(|| format!("--capacity {text}: '{weight}' is not a weight"))?;
        ensure!(
            size.0 > 0 && (1..=1_000).contains(&weight),
            "--capacity {text}: use sizes above 0 and weights of 1 to 1000"
        );
        sizes.extend(std::iter::repeat_n(size.0, weight));
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::parse_mix;

    #[test]
    fn mixes_are_sizes_in_turn() {
        assert_eq!(parse_mix("1KiB").unwrap(), [1024]);
        assert_eq!(parse_mix("1KiB:2,2KiB:1").unwrap(), [1024, 1024, 2048]);
        for text in ["", "0", "1KiB:0", "1KiB:x", "4 bananas"] {
            assert!(parse_mix(text).is_err(), "{text}");
        }
    }
}
