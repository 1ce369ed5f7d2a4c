//! This machine.

use std::path::Path;

use millpond_env::{
    IoBackend, RealClock, Runtime, RuntimeOptions, cpu_count, free_bytes, memory_total,
    raise_fd_limit,
};
use millpond_fuse_wire as wire;
use millpond_types::ByteSize;

use super::Report;

/// Open files that a server with the default `limits.connections` needs.
const FILES_MIN: u64 = 16_640;
/// The first Linux whose mounts outlive their processes.
const RESENDS: (u32, u32) = (6, 9);
/// 2024-01-01: a clock before it would expire nothing and confuse every log.
const CLOCK_MS_MIN: u64 = 1_704_067_200_000;

fn first_line(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.lines().next()?.to_owned())
}

/// Looks at all of it.
pub(super) fn look(report: &mut Report, data: &Path) {
    kernel(report);
    mounts(report);
    limits(report);
    match free_bytes(data) {
        Ok(free) => {
            let text = format!("{} free at {}", ByteSize(free), data.display());
            if free < 1 << 30 {
                report.fail(
                    "disk space",
                    text,
                    "free some space, a data file needs at least 1 GiB",
                );
            } else {
                report.ok("disk space", text);
            }
        }
        Err(error) => {
            let text = format!("{}: {error}", data.display());
            report.fail("disk space", text, "give an existing folder with --data");
        }
    }
    if RealClock::wall_ms() < CLOCK_MS_MIN {
        report.fail("clock", "is years behind", "set the clock, since expiry depends on it");
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
            format!("{error}; slower threads are used instead"),
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
        None => report.warn("huge pages", "not supported by this kernel", "use a newer kernel"),
    }
}

/// Whether files can be mounted, tried with a mount that nobody serves. What a host lacks for that keeps no server from running.
fn mounts(report: &mut Report) {
    let target = std::env::temp_dir().join(format!("millpond-doctor-{}", std::process::id()));
    if let Err(error) = std::fs::create_dir(&target) {
        report.warn(
            "mounts",
            format!("{}: {error}", target.display()),
            "set TMPDIR to a writable folder",
        );
        return;
    }
    let options = wire::MountOptions { allow_other: true, ..wire::MountOptions::default() };
    let made = wire::mount(&target, &options);
    if made.is_ok()
        && let Err(error) = wire::unmount(&target, true)
    {
        report.warn("mounts", error.to_string(), format!("umount -l {}", target.display()));
    }
    let _ = std::fs::remove_dir(&target);
    let release = first_line("/proc/sys/kernel/osrelease").unwrap_or_default();
    match made {
        Err(error) => {
            let text = error.to_string();
            let (text, fix) = text.split_once(": ").unwrap_or((&text, "see the kernel log"));
            report.warn("mounts", text, fix);
        }
        Ok(_) if !resends(&release) => report.warn(
            "mounts",
            "applications lose a mount when its process dies or is upgraded",
            "use Linux 6.9 or newer",
        ),
        Ok(_) => {
            report.ok("mounts", "allowed, and survive a restart of the process that serves them");
        }
    }
}

/// Whether a kernel of this release sends again what a dead process had not answered.
fn resends(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0_u32);
    (next(), next()) >= RESENDS
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

#[cfg(test)]
mod tests {
    use super::resends;

    #[test]
    fn releases_are_compared() {
        for (release, wanted) in [
            ("6.9.0", true),
            ("6.18.5-generic", true),
            ("7.0", true),
            ("6.8.12", false),
            ("5.15.0", false),
            ("", false),
        ] {
            assert_eq!(resends(release), wanted, "{release}");
        }
    }
}
