//! A body on its way out: pieces are read ahead, from where they lie in the memory of this process's node, or within the memory
//! that all bodies share.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use hyper::body::Bytes;
use millpond_client::File;
use s3s::StdError;
use s3s::dto::StreamingBlob;
use s3s::stream::{ByteStream, RemainingLength};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::spawn_blocking;

use crate::door::{Door, Way};
use crate::spare::room;

/// Bytes that are read at once.
const PIECE: usize = 2 << 20;

/// Memory that goes back when it was sent.
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

/// What was read at once: in one part, or in one for each chunk.
type Parts = VecDeque<Bytes>;

/// Pieces of a file.
struct Pieces {
    ahead: mpsc::Receiver<Result<Parts, StdError>>,
    parts: Parts,
    left: u64,
}

impl Stream for Pieces {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        while self.parts.is_empty() {
            match ready!(self.ahead.poll_recv(cx)) {
                Some(Ok(parts)) => self.parts = parts,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
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

/// Bytes that are there.
pub(crate) fn bytes(bytes: Vec<u8>) -> StreamingBlob {
    StreamingBlob::from(s3s::Body::from(bytes))
}

/// A range of a file: offset and length. A failure on the way breaks the connection, since the length is told.
pub(crate) fn file(door: &Arc<Door>, file: File, (mut offset, len): (u64, u64)) -> StreamingBlob {
    let (sender, ahead) = mpsc::channel(1);
    let door = Arc::clone(door);
    tokio::spawn(async move {
        let end = offset + len;
        while offset < end {
            let now = (PIECE as u64).min(end - offset);
            let piece = read(&door, &file, (offset, now)).await;
            let failed = piece.is_err();
            if sender.send(piece).await.is_err() || failed {
                return;
            }
            offset += now;
        }
    });
    StreamingBlob::new(Pieces { ahead, parts: Parts::new(), left: len })
}

async fn read(door: &Arc<Door>, file: &File, (offset, len): (u64, u64)) -> Result<Parts, StdError> {
    let len = usize::try_from(len)?;
    if let Some(parts) = file.read_here(offset, len).await {
        return Ok(parts.into_iter().map(Bytes::from_owner).collect());
    }
    let memory = door.memory(Way::Out, room(len)).await.map_err(Box::new)?;
    let (file, door) = (file.clone(), Arc::clone(door));
    let read = spawn_blocking(move || -> Result<Piece, StdError> {
        let mut buffer = door.spare.take(len);
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        let mut piece = Piece { buffer, len, door, _memory: memory };
        let lens = file.read_batch(&mut [(offset, &mut piece.buffer[..len])])?;
        if lens.first() != Some(&len) {
            return Err("the file was cut while it was sent".into());
        }
        Ok(piece)
    });
    Ok([Bytes::from_owner(read.await??)].into())
}
