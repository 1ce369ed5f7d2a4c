//! Answers about settings that a bucket of this gateway never has, for clients that look for them.

use std::sync::Arc;

use s3s::dto::BucketName;
use s3s::{S3ErrorCode, S3Result};

use super::Answer;
use crate::door::Door;
use crate::error::{Told as _, refuse};

/// Checks that the bucket exists.
///
/// # Errors
/// `NoSuchBucket`.
pub(crate) async fn exists(door: &Arc<Door>, bucket: BucketName) -> S3Result<()> {
    door.blocking(move |store| store.bucket(&bucket).in_bucket().map(drop)).await
}

/// The answer for a setting that the bucket does not have.
///
/// # Errors
/// `NoSuchBucket`; otherwise always the given code.
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
