//! Who owns objects, and who else may see a bucket: the owner of the bucket, and nobody.

use std::sync::Arc;

use s3s::dto::{
    DeletePublicAccessBlockInput, DeletePublicAccessBlockOutput, GetPublicAccessBlockInput,
    GetPublicAccessBlockOutput, ObjectOwnership, OwnershipControls, OwnershipControlsRule,
    PublicAccessBlockConfiguration, PutBucketOwnershipControlsInput,
    PutBucketOwnershipControlsOutput, PutPublicAccessBlockInput, PutPublicAccessBlockOutput,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result};

use super::answers::exists;
use super::{Answer, answer};
use crate::door::Door;
use crate::error::{absent, custom, refuse};
use crate::record::Block;

const ENFORCED: &str = "BucketOwnerEnforced";

/// Objects belong to their bucket's owner, without access control lists.
///
/// # Errors
/// `NotImplemented` for another ownership.
pub(crate) fn check(ownership: Option<&str>) -> S3Result<()> {
    match ownership {
        None | Some(ENFORCED) => Ok(()),
        Some("BucketOwnerPreferred" | "ObjectWriter") => {
            Err(absent("An object ownership other than BucketOwnerEnforced"))
        }
        Some(_) => Err(refuse(S3ErrorCode::InvalidArgument, "This is not an object ownership")),
    }
}

/// What every bucket has.
pub(crate) fn controls() -> OwnershipControls {
    let object_ownership = ObjectOwnership::from_static(ENFORCED);
    OwnershipControls { rules: vec![OwnershipControlsRule { object_ownership }] }
}

/// `PutBucketOwnershipControls`: what is so anyway changes nothing.
pub(crate) async fn put_controls(
    door: &Arc<Door>,
    request: S3Request<PutBucketOwnershipControlsInput>,
) -> Answer<PutBucketOwnershipControlsOutput> {
    let input = request.input;
    exists(door, input.bucket).await?;
    let [rule] = input.ownership_controls.rules.as_slice() else {
        return Err(S3ErrorCode::MalformedXML.into());
    };
    check(Some(rule.object_ownership.as_str()))?;
    answer(PutBucketOwnershipControlsOutput::default())
}

fn none() -> S3Error {
    let message = "The public access block configuration was not found".to_owned();
    custom("NoSuchPublicAccessBlockConfiguration", hyper::StatusCode::NOT_FOUND, message)
}

/// `PutPublicAccessBlock`: it is kept and told; nothing is public here, with it or without.
pub(crate) async fn put_block(
    door: &Arc<Door>,
    request: S3Request<PutPublicAccessBlockInput>,
) -> Answer<PutPublicAccessBlockOutput> {
    let input = request.input;
    let it = input.public_access_block_configuration;
    let asked = [
        it.block_public_acls,
        it.ignore_public_acls,
        it.block_public_policy,
        it.restrict_public_buckets,
    ];
    let block = Block::Set(asked.map(|it| it == Some(true)));
    door.change_bucket(&input.bucket, move |record| record.block = block).await?;
    answer(PutPublicAccessBlockOutput::default())
}

/// `GetPublicAccessBlock`: new buckets have everything blocked, as with AWS.
pub(crate) async fn get_block(
    door: &Arc<Door>,
    request: S3Request<GetPublicAccessBlockInput>,
) -> Answer<GetPublicAccessBlockOutput> {
    let found = door.bucket(&request.input.bucket).await?;
    let record = found.ok_or(S3ErrorCode::NoSuchBucket)?;
    let [acls, ignored, policy, restricted] = match record.block {
        Block::All => [true; 4],
        Block::Set(it) => it,
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
    door.change_bucket(&request.input.bucket, |record| record.block = Block::Removed).await?;
    answer(DeletePublicAccessBlockOutput::default())
}
