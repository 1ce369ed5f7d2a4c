//! Document bodies (XML) on their way to `s3s`: compared with the checksums of their request, and
//! searched for elements that `s3s` ignores.

use std::sync::Arc;

use futures_util::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Body as _, Bytes, Frame};
use hyper::header::HeaderMap;
use hyper::{Method, Uri};
use parking_lot::Mutex;
use s3s::{Body, S3Error, S3Result, StdError};

use crate::error::absent;
use crate::gate::has_subresource;
use crate::hash::{Algorithm, Expected, Hasher};

/// Sub-resources of an object that take a document. Not those of uploads: their checksums are those
/// of the object.
const OF_OBJECTS: [&str; 2] = ["acl", "tagging"];
/// Bytes of a document that are searched for elements that `s3s` ignores: longer than any document
/// that makes a bucket.
const LOOKED_AT: usize = 64 << 10;

/// The error of a document, set once it has been read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wrong(Arc<Mutex<Option<S3Error>>>);

impl Wrong {
    /// The error that was found.
    pub(crate) fn take(&self) -> Option<S3Error> {
        self.0.lock().take()
    }
}

/// The checks of a document.
pub(crate) struct Document {
    expected: Expected,
    makes_bucket: bool,
}

/// The checks for the body of a request, if it is a document.
///
/// # Errors
/// `InvalidDigest` and `InvalidRequest` for invalid checksums; `NotImplemented` for a chunked
/// document: only objects and parts are chunked, and `s3s` would compare the document's length with
/// that of the chunks.
pub(crate) fn of(
    (method, uri): (&Method, &Uri),
    headers: &HeaderMap,
    is_object: bool,
) -> S3Result<Option<Document>> {
    let query = uri.query().unwrap_or_default();
    let mut names =
        query.split('&').map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name));
    let is_document = match *method {
        Method::PUT => !is_object || names.any(|name| OF_OBJECTS.contains(&name)),
        Method::POST => !is_object && names.any(|name| name == "delete"),
        _ => false,
    };
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_in_chunks =
        text("x-amz-content-sha256").is_some_and(|value| value.starts_with("STREAMING-"));
    if is_in_chunks && (is_document || *method == Method::POST) {
        return Err(absent("A chunked body (aws-chunked) that is not an object or a part"));
    }
    if !is_document {
        return Ok(None);
    }
    let sums =
        Algorithm::ALL.map(|algorithm| (algorithm, text(algorithm.header()).map(str::to_owned)));
    let sums = sums.each_ref().map(|(algorithm, sum)| (*algorithm, sum.as_ref()));
    let expected = Expected::new(text("content-md5"), &sums)?;
    Ok(Some(Document { expected, makes_bucket: *method == Method::PUT && !has_subresource(uri) }))
}

/// A body being read.
struct Reading {
    body: Body,
    hasher: Hasher,
    document: Document,
    seen: Vec<u8>,
    wrong: Wrong,
}

impl Reading {
    async fn next(&mut self) -> Option<Result<Bytes, StdError>> {
        loop {
            let Some(frame) = self.body.frame().await else {
                return self.end().err().map(|error| {
                    *self.wrong.0.lock() = Some(error);
                    Err("the document was rejected".into())
                });
            };
            match frame.map(Frame::into_data) {
                Err(error) => return Some(Err(error)),
                Ok(Err(_)) => {}
                Ok(Ok(bytes)) => {
                    self.hasher.update(&bytes);
                    let room = LOOKED_AT - self.seen.len();
                    self.seen.extend_from_slice(&bytes[..bytes.len().min(room)]);
                    return Some(Ok(bytes));
                }
            }
        }
    }

    fn end(&mut self) -> S3Result<()> {
        let hasher = std::mem::replace(&mut self.hasher, Hasher::none());
        self.document.expected.check(&hasher.finish())?;
        let has = |name: &[u8]| self.seen.windows(name.len()).any(|window| window == name);
        if self.document.makes_bucket && (has(b"<Tags") || has(b":Tags")) {
            return Err(absent("CreateBucket with tags (use PutBucketTagging)"));
        }
        Ok(())
    }
}

impl Document {
    /// The body to pass to `s3s`: it ends with an error if a check fails; the error is then in
    /// `wrong`.
    ///
    /// # Errors
    /// `BadDigest` for an empty body, which is passed on unchanged: it needs no length.
    pub(crate) fn compared(self, body: Body, wrong: &Wrong) -> S3Result<Body> {
        let hasher = Hasher::new(self.expected.algorithm());
        if body.is_end_stream() {
            return self.expected.check(&hasher.finish()).map(|()| body);
        }
        let (document, wrong) = (self, wrong.clone());
        let reading = Reading { body, hasher, document, seen: Vec::new(), wrong };
        let frames = stream::unfold(Some(reading), |reading| async move {
            let mut reading = reading?;
            let next = reading.next().await?;
            let is_over = next.is_err();
            Some((next.map(Frame::data), (!is_over).then_some(reading)))
        });
        Ok(Body::http_body_unsync(StreamBody::new(frames)))
    }
}
