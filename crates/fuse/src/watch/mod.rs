//! Observability of a mount: metrics, and a line for every request.
//!
//! `numbers` counts, `line` and `log` make the access log, `page` writes the Prometheus text, and
//! `virtual_files` shows both in the root of the mount. The idea is from `JuiceFS` (`.stats` and
//! `.accesslog`): there, every user with access to the mount can read them without a port or a
//! credential.
//!
//! A request is counted and logged before it is answered: a caller with the answer finds it
//! counted. So its time ends when the answer is ready, and excludes the copy of the answer into the
//! kernel. Requests about the virtual files themselves are neither counted nor logged: a reader of
//! the log would read about itself.

mod line;
mod log;
mod numbers;
mod page;
mod virtual_files;

use millpond_env::{RealClock, effective_uid};
use millpond_fuse_wire::{Reply, Request};
use millpond_types::Tick;
use millpond_types::meta::Timestamp;

pub(crate) use self::numbers::{Calls, Picture};
pub(crate) use self::page::{Shown, page};

use self::line::Outcome;
use self::log::AccessLog;
use self::numbers::Numbers;
use self::virtual_files::Snapshots;

/// The observed work of one mount since this process serves it.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The mount point, as a label of metrics.
    mount: String,
    /// Whether the root has virtual files.
    shown: bool,
    /// Owner and time of the virtual files.
    owner: u32,
    since: Timestamp,
    numbers: Numbers,
    log: AccessLog,
    snapshots: Snapshots,
}

/// A request in progress.
#[derive(Debug)]
pub(crate) struct Started {
    opcode: u32,
    shard: usize,
    at: Tick,
    /// The caller and the operation, if the log has readers.
    call: Option<String>,
}

impl Watch {
    /// Starts with zeros. `shards` is the number of threads that count.
    pub(crate) fn new(mount: String, shown: bool, shards: usize) -> Self {
        Self {
            mount,
            shown,
            owner: effective_uid(),
            since: Timestamp::from_unix_nanos(RealClock::wall_nanos()),
            numbers: Numbers::new(shards),
            log: AccessLog::default(),
            snapshots: Snapshots::default(),
        }
    }

    /// Notes that a thread begins a request; `shard` is the thread's own number.
    pub(crate) fn begin(&self, request: &Request<'_>, shard: usize) -> Started {
        self.numbers.begin(shard);
        let call = self.log.is_read().then(|| line::call(request));
        Started { opcode: request.header.opcode, shard, at: RealClock::tick(), call }
    }

    /// Notes that the answer is ready, or that there is none.
    pub(crate) fn end(&self, started: Started, reply: Option<&Reply<'_>>) {
        let took = RealClock::tick().since(started.at);
        let outcome = Outcome::of(reply);
        self.numbers.end((started.shard, started.opcode), took, &outcome);
        if let Some(call) = started.call {
            self.log.push(&line::finish(&call, &outcome, took));
        }
    }

    /// Counts a resent request; `known` when the mount remembers it.
    pub(crate) fn note_resent(&self, known: bool) {
        self.numbers.resent.inc();
        if known {
            self.numbers.repeated.inc();
        }
    }

    /// Interrupts a request. True when it was a read of the log.
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        self.log.interrupt(unique)
    }
}
