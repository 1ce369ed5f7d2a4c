//! The daemon's end of the socket to its holder.

use std::collections::HashSet;
use std::io;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::link::{self, Kind};

/// The holder answers quickly.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends frames to the holder. Another thread reads the holder's frames.
#[derive(Debug)]
pub(super) struct HolderLink {
    writer: Mutex<UnixStream>,
    /// Mounts that the holder has confirmed, until that is queried.
    kept: Mutex<HashSet<u64>>,
    confirmed: Condvar,
}

impl HolderLink {
    pub(super) fn new(writer: UnixStream) -> Self {
        Self { writer: Mutex::new(writer), kept: Mutex::default(), confirmed: Condvar::new() }
    }

    /// Sends a frame. The reading thread notices if the holder is gone.
    pub(super) fn tell(&self, kind: Kind, id: u64, body: &[u8]) {
        if let Err(error) = link::send(&self.writer.lock(), (kind, id), body, &[]) {
            tracing::warn!("cannot send to the holder: {error}");
        }
    }

    /// Has the holder keep the state of a mount; returns when it does.
    pub(super) fn keep(&self, id: u64, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        link::send(&self.writer.lock(), (Kind::Keep, id), bytes, fds)?;
        let mut kept = self.kept.lock();
        let waits = |kept: &mut HashSet<u64>| !kept.remove(&id);
        if self.confirmed.wait_while_for(&mut kept, waits, PATIENCE).timed_out() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the holder does not answer"));
        }
        Ok(())
    }

    pub(super) fn confirm(&self, id: u64) {
        self.kept.lock().insert(id);
        self.confirmed.notify_all();
    }

    /// Closes the connection: the reader finds its end.
    pub(super) fn close(&self) {
        let _ = self.writer.lock().shutdown(Shutdown::Both);
    }
}
