//! Following changes, over disconnects and members that hang.
//!
//! Only an event moves the revision at which a broken watch resumes. Progress notices serve as a
//! sign of life only: etcd before 3.5.8 could send one ahead of events (etcd issue 15220).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Event, EventType, WatchOptions, WatchResponse, WatchStream};
use millpond_types::limits::{STORE_ATTEMPTS_MAX, STORE_PAUSE_MS_MAX};
use tokio::time::timeout;

use super::Shared;
use super::error::{Fate, judge};
use super::session::version_of;
use crate::backend::{BoxFuture, Change, ChangeBatch, ChangeStream};
use crate::{KeyRange, StoreError, Version};

/// Signs of life that may be missing before the member is left.
const SILENCES_MAX: u32 = 2;

pub(crate) struct EtcdWatch {
    shared: Arc<Shared>,
    range: KeyRange,
    /// The first revision that was not received whole yet.
    next: i64,
    ready: VecDeque<ChangeBatch>,
    /// A revision with more events to come: etcd sends large ones in fragments.
    partial: Option<ChangeBatch>,
    open: Option<Open>,
    /// Reconnects since the last answer.
    failures: u32,
}

struct Open {
    stream: WatchStream,
    member: usize,
    silences: u32,
}

/// The result of a read of the stream.
enum Heard {
    Message(WatchResponse),
    Nothing,
    Broken(Option<etcd_client::Error>),
}

impl EtcdWatch {
    pub(crate) fn new(shared: Arc<Shared>, range: KeyRange, after: Version) -> Self {
        let next = revision_of(after) + 1;
        let ready = VecDeque::new();
        Self { shared, range, next, ready, partial: None, open: None, failures: 0 }
    }

    async fn next_batch(&mut self) -> Result<ChangeBatch, StoreError> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Ok(batch);
            }
            match self.hear().await? {
                Heard::Message(message) if message.canceled() => self.canceled(&message).await?,
                Heard::Message(message) => self.take(&message)?,
                Heard::Nothing => {}
                Heard::Broken(error) => self.broken(error).await?,
            }
        }
    }

    /// Waits for the next message, for as long as the member shows signs of life.
    async fn hear(&mut self) -> Result<Heard, StoreError> {
        let Some(open) = &mut self.open else { return self.connect().await };
        // A third of the timeout, so that a hanging member is left after about the time of a call.
        match timeout(self.shared.timeout / 3, open.stream.message()).await {
            Ok(Ok(Some(message))) => {
                open.silences = 0;
                if !message.created() && !message.canceled() {
                    self.failures = 0;
                }
                Ok(Heard::Message(message))
            }
            Ok(Ok(None)) => Ok(Heard::Broken(None)),
            Ok(Err(error)) => Ok(Heard::Broken(Some(error))),
            Err(_) if open.silences >= SILENCES_MAX => Ok(Heard::Broken(None)),
            Err(_) => {
                open.silences += 1;
                match open.stream.request_progress().await {
                    Ok(()) => Ok(Heard::Nothing),
                    Err(error) => Ok(Heard::Broken(Some(error))),
                }
            }
        }
    }

    async fn connect(&mut self) -> Result<Heard, StoreError> {
        let (member, client) = match self.shared.members.client().await {
            Ok(found) => found,
            Err(failed) => {
                self.shared.members.leave(failed.member());
                return match failed.fate {
                    Fate::Refused(error) => Err(error),
                    Fate::NotDone(error) | Fate::Open(error) => Ok(Heard::Broken(Some(error))),
                };
            }
        };
        let layout = &self.shared.layout;
        let options = WatchOptions::new()
            .with_range(layout.data(&self.range.end))
            .with_start_revision(self.next)
            // Without fragments, a watch that catches up gets one message of any size.
            .with_fragment();
        let start = layout.data(&self.range.start);
        let mut watches = client.watch_client();
        match timeout(self.shared.timeout, watches.watch(start, Some(options))).await {
            Ok(Ok(stream)) => {
                self.open = Some(Open { stream, member, silences: 0 });
                Ok(Heard::Nothing)
            }
            Ok(Err(error)) => {
                self.shared.members.leave(member);
                Ok(Heard::Broken(Some(error)))
            }
            Err(_) => {
                self.shared.members.leave(member);
                Ok(Heard::Broken(None))
            }
        }
    }

    /// Drops the connection, and returns an error after many failures in a row; the watch itself
    /// continues.
    async fn broken(&mut self, error: Option<etcd_client::Error>) -> Result<(), StoreError> {
        if let Some(open) = self.open.take() {
            self.shared.members.leave(open.member);
        }
        // Its revision comes again, whole.
        self.partial = None;
        let cause = match error.map(judge) {
            Some(Fate::Refused(error)) => return Err(error),
            Some(Fate::NotDone(error) | Fate::Open(error)) => error.into(),
            None => "the member sends nothing".into(),
        };
        self.failures += 1;
        if self.failures >= STORE_ATTEMPTS_MAX {
            self.failures = 0;
            return Err(StoreError::Unavailable(cause));
        }
        let pause = (10 << self.failures.min(8)).min(STORE_PAUSE_MS_MAX);
        self.shared.pause(Duration::from_millis(pause)).await;
        Ok(())
    }

    async fn canceled(&mut self, message: &WatchResponse) -> Result<(), StoreError> {
        if message.compact_revision() > 0 {
            self.open = None;
            return Err(StoreError::Compacted(version_of(message.compact_revision()).0));
        }
        if message.cancel_reason().contains("permission denied") {
            self.open = None;
            return Err(StoreError::Denied(message.cancel_reason().to_owned().into()));
        }
        // No leader, most likely: another member may have one.
        self.broken(None).await
    }

    fn take(&mut self, message: &WatchResponse) -> Result<(), StoreError> {
        for event in message.events() {
            self.take_event(event)?;
        }
        if !message.0.fragment {
            self.complete();
        }
        Ok(())
    }

    /// Completes the revision that was being received.
    fn complete(&mut self) {
        let Some(batch) = self.partial.take() else { return };
        self.next = revision_of(batch.version) + 1;
        self.ready.push_back(batch);
    }

    fn take_event(&mut self, event: &Event) -> Result<(), StoreError> {
        let kv = event.kv().ok_or_else(|| StoreError::Damaged("an event without a key".into()))?;
        let version = version_of(kv.mod_revision());
        let key = self.shared.layout.strip(kv.key())?.to_vec();
        let put = event.event_type() == EventType::Put;
        let change = Change { key, value: put.then(|| kv.value().to_vec()) };
        match &mut self.partial {
            Some(batch) if batch.version == version => batch.changes.push(change),
            _ => {
                self.complete();
                self.partial = Some(ChangeBatch { version, changes: vec![change] });
            }
        }
        Ok(())
    }
}

fn revision_of(version: Version) -> i64 {
    i64::try_from(version.0).unwrap_or(i64::MAX - 1)
}

impl ChangeStream for EtcdWatch {
    fn next(&mut self) -> BoxFuture<'_, Result<ChangeBatch, StoreError>> {
        Box::pin(self.next_batch())
    }
}
