//! Operations on the file namespace.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use millpond_types::meta::{Answered, MetaNews, MetaRequest, MetaWatch};
use millpond_types::wire::WireError;

use crate::client::Client;
use crate::cluster::Cluster;
use crate::connection::Deadline;
use crate::error::ClientError;

/// Time for a request for changes and its answer to travel.
const NEWS_PATIENCE: Duration = Duration::from_secs(1);

/// A meta in the client's own process, which is called without a connection.
pub trait OwnMeta: fmt::Debug + Send + Sync {
    /// Executes an operation, in a task of tokio. None if the caller should ask in another way; the
    /// operation may have been executed.
    fn answer<'a>(
        &'a self,
        request: &'a MetaRequest,
    ) -> Pin<Box<dyn Future<Output = Option<Answered>> + Send + 'a>>;

    /// As [`Self::answer`], for a thread that may block.
    fn ask(&self, request: &MetaRequest) -> Option<Answered>;
}

impl Client {
    /// Has a meta execute an operation: the one in this process, or any of the cluster, with
    /// retries until one answers.
    ///
    /// A change is executed once: every attempt carries the session and the sequence number of the
    /// request, and so must a later call that repeats it.
    ///
    /// # Errors
    /// [`ClientError`]: the operation may have been executed or not. A POSIX error in the answer is
    /// no `Err`: the operation is then known not to have been executed.
    pub fn meta(
        &self,
        request: &MetaRequest,
        deadline: Option<Duration>,
    ) -> Result<Answered, ClientError> {
        let own = self.options().own_meta.as_ref();
        if let Some(answered) = own.and_then(|own| own.ask(request)) {
            return Ok(answered);
        }
        let deadline = self.deadline(deadline);
        let reply = self.of_files(deadline)?.ask_meta(&request.encode(), deadline)?;
        Answered::decode(&reply).map_err(|source| self.malformed(source))
    }

    /// As [`Self::meta`], with one attempt by the meta of this process
    /// ([`ClientOptions::own_meta`]) and without blocking a thread. None if there is no such meta,
    /// or if the caller must ask in the other way; that is safe for changes too.
    pub(crate) async fn meta_here(&self, request: &MetaRequest) -> Option<Answered> {
        self.options().own_meta.as_ref()?.answer(request).await
    }

    /// Waits for changes of the namespace by sessions other than the asking one; any meta knows
    /// them. Tries one meta: after an error the caller cannot know the changes, and must ask again.
    ///
    /// # Errors
    /// [`ClientError`]: no meta answered within a second after the time to wait, or this one cannot
    /// know the changes now.
    pub fn meta_news(&self, watch: &MetaWatch) -> Result<MetaNews, ClientError> {
        let wait = Duration::from_millis(watch.wait_ms.into());
        let deadline = self.deadline(Some(wait + NEWS_PATIENCE));
        let reply = self.of_files(deadline)?.watch_meta(&watch.encode(), deadline)?;
        MetaNews::decode(&reply).map_err(|source| self.malformed(source))
    }

    fn malformed(&self, source: WireError) -> ClientError {
        ClientError::Wire { address: self.name(), source }
    }

    /// The cluster, which has files.
    fn of_files(&self, deadline: Deadline) -> Result<Arc<Cluster>, ClientError> {
        self.cluster(deadline)?.ok_or_else(|| {
            let text = "is not part of a cluster: files need one; start it with `millpond server \
                        --manager --form-nodes 1`";
            ClientError::argument("address", format!("the server at {} {text}", self.name()))
        })
    }
}
