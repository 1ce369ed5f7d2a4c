//! Requests about the cluster: routing, membership, administration.

use millpond_types::Tick;
use millpond_types::wire::{Status, Verb};

use super::conn::Conn;
use crate::service::Failure;

/// Answers a request about the cluster.
///
/// # Errors
/// [`Failure`]; `Unsupported` on a server that stands alone, `Unauthorized` to a client that may not
/// use every namespace and asks for what only nodes and operators may.
pub(super) async fn execute(
    conn: &Conn,
    verb: Verb,
    meta: &[u8],
    deadline: Tick,
) -> Result<Vec<u8>, Failure> {
    let Some(cluster) = &conn.shared.cluster else {
        let name = verb.name();
        let text =
            format!("{name}: this server stands alone: give the address of a cluster's node");
        return Err(Failure::new(Status::Unsupported, text));
    };
    let for_clients = matches!(verb, Verb::Routing | Verb::Suspect);
    if !for_clients && !conn.scope().is_some_and(|scope| scope.is_unlimited()) {
        let text = format!(
            "{}: this token is limited to some namespaces: nodes and operators need one that is not",
            verb.name()
        );
        return Err(Failure::new(Status::Unauthorized, text));
    }
    cluster.member().answer(verb, meta, deadline).await
}
