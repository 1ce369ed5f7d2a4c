//! The verbs of files: parts of chunks are read, written, cut and removed over chains.

use std::rc::Rc;
use std::sync::Arc;

use millpond_env::{Buf, RealClock};
use millpond_types::wire::{
    ChunkListRequest, ChunkReadRequest, ChunkStatReply, ChunkStatRequest, ChunkUpdateRequest,
    ChunkWriteRequest, Failure, FrameHeader, ItemStatus, Status, StatusReply, Verb, WireError,
    WritePart,
};

use super::conn::{Conn, InFlight, pages_of};
use super::frames::{Ended, Frames};
use super::put::{PutProgress, acknowledge, buffer, check_payload};
use super::session::run_now_or_spawn;
use super::verbs::Answer;
use millpond_replica::local::NO_DISKS;
use millpond_replica::{FileUpdate, Host};

/// A decoded request about chunks of files, without payload.
#[derive(Debug)]
pub(super) enum Request {
    /// Read of parts.
    Read(ChunkReadRequest),
    /// Cuts and removals.
    Update(ChunkUpdateRequest),
    /// List of chunks.
    List(ChunkListRequest),
    /// Lengths and versions of chunks.
    Stat(ChunkStatRequest),
}

impl Request {
    /// Decodes the meta of a request.
    ///
    /// # Errors
    /// [`WireError`] naming the field; `verb` for a verb of another kind.
    pub(super) fn decode(verb: Verb, meta: &[u8]) -> Result<Self, WireError> {
        match verb {
            Verb::ChunkRead => ChunkReadRequest::decode(meta).map(Self::Read),
            Verb::ChunkUpdate => ChunkUpdateRequest::decode(meta).map(Self::Update),
            Verb::ChunkList => ChunkListRequest::decode(meta).map(Self::List),
            Verb::ChunkStat => ChunkStatRequest::decode(meta).map(Self::Stat),
            _ => Err(WireError::Field("verb (out of place)")),
        }
    }
}

/// Answer to a token that may not use files.
pub(super) const FILES_REFUSED: &str =
    "this token cannot use files: add the word +files to its line in the server's token file";

/// Returns the host of chunks of files if this connection may use files.
fn allowed(conn: &Conn) -> Result<Arc<Host>, Failure> {
    if !conn.scope().is_some_and(|scope| scope.allows_files()) {
        return Err(Failure::new(Status::Unauthorized, FILES_REFUSED.to_owned()));
    }
    conn.shared
        .service
        .host()
        .map(Arc::clone)
        .ok_or_else(|| Failure::new(Status::Unsupported, NO_DISKS.to_owned()))
}

/// Carries out the request.
///
/// # Errors
/// [`Failure`] for the whole request.
pub(super) async fn execute(
    guard: &mut InFlight,
    conn: &Conn,
    request: Request,
) -> Result<Answer, Failure> {
    let host = allowed(conn)?;
    Ok(match request {
        Request::Read(request) => {
            guard.reserve(request.payload_bytes()).await?;
            Answer::Values(host.read_files(&request, guard.deadline).await)
        }
        Request::Update(request) => {
            let items = host.cut_files(&request).await;
            Answer::Meta(StatusReply { items }.encode())
        }
        Request::List(request) => Answer::Meta(host.list_files(&request).await.encode()),
        Request::Stat(request) => {
            let items = host.stat_files(&request).await;
            Answer::Meta(ChunkStatReply { items }.encode())
        }
    })
}

/// Checks that parts of chunks may be written here; returns the replicas that take them.
///
/// # Errors
/// [`Failure`] for the whole request.
pub(super) fn check_write(
    conn: &Conn,
    request: &ChunkWriteRequest,
    payload_len: u64,
) -> Result<Arc<Host>, Failure> {
    let host = allowed(conn)?;
    check_payload(conn, request.payload_bytes(), payload_len)?;
    Ok(host)
}

/// Destination of the bytes of a part.
pub(super) enum Place {
    /// Into this buffer.
    Room(Buf),
    /// Nowhere: this is the answer.
    Skip(ItemStatus),
}

/// Allocates room for a part, waiting until the deadline.
pub(super) async fn place_part(
    (conn, host): (&Conn, &Host),
    guard: &InFlight,
    part: &WritePart,
) -> Place {
    let service = &conn.shared.service;
    if let Err(status) = host.takes_file(part.at.chain) {
        return Place::Skip(status);
    }
    let Some(buf) = buffer(service, guard, part.len as usize).await else {
        service.metrics.busy.inc();
        return Place::Skip(ItemStatus::Busy);
    };
    Place::Room(buf)
}

/// Starts to store a part with all bytes received.
pub(super) fn start_part(
    progress: &mut PutProgress,
    host: &Arc<Host>,
    (request, index): (&ChunkWriteRequest, usize),
    buf: Buf,
) {
    let part = &request.parts[index];
    let tag = request.tags.as_ref().map(|tags| (tags.client, tags.items[index]));
    let update = FileUpdate::new(part.at, tag, request.ack);
    let bytes = (buf.freeze(), part.crc);
    progress.start(Arc::clone(host).write_file(update, part.offset, bytes));
}

/// Receives parts of chunks and stores them; the reply follows once they are acknowledged.
///
/// # Errors
/// [`Ended`] if the connection ends first.
pub(super) async fn receive_parts(
    conn: &Rc<Conn>,
    frames: &mut Frames,
    header: &FrameHeader,
) -> Result<(), Ended> {
    let decoded = ChunkWriteRequest::decode(frames.meta(header).await?);
    let mut guard = conn.begin(header, Verb::ChunkWrite);
    let payload_len = header.payload_len as usize;
    let checked = decoded.map_err(Failure::from).and_then(|request| {
        if !request.arena.is_empty() {
            let text = "places in an arena: only requests through shared memory can have them";
            return Err(Failure::bad(text.to_owned()));
        }
        let host = check_write(conn, &request, payload_len as u64)?;
        Ok((host, request))
    });
    let reserved = match checked {
        Ok(ok) => {
            let bytes = pages_of(ok.1.parts.iter().map(|part| part.len));
            guard.reserve(bytes).await.map(|()| ok)
        }
        Err(failure) => Err(failure),
    };
    conn.receiving_since.set(Some(guard.received));
    let received = match reserved {
        Ok((host, request)) => {
            guard.work_starts();
            receive_all(conn, frames, (&guard, &host), &request).await.map(Ok)
        }
        Err(failure) => frames.skip(payload_len).await.map(|()| Err(failure)),
    };
    conn.receiving_since.set(None);
    let metrics = &conn.shared.service.metrics;
    metrics.bytes_in.add(payload_len as u64);
    metrics.stages.receive.observe(RealClock::tick().since(guard.received));
    match received? {
        Ok(progress) => run_now_or_spawn(async move { acknowledge(guard, progress).await }).await,
        Err(failure) => guard.fail(&failure),
    }
    Ok(())
}

async fn receive_all(
    conn: &Conn,
    frames: &mut Frames,
    (guard, host): (&InFlight, &Arc<Host>),
    request: &ChunkWriteRequest,
) -> Result<PutProgress, Ended> {
    let mut progress = PutProgress::new(request.parts.len());
    let mut follows = usize::try_from(request.payload_bytes()).unwrap_or(usize::MAX);
    for (index, part) in request.parts.iter().enumerate() {
        let len = part.len as usize;
        follows -= len;
        match place_part((conn, host), guard, part).await {
            Place::Room(buf) => {
                let buf = frames.payload(buf, follows).await?;
                start_part(&mut progress, host, (request, index), buf);
            }
            Place::Skip(status) => {
                frames.skip(len).await?;
                progress.skip(status);
            }
        }
    }
    Ok(progress)
}
