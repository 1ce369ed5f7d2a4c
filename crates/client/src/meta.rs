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

/// Time for the way of a question for changes and of its answer.
const NEWS_PATIENCE: Duration = Duration::from_secs(1);

/// A meta in the client's own process, which is asked without a connection.
pub trait OwnMeta: fmt::Debug + Send + Sync {
    /// Executes an operation, in a task of tokio. None where another way of asking may do better; the operation may be done.
    fn answer<'a>(
        &'a self,
        request: &'a MetaRequest,
    ) -> Pin<Box<dyn Future<Output = Option<Answered>> + Send + 'a>>;

    /// The same for a thread that may block.
    fn ask(&self, request: &MetaRequest) -> Option<Answered>;
}

impl Client {
    /// Has a meta execute an operation: that of this process, or any of the cluster, again until one answers.
    ///
    /// What changes something is done once: every attempt carries the session and the sequence of the
    /// request, and so must a later call that repeats it.
    ///
    /// # Errors
    /// [`ClientError`]: the operation may be done or not. An answer that is an error of POSIX is no
    /// `Err`: nothing was done, and it is known.
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

    /// The same, once, by the meta of this process ([`ClientOptions::own_meta`]) and without a thread that waits. None where
    /// there is none, or where it must be asked again in the other way; that is safe for what changes something too.
    pub(crate) async fn meta_here(&self, request: &MetaRequest) -> Option<Answered> {
        self.options().own_meta.as_ref()?.answer(request).await
    }

    /// Waits for changes of the namespace by others than the session that asks; any meta knows them.
    /// Tries one meta: who gets an error cannot know what changed, and asks again.
    ///
    /// # Errors
    /// [`ClientError`]: no meta answered within a second of the time to wait, or this one cannot know
    /// now.
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
            let text = "stands alone: files need a cluster; start it with `millpond server --manager \
                        --form-nodes 1`";
            ClientError::argument("address", format!("the server at {} {text}", self.name()))
        })
    }
}
