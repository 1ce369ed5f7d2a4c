//! Whether a cluster can be mounted at all, asked before anything is made.

use std::time::Duration;

use millpond_client::{Client, ClientError};
use millpond_types::meta::{Caller, Ino, MetaOp, MetaRequest};

use crate::options::MountSpec;

/// Who mounts waits for it.
const FIRST_WORD: Duration = Duration::from_secs(5);

/// Asks a meta of the cluster for the root of its files; five seconds at most.
///
/// # Errors
/// [`ClientError`]: nobody answers there, the credential is wrong, the server stands alone, or its
/// volume cannot be read.
pub fn probe(spec: &MountSpec) -> Result<(), ClientError> {
    let client = Client::new(spec.client.clone())?;
    let caller = Caller::checked(0, 0);
    let op = MetaOp::GetAttr { ino: Ino::ROOT };
    let request = MetaRequest { session: 0, sequence: 0, hour: 0, caller, op };
    // Whatever it answers: there is a meta.
    client.meta(&request, Some(FIRST_WORD)).map(drop)
}
