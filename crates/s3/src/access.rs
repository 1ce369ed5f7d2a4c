//! The requester, and its rights on a bucket and the objects in it.
//!
//! Buckets belong to tenants. A tenant may do everything with its buckets and everything in them;
//! other tenants have the rights that access control lists ([`crate::acl`]) grant. Rights on a
//! bucket are checked before an operation begins. Rights on an object are checked once its record
//! is read, so that the checked object is the one that is served.

use std::sync::{Arc, OnceLock};

use s3s::{S3Error, S3ErrorCode, S3Request, S3Result};

use crate::acl::{Acl, Permission, Wished, switched_off};
use crate::door::Door;
use crate::keys::Key;
use crate::record::{Block, BucketRecord, Ownership, Record};

/// The tenant that makes a request, and the bucket that the request is about.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    /// None for requests without an access key.
    pub(crate) tenant: Option<String>,
    pub(crate) bucket: Arc<BucketRecord>,
}

/// The requester of a request that is called a second time without its signature
/// ([`crate::range`]).
#[derive(Debug, Default)]
pub(crate) struct Admitted(OnceLock<Asker>);

impl Admitted {
    /// Notes the requester after it was admitted.
    pub(crate) fn set(&self, who: Asker) {
        let _ = self.0.set(who);
    }

    /// The requester; `None` before it was admitted.
    pub(crate) fn who(&self) -> Option<&Asker> {
        self.0.get()
    }
}

/// The right that an operation requires from a tenant that does not own the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// An access key.
    Key,
    /// This permission in the list of the bucket.
    Bucket(Permission),
    /// A permission in the list of the object, which the operation checks itself.
    Object,
    /// The owner only.
    Owner,
}

/// The right that an operation of `s3s` requires.
pub(crate) fn need(operation: &str) -> Need {
    match operation {
        "CreateBucket" | "ListBuckets" => Need::Key,
        "HeadBucket"
        | "ListObjects"
        | "ListObjectsV2"
        | "ListObjectVersions"
        | "ListMultipartUploads" => Need::Bucket(Permission::Read),
        "PutObject"
        | "PostObject"
        | "CopyObject"
        | "DeleteObject"
        | "DeleteObjects"
        | "CreateMultipartUpload"
        | "UploadPart"
        | "UploadPartCopy"
        | "CompleteMultipartUpload"
        | "AbortMultipartUpload"
        | "ListParts" => Need::Bucket(Permission::Write),
        "GetBucketAcl" => Need::Bucket(Permission::ReadAcp),
        "PutBucketAcl" => Need::Bucket(Permission::WriteAcp),
        "GetObject" | "HeadObject" | "GetObjectAttributes" | "GetObjectAcl" | "PutObjectAcl" => {
            Need::Object
        }
        _ => Need::Owner,
    }
}

/// The requester, which [`crate::auth::Access`] has put into the request.
///
/// # Errors
/// `AccessDenied` if it is missing.
pub(crate) fn who_asks<T>(request: &S3Request<T>) -> S3Result<Asker> {
    request.extensions.get::<Asker>().cloned().ok_or_else(denied)
}

fn denied() -> S3Error {
    S3ErrorCode::AccessDenied.into()
}

impl Asker {
    /// The owner of a credential, or an anonymous requester.
    pub(crate) fn new(key: Option<&Key>, bucket: Arc<BucketRecord>) -> Self {
        Self { tenant: key.map(|key| key.tenant.clone()), bucket }
    }

    /// Whether the requester owns the bucket.
    pub(crate) fn owns(&self) -> bool {
        self.tenant.as_deref() == Some(self.bucket.owner())
    }

    fn allows(&self, list: Option<&Acl>, owner: &str, what: Permission) -> bool {
        let tenant = self.tenant.as_deref();
        if tenant == Some(owner) {
            return true;
        }
        let is_off = self.bucket.ownership == Some(Ownership::BucketOwnerEnforced);
        let ignored = self.bucket.block.ignores_acls();
        !is_off && list.is_some_and(|list| list.allows(tenant, what, ignored))
    }

    /// Checks that the bucket has the same owner as when the requester was admitted: it may have
    /// been replaced by another bucket of that name.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(crate) fn check_owner(&self, bucket: &BucketRecord) -> S3Result<()> {
        if bucket.owner() == self.bucket.owner() { Ok(()) } else { Err(denied()) }
    }

    /// Whether the requester has a permission on the bucket.
    pub(crate) fn may(&self, what: Permission) -> bool {
        self.owns() || self.allows(self.bucket.acl.as_ref(), self.bucket.owner(), what)
    }

    /// Checks that the requester has a permission on an object in the bucket.
    ///
    /// # Errors
    /// `AccessDenied`.
    pub(crate) fn check(&self, object: &Record, what: Permission) -> S3Result<()> {
        let owner = self.owner_of(object);
        let may = self.owns() || self.allows(object.acl.as_ref(), owner, what);
        if may { Ok(()) } else { Err(denied()) }
    }

    /// The error to return for a missing key: a requester without the right to list does not learn
    /// that the key is missing.
    pub(crate) fn told(&self, error: S3Error) -> S3Error {
        let is_secret = *error.code() == S3ErrorCode::NoSuchKey && !self.may(Permission::Read);
        if is_secret { denied() } else { error }
    }

    /// The owner of an object.
    pub(crate) fn owner_of<'a>(&'a self, object: &'a Record) -> &'a str {
        let is_enforced = self.bucket.ownership == Some(Ownership::BucketOwnerEnforced);
        let own = object.owner.as_deref().filter(|_| !is_enforced);
        own.unwrap_or_else(|| self.bucket.owner())
    }

    /// The list of an object.
    pub(crate) fn list_of(&self, object: &Record) -> Acl {
        let is_off = self.bucket.ownership == Some(Ownership::BucketOwnerEnforced);
        let list = object.acl.clone().filter(|_| !is_off);
        list.unwrap_or_else(|| Acl::private(self.owner_of(object)))
    }

    /// Sets owner and list in the record of a new object.
    ///
    /// # Errors
    /// As [`checked`], and `InvalidArgument`, `NotImplemented` for an invalid list.
    pub(crate) async fn sign(
        &self,
        door: &Arc<Door>,
        wished: &Wished<'_>,
        record: &mut Record,
    ) -> S3Result<()> {
        let host = self.bucket.owner();
        let is_handed_over = match self.bucket.ownership {
            Some(Ownership::BucketOwnerEnforced) => true,
            Some(Ownership::BucketOwnerPreferred) => {
                wished.canned == Some("bucket-owner-full-control")
            }
            Some(Ownership::ObjectWriter) | None => false,
        };
        // An anonymous write belongs to the owner of the bucket.
        let writer = self.tenant.as_deref().filter(|_| !is_handed_over).unwrap_or(host);
        let list = wished.list(writer, host)?;
        record.owner = (writer != host).then(|| writer.to_owned());
        record.acl = match list {
            Some(list) => checked(door, &self.bucket, (list, writer)).await?,
            None => None,
        };
        Ok(())
    }
}

/// A list in the form in which it is stored with something that `owner` owns; none if only the
/// owner has rights.
///
/// # Errors
/// `AccessControlListNotSupported` if the bucket has lists switched off, `AccessDenied` for a
/// public list if the bucket blocks these, `InvalidArgument` for an unknown tenant.
pub(crate) async fn checked(
    door: &Arc<Door>,
    bucket: &BucketRecord,
    (list, owner): (Acl, &str),
) -> S3Result<Option<Acl>> {
    if list.is_private(owner) {
        return Ok(None);
    }
    may_be(&list, bucket)?;
    let known = |tenant: &&str| *tenant == owner || *tenant == bucket.owner();
    let others: Vec<String> =
        list.tenants().filter(|tenant| !known(tenant)).map(str::to_owned).collect();
    if !others.is_empty() {
        door.blocking(move |store| crate::keys::check_tenants(store, &others)).await?;
    }
    Ok(Some(list))
}

/// Checks that a bucket accepts a list that grants rights to others.
///
/// # Errors
/// `AccessControlListNotSupported`, `AccessDenied`.
pub(crate) fn may_be(list: &Acl, bucket: &BucketRecord) -> S3Result<()> {
    if bucket.ownership == Some(Ownership::BucketOwnerEnforced) {
        return Err(switched_off());
    }
    if list.is_public() && bucket.block.refuses_acls() {
        return Err(denied());
    }
    Ok(())
}

impl Block {
    /// Whether new lists may not be public.
    pub(crate) const fn refuses_acls(self) -> bool {
        matches!(self, Self::Set([true, ..]))
    }

    /// Whether only grants to named tenants count.
    pub(crate) const fn ignores_acls(self) -> bool {
        matches!(self, Self::Set([_, true, ..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(tenant: Option<&str>, bucket: &BucketRecord) -> Asker {
        Asker { tenant: tenant.map(str::to_owned), bucket: Arc::new(bucket.clone()) }
    }

    fn listed(canned: &'static str, owner: &str) -> Option<Acl> {
        Wished { canned: Some(canned), ..Wished::default() }.list(owner, "host").unwrap()
    }

    #[test]
    fn the_owner_of_a_bucket_may_everything_and_others_what_lists_say() {
        let mut bucket = BucketRecord { owner: Some("host".to_owned()), ..BucketRecord::default() };
        let may = |bucket: &BucketRecord, tenant, what| who(tenant, bucket).may(what);
        assert!(may(&bucket, Some("host"), Permission::WriteAcp));
        assert!(!may(&bucket, Some("guest"), Permission::Read));
        assert!(!may(&bucket, Some("millpond"), Permission::Read), "no tenant is above others");
        bucket.acl = listed("public-read", "host");
        assert!(
            may(&bucket, Some("guest"), Permission::Read) && may(&bucket, None, Permission::Read)
        );
        assert!(!may(&bucket, None, Permission::Write));
        bucket.block = Block::Set([false, true, false, false]);
        assert!(!may(&bucket, None, Permission::Read), "public lists are ignored");
        bucket.block = Block::Removed;
        bucket.ownership = Some(Ownership::BucketOwnerEnforced);
        assert!(!may(&bucket, None, Permission::Read), "lists are switched off");
    }

    #[test]
    fn an_object_is_its_writers_and_its_buckets_owners() {
        let bucket = BucketRecord { owner: Some("host".to_owned()), ..BucketRecord::default() };
        let record = Record { owner: Some("guest".to_owned()), ..Record::current() };
        let may =
            |tenant, record: &Record| who(tenant, &bucket).check(record, Permission::Read).is_ok();
        assert!(may(Some("host"), &record) && may(Some("guest"), &record));
        assert!(!may(Some("other"), &record) && !may(None, &record));
        let public = Record { acl: listed("public-read", "guest"), ..record };
        assert!(may(Some("other"), &public) && may(None, &public));
    }

    #[test]
    fn who_may_not_list_does_not_learn_that_a_key_is_not_there() {
        let mut bucket = BucketRecord::default();
        let told = |bucket: &BucketRecord, tenant| {
            let error = who(tenant, bucket).told(S3ErrorCode::NoSuchKey.into());
            error.code().as_str().to_owned()
        };
        assert_eq!(told(&bucket, None), "AccessDenied");
        assert_eq!(told(&bucket, Some("millpond")), "NoSuchKey");
        bucket.acl = listed("public-read", "millpond");
        assert_eq!(told(&bucket, None), "NoSuchKey");
    }

    #[test]
    fn what_is_not_known_is_the_owners() {
        assert_eq!(need("GetObject"), Need::Object);
        assert_eq!(need("DeleteObjects"), Need::Bucket(Permission::Write));
        for name in ["PutBucketCors", "DeleteBucket", "PutObjectTagging", "Whatever"] {
            assert_eq!(need(name), Need::Owner, "{name}");
        }
    }
}
