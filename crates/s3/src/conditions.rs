//! Preconditions of requests, in the order that AWS documents.

use hyper::header::{ETAG, HeaderMap, HeaderValue, LAST_MODIFIED};
use s3s::dto::{ETag, ETagCondition, Timestamp, TimestampFormat};
use s3s::{S3Error, S3ErrorCode, S3Result};

use crate::record::View;
use crate::store::Expect;

/// The conditions of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    pub(crate) if_match: Option<ETagCondition>,
    pub(crate) if_none_match: Option<ETagCondition>,
    pub(crate) modified_since: Option<Timestamp>,
    pub(crate) unmodified_since: Option<Timestamp>,
}

/// The time of a file's last change, in S3's whole seconds.
pub(crate) fn time(stamp: millpond_types::meta::Timestamp) -> Timestamp {
    let since = std::time::Duration::from_secs(u64::try_from(stamp.secs).unwrap_or_default());
    Timestamp::from(std::time::SystemTime::UNIX_EPOCH + since)
}

/// An `ETag` in the form of `s3s`.
pub(crate) fn etag(text: &str) -> ETag {
    ETag::Strong(text.to_owned())
}

fn matches(condition: &ETagCondition, etag: &str) -> bool {
    match condition {
        ETagCondition::Any => true,
        ETagCondition::ETag(wanted) => wanted.value() == etag,
    }
}

fn failed() -> S3Error {
    S3ErrorCode::PreconditionFailed.into()
}

fn not_modified(view: &View) -> S3Error {
    let mut headers = HeaderMap::new();
    if let Ok(value) = etag(&view.etag).to_http_header() {
        headers.insert(ETAG, value);
    }
    let mut text = Vec::new();
    let _ = time(view.attr.mtime).format(TimestampFormat::HttpDate, &mut text);
    if let Ok(value) = HeaderValue::from_bytes(&text) {
        headers.insert(LAST_MODIFIED, value);
    }
    let mut error = S3Error::new(S3ErrorCode::NotModified);
    error.set_headers(headers);
    error
}

/// Whether `If-Range` names this version of an object, by its `ETag` or its time (RFC 9110,
/// 13.1.5). Otherwise a range of the object does not match the data that the client already has.
pub(crate) fn is_still(text: &str, view: &View) -> bool {
    let text = text.trim();
    if let Some(etag) = text.strip_prefix('"') {
        return etag.strip_suffix('"') == Some(&view.etag);
    }
    let mut last = Vec::new();
    let is_told = time(view.attr.mtime).format(TimestampFormat::HttpDate, &mut last).is_ok();
    is_told && text.as_bytes() == last
}

impl Conditions {
    /// Checks the conditions of GET and HEAD.
    ///
    /// # Errors
    /// `PreconditionFailed`; `NotModified`, with the headers of a 304.
    pub(crate) fn check_read(&self, view: &View) -> S3Result<()> {
        match self.unmet(view) {
            None => Ok(()),
            Some(true) => Err(not_modified(view)),
            Some(false) => Err(failed()),
        }
    }

    /// Checks the conditions on the source of a copy.
    ///
    /// # Errors
    /// `PreconditionFailed`.
    pub(crate) fn check_source(&self, view: &View) -> S3Result<()> {
        self.unmet(view).map_or(Ok(()), |_| Err(failed()))
    }

    /// Whether a condition fails: true if the client wanted something newer. `ETag`s take
    /// precedence over times.
    fn unmet(&self, view: &View) -> Option<bool> {
        let changed = time(view.attr.mtime);
        match (&self.if_match, &self.unmodified_since) {
            (Some(condition), _) if !matches(condition, &view.etag) => return Some(false),
            (None, Some(since)) if changed > *since => return Some(false),
            _ => {}
        }
        match (&self.if_none_match, &self.modified_since) {
            (Some(condition), _) if matches(condition, &view.etag) => Some(true),
            (None, Some(since)) if changed <= *since => Some(true),
            _ => None,
        }
    }

    /// Checks the conditions of a write against the present object; returns the precondition for
    /// the metas.
    ///
    /// # Errors
    /// `PreconditionFailed`; `NoSuchKey` when an object must exist; `NotImplemented` for both
    /// conditions at once.
    pub(crate) fn check_write(&self, there: Option<&View>) -> S3Result<Expect> {
        let (condition, is_wanted) = match (&self.if_match, &self.if_none_match) {
            (None, None) => return Ok(Expect::Any),
            (Some(_), Some(_)) => {
                return Err(crate::error::absent("A write with If-Match and If-None-Match"));
            }
            (Some(condition), None) => (condition, true),
            (None, Some(condition)) => (condition, false),
        };
        match there {
            None if is_wanted => Err(S3ErrorCode::NoSuchKey.into()),
            None => Ok(Expect::Absent),
            Some(view) if matches(condition, &view.etag) == is_wanted => {
                Ok(Expect::Exactly { ino: view.attr.ino, version: view.attr.version })
            }
            Some(_) => Err(failed()),
        }
    }

    /// Whether there is a condition on the present object.
    pub(crate) const fn is_for_write(&self) -> bool {
        self.if_match.is_some() || self.if_none_match.is_some()
    }
}
