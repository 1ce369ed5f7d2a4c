//! An outgoing body: pieces are read ahead, directly from the memory of this process's node, or
//! into the memory that all bodies share.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use hyper::body::Bytes;
use millpond_client::File;
use s3s::dto::StreamingBlob;
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{S3Error, S3ErrorCode, S3Result, StdError};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::spawn_blocking;

use crate::door::{Door, Way};
use crate::error::{refuse, told};
use crate::spare::room;

/// Bytes per read.
const PIECE: usize = 2 << 20;

/// A buffer that is returned once it was sent.
struct Piece {
    buffer: Vec<u8>,
    len: usize,
    door: Arc<Door>,
    _memory: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.door.spare.give(std::mem::take(&mut self.buffer));
    }
}

/// The bytes of one read: in one part, or in one for each chunk.
type Parts = VecDeque<Bytes>;

/// Pieces of a file.
struct Pieces {
    /// Pieces after the first, if any.
    ahead: Option<mpsc::Receiver<S3Result<Parts>>>,
    parts: Parts,
    left: u64,
}

impl Stream for Pieces {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while self.parts.is_empty() {
            let Some(ahead) = &mut self.ahead else { return Poll::Ready(None) };
            match ready!(ahead.poll_recv(cx)) {
                Some(Ok(parts)) => self.parts = parts,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            }
        }
        let next = self.parts.pop_front();
        self.left = self.left.saturating_sub(next.as_ref().map_or(0, Bytes::len) as u64);
        Poll::Ready(next.map(Ok))
    }
}

impl ByteStream for Pieces {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::new_exact(usize::try_from(self.left).unwrap_or(usize::MAX))
    }
}

/// A body of bytes in memory.
pub(crate) fn bytes(bytes: Vec<u8>) -> StreamingBlob {
    StreamingBlob::from(s3s::Body::from(bytes))
}

/// A body from a range of a file: offset and length. The first bytes are read before there is an
/// answer: they are sent with its header, and a failure to read them is reported. A later failure
/// breaks the connection, since the length was already announced. So does a concurrent truncation
/// or write: before the last of several pieces is sent, a meta confirms that the file is unchanged.
///
/// # Errors
/// `SlowDown` when others hold all memory for too long; errors of reading the first bytes, but
/// never that the object does not exist.
pub(crate) async fn file(
    door: &Arc<Door>,
    file: File,
    (offset, len): (u64, u64),
) -> S3Result<StreamingBlob> {
    if len == 0 {
        return Ok(bytes(Vec::new()));
    }
    file.fix();
    let first = (PIECE as u64).min(len);
    let parts = read(door, &file, (offset, first)).await?;
    let rest = (offset + first, offset + len);
    let ahead = (first < len).then(|| read_ahead(Arc::clone(door), file, rest));
    Ok(StreamingBlob::new(Pieces { ahead, parts, left: len }))
}

/// Starts a task that reads from `offset` to `end`, a piece ahead.
fn read_ahead(
    door: Arc<Door>,
    file: File,
    (mut offset, end): (u64, u64),
) -> mpsc::Receiver<S3Result<Parts>> {
    let (sender, ahead) = mpsc::channel(1);
    tokio::spawn(async move {
        while offset < end {
            let now = (PIECE as u64).min(end - offset);
            let mut piece = read(&door, &file, (offset, now)).await;
            if offset + now == end && piece.is_ok() {
                piece = unchanged(&file).await.and(piece);
            }
            let failed = piece.is_err();
            if sender.send(piece).await.is_err() || failed {
                return;
            }
            offset += now;
        }
    });
    ahead
}

/// Checks that a file still has the bytes that it had when it was looked up.
async fn unchanged(file: &File) -> S3Result<()> {
    let file = file.clone();
    let asked =
        spawn_blocking(move || file.is_as_opened()).await.map_err(S3Error::internal_error)?;
    if asked.map_err(|error| told(error, S3ErrorCode::ServiceUnavailable))? {
        return Ok(());
    }
    let message = "The object changed while it was read: try again.";
    Err(refuse(S3ErrorCode::InternalError, message))
}

async fn read(door: &Arc<Door>, file: &File, (offset, len): (u64, u64)) -> S3Result<Parts> {
    let len = usize::try_from(len).map_err(S3Error::internal_error)?;
    if let Some(parts) = file.read_here(offset, len).await {
        return Ok(parts.into_iter().map(Bytes::from_owner).collect());
    }
    let memory = door.memory(Way::Out, room(len)).await?;
    let (file, door) = (file.clone(), Arc::clone(door));
    let read = spawn_blocking(move || -> S3Result<Piece> {
        let mut buffer = door.spare.take(len);
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        let mut piece = Piece { buffer, len, door, _memory: memory };
        let lens = file.read_batch(&mut [(offset, &mut piece.buffer[..len])]);
        // The object was found: a file that is gone now was replaced, and a retry finds the new
        // one.
        let lens = lens.map_err(|error| told(error, S3ErrorCode::ServiceUnavailable))?;
        if lens.first() != Some(&len) {
            let message = "The object was truncated while it was read: try again.";
            return Err(refuse(S3ErrorCode::InternalError, message));
        }
        Ok(piece)
    });
    let piece = read.await.map_err(S3Error::internal_error)??;
    Ok([Bytes::from_owner(piece)].into())
}
