//! Headers that are stored with an object, and headers that are rejected with an error naming them.

use s3s::dto::{Metadata, StorageClass, Timestamp, TimestampFormat};
use s3s::{S3ErrorCode, S3Result};

use super::tagging::parse_header;
use crate::error::refuse;
use crate::record::{META_MAX, Record, STANDARD, is_class, len};

/// Bytes of the stored headers, except user metadata.
const HEADERS_MAX: usize = 4 << 10;
/// The type of an object without one.
pub(crate) const TYPE_DEFAULT: &str = "binary/octet-stream";

/// Headers of a request that creates an object.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    pub(crate) cache_control: Option<String>,
    pub(crate) content_disposition: Option<String>,
    pub(crate) content_encoding: Option<String>,
    pub(crate) content_language: Option<String>,
    pub(crate) content_type: Option<String>,
    pub(crate) expires: Option<Timestamp>,
    pub(crate) metadata: Option<Metadata>,
    /// The storage class; none if it is the default.
    pub(crate) class: Option<String>,
}

/// The stored headers of an input of `s3s`; all inputs have the same fields.
macro_rules! kept {
    ($input:expr) => {
        $crate::ops::headers::Kept {
            cache_control: $input.cache_control.take(),
            content_disposition: $input.content_disposition.take(),
            content_encoding: $input.content_encoding.take(),
            content_language: $input.content_language.take(),
            content_type: $input.content_type.take(),
            expires: $input.expires.take(),
            metadata: $input.metadata.take(),
            class: $crate::ops::headers::class($input.storage_class.as_ref()),
        }
    };
}
pub(crate) use kept;

/// Rejects settings of an input of `s3s` that this gateway does not support.
macro_rules! refuse_extras {
    ($input:expr) => {{
        let lock = $input.object_lock_legal_hold_status.is_some()
            || $input.object_lock_mode.is_some()
            || $input.object_lock_retain_until_date.is_some();
        let encryption = $input.server_side_encryption.is_some()
            || $input.sse_customer_algorithm.is_some()
            || $input.ssekms_key_id.is_some();
        for (is_asked, what) in [
            (lock, "Object lock (x-amz-object-lock-*)"),
            (encryption, "Encryption by the server (x-amz-server-side-encryption)"),
            ($input.website_redirect_location.is_some(), "x-amz-website-redirect-location"),
        ] {
            if is_asked {
                return Err($crate::error::absent(what));
            }
        }
        let class = $input.storage_class.as_ref().map(|class| class.as_str());
        $crate::ops::headers::check_class(class)?;
    }};
}
pub(crate) use refuse_extras;

/// Checks that AWS has this storage class.
///
/// # Errors
/// `InvalidStorageClass`.
pub(crate) fn check_class(class: Option<&str>) -> S3Result<()> {
    if class.is_none_or(is_class) {
        return Ok(());
    }
    let message = "The storage class you specified is not valid";
    Err(refuse(S3ErrorCode::InvalidStorageClass, message))
}

/// A storage class in the stored form.
pub(crate) fn class(named: Option<&StorageClass>) -> Option<String> {
    named.map(StorageClass::as_str).filter(|name| *name != STANDARD).map(str::to_owned)
}

impl Kept {
    /// The record of an object with these headers and tags.
    ///
    /// # Errors
    /// `MetadataTooLarge`, `InvalidTag`.
    pub(crate) fn record(self, tagging: Option<&str>) -> S3Result<Record> {
        let mut record = Record { class: self.class.clone(), ..Record::current() };
        if let Some(text) = tagging {
            record.tags = parse_header(text)?;
        }
        self.fill(&mut record)?;
        Ok(record)
    }

    /// Replaces the headers of a record, but not its storage class.
    ///
    /// # Errors
    /// `MetadataTooLarge`.
    pub(crate) fn fill(self, record: &mut Record) -> S3Result<()> {
        let expires = self.expires.map(|at| {
            let mut text = Vec::new();
            let _ = at.format(TimestampFormat::HttpDate, &mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        // `aws-chunked` only describes the transfer of the body.
        let encoding = self.content_encoding.map(|text| {
            let all: Vec<&str> = text.split(',').map(str::trim).collect();
            let kept: Vec<&str> =
                all.iter().copied().filter(|coding| *coding != "aws-chunked").collect();
            if kept.len() == all.len() { text } else { kept.join(", ") }
        });
        let headers = [
            ("cache-control", self.cache_control),
            ("content-disposition", self.content_disposition),
            ("content-encoding", encoding.filter(|encoding| !encoding.is_empty())),
            ("content-language", self.content_language),
            ("content-type", self.content_type),
            ("expires", expires),
        ];
        record.headers = headers
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect();
        record.meta = self.metadata.unwrap_or_default().into_iter().collect();
        if len(&record.meta) > META_MAX || len(&record.headers) > HEADERS_MAX {
            return Err(S3ErrorCode::MetadataTooLarge.into());
        }
        Ok(())
    }
}

/// The `Expires` of a record.
pub(crate) fn expires(record: &Record) -> Option<Timestamp> {
    Timestamp::parse(TimestampFormat::HttpDate, record.headers.get("expires")?).ok()
}
