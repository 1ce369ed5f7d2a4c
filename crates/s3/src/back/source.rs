//! Reads bytes of a file for a backend.

use std::sync::Arc;

use hyper::body::Bytes;
use millpond_client::File;
use s3s::StdError;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::spawn_blocking;

use super::known::Behind;
use super::store::Content;
use crate::door::Door;

/// Bytes per read.
pub(crate) const PIECE: u64 = 1 << 20;
/// Pieces held by a streamed body: one being read, one waiting, one being sent.
const HELD: u64 = 3;

/// Memory for the bytes of one request of a lane to a backend. It is taken before the request
/// begins, so that no request stalls for it.
pub(crate) async fn memory(behind: &Behind, lane: usize, len: u64) -> OwnedSemaphorePermit {
    let kib = len.min(HELD * PIECE).div_ceil(1 << 10).max(1);
    let pool = Arc::clone(&behind.memory[lane]);
    let taken = pool.acquire_many_owned(u32::try_from(kib).unwrap_or(u32::MAX));
    match taken.await {
        Ok(permit) => permit,
        // The semaphore is never closed.
        Err(_) => std::future::pending().await,
    }
}

/// A range of a file in one read; for a thread that may block.
pub(crate) fn bytes(file: &File, (offset, len): (u64, u64)) -> Result<Vec<u8>, StdError> {
    let len = usize::try_from(len)?;
    let mut bytes = vec![0; len];
    if len > 0 && file.read_batch(&mut [(offset, &mut bytes)])?.first() != Some(&len) {
        return Err("the file was truncated while it was read".into());
    }
    Ok(bytes)
}

/// A range of a file, read while it is sent.
pub(crate) fn pieces(door: &Arc<Door>, file: File, (mut offset, len): (u64, u64)) -> Content {
    let (sender, mut receiver) = mpsc::channel::<Result<Bytes, StdError>>(1);
    let door = Arc::clone(door);
    tokio::spawn(async move {
        let end = offset + len;
        while offset < end {
            let now = PIECE.min(end - offset);
            let file = file.clone();
            let Ok(_thread) = door.behind.threads.acquire().await else { return };
            let piece = spawn_blocking(move || bytes(&file, (offset, now))).await;
            let piece = piece.unwrap_or_else(|error| Err(error.into())).map(Bytes::from);
            let failed = piece.is_err();
            if sender.send(piece).await.is_err() || failed {
                return;
            }
            offset += now;
        }
    });
    let stream = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
    Content::Pieces { pieces: Box::pin(stream), len }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::{Behind, memory};

    #[tokio::test]
    async fn small_objects_do_not_wait_for_the_memory_of_large_ones() {
        let behind = Behind::new();
        let mut held = Vec::new();
        while let Some(permit) = memory(&behind, 1, 64 << 20).now_or_never() {
            held.push(permit);
        }
        assert_eq!(held.len(), 16);
        assert!(memory(&behind, 0, 10 << 10).now_or_never().is_some());
    }
}
