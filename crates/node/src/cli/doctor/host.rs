//! This machine.

use std::path::Path;

use millpond_env::{
    IoBackend, RealClock, Runtime, RuntimeOptions, cpu_count, free_bytes, memory_total,
    raise_fd_limit,
};
use millpond_types::ByteSize;

use super::Report;

/// Open files that a server with the default `limits.connections` needs.
const FILES_MIN: u64 = 16_640;
/// 2024-01-01: a clock before it would expire nothing and confuse every log.
const CLOCK_MS_MIN: u64 = 1_704_067_200_000;

fn first_line(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.lines().next()?.to_owned())
}

/// Looks at all of it.
pub(super) fn look(report: &mut Report, data: &Path) {
    kernel(report);
    limits(report);
    match free_bytes(data) {
        Ok(free) => {
            let text = format!("{} free at {}", ByteSize(free), data.display());
            if free < 1 << 30 {
                report.fail("disk space", text, "free some, a data file has at least 1 GiB");
            } else {
                report.ok("disk space", text);
            }
        }
        Err(error) => {
            let text = format!("{}: {error}", data.display());
            report.fail("disk space", text, "name a folder that exists with --data");
        }
    }
    if RealClock::wall_ms() < CLOCK_MS_MIN {
        report.fail("clock", "is years behind", "set it, expiry depends on it");
    } else {
        report.ok("clock", "plausible");
    }
}

fn kernel(report: &mut Report) {
    report.ok("kernel", first_line("/proc/sys/kernel/osrelease").unwrap_or_default());
    let options = RuntimeOptions { io: IoBackend::Uring, ..RuntimeOptions::default() };
    match Runtime::new(options) {
        Ok(_) => report.ok("io_uring", "allowed"),
        Err(error) => report.warn(
            "io_uring",
            format!("{error}; threads are used instead, slower"),
            "allow it in the container's seccomp profile",
        ),
    }
    let huge = first_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    match huge {
        Some(text) if text.contains("[never]") || text.contains("[deny]") => report.warn(
            "huge pages",
            "off for shared memory",
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
        Some(_) => report.ok("huge pages", "allowed for shared memory"),
        None => report.warn("huge pages", "not supported by this kernel", "use a newer one"),
    }
}

fn limits(report: &mut Report) {
    match raise_fd_limit() {
        Ok(limit) if limit.hard < FILES_MIN => report.warn(
            "open files",
            format!("at most {}", limit.hard),
            format!("raise it to {FILES_MIN} (ulimit -n, LimitNOFILE) or lower limits.connections"),
        ),
        Ok(limit) => report.ok("open files", format!("up to {}", limit.hard)),
        Err(error) => report.warn("open files", error.to_string(), "see 'ulimit -n'"),
    }
    let memlock = std::fs::read_to_string("/proc/self/limits").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("Max locked memory"))?.to_owned();
        line.split_whitespace().nth(3).map(str::to_owned)
    });
    match memlock.as_deref() {
        Some("unlimited") => report.ok("locked memory", "unlimited"),
        Some(bytes) => report.warn(
            "locked memory",
            format!("{bytes} bytes, so buffers are not registered with the kernel"),
            "ulimit -l unlimited (LimitMEMLOCK)",
        ),
        None => {}
    }
    report.ok("processors", cpu_count().to_string());
    match memory_total() {
        Ok(bytes) => report.ok("memory", ByteSize(bytes).to_string()),
        Err(error) => report.warn("memory", error.to_string(), "is /proc mounted?"),
    }
}
