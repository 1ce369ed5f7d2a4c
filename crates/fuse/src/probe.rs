//! Whether a cluster can be mounted at all, asked before anything is made.

use std::time::Duration;

use millpond_client::{Client, ClientError, ErrorKind};
use millpond_types::meta::{Caller, Ino, MetaOp, MetaRequest};

use crate::options::MountSpec;

/// Who mounts waits for it.
const FIRST_WORD: Duration = Duration::from_secs(5);

/// A cluster cannot be mounted; the message names the fix.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Something takes connections or packets there, and says nothing.
    #[error(
        "the cluster at {addresses} does not answer within {FIRST_WORD:?}: check the addresses, and \
         what `millpond admin status` says"
    )]
    Silent {
        /// Where it was asked.
        addresses: String,
    },
    /// Nobody is there, or what is there says why not.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Asks a meta of the cluster for the root of its files; five seconds at most.
///
/// # Errors
/// [`ProbeError`]: nobody answers there, the credential is wrong, the server stands alone, or its
/// volume cannot be read.
pub fn probe(spec: &MountSpec) -> Result<(), ProbeError> {
    let client = Client::new(spec.client.clone())?;
    let caller = Caller::checked(0, 0);
    let op = MetaOp::GetAttr { ino: Ino::ROOT };
    let request = MetaRequest { session: 0, sequence: 0, hour: 0, caller, op };
    match client.meta(&request, Some(FIRST_WORD)) {
        // Whatever it answers: there is a meta.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::DeadlineExceeded => {
            Err(ProbeError::Silent { addresses: spec.client.addresses.to_string() })
        }
        Err(error) => Err(error.into()),
    }
}
