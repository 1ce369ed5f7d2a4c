//! Replies on their way out: a queue per connection and the task that sends it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::task::{Poll, Waker};

use millpond_env::{Piece, RealClock, SharedBuf};
use millpond_types::Tick;

use super::conn::{Conn, InFlight};
use super::tls::Sink;

/// Bytes sent at a time, so that a stalled client shows as absence of progress.
const SEND_BYTES_MAX: usize = 4 << 20;
/// Pieces sent at a time: within the kernel's `IOV_MAX` of 1,024.
const SEND_PIECES_MAX: usize = 1000;

/// A reply ready to be sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Header and meta.
    pub head: Vec<u8>,
    /// The payload.
    pub values: Vec<SharedBuf>,
    /// Descriptors that travel with it (unix sockets).
    pub fds: Vec<OwnedFd>,
    /// Resources of the request until the reply is sent.
    pub guard: Option<InFlight>,
    /// Time at which it was queued.
    pub queued: Tick,
}

/// The replies of one connection.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    queue: RefCell<VecDeque<Outgoing>>,
    waker: RefCell<Option<Waker>>,
    closed: Cell<bool>,
    /// Start of the current send without progress.
    pub sending_since: Cell<Option<Tick>>,
}

impl Outbox {
    /// Queues a reply; it is dropped when the connection is closing.
    pub(super) fn push(&self, reply: Outgoing) {
        if self.closed.get() {
            return;
        }
        self.queue.borrow_mut().push_back(reply);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Sends the queued replies, then ends.
    pub(super) fn close(&self) {
        self.closed.set(true);
        self.wake();
    }

    /// Drops the queued replies.
    pub(super) fn abandon(&self) {
        self.closed.set(true);
        let queue = std::mem::take(&mut *self.queue.borrow_mut());
        drop(queue);
        self.wake();
    }

    /// The next replies, at most [`SEND_BYTES_MAX`] unless one alone is larger; `None` at the end.
    async fn next(&self) -> Option<Vec<Outgoing>> {
        poll_fn(|context| {
            let mut queue = self.queue.borrow_mut();
            if queue.is_empty() {
                if self.closed.get() {
                    return Poll::Ready(None);
                }
                *self.waker.borrow_mut() = Some(context.waker().clone());
                return Poll::Pending;
            }
            let (mut batch, mut bytes, mut pieces) = (Vec::new(), 0, 0);
            while let Some(reply) = queue.front() {
                bytes += reply.values.iter().map(|value| value.len()).sum::<usize>();
                pieces += 1 + reply.values.len();
                let too_much = bytes > SEND_BYTES_MAX || pieces > SEND_PIECES_MAX;
                if !batch.is_empty() && (too_much || !reply.fds.is_empty()) {
                    break;
                }
                let alone = !reply.fds.is_empty();
                batch.extend(queue.pop_front());
                if alone {
                    break;
                }
            }
            Poll::Ready(Some(batch))
        })
        .await
    }
}

/// Sends the replies of a connection until it closes.
pub(super) async fn send_replies(conn: Rc<Conn>, mut sink: Sink) {
    let outbox = &conn.outbox;
    while let Some(batch) = outbox.next().await {
        // Boxed: the size of an idle connection counts ten thousand times.
        if let Err(error) = Box::pin(send_batch(&conn, &mut sink, batch)).await {
            tracing::debug!(peer = %conn.peer, "sending failed: {error}");
            outbox.abandon();
            break;
        }
    }
    outbox.sending_since.set(None);
    sink.close().await;
}

async fn send_batch(conn: &Conn, sink: &mut Sink, batch: Vec<Outgoing>) -> std::io::Result<()> {
    let mut pieces: Vec<Piece> = Vec::with_capacity(batch.len() * 2);
    let mut guards = Vec::with_capacity(batch.len());
    for reply in batch {
        if !reply.fds.is_empty() {
            send_with_fds(sink, &reply).await?;
            continue;
        }
        guards.push((reply.guard, reply.queued));
        match pieces.last_mut() {
            Some(Piece::Vec(bytes)) if bytes.len() < SEND_BYTES_MAX => {
                bytes.extend_from_slice(&reply.head);
            }
            _ => pieces.push(Piece::Vec(reply.head)),
        }
        pieces.extend(reply.values.into_iter().filter(|v| !v.is_empty()).map(Piece::Shared));
    }
    let mut rest = pieces;
    while !rest.is_empty() {
        let later = rest.split_off(cut(&rest));
        conn.outbox.sending_since.set(Some(RealClock::tick()));
        sink.send(rest).await?;
        rest = later;
    }
    conn.outbox.sending_since.set(None);
    let now = RealClock::tick();
    for (_guard, queued) in guards {
        conn.shared.service.metrics.stages.send.observe(now.since(queued));
    }
    Ok(())
}

/// Number of pieces to send before progress is noted.
fn cut(pieces: &[Piece]) -> usize {
    let mut bytes = 0;
    for (index, piece) in pieces.iter().enumerate() {
        bytes += match piece {
            Piece::Vec(bytes) => bytes.len(),
            Piece::Shared(bytes) => bytes.len(),
        };
        if bytes > SEND_BYTES_MAX && index > 0 {
            return index;
        }
    }
    pieces.len()
}

async fn send_with_fds(sink: &mut Sink, reply: &Outgoing) -> std::io::Result<()> {
    let Sink::Plain(half) = sink else { return Err(std::io::ErrorKind::Unsupported.into()) };
    let fds: Vec<_> = reply.fds.iter().map(|fd| fd.as_fd()).collect();
    half.send_fds(&reply.head, &fds).await
}
