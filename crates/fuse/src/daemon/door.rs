//! The daemon's admin socket: connections and their requests.

use std::sync::Arc;
use std::time::Duration;

use millpond_env::{
    BlockingStream, LocalListener, PeerCredentials, RealClock, effective_uid, thread,
};

use super::Daemon;
use crate::admin::{Answer, DaemonStatus, Greeting, Request, read_request, write_line};
use crate::watch::page;

/// More connections than operators and scripts need.
const CONNECTIONS_MAX: usize = 64;
/// A connection without a request for this long is closed.
const IDLE: Duration = Duration::from_secs(10);
/// Time for a client to receive an answer.
const TAKE: Duration = Duration::from_secs(5);

impl Daemon {
    /// Takes the admin socket over, unless this daemon already has it.
    pub(super) fn open_door(self: &Arc<Self>) -> std::io::Result<()> {
        let mut door = self.door.lock();
        if door.as_ref().is_some_and(|door| door.is_in_place()) {
            return Ok(());
        }
        let listener = Arc::new(LocalListener::replace(&self.run_dir.socket())?);
        *door = Some(Arc::clone(&listener));
        let daemon = Arc::clone(self);
        thread("mp-admin", move || daemon.accept(&listener)).map(drop)
    }

    /// Closes the socket: later connects fail.
    pub(super) fn close_door(&self) {
        if let Some(door) = &*self.door.lock() {
            door.remove();
        }
    }

    fn accept(self: &Arc<Self>, listener: &LocalListener) {
        loop {
            match listener.accept() {
                Ok((stream, peer)) => self.welcome(stream, peer),
                Err(error) => {
                    // Out of descriptors, most likely: others may be closed.
                    tracing::warn!("the admin socket: {error}");
                    let mut table = self.table.lock();
                    self.changed.wait_for(&mut table, Duration::from_millis(100));
                }
            }
        }
    }

    fn welcome(self: &Arc<Self>, stream: BlockingStream, peer: PeerCredentials) {
        if peer.uid != 0 && peer.uid != effective_uid() {
            tracing::warn!("user {} was rejected at the admin socket", peer.uid);
            return;
        }
        {
            let mut table = self.table.lock();
            if table.connections >= CONNECTIONS_MAX {
                tracing::warn!(
                    "{CONNECTIONS_MAX} connections to the admin socket: a further one is rejected"
                );
                return;
            }
            table.connections += 1;
        }
        let daemon = Arc::clone(self);
        let started = thread("mp-admin-peer", move || {
            daemon.converse(&stream);
            daemon.leave();
        });
        if let Err(error) = started {
            tracing::warn!("a connection to the admin socket is rejected: {error}");
            self.leave();
        }
    }

    fn leave(&self) {
        let mut table = self.table.lock();
        table.connections -= 1;
        table.idle_since = RealClock::tick();
    }

    fn converse(self: &Arc<Self>, stream: &BlockingStream) {
        let greeting =
            Greeting { pid: std::process::id(), version: env!("CARGO_PKG_VERSION").to_owned() };
        if write_line(stream, &greeting, RealClock::tick().plus(TAKE)).is_err() {
            return;
        }
        let mut buffer = Vec::new();
        while let Ok(Some(line)) = read_request(stream, &mut buffer, RealClock::tick().plus(IDLE)) {
            self.table.lock().answering += 1;
            let (answer, made) = match serde_json::from_slice(&line) {
                Ok(request) => self.answer(&request),
                Err(error) => (Answer::Error(format!("not a request: {error}")), None),
            };
            let taken = write_line(stream, &answer, RealClock::tick().plus(TAKE));
            if taken.is_err()
                && let Some(id) = made
            {
                tracing::info!("the client that asked for a mount is gone: the mount is removed");
                self.undo(id);
            }
            self.table.lock().answering -= 1;
            self.changed.notify_all();
            if taken.is_err() {
                return;
            }
        }
    }

    /// The answer, and the id of a mount that was made.
    fn answer(self: &Arc<Self>, request: &Request) -> (Answer, Option<u64>) {
        tracing::debug!("request {request:?}");
        let answer = match request {
            Request::Ping => Answer::Ok,
            Request::Mount(request) => match self.mount(request) {
                Ok(id) => return (Answer::Ok, Some(id)),
                Err(error) => Answer::Error(error),
            },
            Request::Unmount { mountpoint, lazy } => self.unmount(mountpoint, *lazy),
            Request::List => {
                let listed = self.table.lock().listed();
                Answer::Mounts(listed.into_iter().map(|(_, info)| info).collect())
            }
            Request::Metrics => Answer::Metrics(page(&self.table.lock().shown())),
            Request::Status => Answer::Status(self.status()),
            Request::Upgrade { program } => self.upgrade(program),
        };
        (answer, None)
    }

    fn status(&self) -> DaemonStatus {
        let table = self.table.lock();
        DaemonStatus {
            pid: std::process::id(),
            holder_pid: std::os::unix::process::parent_id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            since_unix_ms: self.started_unix_ms,
            mounts: table.mounts.len(),
            taken_over: table.taken_over,
        }
    }
}
