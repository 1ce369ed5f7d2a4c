//! Buckets: made, removed, listed.

use std::sync::Arc;

use s3s::dto::{
    Bucket, BucketLocationConstraint, CreateBucketInput, CreateBucketOutput, DeleteBucketInput,
    DeleteBucketOutput, GetBucketLocationInput, GetBucketLocationOutput, HeadBucketInput,
    HeadBucketOutput, ListBucketsInput, ListBucketsOutput,
};
use s3s::{S3ErrorCode, S3Request, S3Result};

use super::list::Asked;
use super::{Answer, access_key, answer, owner};
use crate::access::{checked, who_asks};
use crate::acl::wished;
use crate::auth::key;
use crate::conditions::time;
use crate::door::Door;
use crate::error::{Told as _, absent, refuse};
use crate::keys::Key;
use crate::record::{BucketRecord, encode};
use crate::store::Bucket as Found;

/// Where AWS has buckets that name no region.
const FIRST_REGION: &str = "us-east-1";

/// A directory that a mount has made, beside the buckets.
const TAKEN: &str =
    "A directory of this name is there, which is no bucket. Select a different name and try again.";
/// A bucket that is made again is left as it is.
const OTHER_LIST: &str =
    "You own this bucket, and it has another access control list: change that with PutBucketAcl.";
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
    let tenant = asking(door, &request).await?.tenant;
    let input = request.input;
    check_name(&input.bucket)?;
    let record = new_record(door, &input, &tenant).await?;
    if input.object_lock_enabled_for_bucket == Some(true) {
        return Err(absent("Object lock (x-amz-bucket-object-lock-enabled)"));
    }
    let wished = input.create_bucket_configuration;
    if wished.as_ref().is_some_and(|it| it.bucket.is_some() || it.location.is_some()) {
        return Err(absent("A directory bucket (Bucket, Location)"));
    }
    let place = wished.and_then(|it| it.location_constraint);
    if let Some(place) = place.filter(|it| !it.as_str().is_empty())
        && place.as_str() != door.settings.region
    {
        let message = "The specified location-constraint is not valid";
        return Err(refuse(S3ErrorCode::InvalidLocationConstraint, message));
    }
    let name = input.bucket;
    let location = Some(format!("/{name}"));
    let made = name.clone();
    let is_first = door.settings.region == FIRST_REGION;
    door.blocking(move |store| {
        match store.make_bucket(&name, &encode(&record)).in_bucket() {
            Err(error) if *error.code() == S3ErrorCode::BucketAlreadyOwnedByYou => {
                // What is there may be a directory that is none.
                match store.bucket(&name) {
                    Ok(there) if !owns(&tenant, &there) => {
                        Err(S3ErrorCode::BucketAlreadyExists.into())
                    }
                    Ok(there) if record_of(&there).acl != record.acl => {
                        Err(refuse(S3ErrorCode::BucketAlreadyExists, OTHER_LIST))
                    }
                    Ok(_) if is_first => Ok(()),
                    Ok(_) => Err(error),
                    Err(_) => Err(refuse(S3ErrorCode::BucketAlreadyExists, TAKEN)),
                }
            }
            done => done.map(drop),
        }
    })
    .await?;
    door.forget_bucket(&made);
    answer(CreateBucketOutput { location })
}

/// The credential of a request.
///
/// # Errors
/// `AccessDenied` if it shows none.
async fn asking<T>(door: &Arc<Door>, request: &S3Request<T>) -> S3Result<Key> {
    key(door, access_key(request)).await?.ok_or_else(|| S3ErrorCode::AccessDenied.into())
}

/// Whether a bucket belongs to a tenant.
fn owns(tenant: &str, bucket: &Found) -> bool {
    record_of(bucket).owner() == tenant
}

fn record_of(bucket: &Found) -> BucketRecord {
    BucketRecord::read_or_nobodys(bucket.attachment.as_ref())
}

/// What is kept with a new bucket.
async fn new_record(
    door: &Arc<Door>,
    input: &CreateBucketInput,
    tenant: &str,
) -> S3Result<BucketRecord> {
    let mut record = BucketRecord::of(tenant);
    let ownership = input.object_ownership.as_ref();
    record.ownership = ownership.map(|it| super::owned::named(it.as_str())).transpose()?;
    let list = wished!(input, grant_write).list(tenant, tenant)?;
    if let Some(list) = list {
        let list = checked(door, &record, (list, tenant)).await;
        record.acl = list.map_err(|error| match error.code().as_str() {
            "AccessControlListNotSupported" => super::owned::no_lists(),
            _ => error,
        })?;
    }
    Ok(record)
}

/// `DeleteBucket`.
pub(crate) async fn delete(
    door: &Arc<Door>,
    request: S3Request<DeleteBucketInput>,
) -> Answer<DeleteBucketOutput> {
    let who = who_asks(&request)?;
    let name = request.input.bucket;
    if let Some(backed) = door.backed(&name).await? {
        // What only the backend has would not be in the way otherwise.
        let (prefix, delimiter) = (String::new(), String::new());
        let asked = Asked { bucket: name.clone(), prefix, delimiter, after: Vec::new(), max: 1 };
        if !crate::backed::list::page(door, &backed, &asked).await?.items.is_empty() {
            return Err(S3ErrorCode::BucketNotEmpty.into());
        }
    }
    let removed = name.clone();
    door.blocking(move |store| {
        who.check_owner(&record_of(&store.bucket(&name).in_bucket()?))?;
        store.remove_bucket(&name).in_bucket()
    })
    .await?;
    door.forget_bucket(&removed);
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

/// `ListBuckets`: those of the credential's tenant, as far as the credential may use them.
pub(crate) async fn list(
    door: &Arc<Door>,
    request: S3Request<ListBucketsInput>,
) -> Answer<ListBucketsOutput> {
    let key = asking(door, &request).await?;
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
        .filter(|it| key.allows(&it.name) && owns(&key.tenant, it))
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
        owner: Some(owner(&key.tenant)),
        prefix: input.prefix,
    })
}
