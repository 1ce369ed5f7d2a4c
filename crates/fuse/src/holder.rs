//! The process that outlives daemons: it keeps the state of each mount, and has one daemon serve
//! them all.
//!
//! It has one thread, opens nothing, and never accesses a mount point: a process that waits for a
//! mount cannot start the process that serves it. It keeps copies of descriptors; the kernel fails
//! a mount's requests only when the last copy is closed.
//!
//! An upgrade has three steps: the next daemon starts; the serving one parks its mounts; the next
//! one gets the kept state and serves. If anything fails before the end of the third step, the
//! holder ends the next daemon, and the previous one gets the kept state back and continues.

mod process;

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use millpond_env::files::FileLock;
use millpond_env::{RealClock, raise_fd_limit, wait_readable};
use millpond_types::Tick;

use self::process::DaemonProcess;
use crate::link::{Frame, Kind};
use crate::run_dir::RunDir;

/// A daemon that dies before it serves, or this soon after, may do so again (because of the same
/// request, which the kernel resends): the next start is delayed.
const QUICK: Duration = Duration::from_millis(50);
/// The first and the longest such delay. Five starts in a second cost a host little, and an
/// operation of an application that meets several deaths in a row stays below half a second.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// The number of failed starts after which the holder gives up if there is no mount.
const DEATHS_WITHOUT_MOUNTS_MAX: u32 = 5;
/// Time for the next daemon to start, and to serve once it has the mounts.
const SERVE: Duration = Duration::from_secs(10);
/// Time for a daemon to park its mounts: five seconds, and one for the answer.
const PARK: Duration = Duration::from_secs(6);
/// The interval of checks whether a killed daemon is stuck. Two positive results in a row count.
const LOOK: Duration = Duration::from_millis(150);
/// Time to unmount everything.
const STOP: Duration = Duration::from_secs(30);
/// Time to wait for the lock: the previous holder may be about to end.
const LOCK: Duration = Duration::from_secs(3);

/// Why there is no holder.
#[derive(Debug, thiserror::Error)]
pub enum HolderError {
    /// Another holder runs.
    #[error("another holder runs in {}", .0.display())]
    Another(PathBuf),
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

fn os(what: &'static str) -> impl Fn(io::Error) -> HolderError {
    move |source| HolderError::Os { what, source }
}

/// The state that another process needs to serve a mount.
#[derive(Debug)]
struct Kept {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// The progress of an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The next daemon has not said hello.
    Starting,
    /// The serving daemon was asked to park.
    Parking,
    /// The next daemon has received everything.
    Resuming,
}

#[derive(Debug)]
struct Upgrade {
    next: DaemonProcess,
    program: PathBuf,
    step: Step,
    until: Tick,
    parked_at: Tick,
}

struct Holder {
    run_dir: RunDir,
    program: PathBuf,
    kept: BTreeMap<u64, Kept>,
    primary: Option<DaemonProcess>,
    upgrade: Option<Upgrade>,
    /// Released daemons that have not ended yet.
    leaving: Vec<DaemonProcess>,
    /// Killed daemons that cannot end because a thread is blocked in the kernel.
    dying: Vec<DaemonProcess>,
    /// Whether the primary looked stuck at the last check.
    looks_stuck: bool,
    /// The time of the next check.
    look_at: Tick,
    /// The earliest time for the next start of a daemon.
    start_at: Tick,
    quick_deaths: u32,
    /// Since when the primary serves.
    served_at: Option<Tick>,
    /// When the previous daemon died, until the next one serves.
    died_at: Option<Tick>,
    /// The daemon has announced its end.
    ended: bool,
    stop_until: Option<Tick>,
}

/// Keeps mounts alive until there are none. `stop` becomes readable when everything is to be
/// unmounted.
///
/// # Errors
/// [`HolderError`]: another holder has the run directory, or no daemon can be started and there is
/// no mount.
pub fn hold(run_dir: &RunDir, program: PathBuf, stop: &UnixStream) -> Result<(), HolderError> {
    let _lock = lock(run_dir, stop)?;
    if let Err(error) = raise_fd_limit() {
        tracing::warn!("the limit of open files is unchanged: {error}");
    }
    tracing::info!(
        "the holder of {} starts, process {}",
        run_dir.path().display(),
        std::process::id()
    );
    let mut holder = Holder {
        run_dir: run_dir.clone(),
        program,
        kept: BTreeMap::new(),
        primary: None,
        upgrade: None,
        leaving: Vec::new(),
        dying: Vec::new(),
        looks_stuck: false,
        look_at: RealClock::tick(),
        start_at: RealClock::tick(),
        quick_deaths: 0,
        served_at: None,
        died_at: None,
        ended: false,
        stop_until: None,
    };
    holder.run(stop)?;
    tracing::info!("the holder of {} ends: nothing is mounted", run_dir.path().display());
    Ok(())
}

fn lock(run_dir: &RunDir, stop: &UnixStream) -> Result<FileLock, HolderError> {
    let until = RealClock::tick().plus(LOCK);
    loop {
        if let Some(lock) = FileLock::take(&run_dir.lock()).map_err(os("locking holder.lock"))? {
            return Ok(lock);
        }
        if RealClock::tick() >= until {
            return Err(HolderError::Another(run_dir.path().to_owned()));
        }
        wait_readable(&[stop.as_fd()], Some(PAUSE_MIN)).map_err(os("waiting"))?;
    }
}

/// The sender of a frame.
#[derive(Clone, Copy)]
enum Who {
    Stop,
    Primary,
    Next,
    Leaving(usize),
}

impl Holder {
    fn run(&mut self, stop: &UnixStream) -> Result<(), HolderError> {
        loop {
            let now = RealClock::tick();
            if self.is_over(now) {
                return Ok(());
            }
            if self.primary.is_none() && now >= self.start_at {
                self.start()?;
            }
            self.check_time(now);
            match self.wait(stop).map_err(os("waiting"))? {
                None => {}
                Some(Who::Stop) => self.begin_stop(stop),
                Some(Who::Primary) => self.hear_primary(),
                Some(Who::Next) => self.hear_next(),
                Some(Who::Leaving(index)) => self.hear_leaving(index),
            }
        }
    }

    fn is_over(&self, now: Tick) -> bool {
        if let Some(until) = self.stop_until
            && now >= until
        {
            tracing::error!("{} mounts are dropped: they did not end in time", self.kept.len());
            return true;
        }
        let done = self.ended || self.stop_until.is_some();
        self.primary.is_none() && self.kept.is_empty() && done
    }

    fn wait(&self, stop: &UnixStream) -> io::Result<Option<Who>> {
        let mut from = vec![(Who::Stop, stop.as_fd())];
        from.extend(self.primary.as_ref().map(|process| (Who::Primary, process.as_fd())));
        from.extend(self.upgrade.as_ref().map(|upgrade| (Who::Next, upgrade.next.as_fd())));
        let leaving = self.leaving.iter().enumerate();
        from.extend(leaving.map(|(index, process)| (Who::Leaving(index), process.as_fd())));
        let fds: Vec<BorrowedFd<'_>> = from.iter().map(|(_, fd)| *fd).collect();
        let times = [
            self.primary.is_none().then_some(self.start_at),
            self.upgrade.as_ref().map(|upgrade| upgrade.until),
            self.stop_until,
            self.primary.is_some().then_some(self.look_at),
        ];
        let now = RealClock::tick();
        let longest = times.into_iter().flatten().min().map(|until| until.since(now));
        let ready = wait_readable(&fds, longest)?;
        // One at a time: handling it may change the set of senders.
        Ok(ready.iter().position(|ready| *ready).map(|index| from[index].0))
    }

    fn check_time(&mut self, now: Tick) {
        if self.upgrade.as_ref().is_some_and(|upgrade| now >= upgrade.until) {
            self.roll_back("its time limit has passed");
        }
        if now >= self.look_at {
            self.look_at = now.plus(LOOK);
            self.dying.retain_mut(|process| !process.is_over());
            self.look_at_primary();
        }
    }

    /// Checks whether the primary is stuck.
    ///
    /// A thread that makes the kernel drop pages of a file waits there for readers, and those wait
    /// for an answer of this daemon. If the daemon is killed then, that thread keeps it from
    /// ending: only the next daemon gives the answer.
    fn look_at_primary(&mut self) {
        let is_stuck = self.primary.as_ref().is_some_and(DaemonProcess::is_stuck);
        if is_stuck && self.looks_stuck {
            self.primary_died();
        } else {
            self.looks_stuck = is_stuck;
        }
    }

    /// Ends a process, and returns a description of its end.
    fn end(&mut self, process: DaemonProcess) -> String {
        process.end().unwrap_or_else(|process| self.leave_dying(process))
    }

    fn leave_dying(&mut self, process: DaemonProcess) -> String {
        self.dying.push(process);
        "killed, but the kernel keeps it until the next daemon serves".to_owned()
    }

    fn begin_stop(&mut self, mut stop: &UnixStream) {
        let _ = stop.read(&mut [0; 64]);
        if self.stop_until.is_some() {
            return;
        }
        tracing::info!("stop requested: {} mounts are unmounted", self.kept.len());
        self.stop_until = Some(RealClock::tick().plus(STOP));
        if self.upgrade.is_some() {
            self.roll_back("all mounts are being unmounted");
        }
        self.tell_primary(Kind::Stop, 0, b"");
    }
}

/// Starts and ends of daemons.
impl Holder {
    fn start(&mut self) -> Result<(), HolderError> {
        self.ended = false;
        match DaemonProcess::start(&self.program, &self.run_dir) {
            Ok(process) => {
                tracing::info!(
                    "daemon {} starts, {} mounts are kept",
                    process.pid(),
                    self.kept.len()
                );
                self.primary = Some(process);
                self.give_primary();
                if self.stop_until.is_some() {
                    self.tell_primary(Kind::Stop, 0, b"");
                }
                Ok(())
            }
            Err(source) if self.kept.is_empty() => {
                Err(HolderError::Os { what: "starting the mount daemon", source })
            }
            Err(error) => {
                tracing::error!("cannot start {}: {error}", self.program.display());
                self.back_off();
                Ok(())
            }
        }
    }

    fn give_primary(&mut self) {
        let Some(primary) = &self.primary else { return };
        if let Err(error) = primary.give(self.kept.iter(), false) {
            tracing::error!("cannot give the mounts to daemon {}: {error}", primary.pid());
            self.primary_died();
        }
    }

    fn tell_primary(&mut self, kind: Kind, id: u64, body: &[u8]) {
        let Some(primary) = &self.primary else { return };
        if let Err(error) = primary.say(kind, id, body) {
            tracing::error!("cannot send to daemon {}: {error}", primary.pid());
            self.primary_died();
        }
    }

    fn back_off(&mut self) {
        let pause = PAUSE_MIN.saturating_mul(1 << self.quick_deaths.min(10)).min(PAUSE_MAX);
        self.quick_deaths += 1;
        self.start_at = RealClock::tick().plus(pause);
    }

    fn primary_died(&mut self) {
        let Some(primary) = self.primary.take() else { return };
        let now = RealClock::tick();
        let (pid, lived) = (primary.pid(), now.since(primary.started));
        let is_stuck = std::mem::take(&mut self.looks_stuck) && primary.is_stuck();
        let how = if is_stuck { self.leave_dying(primary) } else { self.end(primary) };
        if self.ended && self.kept.is_empty() {
            tracing::info!("daemon {pid} ended cleanly: {how}");
            return;
        }
        tracing::warn!(
            "daemon {pid} died after {lived:?} ({how}), {} mounts wait",
            self.kept.len()
        );
        self.died_at = Some(now);
        self.start_at = now;
        let served = self.served_at.take().map_or(Duration::ZERO, |at| now.since(at));
        if served < QUICK {
            self.back_off();
        } else {
            self.quick_deaths = 0;
        }
        if self.kept.is_empty() && self.quick_deaths > DEATHS_WITHOUT_MOUNTS_MAX {
            tracing::error!("no daemon stays alive and nothing is mounted: the holder ends");
            self.ended = true;
        }
        match self.upgrade.take() {
            // It has not received anything yet: a normal start works as well.
            Some(Upgrade { next, step: Step::Starting, .. }) => drop(self.end(next)),
            Some(upgrade) => {
                tracing::warn!("the next daemon, {}, takes over at once", upgrade.next.pid());
                self.program = upgrade.program;
                self.primary = Some(upgrade.next);
                if upgrade.step == Step::Parking {
                    self.give_primary();
                }
            }
            None => {}
        }
    }

    fn hear_primary(&mut self) {
        let heard = match &self.primary {
            Some(primary) => primary.hear(),
            None => return,
        };
        match heard {
            Ok(Some(frame)) => self.primary_said(frame),
            Ok(None) => self.primary_died(),
            Err(error) => {
                tracing::error!("the daemon violated the protocol: {error}");
                self.primary_died();
            }
        }
    }

    fn primary_said(&mut self, frame: Frame) {
        match frame.kind {
            Kind::Keep => {
                let id = frame.id;
                self.kept.insert(id, Kept { bytes: frame.body, fds: frame.fds });
                self.tell_primary(Kind::Kept, id, b"");
            }
            Kind::Drop => drop(self.kept.remove(&frame.id)),
            Kind::Serving => self.note_serving(frame.id),
            Kind::Upgrade => self.begin_upgrade(PathBuf::from(frame.text())),
            Kind::Parked => self.give_next(),
            Kind::NotParked => {
                self.roll_back(&frame.text());
                // Some of its mounts may be parked.
                self.give_primary();
            }
            Kind::Ended => self.ended = true,
            // Not for a holder, or not of interest.
            Kind::Hello
            | Kind::Kept
            | Kind::Begin
            | Kind::UpgradeFailed
            | Kind::Park
            | Kind::Release
            | Kind::Stop => {}
        }
    }

    fn hear_leaving(&mut self, index: usize) {
        if !matches!(self.leaving[index].hear(), Ok(Some(_))) {
            let left = self.leaving.swap_remove(index);
            // Not within the log line, which evaluates its arguments only if it is written: a
            // process that is not reaped stays a zombie.
            let how = self.end(left);
            tracing::debug!("the previous daemon ended: {how}");
        }
    }

    fn note_serving(&mut self, failed: u64) {
        self.served_at = Some(RealClock::tick());
        let away = self.died_at.take().map(|died| RealClock::tick().since(died));
        match away {
            Some(away) if failed == 0 => {
                tracing::info!("all mounts are served again after {away:?}");
            }
            Some(away) => tracing::warn!("{failed} mounts are not served yet after {away:?}"),
            None => {}
        }
    }
}

/// Upgrades.
impl Holder {
    fn begin_upgrade(&mut self, program: PathBuf) {
        if self.upgrade.is_some() || self.stop_until.is_some() {
            let why = "an upgrade or a stop is in progress: wait for it";
            return self.tell_primary(Kind::UpgradeFailed, 0, why.as_bytes());
        }
        tracing::info!("upgrade to {}", program.display());
        let now = RealClock::tick();
        match DaemonProcess::start(&program, &self.run_dir) {
            Ok(next) => {
                let (step, until) = (Step::Starting, now.plus(SERVE));
                self.upgrade = Some(Upgrade { next, program, step, until, parked_at: now });
            }
            Err(error) => {
                let why = format!("cannot start {}: {error}", program.display());
                self.tell_primary(Kind::UpgradeFailed, 0, why.as_bytes());
            }
        }
    }

    fn hear_next(&mut self) {
        let Some(upgrade) = &self.upgrade else { return };
        let frame = match upgrade.next.hear() {
            Ok(Some(frame)) => frame,
            Ok(None) => return self.roll_back("it ended; see the log"),
            Err(error) => return self.roll_back(&format!("it violated the protocol: {error}")),
        };
        match (frame.kind, upgrade.step) {
            (Kind::Hello, Step::Starting) => self.park_primary(),
            (Kind::Drop, _) => drop(self.kept.remove(&frame.id)),
            (Kind::Serving, Step::Resuming) if frame.id == 0 => self.finish_upgrade(),
            (Kind::Serving, Step::Resuming) => {
                self.roll_back(&format!(
                    "{} mounts could not be taken over; see the log",
                    frame.id
                ));
            }
            _ => {}
        }
    }

    fn park_primary(&mut self) {
        let now = RealClock::tick();
        if let Some(upgrade) = &mut self.upgrade {
            (upgrade.step, upgrade.until, upgrade.parked_at) = (Step::Parking, now.plus(PARK), now);
        }
        self.tell_primary(Kind::Park, 0, b"");
    }

    /// The primary has parked everything.
    fn give_next(&mut self) {
        let Some(upgrade) = &mut self.upgrade else {
            // Rolled back in the meantime.
            return self.give_primary();
        };
        (upgrade.step, upgrade.until) = (Step::Resuming, RealClock::tick().plus(SERVE));
        if let Err(error) = upgrade.next.give(self.kept.iter(), true) {
            self.roll_back(&format!("cannot give it the mounts: {error}"));
        }
    }

    fn finish_upgrade(&mut self) {
        let Some(upgrade) = self.upgrade.take() else { return };
        let pause = RealClock::tick().since(upgrade.parked_at);
        let pid = upgrade.next.pid();
        tracing::info!("daemon {pid} serves after a pause of {pause:?}");
        self.served_at = Some(RealClock::tick());
        self.program = upgrade.program;
        if let Some(before) = self.primary.replace(upgrade.next) {
            let ms = pause.as_millis().to_string();
            match before.say(Kind::Release, u64::from(pid), ms.as_bytes()) {
                Ok(()) => self.leaving.push(before),
                Err(_) => drop(self.end(before)),
            }
        }
    }

    /// Ends the next daemon; the previous one continues.
    fn roll_back(&mut self, why: &str) {
        let Some(upgrade) = self.upgrade.take() else { return };
        tracing::warn!("the upgrade is rolled back: {why}");
        let how = self.end(upgrade.next);
        tracing::info!("the next daemon ended: {how}");
        if upgrade.step == Step::Resuming {
            self.give_primary();
        }
        let why = format!("{why}; the previous daemon continues");
        self.tell_primary(Kind::UpgradeFailed, 0, why.as_bytes());
    }
}
