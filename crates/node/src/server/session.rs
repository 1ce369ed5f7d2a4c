//! The receiving task of a connection: hello, then requests until it closes.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use millpond_env::{spawn, yield_now};
use millpond_types::wire::{
    Failure, FrameHeader, Hello, HelloReply, PROTOCOL_VERSION, Status, Verb, WireError,
};

use super::conn::Conn;
use super::files::receive_parts;
use super::frames::{Ended, Frames};
use super::peer::{receive as receive_peer, receive_slot};
use super::put::receive_put;
use super::shm::attach;
use super::verbs::{Request, execute, reply_on_socket};

/// Frames handled in a row before other connections of the core get a turn.
const TURN_FRAMES: u32 = 32;
/// Maximum meta of a hello: its token and names.
const HELLO_META_MAX: u32 = 8192;

/// Serves one connection until it closes.
pub(super) async fn serve(conn: Rc<Conn>, mut frames: Frames) {
    let ended = requests(&conn, &mut frames).await;
    match &ended {
        Err(Ended::Protocol(error)) => {
            conn.shared.service.metrics.protocol_errors.inc();
            tracing::debug!(peer = %conn.peer, "connection closed: {error}");
        }
        Err(ended) => tracing::trace!(peer = %conn.peer, "connection closed: {ended}"),
        Ok(()) => {}
    }
    conn.outbox.close();
}

async fn requests(conn: &Rc<Conn>, frames: &mut Frames) -> Result<(), Ended> {
    Box::pin(hello(conn, frames)).await?;
    let mut turn = 0;
    loop {
        turn += 1;
        if turn >= TURN_FRAMES && frames.has_header() {
            turn = 0;
            yield_now().await;
        }
        conn.wait_for_room().await;
        let header = next_header(conn, frames).await?;
        one_request(conn, frames, &header).await?;
    }
}

async fn next_header(conn: &Rc<Conn>, frames: &mut Frames) -> Result<FrameHeader, Ended> {
    let header = frames.header().await;
    if let Err(Ended::Protocol(error @ WireError::Version(_))) = &header {
        let blank = FrameHeader::request(Verb::Hello, 0, b"");
        let failure = Failure::new(Status::Unsupported, error.to_string());
        conn.begin(&blank, Verb::Hello).fail(&failure);
    }
    header
}

async fn hello(conn: &Rc<Conn>, frames: &mut Frames) -> Result<(), Ended> {
    let header = next_header(conn, frames).await?;
    let refuse = |failure: Failure| {
        conn.begin(&header, Verb::Hello).fail(&failure);
        Err(Ended::Refused)
    };
    // Before it has shown a credential, a client cannot make the server store more than this.
    if header.verb != Verb::Hello as u16 || header.payload_len > 0 {
        return refuse(Failure::new(
            Status::Unauthorized,
            "the first frame of a connection must be a hello".to_owned(),
        ));
    }
    if header.meta_len > HELLO_META_MAX {
        return refuse(Failure::bad("hello: the token is over 4096 bytes".to_owned()));
    }
    let decoded = Hello::decode(frames.meta(&header).await?);
    let hello = match decoded {
        Ok(hello) => hello,
        Err(error) => return refuse(error.into()),
    };
    let ours = u16::from(PROTOCOL_VERSION);
    if !(hello.version_min..=hello.version_max).contains(&ours) {
        return refuse(Failure::new(
            Status::Unsupported,
            format!(
                "the client supports protocol versions {} to {}, but this server supports {ours}: \
                 upgrade the older side",
                hello.version_min, hello.version_max
            ),
        ));
    }
    let shared = &conn.shared;
    let Some(scope) = shared.tokens.check(&hello.token) else {
        shared.service.metrics.unauthorized.inc();
        tracing::warn!(peer = %conn.peer, client = %hello.client.escape_debug(), "token rejected");
        let given = if hello.token.is_empty() { "no token was given" } else { "unknown token" };
        return refuse(Failure::new(
            Status::Unauthorized,
            format!("{given}: use a token of the server's token file (--token, or MILLPOND_TOKEN)"),
        ));
    };
    let identity = shared.cluster.identity();
    let reply = HelloReply {
        version: ours,
        server: env!("CARGO_PKG_VERSION").to_owned(),
        node: shared.node_id(),
        boot_id: shared.boot_id,
        socket_path: shared.socket_path.clone(),
        shm: scope.is_unlimited() && !shared.socket_path.is_empty(),
        in_flight_max: shared.limits.in_flight,
        cluster: identity.cluster,
        incarnation: identity.incarnation,
    };
    conn.admit(scope);
    conn.begin(&header, Verb::Hello).reply(Status::Ok, &reply.encode(), Vec::new());
    Ok(())
}

async fn one_request(
    conn: &Rc<Conn>,
    frames: &mut Frames,
    header: &FrameHeader,
) -> Result<(), Ended> {
    let Ok(verb) = Verb::try_from(header.verb) else {
        frames.meta(header).await?;
        frames.skip(header.payload_len as usize).await?;
        let failure = Failure::new(
            Status::Unsupported,
            format!("verb {} is unknown to this server: upgrade the older side", header.verb),
        );
        // Only the number of the verb is known; the client goes by the request id.
        conn.begin(header, Verb::Ping).fail(&failure);
        return Ok(());
    };
    match verb {
        // Boxed, as is hello: rare work of a connection must not count in the size of an idle one.
        Verb::Put => return Box::pin(receive_put(conn, frames, header)).await,
        Verb::ChunkWrite => return Box::pin(receive_parts(conn, frames, header)).await,
        Verb::Peer => return Box::pin(receive_peer(conn, frames, header)).await,
        Verb::SlotAsk | Verb::SlotAnswer => {
            return Box::pin(receive_slot(conn, frames, header, verb)).await;
        }
        Verb::ShmAttach if header.payload_len == 0 => {
            let meta = frames.meta(header).await?.to_vec();
            attach(conn, header, &meta);
            return Ok(());
        }
        _ => {}
    }
    let request = Request::decode(verb, frames.meta(header).await?);
    let mut guard = conn.begin(header, verb);
    if header.payload_len > 0 {
        frames.skip(header.payload_len as usize).await?;
        guard.fail(&Failure::bad(format!("{} carries no payload", verb.name())));
        return Ok(());
    }
    let request = match request {
        Ok(request) => request,
        Err(error) => {
            guard.fail(&error.into());
            return Ok(());
        }
    };
    run_now_or_spawn(async move {
        let answer = execute(&mut guard, request).await;
        reply_on_socket(guard, answer);
    })
    .await;
    Ok(())
}

/// Runs `work` to its end if it does not wait, else continues it as a task of its own.
///
/// Not an `async fn`: `work` would count in the size of every idle connection.
pub(super) fn run_now_or_spawn(
    work: impl Future<Output = ()> + 'static,
) -> impl Future<Output = ()> {
    let mut work: Pin<Box<dyn Future<Output = ()>>> = Box::pin(work);
    async move {
        let done = poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_ready())).await;
        if !done {
            spawn(work).detach();
        }
    }
}
