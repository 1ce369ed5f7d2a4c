//! A daemon, as its holder sees it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use millpond_env::{RealClock, is_stuck_dying, wait_readable};
use millpond_types::Tick;

use super::Kept;
use crate::link::{self, Frame, Kind};
use crate::run_dir::RunDir;

/// The interval of checks whether a killed daemon has ended.
const ENDS: Duration = Duration::from_millis(1);
/// After this time, a killed daemon that is blocked in the kernel is no longer waited for.
const STUCK: Duration = Duration::from_millis(100);
/// A daemon that does not read, or does not finish a frame, within this time hangs: it is ended.
const FRAME: Duration = Duration::from_secs(5);

/// A child process that serves mounts, or is about to.
#[derive(Debug)]
pub(super) struct DaemonProcess {
    child: Child,
    socket: UnixStream,
    pub(super) started: Tick,
}

impl DaemonProcess {
    /// Starts `program` as a daemon. Its standard input is the socket, its standard error ours.
    pub(super) fn start(program: &Path, run_dir: &RunDir) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_read_timeout(Some(FRAME))?;
        socket.set_write_timeout(Some(FRAME))?;
        let child = Command::new(program)
            .args(["mount-daemon", "--run-dir"])
            .arg(run_dir.path())
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { child, socket, started: RealClock::tick() })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn say(&self, kind: Kind, id: u64, body: &[u8]) -> io::Result<()> {
        link::send(&self.socket, (kind, id), body, &[])
    }

    /// Waits for a frame; `None` when the process is gone.
    pub(super) fn hear(&self) -> io::Result<Option<Frame>> {
        link::receive(&self.socket)
    }

    /// Passes it all kept state, and has it serve.
    pub(super) fn give<'k>(
        &self,
        kept: impl Iterator<Item = (&'k u64, &'k Kept)>,
        standby: bool,
    ) -> io::Result<()> {
        for (id, mount) in kept {
            let fds: Vec<BorrowedFd<'_>> = mount.fds.iter().map(AsFd::as_fd).collect();
            link::send(&self.socket, (Kind::Keep, *id), &mount.bytes, &fds)?;
        }
        self.say(Kind::Begin, u64::from(standby), b"")
    }

    /// Whether it was killed and cannot end because a thread is blocked in the kernel.
    pub(super) fn is_stuck(&self) -> bool {
        is_stuck_dying(self.child.id())
    }

    /// Whether it is over, for a daemon that could not be reaped before.
    pub(super) fn is_over(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends it, if it has not ended yet, and returns a description of its end; or returns it
    /// unchanged, when it was killed and cannot end yet.
    pub(super) fn end(mut self) -> Result<String, Self> {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
        }
        let since = RealClock::tick();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status.to_string()),
                Err(error) => return Ok(error.to_string()),
                Ok(None) if RealClock::tick().since(since) > STUCK && self.is_stuck() => {
                    return Err(self);
                }
                Ok(None) => {
                    let _ = wait_readable(&[], Some(ENDS));
                }
            }
        }
    }
}

impl AsFd for DaemonProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
