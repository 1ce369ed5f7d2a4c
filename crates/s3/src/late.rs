//! Slow answers: completing an upload, and copies. Clients give up a connection after a minute of
//! silence and retry, which doubles the work. So after a while such an answer begins with its
//! status and continues with spaces until the result is known, as with AWS. Its body has the
//! result, which may be an error under status 200; SDKs check for that.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Bytes, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response};
use s3s::{Body, HttpError, StdError};
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Answers within this time are sent normally.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Interval between spaces.
const PAUSE: Duration = Duration::from_secs(1);
/// The beginning of every document.
const DECLARATION: &[u8] = b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>";

/// The work on a request.
pub(crate) type Work = JoinHandle<Result<Response<Body>, HttpError>>;

/// Whether the answer may be slow: it is a document on success and on failure.
pub(crate) fn may_be<T>(request: &Request<T>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    match *request.method() {
        Method::POST => query.split('&').any(|pair| pair.starts_with("uploadId=")),
        Method::PUT => request.headers().contains_key("x-amz-copy-source"),
        _ => false,
    }
}

/// An answer that begins now and ends with the work.
pub(crate) fn begun(work: Work) -> Response<Body> {
    let mut pause = interval(PAUSE);
    pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let body = Late { is_begun: false, work: Some(work), pause };
    let mut response = Response::new(Body::http_body_unsync(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    response
}

struct Late {
    is_begun: bool,
    /// None once it has ended.
    work: Option<Work>,
    pause: Interval,
}

/// A document without its declaration, which was already sent.
fn rest(document: &Bytes) -> Bytes {
    let is_declared = document.starts_with(b"<?xml");
    let end = document.windows(2).position(|window| window == b"?>").filter(|_| is_declared);
    document.slice(end.map_or(0, |at| at + 2)..)
}

impl hyper::body::Body for Late {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        if !self.is_begun {
            self.is_begun = true;
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(DECLARATION)))));
        }
        let Some(work) = &mut self.work else { return Poll::Ready(None) };
        if let Poll::Ready(done) = Pin::new(work).poll(cx) {
            self.work = None;
            let told =
                done.map_err(StdError::from).and_then(|answer| answer.map_err(StdError::from));
            let document =
                told.map(|mut response| response.body_mut().take_bytes().unwrap_or_default());
            return Poll::Ready(Some(document.map(|document| Frame::data(rest(&document)))));
        }
        match self.pause.poll_tick(cx) {
            Poll::Ready(_) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b" "))))),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_documents_come_late() {
        let of = |method: &str, uri: &str, copies: bool| {
            let mut request = Request::builder().method(method).uri(uri);
            if copies {
                request = request.header("x-amz-copy-source", "/b/k");
            }
            may_be(&request.body(()).unwrap())
        };
        assert!(
            of("POST", "/b/k?uploadId=7", false) && of("POST", "/b/k?x-id=C&uploadId=7", false)
        );
        assert!(of("PUT", "/b/k", true) && of("PUT", "/b/k?partNumber=1&uploadId=7", true));
        assert!(!of("POST", "/b/k?uploads", false) && !of("POST", "/b?delete", false));
        assert!(!of("PUT", "/b/k?partNumber=1&uploadId=7", false) && !of("DELETE", "/b/k", true));
    }

    #[test]
    fn a_document_is_declared_once() {
        for (document, wanted) in [
            ("<?xml version=\"1.0\" encoding=\"UTF-8\"?><a/>", "<a/>"),
            ("<a/>", "<a/>"),
            ("<a>?></a>", "<a>?></a>"),
            ("", ""),
        ] {
            assert_eq!(rest(&Bytes::from_static(document.as_bytes())), wanted);
        }
    }
}
