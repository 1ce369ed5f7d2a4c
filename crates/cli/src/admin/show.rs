//! What the answers look like on a terminal. Pure: text from documents.

use std::fmt::Write as _;

use millpond_cluster::manager::SETTINGS;
use millpond_types::ByteSize;
use millpond_types::limits::SLOTS;
use millpond_types::units::Utc;

use super::names::Short;
use crate::output::table;
use millpond_control::admin::{Chain, Config, Event, Node, Progress, Slot, SlotTotals, Status};

/// A node that lives is heard twice a second.
const SILENT_MS: u64 = 1_100;
/// Lines of a status for nodes and problems: a screen has 24.
const NODES_SHOWN: usize = 6;
const PROBLEMS_SHOWN: usize = 4;

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// `used` of `all` in percent.
fn percent(used: u64, all: u64) -> u64 {
    if all == 0 {
        0
    } else {
        u64::try_from(u128::from(used) * 100 / u128::from(all)).unwrap_or(100)
    }
}

/// The cluster on one screen.
pub(super) fn status(status: &Status) -> String {
    let short = Short::of(status);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "cluster {}  routing {}, configuration {}",
        status.cluster, status.routing, status.config
    );
    let _ = writeln!(
        out,
        "primary {}  term {}",
        if status.primary.is_empty() { "-".to_owned() } else { status.primary.join(", ") },
        status.term
    );
    out.push('\n');
    out.push_str(&table(&summary(status)));
    out.push('\n');
    if status.problems.is_empty() {
        out.push_str(&well(status, short));
    }
    for problem in status.problems.iter().take(PROBLEMS_SHOWN) {
        let _ = writeln!(out, "! {}\n  -> {}", problem.what, problem.advice);
    }
    let more = status.problems.len().saturating_sub(PROBLEMS_SHOWN);
    if more > 0 {
        let _ = writeln!(out, "! and {more} more: see --json");
    }
    if !status.problems.is_empty() {
        out.push('\n');
    }
    // Those that need a look come first.
    let mut nodes: Vec<&Node> = status.nodes.iter().collect();
    nodes.sort_by_key(|node| (node.alive, node.state == "active"));
    out.push_str(&table(&node_rows(short, nodes.iter().take(NODES_SHOWN).copied())));
    let more = (nodes.len() + status.nodes_left_out).saturating_sub(NODES_SHOWN);
    if more > 0 {
        let _ = writeln!(out, "and {more} more: 'millpond admin nodes'");
    }
    out
}

/// Nothing is wrong, as far as the managers know: a node that was just killed counts as alive until its lease ends.
fn well(status: &Status, short: Short) -> String {
    let silent = |node: &&Node| node.alive && node.silent_ms.is_some_and(|ms| ms >= SILENT_MS);
    match status.nodes.iter().find(silent) {
        None => "All is well.\n\n".to_owned(),
        Some(node) => format!(
            "No problem yet, but node {} was last heard {}: it counts as gone after 2 s.\n\n",
            short.show(&node.id),
            ago(node.silent_ms.unwrap_or(0))
        ),
    }
}

fn summary(status: &Status) -> Vec<Vec<String>> {
    let nodes = status.nodes.len() + status.nodes_left_out;
    let alive = status.nodes.iter().filter(|node| node.alive).count() + status.nodes_left_out;
    let disks = status.disks.len() + status.disks_left_out;
    let healthy = status.disks.iter().filter(|disk| disk.healthy).count() + status.disks_left_out;
    let used: u64 = status.disks.iter().map(|disk| disk.used_bytes).sum();
    let room: u64 = status.disks.iter().map(|disk| disk.capacity_bytes).sum();
    let targets = status.targets;
    let mut counts = format!("{} serving", targets.serving);
    for (count, word) in [
        (targets.syncing, "syncing"),
        (targets.waiting, "waiting"),
        (targets.offline, "offline"),
        (targets.last_serving, "away with the newest data"),
    ] {
        if count > 0 {
            let _ = write!(counts, ", {count} {word}");
        }
    }
    if status.behind_bytes > 0 {
        let _ = write!(counts, ", {} to sync", ByteSize(status.behind_bytes));
    }
    let mut rows = vec![
        row(["nodes", &format!("{alive} of {nodes} alive")]),
        row([
            "disks",
            &format!(
                "{healthy} of {disks} healthy, {} of {} used ({} %)",
                ByteSize(used),
                ByteSize(room),
                percent(used, room)
            ),
        ]),
        row([
            "chains",
            &format!(
                "{} with {}, {} with fewer, {} not serving",
                status.chains_whole,
                wanted(status),
                status.chains_degraded,
                status.chains_down
            ),
        ]),
        row(["targets", &counts]),
        row(["moves", &moves(&status.progress, status.paused)]),
    ];
    if status.progress.slots_running + status.progress.slots_waiting > 0 {
        rows.push(row(["slots", &slots_moved(&status.progress, &status.slots)]));
    }
    rows
}

/// How many replicas chains should have.
fn wanted(status: &Status) -> String {
    match &status.tables[..] {
        [] => format!("{} replicas", status.replicas),
        tables => {
            let more: Vec<String> = tables.iter().map(u8::to_string).collect();
            format!("their {} or {} replicas", status.replicas, more.join(" or "))
        }
    }
}

/// How far slots are that move.
fn slots_moved(progress: &Progress, totals: &SlotTotals) -> String {
    let to_move = progress.slots_running + progress.slots_waiting;
    let mut text = format!(
        "{to_move} of {SLOTS} to move; {} in {} chunks copied since the nodes started",
        ByteSize(totals.bytes),
        totals.chunks
    );
    if totals.bytes_per_second > 0 {
        let _ = write!(text, ", {}/s", ByteSize(totals.bytes_per_second));
    }
    if let Some(seconds) = totals.seconds_left {
        let _ = write!(text, ", about {} left", duration(seconds));
    }
    if totals.failures > 0 {
        let _ = write!(text, ", {} retried", totals.failures);
    }
    text
}

/// Seconds in words, of two numbers at most.
fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3_600, seconds % 3_600 / 60),
    }
}

fn moves(progress: &Progress, paused: bool) -> String {
    let mut parts = Vec::new();
    if paused {
        parts.push("paused".to_owned());
    }
    for (running, waiting, what) in [
        (progress.moves_running, progress.moves_waiting, "replicas"),
        (progress.slots_running, progress.slots_waiting, "slots"),
    ] {
        if running + waiting > 0 {
            parts.push(format!("{running} {what} move, {waiting} wait"));
        }
    }
    if progress.chains_to_make > 0 {
        parts.push(format!("{} chains to make", progress.chains_to_make));
    }
    if parts.is_empty() { "none".to_owned() } else { parts.join("; ") }
}

fn node_rows<'a>(short: Short, nodes: impl Iterator<Item = &'a Node>) -> Vec<Vec<String>> {
    let head = ["NODE", "HOST", "ADDRESS", "STATE", "TARGETS", "QUEUED", "HEARD", "BUILD"];
    let mut rows = vec![row(head)];
    for node in nodes {
        let state = if node.alive { node.state.as_str() } else { "gone" };
        rows.push(vec![
            short.show(&node.id),
            node.host.clone(),
            node.addresses.join(","),
            state.to_owned(),
            node.targets.to_string(),
            node.queue_depth.to_string(),
            node.silent_ms.map_or("not yet".to_owned(), ago),
            node.build.clone(),
        ]);
    }
    rows
}

fn ago(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{ms} ms ago"),
        10_000..600_000 => format!("{} s ago", ms / 1_000),
        600_000..36_000_000 => format!("{} min ago", ms / 60_000),
        _ => format!("{} h ago", ms / 3_600_000),
    }
}

/// All nodes.
pub(super) fn nodes(status: &Status) -> String {
    let rows = node_rows(Short::of(status), status.nodes.iter());
    let mut out = table(&rows);
    if status.nodes_left_out > 0 {
        let _ = writeln!(out, "and {} without problems", status.nodes_left_out);
    }
    out
}

/// All disks.
pub(super) fn disks(status: &Status) -> String {
    let short = Short::of(status);
    let mut rows = vec![row(["DISK", "NODE", "HOST", "STATE", "TARGETS", "USED", "OF", "%"])];
    for disk in &status.disks {
        let node = status.nodes.iter().find(|node| node.id == disk.node);
        let state = match (node, disk.healthy) {
            (_, true) => disk.state.as_str(),
            (Some(node), false) if node.alive => "failing",
            _ => "gone",
        };
        rows.push(vec![
            short.show(&disk.id),
            short.show(&disk.node),
            node.map(|node| node.host.clone()).unwrap_or_default(),
            if matches!(disk.state.as_str(), "lost" | "missing") { &disk.state } else { state }
                .to_owned(),
            disk.targets.to_string(),
            ByteSize(disk.used_bytes).to_string(),
            ByteSize(disk.capacity_bytes).to_string(),
            percent(disk.used_bytes, disk.capacity_bytes).to_string(),
        ]);
    }
    let mut out = table(&rows);
    if status.disks_left_out > 0 {
        let _ = writeln!(out, "and {} without problems", status.disks_left_out);
    }
    out
}

/// Chains, one a line, their targets head first.
pub(super) fn chains(chains: &[Chain], short: Short) -> String {
    if chains.is_empty() {
        return "no such chains\n".to_owned();
    }
    let mut rows = vec![row(["CHAIN", "VERSION", "SLOTS", "TARGETS (HEAD FIRST)"])];
    for chain in chains {
        let targets: Vec<String> = chain
            .targets
            .iter()
            .map(|target| {
                let mut text = format!("{}@{}", target.target, short.show(&target.node));
                if target.state != "serving" {
                    let _ = write!(text, " {}", target.state);
                }
                if target.behind_bytes > 0 {
                    let _ = write!(text, " ({} to go)", ByteSize(target.behind_bytes));
                }
                match chain.moving {
                    Some(moving) if moving.add == target.target => text.push_str(" [comes]"),
                    Some(moving) if moving.drop == Some(target.target) => text.push_str(" [goes]"),
                    _ => {}
                }
                text
            })
            .collect();
        rows.push(vec![
            chain.id.to_string(),
            chain.version.to_string(),
            chain.slots.to_string(),
            targets.join(" > "),
        ]);
    }
    table(&rows)
}

/// Targets, one a line.
pub(super) fn targets(chains: &[Chain], short: Short) -> String {
    let head = ["TARGET", "CHAIN", "NODE", "DISK", "STATE", "NODE SAYS", "USED", "TO SYNC"];
    let mut rows = vec![row(head)];
    for chain in chains {
        for target in &chain.targets {
            let behind = match target.behind_bytes {
                0 if target.state == "syncing" => "?".to_owned(),
                0 => "-".to_owned(),
                bytes => ByteSize(bytes).to_string(),
            };
            rows.push(vec![
                target.target.to_string(),
                chain.id.to_string(),
                short.show(&target.node),
                short.show(&target.disk),
                target.state.clone(),
                target.local.clone().unwrap_or_else(|| "-".to_owned()),
                ByteSize(target.used_bytes).to_string(),
                behind,
            ]);
        }
    }
    table(&rows)
}

/// How slots are shared out, and those that move.
pub(super) fn slots(chains: &[Chain], moving: &[Slot], status: &Status) -> String {
    let mut out = String::new();
    let held: usize = chains.iter().map(|chain| chain.slots).sum();
    let least = chains.iter().map(|chain| chain.slots).min().unwrap_or(0);
    let most = chains.iter().map(|chain| chain.slots).max().unwrap_or(0);
    let _ = writeln!(
        out,
        "{held} slots on {} chains, {least} to {most} each; {} move",
        chains.len(),
        moving.len()
    );
    let progress = &status.progress;
    if progress.slots_running + progress.slots_waiting > 0 {
        let _ = writeln!(out, "{}", slots_moved(progress, &status.slots));
    }
    if moving.is_empty() {
        return out;
    }
    let mut rows = vec![row(["SLOT", "FROM CHAIN", "TO CHAIN", "THROUGH", "CHUNKS", "COPIED"])];
    for it in moving {
        let through = it.through.map(|part| format!("{} %", part / 10));
        rows.push(vec![
            it.slot.to_string(),
            it.from.to_string(),
            it.to.to_string(),
            through.unwrap_or_else(|| "-".to_owned()),
            it.chunks.to_string(),
            ByteSize(it.bytes).to_string(),
        ]);
    }
    out + &table(&rows)
}

/// Every setting with its value.
pub(super) fn config(config: &Config) -> String {
    let mut rows = vec![row(["SETTING", "VALUE", "WHAT IT DOES"])];
    for setting in SETTINGS {
        let value = match config.values.get(setting.name) {
            Some(value) => format!("{value} (default {})", setting.default),
            None => setting.default.to_owned(),
        };
        rows.push(vec![setting.name.to_owned(), value, setting.help.to_owned()]);
    }
    // Of a newer manager.
    let known = |name: &str| SETTINGS.iter().any(|setting| setting.name == name);
    for (name, value) in config.values.iter().filter(|(name, _)| !known(name)) {
        rows.push(vec![name.clone(), value.clone(), String::new()]);
    }
    format!("configuration {}\n{}", config.version, table(&rows))
}

/// One event.
pub(super) fn event(event: &Event) -> String {
    format!("{:>6}  {}  {}\n", event.number, utc(u64::from(event.at)), event.text)
}

/// Seconds since 1970 as a date and time.
fn utc(seconds: u64) -> String {
    let Utc { year, month, day, hour, minute, second } = Utc::of_unix_seconds(seconds);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests;
