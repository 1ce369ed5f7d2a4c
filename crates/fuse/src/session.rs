//! Background work of a mount: it reports written bytes to metas soon after the writes, and renews
//! the session.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_env::{RealClock, ThreadHandle, thread};
use millpond_types::Tick;
use millpond_types::meta::{Ino, MetaError, MetaOp, MetaReply, Session};
use parking_lot::{Condvar, Mutex};

use crate::backend::{Backend, unexpected};
use crate::behind::Delegations;
use crate::errno::Errno;
use crate::fs::Fs;

/// The delay of a report: other mounts that read a file being written see a state older by this.
const TELL_AFTER: Duration = Duration::from_millis(10);
/// The delay while a file is written continuously: each report is a commit of a meta.
const TELL_AGAIN: Duration = Duration::from_millis(30);
/// The pause before a failed release of locks is repeated.
const UNLOCK_AGAIN: Duration = Duration::from_secs(5);
/// How long a daemon that parks a mount waits for its background work, which may wait for the
/// cluster for a minute.
const LEAVE: Duration = Duration::from_secs(2);
/// The interval of checks whether this mount has removed something, so that the bytes are freed
/// soon, by renewals in quick succession.
const REMOVED_LOOK: Duration = Duration::from_secs(1);
const SOON_ROUNDS: u32 = 4;
/// The interval of checks whether the threads have ended.
const LOOK: Duration = Duration::from_millis(5);

/// Wakes a thread of a mount.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    due: Mutex<bool>,
    woken: Condvar,
    ended: AtomicBool,
}

impl Wake {
    /// Signals that there is something to report.
    pub(crate) fn wake(&self) {
        *self.due.lock() = true;
        self.woken.notify_one();
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
    }

    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Waits until there is something to report, for at most `longest`; returns whether there is.
    fn wait(&self, longest: Duration) -> bool {
        let mut due = self.due.lock();
        if !*due {
            self.woken.wait_for(&mut due, longest);
        }
        std::mem::take(&mut *due)
    }
}

/// The threads that renew a mount's session and report written bytes to metas; dropping it ends
/// them.
///
/// There are two: a report of a file waits for its writes, which may wait for a chain for a minute,
/// and by then the session would have expired.
pub(crate) struct Keeper {
    fs: Arc<Fs>,
    /// Wakes the renewing thread.
    renews: Arc<Wake>,
    threads: Vec<ThreadHandle<()>>,
    left: bool,
}

impl Keeper {
    /// Ends the threads; another process continues the session. Work that takes longer than
    /// [`LEAVE`] ends by itself, without access to the journal.
    pub(crate) fn leave(mut self) {
        self.left = true;
        self.end();
        let until = RealClock::tick().plus(LEAVE);
        let never = Wake::default();
        while self.threads.iter().any(|thread| !thread.is_finished())
            && !until.since(RealClock::tick()).is_zero()
        {
            never.wait(LOOK);
        }
        self.fs.files().leave();
    }

    fn end(&self) {
        self.renews.end();
        self.fs.wake.end();
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        self.end();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        // Closed files have nothing left to report; the others report as much as possible.
        for ino in self.fs.files().take_untold() {
            if self.fs.tell(ino).is_err() {
                break;
            }
        }
        let backend = &self.fs.backend;
        if backend.meta(&mut backend.own_ticket(), MetaOp::SessionClose).is_err() {
            tracing::warn!("the session could not be closed: it ends by itself in a minute");
        }
    }
}

/// Begins a session.
pub(crate) fn begin(backend: &Backend, name: &str) -> Result<Session, Errno> {
    let session = open_session(backend, name)?;
    backend.enter(session.id);
    Ok(session)
}

fn open_session(backend: &Backend, name: &str) -> Result<Session, Errno> {
    let op = MetaOp::SessionOpen { name: name.to_owned() };
    let MetaReply::Session(session) = backend.meta(&mut backend.own_ticket(), op)? else {
        return Err(unexpected());
    };
    Ok(session)
}

/// Starts the threads that keep the session. A session of an earlier process is renewed at once: it
/// may be about to expire.
///
/// # Errors
/// When the system has no thread left.
pub(crate) fn keep(
    fs: &Arc<Fs>,
    name: String,
    (session, is_taken_over): (Session, bool),
) -> std::io::Result<Keeper> {
    let (renews, every) = (Arc::new(Wake::default()), lease_of(session) / 4);
    let threads = Vec::with_capacity(2);
    // If the threads cannot be started, the next attempt uses the session.
    let mut keeper = Keeper { fs: Arc::clone(fs), renews, threads, left: true };
    let (of_thread, renews) = (Arc::clone(fs), Arc::clone(&keeper.renews));
    let renew = move || renew_until_ended(&of_thread, &renews, (&name, every), is_taken_over);
    keeper.threads.push(thread("mp-session", renew)?);
    let of_thread = Arc::clone(fs);
    match thread("mp-tell", move || tell_until_ended(&of_thread)) {
        Ok(thread) => keeper.threads.push(thread),
        Err(error) => {
            keeper.leave();
            return Err(error);
        }
    }
    keeper.left = false;
    Ok(keeper)
}

fn lease_of(session: Session) -> Duration {
    Duration::from_millis(u64::from(session.lease_ms))
}

fn renew_until_ended(fs: &Fs, wake: &Wake, (name, every): (&str, Duration), at_once: bool) {
    let mut due = RealClock::tick().plus(if at_once { Duration::ZERO } else { every });
    let (mut open, mut closed) = (Vec::new(), Vec::new());
    let mut soon = 0_u32;
    while !wake.is_ended() {
        let now = RealClock::tick();
        if fs.backend.removed.swap(false, Ordering::AcqRel) {
            // A round of garbage collection has to notice that first.
            soon = SOON_ROUNDS;
            due = due.min(now.plus(every / 16));
        }
        let left = due.since(now);
        if !left.is_zero() {
            wake.wait(left.min(REMOVED_LOOK));
            continue;
        }
        soon = soon.saturating_sub(1);
        let asked = renew(fs, name, (std::mem::take(&mut open), std::mem::take(&mut closed)));
        (open, closed) = fs.files().split(asked);
        // The meta asks about orphans: the next renewal comes soon, so that their bytes are freed.
        let asked = !(open.is_empty() && closed.is_empty());
        due = RealClock::tick().plus(if asked || soon > 0 { every / 16 } else { every });
    }
}

fn tell_until_ended(fs: &Fs) {
    let (mut told, mut unlocked) = (None, RealClock::tick());
    while !fs.wake.is_ended() {
        if fs.wake.wait(UNLOCK_AGAIN) {
            let woken = RealClock::tick();
            let goes_on = told.is_some_and(|told: Tick| woken.since(told) < TELL_AFTER);
            tell_written(fs, woken.plus(if goes_on { TELL_AGAIN } else { TELL_AFTER }));
            told = Some(RealClock::tick());
        }
        if RealClock::tick().since(unlocked) >= UNLOCK_AGAIN && !fs.wake.is_ended() {
            fs.unlock_left();
            unlocked = RealClock::tick();
        }
    }
}

/// Lets writes accumulate until `end`, then reports all of them to metas.
fn tell_written(fs: &Fs, end: Tick) {
    while !fs.wake.is_ended() {
        let left = end.since(RealClock::tick());
        if left.is_zero() {
            break;
        }
        fs.wake.wait(left);
    }
    for ino in fs.files().take_untold() {
        if fs.wake.is_ended() {
            fs.files().note_untold(ino);
            continue;
        }
        if fs.is_in_use(ino) {
            // The others do not wait for it.
            fs.files().note_untold(ino);
            fs.wake.wake();
            continue;
        }
        // A concurrent close of the file does not wait for a meta either.
        if !fs.promises_bytes(ino) && fs.tell(ino).is_err() {
            // The writer gets the rejection, and the bytes are not reported again.
            if !fs.files().is_refused(ino) {
                fs.files().note_untold(ino);
            }
        } else if fs.files().is_untold(ino) {
            // More was written during the report, or to chunks that the file has since replaced.
            fs.files().note_untold(ino);
            fs.wake.wake();
        }
    }
}

/// Renews the session; returns the inodes that the meta asks about.
fn renew(fs: &Fs, name: &str, (open, closed): (Vec<Ino>, Vec<Ino>)) -> Vec<Ino> {
    let backend = &fs.backend;
    let op = MetaOp::SessionRenew { open, closed };
    match backend.meta(&mut backend.own_ticket(), op) {
        Ok(MetaReply::Renewed { asked }) => asked,
        Err(errno) if errno == Errno::from(MetaError::Stale) => {
            tracing::warn!("the session expired while no meta was reached: a new session begins");
            if let Ok(session) = open_session(backend, name) {
                backend.behind.delegations.iter().for_each(Delegations::lose);
                backend.replace_session(session.id);
            }
            Vec::new()
        }
        _ => Vec::new(),
    }
}
