//! The process that serves all mounts of a run directory, for a holder that outlives it.
//!
//! `link` and the loop here communicate with the holder, `door` with operators. `table` has the
//! mounts, `mounts` makes and ends them, `handover` takes them from an earlier process and leaves
//! them to the next. The process must not have a file of a mount open or its working directory in
//! one: the kernel would send it requests about them while it starts or ends.

mod door;
mod handover;
mod link;
mod mounts;
mod table;

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use millpond_env::{LocalListener, RealClock, raise_fd_limit, thread};
use parking_lot::{Condvar, Mutex};

use self::link::HolderLink;
use self::table::{Table, unpack};
use crate::link::{Frame, Kind, receive};
use crate::run_dir::RunDir;

/// The interval between checks for ended mounts.
const LOOK: Duration = Duration::from_millis(50);
/// Without a mount and a connection the daemon ends after this.
const IDLE: Duration = Duration::from_secs(1);
/// Time for unmounted mounts to end; open files keep some.
const END: Duration = Duration::from_secs(5);

/// Why the daemon failed.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The holder is gone, and with it the state that lets mounts outlive this process.
    #[error("the holder is gone: all mounts were unmounted; mount again")]
    HolderGone,
    /// An error of the system.
    #[error("{what}: {source}")]
    Os {
        /// The step that failed.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

fn os(what: &'static str) -> impl Fn(io::Error) -> DaemonError {
    move |source| DaemonError::Os { what, source }
}

struct Daemon {
    run_dir: RunDir,
    holder: HolderLink,
    table: Mutex<Table>,
    /// Signals a change of the table, or a sent answer.
    changed: Condvar,
    door: Mutex<Option<Arc<LocalListener>>>,
    started_unix_ms: u64,
}

/// The action after a frame of the holder.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Listen,
    End,
}

/// Serves mounts for the holder at the other end of `holder` until there are none, or another
/// process serves them.
///
/// # Errors
/// [`DaemonError`]; this process leaves no mount behind.
pub fn serve(run_dir: &RunDir, holder: &UnixStream) -> Result<(), DaemonError> {
    if let Err(error) = raise_fd_limit() {
        tracing::warn!("the limit of open files is unchanged: {error}");
    }
    let writer = holder.try_clone().map_err(os("the holder's socket"))?;
    let daemon = Arc::new(Daemon {
        run_dir: run_dir.clone(),
        holder: HolderLink::new(writer),
        table: Mutex::new(Table::new()),
        changed: Condvar::new(),
        door: Mutex::new(None),
        started_unix_ms: RealClock::wall_ms(),
    });
    daemon.holder.tell(Kind::Hello, 0, env!("CARGO_PKG_VERSION").as_bytes());
    let looking = Arc::clone(&daemon);
    let _runs_until_the_end =
        thread("mp-look", move || looking.look()).map_err(os("starting a thread"))?;
    loop {
        match receive(holder) {
            Ok(Some(frame)) => {
                if daemon.told(frame).map_err(os("handling a message of the holder"))? == Next::End
                {
                    return Ok(());
                }
            }
            Ok(None) if daemon.table.lock().closed == Some(ENDS) => return Ok(()),
            Ok(None) => break,
            Err(error) => {
                tracing::error!("the holder's socket: {error}");
                break;
            }
        }
    }
    daemon.without_holder();
    Err(DaemonError::HolderGone)
}

/// No mounts are accepted any more.
const ENDS: &str = "the mount daemon is stopping";

impl Daemon {
    fn told(self: &Arc<Self>, frame: Frame) -> io::Result<Next> {
        match frame.kind {
            Kind::Keep => match unpack(frame.id, &frame.body, frame.fds) {
                Ok(given) => self.table.lock().given.push(given),
                Err(error) => tracing::error!("mount {} cannot be decoded: {error}", frame.id),
            },
            Kind::Kept => self.holder.confirm(frame.id),
            Kind::Begin => self.begin(frame.id == 1)?,
            Kind::Park => {
                let daemon = Arc::clone(self);
                let _tells_the_holder = thread("mp-park-all", move || daemon.park())?;
            }
            Kind::UpgradeFailed => self.upgraded(Err(frame.text())),
            Kind::Release => {
                let (pid, ms) = (u32::try_from(frame.id).unwrap_or(0), frame.text());
                tracing::info!("daemon {pid} serves the mounts: this daemon ends");
                self.upgraded(Ok((pid, ms.parse().unwrap_or(0))));
                self.take_leave();
                return Ok(Next::End);
            }
            Kind::Stop => {
                let daemon = Arc::clone(self);
                let _ends_the_daemon = thread("mp-stop", move || daemon.stop())?;
            }
            // Not for a daemon.
            Kind::Drop
            | Kind::Hello
            | Kind::Serving
            | Kind::Upgrade
            | Kind::Parked
            | Kind::NotParked
            | Kind::Ended => {}
        }
        Ok(Next::Listen)
    }

    /// Removes ended mounts, and checks whether there is anything left to do.
    fn look(self: &Arc<Self>) {
        loop {
            self.reap();
            let mut table = self.table.lock();
            let idle = table.begun && table.mounts.is_empty() && table.connections == 0;
            if idle && table.closed.is_none() && RealClock::tick().since(table.idle_since) >= IDLE {
                table.closed = Some(ENDS);
                drop(table);
                tracing::info!("nothing is mounted: the daemon ends");
                return self.end();
            }
            self.changed.wait_for(&mut table, LOOK);
        }
    }

    fn end(&self) {
        self.close_door();
        self.holder.tell(Kind::Ended, 0, b"");
        self.holder.close();
    }

    /// Unmounts everything and ends.
    fn stop(&self) {
        self.table.lock().closed = Some("all mounts are being unmounted");
        self.close_door();
        let until = RealClock::tick().plus(END);
        loop {
            // Repeatedly: some may just be mounting.
            self.unmount_all(false);
            let mut table = self.table.lock();
            if table.mounts.is_empty() || RealClock::tick() >= until {
                break;
            }
            self.changed.wait_for(&mut table, LOOK);
        }
        let left: Vec<u64> = self.table.lock().mounts.keys().copied().collect();
        if !left.is_empty() {
            tracing::warn!(
                "{} mounts have open files: programs that use these files get errors",
                left.len()
            );
        }
        for id in left {
            self.forget(id);
        }
        self.table.lock().closed = Some(ENDS);
        self.end();
    }

    /// Ends all mounts, because a mount that dies with this process is worse than none:
    /// applications would hang.
    fn without_holder(&self) {
        tracing::error!(
            "the holder is gone: all mounts are unmounted lazily and the daemon ends; mount again"
        );
        self.table.lock().closed = Some(ENDS);
        self.close_door();
        self.unmount_all(true);
        let mut table = self.table.lock();
        let there = |table: &mut Table| !table.mounts.is_empty();
        self.changed.wait_while_for(&mut table, there, END);
    }
}
