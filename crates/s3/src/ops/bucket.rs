//! Buckets: made, removed, listed.

use std::sync::Arc;

use s3s::dto::{
    Bucket, BucketCannedACL, BucketLocationConstraint, CreateBucketInput, CreateBucketOutput,
    DeleteBucketInput, DeleteBucketOutput, GetBucketLocationInput, GetBucketLocationOutput,
    HeadBucketInput, HeadBucketOutput, ListBucketsInput, ListBucketsOutput, ObjectOwnership,
};
use s3s::{S3ErrorCode, S3Request, S3Result};

use super::list::Asked;
use super::{Answer, access_key, answer, owner};
use crate::auth::key;
use crate::conditions::time;
use crate::door::Door;
use crate::error::{Told as _, absent, refuse};
use crate::record::{BucketRecord, encode};

/// Where AWS has buckets that name no region.
const FIRST_REGION: &str = "us-east-1";

/// A directory that a mount has made, beside the buckets.
const TAKEN: &str =
    "A directory of this name is there, which is no bucket. Select a different name and try again.";
/// What names of buckets do not begin or end with: AWS has them for other things.
const HEADS: [&str; 2] = ["sthree-", "amzn-s3-demo-"];
const TAILS: [&str; 5] = ["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"];

/// The rules for names of new buckets that `s3s` does not know.
fn check_name(name: &str) -> S3Result<()> {
    let is_wrong = name.contains(".-")
        || name.contains("-.")
        || HEADS.iter().any(|it| name.starts_with(it))
        || TAILS.iter().any(|it| name.ends_with(it));
    if is_wrong { Err(S3ErrorCode::InvalidBucketName.into()) } else { Ok(()) }
}

/// `CreateBucket`. In the first region one that is there already is answered as if it were new, as AWS does there.
pub(crate) async fn create(
    door: &Arc<Door>,
    request: S3Request<CreateBucketInput>,
) -> Answer<CreateBucketOutput> {
    let input = request.input;
    super::headers::check_acl(input.acl.as_ref().map(BucketCannedACL::as_str))?;
    super::owned::check(input.object_ownership.as_ref().map(ObjectOwnership::as_str))?;
    check_name(&input.bucket)?;
    if input.object_lock_enabled_for_bucket == Some(true) {
        return Err(absent("Object lock (x-amz-bucket-object-lock-enabled)"));
    }
    let place = input.create_bucket_configuration.and_then(|it| it.location_constraint);
    if let Some(place) = place.filter(|it| !it.as_str().is_empty())
        && place.as_str() != door.settings.region
    {
        let message = "The specified location-constraint is not valid";
        return Err(refuse(S3ErrorCode::InvalidLocationConstraint, message));
    }
    let name = input.bucket;
    let location = Some(format!("/{name}"));
    let is_first = door.settings.region == FIRST_REGION;
    door.blocking(move |store| {
        match store.make_bucket(&name, &encode(&BucketRecord::default())).in_bucket() {
            Err(error) if *error.code() == S3ErrorCode::BucketAlreadyOwnedByYou => {
                // What is there may be a directory that is none.
                match store.bucket(&name) {
                    Ok(_) if is_first => Ok(()),
                    Ok(_) => Err(error),
                    Err(_) => Err(refuse(S3ErrorCode::BucketAlreadyExists, TAKEN)),
                }
            }
            done => done.map(drop),
        }
    })
    .await?;
    answer(CreateBucketOutput { location })
}

/// `DeleteBucket`.
pub(crate) async fn delete(
    door: &Arc<Door>,
    request: S3Request<DeleteBucketInput>,
) -> Answer<DeleteBucketOutput> {
    let name = request.input.bucket;
    if let Some(backed) = door.backed(&name).await? {
        // What only the backend has would not be in the way otherwise.
        let (prefix, delimiter) = (String::new(), String::new());
        let asked = Asked { bucket: name.clone(), prefix, delimiter, after: Vec::new(), max: 1 };
        if !crate::backed::list::page(door, &backed, &asked).await?.items.is_empty() {
            return Err(S3ErrorCode::BucketNotEmpty.into());
        }
    }
    door.blocking(move |store| store.remove_bucket(&name).in_bucket()).await?;
    answer(DeleteBucketOutput {})
}

/// `HeadBucket`.
pub(crate) async fn head(
    door: &Arc<Door>,
    request: S3Request<HeadBucketInput>,
) -> Answer<HeadBucketOutput> {
    let name = request.input.bucket;
    door.blocking(move |store| store.bucket(&name).in_bucket()).await?;
    let bucket_region = Some(door.settings.region.clone());
    answer(HeadBucketOutput { bucket_region, ..HeadBucketOutput::default() })
}

/// `GetBucketLocation`.
pub(crate) async fn location(
    door: &Arc<Door>,
    request: S3Request<GetBucketLocationInput>,
) -> Answer<GetBucketLocationOutput> {
    let name = request.input.bucket;
    door.blocking(move |store| store.bucket(&name).in_bucket()).await?;
    let region = door.settings.region.clone();
    let named = (region != FIRST_REGION).then(|| BucketLocationConstraint::from(region));
    answer(GetBucketLocationOutput { location_constraint: named })
}

/// `ListBuckets`: those that the credential may use.
pub(crate) async fn list(
    door: &Arc<Door>,
    request: S3Request<ListBucketsInput>,
) -> Answer<ListBucketsOutput> {
    let key = key(door, access_key(&request)).await?.ok_or(S3ErrorCode::AccessDenied)?;
    let input = request.input;
    let all = door.blocking(|store| store.buckets().in_bucket()).await?;
    let prefix = input.prefix.clone().unwrap_or_default();
    let after = input.continuation_token.unwrap_or_default();
    let max = usize::try_from(input.max_buckets.unwrap_or(10_000)).unwrap_or(0).min(10_000);
    if max == 0 {
        return Err(refuse(S3ErrorCode::InvalidArgument, "MaxBuckets must be between 1 and 10000"));
    }
    let region = input.max_buckets.map(|_| door.settings.region.clone());
    let mut buckets: Vec<Bucket> = all
        .into_iter()
        .filter(|it| key.allows(&it.name))
        .filter(|it| it.name.starts_with(&prefix) && it.name > after)
        .map(|it| Bucket {
            bucket_region: region.clone(),
            creation_date: Some(time(it.attr.btime)),
            name: Some(it.name),
        })
        .collect();
    let is_cut = buckets.len() > max;
    buckets.truncate(max);
    let next = buckets.last().and_then(|it| it.name.clone()).filter(|_| is_cut);
    answer(ListBucketsOutput {
        buckets: Some(buckets),
        continuation_token: next,
        owner: Some(owner()),
        prefix: input.prefix,
    })
}
