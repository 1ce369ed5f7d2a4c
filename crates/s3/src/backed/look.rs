//! Locates a key of a backed bucket.

use std::sync::Arc;
use std::time::Duration;

use millpond_client::{KeyState, Mode};
use millpond_env::RealClock;
use millpond_types::meta::Attr;
use s3s::{S3Error, S3ErrorCode, S3Response, S3Result};

use super::{Backed, fault, fetch};
use crate::back::store::{At, Backend, Fault, Kind, Remote};
use crate::conditions::Conditions;
use crate::door::{Door, There};
use crate::error::Told as _;
use crate::ops::headers::{TYPE_DEFAULT, expires};
use crate::record::{Record, View};
use crate::store::{Found, Object, Store, Wanted};

/// The header with the state of an object.
const STATE: &str = "x-millpond-state";
/// Retries for a key that changes during a look or a fill.
pub(crate) const TRIES: usize = 8;

/// The location of a key.
#[allow(clippy::large_enum_variant, reason = "it is taken apart where it arrives")]
pub(crate) enum Seen {
    /// In the pool.
    Here(There, &'static str),
    /// In the backend, if anywhere; with the sequence number of the observed state.
    There(Option<u64>),
    /// Nowhere.
    Nowhere,
}

/// Whether the file is the one in a state.
fn is_of(state: &KeyState, attr: &Attr) -> bool {
    let Wanted::File { ino, size, ctime } = state.wanted else { return false };
    (ino, size, ctime) == (attr.ino, attr.size, attr.ctime)
}

/// The name of the state of an object in the pool.
pub(crate) fn word(mode: Mode, state: Option<&KeyState>, attr: &Attr) -> &'static str {
    match state {
        // A tombstone removes the version that the backend had before the rule.
        _ if mode == Mode::Transient && state.is_none_or(KeyState::is_tombstone) => "transient",
        Some(state) if state.under.is_some() => "uploading",
        Some(state) if state.is_clean() && is_of(state, attr) => "clean",
        _ => "dirty",
    }
}

/// Adds the state of the object to an answer.
pub(crate) fn tell<T>(response: &mut S3Response<T>, word: &'static str) {
    response.headers.insert(STATE, hyper::header::HeaderValue::from_static(word));
}

/// Locates a key. A cached key of a shared prefix is compared with the backend after its time to
/// live. Reads of bytes are counted as hits and misses.
///
/// # Errors
/// `NoSuchBucket`, and those of the volume.
pub(crate) async fn look(
    door: &Arc<Door>,
    backed: &Backed,
    key: &str,
    with_bytes: bool,
) -> S3Result<Seen> {
    let seen = place(door, backed, key, with_bytes).await?;
    if with_bytes {
        let numbers = door.metrics.back.bucket(&backed.bucket);
        match &seen {
            Seen::Here(..) => numbers.hits.inc(),
            Seen::There(_) => numbers.misses.inc(),
            Seen::Nowhere => {}
        }
    }
    Ok(seen)
}

async fn place(door: &Arc<Door>, backed: &Backed, key: &str, with_bytes: bool) -> S3Result<Seen> {
    for _ in 0..TRIES {
        let at = (backed.bucket.as_str(), key);
        let (there, state) = if with_bytes {
            door.open_up(at).await?
        } else {
            let Found { object, state } = door.look_up(at, false).await?;
            (object.map(|object| There { object, file: None }), state)
        };
        let mode = backed.mode_of(key);
        let Some(there) = there else {
            match state {
                // Others may have put it again after its removal.
                Some(state)
                    if state.is_tombstone() && !(backed.is_shared(key) && state.is_clean()) =>
                {
                    return Ok(Seen::Nowhere);
                }
                // A mount has removed the file.
                Some(KeyState { wanted: Wanted::File { .. }, .. }) => {
                    adopt(door, backed, key).await?;
                    continue;
                }
                _ if mode == Mode::Transient || !backed.fits(key) => return Ok(Seen::Nowhere),
                state => return Ok(Seen::There(state.map(|state| state.seq))),
            }
        };
        let word = word(mode, state.as_ref(), &there.object.attr);
        let (Some(state), true) = (state, word == "clean" && backed.is_shared(key)) else {
            return Ok(Seen::Here(there, word));
        };
        if is_right(door, (backed, key), (&state, &there.object)).await? {
            return Ok(Seen::Here(there, word));
        }
    }
    Err(S3ErrorCode::SlowDown.into())
}

async fn adopt(door: &Arc<Door>, backed: &Backed, key: &str) -> S3Result<()> {
    let (bucket, asked) = (backed.bucket.clone(), key.to_owned());
    door.blocking(move |store| store.adopt(&bucket, asked.as_bytes()).in_bucket().map(drop)).await
}

/// Whether a cached key of a shared prefix matches the backend; otherwise it is evicted.
async fn is_right(
    door: &Arc<Door>,
    (backed, key): (&Backed, &str),
    (state, object): (&KeyState, &Object),
) -> S3Result<bool> {
    let ttl = backed.ttl(key);
    let now = RealClock::wall_ms();
    let since = u64::try_from(state.since.secs).unwrap_or_default() * 1_000;
    let is_young = Duration::from_millis(now.saturating_sub(since)) < ttl;
    if is_young || door.cached.is_right((&backed.bucket, key), ttl) {
        return Ok(true);
    }
    let (far, there) = (door.reach(&backed.backing.backend).await?, backed.key(key));
    let known = state.has.as_ref().map(|has| has.etag.as_str());
    let at = backed.at(&there);
    let is_right = match far.head(at).await {
        Ok(remote) if Some(remote.etag.as_str()) != known => Ok(false),
        Ok(remote) => is_the_same(far.as_ref(), at, &remote, &View::of(object)).await,
        Err(fault) if fault.kind == Kind::Absent => Ok(false),
        Err(fault) => Err(fault),
    };
    match is_right {
        Ok(true) => door.cached.looked(&backed.bucket, key),
        Ok(false) => {
            let (bucket, asked, seq) = (backed.bucket.clone(), key.to_owned(), state.seq);
            door.blocking(move |store| store.evict(&bucket, asked.as_bytes(), seq).in_bucket())
                .await?;
            return Ok(false);
        }
        // The backend is unreachable: the cached version is the best available.
        Err(fault) => tracing::debug!("s3: {}: {}", backed.backing.backend, fault.text),
    }
    Ok(true)
}

/// Whether the metadata of an object match the backend: others may have written the same bytes with
/// other metadata.
async fn is_the_same(
    far: &dyn Backend,
    at: At<'_>,
    remote: &Remote,
    here: &View,
) -> Result<bool, Fault> {
    let (there, kept) = (fetch::record(remote), &here.record);
    // A fill has the time of the backend. A persisted object has the name of its attempt, which
    // others do not write.
    let is_as_old = match kept.modified {
        0 => remote.put_id().is_some(),
        modified => modified == there.modified,
    };
    let is_told_so = |record: &Record| {
        let mut headers = record.headers.clone();
        headers.remove("expires");
        headers.entry("content-type".to_owned()).or_insert_with(|| TYPE_DEFAULT.to_owned());
        (headers, expires(record), record.meta.clone(), record.access())
    };
    if remote.len != here.attr.size || !is_as_old || is_told_so(&there) != is_told_so(kept) {
        return Ok(false);
    }
    if remote.tags == 0 && kept.tags.is_empty() {
        return Ok(true);
    }
    let sorted = |mut tags: Vec<(String, String)>| {
        tags.sort_unstable();
        tags
    };
    match far.tags(at).await {
        Ok(tags) => Ok(sorted(tags) == sorted(kept.tags.clone())),
        // The tags of the backend are unknown.
        Err(fault) if fault.kind == Kind::Refused => Ok(true),
        Err(fault) if fault.kind == Kind::Absent => Ok(kept.tags.is_empty()),
        Err(fault) => Err(fault),
    }
}

/// The view of an object, wherever it is; its bytes stay there.
///
/// # Errors
/// `NoSuchKey`, `NoSuchBucket`; `ServiceUnavailable` or `SlowDown` when only the backend has it and
/// does not answer.
pub(crate) async fn view(
    door: &Arc<Door>,
    (bucket, key): (&str, &str),
) -> S3Result<(View, Option<&'static str>)> {
    let Some(backed) = door.backed(bucket).await? else {
        let found = door.look_up((bucket, key), false).await?;
        return Ok((View::of(&found.object.ok_or(S3ErrorCode::NoSuchKey)?), None));
    };
    match look(door, &backed, key, false).await? {
        Seen::Here(there, word) => Ok((View::of(&there.object), Some(word))),
        Seen::Nowhere => Err(S3ErrorCode::NoSuchKey.into()),
        Seen::There(_) => Ok((remote(door, &backed, key).await?, Some("remote"))),
    }
}

/// The view of a key at the backend.
///
/// # Errors
/// `NoSuchKey`; `ServiceUnavailable` or `SlowDown`.
pub(crate) async fn remote(door: &Arc<Door>, backed: &Backed, key: &str) -> S3Result<View> {
    let (far, there) = (door.reach(&backed.backing.backend).await?, backed.key(key));
    match far.head(backed.at(&there)).await {
        Ok(remote) => Ok(View::of_remote(&remote)),
        Err(error) => Err(fault(&backed.backing.backend, &error)),
    }
}

/// The knowledge about a key after an attempt to fill it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brought {
    /// It is here, or absent as far as the metas know; or there was no condition to check.
    Known,
    /// The metas did not know, and the backend does not have it.
    Absent,
}

/// Fills a key if only the backend has it, so that the metas can decide a condition of a write.
///
/// # Errors
/// Those of the condition, if it does not hold for the object at the backend; those of the backend.
pub(crate) async fn bring_for(
    door: &Arc<Door>,
    at: (&str, &str),
    conditions: &Conditions,
) -> S3Result<Brought> {
    if !conditions.is_for_write() {
        return Ok(Brought::Known);
    }
    let Some(backed) = door.backed(at.0).await? else { return Ok(Brought::Known) };
    for _ in 0..TRIES {
        let Seen::There(seen) = look(door, &backed, at.1, false).await? else {
            return Ok(Brought::Known);
        };
        let there = match remote(door, &backed, at.1).await {
            Ok(view) => view,
            Err(error) if is_absent(&error) => {
                absent(door, &backed, (at.1, seen)).await?;
                return Ok(Brought::Absent);
            }
            Err(error) => return Err(error),
        };
        conditions.check_write(Some(&there))?;
        super::fetch::fill(door, &backed, at.1).await?;
    }
    Err(S3ErrorCode::SlowDown.into())
}

/// Whether a key was not found only because it was evicted in the meantime: then it can be filled
/// again.
///
/// # Errors
/// As [`look`].
pub(crate) async fn is_given_up(
    door: &Arc<Door>,
    at: (&str, &str),
    error: &S3Error,
) -> S3Result<bool> {
    if !is_absent(error) {
        return Ok(false);
    }
    let Some(backed) = door.backed(at.0).await? else { return Ok(false) };
    Ok(matches!(look(door, &backed, at.1, false).await?, Seen::There(_)))
}

/// Tells the metas that the backend does not have an evicted key, because others have removed it
/// there. Applies only if its state is still the observed one.
async fn absent(
    door: &Arc<Door>,
    backed: &Backed,
    (key, seen): (&str, Option<u64>),
) -> S3Result<()> {
    let Some(seq) = seen.filter(|_| backed.is_shared(key)) else { return Ok(()) };
    let (bucket, asked) = (backed.bucket.clone(), key.to_owned());
    let evict = move |store: &Store| store.evict(&bucket, asked.as_bytes(), seq).in_bucket();
    door.blocking(evict).await.map(drop)
}

/// Fills a key if only the backend has it.
///
/// # Errors
/// `NoSuchKey`; of the backend.
pub(crate) async fn bring(door: &Arc<Door>, at: (&str, &str)) -> S3Result<()> {
    bring_if(door, at, |_| Ok(())).await
}

/// Like [`bring`], for an object that passes `check` with its metadata at the backend.
///
/// # Errors
/// Of `check`; `NoSuchKey`; of the backend.
pub(crate) async fn bring_if(
    door: &Arc<Door>,
    at: (&str, &str),
    check: impl Fn(&View) -> S3Result<()>,
) -> S3Result<()> {
    let Some(backed) = door.backed(at.0).await? else { return Ok(()) };
    for _ in 0..TRIES {
        match look(door, &backed, at.1, false).await? {
            Seen::Here(..) => return Ok(()),
            Seen::Nowhere => return Err(S3ErrorCode::NoSuchKey.into()),
            Seen::There(_) => {
                check(&remote(door, &backed, at.1).await?)?;
                super::fetch::fill(door, &backed, at.1).await?;
            }
        }
    }
    Err(S3ErrorCode::SlowDown.into())
}

fn is_absent(error: &S3Error) -> bool {
    *error.code() == S3ErrorCode::NoSuchKey
}
