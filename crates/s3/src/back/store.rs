//! The interface to a backend: requests and their outcomes.
//!
//! One call is one request on the wire: nothing here retries. The caller decides how to handle a
//! failure.

use std::collections::BTreeMap;
use std::pin::Pin;

use async_trait::async_trait;
use futures_util::Stream;
use hyper::body::Bytes;
use s3s::StdError;

/// Prefix of user metadata that gateways add.
pub(crate) const OWN: &str = "millpond-";
/// User metadata that names the attempt that put an object (`x-amz-meta-millpond-put`).
pub(crate) const PUT_ID: &str = "millpond-put";
/// Length of its value in bytes.
pub(crate) const PUT_LEN: usize = 16;
/// User metadata with the content properties that the `ETag` does not show: parts and checksums, if
/// they fit.
pub(crate) const CONTENT: &str = "millpond-content";
/// User metadata with owner and access control list, unless only the owner of the bucket has
/// rights.
pub(crate) const ACCESS: &str = "millpond-access";

/// Pieces of a body.
pub(crate) type Pieces = Pin<Box<dyn Stream<Item = Result<Bytes, StdError>> + Send + Sync>>;

/// The location of an object in a backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    /// The backend's bucket.
    pub(crate) bucket: &'a str,
    /// The whole key there.
    pub(crate) key: &'a str,
}

/// Bytes to send to a backend.
pub(crate) enum Content {
    /// Bytes in memory.
    Bytes(Bytes),
    /// A stream of `len` bytes. If it ends early or fails, the connection breaks.
    Pieces { pieces: Pieces, len: u64 },
}

impl Content {
    /// The length in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Pieces { len, .. } => *len,
        }
    }
}

/// Metadata of an object of a backend.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Told {
    /// Headers by lower-case name: content-type and related ones, as in [`crate::record::Record`].
    pub(crate) headers: BTreeMap<String, String>,
    /// User metadata by name without `x-amz-meta-`; objects persisted by a gateway also have
    /// [`PUT_ID`].
    pub(crate) meta: BTreeMap<String, String>,
    /// Tags; `head` and `get` never return them.
    pub(crate) tags: Vec<(String, String)>,
}

/// An object of a backend.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Remote {
    /// The `ETag` without quotes.
    pub(crate) etag: String,
    /// Length of the whole object in bytes, even if a range was requested.
    pub(crate) len: u64,
    /// When it was written, in milliseconds since 1970.
    pub(crate) modified_ms: u64,
    /// Headers and user metadata.
    pub(crate) told: Told,
    /// Number of tags; also 0 if the backend does not report it.
    pub(crate) tags: usize,
}

impl Remote {
    /// The attempt that stored the object, if a gateway did.
    pub(crate) fn put_id(&self) -> Option<&str> {
        self.told.meta.get(PUT_ID).map(String::as_str)
    }
}

/// Precondition of a read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Match<'a> {
    /// Anything.
    #[default]
    Any,
    /// Requires this `ETag` (without quotes), else [`Kind::Unmet`].
    Only(&'a str),
}

/// A request for a page of keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) bucket: &'a str,
    /// Prefix of the keys.
    pub(crate) prefix: &'a str,
    /// Keys that have this after the prefix are grouped into one common prefix; empty for none.
    pub(crate) delimiter: &'a str,
    /// Keys and prefixes up to this one are left out; empty for the beginning.
    pub(crate) after: &'a str,
    /// Keys and prefixes at most, 1 to 1,000.
    pub(crate) limit: u32,
}

/// A key in a page.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) key: String,
    /// The `ETag` without quotes.
    pub(crate) etag: String,
    pub(crate) len: u64,
    /// In milliseconds since 1970.
    pub(crate) modified_ms: u64,
}

/// A page of keys, in the order of their bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Page {
    pub(crate) keys: Vec<Found>,
    /// Common prefixes, which share one order with `keys`.
    pub(crate) prefixes: Vec<String>,
    /// Whether more may follow.
    pub(crate) is_cut: bool,
}

impl Page {
    /// Whether it has only requested entries: keys with the prefix and without the delimiter after
    /// it, and prefixes that end with the first delimiter.
    pub(crate) fn is_of(&self, wanted: &Wanted<'_>) -> bool {
        let behind =
            |name: &str| name.strip_prefix(wanted.prefix).map(|rest| rest.find(wanted.delimiter));
        let is_key = |found: &Found| match behind(&found.key) {
            Some(at) => wanted.delimiter.is_empty() || at.is_none(),
            None => false,
        };
        let is_prefix = |prefix: &String| {
            let ends =
                |at: usize| wanted.prefix.len() + at + wanted.delimiter.len() == prefix.len();
            !wanted.delimiter.is_empty() && behind(prefix).flatten().is_some_and(ends)
        };
        self.keys.iter().all(is_key) && self.prefixes.iter().all(is_prefix)
    }
}

/// The outcome of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Not done, and a retry fails too: a status of 400 to 499 and the like.
    Refused,
    /// Not sent: the backend was unreachable.
    Unreachable,
    /// Not done: too many requests at the moment.
    SlowDown,
    /// Perhaps done, now or later: a timeout, a reset, a status of 500 or more, a broken answer.
    Unknown,
    /// The object or upload does not exist.
    Absent,
    /// A [`Match`] does not hold.
    Unmet,
}

/// A failed request.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    /// The backend is overloaded: 503, 429, or no answer in time.
    pub(crate) is_congested: bool,
    /// Status, code and message, or the error of the connection. No secrets.
    pub(crate) text: String,
}

/// A backend: an object store that speaks S3.
#[async_trait]
pub(crate) trait Backend: Send + Sync {
    /// Puts a whole object. The backend checks `md5` (in hex, of the content). Returns the `ETag`.
    async fn put(
        &self,
        at: At<'_>,
        told: &Told,
        content: Content,
        md5: Option<&str>,
    ) -> Result<String, Fault>;

    /// Whether a key has a place of its own at the backend, which no other key shares.
    async fn has_place(&self, _: At<'_>) -> Result<bool, Fault> {
        Ok(true)
    }

    /// The metadata of an object.
    async fn head(&self, at: At<'_>) -> Result<Remote, Fault>;

    /// Reads an object, or a range of it: offset and length in bytes, at least 1. Refused
    /// (`InvalidRange`) after the end; a range that exceeds the end is cut. The pieces fail when
    /// the backend sends nothing for its timeout.
    async fn get(
        &self,
        at: At<'_>,
        range: Option<(u64, u64)>,
        only: Match<'_>,
    ) -> Result<(Remote, Pieces), Fault>;

    /// Removes an object; an absent object counts as removed.
    async fn delete(&self, at: At<'_>) -> Result<(), Fault>;

    /// A page of keys.
    async fn list(&self, wanted: Wanted<'_>) -> Result<Page, Fault>;

    /// The tags of an object.
    async fn tags(&self, at: At<'_>) -> Result<Vec<(String, String)>, Fault>;

    /// Begins an upload in parts.
    async fn create_upload(&self, at: At<'_>, told: &Told) -> Result<String, Fault>;

    /// Sends a part. Returns its `ETag`.
    async fn upload_part(
        &self,
        at: At<'_>,
        part: (&str, u32),
        content: Content,
    ) -> Result<String, Fault>;

    /// Completes an upload from the `ETag`s of its parts, from number 1. `parts` also has the total
    /// length in bytes, because some object stores copy the bytes. Returns the `ETag`.
    async fn complete_upload(
        &self,
        at: At<'_>,
        upload: &str,
        parts: (&[String], u64),
    ) -> Result<String, Fault>;

    /// Aborts an upload.
    async fn abort_upload(&self, at: At<'_>, upload: &str) -> Result<(), Fault>;

    /// Open uploads of this key.
    async fn uploads(&self, at: At<'_>) -> Result<Vec<String>, Fault>;

    /// The policy of a bucket, in the form that the backend returns. `Absent` without one.
    async fn policy(&self, bucket: &str) -> Result<String, Fault>;

    /// Whether the policy of a bucket makes it public.
    async fn is_public(&self, bucket: &str) -> Result<bool, Fault>;

    /// Sets the policy of a bucket, or removes it.
    async fn set_policy(&self, bucket: &str, policy: Option<&str>) -> Result<(), Fault>;
}
