//! `millpond doctor`: what this machine allows, and what to change.

use std::path::PathBuf;

use millpond_env::{
    IoBackend, RealClock, Runtime, RuntimeOptions, cpu_count, free_bytes, memory_total,
    raise_fd_limit,
};
use millpond_types::ByteSize;

use super::{FAILED, OK, Outcome, output};

/// What to look at.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Data folder whose disk is looked at.
    #[arg(long, default_value = ".")]
    data: PathBuf,
}

struct Report {
    rows: Vec<Vec<String>>,
    bad: bool,
}

impl Report {
    fn add(&mut self, verdict: &str, what: &str, text: String) {
        self.bad |= verdict == "FAIL";
        self.rows.push(vec![verdict.to_owned(), what.to_owned(), text]);
    }
}

fn first_line(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.lines().next()?.to_owned())
}

/// Runs it: 1 when something keeps a server from running.
pub(super) fn run(args: &Args) -> Outcome {
    let mut report = Report { rows: Vec::new(), bad: false };
    kernel(&mut report);
    limits(&mut report);
    match free_bytes(&args.data) {
        Ok(free) if free < 1 << 30 => report.add(
            "FAIL",
            "disk space",
            format!("{} free at {}: free some", ByteSize(free), args.data.display()),
        ),
        Ok(free) => {
            report.add(
                "ok",
                "disk space",
                format!("{} free at {}", ByteSize(free), args.data.display()),
            );
        }
        Err(error) => report.add("FAIL", "disk space", format!("{}: {error}", args.data.display())),
    }
    // 2024-01-01: a clock before it would expire nothing and confuse every log.
    match RealClock::wall_ms() {
        ms if ms < 1_704_067_200_000 => {
            report.add("FAIL", "clock", "is years behind: set it, expiry depends on it".to_owned());
        }
        _ => report.add("ok", "clock", "plausible".to_owned()),
    }
    output::bytes(output::table(&report.rows).as_bytes())?;
    Ok(if report.bad { FAILED } else { OK })
}

fn kernel(report: &mut Report) {
    let release = first_line("/proc/sys/kernel/osrelease").unwrap_or_default();
    report.add("ok", "kernel", release);
    let options = RuntimeOptions { io: IoBackend::Uring, ..RuntimeOptions::default() };
    match Runtime::new(options) {
        Ok(_) => report.add("ok", "io_uring", "allowed".to_owned()),
        Err(error) => report.add(
            "warn",
            "io_uring",
            format!("{error}; threads are used instead, slower: allow it in the container's seccomp profile"),
        ),
    }
    let huge = first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    match huge {
        Some(text) if text.contains("[never]") || text.contains("[deny]") => report.add(
            "warn",
            "huge pages",
            "off for shared memory: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"
                .to_owned(),
        ),
        Some(_) => report.add("ok", "huge pages", "allowed for shared memory".to_owned()),
        None => report.add("warn", "huge pages", "not supported by this kernel".to_owned()),
    }
}

fn limits(report: &mut Report) {
    match raise_fd_limit() {
        Ok(limit) if limit.hard < 16_640 => report.add(
            "warn",
            "open files",
            format!("at most {}: raise it to 16640 (ulimit -n, LimitNOFILE) or lower limits.connections", limit.hard),
        ),
        Ok(limit) => report.add("ok", "open files", format!("up to {}", limit.hard)),
        Err(error) => report.add("warn", "open files", error.to_string()),
    }
    let memlock = std::fs::read_to_string("/proc/self/limits").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("Max locked memory"))?.to_owned();
        line.split_whitespace().nth(3).map(str::to_owned)
    });
    match memlock.as_deref() {
        Some("unlimited") => report.add("ok", "locked memory", "unlimited".to_owned()),
        Some(bytes) => report.add(
            "warn",
            "locked memory",
            format!("{bytes} bytes: buffers are not registered with the kernel; ulimit -l unlimited (LimitMEMLOCK)"),
        ),
        None => {}
    }
    report.add("ok", "processors", cpu_count().to_string());
    match memory_total() {
        Ok(bytes) => report.add("ok", "memory", ByteSize(bytes).to_string()),
        Err(error) => report.add("warn", "memory", error.to_string()),
    }
}
