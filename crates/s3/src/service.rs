//! The operations in the interface of `s3s`.

use std::sync::Arc;

use s3s::dto;
use s3s::{S3, S3ErrorCode, S3Request};

use crate::backed::policy;
use crate::backed::room::told_of;
use crate::door::Door;
use crate::ops::answers::{exists, none};
use crate::ops::{
    Answer, acls, answer, attributes, bucket, complete, copy, cors, delete, get, list, multipart,
    owned, put, tagging, uploads, versions,
};

/// The gateway in the interface of `s3s`.
pub(crate) struct Service {
    pub(crate) door: Arc<Door>,
}

/// Maps operations of `s3s` to functions of this crate.
macro_rules! service {
    (done { $($name:ident($input:ident) -> $output:ident = $function:path;)* }
     none { $($absent:ident($absent_input:ident) -> $absent_output:ident = $code:expr, $message:literal;)* }
     same { $($empty:ident($empty_input:ident) -> $empty_output:ident = $value:expr;)* }) => {
        #[async_trait::async_trait]
        impl S3 for Service {
            $(async fn $name(&self, request: S3Request<dto::$input>) -> Answer<dto::$output> {
                $function(&self.door, request).await.map_err(|error| told_of(&self.door, error))
            })*
            $(async fn $absent(&self, request: S3Request<dto::$absent_input>) -> Answer<dto::$absent_output> {
                none(&self.door, request.input.bucket, ($code, $message)).await
            })*
            $(async fn $empty(&self, request: S3Request<dto::$empty_input>) -> Answer<dto::$empty_output> {
                exists(&self.door, request.input.bucket).await?;
                answer($value)
            })*
        }
    };
}

service! {
    done {
    list_buckets(ListBucketsInput) -> ListBucketsOutput = bucket::list;
    create_bucket(CreateBucketInput) -> CreateBucketOutput = bucket::create;
    delete_bucket(DeleteBucketInput) -> DeleteBucketOutput = bucket::delete;
    head_bucket(HeadBucketInput) -> HeadBucketOutput = bucket::head;
    get_bucket_location(GetBucketLocationInput) -> GetBucketLocationOutput = bucket::location;
    put_bucket_cors(PutBucketCorsInput) -> PutBucketCorsOutput = cors::put;
    get_bucket_cors(GetBucketCorsInput) -> GetBucketCorsOutput = cors::get;
    delete_bucket_cors(DeleteBucketCorsInput) -> DeleteBucketCorsOutput = cors::delete;
    put_bucket_tagging(PutBucketTaggingInput) -> PutBucketTaggingOutput = tagging::put_bucket;
    get_bucket_tagging(GetBucketTaggingInput) -> GetBucketTaggingOutput = tagging::get_bucket;
    delete_bucket_tagging(DeleteBucketTaggingInput) -> DeleteBucketTaggingOutput = tagging::delete_bucket;
    get_bucket_policy(GetBucketPolicyInput) -> GetBucketPolicyOutput = policy::get;
    get_bucket_policy_status(GetBucketPolicyStatusInput) -> GetBucketPolicyStatusOutput = policy::status;
    put_bucket_policy(PutBucketPolicyInput) -> PutBucketPolicyOutput = policy::put;
    delete_bucket_policy(DeleteBucketPolicyInput) -> DeleteBucketPolicyOutput = policy::delete;
    get_bucket_acl(GetBucketAclInput) -> GetBucketAclOutput = acls::get_bucket;
    put_bucket_acl(PutBucketAclInput) -> PutBucketAclOutput = acls::put_bucket;
    get_object_acl(GetObjectAclInput) -> GetObjectAclOutput = acls::get_object;
    put_object_acl(PutObjectAclInput) -> PutObjectAclOutput = acls::put_object;
    put_bucket_ownership_controls(PutBucketOwnershipControlsInput)
        -> PutBucketOwnershipControlsOutput = owned::put_controls;
    get_bucket_ownership_controls(GetBucketOwnershipControlsInput)
        -> GetBucketOwnershipControlsOutput = owned::get_controls;
    delete_bucket_ownership_controls(DeleteBucketOwnershipControlsInput)
        -> DeleteBucketOwnershipControlsOutput = owned::delete_controls;
    put_public_access_block(PutPublicAccessBlockInput) -> PutPublicAccessBlockOutput = owned::put_block;
    get_public_access_block(GetPublicAccessBlockInput) -> GetPublicAccessBlockOutput = owned::get_block;
    delete_public_access_block(DeletePublicAccessBlockInput)
        -> DeletePublicAccessBlockOutput = owned::delete_block;
    put_object(PutObjectInput) -> PutObjectOutput = put::put_object;
    get_object(GetObjectInput) -> GetObjectOutput = get::get_object;
    head_object(HeadObjectInput) -> HeadObjectOutput = get::head_object;
    get_object_attributes(GetObjectAttributesInput) -> GetObjectAttributesOutput = attributes::get;
    copy_object(CopyObjectInput) -> CopyObjectOutput = copy::copy_object;
    delete_object(DeleteObjectInput) -> DeleteObjectOutput = delete::one;
    delete_objects(DeleteObjectsInput) -> DeleteObjectsOutput = delete::many;
    put_object_tagging(PutObjectTaggingInput) -> PutObjectTaggingOutput = tagging::put;
    get_object_tagging(GetObjectTaggingInput) -> GetObjectTaggingOutput = tagging::get;
    delete_object_tagging(DeleteObjectTaggingInput) -> DeleteObjectTaggingOutput = tagging::delete;
    list_objects(ListObjectsInput) -> ListObjectsOutput = list::v1;
    list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output = list::v2;
    list_object_versions(ListObjectVersionsInput) -> ListObjectVersionsOutput = versions::list;
    create_multipart_upload(CreateMultipartUploadInput) -> CreateMultipartUploadOutput = multipart::create;
    upload_part(UploadPartInput) -> UploadPartOutput = multipart::part;
    upload_part_copy(UploadPartCopyInput) -> UploadPartCopyOutput = multipart::part_copy;
    list_parts(ListPartsInput) -> ListPartsOutput = multipart::list;
    abort_multipart_upload(AbortMultipartUploadInput) -> AbortMultipartUploadOutput = multipart::abort;
    complete_multipart_upload(CompleteMultipartUploadInput) -> CompleteMultipartUploadOutput = complete::complete_upload;
    list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput = uploads::list;

    }
    none {
    get_bucket_lifecycle_configuration(GetBucketLifecycleConfigurationInput)
        -> GetBucketLifecycleConfigurationOutput =
        S3ErrorCode::NoSuchLifecycleConfiguration, "The lifecycle configuration does not exist";
    get_bucket_website(GetBucketWebsiteInput) -> GetBucketWebsiteOutput =
        S3ErrorCode::NoSuchWebsiteConfiguration, "The specified bucket does not have a website configuration";
    get_bucket_encryption(GetBucketEncryptionInput) -> GetBucketEncryptionOutput =
        S3ErrorCode::ServerSideEncryptionConfigurationNotFoundError,
        "The server side encryption configuration was not found";
    get_bucket_replication(GetBucketReplicationInput) -> GetBucketReplicationOutput =
        S3ErrorCode::ReplicationConfigurationNotFoundError, "The replication configuration was not found";
    get_object_lock_configuration(GetObjectLockConfigurationInput) -> GetObjectLockConfigurationOutput =
        S3ErrorCode::ObjectLockConfigurationNotFoundError,
        "Object Lock configuration does not exist for this bucket";
    }
    same {
    get_bucket_versioning(GetBucketVersioningInput) -> GetBucketVersioningOutput =
        dto::GetBucketVersioningOutput::default();
    get_bucket_logging(GetBucketLoggingInput) -> GetBucketLoggingOutput =
        dto::GetBucketLoggingOutput::default();
    get_bucket_notification_configuration(GetBucketNotificationConfigurationInput)
        -> GetBucketNotificationConfigurationOutput =
        dto::GetBucketNotificationConfigurationOutput::default();
    get_bucket_request_payment(GetBucketRequestPaymentInput) -> GetBucketRequestPaymentOutput =
        dto::GetBucketRequestPaymentOutput {
            payer: Some(dto::Payer::from_static(dto::Payer::BUCKET_OWNER)),
        };
    delete_bucket_lifecycle(DeleteBucketLifecycleInput) -> DeleteBucketLifecycleOutput =
        dto::DeleteBucketLifecycleOutput::default();
    delete_bucket_website(DeleteBucketWebsiteInput) -> DeleteBucketWebsiteOutput =
        dto::DeleteBucketWebsiteOutput::default();
    delete_bucket_encryption(DeleteBucketEncryptionInput) -> DeleteBucketEncryptionOutput =
        dto::DeleteBucketEncryptionOutput::default();
    delete_bucket_replication(DeleteBucketReplicationInput) -> DeleteBucketReplicationOutput =
        dto::DeleteBucketReplicationOutput::default();
    }
}
