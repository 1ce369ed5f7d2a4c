//! Answers about what a bucket of this gateway never has, so that clients that look see so.

use std::sync::Arc;

use s3s::dto::BucketName;
use s3s::{S3ErrorCode, S3Result};

use super::Answer;
use crate::door::Door;
use crate::error::{Told as _, refuse};

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
