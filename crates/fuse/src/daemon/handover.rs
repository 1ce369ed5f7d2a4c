//! The handover of mounts from one process to the next: after a crash, and in an upgrade.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use millpond_env::{RealClock, thread};
use millpond_fuse_wire::has_ended;

use super::Daemon;
use super::table::{Given, UpgradeWait, Upgraded};
use crate::admin::{Answer, Listed, MountState};
use crate::link::Kind;
use crate::mount::{Mount, MountFailure};

/// How long an upgrade waits for mounts that are being made or taken over.
const SETTLE: Duration = Duration::from_secs(5);
/// Time for requests in progress to finish before an upgrade is cancelled.
const PARK: Duration = Duration::from_secs(5);
/// The first and longest pause before a failed takeover is retried.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The limit of an upgrade: start, park and serve, and the rollback.
const UPGRADE: Duration = Duration::from_secs(45);
/// Time for the requester of an upgrade to receive the answer.
const FAREWELL: Duration = Duration::from_secs(1);

impl Daemon {
    /// Serves the mounts that the holder has given. With `standby` another daemon has the admin
    /// socket, and keeps it if a mount cannot be taken over.
    pub(super) fn begin(self: &Arc<Self>, standby: bool) -> io::Result<()> {
        let mut given = Vec::new();
        {
            let mut table = self.table.lock();
            for mount in std::mem::take(&mut table.given) {
                // After a cancelled upgrade some were never parked.
                let parked = |info: &Listed| info.state == MountState::Parked;
                if table.mounts.get(&mount.id).is_none_or(|entry| parked(&entry.info)) {
                    let info = Listed { state: MountState::Resuming, ..mount.info.clone() };
                    table.take_over(mount.id, info);
                    given.push(mount);
                }
            }
            table.taken_over += given.len();
            (table.begun, table.closed, table.idle_since) = (true, None, RealClock::tick());
        }
        if !standby && let Err(error) = self.open_door() {
            tracing::error!("{}: {error}", self.run_dir.socket().display());
            if given.is_empty() {
                return Err(error);
            }
        }
        let (sender, firsts) = channel();
        let count = given.len();
        for mount in given {
            let (daemon, sender) = (Arc::clone(self), sender.clone());
            thread("mp-resume", move || daemon.resume(mount, &sender))?;
        }
        drop(sender);
        let daemon = Arc::clone(self);
        thread("mp-begin", move || {
            let served = firsts.iter().take(count).filter(|served| *served).count();
            let mut failed = count - served;
            if standby
                && failed == 0
                && let Err(error) = daemon.open_door()
            {
                tracing::error!("{}: {error}", daemon.run_dir.socket().display());
                failed = 1;
            }
            daemon.holder.tell(Kind::Serving, failed as u64, b"");
        })
        .map(drop)
    }

    /// Takes a mount over, with retries until that works or the mount is gone. Reports the result
    /// of the first attempt.
    fn resume(self: &Arc<Self>, given: Given, first: &Sender<bool>) {
        let Given { id, info, blob, fds } = given;
        let name = info.mountpoint.display();
        let mut pause = PAUSE_MIN;
        loop {
            match copies(&fds).and_then(|fds| Mount::resume(&blob, fds)) {
                Ok(mount) => {
                    tracing::info!("{name} is served again");
                    self.put_back(id, mount);
                    let _ = first.send(true);
                    return;
                }
                Err(error) => tracing::warn!("{name} is not served yet: {error}"),
            }
            // The first descriptor is the memory.
            if fds.get(1).is_some_and(|fd| has_ended(fd.as_fd())) {
                tracing::info!("the mount at {name} has ended");
                self.forget(id);
                let _ = first.send(true);
                return;
            }
            let _ = first.send(false);
            if !self.waits_for(id, pause) {
                return;
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn put_back(&self, id: u64, mount: Mount) {
        let mut table = self.table.lock();
        if let Some(entry) = table.mounts.get_mut(&id) {
            entry.mount = Some(mount);
            entry.info.state = MountState::Serving;
            self.changed.notify_all();
            return;
        }
        // Given up in the meantime. Ending its threads takes a moment.
        drop(table);
        drop(mount);
    }

    /// Waits; false when the mount is no longer wanted.
    fn waits_for(&self, id: u64, pause: Duration) -> bool {
        let mut table = self.table.lock();
        let wanted = |table: &mut super::Table| {
            table.mounts.get(&id).is_some_and(|mount| mount.info.state == MountState::Resuming)
        };
        self.changed.wait_while_for(&mut table, wanted, pause);
        wanted(&mut table)
    }

    /// Stops serving every mount, or none.
    pub(super) fn park(self: &Arc<Self>) {
        let taken = {
            let mut table = self.table.lock();
            if let Some(entry) = table.unsettled() {
                let why = format!(
                    "{} is {} now: try again in a moment",
                    entry.info.mountpoint.display(),
                    entry.info.state.name()
                );
                drop(table);
                return self.holder.tell(Kind::NotParked, 0, why.as_bytes());
            }
            let over_io_uring = |mount: &Mount| mount.spec().io_uring;
            let bound =
                |entry: &&super::table::Entry| entry.mount.as_ref().is_some_and(over_io_uring);
            if let Some(entry) = table.mounts.values().find(bound) {
                let why = format!(
                    "{} is mounted with io_uring, and another process cannot take it over: unmount \
                     it first",
                    entry.info.mountpoint.display()
                );
                drop(table);
                return self.holder.tell(Kind::NotParked, 0, why.as_bytes());
            }
            table.closed = Some("the daemon is being upgraded");
            table.take_mounts(MountState::Parked)
        };
        let mut threads = Vec::new();
        for (id, mount) in taken {
            let parking = move || (id, mount.park(PARK));
            match thread("mp-park", parking) {
                Ok(thread) => threads.push(thread),
                // The mount is dropped with the closure, which parks it too.
                Err(error) => tracing::error!("cannot start a thread to park a mount: {error}"),
            }
        }
        let mut busy = Vec::new();
        for (id, parked) in threads.into_iter().filter_map(|thread| thread.join().ok()) {
            if let Err(mount) = parked {
                busy.push(mount.spec().target.display().to_string());
                self.put_back(id, *mount);
            }
        }
        if busy.is_empty() {
            return self.holder.tell(Kind::Parked, 0, b"");
        }
        let why = format!("requests at {} take longer than {PARK:?}", busy.join(", "));
        self.holder.tell(Kind::NotParked, 0, why.as_bytes());
    }

    /// Asks the holder to replace this process by another one.
    pub(super) fn upgrade(&self, program: &Path) -> Answer {
        let Some(program) = program.to_str() else {
            return Answer::Error("the program's path must be UTF-8: rename it".to_owned());
        };
        let mut table = self.table.lock();
        if table.upgrade != UpgradeWait::Nobody {
            return Answer::Error("an upgrade is in progress: wait for it".to_owned());
        }
        table.upgrade = UpgradeWait::Waiting;
        // Mounts being made or taken over are ready in a moment; `park` reports any that are not.
        let unsettled = |table: &mut super::Table| table.unsettled().is_some();
        self.changed.wait_while_for(&mut table, unsettled, SETTLE);
        self.holder.tell(Kind::Upgrade, 0, program.as_bytes());
        let waits = |table: &mut super::Table| table.upgrade == UpgradeWait::Waiting;
        self.changed.wait_while_for(&mut table, waits, UPGRADE);
        match std::mem::replace(&mut table.upgrade, UpgradeWait::Nobody) {
            UpgradeWait::Over(Ok((pid, pause_ms))) => Answer::Upgraded { pid, pause_ms },
            UpgradeWait::Over(Err(why)) => Answer::Error(format!("not upgraded: {why}")),
            _ => Answer::Error("the holder does not answer: see its log".to_owned()),
        }
    }

    /// Notes the outcome of an upgrade.
    pub(super) fn upgraded(&self, outcome: Upgraded) {
        let mut table = self.table.lock();
        if table.upgrade == UpgradeWait::Waiting {
            table.upgrade = UpgradeWait::Over(outcome);
        }
        self.changed.notify_all();
    }

    /// Waits until the requester of the upgrade has the answer.
    pub(super) fn take_leave(&self) {
        let mut table = self.table.lock();
        let waits = |table: &mut super::Table| table.answering > 0;
        self.changed.wait_while_for(&mut table, waits, FAREWELL);
    }
}

/// Duplicates descriptors: a failed attempt closes its own.
fn copies(fds: &[OwnedFd]) -> Result<Vec<OwnedFd>, MountFailure> {
    let copied: io::Result<Vec<OwnedFd>> = fds.iter().map(OwnedFd::try_clone).collect();
    copied.map_err(|source| MountFailure::Os { what: "copying descriptors", source })
}
