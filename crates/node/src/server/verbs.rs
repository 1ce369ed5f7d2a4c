//! From a request's bytes to its reply, for every verb except those with payload.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millpond_env::{RealClock, SharedBuf, sleep};
use millpond_types::limits::LEASE_MS_MAX;
use millpond_types::wire::{
    Failure, GetReply, GetRequest, KeysRequest, ListRequest, MatchReply, MatchRequest,
    NamespaceOpen, NamespaceRef, NamespaceSet, NamespacesReply, StatsRequest, Status, StatusReply,
    Verb, WireError,
};
use millpond_types::{GroupId, Tick, wire::ItemStatus};

use super::conn::{Conn, InFlight};
use super::{control, files};
use millpond_replica::local::{NO_DISKS, Namespace, Service};
use millpond_replica::{GetOutcome, Host};

/// Time that a node waits for the drop of a namespace to reach it, and the interval of looks.
const HEARD_MAX: Duration = Duration::from_secs(2);
const HEARD_LOOK: Duration = Duration::from_millis(2);

/// A decoded request without payload.
#[derive(Debug)]
pub(super) enum Request {
    /// Is answered at once, with the same bytes: operators measure the round trip with it.
    Ping(Vec<u8>),
    /// Opens a namespace.
    Open(NamespaceOpen),
    /// Lists namespaces.
    Namespaces,
    /// Drops a namespace.
    Drop(NamespaceRef),
    /// Changes options of a namespace.
    Set(NamespaceSet),
    /// Reads values.
    Get(GetRequest),
    /// Requests with keys only.
    Keys(Verb, KeysRequest),
    /// Counts and leases a prefix.
    Match(MatchRequest),
    /// Lists keys.
    List(ListRequest),
    /// Reads counters.
    Stats(StatsRequest),
    /// A request about the cluster, with its meta.
    Control(Verb, Vec<u8>),
    /// A request about chunks of files.
    Files(files::Request),
}

impl Request {
    /// Decodes the meta of a request.
    ///
    /// # Errors
    /// [`WireError`] naming the field; `verb` for a verb of another kind.
    pub(super) fn decode(verb: Verb, meta: &[u8]) -> Result<Self, WireError> {
        let nothing = |request| {
            if meta.is_empty() { Ok(request) } else { Err(WireError::Trailing(meta.len())) }
        };
        match verb {
            Verb::Ping => Ok(Self::Ping(meta.to_vec())),
            Verb::NamespaceList => nothing(Self::Namespaces),
            Verb::NamespaceOpen => NamespaceOpen::decode(meta).map(Self::Open),
            Verb::NamespaceDrop => NamespaceRef::decode(meta).map(Self::Drop),
            Verb::NamespaceSet => NamespaceSet::decode(meta).map(Self::Set),
            Verb::Get => GetRequest::decode(meta).map(Self::Get),
            Verb::Contains | Verb::Touch | Verb::Pin | Verb::Unpin | Verb::Delete => {
                KeysRequest::decode(meta).map(|keys| Self::Keys(verb, keys))
            }
            Verb::MatchPrefix => MatchRequest::decode(meta).map(Self::Match),
            Verb::List => ListRequest::decode(meta).map(Self::List),
            Verb::Stats => StatsRequest::decode(meta).map(Self::Stats),
            Verb::Routing
            | Verb::Suspect
            | Verb::Register
            | Verb::Heartbeat
            | Verb::NamespaceTable
            | Verb::Admin
            | Verb::Meta
            | Verb::MetaWatch => Ok(Self::Control(verb, meta.to_vec())),
            Verb::ChunkRead | Verb::ChunkUpdate | Verb::ChunkList | Verb::ChunkStat => {
                files::Request::decode(verb, meta).map(Self::Files)
            }
            Verb::Hello
            | Verb::Put
            | Verb::ChunkWrite
            | Verb::ShmAttach
            | Verb::ShmRelease
            | Verb::Peer
            | Verb::SlotAsk
            | Verb::SlotAnswer => Err(WireError::Field("verb (out of place)")),
        }
    }
}

/// Answer to a request.
#[derive(Debug)]
pub(super) enum Answer {
    /// A meta.
    Meta(Vec<u8>),
    /// Values; the transport decides about their transfer.
    Values(GetOutcome),
}

/// Carries out the request.
///
/// # Errors
/// [`Failure`] for the whole request.
pub(super) async fn execute(guard: &mut InFlight, request: Request) -> Result<Answer, Failure> {
    let conn = Rc::clone(guard.conn());
    let service = &conn.shared.service;
    if service.is_stopping() {
        let text = "the server is stopping: retry in a moment, or use another server";
        return Err(Failure {
            retry_after_ms: 500,
            ..Failure::new(Status::ShuttingDown, text.to_owned())
        });
    }
    guard.work_starts();
    if guard.is_late() {
        return Err(late());
    }
    Ok(Answer::Meta(match request {
        Request::Ping(echo) => echo,
        Request::Get(request) => return get(guard, &conn, request).await.map(Answer::Values),
        Request::Files(request) => return files::execute(guard, &conn, request).await,
        Request::Open(open) => open_namespace(&conn, open, guard.deadline).await?,
        Request::Namespaces => namespaces(&conn),
        Request::Drop(namespace) => drop_namespace(&conn, namespace, guard.deadline).await?,
        Request::Set(set) => set_namespace(&conn, set, guard.deadline).await?,
        Request::Control(verb, meta) => {
            control::execute(&conn, verb, &meta, guard.deadline).await?
        }
        Request::Keys(verb, request) => keys(&conn, verb, &request).await?,
        Request::Match(request) => {
            let namespace = conn.namespace_of_keys(request.keys.namespace)?;
            matched(host(service)?, &namespace, &request).await
        }
        Request::List(request) => {
            conn.namespace_of_keys(request.namespace)?;
            host(service)?.list(&request).await.encode()
        }
        Request::Stats(request) if request.namespace == GroupId::SYSTEM => {
            let mut reply = service.server_stats();
            reply.values.extend(conn.shared.cluster.member().numbers());
            reply.encode()
        }
        Request::Stats(request) => {
            service.namespace_stats(&*conn.namespace(request.namespace)?).encode()
        }
    }))
}

async fn open_namespace(
    conn: &Conn,
    open: NamespaceOpen,
    deadline: Tick,
) -> Result<Vec<u8>, Failure> {
    allow_name(conn, &open.name)?;
    let opened = conn.shared.cluster.member().open_namespace(open, deadline).await?;
    Ok(NamespacesReply { namespaces: vec![opened] }.encode())
}

async fn drop_namespace(
    conn: &Conn,
    namespace: NamespaceRef,
    deadline: Tick,
) -> Result<Vec<u8>, Failure> {
    allow_name(conn, &namespace.name)?;
    let namespaces = &conn.shared.service.namespaces;
    let dropped = namespaces.by_name(&namespace.name).map(|known| known.info.id);
    conn.shared.cluster.member().drop_namespace(namespace.name, deadline).await?;
    // The next request to this node does not find it any more.
    let until = deadline.min(RealClock::tick().plus(HEARD_MAX));
    while dropped.is_some_and(|id| namespaces.by_id(id).is_some()) && RealClock::tick() < until {
        sleep(HEARD_LOOK).await;
    }
    Ok(Vec::new())
}

async fn set_namespace(conn: &Conn, set: NamespaceSet, deadline: Tick) -> Result<Vec<u8>, Failure> {
    allow_name(conn, &set.name)?;
    let changed = conn.shared.cluster.member().set_namespace(set, deadline).await?;
    Ok(NamespacesReply { namespaces: vec![changed] }.encode())
}

/// The request was not started before its deadline.
pub(super) fn late() -> Failure {
    let text =
        "the deadline passed before the work was done: raise the deadline, or send less at once";
    Failure::new(Status::DeadlineExceeded, text.to_owned())
}

fn allow_name(conn: &Conn, name: &str) -> Result<(), Failure> {
    if conn.scope().is_some_and(|scope| scope.allows(name)) {
        return Ok(());
    }
    Err(Failure::new(
        Status::Unauthorized,
        format!(
            "this token cannot use namespace '{}': add the name to its line in the server's token \
             file",
            name.escape_debug()
        ),
    ))
}

fn namespaces(conn: &Conn) -> Vec<u8> {
    let allowed = |name: &str| conn.scope().is_some_and(|scope| scope.allows(name));
    let all = conn.shared.service.namespaces.all();
    let namespaces =
        all.iter().filter(|ns| allowed(&ns.info.name)).map(|ns| ns.info.clone()).collect();
    NamespacesReply { namespaces }.encode()
}

async fn keys(conn: &Conn, verb: Verb, request: &KeysRequest) -> Result<Vec<u8>, Failure> {
    let service = &conn.shared.service;
    let namespace = conn.namespace_of_keys(request.namespace)?;
    let items = keys_in_chains(host(service)?, &namespace, (verb, request)).await;
    Ok(StatusReply { items }.encode())
}

/// The chain replicas of this process.
fn host(service: &Service) -> Result<&Arc<Host>, Failure> {
    service.host().ok_or_else(|| Failure::new(Status::Unsupported, NO_DISKS.to_owned()))
}

/// The verbs with keys only.
async fn keys_in_chains(
    host: &Arc<Host>,
    namespace: &Namespace,
    (verb, request): (Verb, &KeysRequest),
) -> Vec<ItemStatus> {
    let options = &namespace.info.options;
    let run_blocks = options.run_blocks;
    match verb {
        Verb::Delete => host.delete_keys(request, options).await,
        Verb::Pin | Verb::Unpin => {
            let on = verb == Verb::Pin;
            let pin = async |host: &Host, disk, id| host.pin(disk, id, on).await;
            host.on_copies(request, run_blocks, pin).await
        }
        Verb::Touch => {
            let touch = async |host: &Host, disk, id| host.touch(disk, id);
            host.on_keys(request, run_blocks, touch).await
        }
        _ => host.on_keys(request, run_blocks, async |_, _, _| ItemStatus::Ok).await,
    }
}

/// Matches a prompt's prefix; leases count at the head.
async fn matched(host: &Arc<Host>, namespace: &Namespace, request: &MatchRequest) -> Vec<u8> {
    let lease_ms = request.lease_ms.min(LEASE_MS_MAX);
    let until = RealClock::tick().plus(Duration::from_millis(u64::from(lease_ms)));
    let until = (lease_ms > 0).then_some(until);
    let lease = async |host: &Host, disk, id| host.lease(disk, id, until);
    let run_blocks = namespace.info.options.run_blocks;
    let items = host.on_copies(&request.keys, run_blocks, lease).await;
    if request.each {
        return StatusReply { items }.encode();
    }
    let present = |item: &&ItemStatus| matches!(item, ItemStatus::Ok | ItemStatus::Exists);
    let leased = items.iter().take_while(|item| **item == ItemStatus::Ok).count();
    let matched = items.iter().take_while(present).count();
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    MatchReply { matched: count(matched), leased: count(leased) }.encode()
}

async fn get(
    guard: &mut InFlight,
    conn: &Conn,
    request: GetRequest,
) -> Result<GetOutcome, Failure> {
    let service: &Arc<_> = &conn.shared.service;
    let namespace = conn.namespace_of_keys(request.namespace)?;
    let host = host(service)?;
    let run_blocks = namespace.info.options.run_blocks;
    guard.reserve(host.get_bytes(&request, run_blocks)).await?;
    let outcome = host.get(&request, run_blocks, (guard.deadline, &service.metrics)).await;
    namespace.count(&outcome);
    Ok(outcome)
}

/// Answers on the socket.
pub(super) fn reply_on_socket(guard: InFlight, answer: Result<Answer, Failure>) {
    match answer {
        Ok(Answer::Meta(meta)) => guard.reply(Status::Ok, &meta, Vec::new()),
        Ok(Answer::Values(outcome)) => {
            let values: Vec<SharedBuf> = outcome.values;
            let meta = GetReply { hold: 0, items: outcome.items }.encode();
            guard.reply(Status::Ok, &meta, values);
        }
        Err(failure) => guard.fail(&failure),
    }
}
