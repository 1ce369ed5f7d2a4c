//! Checks whether a cluster can be mounted at all, before anything is made.

use std::time::Duration;

use millpond_client::{Client, ClientError, ErrorKind};
use millpond_types::meta::{Caller, Ino, MetaOp, MetaRequest};

use crate::options::MountSpec;

/// Time for the first answer: the mounting user waits for it.
const FIRST_WORD: Duration = Duration::from_secs(5);

/// A cluster cannot be mounted; the message names the fix.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The addresses accept connections or packets, and send no answer.
    #[error(
        "the cluster at {addresses} does not answer within {FIRST_WORD:?}: check the addresses and \
         `millpond admin status`"
    )]
    Silent {
        /// The addresses.
        addresses: String,
    },
    /// No server answers, or it returns an error.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Asks a meta of the cluster for the root of its files; takes five seconds at most.
///
/// # Errors
/// [`ProbeError`]: no server answers, the credential is wrong, the server stands alone, or its
/// volume cannot be read.
pub fn probe(spec: &MountSpec) -> Result<(), ProbeError> {
    let client = Client::new(spec.client.clone())?;
    let caller = Caller::checked(0, 0);
    let op = MetaOp::GetAttr { ino: Ino::ROOT };
    let request = MetaRequest { session: 0, sequence: 0, hour: 0, caller, op };
    match client.meta(&request, Some(FIRST_WORD)) {
        // Any answer proves that there is a meta.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::DeadlineExceeded => {
            Err(ProbeError::Silent { addresses: spec.client.addresses.to_string() })
        }
        Err(error) => Err(error.into()),
    }
}
