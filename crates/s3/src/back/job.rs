//! A job persists one claimed key: it resolves earlier attempts, makes a new one, and reports the
//! outcome to the metas.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use millpond_client::{ClientError, File};
use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::meta::object::{Backing, Claimed, Outcome, Wanted};
use millpond_types::meta::{Attr, MetaError};
use tokio::time::{sleep, timeout};

use super::known::Connected;
use super::persist::{Bucket, lease};
use super::source;
use super::store::{ACCESS, At, Backend, CONTENT, Content, Fault, Kind, PUT_ID, PUT_LEN, Told};
use super::upload::{self, Plan};
use super::words;
use crate::backed::KEY_MAX;
use crate::record::{Parts, Record, View};
use crate::store::Object;

/// The reason to send an object again after a mismatch.
const DAMAGED: &str = "the ETag from the backend does not match the sent parts: they may have been \
                       damaged in transit";
/// Attempts to report an outcome to the metas.
const TELLS: u32 = 5;
/// Objects up to this size are read before they are sent.
const WHOLE: u64 = 1 << 20;
/// Upper bound of the extra time in which a backend may still execute a request, for objects of any
/// size.
const LATE_MAX: Duration = Duration::from_mins(5);

/// A claimed key.
pub(crate) struct Job {
    pub(crate) bucket: Arc<Bucket>,
    pub(crate) backing: Arc<Backing>,
    pub(crate) connected: Arc<Connected>,
    pub(crate) claimed: Claimed,
    /// The time before the claim was requested: the lease began no earlier.
    pub(crate) at: Tick,
    pub(crate) lane: usize,
}

/// The reason why an attempt failed.
pub(super) enum Not {
    /// The backend failed.
    Done(Fault),
    /// The object was certainly not stored, whatever the kind of the fault.
    Begun(Fault),
    /// The file has changed or is gone: the state in the metas is old.
    Changed,
    /// The file could not be read.
    Read(String),
}

/// An opened file and its object.
pub(super) struct Opened {
    pub(super) file: File,
    pub(super) attr: Attr,
    pub(super) view: View,
}

impl Job {
    /// Runs the job and reports the outcome to the metas. Gives up when the claim cannot be
    /// renewed.
    pub(crate) async fn run(&self) {
        let Some(put_id) = self.put_id() else { return };
        let outcome = tokio::select! {
            // Checked first, so that nothing starts after the claim ended.
            biased;
            () = self.renew(put_id) => return,
            outcome = self.begun(put_id) => outcome,
        };
        let Some(outcome) = outcome else { return };
        match &outcome {
            Outcome::Failed { error, pause_ms } | Outcome::Unknown { error, pause_ms } => {
                tracing::info!(bucket = self.bucket.name, key = %self.shown(), pause_ms, "S3: not persisted: {error}");
            }
            _ => tracing::debug!(bucket = self.bucket.name, key = %self.shown(), "S3: persisted"),
        }
        self.tell(put_id, outcome).await;
    }

    fn shown(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.claimed.key)
    }

    fn put_id(&self) -> Option<u64> {
        self.claimed.state.under.map(|it| it.put_id)
    }

    /// The put-id in the form stored at the backend.
    fn put_name(&self) -> String {
        format!("{:0PUT_LEN$x}", self.put_id().unwrap_or_default())
    }

    async fn tell(&self, put_id: u64, outcome: Outcome) {
        for tell in 1..=TELLS {
            let (name, key) = (self.bucket.name.clone(), self.claimed.key.clone());
            let told = outcome.clone();
            let told = self.bucket.ask(move |store| store.settle(&name, &key, put_id, &told)).await;
            match told {
                Ok(Ok(state)) => {
                    // An overwrite in the meantime is due now.
                    if state.is_dirty() {
                        self.bucket.wake();
                    }
                    return;
                }
                // Another gateway owns the claim.
                Ok(Err(ClientError::File { source: MetaError::Stale, .. })) => return,
                Ok(Err(error)) if tell == TELLS => {
                    tracing::warn!(
                        "S3: cannot record the outcome for {} of bucket {}: {error}",
                        self.shown(),
                        self.bucket.name
                    );
                }
                _ => sleep(self.connected.pace.pause(tell)).await,
            }
        }
    }

    /// Does the work; `None` if the metas do not grant a long enough claim.
    async fn begun(&self, put_id: u64) -> Option<Outcome> {
        if !self.late().is_zero() && self.kept(put_id).await.is_err() {
            return None;
        }
        Some(self.outcome().await)
    }

    /// Time beyond the lease in which a backend may still execute a request with a whole object:
    /// large objects take long.
    fn late(&self) -> Duration {
        match self.claimed.state.wanted {
            Wanted::File { size, .. } if size > WHOLE => {
                Duration::from_secs(size >> 20).min(LATE_MAX)
            }
            _ => Duration::ZERO,
        }
    }

    /// Extends the claim from now on. Fails when no meta confirms it, with `Some` if a meta
    /// refuses.
    async fn kept(&self, put_id: u64) -> Result<(), Option<MetaError>> {
        let lease = lease(&self.connected) + self.late();
        let lease_ms = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        let (name, key) = (self.bucket.name.clone(), self.claimed.key.clone());
        let going_on = Outcome::GoingOn { lease_ms };
        let told = self.bucket.ask(move |store| store.settle(&name, &key, put_id, &going_on));
        match told.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(ClientError::File { source, .. })) => Err(Some(source)),
            _ => Err(None),
        }
    }

    /// Extends the claim repeatedly, and returns when half of its lease has passed.
    async fn renew(&self, put_id: u64) {
        let lease = lease(&self.connected);
        let mut at = self.at;
        let left = |at| (lease / 2).saturating_sub(RealClock::tick().since(at));
        while !left(at).is_zero() {
            sleep(left(at).min(lease / 6)).await;
            let (asked, left) = (RealClock::tick(), left(at));
            match timeout(left.min(lease / 6), self.kept(put_id)).await {
                Ok(Ok(())) => at = asked,
                Ok(Err(Some(_))) => return,
                _ => {}
            }
        }
    }

    async fn outcome(&self) -> Outcome {
        let Some(key) = self.remote_key() else {
            if matches!(self.claimed.state.wanted, Wanted::Nothing) {
                // The backend never had this key.
                return Outcome::Done { etag: None };
            }
            let error = "the key is too long for the backend, or is not UTF-8".to_owned();
            return Outcome::Failed { error, pause_ms: 60_000 };
        };
        let at = At { bucket: &self.backing.bucket, key: &key };
        if !self.claimed.is_fresh {
            return self.resolved(at).await;
        }
        match self.claimed.state.wanted {
            Wanted::Nothing => {
                let permit = self.connected.pace.permit(self.lane).await;
                let done = self.connected.backend.delete(at).await;
                permit.ended(&done);
                match done {
                    Ok(()) => Outcome::Done { etag: None },
                    Err(fault) => self.failed(&fault, 0),
                }
            }
            Wanted::File { .. } => match self.sent(at).await {
                Ok(etag) => Outcome::Done { etag: Some(etag) },
                Err(not) => self.not(not).await,
            },
            Wanted::Forgotten => Self::again("there is nothing to do".to_owned()),
        }
    }

    /// The key at the backend.
    fn remote_key(&self) -> Option<String> {
        let key = [self.backing.prefix.as_slice(), &self.claimed.key].concat();
        String::from_utf8(key).ok().filter(|it| it.len() <= KEY_MAX)
    }

    fn again(error: String) -> Outcome {
        Outcome::Failed { error, pause_ms: 0 }
    }

    /// The outcome for a failed request with a body of `len` bytes.
    fn failed(&self, fault: &Fault, len: u64) -> Outcome {
        let error = fault.text.clone();
        let pause = if fault.kind == Kind::Unknown {
            // The request may still be executed until then.
            self.connected.settings.timeout(len)
        } else {
            self.connected.pace.pause(self.claimed.state.attempts.saturating_add(1))
        };
        let pause_ms = u32::try_from(pause.as_millis()).unwrap_or(u32::MAX);
        match fault.kind {
            Kind::Unknown => Outcome::Unknown { error, pause_ms },
            _ => Outcome::Failed { error, pause_ms },
        }
    }

    async fn not(&self, not: Not) -> Outcome {
        let len = match self.claimed.state.wanted {
            Wanted::File { size, .. } => size,
            _ => 0,
        };
        match not {
            Not::Done(fault) => self.failed(&fault, len),
            Not::Begun(fault) => self.failed(&Fault { kind: Kind::Refused, ..fault }, len),
            Not::Read(error) => {
                let kind = Kind::Refused;
                self.failed(&Fault { kind, is_congested: false, text: error }, len)
            }
            Not::Changed => {
                let (name, key) = (self.bucket.name.clone(), self.claimed.key.clone());
                match self.bucket.ask(move |store| store.adopt(&name, &key)).await {
                    Ok(Ok(_)) => Self::again("the file has changed".to_owned()),
                    Ok(Err(error)) => self.paused(error.to_string()),
                    Err(error) => self.paused(error.to_string()),
                }
            }
        }
    }

    fn paused(&self, text: String) -> Outcome {
        self.failed(&Fault { kind: Kind::Refused, is_congested: false, text }, 0)
    }

    /// Whether others write this key at the backend too.
    pub(super) fn is_shared(&self) -> bool {
        self.backing.is_shared_at(&self.claimed.key)
    }

    /// Finds the outcome of an earlier attempt with unknown outcome.
    async fn resolved(&self, at: At<'_>) -> Outcome {
        let state = &self.claimed.state;
        let is_same = state.under.is_some_and(|it| it.seq == state.seq);
        let may_have_parts = self.lane == 1 || !is_same || self.has_parts();
        if may_have_parts && !self.is_shared() {
            // An upload that completes later would overwrite ours.
            if let Err(fault) = upload::abort_all(self, at).await {
                return self.unresolved(&fault);
            }
        }
        let permit = self.connected.pace.permit(self.lane).await;
        let found = self.connected.backend.head(at).await;
        permit.ended(&found);
        let is_removal = is_same && matches!(state.wanted, Wanted::Nothing);
        match found {
            Ok(remote) if remote.put_id() == Some(&self.put_name()) => {
                let view = self.claimed.object.as_ref().filter(|_| is_same).map(View::of);
                if view.is_some_and(|it| !self.has_arrived(at.key, &it.record, &remote.etag)) {
                    return Self::again(DAMAGED.to_owned());
                }
                Outcome::Done { etag: Some(remote.etag) }
            }
            Ok(remote) => {
                let known = state.has.as_ref().is_some_and(|it| it.etag == remote.etag);
                if self.is_shared() && !known {
                    self.bucket.numbers.conflicts.inc();
                }
                Self::again(
                    "the request was not executed: the backend has other content".to_owned(),
                )
            }
            Err(fault) if fault.kind == Kind::Absent && is_removal => Outcome::Done { etag: None },
            Err(fault) if fault.kind == Kind::Absent => {
                Self::again("the request was not executed: the backend has no object".to_owned())
            }
            Err(fault) => self.unresolved(&fault),
        }
    }

    /// Whether the object is sent in parts, even if it is small.
    fn has_parts(&self) -> bool {
        self.claimed.object.as_ref().is_some_and(|object| {
            let parts = View::of(object).record.parts;
            matches!(Plan::of(object.attr.size, parts.as_ref()), Plan::Parts(_))
        })
    }

    /// The outcome when the check of an earlier attempt failed: the check is repeated.
    fn unresolved(&self, fault: &Fault) -> Outcome {
        let attempts = self.claimed.state.attempts.saturating_add(1);
        let pause = self.connected.pace.pause(attempts);
        let pause_ms = u32::try_from(pause.as_millis()).unwrap_or(u32::MAX);
        Outcome::Unknown { error: fault.text.clone(), pause_ms }
    }

    /// Whether the file is the one in the state.
    fn is_wanted(&self, attr: &Attr) -> bool {
        let Wanted::File { ino, size, ctime } = self.claimed.state.wanted else { return false };
        attr.ino == ino && attr.size == size && attr.ctime == ctime && attr.nlink > 0
    }

    async fn open(&self) -> Result<Opened, Not> {
        let Some(object) = self.claimed.object.clone() else { return Err(Not::Changed) };
        if !self.is_wanted(&object.attr) {
            return Err(Not::Changed);
        }
        let (view, attr) = (View::of(&object), object.attr);
        let opened =
            self.bucket.ask(move |store| store.object_file(&Object { bytes: None, ..object }));
        match opened.await {
            Ok(Ok(file)) => Ok(Opened { file, attr, view }),
            Ok(Err(ClientError::File {
                source: MetaError::Stale | MetaError::NotFound, ..
            })) => Err(Not::Changed),
            Ok(Err(error)) => Err(Not::Read(error.to_string())),
            Err(error) => Err(Not::Read(error.to_string())),
        }
    }

    /// Checks that the file has not changed.
    pub(super) async fn unchanged(&self, opened: &Opened) -> Result<(), Not> {
        let (file, was) = (opened.file.clone(), &opened.attr);
        match self.bucket.ask(move |_| file.stat()).await {
            Ok(Ok(attr)) if attr.size != was.size || attr.mtime != was.mtime => Err(Not::Changed),
            // A file that was overwritten in the meantime keeps its content, and the metas know of
            // the overwrite.
            Ok(Ok(attr)) if attr.ctime == was.ctime || attr.nlink == 0 => Ok(()),
            Ok(Ok(_)) => Err(Not::Changed),
            Ok(Err(error)) => Err(Not::Read(error.to_string())),
            Err(error) => Err(Not::Read(error.to_string())),
        }
    }

    /// Sends the file and returns its `ETag` at the backend.
    async fn sent(&self, at: At<'_>) -> Result<String, Not> {
        let opened = self.open().await?;
        let record = &opened.view.record;
        let mut told = Told {
            headers: record.headers.clone(),
            meta: words::sent(&record.meta),
            tags: record.tags.clone(),
        };
        told.meta.insert(PUT_ID.to_owned(), self.put_name());
        if let Some(text) = record.access() {
            told.meta.insert(ACCESS.to_owned(), text);
        }
        if let Some(text) = record.content(&told.meta) {
            told.meta.insert(CONTENT.to_owned(), text);
        }
        let etag = match Plan::of(opened.attr.size, record.parts.as_ref()) {
            Plan::Whole => return self.put(at, &told, &opened).await,
            Plan::Parts(ranges) => upload::send(self, at, (&told, &opened, &ranges)).await?,
        };
        if !self.has_arrived(at.key, record, &etag) {
            let text = DAMAGED.to_owned();
            return Err(Not::Begun(Fault { kind: Kind::Refused, is_congested: false, text }));
        }
        Ok(etag)
    }

    /// Whether the `ETag` of an object that was sent with its own parts shows that the bytes
    /// arrived.
    fn has_arrived(&self, key: &str, record: &Record, told: &str) -> bool {
        let is_of_parts =
            record.modified == 0 && record.parts.as_ref().is_some_and(Parts::are_known);
        let wanted = record.etag.as_ref().filter(|_| is_of_parts);
        wanted.is_none_or(|wanted| self.connected.etags.is_sent(key, (wanted, told)))
    }

    async fn put(&self, at: At<'_>, told: &Told, opened: &Opened) -> Result<String, Not> {
        let len = opened.attr.size;
        let _memory = source::memory(&self.bucket.door.behind, self.lane, len).await;
        let is_small = len <= WHOLE;
        let content = if is_small {
            let content = self.read(opened, len).await?;
            self.unchanged(opened).await?;
            content
        } else {
            source::pieces(&self.bucket.door, opened.file.clone(), (0, len))
        };
        let md5 = opened.view.record.md5();
        let permit = self.connected.pace.permit(self.lane).await;
        let done = self.connected.backend.put(at, told, content, md5).await;
        permit.ended(&done);
        let etag = done.map_err(Not::Done)?;
        if !is_small {
            self.unchanged(opened).await?;
        }
        Ok(etag)
    }

    async fn read(&self, opened: &Opened, len: u64) -> Result<Content, Not> {
        let file = opened.file.clone();
        let _thread = self.bucket.door.behind.threads.acquire().await;
        let read = tokio::task::spawn_blocking(move || source::bytes(&file, (0, len))).await;
        match read {
            Ok(Ok(bytes)) => Ok(Content::Bytes(Bytes::from(bytes))),
            Ok(Err(error)) => Err(Not::Read(error.to_string())),
            Err(error) => Err(Not::Read(error.to_string())),
        }
    }

    /// The backend.
    pub(super) fn backend(&self) -> &dyn Backend {
        &*self.connected.backend
    }
}
