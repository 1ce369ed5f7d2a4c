//! Maps failures to S3 errors.

use millpond_client::{ClientError, ErrorKind};
use millpond_types::meta::MetaError;
use s3s::{S3Error, S3ErrorCode, S3Result, StdError};

use crate::chunks;

/// An error with a code that `s3s` has no name for.
pub(crate) fn custom(code: &'static str, status: hyper::StatusCode, message: String) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), message);
    error.set_status_code(status);
    error
}

/// An error with a message of ours.
pub(crate) fn refuse(
    code: S3ErrorCode,
    message: impl Into<std::borrow::Cow<'static, str>>,
) -> S3Error {
    S3Error::with_message(code, message)
}

/// The error for a feature that is not implemented; it names the feature.
pub(crate) fn absent(what: &str) -> S3Error {
    refuse(S3ErrorCode::NotImplemented, format!("{what} is not implemented by this gateway"))
}

/// The S3 error of a call to the volume. `missing` is the code for `NotFound`.
pub(crate) fn told(error: ClientError, missing: S3ErrorCode) -> S3Error {
    let code = match &error {
        ClientError::File { source, .. } => of_meta(*source, missing),
        ClientError::Argument { .. } => {
            return refuse(S3ErrorCode::InvalidArgument, error.to_string());
        }
        _ => match error.kind() {
            ErrorKind::Busy => S3ErrorCode::SlowDown,
            ErrorKind::NoSpace => return full(error),
            ErrorKind::Unreachable | ErrorKind::DeadlineExceeded | ErrorKind::ReadOnly => {
                S3ErrorCode::ServiceUnavailable
            }
            _ => S3ErrorCode::InternalError,
        },
    };
    if code == S3ErrorCode::Custom("InsufficientStorage".into()) {
        return full(error);
    }
    if matches!(code, S3ErrorCode::InternalError | S3ErrorCode::ServiceUnavailable) {
        tracing::warn!("s3: {error}");
    }
    let is_in_the_way = matches!(error, ClientError::File { source: MetaError::NotDirectory, .. });
    let mut told = S3Error::with_source(code, Box::new(error));
    if is_in_the_way {
        told.set_message("A link or a special file that a mount made blocks the key.");
    }
    told
}

/// The error for a full pool; its source has the reason.
fn full(error: ClientError) -> S3Error {
    let is_quota = matches!(error, ClientError::File { source: MetaError::Quota, .. });
    let message = if is_quota { "A quota would be exceeded." } else { "The cluster has no room." };
    let status = hyper::StatusCode::INSUFFICIENT_STORAGE;
    let mut full = custom("InsufficientStorage", status, message.to_owned());
    full.set_source(Box::new(error));
    full
}

fn of_meta(error: MetaError, missing: S3ErrorCode) -> S3ErrorCode {
    match error {
        MetaError::NotFound | MetaError::Stale => missing,
        MetaError::Exists => S3ErrorCode::BucketAlreadyOwnedByYou,
        MetaError::NotEmpty => S3ErrorCode::BucketNotEmpty,
        MetaError::NoSpace | MetaError::Quota => S3ErrorCode::Custom("InsufficientStorage".into()),
        MetaError::NameTooLong => S3ErrorCode::KeyTooLongError,
        MetaError::Invalid | MetaError::NotDirectory | MetaError::IsDirectory => {
            S3ErrorCode::InvalidArgument
        }
        MetaError::TooLarge => S3ErrorCode::EntityTooLarge,
        MetaError::Access | MetaError::NotPermitted | MetaError::ReadOnly => {
            S3ErrorCode::AccessDenied
        }
        MetaError::Again | MetaError::Busy => S3ErrorCode::SlowDown,
        _ => S3ErrorCode::InternalError,
    }
}

/// Converts results of calls to the volume into S3 errors.
pub(crate) trait Told<T> {
    /// `NotFound` means the bucket.
    fn in_bucket(self) -> S3Result<T>;
    /// `NotFound` means the object.
    fn of_object(self) -> S3Result<T>;
    /// `NotFound` means the upload.
    fn of_upload(self) -> S3Result<T>;
}

impl<T> Told<T> for Result<T, ClientError> {
    fn in_bucket(self) -> S3Result<T> {
        self.map_err(|error| told(error, S3ErrorCode::NoSuchBucket))
    }

    fn of_object(self) -> S3Result<T> {
        self.map_err(|error| told(error, S3ErrorCode::NoSuchKey))
    }

    fn of_upload(self) -> S3Result<T> {
        self.map_err(|error| told(error, S3ErrorCode::NoSuchUpload))
    }
}

/// The error of an incoming body. Stream errors of `s3s` are private, so only their text tells them
/// apart.
pub(crate) fn of_body(error: &StdError) -> S3Error {
    let text = error.to_string();
    if text.contains(chunks::TOO_LONG) {
        let message = format!(
            "A signed chunk can have at most {} bytes: use shorter chunks, or unsigned ones \
             (STREAMING-UNSIGNED-PAYLOAD-TRAILER)",
            chunks::SIGNED_MAX
        );
        return refuse(S3ErrorCode::InvalidRequest, message);
    }
    if text.contains(chunks::NO_MEMORY) {
        return S3ErrorCode::SlowDown.into();
    }
    if text.contains("SignatureMismatch") {
        return S3ErrorCode::SignatureDoesNotMatch.into();
    }
    if text.contains("Sha256Mismatch") {
        let message =
            "The provided 'x-amz-content-sha256' header does not match what was computed.";
        return custom(
            "XAmzContentSHA256Mismatch",
            hyper::StatusCode::BAD_REQUEST,
            message.to_owned(),
        );
    }
    if text.contains("FormatError") || text.contains("TooLarge") || text.contains("TooMany") {
        return refuse(S3ErrorCode::InvalidRequest, "The chunks of the body are malformed.");
    }
    S3ErrorCode::IncompleteBody.into()
}

/// The documented AWS message for a code that came without one.
pub(crate) fn message(code: &str) -> &'static str {
    match code {
        "AccessDenied" => "Access Denied",
        "BadDigest" => {
            "The Content-MD5 or checksum value you specified did not match what we received."
        }
        "BucketAlreadyOwnedByYou" => {
            "The bucket you tried to create already exists, and you own it."
        }
        "BucketNotEmpty" => "The bucket you tried to delete is not empty.",
        "EntityTooLarge" => "Your proposed upload exceeds the maximum allowed object size.",
        "EntityTooSmall" => "Your proposed upload is smaller than the minimum allowed size",
        "IncompleteBody" => {
            "You did not provide the number of bytes specified by the Content-Length HTTP header."
        }
        "InternalError" => "We encountered an internal error. Please try again.",
        "InvalidAccessKeyId" => {
            "The AWS access key ID that you provided does not exist in our records."
        }
        "InvalidArgument" => "Invalid Argument",
        "InvalidBucketName" => "The specified bucket is not valid.",
        "InvalidDigest" => "The Content-MD5 or checksum value that you specified is not valid.",
        "InvalidPart" => {
            "One or more of the specified parts could not be found. The part might not have been \
             uploaded, or the specified entity tag might not have matched the part's entity tag."
        }
        "InvalidPartOrder" => {
            "The list of parts was not in ascending order. The parts list must be specified in \
             order by part number."
        }
        "InvalidRange" => "The requested range is not satisfiable",
        "InvalidURI" => "The specified URI couldn't be parsed.",
        "KeyTooLongError" => "Your key is too long.",
        "MalformedXML" => {
            "The XML you provided was not well-formed or did not validate against our published schema."
        }
        "MaxMessageLengthExceeded" => "Your request was too large.",
        "MetadataTooLarge" => "Your metadata headers exceed the maximum allowed metadata size.",
        "MethodNotAllowed" => "The specified method is not allowed against this resource.",
        "MissingContentLength" => "You must provide the Content-Length HTTP header.",
        "MissingRequestBodyError" => "Request Body is empty",
        "NoSuchBucket" => "The specified bucket does not exist.",
        "NoSuchCORSConfiguration" => "The CORS configuration does not exist",
        "NoSuchKey" => "The specified key does not exist.",
        "NoSuchUpload" => {
            "The specified multipart upload does not exist. The upload ID might be invalid, or the \
             multipart upload might have been aborted or completed."
        }
        "NotImplemented" => {
            "A header that you provided implies functionality that is not implemented."
        }
        "PreconditionFailed" => {
            "At least one of the preconditions that you specified did not hold."
        }
        "RequestTimeTooSkewed" => {
            "The difference between the request time and the current time is too large."
        }
        "RequestTimeout" => {
            "Your socket connection to the server was not read from or written to within the timeout period."
        }
        "ServiceUnavailable" => "Service is unable to handle request.",
        "SignatureDoesNotMatch" => {
            "The request signature that the server calculated does not match the signature that you \
             provided. Check your secret access key and signing method."
        }
        "SlowDown" => "Please reduce your request rate.",
        _ => rare(code),
    }
}

/// The same for rare codes.
fn rare(code: &str) -> &'static str {
    match code {
        "BucketAlreadyExists" => {
            "The requested bucket name is not available. Select a different name and try again."
        }
        "ConditionalRequestConflict" => {
            "A conflicting conditional operation occurred during the request. Try again."
        }
        "InvalidPolicyDocument" => {
            "The content of the form does not meet the conditions specified in the policy document."
        }
        "MalformedPOSTRequest" => {
            "The body of your POST request is not well-formed multipart/form-data."
        }
        "MissingSecurityHeader" => "Your request is missing a required header.",
        "UnexpectedContent" => "This request contains unsupported content.",
        _ => "The request was rejected; see the error code.",
    }
}
