//! Bodies passing through the proxy: counted, and cut where a fault demands it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};

use super::Shared;
use super::counts::Count;

/// The client's connection ends here with a reset.
#[derive(Debug, thiserror::Error)]
#[error("the proxy ends the connection")]
pub(super) struct Cut;

/// A request's body on its way to the backend.
pub(super) struct Upload {
    body: Incoming,
    shared: Arc<Shared>,
    flips: bool,
}

/// Inverts one bit of the frame and counts it; done once.
fn flipped(frame: Frame<Bytes>, (flips, count): (&mut bool, &Count)) -> Frame<Bytes> {
    let bytes = match frame.into_data() {
        Ok(bytes) if *flips && !bytes.is_empty() => bytes,
        Ok(bytes) => return Frame::data(bytes),
        Err(frame) => return frame,
    };
    let mut bytes = bytes.to_vec();
    if let Some(last) = bytes.last_mut() {
        *last ^= 1;
    }
    *flips = false;
    count.add(1);
    Frame::data(Bytes::from(bytes))
}

impl Upload {
    pub(super) const fn new(body: Incoming, shared: Arc<Shared>, flips: bool) -> Self {
        Self { body, shared, flips }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let polled = Pin::new(&mut this.body).poll_frame(context);
        let Poll::Ready(Some(Ok(frame))) = polled else { return polled };
        if let Some(bytes) = frame.data_ref() {
            this.shared.counts.bytes_up.add(bytes.len() as u64);
        }
        let frame = flipped(frame, (&mut this.flips, &this.shared.counts.flips));
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer's body.
pub(super) enum Answer {
    /// A body made by the proxy itself.
    Own(Full<Bytes>),
    /// The body of the backend.
    Passed(Passed),
}

/// The backend's body on its way to the client.
pub(super) struct Passed {
    body: Incoming,
    shared: Arc<Shared>,
    /// Bytes that still pass before the connection is reset.
    left: Option<u64>,
    /// Whether one of its bits is still to be inverted.
    flips: bool,
    /// Whether the passed bytes have been sent.
    is_flushed: bool,
    /// Flag: close the client's connection with a reset.
    reset: Arc<AtomicBool>,
}

impl Passed {
    /// The whole body.
    pub(super) const fn whole(body: Incoming, shared: Arc<Shared>, reset: Arc<AtomicBool>) -> Self {
        Self { body, shared, left: None, flips: false, is_flushed: false, reset }
    }

    /// The whole body with one bit inverted.
    pub(super) const fn flipped(
        body: Incoming,
        shared: Arc<Shared>,
        reset: Arc<AtomicBool>,
    ) -> Self {
        Self { body, shared, left: None, flips: true, is_flushed: false, reset }
    }

    /// Half of the body; nothing of a body of unknown length.
    pub(super) fn half(body: Incoming, shared: Arc<Shared>, reset: Arc<AtomicBool>) -> Self {
        let left = body.size_hint().exact().unwrap_or_default() / 2;
        Self { body, shared, left: Some(left), flips: false, is_flushed: false, reset }
    }

    fn cut(&self, count: &Count) -> Cut {
        count.add(1);
        self.reset.store(true, Ordering::Relaxed);
        Cut
    }

    fn poll_passed(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if self.shared.faults.borrow().faults.outage {
            return Poll::Ready(Some(Err(self.cut(&self.shared.counts.outage_resets))));
        }
        if self.left == Some(0) {
            if !self.is_flushed {
                // hyper flushes its buffer when a body returns `Pending`.
                self.is_flushed = true;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            return Poll::Ready(Some(Err(self.cut(&self.shared.counts.cuts))));
        }
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let Poll::Ready(Some(Ok(mut frame))) = polled else {
            return polled.map_err(|_| self.cut(&self.shared.counts.backend_failures));
        };
        if let Some(bytes) = frame.data_ref() {
            let passing = self.left.map_or(bytes.len(), |left| {
                usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()))
            });
            self.left = self.left.map(|left| left - passing as u64);
            self.shared.counts.bytes_down.add(passing as u64);
            frame = Frame::data(bytes.slice(..passing));
            frame = flipped(frame, (&mut self.flips, &self.shared.counts.flips));
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match &mut *self {
            Self::Own(body) => Pin::new(body).poll_frame(context).map_err(|never| match never {}),
            Self::Passed(passed) => passed.poll_passed(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(body) => body.is_end_stream(),
            Self::Passed(passed) => passed.left.is_none() && passed.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(body) => body.size_hint(),
            Self::Passed(passed) => passed.body.size_hint(),
        }
    }
}
