//! `DeleteObject` and `DeleteObjects`.

use std::sync::Arc;

use futures_util::future::try_join_all;
use s3s::dto::{
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject,
    ETagCondition, Error, ObjectIdentifier, Timestamp,
};
use s3s::{S3ErrorCode, S3Request, S3Result};

use super::{Answer, answer};
use crate::backed::look::{Brought, bring_for};
use crate::backed::settle::admit_removal;
use crate::conditions::{Conditions, time};
use crate::door::Door;
use crate::error::{Told as _, absent, message};
use crate::record::View;
use crate::store::{Expect, Found, Put, Store, Wanted};

/// Keys of one request at most.
const KEYS_MAX: usize = 1_000;
/// Threads that remove the keys of one request.
const LANES: usize = 8;
const TRIES: usize = 8;

/// The conditions for removing a key.
struct Only {
    /// The condition on the `ETag`; requires an object if only the other conditions are given.
    conditions: Conditions,
    size: Option<i64>,
    modified: Option<Timestamp>,
}

impl Only {
    fn new(etag: Option<ETagCondition>, size: Option<i64>, modified: Option<Timestamp>) -> Self {
        let others = size.is_some() || modified.is_some();
        let if_match = etag.or(others.then_some(ETagCondition::Any));
        Self { conditions: Conditions { if_match, ..Conditions::default() }, size, modified }
    }

    fn check(&self, there: &View) -> S3Result<Expect> {
        let expect = self.conditions.check_write(Some(there))?;
        let is_met = self.size.is_none_or(|size| u64::try_from(size) == Ok(there.attr.size))
            && self.modified.as_ref().is_none_or(|modified| *modified == time(there.attr.mtime));
        if is_met { Ok(expect) } else { Err(S3ErrorCode::PreconditionFailed.into()) }
    }
}

/// Removes a key. Returns false if the key may still be at the backend. For a thread that may
/// block.
fn remove(
    store: &Store,
    (bucket, key): (&str, &str),
    (only, brought): (&Only, Brought),
) -> S3Result<bool> {
    if only.conditions.if_match.is_none() {
        store.remove_object(bucket, key.as_bytes(), Expect::Any).in_bucket()?;
        return Ok(true);
    }
    let Found { object: mut there, state } =
        store.look_up(bucket, key.as_bytes(), false).in_bucket()?;
    let is_evicted = state.is_some_and(|state| state.wanted == Wanted::Forgotten);
    for _ in 0..TRIES {
        let Some(object) = &there else {
            // An absent key counts as removed, as with AWS: a retry after a lost answer succeeds.
            return Ok(brought == Brought::Absent || !is_evicted);
        };
        let expect = only.check(&View::of(object))?;
        match store.remove_object(bucket, key.as_bytes(), expect).in_bucket()? {
            Put::Done { .. } => return Ok(true),
            // Another request removed it, or it was evicted: the caller looks again.
            Put::Unmet(None) => return Ok(false),
            Put::Unmet(now) => there = now,
        }
    }
    Err(S3ErrorCode::ConditionalRequestConflict.into())
}

/// Removes a key, and fills it first if a condition needs it.
async fn removed(door: &Arc<Door>, (bucket, key): (&str, &str), only: Only) -> S3Result<()> {
    super::put::check_key(key)?;
    let only = Arc::new(only);
    for _ in 0..TRIES {
        let brought = bring_for(door, (bucket, key), &only.conditions).await?;
        let (bucket, key, only) = (bucket.to_owned(), key.to_owned(), Arc::clone(&only));
        if door.blocking(move |store| remove(store, (&bucket, &key), (&only, brought))).await? {
            return Ok(());
        }
    }
    Err(S3ErrorCode::ConditionalRequestConflict.into())
}

fn refuse_version(version: Option<&String>) -> S3Result<()> {
    match version.map(String::as_str) {
        None | Some("null" | "") => Ok(()),
        Some(_) => Err(absent("A version of an object (versionId)")),
    }
}

/// `DeleteObject`: an absent key counts as removed.
pub(crate) async fn one(
    door: &Arc<Door>,
    request: S3Request<DeleteObjectInput>,
) -> Answer<DeleteObjectOutput> {
    let mut input = request.input;
    refuse_version(input.version_id.as_ref())?;
    let (size, modified) = (input.if_match_size, input.if_match_last_modified_time.take());
    let only = Only::new(input.if_match.take(), size, modified);
    let (bucket, key) = (input.bucket, input.key);
    let written = admit_removal(door, (&bucket, &key)).await?;
    removed(door, (&bucket, &key), only).await?;
    written.done(door, &key).await?;
    answer(DeleteObjectOutput::default())
}

type Outcome = Result<DeletedObject, Error>;

/// The error for one of many keys.
fn refused(object: &ObjectIdentifier, error: &s3s::S3Error) -> Error {
    let code = error.code().as_str().to_owned();
    let text = error.message().unwrap_or_else(|| message(&code)).to_owned();
    let (key, version_id) = (Some(object.key.clone()), object.version_id.clone());
    Error { code: Some(code), key, message: Some(text), version_id }
}

fn only(object: &ObjectIdentifier) -> Only {
    let etag = object.e_tag.clone().map(ETagCondition::ETag);
    Only::new(etag, object.size, object.last_modified_time.clone())
}

/// The result for one key.
fn outcome(object: &ObjectIdentifier, done: S3Result<()>) -> Outcome {
    match done {
        Ok(()) => Ok(DeletedObject { key: Some(object.key.clone()), ..DeletedObject::default() }),
        Err(error) => Err(refused(object, &error)),
    }
}

/// Removes keys one after another, then waits for all of them at the backend together.
async fn lane_of(
    door: &Arc<Door>,
    bucket: &str,
    lane: Vec<ObjectIdentifier>,
) -> S3Result<Vec<Outcome>> {
    let mut outcomes = Vec::with_capacity(lane.len());
    for object in &lane {
        let done = match refuse_version(object.version_id.as_ref()) {
            Ok(()) => removed(door, (bucket, &object.key), only(object)).await,
            Err(error) => Err(error),
        };
        outcomes.push(outcome(object, done));
    }
    let waiting = lane.iter().zip(outcomes).map(|(object, outcome)| async move {
        if outcome.is_err() {
            return Ok(outcome);
        }
        let done = admit_removal(door, (bucket, &object.key)).await?.done(door, &object.key).await;
        Ok(done.map_or_else(|error| Err(refused(object, &error)), |_| outcome))
    });
    try_join_all(waiting).await
}

/// `DeleteObjects`.
pub(crate) async fn many(
    door: &Arc<Door>,
    request: S3Request<DeleteObjectsInput>,
) -> Answer<DeleteObjectsOutput> {
    let input = request.input;
    let quiet = input.delete.quiet == Some(true);
    let objects = input.delete.objects;
    if objects.is_empty() || objects.len() > KEYS_MAX {
        return Err(S3ErrorCode::MalformedXML.into());
    }
    let bucket = input.bucket.clone();
    door.blocking(move |store| store.bucket(&bucket).in_bucket()).await?;
    let lane_len = objects.len().div_ceil(LANES);
    let lanes: Vec<_> = objects
        .chunks(lane_len)
        .map(|lane| {
            let (lane, bucket, door) = (lane.to_vec(), input.bucket.clone(), Arc::clone(door));
            tokio::spawn(async move { lane_of(&door, &bucket, lane).await })
        })
        .collect();
    let (mut deleted, mut errors) = (Vec::new(), Vec::new());
    for lane in lanes {
        for outcome in lane.await.map_err(s3s::S3Error::internal_error)?? {
            match outcome {
                Ok(object) => deleted.push(object),
                Err(error) => errors.push(error),
            }
        }
    }
    let deleted = (!quiet).then_some(deleted);
    let errors = Some(errors);
    answer(DeleteObjectsOutput { deleted, errors, ..DeleteObjectsOutput::default() })
}
