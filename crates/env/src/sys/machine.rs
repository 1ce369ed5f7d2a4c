//! Facts about this machine and limits of this process.

use std::io;

use super::check;
use crate::error::EnvError;

/// The limit on open files of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdLimit {
    /// The limit in force.
    pub soft: u64,
    /// The highest limit that this process may set.
    pub hard: u64,
}

fn fd_limit() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a writable rlimit.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    Ok(limit)
}

/// Raises the limit on open files to the hard limit and returns both.
///
/// # Errors
/// Errors of the operating system.
pub fn raise_fd_limit() -> io::Result<FdLimit> {
    let mut limit = fd_limit()?;
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: `limit` is a readable rlimit.
        check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    }
    Ok(FdLimit { soft: limit.rlim_cur, hard: limit.rlim_max })
}

/// Raises the limit on open files and checks that it is at least `need`.
///
/// # Errors
/// [`EnvError::Config`] naming `ulimit -n` when the hard limit is lower.
pub fn require_fd_limit(need: u64) -> Result<FdLimit, EnvError> {
    let limit =
        raise_fd_limit().map_err(|error| EnvError::os("reading the open-files limit", error))?;
    if limit.soft < need {
        return Err(EnvError::Config {
            field: "open files",
            fix: format!(
                "the limit is {}, but {need} are needed: raise it with `ulimit -n {need}` \
                 (LimitNOFILE={need} for systemd), or lower the number of connections",
                limit.soft
            ),
        });
    }
    Ok(limit)
}

/// Id of this boot of this host's kernel: equal for two processes only when they share the host.
/// The network namespace is not part of it; shared memory works across those.
///
/// # Errors
/// When `/proc` is not mounted.
pub fn boot_id() -> io::Result<u128> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Processors this process may run on (affinity and cgroup quota respected), at least one.
#[must_use]
pub fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Memory of this machine in bytes, and the lowest limit of this process's cgroups (version 1 or
/// 2), if any.
///
/// # Errors
/// When the operating system does not report it.
pub fn memory_limits() -> io::Result<(u64, Option<u64>)> {
    // SAFETY: sysconf takes a plain number.
    let (pages, size) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let (Ok(pages), Ok(size)) = (u64::try_from(pages), u64::try_from(size)) else {
        return Err(io::Error::last_os_error());
    };
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups).into_iter();
    let limits = limits.filter_map(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok());
    let machine = pages * size;
    // Version 1 expresses "none" as a number beyond all memory.
    Ok((machine, limits.filter(|limit| *limit < machine).min()))
}

/// The files that may limit the memory of a process in these groups: of each group and its
/// ancestors. In a container the groups may appear as the root.
fn limit_files(groups: &str) -> Vec<String> {
    let mut files = vec![
        "/sys/fs/cgroup/memory.max".to_owned(),
        "/sys/fs/cgroup/memory/memory.limit_in_bytes".to_owned(),
    ];
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            named if named.split(',').any(|one| one == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        while let Some((above, _)) = path.rsplit_once('/') {
            files.push(format!("{root}{path}/{name}"));
            path = above;
        }
    }
    files
}

/// Memory this process may use in bytes: the machine's, or its cgroups' limit if lower.
///
/// # Errors
/// When the operating system does not report it.
pub fn memory_total() -> io::Result<u64> {
    memory_limits().map(|(machine, limit)| limit.unwrap_or(machine))
}

/// Bytes that an unprivileged user may still write on the file system that holds `path`.
///
/// # Errors
/// Errors of the operating system: `NotFound` for a missing path, for instance.
pub fn free_bytes(path: &std::path::Path) -> io::Result<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: an all-zero statvfs is valid.
    let mut facts: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` is a C string and `facts` a writable statvfs.
    check(unsafe { libc::statvfs(path.as_ptr(), &raw mut facts) })?;
    Ok(facts.f_bavail.saturating_mul(facts.f_frsize))
}

/// Binds the calling thread to the `index`-th processor it may run on.
///
/// # Errors
/// Errors of the operating system; `InvalidInput` when there are fewer processors.
pub fn pin_thread(index: usize) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: `allowed` is a writable set of `size` bytes.
    check(unsafe { libc::sched_getaffinity(0, size, &raw mut allowed) })?;
    // SAFETY: every tested number is below the set's size in bits.
    let mut members = (0..size * 8).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &allowed) });
    let cpu = members.nth(index).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("no processor {index}"))
    })?;
    // SAFETY: as above.
    let mut only: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `cpu` is below the set's size in bits.
    unsafe { libc::CPU_SET(cpu, &mut only) };
    // SAFETY: `only` is a readable set of `size` bytes.
    check(unsafe { libc::sched_setaffinity(0, size, &raw const only) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::{boot_id, cpu_count, limit_files, memory_total, raise_fd_limit, require_fd_limit};

    #[test]
    fn the_machine_answers() {
        assert!(boot_id().unwrap() != 0);
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        assert!(cpu_count() >= 1);
        assert!(memory_total().unwrap() > 1 << 24);
    }

    #[test]
    fn every_group_above_may_limit_memory() {
        let files = limit_files("4:cpu,memory:/a/b\n3:cpuset:/x\n0::/pods/one\n");
        for file in [
            "/sys/fs/cgroup/memory.max",
            "/sys/fs/cgroup/pods/memory.max",
            "/sys/fs/cgroup/pods/one/memory.max",
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
        ] {
            assert!(files.iter().any(|found| found == file), "{file} in {files:?}");
        }
        assert!(!files.iter().any(|file| file.contains("/x/")), "{files:?}");
    }

    #[test]
    fn the_open_files_limit_is_checked() {
        let limit = raise_fd_limit().unwrap();
        assert_eq!(limit.soft, limit.hard);
        let text = require_fd_limit(u64::MAX - 1).unwrap_err().to_string();
        assert!(text.contains("ulimit -n"), "{text}");
    }
}
