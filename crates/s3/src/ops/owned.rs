//! Settings of a bucket: ownership of objects, and the block of public access.

use std::sync::Arc;

use s3s::dto::{
    DeleteBucketOwnershipControlsInput, DeleteBucketOwnershipControlsOutput,
    DeletePublicAccessBlockInput, DeletePublicAccessBlockOutput, GetBucketOwnershipControlsInput,
    GetBucketOwnershipControlsOutput, GetPublicAccessBlockInput, GetPublicAccessBlockOutput,
    ObjectOwnership, OwnershipControls, OwnershipControlsRule, PublicAccessBlockConfiguration,
    PutBucketOwnershipControlsInput, PutBucketOwnershipControlsOutput, PutPublicAccessBlockInput,
    PutPublicAccessBlockOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result};

use super::{Answer, answer};
use crate::access::who_asks;
use crate::door::Door;
use crate::error::{custom, refuse};
use crate::record::{Block, BucketRecord, Ownership};

/// An ownership by its name.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn named(name: &str) -> S3Result<Ownership> {
    match name {
        ObjectOwnership::BUCKET_OWNER_ENFORCED => Ok(Ownership::BucketOwnerEnforced),
        ObjectOwnership::BUCKET_OWNER_PREFERRED => Ok(Ownership::BucketOwnerPreferred),
        ObjectOwnership::OBJECT_WRITER => Ok(Ownership::ObjectWriter),
        _ => Err(refuse(S3ErrorCode::InvalidArgument, "Invalid object ownership")),
    }
}

/// The error for a bucket with a list of its own and `BucketOwnerEnforced`.
pub(crate) fn no_lists() -> S3Error {
    let message = "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting";
    let code = "InvalidBucketAclWithObjectOwnership";
    custom(code, hyper::StatusCode::BAD_REQUEST, message.to_owned())
}

/// `PutBucketOwnershipControls`.
pub(crate) async fn put_controls(
    door: &Arc<Door>,
    request: S3Request<PutBucketOwnershipControlsInput>,
) -> Answer<PutBucketOwnershipControlsOutput> {
    let who = who_asks(&request)?;
    let input = request.input;
    let [rule] = input.ownership_controls.rules.as_slice() else {
        return Err(S3ErrorCode::MalformedXML.into());
    };
    let ownership = named(rule.object_ownership.as_str())?;
    let set = move |record: &mut BucketRecord| {
        if ownership == Ownership::BucketOwnerEnforced && record.acl.is_some() {
            return Err(no_lists());
        }
        record.ownership = Some(ownership);
        Ok(())
    };
    door.try_change_bucket((&input.bucket, &who), set).await?;
    answer(PutBucketOwnershipControlsOutput::default())
}

/// `GetBucketOwnershipControls`: an error if never set; then writers own their objects.
pub(crate) async fn get_controls(
    door: &Arc<Door>,
    request: S3Request<GetBucketOwnershipControlsInput>,
) -> Answer<GetBucketOwnershipControlsOutput> {
    let found = door.bucket(&request.input.bucket).await?;
    let record = found.ok_or(S3ErrorCode::NoSuchBucket)?;
    let name = match record.ownership {
        Some(Ownership::BucketOwnerEnforced) => ObjectOwnership::BUCKET_OWNER_ENFORCED,
        Some(Ownership::BucketOwnerPreferred) => ObjectOwnership::BUCKET_OWNER_PREFERRED,
        Some(Ownership::ObjectWriter) => ObjectOwnership::OBJECT_WRITER,
        None => {
            let message = "The bucket ownership controls were not found".to_owned();
            let code = "OwnershipControlsNotFoundError";
            return Err(custom(code, hyper::StatusCode::NOT_FOUND, message));
        }
    };
    let object_ownership = ObjectOwnership::from_static(name);
    let rules = vec![OwnershipControlsRule { object_ownership }];
    answer(GetBucketOwnershipControlsOutput {
        ownership_controls: Some(OwnershipControls { rules }),
    })
}

/// `DeleteBucketOwnershipControls`.
pub(crate) async fn delete_controls(
    door: &Arc<Door>,
    request: S3Request<DeleteBucketOwnershipControlsInput>,
) -> Answer<DeleteBucketOwnershipControlsOutput> {
    let who = who_asks(&request)?;
    door.change_bucket((&request.input.bucket, &who), |record| record.ownership = None).await?;
    answer(DeleteBucketOwnershipControlsOutput::default())
}

fn none() -> S3Error {
    let message = "The public access block configuration was not found".to_owned();
    custom("NoSuchPublicAccessBlockConfiguration", hyper::StatusCode::NOT_FOUND, message)
}

/// `PutPublicAccessBlock`.
pub(crate) async fn put_block(
    door: &Arc<Door>,
    request: S3Request<PutPublicAccessBlockInput>,
) -> Answer<PutPublicAccessBlockOutput> {
    let who = who_asks(&request)?;
    let input = request.input;
    let wished = input.public_access_block_configuration;
    let asked = [
        wished.block_public_acls,
        wished.ignore_public_acls,
        wished.block_public_policy,
        wished.restrict_public_buckets,
    ];
    let block = Block::Set(asked.map(|flag| flag == Some(true)));
    door.change_bucket((&input.bucket, &who), move |record| record.block = block).await?;
    answer(PutPublicAccessBlockOutput::default())
}

/// `GetPublicAccessBlock`: an error if never set; then nothing is blocked.
pub(crate) async fn get_block(
    door: &Arc<Door>,
    request: S3Request<GetPublicAccessBlockInput>,
) -> Answer<GetPublicAccessBlockOutput> {
    let found = door.bucket(&request.input.bucket).await?;
    let record = found.ok_or(S3ErrorCode::NoSuchBucket)?;
    let [acls, ignored, policy, restricted] = match record.block {
        Block::Set(flags) => flags,
        Block::Removed => return Err(none()),
    };
    let told = PublicAccessBlockConfiguration {
        block_public_acls: Some(acls),
        ignore_public_acls: Some(ignored),
        block_public_policy: Some(policy),
        restrict_public_buckets: Some(restricted),
    };
    answer(GetPublicAccessBlockOutput { public_access_block_configuration: Some(told) })
}

/// `DeletePublicAccessBlock`.
pub(crate) async fn delete_block(
    door: &Arc<Door>,
    request: S3Request<DeletePublicAccessBlockInput>,
) -> Answer<DeletePublicAccessBlockOutput> {
    let (who, bucket) = (who_asks(&request)?, request.input.bucket);
    door.change_bucket((&bucket, &who), |record| record.block = Block::Removed).await?;
    answer(DeletePublicAccessBlockOutput::default())
}
