//! The threads that have metas do what was promised.

use std::sync::Arc;
use std::time::Duration;

use millpond_env::{ThreadHandle, thread};
use millpond_types::meta::{Answered, Ino, MetaError, MetaOp, MetaReply, MetaRequest};

use super::{Outcome, Promise, recalls};
use crate::backend::{Told, this_hour};
use crate::deadline::{self, patience};
use crate::errno::Errno;
use crate::fs::Fs;

/// Promises that are kept at a time: metas write what comes together with one flush.
pub(crate) const PROMISES_AT_ONCE: usize = 8;
/// Before one is tried again: twice as long each time.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long an unmount waits for a cluster that does not answer.
const DRAIN: Duration = Duration::from_mins(1);

/// The threads; they end when dropped. What is not kept then is the next process's.
pub(crate) struct Threads {
    fs: Arc<Fs>,
    /// Not joined: one may wait for the cluster for a minute.
    _threads: Vec<ThreadHandle<()>>,
}

impl Threads {
    /// Starts them; none on a mount that makes no promises.
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

    /// Keeps all promises; for an unmount, after which nobody else does.
    pub(crate) fn drain(&self) {
        let left = self.fs.backend.behind.drain(DRAIN);
        if left > 0 {
            tracing::error!(
                "{left} changes of names were answered and no meta heard of them: the cluster was \
                 away for {DRAIN:?} while the mount was ended"
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
    /// Has a meta do what was promised of a file, by this thread if none is at it.
    ///
    /// # Errors
    /// As of [`Behind::wait_before`](super::Behind::wait_before); and why it could not be done.
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

/// Has a meta do what was promised; false when this process keeps no more, or it is too late for a request.
fn keep_and_settle(fs: &Fs, promise: &Arc<Promise>) -> bool {
    let (backend, behind) = (&fs.backend, &fs.backend.behind);
    let changes = backend.settled.changes(promise.ino);
    let Some(outcome) = keep(fs, promise) else { return false };
    if let Outcome::Failed(errno) = outcome {
        let others = [libc::EEXIST, libc::ENOENT, libc::ESTALE].contains(&errno.0);
        tracing::error!(
            "{} of inode {} was answered and could not be done: {}.{}",
            promise.request.op.name(),
            promise.ino,
            errno.name(),
            if others { " Did somebody else change the files of this mount?" } else { "" }
        );
        // Nobody believes it from now on.
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

/// Has the kernel forget what could not be done. That waits for whoever is in the directory, who may wait for
/// promises: so a thread of its own does it.
fn unsay(fs: &Fs) {
    while let Some(promise) = fs.backend.behind.take_broken() {
        fs.forget_promised(&promise);
    }
}

/// Has a meta do what was promised, however long that takes. Nothing when this process keeps no more, or this thread has to
/// answer a request.
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

/// What a refusal means for a promise.
fn after(fs: &Fs, (promise, request): (&Promise, &mut MetaRequest), error: MetaError) -> After {
    match (&request.op, error) {
        (_, MetaError::Again) => After::Again,
        // The name is gone, which is what was wanted: an attempt in a session that has ended did it.
        (MetaOp::Unlink { .. }, MetaError::NotFound) => After::Kept,
        (_, MetaError::Stale) => {
            let (session, hour) = (fs.backend.session(), this_hour());
            if session != request.session || hour != request.hour {
                // Nobody knows the answers of an old session, or of requests that are hours old. What was
                // done is found to be done: a file has the number that it was promised.
                let sequence = fs.backend.own_sequence();
                *request = MetaRequest { session, sequence, hour, ..request.clone() };
                // The next process asks for the same: what is on its way is done once.
                let _ = fs.backend.behind.ask_as(fs.files(), promise, request);
                return After::Again;
            }
            if !fs.backend.session_lives() {
                // The thread that renews it begins another one.
                return After::Again;
            }
            // The file is gone, and so its length and its time do not matter.
            let of_content = matches!(
                request.op,
                MetaOp::Extend(_) | MetaOp::WriteInline(_) | MetaOp::SetAttr { .. }
            );
            if of_content { After::Kept } else { After::Failed }
        }
        _ => After::Failed,
    }
}

/// What a meta says of the file.
const fn told(reply: &MetaReply, version: u64) -> Option<Told> {
    let attr = match reply {
        MetaReply::Entry(entry) => entry.attr,
        MetaReply::Attr(attr) => *attr,
        _ => return None,
    };
    Some(Told { attr, version })
}
