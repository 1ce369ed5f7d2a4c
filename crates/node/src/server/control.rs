//! Requests about the cluster: routing, membership, administration.

use millpond_types::Tick;
use millpond_types::wire::{Status, Verb};

use super::conn::Conn;
use crate::service::Failure;

/// Answers a request about the cluster.
///
/// # Errors
/// [`Failure`]; `Unsupported` on a server that stands alone.
#[expect(clippy::unused_async, reason = "answers wait for news")]
pub(super) async fn execute(
    _conn: &Conn,
    verb: Verb,
    _meta: &[u8],
    _deadline: Tick,
) -> Result<Vec<u8>, Failure> {
    let text =
        format!("{}: this server stands alone: give the address of a cluster's node", verb.name());
    Err(Failure::new(Status::Unsupported, text))
}
