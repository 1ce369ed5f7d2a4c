//! The operations, one module per group. Each is a function of the context and a request.

pub(crate) mod acls;
pub(crate) mod answers;
pub(crate) mod attributes;
pub(crate) mod bucket;
pub(crate) mod complete;
pub(crate) mod copy;
pub(crate) mod cors;
pub(crate) mod delete;
pub(crate) mod form;
pub(crate) mod get;
pub(crate) mod headers;
pub(crate) mod list;
pub(crate) mod multipart;
pub(crate) mod owned;
pub(crate) mod put;
pub(crate) mod tagging;
pub(crate) mod uploads;
pub(crate) mod versions;

use s3s::dto::{Initiator, Owner};
use s3s::{S3Request, S3Response, S3Result};

/// The answer of an operation.
pub(crate) type Answer<T> = S3Result<S3Response<T>>;

/// An answer without special headers.
#[expect(clippy::unnecessary_wraps, reason = "it is what an operation ends with")]
pub(crate) fn answer<T>(output: T) -> Answer<T> {
    Ok(S3Response::new(output))
}

/// An answer with the state of its object; none in a bucket that is not backed.
#[expect(clippy::unnecessary_wraps, reason = "it is what an operation ends with")]
pub(crate) fn told<T>(output: T, word: Option<&'static str>) -> Answer<T> {
    let mut response = S3Response::new(output);
    if let Some(word) = word {
        crate::backed::look::tell(&mut response, word);
    }
    Ok(response)
}

/// A tenant as an owner.
pub(crate) fn owner(tenant: &str) -> Owner {
    Owner { display_name: Some(tenant.to_owned()), id: Some(tenant.to_owned()) }
}

/// A tenant as the initiator of an upload.
pub(crate) fn initiator(tenant: &str) -> Initiator {
    Initiator { display_name: Some(tenant.to_owned()), id: Some(tenant.to_owned()) }
}

/// A count in the type of S3.
pub(crate) fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// A length in the type of S3.
pub(crate) fn size(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The access key of a request.
pub(crate) fn access_key<T>(request: &S3Request<T>) -> &str {
    request.credentials.as_ref().map_or("", |credentials| credentials.access_key.as_str())
}
