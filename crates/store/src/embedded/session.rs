//! One transaction of the embedded engine. Reads run on the caller's thread: a block that is not in
//! the cache costs it a disk read, which the control plane can afford.

use std::sync::Arc;

use millpond_types::limits::STORE_PAGE_BYTES_MAX;
use tokio::sync::{mpsc, oneshot};

use super::committer::Request;
use super::{Published, Shared, damaged};
use crate::backend::{BoxFuture, Commit, RangeRead, RawPage, Session};
use crate::error::Closed;
use crate::{StoreError, Version};

pub(crate) struct EmbeddedSession {
    shared: Arc<Shared>,
    /// Weak, so that an open transaction does not keep a store from closing.
    queue: Option<mpsc::WeakSender<Request>>,
    at: Option<Arc<Published>>,
}

impl EmbeddedSession {
    pub(crate) fn new(shared: Arc<Shared>, queue: Option<mpsc::WeakSender<Request>>) -> Self {
        Self { shared, queue, at: None }
    }

    fn at(&mut self) -> Arc<Published> {
        Arc::clone(self.at.get_or_insert_with(|| self.shared.current()))
    }

    fn read_page(&mut self, read: &RangeRead) -> fjall::Result<RawPage> {
        let at = self.at();
        let mut found = self.shared.tables.range(&at.snapshot, &read.range, read.reverse);
        let mut page = RawPage::default();
        let mut bytes = 0;
        while page.entries.len() < read.limit && bytes < STORE_PAGE_BYTES_MAX {
            let Some(guard) = found.next() else { return Ok(page) };
            let (key, value) = guard.into_inner()?;
            bytes += key.len() + value.len();
            page.entries.push((key.to_vec(), value.to_vec()));
        }
        page.more = found.next().map(fjall::Guard::key).transpose()?.is_some();
        Ok(page)
    }
}

impl Session for EmbeddedSession {
    fn version(&mut self) -> BoxFuture<'_, Result<Version, StoreError>> {
        let version = self.at().version;
        Box::pin(std::future::ready(Ok(version)))
    }

    fn get<'a>(
        &'a mut self,
        keys: &'a [Vec<u8>],
    ) -> BoxFuture<'a, Result<Vec<Option<Vec<u8>>>, StoreError>> {
        let at = self.at();
        let get = |key: &Vec<u8>| at.get(&self.shared, key);
        let found = keys.iter().map(get).collect::<fjall::Result<_>>().map_err(damaged);
        Box::pin(std::future::ready(found))
    }

    fn range<'a>(&'a mut self, read: &'a RangeRead) -> BoxFuture<'a, Result<RawPage, StoreError>> {
        let page = self.read_page(read).map_err(damaged);
        Box::pin(std::future::ready(page))
    }

    fn commit(self: Box<Self>, commit: Commit) -> BoxFuture<'static, Result<Version, StoreError>> {
        let at = self.at.as_ref().map(|at| at.version);
        let queue = self.queue;
        // Drops the snapshot now: fjall keeps old versions as long as a snapshot could read them.
        drop(self.at);
        Box::pin(async move {
            let closed = || StoreError::Unavailable(Box::new(Closed));
            let queue = queue.and_then(|queue| queue.upgrade()).ok_or_else(closed)?;
            let (reply, answer) = oneshot::channel();
            queue.send(Request { at, commit, reply }).await.map_err(|_| closed())?;
            // From here on the committer has it, and may commit it even if the caller stops
            // waiting.
            answer.await.map_err(|error| StoreError::Unknown(Box::new(error)))?
        })
    }
}
