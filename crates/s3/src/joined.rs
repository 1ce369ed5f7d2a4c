//! Bodies that send several parts together. hyper passes one frame to the kernel in one call, and a
//! frame of `s3s` is one part. Objects are read chunk by chunk, and each call would wake the
//! client.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Buf, Bytes, Frame, SizeHint};

/// Parts and bytes of a frame at most. The kernel takes 1,024 parts at once; hyper passes on 64,
/// including a header before them.
const PARTS_MAX: usize = 32;
const BYTES_MAX: usize = 2 << 20;

/// Consecutive parts. None of them is empty.
#[derive(Debug, Default)]
pub(crate) struct Parts(VecDeque<Bytes>);

impl Buf for Parts {
    fn remaining(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    fn chunk(&self) -> &[u8] {
        self.0.front().map_or(&[], |first| first)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let into = slices.iter_mut().zip(&self.0);
        into.map(|(slice, part)| *slice = IoSlice::new(part)).count()
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let Some(first) = self.0.front_mut() else {
                unreachable!("a caller advances within the remaining bytes")
            };
            if count < first.len() {
                return first.advance(count);
            }
            count -= first.len();
            self.0.pop_front();
        }
    }
}

/// A body that returns all available data in one frame.
pub(crate) struct Joined<B: Body> {
    inner: B,
    /// The item that followed the parts of the last frame and was not data.
    next: Option<Polled<B>>,
}

/// The result of a poll that is not pending.
type Polled<B> = Option<Result<Frame<<B as Body>::Data>, <B as Body>::Error>>;

impl<B: Body> Joined<B> {
    pub(crate) const fn new(inner: B) -> Self {
        Self { inner, next: None }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Joined<B>
where
    B::Error: Unpin,
{
    type Data = Parts;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Parts>, B::Error>>> {
        let (mut parts, mut bytes) = (Parts::default(), 0);
        while parts.0.len() < PARTS_MAX && bytes < BYTES_MAX {
            let polled = match self.next.take() {
                Some(next) => Poll::Ready(next),
                None => Pin::new(&mut self.inner).poll_frame(cx),
            };
            let other = match polled {
                Poll::Pending if parts.0.is_empty() => return Poll::Pending,
                Poll::Pending => break,
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => {
                        bytes += data.len();
                        parts.0.extend((!data.is_empty()).then_some(data));
                        continue;
                    }
                    Err(trailers) => Some(Ok(trailers)),
                },
                Poll::Ready(ended) => ended,
            };
            if !parts.0.is_empty() {
                self.next = Some(other);
                break;
            }
            let trailers = |frame: Frame<Bytes>| frame.map_data(|data| Parts([data].into()));
            return Poll::Ready(other.map(|frame| frame.map(trailers)));
        }
        Poll::Ready(Some(Ok(Frame::data(parts))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.next {
            None => self.inner.is_end_stream(),
            Some(next) => next.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.next {
            None => self.inner.size_hint(),
            Some(_) => SizeHint::with_exact(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::IoSlice;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use hyper::body::{Body, Buf, Bytes, Frame};
    use hyper::header::HeaderMap;

    use super::{BYTES_MAX, Joined, PARTS_MAX};

    type Told = Poll<Result<Frame<Bytes>, &'static str>>;

    /// The results of a body, poll by poll, before its end.
    struct Script(VecDeque<Told>);

    static MIB: [u8; BYTES_MAX / 2] = [b'x'; BYTES_MAX / 2];

    impl Body for Script {
        type Data = Bytes;
        type Error = &'static str;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
            self.0.pop_front().map_or(Poll::Ready(None), |told| told.map(Some))
        }

        fn is_end_stream(&self) -> bool {
            self.0.is_empty()
        }
    }

    fn data(bytes: &'static [u8]) -> Told {
        Poll::Ready(Ok(Frame::data(Bytes::from_static(bytes))))
    }

    /// The result of each poll, up to the end.
    fn told(script: impl IntoIterator<Item = Told>) -> Vec<String> {
        let mut body = Joined::new(Script(script.into_iter().collect()));
        let mut told = Vec::new();
        loop {
            let is_end = body.is_end_stream();
            let polled = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
            told.push(match polled {
                Poll::Pending => "later".to_owned(),
                Poll::Ready(None) => return told,
                Poll::Ready(Some(Err(error))) => format!("failed: {error}"),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(mut parts) => {
                        let bytes = parts.copy_to_bytes(parts.remaining());
                        String::from_utf8(bytes.to_vec()).unwrap()
                    }
                    Err(_) => "trailers".to_owned(),
                },
            });
            assert!(!is_end, "{told:?} came behind the end");
        }
    }

    #[test]
    fn what_is_there_comes_together_and_the_rest_behind_it() {
        assert_eq!(told([data(b"a"), data(b"bc"), data(b""), data(b"d")]), ["abcd"]);
        assert_eq!(told([]), [""; 0]);
        assert_eq!(
            told([Poll::Pending, data(b"a"), Poll::Pending, data(b"b"), data(b"c")]),
            ["later", "a", "bc"]
        );
        let trailers = || Poll::Ready(Ok(Frame::trailers(HeaderMap::new())));
        assert_eq!(told([data(b"a"), data(b"b"), trailers()]), ["ab", "trailers"]);
        assert_eq!(told([trailers()]), ["trailers"]);
        assert_eq!(told([data(b"a"), Poll::Ready(Err("gone"))]), ["a", "failed: gone"]);
        assert_eq!(told([Poll::Ready(Err("gone"))]), ["failed: gone"]);
    }

    #[test]
    fn a_frame_is_bounded() {
        let many = told((0..=PARTS_MAX).map(|_| data(b"x")));
        assert_eq!(many.iter().map(String::len).collect::<Vec<_>>(), [PARTS_MAX, 1]);
        let large = told((0..3).map(|_| data(&MIB)));
        assert_eq!(large.iter().map(String::len).collect::<Vec<_>>(), [BYTES_MAX, BYTES_MAX / 2]);
    }

    #[test]
    fn parts_are_written_from_wherever_a_write_ended() {
        let script = [data(b"abc"), data(b"de"), data(b"f")];
        let mut body = Joined::new(Script(script.into()));
        let polled = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Some(Ok(frame))) = polled else { panic!("there is a frame") };
        let mut parts = frame.into_data().unwrap_or_else(|_| panic!("it has data"));
        for (count, left) in [(0, "abcdef"), (1, "bcdef"), (2, "def"), (2, "f"), (1, "")] {
            parts.advance(count);
            let mut slices = [IoSlice::new(&[]); 3];
            let used = parts.chunks_vectored(&mut slices);
            let all: Vec<u8> = slices[..used].iter().flat_map(|slice| slice.to_vec()).collect();
            assert_eq!((all.as_slice(), parts.remaining()), (left.as_bytes(), left.len()));
            assert!(left.as_bytes().starts_with(parts.chunk()));
        }
        assert_eq!(parts.chunks_vectored(&mut []), 0);
    }
}
