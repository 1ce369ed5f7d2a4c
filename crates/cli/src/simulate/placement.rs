//! Places, breaks, grows and shrinks a fleet with the production code.

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressStyle};
use millpond_cluster::placement::{
    Fleet, Members, Spread, chain_count, chain_weights, chains_per_disk, chains_to_add, generate,
    grow_chains, rebalance, recovery, recovery_of_each, slot_moves, slot_shares, slots_are_off,
    slots_per_disk,
};
use millpond_env::RealClock;

use super::super::output;
use super::args::{Args, Unit};
use super::chart;
use super::report::{Balance, Change, Report, as_f64};
use crate::exit::Outcome;

/// A cluster at rest.
#[derive(Clone)]
struct Placed {
    chains: Vec<Members>,
    /// Slots of each chain.
    slots: Vec<u32>,
}

/// Simulates, prints, draws.
pub(super) fn run(args: &Args) -> Outcome {
    let start = RealClock::tick();
    let report = simulate(args, start)?;
    if let Some(path) = &args.chart {
        std::fs::write(path, chart::svg(&report))
            .with_context(|| format!("write {}", path.display()))?;
    }
    if args.json {
        return output::line(&report.json().to_string());
    }
    output::bytes(report.text().as_bytes())
}

fn simulate(args: &Args, start: millpond_types::Tick) -> anyhow::Result<Report> {
    // Nodes to come stand in the fleet from the start, with no capacity.
    let whole = args.fleet(args.nodes_after())?;
    let present = (args.nodes * args.disks) as usize;
    let fleet = with_capacity(&whole, |disk| disk < present);
    let placed = place(args, &fleet)?;
    // Bytes of one slot, so that the fullest disk is as full as asked.
    let slot_bytes = slot_bytes(args, &fleet, &placed);
    let balance = balance(&fleet, &placed, slot_bytes);
    let held: u64 = slots_per_disk(&fleet, &placed.chains, &placed.slots).iter().sum();
    let data = as_f64(u128::from(held)) * slot_bytes;
    let raw: u128 = fleet.disks.iter().map(|disk| u128::from(disk.capacity_bytes)).sum();
    let mut recoveries = recovery_of_each(&placed.chains, fleet.disks.len());
    recoveries.truncate(present);
    let mut report = Report {
        nodes: args.nodes,
        disks: present,
        domains: args.domains.unwrap_or(args.nodes),
        replicas: args.replicas,
        chains: placed.chains.len(),
        raw_bytes: raw,
        data_bytes: whole_bytes(data / f64::from(args.replicas)),
        usable: data / as_f64(raw) * 100.0 / balance.fill.max,
        balance,
        recovery: recoveries,
        changes: Vec::new(),
        took: std::time::Duration::ZERO,
    };
    for unit in &args.fail {
        let failed = args.failed(*unit, &fleet);
        let rest = with_capacity(&fleet, |disk| !failed.iter().any(|dead| *dead as usize == disk));
        let name = match unit {
            Unit::Disk => "a disk fails",
            Unit::Node => "a node fails",
            Unit::Domain => "a domain fails",
        };
        let mut made = change(args, (name, failed.len()), &rest, &placed, slot_bytes)?;
        made.recovery = Some(recovery(&placed.chains, fleet.disks.len(), &failed));
        report.changes.push(made);
    }
    if let Some(nodes) = args.grow {
        let name = format!("{nodes} nodes join");
        let disks = (nodes * args.disks) as usize;
        report.changes.push(change(args, (&name, disks), &whole, &placed, slot_bytes)?);
    }
    if let Some(nodes) = args.shrink {
        let first = (args.nodes.saturating_sub(nodes) * args.disks) as usize;
        let rest = with_capacity(&fleet, |disk| disk < first);
        let name = format!("{nodes} nodes are drained");
        let disks = present.saturating_sub(first);
        report.changes.push(change(args, (&name, disks), &rest, &placed, slot_bytes)?);
    }
    report.took = RealClock::tick().since(start);
    Ok(report)
}

fn with_capacity(fleet: &Fleet, keeps: impl Fn(usize) -> bool) -> Fleet {
    let mut fleet = fleet.clone();
    for (_, disk) in fleet.disks.iter_mut().enumerate().filter(|(n, _)| !keeps(*n)) {
        disk.capacity_bytes = 0;
    }
    fleet
}

fn bar(args: &Args, length: u64, what: &str) -> ProgressBar {
    if args.quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:16} {bar:40} {pos}/{len} {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style).with_message(what.to_owned())
}

fn place(args: &Args, fleet: &Fleet) -> anyhow::Result<Placed> {
    let count = args.chains.unwrap_or_else(|| chain_count(fleet, args.replicas));
    let bar = bar(args, u64::from(count), "placing chains");
    let mut progress = |made: u32| bar.set_position(u64::from(made));
    let chains = generate(fleet, args.replicas, count, args.seed, &mut progress)?;
    bar.finish_and_clear();
    let slots = slot_shares(&chain_weights(fleet, &chains), &[]);
    Ok(Placed { chains, slots })
}

/// The fleet becomes `after`; everything settles.
fn change(
    args: &Args,
    (name, disks): (&str, usize),
    after: &Fleet,
    before: &Placed,
    slot_bytes: f64,
) -> anyhow::Result<Change> {
    let start = RealClock::tick();
    let mut placed = before.clone();
    let made = u32::try_from(placed.chains.len()).unwrap_or(u32::MAX);
    let added = if args.chains.is_some() { 0 } else { chains_to_add(after, args.replicas, made) };
    if added > 0 {
        let more = grow_chains(after, args.replicas, &placed.chains, added, args.seed)?;
        placed.chains.extend(more);
        placed.slots.resize(placed.chains.len(), 0);
    }
    let bar = bar(args, made.into(), name);
    let mut progress = |moves: u32| bar.set_position(u64::from(moves));
    let moves = rebalance(after, args.replicas, &mut placed.chains, args.seed, &mut progress)?;
    bar.finish_and_clear();
    let shares = slot_shares(&chain_weights(after, &placed.chains), &placed.slots);
    let mut slots_moved = 0;
    if added > 0 || slots_are_off(&shares, &placed.slots) {
        slots_moved = slot_moves(&spread_out(&placed.slots), &shares, args.seed).len();
    }
    // Replicas move with the slots that their chain has now; slots move as often as they have
    // replicas.
    let with_replicas: u64 =
        moves.iter().map(|made| u64::from(placed.slots[made.chain as usize])).sum();
    let slots_copied = with_replicas + slots_moved as u64 * u64::from(args.replicas);
    let held = slots_per_disk(after, &before.chains, &before.slots);
    if slots_moved > 0 {
        placed.slots = shares;
    }
    Ok(Change {
        name: name.to_owned(),
        disks,
        recovery: None,
        replicas_moved: moves.len(),
        slots_moved,
        chains_added: added as usize,
        moved_bytes: whole_bytes(as_f64(u128::from(slots_copied)) * slot_bytes),
        least_bytes: whole_bytes(least_slots(args, after, &held)? * slot_bytes),
        balance: balance(after, &placed, slot_bytes),
        took: RealClock::tick().since(start),
    })
}

/// The least that any placement could move: all that the disks which go hold, or the part of those
/// which come, by capacity as far as domains allow. In slots times replicas.
fn least_slots(args: &Args, after: &Fleet, held: &[u64]) -> anyhow::Result<f64> {
    const FINE: u32 = 1 << 24;
    let parts = millpond_cluster::placement::shares(after, args.replicas, FINE, &[])?;
    let all = as_f64(u128::from(held.iter().sum::<u64>()));
    let unit = all / (f64::from(FINE) * f64::from(args.replicas));
    let (mut come, mut go) = (0.0, 0.0);
    for (disk, (part, held)) in after.disks.iter().zip(parts.iter().zip(held)) {
        if disk.capacity_bytes == 0 {
            go += as_f64(u128::from(*held));
        } else if *held == 0 {
            come += f64::from(*part) * unit;
        }
    }
    Ok(come.max(go))
}

/// The chain of every slot, from the number of slots of every chain.
fn spread_out(slots: &[u32]) -> Vec<u32> {
    (0u32..).zip(slots).flat_map(|(chain, n)| std::iter::repeat_n(chain, *n as usize)).collect()
}

fn slot_bytes(args: &Args, fleet: &Fleet, placed: &Placed) -> f64 {
    let held = slots_per_disk(fleet, &placed.chains, &placed.slots);
    let rooms =
        held.iter().zip(&fleet.disks).filter(|(held, _)| **held > 0).map(|(held, disk)| {
            as_f64(u128::from(disk.capacity_bytes)) / as_f64(u128::from(*held))
        });
    rooms.fold(f64::INFINITY, f64::min) * f64::from(args.fill) / 100.0
}

fn balance(fleet: &Fleet, placed: &Placed, slot_bytes: f64) -> Balance {
    let counts = chains_per_disk(fleet, &placed.chains);
    let held = slots_per_disk(fleet, &placed.chains, &placed.slots);
    let capacity: f64 =
        fleet.disks.iter().map(|disk| as_f64(u128::from(disk.capacity_bytes))).sum();
    let total: f64 = counts.iter().map(|count| f64::from(*count)).sum();
    let (mut chains, mut numbers, mut fills) = (Vec::new(), Vec::new(), Vec::new());
    for (disk, (count, held)) in fleet.disks.iter().zip(counts.iter().zip(&held)) {
        if disk.capacity_bytes > 0 {
            let bytes = as_f64(u128::from(disk.capacity_bytes));
            chains.push(f64::from(*count) / (total * bytes / capacity));
            numbers.push(f64::from(*count));
            fills.push(as_f64(u128::from(*held)) * slot_bytes / bytes * 100.0);
        }
    }
    Balance {
        chains: Spread::of(&chains),
        counts: Spread::of(&numbers),
        fill: Spread::of(&fills),
        fills,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bytes of a fleet: positive, and below 2^128"
)]
fn whole_bytes(bytes: f64) -> u128 {
    bytes.max(0.0) as u128
}

#[cfg(test)]
mod tests;
