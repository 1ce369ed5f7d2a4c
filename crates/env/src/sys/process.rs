//! Other processes, by number and start time, so that a reused number is not mistaken for the old
//! process.

use std::io;
use std::os::fd::AsRawFd as _;

use super::{check, own};

/// A process that existed once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since this boot.
    pub started: u64,
}

/// A signal to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessSignal {
    /// Shut down cleanly.
    Terminate,
    /// End now.
    Kill,
    /// Stop running.
    Stop,
    /// Go on.
    Continue,
}

impl ProcessSignal {
    const fn number(self) -> i32 {
        match self {
            Self::Terminate => libc::SIGTERM,
            Self::Kill => libc::SIGKILL,
            Self::Stop => libc::SIGSTOP,
            Self::Continue => libc::SIGCONT,
        }
    }
}

/// The kernel's status of a process.
struct Stat {
    /// State of its first thread.
    state: u8,
    threads: u64,
    started: u64,
}

impl Stat {
    /// Read from `/proc/PID/stat`.
    fn of(pid: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses and may hold anything, parentheses included.
        let mut fields = text.get(text.rfind(')')? + 1..)?.split_whitespace();
        let state = *fields.next()?.as_bytes().first()?;
        // Fields 20 and 22 of the line; the state was field 3.
        let threads = fields.nth(16)?.parse().ok()?;
        let started = fields.nth(1)?.parse().ok()?;
        Some(Self { state, threads, started })
    }

    /// The first thread of a killed process may end before the others: until those end too, its
    /// files and ports are in use.
    const fn has_ended(&self) -> bool {
        self.state == b'X' || self.state == b'Z' && self.threads <= 1
    }
}

impl ProcessId {
    /// The process that has this number now; `None` when there is none, or it has ended already.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let stat = Stat::of(pid)?;
        (!stat.has_ended()).then_some(Self { pid, started: stat.started })
    }

    /// True while it runs or is stopped.
    #[must_use]
    pub fn is_there(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// True while it is stopped.
    #[must_use]
    pub fn is_stopped(self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| stat.state == b'T' && stat.started == self.started)
    }

    /// Sends it a signal; false when it is gone. A process that reuses its number is never hit.
    ///
    /// # Errors
    /// Errors of the operating system; `PermissionDenied` for another user's process.
    pub fn signal(self, signal: ProcessSignal) -> io::Result<bool> {
        let gone = |error: io::Error| match error.raw_os_error() {
            Some(libc::ESRCH) => Ok(false),
            _ => Err(error),
        };
        // SAFETY: pidfd_open takes plain numbers and makes a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, 0) };
        let fd = match own(i32::try_from(fd).unwrap_or(-1)) {
            Ok(fd) => fd,
            Err(error) => return gone(error),
        };
        // The descriptor stays with one process; if that is the right one now, it stays so.
        if !self.is_there() {
            return Ok(false);
        }
        let none = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: plain numbers and no siginfo.
        let sent = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, fd.as_raw_fd(), signal.number(), none, 0)
        };
        check(i32::try_from(sent).unwrap_or(-1)).map(|_| true).or_else(gone)
    }
}

/// Whether a process was killed but has not ended: one of its threads is inside the kernel, where
/// no signal reaches it, and keeps its files open. None of its threads executes user code any more.
#[must_use]
pub fn is_stuck_dying(pid: u32) -> bool {
    let Some(stat) = Stat::of(pid).filter(|stat| !stat.has_ended()) else { return false };
    if stat.state == b'Z' {
        return true;
    }
    // The first thread itself.
    let pending = std::fs::read_to_string(format!("/proc/{pid}/status")).ok();
    let pending = pending.as_deref().and_then(|text| text.split("\nSigPnd:").nth(1));
    let pending = pending.and_then(|rest| rest.lines().next()).map(str::trim);
    let kill = 1 << (libc::SIGKILL - 1);
    pending
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .is_some_and(|signals| signals & kill != 0)
}

/// Leaves the session and the process group of the parent process: Ctrl-C and hang-ups of its
/// terminal do not reach this process any more.
///
/// # Errors
/// `PermissionDenied` for the leader of a process group.
pub fn begin_session() -> io::Result<()> {
    // SAFETY: takes nothing.
    check(unsafe { libc::setsid() }).map(drop)
}

/// The user id that the kernel checks permissions of this process against.
#[must_use]
pub fn effective_uid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// The group id that the kernel checks permissions of this process against.
#[must_use]
pub fn effective_gid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::getegid() }
}

/// The supplementary groups of this process.
///
/// # Errors
/// Errors of the operating system; another thread may have changed the groups during the call.
pub fn supplementary_groups() -> io::Result<Vec<u32>> {
    // SAFETY: with a size of zero, nothing is written.
    let count = check(unsafe { libc::getgroups(0, std::ptr::null_mut()) })?;
    let mut groups = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: `groups` has room for `count` numbers, and the call writes at most as many.
    let filled = check(unsafe { libc::getgroups(count, groups.as_mut_ptr()) })?;
    groups.truncate(usize::try_from(filled).unwrap_or(0));
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{ProcessId, ProcessSignal};

    #[test]
    fn a_process_is_hit_only_while_it_is_the_same() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let id = ProcessId::of(child.id()).unwrap();
        assert!(id.is_there());
        let other = ProcessId { started: id.started + 1, ..id };
        assert!(!other.is_there());
        assert!(!other.signal(ProcessSignal::Kill).unwrap());
        assert!(id.signal(ProcessSignal::Stop).unwrap());
        while !id.is_stopped() {
            std::thread::yield_now();
        }
        assert!(id.is_there());
        assert!(id.signal(ProcessSignal::Continue).unwrap());
        assert!(id.signal(ProcessSignal::Kill).unwrap());
        // Not waited for yet: a zombie counts as gone.
        while id.is_there() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!id.signal(ProcessSignal::Kill).unwrap());
        assert_eq!(ProcessId::of(child.id()), None);
    }
}
