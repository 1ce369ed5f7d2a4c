//! The thread that commits: conflicts, one batch, one sync, then the answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fjall::PersistMode;
use millpond_env::{RealClock, free_bytes};
use millpond_types::Tick;
use millpond_types::limits::{
    STORE_COMMIT_BATCH_BYTES_MAX, STORE_COMMIT_BATCH_MAX, STORE_FREE_BYTES_MIN,
};
use tokio::sync::{mpsc, oneshot};

use super::ahead::Ahead;
use super::journal::Link;
use super::keeper::Keeper;
use super::{Published, Shared};
use crate::backend::{Change, ChangeBatch, Commit};
use crate::{Resolver, StoreError, Version};

/// How long the disk is assumed to have room after a check: commits in this time are small compared
/// with the space that is kept free.
const ROOM_FOR: Duration = Duration::from_millis(50);

pub(crate) struct Request {
    /// The version of its reads; `None` when it read nothing.
    pub(crate) at: Option<Version>,
    pub(crate) commit: Commit,
    pub(crate) reply: Reply,
}

type Reply = oneshot::Sender<Result<Version, StoreError>>;

pub(crate) struct Committer {
    shared: Arc<Shared>,
    resolver: Resolver,
    version: Version,
    /// The last batch that was written.
    last: Link,
    keeper: Keeper,
    ahead: Ahead,
    /// When the disk had room last.
    had_room: Option<Tick>,
    /// A write or sync failed. The content of the disk is unknown until the store is opened again,
    /// and a repeated sync may succeed without having written anything (Rebello et al., "Can
    /// Applications Recover from fsync Failures?", USENIX ATC 2020), so nothing is written any
    /// more.
    failed: Option<Arc<fjall::Error>>,
}

/// The state of a store that was opened.
pub(crate) struct Sealed {
    pub(crate) last: Link,
    pub(crate) keeper: Keeper,
}

/// The transactions of a round.
#[derive(Default)]
struct Round {
    changes: Vec<ChangeBatch>,
    keys: usize,
    bytes: usize,
    accepted: Vec<(Version, Reply)>,
    /// Answered after the new state is published, so that the next attempt sees it.
    refused: Vec<(StoreError, Reply)>,
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>, resolver: Resolver, sealed: Sealed) -> Self {
        let ahead = Ahead::new(shared.path());
        let Sealed { last, keeper } = sealed;
        let version = Version(last.version);
        Self { shared, resolver, version, last, keeper, ahead, had_room: None, failed: None }
    }

    /// Commits until the store is closed.
    pub(crate) fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        let mut batch = Vec::with_capacity(STORE_COMMIT_BATCH_MAX);
        while requests.blocking_recv_many(&mut batch, STORE_COMMIT_BATCH_MAX) > 0 {
            let mut round = Round::default();
            let full = self.disk_is_full();
            for request in batch.drain(..) {
                self.gather(request, full, &mut round);
                if round.bytes >= STORE_COMMIT_BATCH_BYTES_MAX {
                    self.finish(std::mem::take(&mut round));
                }
            }
            self.finish(round);
            self.keeper.look();
        }
        self.keeper.end();
        self.shared.history.close();
    }

    fn disk_is_full(&mut self) -> bool {
        let now = RealClock::tick();
        if self.had_room.is_some_and(|at| now.since(at) < ROOM_FOR) {
            return false;
        }
        let full = free_bytes(self.shared.path()).is_ok_and(|free| free < STORE_FREE_BYTES_MIN);
        self.had_room = (!full).then_some(now);
        full
    }

    /// Accepts or refuses one transaction.
    fn gather(&mut self, request: Request, full: bool, round: &mut Round) {
        let Request { at, commit, reply } = request;
        if let Some(error) = self.refusal(at, &commit, full) {
            round.refused.push((error, reply));
            return;
        }
        self.version.0 += 1;
        self.resolver.record(self.version, commit.writes.keys());
        let mut changes = Vec::with_capacity(commit.writes.len());
        for (key, value) in commit.writes {
            round.bytes += key.len() + value.as_ref().map_or(0, Vec::len);
            changes.push(Change { key, value });
        }
        round.keys += changes.len();
        round.changes.push(ChangeBatch { version: self.version, changes });
        round.accepted.push((self.version, reply));
    }

    fn refusal(&self, at: Option<Version>, commit: &Commit, full: bool) -> Option<StoreError> {
        if let Some(error) = &self.failed {
            return Some(StoreError::Damaged(Box::new(Arc::clone(error))));
        }
        if full && commit.writes.values().any(Option::is_some) {
            return Some(StoreError::Full("its disk is full".into()));
        }
        // A transaction without reads cannot conflict.
        self.resolver.check(&commit.reads, at.unwrap_or(self.version)).err()
    }

    /// Makes the accepted transactions durable, publishes them, answers all requests, and then
    /// notifies the watchers: waking them takes time, and clients that wait for an answer should
    /// not wait for that.
    fn finish(&mut self, round: Round) {
        let mut room = 0;
        let written = if round.accepted.is_empty() {
            Ok(())
        } else {
            room = Ahead::room(round.keys, round.bytes);
            self.write(&round.changes)
        };
        match written {
            Ok(()) => {
                self.publish(&round.changes);
                for (version, reply) in round.accepted {
                    // An error here means that no client waits any more; the commit stands.
                    let _ = reply.send(Ok(version));
                }
                self.shared.history.publish(round.changes);
                if room > 0 {
                    self.ahead.wrote(room);
                }
            }
            Err(error) => {
                tracing::error!(path = %self.shared.path().display(), %error,
                    "the store could not be written; it rejects commits until it is opened again");
                let error = Arc::new(error);
                for (_, reply) in round.accepted {
                    let _ = reply.send(Err(StoreError::Unknown(Box::new(Arc::clone(&error)))));
                }
                self.failed = Some(error);
            }
        }
        for (error, reply) in round.refused {
            let _ = reply.send(Err(error));
        }
    }

    /// Writes one batch, because fjall writes a batch atomically, with the last value of each key;
    /// syncs once; then updates the seal.
    fn write(&mut self, changes: &[ChangeBatch]) -> fjall::Result<()> {
        let shared = &self.shared;
        let changes = changes.iter().flat_map(|batch| &batch.changes);
        let writes: BTreeMap<_, _> =
            changes.map(|change| (change.key.as_slice(), change.value.as_deref())).collect();
        let mut batch = shared.database.batch().durability(Some(PersistMode::SyncData));
        for (key, value) in writes {
            shared.tables.write(&mut batch, key, value);
        }
        shared.tables.write_version(&mut batch, self.version, self.last);
        batch.commit()?;
        let sequence = shared.tables.sequence()?;
        let is_known = sequence > self.last.sequence;
        self.last = Link { version: self.version.0, sequence: if is_known { sequence } else { 0 } };
        Ok(self.keeper.wrote(self.last)?)
    }

    fn publish(&self, changes: &[ChangeBatch]) {
        let Some(version) = changes.last().map(|batch| batch.version) else { return };
        self.shared.hot.changed(changes);
        let snapshot = self.shared.database.snapshot();
        *self.shared.published.write() = Arc::new(Published { version, snapshot });
    }
}
