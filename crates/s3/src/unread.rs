//! Requests answered before their whole body has arrived, mostly rejected ones. The rest of the
//! body is not read, so the connection ends. The answer announces this; otherwise the client's next
//! request on the connection would fail without an explanation.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper::HeaderMap;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, HeaderValue};

/// Whether a whole body has arrived.
#[derive(Clone, Debug)]
pub(crate) struct Unread(Option<Arc<AtomicBool>>);

impl Unread {
    /// The state of a body that has not been read yet.
    pub(crate) fn new(body: &Incoming) -> Self {
        Self((!body.is_end_stream()).then(Arc::default))
    }

    #[cfg(test)]
    pub(crate) const fn none() -> Self {
        Self(None)
    }

    /// The same body, with its end noted.
    pub(crate) fn watch(&self, body: Incoming) -> s3s::Body {
        match &self.0 {
            None => body.into(),
            Some(is_over) => s3s::Body::http_body(Watched { body, is_over: Arc::clone(is_over) }),
        }
    }

    /// Adds `Connection: close` to an answer if the body has not arrived (HTTP/1.1).
    pub(crate) fn tell(&self, headers: &mut HeaderMap) {
        if self.0.as_ref().is_some_and(|is_over| !is_over.load(Ordering::Relaxed)) {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

struct Watched {
    body: Incoming,
    is_over: Arc<AtomicBool>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let next = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(next, Poll::Ready(None)) || self.body.is_end_stream() {
            self.is_over.store(true, Ordering::Relaxed);
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
