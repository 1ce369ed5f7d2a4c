//! The result as text and as JSON.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::args::{EchoArgs, KvArgs};
use super::record::{Lane, QUANTILES, Record, SLOT_NS};

/// How a run went, beside its record.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) seconds: f64,
    pub(super) transport: String,
    pub(super) server: String,
    /// Keys that reads chose from.
    pub(super) keys: u64,
    /// True when Ctrl-C ended it.
    pub(super) interrupted: bool,
}

fn table(lanes: &[(&str, &Lane)], seconds: f64) -> String {
    let mut out = format!(
        "\n  {:<5}{:>12}{:>12}{:>11}{:>9}{:>9}\n",
        "", "requests/s", "values/s", "MB/s", "missed", "refused"
    );
    for (name, lane) in lanes {
        let json = lane.to_json(seconds);
        let rate = |field: &str| json[field].as_f64().unwrap_or(0.0);
        let _ = writeln!(
            out,
            "  {name:<5}{:>12.0}{:>12.0}{:>11.1}{:>9}{:>9}",
            rate("requests_per_s"),
            rate("values_per_s"),
            rate("mb_per_s"),
            lane.outcome.missed,
            lane.outcome.refused
        );
    }
    let _ = write!(out, "\n  {:<10}{:>10}", "latency µs", "mean");
    for (name, _) in QUANTILES {
        let _ = write!(out, "{name:>10}");
    }
    let _ = writeln!(out, "{:>10}", "max");
    for (name, lane) in lanes {
        let _ = write!(out, "  {name:<10}{:>10.1}", lane.latency.mean() / 1e3);
        for (_, quantile) in QUANTILES {
            let _ = write!(out, "{:>10.1}", lane.quantile_us(*quantile));
        }
        let _ = writeln!(out, "{:>10.1}", lane.quantile_us(1.0));
    }
    for (name, lane) in lanes {
        out.push_str(&bars(name, lane));
    }
    out
}

/// Rows of a text histogram: each reaches 1.5 times as far as the one before.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts and latencies far below 2^53, drawn 40 characters wide"
)]
fn bars(name: &str, lane: &Lane) -> String {
    let total = lane.latency.len().max(1);
    let mut rows: Vec<(u64, u64)> = Vec::new();
    let mut up_to = (lane.latency.min() as f64 * 1.25).max(10.0);
    for step in lane.latency.iter_recorded() {
        while step.value_iterated_to() as f64 > up_to {
            up_to *= 1.5;
        }
        match rows.last_mut() {
            Some(row) if row.0 == up_to as u64 => row.1 += step.count_since_last_iteration(),
            _ => rows.push((up_to as u64, step.count_since_last_iteration())),
        }
    }
    let most = rows.iter().map(|row| row.1).max().unwrap_or(1).max(1);
    let mut out = format!("\n  {name}: histogram\n");
    for (up_to, count) in rows {
        let width = (count as f64 / most as f64 * 40.0).ceil() as usize;
        let share = count as f64 * 100.0 / total as f64;
        let _ = writeln!(
            out,
            "  {:>11.1} µs {share:>8.3} %  {}",
            up_to as f64 / 1e3,
            "▇".repeat(width)
        );
    }
    out
}

fn lanes(record: &Record) -> Vec<(&'static str, &Lane)> {
    [("get", &record.get), ("put", &record.put)]
        .into_iter()
        .filter(|(_, lane)| lane.requests > 0)
        .collect()
}

/// One line that says what was asked for.
pub(super) fn describe(args: &KvArgs, run: &Run) -> String {
    let reads = args.read_ratio * 100.0;
    let keys = if args.skew > 0.0 {
        format!("zipf {} over {} keys", args.skew, run.keys)
    } else {
        format!("{} keys", run.keys)
    };
    format!(
        "{} over {}: {}, batch {}, {} in flight, {reads:.0} % reads, {keys}, ack {}",
        args.address,
        run.transport,
        args.size,
        args.batch,
        args.in_flight,
        format!("{:?}", args.ack).to_lowercase()
    )
}

/// The result of a run as text.
pub(super) fn text(args: &KvArgs, run: &Run, record: &Record) -> String {
    let mut out = format!("{}\n{}", describe(args, run), table(&lanes(record), run.seconds));
    let _ = writeln!(
        out,
        "\n  {:.1} s measured{}, {} values wrong, millpond {}",
        run.seconds,
        if run.interrupted { " (interrupted)" } else { "" },
        record.wrong(),
        millpond_node::BUILD
    );
    out
}

/// The result of a run as JSON.
#[expect(clippy::cast_precision_loss, reason = "slots are 0.1 s")]
pub(super) fn json(args: &KvArgs, run: &Run, record: &Record) -> Value {
    json!({
        "bench": "kv",
        "version": millpond_node::BUILD,
        "command": std::env::args().collect::<Vec<_>>().join(" "),
        "machine": machine(),
        "server": run.server, "address": args.address, "transport": run.transport,
        "size": args.size.to_string(), "batch": args.batch, "in_flight": args.in_flight,
        "read_ratio": args.read_ratio, "skew": args.skew,
        "keys": run.keys, "seconds": run.seconds, "interrupted": run.interrupted,
        "get": record.get.to_json(run.seconds),
        "put": record.put.to_json(run.seconds),
        "bytes_per_slot": record.slots, "slot_s": SLOT_NS as f64 / 1e9,
    })
}

/// Prints the floor and writes it where asked.
#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
pub(super) fn echo(args: &EchoArgs, record: &Record) -> Result<()> {
    let lane = if record.get.requests > 0 { &record.get } else { &record.put };
    let seconds = (lane.latency.mean() * lane.requests as f64 / 1e9).max(1e-9);
    let name = format!("{:?}", args.direction).to_lowercase();
    let lanes = table(&[(name.as_str(), lane)], seconds);
    let text = format!("socket echo on loopback, {name} of {}, 1 in flight\n{lanes}", args.size);
    let value = json!({
        "bench": "echo", "size": args.size.0, "direction": name, "machine": machine(),
        "result": lane.to_json(seconds),
    });
    give(args.json.as_deref(), &text, &value)
}

/// Prints the result as text, and writes `value` to the file if one is named; or prints that alone, for `-`.
pub(super) fn give(json: Option<&Path>, text: &str, value: &Value) -> Result<()> {
    let document = serde_json::to_string_pretty(value)? + "\n";
    match json {
        Some(path) if path == Path::new("-") => print!("{document}"),
        None => print!("{text}"),
        Some(path) => {
            print!("{text}");
            std::fs::write(path, document).with_context(|| format!("write {}", path.display()))?;
        }
    }
    Ok(())
}

fn machine() -> Value {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("unknown", |(_, name)| name);
    json!({
        "cpu": model, "cores": millpond_env::cpu_count(),
        "memory_bytes": millpond_env::memory_total().ok(),
        "kernel": std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
    })
}
