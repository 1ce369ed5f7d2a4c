//! Policies of backed buckets: forwarded to the bucket of the backend. The gateway has no own
//! policies.

use std::sync::Arc;

use hyper::StatusCode;
use s3s::dto::{
    DeleteBucketPolicyInput, DeleteBucketPolicyOutput, GetBucketPolicyInput, GetBucketPolicyOutput,
    GetBucketPolicyStatusInput, GetBucketPolicyStatusOutput, PolicyStatus, PutBucketPolicyInput,
    PutBucketPolicyOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result};

use super::Backed;
use crate::back::store::{Fault, Kind};
use crate::door::Door;
use crate::error::{Told as _, absent, refuse};
use crate::ops::{Answer, answer};

fn none() -> S3Error {
    refuse(S3ErrorCode::NoSuchBucketPolicy, "The bucket policy does not exist")
}

/// The backing of an existing bucket.
async fn backed(door: &Arc<Door>, bucket: &str) -> S3Result<Option<Backed>> {
    let backed = door.backed(bucket).await?;
    if backed.is_none() {
        let name = bucket.to_owned();
        door.blocking(move |store| store.bucket(&name).in_bucket()).await?;
    }
    Ok(backed)
}

/// The error for a client: a rejected policy gets code and status of the backend, since it is the
/// client's error.
fn told(backed: &Backed, fault: &Fault) -> S3Error {
    let mut words = fault.text.splitn(3, ' ');
    let status = words.next().and_then(|word| word.parse::<StatusCode>().ok());
    let (code, rest) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    match (fault.kind, status) {
        (Kind::Absent, _) => none(),
        (Kind::Refused, Some(status)) if !code.is_empty() => {
            let message = format!("The backend '{}' answered: {rest}", backed.backing.backend);
            let code = S3ErrorCode::Custom(code.to_owned().into());
            let mut error = S3Error::with_message(code, message);
            error.set_status_code(status);
            error
        }
        _ => super::fault(&backed.backing.backend, fault),
    }
}

/// The backing, if it has no prefix: a policy applies to a whole bucket.
async fn whole(door: &Arc<Door>, bucket: &str) -> S3Result<Backed> {
    let Some(backed) = backed(door, bucket).await? else {
        return Err(absent("The policy of a bucket without a backend"));
    };
    if !backed.backing.prefix.is_empty() {
        let what = "A change of the policy of a bucket with a prefix at its backend";
        return Err(absent(what));
    }
    Ok(backed)
}

/// `GetBucketPolicy`.
pub(crate) async fn get(
    door: &Arc<Door>,
    request: S3Request<GetBucketPolicyInput>,
) -> Answer<GetBucketPolicyOutput> {
    let Some(backed) = backed(door, &request.input.bucket).await? else { return Err(none()) };
    let far = door.reach(&backed.backing.backend).await?;
    let policy = far.policy(&backed.backing.bucket).await;
    let policy = Some(policy.map_err(|fault| told(&backed, &fault))?);
    answer(GetBucketPolicyOutput { policy })
}

/// `GetBucketPolicyStatus`.
pub(crate) async fn status(
    door: &Arc<Door>,
    request: S3Request<GetBucketPolicyStatusInput>,
) -> Answer<GetBucketPolicyStatusOutput> {
    let Some(backed) = backed(door, &request.input.bucket).await? else { return Err(none()) };
    let far = door.reach(&backed.backing.backend).await?;
    let is_public = far.is_public(&backed.backing.bucket).await;
    let is_public = Some(is_public.map_err(|fault| told(&backed, &fault))?);
    answer(GetBucketPolicyStatusOutput { policy_status: Some(PolicyStatus { is_public }) })
}

async fn set(door: &Arc<Door>, bucket: &str, policy: Option<&str>) -> S3Result<()> {
    let backed = whole(door, bucket).await?;
    let far = door.reach(&backed.backing.backend).await?;
    let done = far.set_policy(&backed.backing.bucket, policy).await;
    done.map_err(|fault| told(&backed, &fault))
}

/// `PutBucketPolicy`.
pub(crate) async fn put(
    door: &Arc<Door>,
    request: S3Request<PutBucketPolicyInput>,
) -> Answer<PutBucketPolicyOutput> {
    let input = request.input;
    set(door, &input.bucket, Some(&input.policy)).await?;
    answer(PutBucketPolicyOutput {})
}

/// `DeleteBucketPolicy`.
pub(crate) async fn delete(
    door: &Arc<Door>,
    request: S3Request<DeleteBucketPolicyInput>,
) -> Answer<DeleteBucketPolicyOutput> {
    let bucket = &request.input.bucket;
    // A bucket without a backend has no policy.
    if backed(door, bucket).await?.is_some() {
        set(door, bucket, None).await?;
    }
    answer(DeleteBucketPolicyOutput {})
}
