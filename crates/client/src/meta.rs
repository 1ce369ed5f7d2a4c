//! Operations on the file namespace.

use std::time::Duration;

use millpond_types::meta::{MetaAnswer, MetaReply, MetaRequest};

use crate::client::Client;
use crate::error::ClientError;

impl Client {
    /// Has a meta execute an operation; any meta of the cluster, again until one answers.
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
    ) -> Result<MetaAnswer, ClientError> {
        let deadline = self.deadline(deadline);
        let cluster = self.cluster(deadline)?.ok_or_else(|| {
            let text = "stands alone: files need a cluster; start it with `millpond server --manager \
                        --form-nodes 1`";
            ClientError::argument("address", format!("the server at {} {text}", self.name()))
        })?;
        let reply = cluster.ask_meta(&request.encode(), deadline)?;
        MetaReply::decode_answer(&reply)
            .map_err(|source| ClientError::Wire { address: self.name(), source })
    }
}
