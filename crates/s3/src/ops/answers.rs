//! Answers about what a bucket of this gateway never has, so that clients that look see so.

use std::sync::Arc;

use s3s::dto::{
    BucketCannedACL, BucketName, Grant, Grantee, ObjectCannedACL, Permission, PutBucketAclInput,
    PutBucketAclOutput, PutObjectAclInput, PutObjectAclOutput, Type,
};
use s3s::{S3ErrorCode, S3Request, S3Result};

use super::headers::check_acl;
use super::{Answer, answer};
use crate::door::Door;
use crate::error::{Told as _, absent, refuse};

/// The owner may do everything, nobody else anything.
pub(crate) fn grants() -> Vec<Grant> {
    let grantee = Grantee {
        display_name: Some("millpond".to_owned()),
        email_address: None,
        id: Some("millpond".to_owned()),
        type_: Type::from_static(Type::CANONICAL_USER),
        uri: None,
    };
    let permission = Some(Permission::from_static(Permission::FULL_CONTROL));
    vec![Grant { grantee: Some(grantee), permission }]
}

/// Whether the bucket is there.
///
/// # Errors
/// `NoSuchBucket`.
pub(crate) async fn exists(door: &Arc<Door>, bucket: BucketName) -> S3Result<()> {
    door.blocking(move |store| store.bucket(&bucket).in_bucket().map(drop)).await
}

/// A bucket without the thing that is asked for.
///
/// # Errors
/// `NoSuchBucket`; always the code.
pub(crate) async fn none<T>(
    door: &Arc<Door>,
    bucket: BucketName,
    (code, message): (S3ErrorCode, &'static str),
) -> Answer<T> {
    exists(door, bucket).await?;
    let mut error = refuse(code, message);
    error.set_status_code(hyper::StatusCode::NOT_FOUND);
    Err(error)
}

/// `PutBucketAcl`: the canned private one changes nothing.
pub(crate) async fn put_bucket_acl(
    door: &Arc<Door>,
    request: S3Request<PutBucketAclInput>,
) -> Answer<PutBucketAclOutput> {
    let input = request.input;
    exists(door, input.bucket).await?;
    check_acl(input.acl.as_ref().map(BucketCannedACL::as_str))?;
    if input.acl.is_none() {
        return Err(absent("An access control list beyond the canned 'private'"));
    }
    answer(PutBucketAclOutput::default())
}

/// `PutObjectAcl`: the same.
pub(crate) async fn put_object_acl(
    door: &Arc<Door>,
    request: S3Request<PutObjectAclInput>,
) -> Answer<PutObjectAclOutput> {
    let input = request.input;
    let (bucket, key) = (input.bucket, input.key);
    crate::backed::look::view(door, (&bucket, &key)).await?;
    check_acl(input.acl.as_ref().map(ObjectCannedACL::as_str))?;
    if input.acl.is_none() {
        return Err(absent("An access control list beyond the canned 'private'"));
    }
    answer(PutObjectAclOutput::default())
}
