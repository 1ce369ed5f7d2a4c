//! What a mount does by itself: it tells metas what was written, soon after, and that it lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_env::{RealClock, ThreadHandle, thread};
use millpond_types::Tick;
use millpond_types::meta::{Ino, MetaError, MetaOp, MetaReply, Session};
use parking_lot::{Condvar, Mutex};

use crate::backend::{Backend, unexpected};
use crate::errno::Errno;
use crate::fs::Fs;

/// Other mounts may look at a file that is written to: they see what is older than this.
const TELL_AFTER: Duration = Duration::from_millis(10);
/// The same while it is written to all the time: each word is a commit of a meta.
const TELL_AGAIN: Duration = Duration::from_millis(30);

/// Wakes the thread of a mount.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    due: Mutex<bool>,
    woken: Condvar,
    ended: AtomicBool,
}

impl Wake {
    /// There is something to tell.
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

    /// Waits until there is something to tell, at most so long.
    fn wait(&self, longest: Duration) -> bool {
        let mut due = self.due.lock();
        if !*due {
            self.woken.wait_for(&mut due, longest);
        }
        std::mem::take(&mut *due)
    }
}

/// The thread that keeps a mount's session; ends it when dropped.
pub(crate) struct Keeper {
    fs: Arc<Fs>,
    thread: Option<ThreadHandle<()>>,
    left: bool,
}

impl Keeper {
    /// Ends the thread; another process goes on with the session.
    pub(crate) fn leave(mut self) {
        self.stop();
        self.left = true;
    }

    fn stop(&mut self) {
        self.fs.wake.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
        if self.left {
            return;
        }
        // Those that are closed have nothing left to tell; of others what can be told is.
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
    let op = MetaOp::SessionOpen { name: name.to_owned() };
    let MetaReply::Session(session) = backend.meta(&mut backend.own_ticket(), op)? else {
        return Err(unexpected());
    };
    backend.enter(session.id);
    Ok(session)
}

/// Starts the thread that keeps the session.
///
/// # Errors
/// When the system has no thread left.
pub(crate) fn keep(fs: &Arc<Fs>, name: String, session: Session) -> std::io::Result<Keeper> {
    let of_thread = Arc::clone(fs);
    let every = Duration::from_millis(u64::from(session.lease_ms)) / 4;
    let thread = thread("mp-session", move || run(&of_thread, &name, every))?;
    Ok(Keeper { fs: Arc::clone(fs), thread: Some(thread), left: false })
}

fn run(fs: &Fs, name: &str, every: Duration) {
    let mut renewed = RealClock::tick();
    let mut told = None;
    let (mut open, mut closed) = (Vec::new(), Vec::new());
    while !fs.wake.is_ended() {
        let now = RealClock::tick();
        // Orphans are asked about: the next renewal comes soon, so that their bytes go.
        let asked = !(open.is_empty() && closed.is_empty());
        let pause = if asked { every / 16 } else { every };
        let left = renewed.plus(pause).since(now);
        if left.is_zero() {
            let asked = renew(fs, name, (std::mem::take(&mut open), std::mem::take(&mut closed)));
            (open, closed) = fs.files().split(asked);
            renewed = RealClock::tick();
        }
        if fs.wake.wait(left) {
            let woken = RealClock::tick();
            let goes_on = told.is_some_and(|told: Tick| woken.since(told) < TELL_AFTER);
            tell_written(fs, woken.plus(if goes_on { TELL_AGAIN } else { TELL_AFTER }));
            told = Some(RealClock::tick());
        }
    }
}

/// Lets more be written until `end`, then tells metas of all of it.
fn tell_written(fs: &Fs, end: Tick) {
    while !fs.wake.is_ended() {
        let left = end.since(RealClock::tick());
        if left.is_zero() {
            break;
        }
        fs.wake.wait(left);
    }
    for ino in fs.files().take_untold() {
        // Whoever closes the file meanwhile does not wait for a meta either.
        if !fs.promises_bytes(ino) && fs.tell(ino).is_err() {
            fs.files().note_untold(ino);
        } else if fs.files().is_untold(ino) {
            // More was written while the meta was told, or to chunks that the file has left since.
            fs.files().note_untold(ino);
            fs.wake.wake();
        }
    }
}

/// Renews the session; returns the inodes that it is asked about.
fn renew(fs: &Fs, name: &str, (open, closed): (Vec<Ino>, Vec<Ino>)) -> Vec<Ino> {
    let backend = &fs.backend;
    let op = MetaOp::SessionRenew { open, closed };
    match backend.meta(&mut backend.own_ticket(), op) {
        Ok(MetaReply::Renewed { asked }) => asked,
        Err(errno) if errno == Errno::from(MetaError::Stale) => {
            tracing::warn!("the session ended while no meta heard of this mount: a new one begins");
            let _ = begin(backend, name);
            Vec::new()
        }
        _ => Vec::new(),
    }
}
