//! The threads that have metas execute promises.

use std::sync::Arc;
use std::time::Duration;

use millpond_env::{ThreadHandle, thread};
use millpond_types::meta::{Answered, Ino, MetaError, MetaOp, MetaReply, MetaRequest};

use super::{Outcome, Promise, recalls};
use crate::backend::{Told, this_hour};
use crate::deadline::{self, patience};
use crate::errno::Errno;
use crate::fs::Fs;

/// Promises that are kept concurrently: metas write concurrent changes with one flush.
pub(crate) const PROMISES_AT_ONCE: usize = 8;
/// The first pause before a retry; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long an unmount waits for a cluster that does not answer.
const DRAIN: Duration = Duration::from_mins(1);

/// The threads; they end when dropped. The next process keeps the promises left then.
pub(crate) struct Threads {
    fs: Arc<Fs>,
    /// Not joined: one may wait for the cluster for a minute.
    _threads: Vec<ThreadHandle<()>>,
}

impl Threads {
    /// Starts the threads; none on a mount that makes no promises.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub(crate) fn start(fs: &Arc<Fs>) -> std::io::Result<Self> {
        let mut threads = Vec::new();
        for _ in 0..if fs.backend.behind.is_on() { PROMISES_AT_ONCE } else { 0 } {
            let of_thread = Arc::clone(fs);
            threads.push(thread("mp-behind", move || run(&of_thread))?);
        }
        if fs.backend.behind.delegations.is_some() {
            let of_thread = Arc::clone(fs);
            let run = move || {
                if let Some(delegations) = &of_thread.backend.behind.delegations {
                    recalls::run(&of_thread, delegations);
                }
            };
            threads.push(thread("mp-recalls", run)?);
        }
        if fs.backend.behind.is_on() {
            let of_thread = Arc::clone(fs);
            threads.push(thread("mp-broken", move || unsay(&of_thread))?);
        }
        Ok(Self { fs: Arc::clone(fs), _threads: threads })
    }

    /// Keeps all promises, for an unmount, after which no process keeps them.
    pub(crate) fn drain(&self) {
        let left = self.fs.backend.behind.drain(DRAIN);
        if left > 0 {
            tracing::error!(
                "{left} acknowledged changes of names are lost: the cluster was away for {DRAIN:?} \
                 while the mount was ended"
            );
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.fs.backend.behind.end();
    }
}

fn run(fs: &Fs) {
    while let Some(promise) = fs.backend.behind.take() {
        if !keep_and_settle(fs, &promise) {
            return;
        }
    }
}

impl Fs {
    /// Has a meta execute the promises of a file, on this thread if no other works on them.
    ///
    /// # Errors
    /// As of [`Behind::wait_before`](super::Behind::wait_before), and the error of a failed
    /// promise.
    pub(crate) fn keep_promises(&self, ino: Ino) -> Result<(), Errno> {
        let behind = &self.backend.behind;
        if behind.is_idle() {
            return behind.failure(ino);
        }
        if let Some(promise) = behind.take_of(ino)
            && !keep_and_settle(self, &promise)
        {
            behind.put_back(&promise);
        }
        behind.wait_inode(ino)?;
        behind.failure(ino)
    }
}

/// Has a meta execute a promise; false when this process keeps no more, or the request's deadline
/// has passed.
fn keep_and_settle(fs: &Fs, promise: &Arc<Promise>) -> bool {
    let (backend, behind) = (&fs.backend, &fs.backend.behind);
    let changes = backend.settled.changes(promise.ino);
    let Some(outcome) = keep(fs, promise) else { return false };
    if let Outcome::Failed(errno) = outcome {
        let others = [libc::EEXIST, libc::ENOENT, libc::ESTALE].contains(&errno.0);
        tracing::error!(
            "{} of inode {} was acknowledged but failed: {}.{}",
            promise.request.op.name(),
            promise.ino,
            errno.name(),
            if others { " Did another client change the files of this mount?" } else { "" }
        );
        // Drops the cached state that the promise had set.
        behind.passes(&promise.request.op);
        backend.settled.changed(promise.ino);
    }
    if let Outcome::Kept(Some(told)) = outcome {
        fs.is_kept(promise, told);
    }
    let note = |told| backend.settled.note(told, changes);
    behind.settle(fs.files(), (promise, outcome), note);
    true
}

/// Makes the kernel forget failed promises. That waits for threads in the directory, which may wait
/// for promises, so it has a thread of its own.
fn unsay(fs: &Fs) {
    while let Some(promise) = fs.backend.behind.take_broken() {
        fs.forget_promised(&promise);
    }
}

/// Has a meta execute a promise, however long that takes. Returns `None` when this process keeps no
/// more, or this thread has to answer a request.
fn keep(fs: &Fs, promise: &Promise) -> Option<Outcome> {
    let backend = &fs.backend;
    let mut request = promise.request.clone();
    let is_made = matches!(request.op, MetaOp::Create(_));
    let mut pause = PAUSE;
    loop {
        if !is_made && backend.behind.is_unmade(promise) {
            return Some(Outcome::Failed(MetaError::Exists.into()));
        }
        let changes = backend.changes_of_dir(&request.op);
        let answered =
            backend.calls.change.timed(|| backend.client.meta(&request, Some(patience())));
        match answered {
            Ok(ref heard @ Answered { answer: Ok(ref reply), version, .. }) => {
                backend.hear(&request.op, Some(heard), changes);
                return Some(Outcome::Kept(told(reply, version)));
            }
            Ok(Answered { answer: Err(error), .. }) => {
                match after(fs, (promise, &mut request), error) {
                    After::Kept => {
                        backend.hear(&request.op, None, changes);
                        return Some(Outcome::Kept(None));
                    }
                    After::Failed => return Some(Outcome::Failed(error.into())),
                    After::Again => {}
                }
            }
            Err(error) => tracing::warn!("a change of names waits for the cluster: {error}"),
        }
        if !backend.behind.pause(pause.min(patience())) || deadline::is_over() {
            return None;
        }
        pause = (2 * pause).min(PAUSE_MAX);
    }
}

enum After {
    Kept,
    Failed,
    Again,
}

/// Decides how a meta's rejection affects a promise.
fn after(fs: &Fs, (promise, request): (&Promise, &mut MetaRequest), error: MetaError) -> After {
    match (&request.op, error) {
        (_, MetaError::Again) => After::Again,
        // The name is gone, as intended: an attempt in an ended session did it.
        (MetaOp::Unlink { .. }, MetaError::NotFound) => After::Kept,
        (_, MetaError::Stale) => {
            let (session, hour) = (fs.backend.session(), this_hour());
            if session != request.session || hour != request.hour {
                // Metas no longer have the answers of an old session, or of requests that are hours
                // old. A repetition recognizes executed changes: a file has its promised number.
                let sequence = fs.backend.own_sequence();
                *request = MetaRequest { session, sequence, hour, ..request.clone() };
                // The next process uses the same request, so that one in flight is executed once.
                let _ = fs.backend.behind.ask_as(fs.files(), promise, request);
                return After::Again;
            }
            if !fs.backend.session_lives() {
                // The thread that renews it opens another one.
                return After::Again;
            }
            // The file is gone, so its length and times do not matter.
            let of_content = matches!(
                request.op,
                MetaOp::Extend(_) | MetaOp::WriteInline(_) | MetaOp::SetAttr { .. }
            );
            if of_content { After::Kept } else { After::Failed }
        }
        _ => After::Failed,
    }
}

/// The file's state in a meta's reply.
const fn told(reply: &MetaReply, version: u64) -> Option<Told> {
    let attr = match reply {
        MetaReply::Entry(entry) => entry.attr,
        MetaReply::Attr(attr) => *attr,
        _ => return None,
    };
    Some(Told { attr, version })
}
