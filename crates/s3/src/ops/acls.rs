//! Access control lists of buckets and objects, as clients see and set them.

use std::sync::Arc;

use s3s::dto::{
    AccessControlPolicy, GetBucketAclInput, GetBucketAclOutput, GetObjectAclInput,
    GetObjectAclOutput, PutBucketAclInput, PutBucketAclOutput, PutObjectAclInput,
    PutObjectAclOutput,
};
use s3s::{S3ErrorCode, S3Request, S3Result};

use super::tagging::changed;
use super::{Answer, answer, owner};
use crate::access::{checked, may_be, who_asks};
use crate::acl::{Acl, Permission, Wished, wished};
use crate::backed::look::view;
use crate::door::Door;
use crate::record::Ownership;

/// The list in the headers or the body of a request.
fn list(
    wished: &Wished<'_>,
    policy: Option<&AccessControlPolicy>,
    (owner, owner_of_bucket): (&str, &str),
) -> S3Result<Acl> {
    let policy = match policy {
        Some(_) if wished.is_any() => return Err(S3ErrorCode::UnexpectedContent.into()),
        Some(policy) => policy,
        None => {
            let list = wished.list(owner, owner_of_bucket)?;
            return list.ok_or_else(|| S3ErrorCode::MissingSecurityHeader.into());
        }
    };
    let (list, named) = Acl::of(policy)?;
    // A list cannot change the owner.
    if named.is_some_and(|name| name != owner) {
        Err(S3ErrorCode::AccessDenied.into())
    } else {
        Ok(list)
    }
}

/// `GetBucketAcl`.
pub(crate) async fn get_bucket(
    door: &Arc<Door>,
    request: S3Request<GetBucketAclInput>,
) -> Answer<GetBucketAclOutput> {
    let bucket = door.bucket(&request.input.bucket).await?.ok_or(S3ErrorCode::NoSuchBucket)?;
    let is_off = bucket.ownership == Some(Ownership::BucketOwnerEnforced);
    let list = bucket.acl.clone().filter(|_| !is_off);
    let list = list.unwrap_or_else(|| Acl::private(bucket.owner()));
    answer(GetBucketAclOutput { grants: Some(list.told()), owner: Some(owner(bucket.owner())) })
}

/// `PutBucketAcl`.
pub(crate) async fn put_bucket(
    door: &Arc<Door>,
    request: S3Request<PutBucketAclInput>,
) -> Answer<PutBucketAclOutput> {
    let who = who_asks(&request)?;
    let input = request.input;
    let owner = who.bucket.owner();
    let (wished, policy) = (wished!(input, grant_write), input.access_control_policy.as_ref());
    let list = list(&wished, policy, (owner, owner))?;
    let list = checked(door, &who.bucket, (list, owner)).await?;
    door.try_change_bucket((&input.bucket, &who), |record| {
        // The bucket may have switched off lists, or blocked public ones, in the meantime.
        if let Some(list) = &list {
            may_be(list, record)?;
        }
        record.acl = list;
        Ok(())
    })
    .await?;
    answer(PutBucketAclOutput::default())
}

/// `GetObjectAcl`.
pub(crate) async fn get_object(
    door: &Arc<Door>,
    request: S3Request<GetObjectAclInput>,
) -> Answer<GetObjectAclOutput> {
    let who = who_asks(&request)?;
    let (bucket, key) = (request.input.bucket, request.input.key);
    let (view, _) = view(door, (&bucket, &key)).await.map_err(|error| who.told(error))?;
    who.check(&view.record, Permission::ReadAcp)?;
    answer(GetObjectAclOutput {
        grants: Some(who.list_of(&view.record).told()),
        owner: Some(owner(who.owner_of(&view.record))),
        request_charged: None,
    })
}

/// `PutObjectAcl`. An object that only the backend has is filled first, and persisted with its new
/// list.
pub(crate) async fn put_object(
    door: &Arc<Door>,
    request: S3Request<PutObjectAclInput>,
) -> Answer<PutObjectAclOutput> {
    let who = who_asks(&request)?;
    let input = request.input;
    let at = (input.bucket.as_str(), input.key.as_str());
    let (view, _) = view(door, at).await.map_err(|error| who.told(error))?;
    who.check(&view.record, Permission::WriteAcp)?;
    let owner = who.owner_of(&view.record).to_owned();
    let (wished, policy) = (wished!(input, grant_write), input.access_control_policy.as_ref());
    let list = list(&wished, policy, (&owner, who.bucket.owner()))?;
    let list = checked(door, &who.bucket, (list, &owner)).await?;
    changed(door, (input.bucket, input.key), move |record| {
        // The key may have a different object by now.
        who.check(record, Permission::WriteAcp)?;
        if who.owner_of(record) != owner {
            return Err(S3ErrorCode::ConditionalRequestConflict.into());
        }
        record.acl.clone_from(&list);
        Ok(())
    })
    .await?;
    answer(PutObjectAclOutput::default())
}
