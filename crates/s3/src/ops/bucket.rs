//! Creates, removes and lists buckets.

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
use crate::store::{Bucket as Found, Store};

/// The AWS region of buckets that name none.
const FIRST_REGION: &str = "us-east-1";

/// The error for a directory beside the buckets, made by a mount.
const TAKEN: &str =
    "A directory of this name exists that is not a bucket. Select a different name and try again.";
/// The error for creating an existing bucket with another list: the bucket stays unchanged.
const OTHER_LIST: &str = "You own this bucket, but it has another access control list: change the \
                          list with PutBucketAcl.";
/// Reserved prefixes and suffixes of bucket names: AWS uses them for other things.
const HEADS: [&str; 2] = ["sthree-", "amzn-s3-demo-"];
const TAILS: [&str; 5] = ["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"];

/// The longest name of a region: a region must be a valid host name.
const REGION_MAX: usize = 63;
/// An old name of [`FIRST_REGION`].
const US: &str = "US";
/// Another old name, which AWS still reports unchanged, and its region.
const EU: (&str, &str) = ("EU", "eu-west-1");

/// The rules for names of new buckets that `s3s` does not check.
fn check_name(name: &str) -> S3Result<()> {
    let is_wrong = name.contains(".-")
        || name.contains("-.")
        || HEADS.iter().any(|head| name.starts_with(head))
        || TAILS.iter().any(|tail| name.ends_with(tail));
    if is_wrong { Err(S3ErrorCode::InvalidBucketName.into()) } else { Ok(()) }
}

/// `CreateBucket`. In the first region an existing bucket is answered like a new one, as with AWS.
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
    let wished = input.create_bucket_configuration.as_ref();
    if wished.is_some_and(|wished| wished.bucket.is_some() || wished.location.is_some()) {
        return Err(absent("A directory bucket (Bucket, Location)"));
    }
    let name = input.bucket;
    let location = Some(format!("/{name}"));
    let made = name.clone();
    let own = door.settings.region.clone();
    door.blocking(move |store| make(store, &name, (&record, &tenant, &own))).await?;
    door.forget_bucket(&made);
    answer(CreateBucketOutput { location })
}

/// Creates a bucket of a tenant, unless the tenant already has it; for a thread that may block.
fn make(
    store: &Store,
    name: &str,
    (record, tenant, own): (&BucketRecord, &str, &str),
) -> S3Result<()> {
    let error = match store.make_bucket(name, &encode(record)).in_bucket() {
        Err(error) if *error.code() == S3ErrorCode::BucketAlreadyOwnedByYou => error,
        done => return done.map(drop),
    };
    // The name may belong to a directory that is not a bucket.
    let there = match store.bucket(name) {
        Ok(there) if owns(tenant, &there) => record_of(&there),
        Ok(_) => return Err(S3ErrorCode::BucketAlreadyExists.into()),
        Err(_) => return Err(refuse(S3ErrorCode::BucketAlreadyExists, TAKEN)),
    };
    if there.acl != record.acl {
        return Err(refuse(S3ErrorCode::BucketAlreadyExists, OTHER_LIST));
    }
    let is_first = [record, &there].iter().all(|bucket| place_of(bucket, own) == FIRST_REGION);
    if is_first { Ok(()) } else { Err(error) }
}

/// The location that a request names for its bucket, in the stored form.
///
/// # Errors
/// `InvalidLocationConstraint` for an invalid region name.
fn place(named: &str) -> S3Result<String> {
    let is_sign = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [named.bytes().next(), named.bytes().last()];
    let is_name = named.len() <= REGION_MAX
        && ends.into_iter().all(|end| end.is_some_and(is_sign))
        && named.bytes().all(|byte| is_sign(byte) || byte == b'-');
    match named {
        US => Ok(FIRST_REGION.to_owned()),
        _ if is_name || named == EU.0 => Ok(named.to_owned()),
        _ => {
            let message = "The specified location-constraint is not valid";
            Err(refuse(S3ErrorCode::InvalidLocationConstraint, message))
        }
    }
}

/// The location that a bucket reports: the named one, or the gateway's region.
fn place_of<'a>(record: &'a BucketRecord, own: &'a str) -> &'a str {
    record.region.as_deref().unwrap_or(own)
}

/// The same, as a region.
fn region_of<'a>(record: &'a BucketRecord, own: &'a str) -> &'a str {
    match place_of(record, own) {
        place if place == EU.0 => EU.1,
        place => place,
    }
}

/// The credential of a request.
///
/// # Errors
/// `AccessDenied` if it has none.
async fn asking<T>(door: &Arc<Door>, request: &S3Request<T>) -> S3Result<Key> {
    key(door, access_key(request)).await?.ok_or_else(|| S3ErrorCode::AccessDenied.into())
}

/// Whether a tenant owns a bucket.
fn owns(tenant: &str, bucket: &Found) -> bool {
    record_of(bucket).owner() == tenant
}

fn record_of(bucket: &Found) -> BucketRecord {
    BucketRecord::read_or_nobodys(bucket.attachment.as_ref())
}

/// The record of a new bucket.
async fn new_record(
    door: &Arc<Door>,
    input: &CreateBucketInput,
    tenant: &str,
) -> S3Result<BucketRecord> {
    let mut record = BucketRecord::of(tenant);
    let ownership = input.object_ownership.as_ref();
    record.ownership =
        ownership.map(|ownership| super::owned::named(ownership.as_str())).transpose()?;
    let wished = input.create_bucket_configuration.as_ref();
    let named = wished
        .and_then(|wished| wished.location_constraint.as_ref())
        .map(BucketLocationConstraint::as_str);
    record.region = named.filter(|region| !region.is_empty()).map(place).transpose()?;
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
        // Otherwise keys that only the backend has would not prevent the removal.
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
    let there = door.blocking(move |store| store.bucket(&name).in_bucket()).await?;
    let bucket_region = Some(region_of(&record_of(&there), &door.settings.region).to_owned());
    answer(HeadBucketOutput { bucket_region, ..HeadBucketOutput::default() })
}

/// `GetBucketLocation`.
pub(crate) async fn location(
    door: &Arc<Door>,
    request: S3Request<GetBucketLocationInput>,
) -> Answer<GetBucketLocationOutput> {
    let name = request.input.bucket;
    let there = door.blocking(move |store| store.bucket(&name).in_bucket()).await?;
    let record = record_of(&there);
    let place =
        Some(place_of(&record, &door.settings.region)).filter(|region| *region != FIRST_REGION);
    let named = place.map(|region| BucketLocationConstraint::from(region.to_owned()));
    answer(GetBucketLocationOutput { location_constraint: named })
}

/// `ListBuckets`: the buckets of the credential's tenant that the credential permits.
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
    let (is_paged, own) = (input.max_buckets.is_some(), &door.settings.region);
    let mut buckets: Vec<Bucket> = all
        .into_iter()
        .filter(|bucket| key.allows(&bucket.name) && owns(&key.tenant, bucket))
        .filter(|bucket| bucket.name.starts_with(&prefix) && bucket.name > after)
        .map(|bucket| Bucket {
            bucket_region: is_paged.then(|| region_of(&record_of(&bucket), own).to_owned()),
            creation_date: Some(time(bucket.attr.btime)),
            name: Some(bucket.name),
        })
        .collect();
    let is_cut = buckets.len() > max;
    buckets.truncate(max);
    let next = buckets.last().and_then(|bucket| bucket.name.clone()).filter(|_| is_cut);
    answer(ListBucketsOutput {
        buckets: Some(buckets),
        continuation_token: next,
        owner: Some(owner(&key.tenant)),
        prefix: input.prefix,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_names_of_regions() {
        for name in ["eu-central-1", "us-east-1", "pond", "cn-north-1", "EU", "a"] {
            assert_eq!(place(name).ok().as_deref(), Some(name));
        }
        assert_eq!(place("US").ok().as_deref(), Some(FIRST_REGION));
        let long = "a".repeat(REGION_MAX + 1);
        for wrong in
            ["EU-WEST-1", "Us", "eu west 1", "-eu", "eu-", "eu_west", "eu/west", "\u{fc}", &long]
        {
            let error = place(wrong).unwrap_err();
            assert_eq!(*error.code(), S3ErrorCode::InvalidLocationConstraint, "{wrong}");
        }
    }

    #[test]
    fn a_bucket_is_where_it_was_made() {
        let of = |region: Option<&str>| {
            let record =
                BucketRecord { region: region.map(str::to_owned), ..BucketRecord::default() };
            (place_of(&record, "own").to_owned(), region_of(&record, "own").to_owned())
        };
        let pair = |place: &str, region: &str| (place.to_owned(), region.to_owned());
        assert_eq!(of(None), pair("own", "own"));
        assert_eq!(of(Some("EU")), pair("EU", "eu-west-1"));
        assert_eq!(of(Some("us-west-2")), pair("us-west-2", "us-west-2"));
    }
}
