//! Same-host clients: requests and replies in rings, values in the buffer pool.
//!
//! The client is not trusted. It can read the pool (only credentials without a namespace scope get
//! it) and write its own arena, nothing else. Its input is copied once and then checked. The values
//! that it receives are held for a limited time, and it verifies their checksum after copying, so a
//! change under it is a miss for it and harmless for all others.
//!
//! A client may ask to be lent values (RFC 0027), and uses them in place. Lent values stay until it
//! returns them or closes its end of a pipe: it cannot check for a change and use them in one step,
//! so nothing else ends the loan, not even the end of the connection. Lent memory counts against
//! the bound of its connection.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io::PipeReader;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millpond_env::{
    EventFd, JoinHandle, RING_HEADER, RealClock, RingConsumer, RingProducer, RingWake, SharedBuf,
    ShmRegion, readable, sleep, spawn, yield_now,
};
use millpond_types::Tick;
use millpond_types::limits::PAGE_BYTES;
use millpond_types::wire::{
    ChunkWriteRequest, FLAG_LEND, FLAG_SHM, Failure, FrameHeader, GetReply, HEADER_BYTES,
    ItemStatus, PutRequest, ShmAttach, ShmAttachReply, ShmRelease, Status, StatusReply, Verb,
    WireError,
};

use super::conn::{Conn, InFlight, pages_of};
use super::core::Core;
use super::files::{self, Place};
use super::outbox::Outgoing;
use super::put::{PutProgress, buffer, check};
use super::session::run_now_or_spawn;
use super::verbs::{Answer, Request, execute};
use millpond_replica::GetOutcome;
use millpond_replica::local::PutItemPlan;

/// Bytes for records of one ring: two requests of 16,384 keys with leaders.
const RING_CAPACITY: u32 = 4 << 20;
/// Time for which a core polls for the next request of a client before it sleeps. With 10 µs direct
/// reads of 1 MiB are 4 % faster, and a client that copies values of 64 KiB, which takes about as
/// long, is a third slower at times.
const SPIN: Duration = Duration::from_micros(30);
/// Maximum number of times that a core sleeps without polling after polls without success; it
/// doubles after each such poll.
const SLEEPS_MAX: u32 = 64;
/// Interval of retries while the reply ring is full.
const RING_RETRY: Duration = Duration::from_micros(200);

/// The shared-memory side of a connection.
pub(super) struct ShmSide {
    region: ShmRegion,
    payload_offset: u64,
    replies: RefCell<RingProducer>,
    backlog: RefCell<VecDeque<Late>>,
    holds: RefCell<HashMap<u64, Hold>>,
    /// Wakes the task that serves the ring.
    event: EventFd,
    /// Ends when the client is gone, or no longer uses any lent value.
    lends: Option<PipeReader>,
    next_hold: Cell<u64>,
    task: RefCell<Option<JoinHandle<()>>>,
}

/// A reply that waits for room in the ring. Its request is under way until then, unless its values
/// are held.
struct Late {
    head: Vec<u8>,
    _guard: Option<InFlight>,
    since: Tick,
}

/// Values that a client is copying, or that it was lent.
struct Hold {
    values: Vec<SharedBuf>,
    guard: InFlight,
    since: Tick,
    is_lent: bool,
    is_noted: bool,
}

impl Drop for ShmSide {
    fn drop(&mut self) {
        if let Some(task) = self.task.borrow_mut().take() {
            task.abort();
        }
        let holds = self.holds.take().into_values();
        let split = |hold: Hold| (ManuallyDrop::new(hold.values), hold.guard);
        let (values, guards): (Vec<Lent>, Vec<InFlight>) =
            holds.filter(|hold| hold.is_lent).map(split).unzip();
        // A stopping server leaves them in place: their memory must not be used for anything else.
        if let (Some(pipe), Some(_), false) =
            (self.lends.take(), Core::current(), values.is_empty())
        {
            spawn(outlast(pipe, values, guards)).detach();
        }
    }
}

/// Values lent to a client with a connection that has ended; freed only on purpose.
type Lent = ManuallyDrop<Vec<SharedBuf>>;

/// Keeps lent values until the client no longer uses them.
async fn outlast(pipe: PipeReader, values: Vec<Lent>, guards: Vec<InFlight>) {
    if readable(pipe.as_fd()).await.is_ok() {
        values.into_iter().map(ManuallyDrop::into_inner).for_each(drop);
    }
    drop(guards);
}

/// Answers `ShmAttach`.
pub(super) fn attach(conn: &Rc<Conn>, header: &FrameHeader, meta: &[u8]) {
    let guard = conn.begin(header, Verb::ShmAttach);
    match try_attach(conn, meta) {
        Ok((reply, fds)) => {
            let head = guard.head(0, Status::Ok, &reply.encode(), 0);
            guard.answered(Status::Ok);
            let queued = RealClock::tick();
            conn.outbox.push(Outgoing {
                head,
                values: Vec::new(),
                fds,
                guard: Some(guard),
                queued,
            });
        }
        Err(failure) => guard.fail(&failure),
    }
}

fn may_attach(conn: &Conn) -> Result<(), Failure> {
    let refuse = |text: &str| Err(Failure::new(Status::Unsupported, text.to_owned()));
    if !conn.is_unix {
        return refuse("shared memory needs a connection over the server's Unix socket");
    }
    if !conn.scope().is_some_and(|scope| scope.is_unlimited()) {
        return refuse(
            "this token is limited to some namespaces, but shared memory gives access to all of \
             them",
        );
    }
    if conn.shm.borrow().is_some() {
        return refuse("this connection already has shared memory");
    }
    Ok(())
}

fn try_attach(conn: &Rc<Conn>, meta: &[u8]) -> Result<(ShmAttachReply, Vec<OwnedFd>), Failure> {
    let request = ShmAttach::decode(meta)?;
    may_attach(conn)?;
    let shared = &conn.shared;
    let clients = shared.shm_clients.fetch_add(1, Ordering::AcqRel);
    // Undone when the side is dropped, or if it is never made.
    let place = Seat(Rc::clone(conn));
    shared.service.metrics.shm_clients.add(1);
    if clients >= shared.limits.shm_clients {
        return Err(Failure::new(
            Status::Busy,
            format!("{clients} shared-memory clients are attached: raise limits.shm_clients"),
        ));
    }
    let ring_bytes = RING_HEADER + u64::from(RING_CAPACITY);
    let page = PAGE_BYTES as u64;
    let payload_offset = (2 * ring_bytes).next_multiple_of(page);
    let payload = request.payload_bytes.min(shared.limits.shm_arena.bytes());
    let arena_bytes = payload_offset + payload.next_multiple_of(page);
    let internal = |what: String| Failure::new(Status::Internal, format!("shared memory: {what}"));
    let len = usize::try_from(arena_bytes).map_err(|error| internal(error.to_string()))?;
    let region =
        ShmRegion::create("millpond-arena", len).map_err(|error| internal(error.to_string()))?;
    let consumer = RingConsumer::new(region.clone(), 0, RING_CAPACITY, RingWake::Futex)
        .map_err(|error| internal(error.to_string()))?;
    let producer = RingProducer::new(region.clone(), ring_bytes, RING_CAPACITY, RingWake::Futex)
        .map_err(|error| internal(error.to_string()))?;
    let event = EventFd::new().map_err(|error| internal(error.to_string()))?;
    let fds = [
        shared.service.pool.memfd_read_only(),
        region.fd().try_clone_to_owned(),
        event.as_fd().try_clone_to_owned(),
    ];
    let fds = fds.into_iter().collect::<Result<Vec<_>, _>>();
    let mut fds = fds.map_err(|error| internal(error.to_string()))?;
    let mut lends = None;
    if request.lends {
        let (ours, theirs) = std::io::pipe().map_err(|error| internal(error.to_string()))?;
        fds.push(theirs.into());
        lends = Some(ours);
    }
    let side = Rc::new(ShmSide {
        region,
        payload_offset,
        replies: RefCell::new(producer),
        backlog: RefCell::default(),
        holds: RefCell::default(),
        next_hold: Cell::new(1),
        event: EventFd::from_owned(
            event.as_fd().try_clone_to_owned().map_err(|error| internal(error.to_string()))?,
        ),
        lends,
        task: RefCell::new(None),
    });
    let task = spawn(serve_ring(place, Rc::downgrade(&side), consumer, event));
    *side.task.borrow_mut() = Some(task);
    *conn.shm.borrow_mut() = Some(side);
    let pool_bytes = shared.service.pool.capacity() as u64;
    Ok((ShmAttachReply { pool_bytes, arena_bytes, ring_bytes, payload_offset }, fds))
}

/// One of the places for shared-memory clients.
struct Seat(Rc<Conn>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.shared.shm_clients.fetch_sub(1, Ordering::AcqRel);
        self.0.shared.service.metrics.shm_clients.sub(1);
    }
}

async fn serve_ring(
    seat: Seat,
    side: std::rc::Weak<ShmSide>,
    mut requests: RingConsumer,
    event: EventFd,
) {
    let conn = Rc::clone(&seat.0);
    let mut record = Vec::new();
    let mut looks = Looks::default();
    let mut idle_since: Option<Tick> = None;
    loop {
        let Some(strong) = side.upgrade() else { return };
        match requests.try_pop(&mut record) {
            Ok(true) => {
                if idle_since.take().is_some() {
                    looks.found();
                }
                if let Err(error) = one_record(&conn, &strong, &record).await {
                    return hostile(&conn, &error);
                }
                continue;
            }
            Ok(false) => {}
            Err(error) => return hostile(&conn, &error),
        }
        drop(strong);
        if idle_since.is_some() || looks.may_look() {
            let since = *idle_since.get_or_insert_with(RealClock::tick);
            if RealClock::tick().since(since) < SPIN {
                yield_now().await;
                continue;
            }
            idle_since = None;
            looks.in_vain();
        }
        if requests.wait_record(&event).await.is_err() {
            return;
        }
    }
}

/// Decides whether polling for the next request is worth it before a core sleeps: a client that
/// sends again at once is answered without a wake-up, but polls without success take the processor
/// from others, often from the client itself.
#[derive(Debug, Default)]
struct Looks {
    /// Sleeps until the next poll, and the number set by the last unsuccessful poll.
    sleeps: u32,
    before: u32,
}

impl Looks {
    fn may_look(&mut self) -> bool {
        let may = self.sleeps == 0;
        self.sleeps = self.sleeps.saturating_sub(1);
        may
    }

    fn found(&mut self) {
        *self = Self::default();
    }

    fn in_vain(&mut self) {
        self.before = (2 * self.before).clamp(1, SLEEPS_MAX);
        self.sleeps = self.before;
    }
}

fn hostile(conn: &Conn, error: &dyn std::fmt::Display) {
    conn.shared.service.metrics.protocol_errors.inc();
    tracing::warn!(peer = %conn.peer, "shared-memory client dropped: {error}");
    conn.outbox.close();
    conn.hang_up();
}

/// Violation of the protocol by a record.
#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("more requests are in flight than hello allowed")]
    TooMany,
    #[error("a request for lent values, which the client did not ask for at attach")]
    LendsNot,
}

async fn one_record(conn: &Rc<Conn>, side: &Rc<ShmSide>, record: &[u8]) -> Result<(), RecordError> {
    let (head, meta) = record.split_first_chunk::<HEADER_BYTES>().ok_or(WireError::Truncated)?;
    let header = FrameHeader::decode(head)?;
    if meta.len() != header.meta_len as usize {
        return Err(WireError::Field("meta length").into());
    }
    header.check_meta(meta)?;
    let verb = Verb::try_from(header.verb)?;
    if verb == Verb::ShmRelease {
        let release = ShmRelease::decode(meta)?;
        side.holds.borrow_mut().remove(&release.hold);
        return Ok(());
    }
    if conn.in_flight() >= 2 * conn.shared.limits.in_flight {
        return Err(RecordError::TooMany);
    }
    let lend = header.flags & FLAG_LEND != 0;
    if lend && side.lends.is_none() {
        return Err(RecordError::LendsNot);
    }
    let guard = conn.begin(&header, verb);
    if verb == Verb::Put {
        put(conn, side, guard, &header, meta).await;
        return Ok(());
    }
    if verb == Verb::ChunkWrite {
        write_parts(conn, side, guard, &header, meta).await;
        return Ok(());
    }
    match Request::decode(verb, meta) {
        Ok(request) => {
            let side = Rc::clone(side);
            run_now_or_spawn(async move {
                let mut guard = guard;
                let answer = execute(&mut guard, request).await;
                reply(&side, guard, answer, lend);
            })
            .await;
        }
        Err(error) => refuse(side, guard, &error.into()),
    }
    Ok(())
}

fn reply(side: &Rc<ShmSide>, guard: InFlight, answer: Result<Answer, Failure>, lend: bool) {
    match answer {
        Ok(Answer::Meta(meta)) => send(side, guard, Status::Ok, &meta),
        Ok(Answer::Values(outcome)) => send_values(side, guard, outcome, lend),
        Err(failure) => refuse(side, guard, &failure),
    }
}

fn refuse(side: &Rc<ShmSide>, guard: InFlight, failure: &Failure) {
    send(side, guard, failure.status, &failure.encode());
}

fn send(side: &Rc<ShmSide>, guard: InFlight, status: Status, meta: &[u8]) {
    let max = side.replies.borrow().record_max() - HEADER_BYTES;
    if meta.len() > max {
        let text =
            format!("an answer of {} bytes does not fit shared memory: ask for less", meta.len());
        return refuse(side, guard, &Failure::new(Status::BadRequest, text));
    }
    guard.answered(status);
    let head = guard.head(0, status, meta, 0);
    push(side, head, Some(guard));
}

fn send_values(side: &Rc<ShmSide>, guard: InFlight, outcome: GetOutcome, is_lent: bool) {
    let GetOutcome { mut items, values } = outcome;
    let found = items.iter_mut().filter(|item| item.status == ItemStatus::Ok);
    let mut bytes = 0;
    for (item, value) in found.zip(&values) {
        item.pool_offset = value.pool_offset();
        bytes += value.len() as u64;
    }
    guard.conn().shared.service.metrics.bytes_out.add(bytes);
    let hold = if values.is_empty() { 0 } else { side.next_hold.get() };
    let meta = GetReply { hold, items }.encode();
    guard.answered(Status::Ok);
    let head = guard.head(FLAG_SHM, Status::Ok, &meta, 0);
    if hold == 0 {
        return push(side, head, Some(guard));
    }
    side.next_hold.set(hold + 1);
    let since = RealClock::tick();
    let kept = Hold { values, guard, since, is_lent, is_noted: false };
    side.holds.borrow_mut().insert(hold, kept);
    push(side, head, None);
}

/// Puts a reply in the ring, or in the backlog while the ring is full. The backlog is bounded by
/// the requests in flight.
fn push(side: &Rc<ShmSide>, head: Vec<u8>, guard: Option<InFlight>) {
    let waiting = !side.backlog.borrow().is_empty();
    if !waiting && matches!(side.replies.borrow_mut().try_push(&[&head]), Ok(true)) {
        return;
    }
    let late = Late { head, _guard: guard, since: RealClock::tick() };
    side.backlog.borrow_mut().push_back(late);
    if waiting {
        return;
    }
    let weak = Rc::downgrade(side);
    spawn(async move {
        loop {
            sleep(RING_RETRY).await;
            let Some(side) = weak.upgrade() else { return };
            loop {
                let Some(late) = side.backlog.borrow_mut().pop_front() else { return };
                if !matches!(side.replies.borrow_mut().try_push(&[&late.head]), Ok(true)) {
                    side.backlog.borrow_mut().push_front(late);
                    break;
                }
            }
        }
    })
    .detach();
}

async fn put(
    conn: &Rc<Conn>,
    side: &Rc<ShmSide>,
    mut guard: InFlight,
    header: &FrameHeader,
    meta: &[u8],
) {
    let checked = PutRequest::decode(meta).map_err(Failure::from).and_then(|request| {
        let bytes = u64::from(header.payload_len);
        side.check_place(request.arena_offset, bytes)?;
        check(conn, request, bytes)
    });
    let (namespace, request) = match checked {
        Ok(checked) => checked,
        Err(failure) => return refuse(side, guard, &failure),
    };
    let held = pages_of(request.items.iter().map(|item| item.len));
    if let Err(failure) = guard.reserve(held).await {
        return refuse(side, guard, &failure);
    }
    guard.work_starts();
    let service = &conn.shared.service;
    let started = RealClock::tick();
    let mut progress = PutProgress::new(request.items.len());
    let mut at = request.arena_offset;
    let mut turn = 0;
    for (index, item) in request.items.iter().enumerate() {
        let from = at;
        at += u64::from(item.len);
        let place = match service.plan_put(&namespace, &request, index) {
            PutItemPlan::Skip(status) => {
                progress.skip(status);
                continue;
            }
            PutItemPlan::Store(place) => place,
        };
        let Some(mut buf) = buffer(service, &guard, item.len as usize).await else {
            service.metrics.busy.inc();
            progress.skip(ItemStatus::Busy);
            continue;
        };
        if side.region.copy_out(from, &mut buf).is_err() {
            progress.skip(ItemStatus::Corrupt);
            continue;
        }
        turn += u64::from(item.len);
        let write = service.put_write(&request, index, place, buf.freeze());
        progress.write(service, &namespace, write);
        if turn > COPY_TURN_BYTES {
            turn = 0;
            yield_now().await;
        }
    }
    copied(side, (guard, progress), u64::from(header.payload_len), started).await;
}

/// Counts bytes copied out of an arena, and answers once they are stored.
async fn copied(
    side: &Rc<ShmSide>,
    (guard, progress): (InFlight, PutProgress),
    bytes: u64,
    started: Tick,
) {
    let metrics = &guard.conn().shared.service.metrics;
    metrics.bytes_in.add(bytes);
    metrics.shm_bytes_in.add(bytes);
    metrics.stages.copy.observe(RealClock::tick().since(started));
    let side = Rc::clone(side);
    run_now_or_spawn(async move {
        let items = progress.finish(&guard).await;
        if items.contains(&ItemStatus::Late) {
            guard.conn().shared.service.metrics.late.inc();
        }
        send(&side, guard, Status::Ok, &StatusReply { items }.encode());
    })
    .await;
}

/// Takes parts of chunks out of the arena and stores them.
async fn write_parts(
    conn: &Rc<Conn>,
    side: &Rc<ShmSide>,
    mut guard: InFlight,
    header: &FrameHeader,
    meta: &[u8],
) {
    let bytes = u64::from(header.payload_len);
    let checked = ChunkWriteRequest::decode(meta).map_err(Failure::from).and_then(|request| {
        if request.arena.len() != request.parts.len() {
            let text = "places in the arena: every part needs a place in shared memory";
            return Err(Failure::bad(text.to_owned()));
        }
        for (part, at) in request.parts.iter().zip(&request.arena) {
            side.check_place(*at, u64::from(part.len))?;
        }
        Ok((files::check_write(conn, &request, bytes)?, request))
    });
    let (host, request) = match checked {
        Ok(checked) => checked,
        Err(failure) => return refuse(side, guard, &failure),
    };
    let held = pages_of(request.parts.iter().map(|part| part.len));
    if let Err(failure) = guard.reserve(held).await {
        return refuse(side, guard, &failure);
    }
    guard.work_starts();
    let started = RealClock::tick();
    let mut progress = PutProgress::new(request.parts.len());
    let mut turn = 0;
    for (index, (part, at)) in request.parts.iter().zip(&request.arena).enumerate() {
        let mut buf = match files::place_part((conn, &host), &guard, part).await {
            Place::Room(buf) => buf,
            Place::Skip(status) => {
                progress.skip(status);
                continue;
            }
        };
        if side.region.copy_out(*at, &mut buf).is_err() {
            progress.skip(ItemStatus::Corrupt);
            continue;
        }
        files::start_part(&mut progress, &host, (&request, index), buf);
        turn += u64::from(part.len);
        if turn > COPY_TURN_BYTES {
            turn = 0;
            yield_now().await;
        }
    }
    copied(side, (guard, progress), bytes, started).await;
}

/// Bytes copied before other connections of the core get a turn.
const COPY_TURN_BYTES: u64 = 4 << 20;

impl ShmSide {
    /// Checks that bytes lie in the client's part of the arena.
    fn check_place(&self, start: u64, bytes: u64) -> Result<(), Failure> {
        let end = start.saturating_add(bytes);
        if bytes > 0 && (start < self.payload_offset || end > self.region.len() as u64) {
            let text = "arena offset: the payload lies outside the arena";
            return Err(Failure::bad(text.to_owned()));
        }
        Ok(())
    }

    /// Time since which a reply waits for room in the ring: a client that takes none is dropped.
    pub(super) fn stuck_since(&self) -> Option<Tick> {
        self.backlog.borrow().front().map(|late| late.since)
    }

    /// Checks whether the client has returned something: it wakes nobody for that.
    pub(super) fn look(&self) {
        if !self.holds.borrow().is_empty() {
            self.event.notify();
        }
    }

    /// Takes back values that the client has kept for longer than `limit`, except lent ones.
    pub(super) fn expire(&self, limit: Duration) -> Overdue {
        let now = RealClock::tick();
        let mut holds = self.holds.borrow_mut();
        let (before, mut kept) = (holds.len(), 0);
        holds.retain(|_, hold| {
            let is_overdue = now.since(hold.since) >= limit;
            if is_overdue && hold.is_lent && !std::mem::replace(&mut hold.is_noted, true) {
                kept += 1;
            }
            hold.is_lent || !is_overdue
        });
        Overdue { ended: before - holds.len(), kept }
    }
}

/// Holds that a client keeps for longer than allowed.
pub(super) struct Overdue {
    /// Those that were taken back.
    pub(super) ended: usize,
    /// Those with lent values, which stay; each is counted once.
    pub(super) kept: usize,
}

#[cfg(test)]
mod tests {
    use super::{Looks, SLEEPS_MAX};

    #[test]
    fn looks_in_vain_become_rare_and_one_that_finds_makes_them_frequent() {
        let mut looks = Looks::default();
        let mut sleeps = Vec::new();
        for _ in 0..9 {
            let mut count = 0;
            while !looks.may_look() {
                count += 1;
            }
            looks.in_vain();
            sleeps.push(count);
        }
        assert_eq!(sleeps, [0, 1, 2, 4, 8, 16, 32, SLEEPS_MAX, SLEEPS_MAX]);
        looks.found();
        assert!(looks.may_look() && looks.may_look());
    }
}
