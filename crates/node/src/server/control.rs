//! Requests about the cluster: routing, membership, administration.

use millpond_types::Tick;
use millpond_types::wire::{Failure, Status, Verb};

use super::conn::Conn;
use super::files::FILES_REFUSED;

/// Checks that this connection may send requests reserved for nodes of the cluster.
///
/// # Errors
/// [`Failure`] naming the verb and the secret.
pub(super) fn as_node(conn: &Conn, verb: Verb) -> Result<(), Failure> {
    if conn.scope().is_some_and(|scope| scope.is_node()) {
        return Ok(());
    }
    conn.shared.service.metrics.unauthorized.inc();
    let text = format!(
        "{}: this is a client's credential, but replica messages, heartbeats and registrations \
         need the nodes' secret: give the node a copy of the cluster's secret file (--node-secret, \
         cluster.node_secret_file)",
        verb.name()
    );
    tracing::warn!(peer = %conn.peer, "{text}");
    Err(Failure::new(Status::Unauthorized, text))
}

/// Answers a request about the cluster.
///
/// # Errors
/// [`Failure`]; `Unauthorized` if the client may not use every namespace and the request is one for
/// nodes and operators only, or if the request is about files and the client has no `+files`.
pub(super) async fn execute(
    conn: &Conn,
    verb: Verb,
    meta: &[u8],
    deadline: Tick,
) -> Result<Vec<u8>, Failure> {
    let scope = conn.scope();
    let is_of_files = matches!(verb, Verb::Meta | Verb::MetaWatch);
    let is_allowed = match verb {
        Verb::Routing | Verb::Suspect => true,
        _ if is_of_files => scope.is_some_and(|scope| scope.allows_files()),
        _ => scope.is_some_and(|scope| scope.is_unlimited()),
    };
    if !is_allowed {
        let why = if is_of_files {
            FILES_REFUSED
        } else {
            "this token is limited to some namespaces: nodes and operators need an unlimited token"
        };
        let text = format!("{}: {why}", verb.name());
        return Err(Failure::new(Status::Unauthorized, text));
    }
    if matches!(verb, Verb::Register | Verb::Heartbeat) {
        as_node(conn, verb)?;
    }
    conn.shared.cluster.member().answer(verb, meta, deadline).await
}
