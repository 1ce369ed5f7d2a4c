//! Answers about what a bucket of this gateway never has, so that clients that look see so.

use std::sync::Arc;

use s3s::dto::{
    AccessControlPolicy, BucketCannedACL, BucketName, Grant, Grantee, ObjectCannedACL, Permission,
    PutBucketAclInput, PutBucketAclOutput, PutObjectAclInput, PutObjectAclOutput, Type,
};
use s3s::{S3ErrorCode, S3Request, S3Result};

use super::headers::check_acl;
use super::{Answer, OWNER, answer};
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

/// Whether a list gives the owner everything and nobody else anything.
fn is_private(list: &AccessControlPolicy) -> bool {
    let is_owner = |id: Option<&String>| id.is_some_and(|it| it == OWNER);
    let [grant] = list.grants.as_deref().unwrap_or_default() else { return false };
    let id = grant.grantee.as_ref().and_then(|it| it.id.as_ref());
    let permission = grant.permission.as_ref().map(Permission::as_str);
    is_owner(id)
        && permission == Some(Permission::FULL_CONTROL)
        && list.owner.as_ref().is_none_or(|it| is_owner(it.id.as_ref()))
}

/// Only what is so anyway is accepted.
fn check_list(acl: Option<&str>, list: Option<&AccessControlPolicy>) -> S3Result<()> {
    match (acl, list) {
        (Some(_), Some(_)) => Err(S3ErrorCode::UnexpectedContent.into()),
        (None, None) => Err(S3ErrorCode::MissingSecurityHeader.into()),
        (acl @ Some(_), None) => check_acl(acl),
        (None, Some(list)) if is_private(list) => Ok(()),
        (None, Some(_)) => Err(absent("An access control list beyond the canned 'private'")),
    }
}

/// `PutBucketAcl`: the canned private one changes nothing.
pub(crate) async fn put_bucket_acl(
    door: &Arc<Door>,
    request: S3Request<PutBucketAclInput>,
) -> Answer<PutBucketAclOutput> {
    let input = request.input;
    exists(door, input.bucket).await?;
    let acl = input.acl.as_ref().map(BucketCannedACL::as_str);
    check_list(acl, input.access_control_policy.as_ref())?;
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
    let acl = input.acl.as_ref().map(ObjectCannedACL::as_str);
    check_list(acl, input.access_control_policy.as_ref())?;
    answer(PutObjectAclOutput::default())
}
