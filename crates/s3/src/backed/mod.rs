//! Backed buckets (RFC 0020): the gateway's part of their reads, listings and room in the pool.
//!
//! Reading order: here the backing of a request's bucket, `look` (location of a key), `fetch`
//! (reads from the backend, and fills), `settle` (waiting for the backend), `list` and `merge`,
//! `room` (eviction and delays), `adopt` (writes of mounts), `turns` (one fill at a time), `policy`
//! (forwarded policies), `quota` and `ring` (for operators).

pub(crate) mod adopt;
pub(crate) mod fetch;
pub(crate) mod list;
pub(crate) mod look;
pub(crate) mod merge;
pub(crate) mod policy;
mod quota;
pub(crate) mod ring;
pub(crate) mod room;
pub(crate) mod settle;
mod turns;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use millpond_client::{Backing, Mode, Rule};
use millpond_env::RealClock;
use millpond_types::Tick;
use parking_lot::Mutex;
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::back::aws::Aws;
use crate::back::backends::BackendSettings;
use crate::back::folders::{ELSEWHERE, Folders, Keeping, is_path};
use crate::back::store::{At, Backend, Fault, Kind};
use crate::door::Door;
use crate::error::{refuse, told};
use turns::Turns;

/// Longest key of a backend in bytes.
pub(crate) const KEY_MAX: usize = 1_024;
/// Keys of shared prefixes with a remembered check, at most.
const LOOKS_MAX: usize = 65_536;
/// Contents with an `ETag` that is not their MD5, remembered at most.
const ODD_MAX: usize = 4_096;

/// `ETag`s that look like MD5s but are not.
#[derive(Default)]
struct Odd {
    /// Backends that make such `ETag`s.
    backends: HashSet<String>,
    /// Pairs of such an `ETag` and the MD5 of its content.
    seen: HashSet<(String, [u8; 16])>,
}

/// The memory of a gateway about cached objects; all of it can be lost.
#[derive(Default)]
pub(crate) struct Cached {
    /// Keys that this gateway is filling.
    filling: Mutex<HashSet<(String, String)>>,
    /// Keys that it fills for other reasons than a read.
    bringing: Turns,
    /// When a cached key of a shared prefix was last verified.
    looks: Mutex<HashMap<(String, String), Tick>>,
    odd: Mutex<Odd>,
    /// Fill level of the pool, in thousandths.
    pub(crate) full: AtomicU64,
    /// When the pool last had no room for a write.
    pressed: Mutex<Option<Tick>>,
    /// Whether backed buckets may have something to evict, now or soon.
    has_relief: AtomicBool,
}

/// The bucket of a request, with its backing.
#[derive(Clone)]
pub(crate) struct Backed {
    pub(crate) bucket: String,
    pub(crate) backing: Arc<Backing>,
}

/// The rules for prefixes that begin with `prefix`.
fn rules_below<'a>(backing: &'a Backing, prefix: &'a [u8]) -> impl Iterator<Item = &'a Rule> {
    backing.rules.iter().filter(move |rule| rule.prefix.starts_with(prefix))
}

impl Backed {
    /// The write mode of a key.
    pub(crate) fn mode_of(&self, key: &str) -> Mode {
        self.backing.rule_of(key.as_bytes()).mode
    }

    /// Replicas of a key's bytes in the pool; 0 for the default of the pool.
    pub(crate) fn replicas_of(&self, key: &str) -> u8 {
        self.backing.rule_of(key.as_bytes()).replicas
    }

    /// The key at the backend.
    pub(crate) fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix())
    }

    /// Whether the key is short enough for the backend.
    pub(crate) fn fits(&self, key: &str) -> bool {
        self.backing.prefix.len() + key.len() <= KEY_MAX
    }

    /// Checks that the backend can store a key that is to be persisted.
    ///
    /// # Errors
    /// `KeyTooLongError`, `InvalidArgument`: otherwise the write would be acknowledged and never
    /// persisted.
    pub(crate) async fn check_key(&self, door: &Door, key: &str) -> S3Result<()> {
        if self.mode_of(key) == Mode::Transient {
            return Ok(());
        }
        let name = &self.backing.backend;
        if !self.fits(key) {
            let prefix = self.backing.prefix.len();
            let message = format!(
                "Your key is too long: the backend '{name}' puts a prefix of {prefix} bytes before \
                 it. Use a key of at most {} bytes.",
                KEY_MAX.saturating_sub(prefix)
            );
            return Err(refuse(S3ErrorCode::KeyTooLongError, message));
        }
        let there = self.key(key);
        if is_path(&there) {
            return Ok(());
        }
        // An unreachable backend refuses the key later, when it is persisted.
        let Ok(far) = door.reach(name).await else { return Ok(()) };
        if let Ok(false) = far.has_place(self.at(&there)).await {
            let message = format!("The backend '{name}' cannot store this key: {ELSEWHERE}.");
            return Err(refuse(S3ErrorCode::InvalidArgument, message));
        }
        Ok(())
    }

    /// Whether others write this key at the backend too.
    pub(crate) fn is_shared(&self, key: impl AsRef<[u8]>) -> bool {
        self.backing.is_shared_at(key.as_ref())
    }

    /// Whether the backend has no keys with this prefix, because all of them are transient.
    pub(crate) fn is_all_transient(&self, prefix: &[u8]) -> bool {
        self.backing.rule_of(prefix).mode == Mode::Transient
            && rules_below(&self.backing, prefix).all(|rule| rule.mode == Mode::Transient)
    }

    /// Whether others write any key with this prefix at the backend too.
    pub(crate) fn is_any_shared(&self, prefix: &[u8]) -> bool {
        let mut below = rules_below(&self.backing, prefix);
        self.is_shared(prefix) || below.any(|rule| self.is_shared(&rule.prefix))
    }

    /// The prefix of our keys at the backend.
    pub(crate) fn prefix(&self) -> &str {
        // The command that sets it accepts text only.
        std::str::from_utf8(&self.backing.prefix).unwrap_or_default()
    }

    /// How long a cached key of a shared prefix is valid.
    pub(crate) fn ttl(&self, key: &str) -> Duration {
        let rule = self.backing.rule_of(key.as_bytes());
        let of_rule = Some(rule.ttl_s).filter(|seconds| *seconds > 0);
        Duration::from_secs(of_rule.unwrap_or(self.backing.ttl_s).into())
    }

    /// The location of a key of the backend, in the form of [`Backend`].
    pub(crate) fn at<'a>(&'a self, key: &'a str) -> At<'a> {
        At { bucket: &self.backing.bucket, key }
    }
}

/// A client for the settings of a backend.
pub(crate) fn client(settings: &BackendSettings) -> Arc<dyn Backend> {
    let keeping = Arc::new(Keeping::default());
    Arc::new(Folders::new(Aws::new(settings, &keeping), keeping))
}

/// The error for a client when a backend fails.
pub(crate) fn fault(backend: &str, fault: &Fault) -> S3Error {
    let message = |what: &str| format!("The backend '{backend}' {what}: {}", fault.text);
    match fault.kind {
        Kind::Absent => S3ErrorCode::NoSuchKey.into(),
        Kind::SlowDown => refuse(S3ErrorCode::SlowDown, message("throttles requests")),
        Kind::Unreachable => refuse(S3ErrorCode::ServiceUnavailable, message("cannot be reached")),
        Kind::Unmet => S3ErrorCode::PreconditionFailed.into(),
        Kind::Refused => refuse(S3ErrorCode::ServiceUnavailable, message("rejects the request")),
        Kind::Unknown => refuse(S3ErrorCode::ServiceUnavailable, message("failed")),
    }
}

impl Door {
    /// The bucket with its backing, at most a second old.
    pub(crate) async fn backed(&self, bucket: &str) -> S3Result<Option<Backed>> {
        let backing = self.backing(bucket).await?;
        Ok(backing.map(|backing| Backed { bucket: bucket.to_owned(), backing }))
    }

    /// The backend of this name.
    ///
    /// # Errors
    /// `ServiceUnavailable` if it has no settings file.
    pub(crate) async fn reach(&self, name: &str) -> S3Result<Arc<dyn Backend>> {
        let found = self.backend(name).await?;
        let found = found.map_err(|error| told(error, S3ErrorCode::ServiceUnavailable))?;
        found.map(|found| Arc::clone(&found.backend)).ok_or_else(|| {
            let message = format!(
                "There is no backend '{name}': add it with `millpond s3 backend add {name} …`"
            );
            refuse(S3ErrorCode::ServiceUnavailable, message)
        })
    }
}

impl Cached {
    /// The right to fill a key, if this gateway is not filling it already. Ends when dropped.
    pub(crate) fn fill(door: &Arc<Door>, bucket: &str, key: &str) -> Option<Filling> {
        let at = (bucket.to_owned(), key.to_owned());
        let is_first = door.cached.filling.lock().insert(at.clone());
        is_first.then(|| Filling { door: Arc::clone(door), at })
    }

    /// Notes that a cached key was just verified.
    pub(crate) fn looked(&self, bucket: &str, key: &str) {
        let mut looks = self.looks.lock();
        if looks.len() >= LOOKS_MAX {
            looks.clear();
        }
        looks.insert((bucket.to_owned(), key.to_owned()), RealClock::tick());
    }

    /// Whether the `ETag`s of a backend are not MD5s, for example due to encryption with keys of
    /// its users: then this pair was seen before.
    pub(crate) fn makes_others(&self, backend: &str, (etag, md5): (&str, [u8; 16])) -> bool {
        let mut odd = self.odd.lock();
        if odd.backends.contains(backend) {
            return true;
        }
        if odd.seen.len() >= ODD_MAX {
            odd.seen.clear();
        }
        let is_new = odd.seen.insert((etag.to_owned(), md5));
        if !is_new {
            odd.backends.insert(backend.to_owned());
        }
        !is_new
    }

    /// Whether the key was verified within its time to live.
    pub(crate) fn is_right(&self, (bucket, key): (&str, &str), ttl: Duration) -> bool {
        let looks = self.looks.lock();
        let at = looks.get(&(bucket.to_owned(), key.to_owned()));
        at.is_some_and(|at| RealClock::tick().since(*at) < ttl)
    }
}

/// A key being filled.
pub(crate) struct Filling {
    door: Arc<Door>,
    at: (String, String),
}

impl Drop for Filling {
    fn drop(&mut self) {
        self.door.cached.filling.lock().remove(&self.at);
    }
}
