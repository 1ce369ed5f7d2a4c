//! What is asked of a backend, and what can come of it.
//!
//! One request of ours is one request on the wire: nothing here tries again. Whoever asks decides what a failure means.

use std::collections::BTreeMap;
use std::pin::Pin;

use async_trait::async_trait;
use futures_util::Stream;
use hyper::body::Bytes;
use s3s::StdError;

/// What the names of user metadata begin with that gateways add.
pub(crate) const OWN: &str = "millpond-";
/// User metadata that names the attempt that put an object (`x-amz-meta-millpond-put`).
pub(crate) const PUT_ID: &str = "millpond-put";
/// Bytes of what it says.
pub(crate) const PUT_LEN: usize = 16;
/// User metadata that says what of an object's content its `ETag` does not: its parts and checksums, where there is room for it.
pub(crate) const CONTENT: &str = "millpond-content";
/// User metadata that says whose an object is and who may use it, where that is not the owner of the bucket alone.
pub(crate) const ACCESS: &str = "millpond-access";

/// Pieces of a body.
pub(crate) type Pieces = Pin<Box<dyn Stream<Item = Result<Bytes, StdError>> + Send + Sync>>;

/// Where an object lies in a backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At<'a> {
    /// The backend's bucket.
    pub(crate) bucket: &'a str,
    /// The whole key there.
    pub(crate) key: &'a str,
}

/// Bytes that go to a backend.
pub(crate) enum Content {
    /// These.
    Bytes(Bytes),
    /// A stream of so many bytes. One that ends early or fails breaks the connection.
    Pieces { pieces: Pieces, len: u64 },
}

impl Content {
    /// Its length in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Pieces { len, .. } => *len,
        }
    }
}

/// What an object of a backend has beside its bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Told {
    /// Headers by their names in lower case: content-type and its kin, as [`crate::record::Record`] has them.
    pub(crate) headers: BTreeMap<String, String>,
    /// User metadata by names without `x-amz-meta-`; of what came from us also [`PUT_ID`].
    pub(crate) meta: BTreeMap<String, String>,
    /// Tags; never told by `head` and `get`.
    pub(crate) tags: Vec<(String, String)>,
}

/// An object of a backend.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Remote {
    /// Without quotes.
    pub(crate) etag: String,
    /// Length of the whole in bytes, also when a range was asked for.
    pub(crate) len: u64,
    /// When it was written, in milliseconds since 1970.
    pub(crate) modified_ms: u64,
    /// Headers and user metadata.
    pub(crate) told: Told,
    /// How many tags it has; none also if the backend does not say.
    pub(crate) tags: usize,
}

impl Remote {
    /// The attempt of ours that made it.
    pub(crate) fn put_id(&self) -> Option<&str> {
        self.told.meta.get(PUT_ID).map(String::as_str)
    }
}

/// What an object must be to be sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Match<'a> {
    /// Anything.
    #[default]
    Any,
    /// One with this `ETag` (without quotes), else [`Kind::Unmet`].
    Only(&'a str),
}

/// A page of keys is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) bucket: &'a str,
    /// Keys that begin so.
    pub(crate) prefix: &'a str,
    /// Keys with this behind the prefix are told as one prefix; empty for none.
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
    /// Without quotes.
    pub(crate) etag: String,
    pub(crate) len: u64,
    /// In milliseconds since 1970.
    pub(crate) modified_ms: u64,
}

/// A page of keys, in the order of their bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Page {
    pub(crate) keys: Vec<Found>,
    /// Common prefixes, which the order of keys holds together with `keys`.
    pub(crate) prefixes: Vec<String>,
    /// Whether something may come behind.
    pub(crate) is_cut: bool,
}

impl Page {
    /// Whether it has nothing but what was asked for: keys with the prefix and without the delimiter behind it, and prefixes
    /// that end with the first delimiter.
    pub(crate) fn is_of(&self, wanted: &Wanted<'_>) -> bool {
        let behind =
            |it: &str| it.strip_prefix(wanted.prefix).map(|rest| rest.find(wanted.delimiter));
        let is_key = |it: &Found| match behind(&it.key) {
            Some(at) => wanted.delimiter.is_empty() || at.is_none(),
            None => false,
        };
        let is_prefix = |it: &String| {
            let ends = |at: usize| wanted.prefix.len() + at + wanted.delimiter.len() == it.len();
            !wanted.delimiter.is_empty() && behind(it).flatten().is_some_and(ends)
        };
        self.keys.iter().all(is_key) && self.prefixes.iter().all(is_prefix)
    }
}

/// What is known of a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It was not done, and is not done when it is asked again: a status of 400 to 499 and alike.
    Refused,
    /// It was not sent: nobody was reached.
    Unreachable,
    /// It was not done: too many requests at the moment.
    SlowDown,
    /// It may have been done, or may be done yet: a time-out, a reset, a status of 500 or more, a broken answer.
    Unknown,
    /// There is no such object, or no such upload.
    Absent,
    /// A [`Match`] does not hold.
    Unmet,
}

/// A request failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    /// The backend has more to do than it can: 503, 429, or no answer in time.
    pub(crate) is_congested: bool,
    /// Status, code and message, or what the connection says. No secrets.
    pub(crate) text: String,
}

/// A backend: an object store that speaks S3.
#[async_trait]
pub(crate) trait Backend: Send + Sync {
    /// Puts an object whole. `md5` (in hex, of the content) is checked by the backend. Returns the `ETag`.
    async fn put(
        &self,
        at: At<'_>,
        told: &Told,
        content: Content,
        md5: Option<&str>,
    ) -> Result<String, Fault>;

    /// Whether a key has a place of its own there, so that no other object is where it would be.
    async fn has_place(&self, _: At<'_>) -> Result<bool, Fault> {
        Ok(true)
    }

    /// What an object is.
    async fn head(&self, at: At<'_>) -> Result<Remote, Fault>;

    /// An object, or a range of it: offset and length in bytes, at least 1. Refused (`InvalidRange`) behind the end; a
    /// range that goes over the end is cut. The pieces fail when the backend sends nothing for its time-out.
    async fn get(
        &self,
        at: At<'_>,
        range: Option<(u64, u64)>,
        only: Match<'_>,
    ) -> Result<(Remote, Pieces), Fault>;

    /// Removes an object; what is not there is removed.
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

    /// Makes the object of parts (`ETag`s from number 1 on), with so many bytes altogether: some object stores copy
    /// them. Returns its `ETag`.
    async fn complete_upload(
        &self,
        at: At<'_>,
        upload: &str,
        parts: (&[String], u64),
    ) -> Result<String, Fault>;

    /// Gives an upload up.
    async fn abort_upload(&self, at: At<'_>, upload: &str) -> Result<(), Fault>;

    /// Uploads of this key that have not ended.
    async fn uploads(&self, at: At<'_>) -> Result<Vec<String>, Fault>;

    /// The policy of a bucket, as the backend has it. `Absent` without one.
    async fn policy(&self, bucket: &str) -> Result<String, Fault>;

    /// Whether its policy makes a bucket public.
    async fn is_public(&self, bucket: &str) -> Result<bool, Fault>;

    /// Gives a bucket another policy, or none.
    async fn set_policy(&self, bucket: &str, policy: Option<&str>) -> Result<(), Fault>;
}
