//! A client's connection that can end with a reset instead of an orderly close.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::Shared;
use super::forward::Forward;

/// A socket that closes with a reset once the flag is set.
struct Front {
    stream: TcpStream,
    reset: Arc<AtomicBool>,
}

impl Front {
    fn is_reset(&self) -> bool {
        self.reset.load(Ordering::Relaxed)
    }
}

impl AsyncRead for Front {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Front {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, from)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_reset() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        if self.is_reset() {
            // A close with a linger time of zero sends RST and drops unsent bytes. It fails if the
            // peer is gone, and then no reset is needed.
            let _ = self.stream.set_zero_linger();
        }
    }
}

/// Serves a connection to its end.
pub(super) async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    shared.counts.connections.add(1);
    let reset = Arc::<AtomicBool>::default();
    let forward = Forward::new(shared, Arc::clone(&reset));
    let front = Front { stream, reset: Arc::clone(&reset) };
    let forward = Arc::new(forward);
    let service = service_fn(|request| {
        let forward = Arc::clone(&forward);
        async move { forward.answer(request).await }
    });
    let served = http1::Builder::new().serve_connection(TokioIo::new(front), service);
    let mut served = std::pin::pin!(served);
    // An error is an injected fault or a client that disconnected; both end the connection.
    let ended = served.as_mut().await;
    reset.fetch_or(ended.is_err(), Ordering::Relaxed);
}
