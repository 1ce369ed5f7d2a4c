//! `DeleteObject` and `DeleteObjects`.

use std::sync::Arc;

use s3s::dto::{
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject,
    Error, ObjectIdentifier,
};
use s3s::{S3ErrorCode, S3Request, S3Result};

use super::{Answer, answer};
use crate::backed::look::bring_for;
use crate::backed::settle::admit_removal;
use crate::conditions::Conditions;
use crate::door::Door;
use crate::error::{Told as _, absent, message};
use crate::record::View;
use crate::store::{Expect, Put, Store};

/// Keys of one request at most.
const KEYS_MAX: usize = 1_000;
/// How many threads remove the keys of one request.
const LANES: usize = 8;
const TRIES: usize = 8;

fn remove(store: &Store, (bucket, key): (&str, &str), conditions: &Conditions) -> S3Result<()> {
    super::put::check_key(key)?;
    let mut there = None;
    if conditions.if_match.is_some() {
        there = store.get_object(bucket, key.as_bytes(), false).in_bucket()?;
    }
    for _ in 0..TRIES {
        let expect = if conditions.if_match.is_some() {
            conditions.check_write(there.as_ref().map(View::of).as_ref())?
        } else {
            Expect::Any
        };
        match store.remove_object(bucket, key.as_bytes(), expect).in_bucket()? {
            Put::Done { .. } => return Ok(()),
            Put::Unmet(None) if expect == Expect::Any => return Ok(()),
            Put::Unmet(now) => there = now,
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

/// `DeleteObject`: what is not there is removed.
pub(crate) async fn one(
    door: &Arc<Door>,
    request: S3Request<DeleteObjectInput>,
) -> Answer<DeleteObjectOutput> {
    let mut input = request.input;
    refuse_version(input.version_id.as_ref())?;
    if input.if_match_size.is_some() || input.if_match_last_modified_time.is_some() {
        return Err(absent("x-amz-if-match-size and x-amz-if-match-last-modified-time"));
    }
    let conditions = Conditions { if_match: input.if_match.take(), ..Conditions::default() };
    let (bucket, key) = (input.bucket, input.key);
    let written = admit_removal(door, (&bucket, &key)).await?;
    bring_for(door, (&bucket, &key), &conditions).await?;
    let of = key.clone();
    door.blocking(move |store| remove(store, (&bucket, &key), &conditions)).await?;
    written.done(door, &of).await?;
    answer(DeleteObjectOutput::default())
}

type Outcome = Result<DeletedObject, Error>;

/// Why one of many keys was not removed.
fn refused(it: &ObjectIdentifier, error: &s3s::S3Error) -> Error {
    let code = error.code().as_str().to_owned();
    let text = error.message().unwrap_or_else(|| message(&code)).to_owned();
    let (key, version_id) = (Some(it.key.clone()), it.version_id.clone());
    Error { code: Some(code), key, message: Some(text), version_id }
}

fn conditions_of(it: &ObjectIdentifier) -> Conditions {
    let if_match = it.e_tag.clone().map(s3s::dto::ETagCondition::ETag);
    Conditions { if_match, ..Conditions::default() }
}

/// What became of one key.
fn outcome(store: &Store, bucket: &str, it: &ObjectIdentifier) -> Outcome {
    let done = refuse_version(it.version_id.as_ref())
        .and_then(|()| remove(store, (bucket, &it.key), &conditions_of(it)));
    match done {
        Ok(()) => Ok(DeletedObject { key: Some(it.key.clone()), ..DeletedObject::default() }),
        Err(error) => Err(refused(it, &error)),
    }
}

/// Removes keys one after the other, and waits for all their backend together.
async fn lane_of(
    door: &Arc<Door>,
    bucket: &str,
    lane: Vec<ObjectIdentifier>,
) -> S3Result<Vec<Outcome>> {
    if door.backed(bucket).await?.is_some() {
        for it in &lane {
            // What cannot be brought here fails below, or is not there.
            let _ = bring_for(door, (bucket, &it.key), &conditions_of(it)).await;
        }
    }
    let (of, keys) = (bucket.to_owned(), lane.clone());
    let mut outcomes = door
        .blocking(move |store| {
            Ok(keys.iter().map(|it| outcome(store, &of, it)).collect::<Vec<_>>())
        })
        .await?;
    for (it, outcome) in lane.iter().zip(&mut outcomes) {
        if outcome.is_ok()
            && let Err(error) =
                admit_removal(door, (bucket, &it.key)).await?.done(door, &it.key).await
        {
            *outcome = Err(refused(it, &error));
        }
    }
    Ok(outcomes)
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
                Ok(it) => deleted.push(it),
                Err(it) => errors.push(it),
            }
        }
    }
    let deleted = (!quiet).then_some(deleted);
    let errors = Some(errors);
    answer(DeleteObjectsOutput { deleted, errors, ..DeleteObjectsOutput::default() })
}
