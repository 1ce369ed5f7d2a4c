//! One connection: hello, then requests in a pipeline. One call at a time owns it.

use std::io;
use std::time::Duration;

use millpond_env::{RealClock, Rng, ShmMemory, ShmRegion};
use millpond_types::wire::{
    Asked, ErrorReply, FLAG_LEND, FLAG_SHM, FrameHeader, GetReply, HEADER_BYTES, Hello, HelloReply,
    PROTOCOL_VERSION, ShmAttach, ShmAttachReply, Status, StatusReply, Verb,
};
use millpond_types::{Crc32c, Tick, Uuid128};

use crate::call::{Job, Reads, Value};
use crate::error::ClientError;
use crate::options::TransportInUse;
use crate::shm::ShmLink;
use crate::stream::{FrameStream, StreamError, Wire, ahead_of_get, decode_hello};

/// Requests of one call in flight at once: enough that the server always has the next one.
const WINDOW: usize = 4;
/// Difference between the caller's deadline and the one sent to the server, so that the answer
/// arrives in time.
const SERVER_MARGIN: Duration = Duration::from_millis(20);

/// Description of the server from its hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// Version of the server's build.
    pub version: String,
    /// Identity of its node.
    pub node: Uuid128,
    /// Transport of this connection.
    pub transport: TransportInUse,
    /// Path of its Unix socket; empty when there is none.
    pub socket_path: String,
}

#[derive(Debug)]
pub(crate) struct Connection {
    stream: FrameStream,
    shm: Option<ShmLink>,
    pub(crate) hello: HelloReply,
    pub(crate) transport: TransportInUse,
    address: String,
    next_id: u64,
    /// Source of the random numbers of requests.
    proofs: Rng,
    meta: Vec<u8>,
    /// The wait to request from the server; the call's deadline when none.
    told: Option<Duration>,
    /// Set while a call runs. It stays set if the call fails, and the connection is then unusable.
    pub(crate) broken: bool,
    pub(crate) idle_since: Tick,
}

/// End of a call, and the time it was given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    start: Tick,
    pub(crate) at: Tick,
    pub(crate) given: Duration,
}

impl Deadline {
    pub(crate) fn after(given: Duration) -> Self {
        let start = RealClock::tick();
        Self { start, at: start.plus(given), given }
    }

    /// The deadline of a step of the same call that ends after `limit`.
    pub(crate) fn within(self, limit: Duration) -> Self {
        Self { at: self.at.min(RealClock::tick().plus(limit)), ..self }
    }

    /// Running time of the call.
    pub(crate) fn since_start(self, now: Tick) -> Duration {
        now.since(self.start)
    }

    /// Deadline in milliseconds to send to the server.
    fn for_server(self) -> u32 {
        let left = self.at.since(RealClock::tick());
        let margin = SERVER_MARGIN.min(left / 10);
        u32::try_from(left.saturating_sub(margin).as_millis()).unwrap_or(u32::MAX).max(1)
    }
}

/// Path of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    Ring,
    Stream,
}

/// The requests of one call on one connection: those sent, and those answered.
#[derive(Debug)]
pub(crate) struct Flight {
    /// The jobs in sending order: first those through the rings, then the others.
    order: Vec<usize>,
    /// Number of jobs through the rings.
    ring: usize,
    first_id: u64,
    sent: usize,
    done: usize,
    /// The requests of jobs that wait for a reply.
    waits: Vec<Option<Asked>>,
}

impl Flight {
    pub(crate) const fn is_done(&self) -> bool {
        self.done == self.order.len()
    }

    /// Most bytes to receive together with the header of the next reply.
    fn ahead(&self, jobs: &[Job<'_, '_>]) -> usize {
        let next = self.waits[..self.sent].iter().position(Option::is_some);
        next.map_or(0, |at| ahead_of(&jobs[self.order[at]]))
    }

    const fn path(&self) -> Path {
        if self.done < self.ring { Path::Ring } else { Path::Stream }
    }

    /// End of the jobs on the path in use.
    const fn end(&self) -> usize {
        if self.done < self.ring { self.ring } else { self.order.len() }
    }

    /// The unanswered jobs, sent or not.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = usize> + '_ {
        let open = |at: &usize| *at >= self.sent || self.waits[*at].is_some();
        (0..self.order.len()).filter(open).map(|at| self.order[at])
    }
}

/// The job of a reply, and the refusal if it was refused.
pub(crate) struct Answered {
    pub(crate) job: usize,
    pub(crate) refusal: Option<ClientError>,
}

impl Connection {
    /// Sends hello on a new stream.
    pub(crate) fn open(
        wire: Wire,
        transport: TransportInUse,
        (address, token): (String, &str),
        deadline: Deadline,
    ) -> Result<Self, ClientError> {
        let mut stream = FrameStream::new(wire);
        let hello = Hello {
            version_min: u16::from(PROTOCOL_VERSION),
            version_max: u16::from(PROTOCOL_VERSION),
            client: concat!("millpond-client ", env!("CARGO_PKG_VERSION")).to_owned(),
            token: token.as_bytes().to_vec(),
        };
        let hello = hello.encode();
        let mut proofs = Rng::from_os()
            .map_err(|error| failed(&address, StreamError::Io(error), deadline, "connecting"))?;
        let request = FrameHeader {
            deadline_or_status: deadline.for_server(),
            proof: proofs.next_u32(),
            ..FrameHeader::request(Verb::Hello, 0, &hello)
        };
        let head = request.frame(&hello);
        let answer = stream.send(&head, &[], deadline.at).map_err(StreamError::Io).and_then(|()| {
            let mut meta = Vec::new();
            let header = stream.recv_head(&mut meta, 0, deadline.at)?;
            header.check_answers(request.asked())?;
            Ok((header, meta))
        });
        let (header, meta) =
            answer.map_err(|error| failed(&address, error, deadline, "connecting"))?;
        accept(&address, &header, &meta)?;
        let hello =
            decode_hello(&meta).map_err(|error| failed(&address, error, deadline, "connecting"))?;
        Ok(Self {
            stream,
            shm: None,
            hello,
            transport,
            address,
            next_id: 1,
            proofs,
            meta,
            told: None,
            broken: false,
            idle_since: RealClock::tick(),
        })
    }

    /// Sets up shared memory on a Unix socket.
    pub(crate) fn attach(
        &mut self,
        attach: ShmAttach,
        spin: Duration,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let address = self.address.clone();
        self.try_attach(attach, spin, deadline)
            .map_err(|error| failed(&address, error, deadline, "attaching shared memory"))?
    }

    fn try_attach(
        &mut self,
        attach: ShmAttach,
        spin: Duration,
        deadline: Deadline,
    ) -> Result<Result<(), ClientError>, StreamError> {
        let meta = attach.encode();
        let id = self.id();
        let request = FrameHeader {
            deadline_or_status: deadline.for_server(),
            proof: self.proofs.next_u32(),
            ..FrameHeader::request(Verb::ShmAttach, id, &meta)
        };
        self.stream.send(&request.frame(&meta), &[], deadline.at)?;
        // The descriptors arrive with the first byte; the stream's buffer is empty here.
        let (mut frame, mut fds) = (Vec::new(), Vec::new());
        let header = loop {
            let mut piece = [0; 4096];
            let (got, more) = self.stream.stream().recv_fds(&mut piece, deadline.at)?;
            if got == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            frame.extend_from_slice(&piece[..got]);
            fds.extend(more);
            if let Some((head, rest)) = frame.split_first_chunk::<HEADER_BYTES>() {
                let header = FrameHeader::decode(head)?;
                if rest.len() >= header.meta_len as usize {
                    break header;
                }
            }
        };
        let meta = &frame[HEADER_BYTES..];
        header.check_meta(meta)?;
        header.check_answers(request.asked())?;
        if let Err(error) = accept(&self.address, &header, meta) {
            return Ok(Err(error));
        }
        self.shm = Some(ShmLink::new(&ShmAttachReply::decode(meta)?, fds, spin)?);
        self.transport = TransportInUse::Shm;
        Ok(Ok(()))
    }

    /// Lends `bytes` of the arena to the caller as memory; none when the arena is smaller.
    pub(crate) fn lend(
        &mut self,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<Option<(ShmRegion, ShmMemory)>, ClientError> {
        let Some(shm) = &mut self.shm else { return Ok(None) };
        let lent = shm.lend(bytes);
        lent.map_err(|error| self.failed(error, deadline))
    }

    /// Whether an idle connection is still usable.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.broken && self.stream.is_quiet()
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Runs all jobs in a pipeline. A refusal of one request does not stop the others; the first
    /// refusal is returned at the end.
    pub(crate) fn run(
        &mut self,
        jobs: &mut [Job<'_, '_>],
        reads: &mut Reads<'_, '_>,
        deadline: Deadline,
    ) -> Result<(), ClientError> {
        let mut flight = self.begin(jobs);
        let mut refusal = None;
        while !flight.is_done() {
            let answered = self.push(&mut flight, jobs, deadline);
            let answered = answered.and_then(|()| self.pull(&mut flight, jobs, reads, deadline));
            let answered = answered.map_err(|error| self.failed(error, deadline))?;
            refusal = refusal.or(answered.refusal);
        }
        self.end();
        refusal.map_or(Ok(()), Err)
    }

    /// Begins a call. Until the call ends, the connection cannot be used otherwise.
    pub(crate) fn begin(&mut self, jobs: &[Job<'_, '_>]) -> Flight {
        self.broken = true;
        let (mut order, stream): (Vec<usize>, Vec<usize>) =
            (0..jobs.len()).partition(|job| self.path_of(&jobs[*job]) == Path::Ring);
        let ring = order.len();
        order.extend(stream);
        let waits = vec![None; order.len()];
        Flight { order, ring, first_id: self.next_id, sent: 0, done: 0, waits }
    }

    /// Ends a call with all requests answered.
    pub(crate) fn end(&mut self) {
        self.broken = false;
        self.idle_since = RealClock::tick();
    }

    /// Converts an error of the stream into the caller's error.
    pub(crate) fn failed(&self, error: StreamError, deadline: Deadline) -> ClientError {
        failed(&self.address, error, deadline, "waiting for the server")
    }

    /// Sets the wait that the next requests ask of the server.
    pub(crate) const fn tell(&mut self, wait: Option<Duration>) {
        self.told = wait;
    }

    /// Sets the time after which a peer that stops in the middle of a frame is given up.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.stream.patience = Some(patience);
    }

    /// The path of a job: the rings if it certainly fits in them.
    fn path_of(&self, job: &Job<'_, '_>) -> Path {
        let Some(shm) = &self.shm else { return Path::Stream };
        let keys_max = shm.meta_max() / 300;
        let fits = match job {
            Job::Plain { verb, meta, .. } => {
                !matches!(verb, Verb::List | Verb::Stats | Verb::NamespaceList | Verb::ChunkList)
                    && meta.len() <= shm.meta_max()
            }
            Job::Get { request, .. } => request.keys.len() <= keys_max,
            Job::Put { request, .. } => {
                request.keys.len() <= keys_max && request.payload_bytes() <= shm.arena.capacity()
            }
            Job::Read { request, .. } => request.parts.len() <= keys_max,
            Job::Write { request, values, .. } => {
                request.parts.len() <= keys_max && shm.bytes_for(values) <= shm.arena.capacity()
            }
        };
        if fits { Path::Ring } else { Path::Stream }
    }

    /// Sends the next requests, up to the limit of requests in flight.
    pub(crate) fn push(
        &mut self,
        flight: &mut Flight,
        jobs: &mut [Job<'_, '_>],
        deadline: Deadline,
    ) -> Result<(), StreamError> {
        let window = WINDOW.min(self.hello.in_flight_max as usize);
        let path = flight.path();
        while flight.sent < flight.end() && flight.sent - flight.done < window {
            let asked = self.send(path, &mut jobs[flight.order[flight.sent]], deadline)?;
            if asked.is_none() {
                if flight.sent == flight.done {
                    return Err(io::Error::from(io::ErrorKind::TimedOut).into());
                }
                break;
            }
            flight.waits[flight.sent] = asked;
            flight.sent += 1;
        }
        Ok(())
    }

    /// Waits for a reply to begin; false when `wait` passed first.
    pub(crate) fn ready(
        &mut self,
        flight: &Flight,
        jobs: &[Job<'_, '_>],
        wait: Duration,
    ) -> Result<bool, StreamError> {
        let (Path::Ring, Some(shm)) = (flight.path(), &mut self.shm) else {
            return Ok(self.stream.ready(flight.ahead(jobs), wait)?);
        };
        if shm.ready(wait)? {
            return Ok(true);
        }
        // A server that died wakes no waiter.
        if wait.is_zero() || self.stream.is_quiet() {
            return Ok(false);
        }
        Err(io::Error::from(io::ErrorKind::ConnectionReset).into())
    }

    /// Receives one reply.
    pub(crate) fn pull(
        &mut self,
        flight: &mut Flight,
        jobs: &mut [Job<'_, '_>],
        reads: &mut Reads<'_, '_>,
        deadline: Deadline,
    ) -> Result<Answered, StreamError> {
        let ahead = flight.ahead(jobs);
        let header = self.recv(flight.path(), ahead, deadline)?;
        let at = header.request_id.checked_sub(flight.first_id);
        let at = at.and_then(|at| usize::try_from(at).ok());
        let asked = at.and_then(|at| flight.waits.get_mut(at)).and_then(Option::take);
        let (Some(at), Some(asked)) = (at, asked) else {
            return Err(StreamError::Unexpected("a reply without a request"));
        };
        header.check_answers(asked)?;
        flight.done += 1;
        let job = flight.order[at];
        let refusal = self.settle(&mut jobs[job], &header, reads, deadline)?;
        Ok(Answered { job, refusal })
    }

    /// Sends one request; none when the ring or arena has no room yet.
    fn send(
        &mut self,
        path: Path,
        job: &mut Job<'_, '_>,
        deadline: Deadline,
    ) -> Result<Option<Asked>, StreamError> {
        let id = self.next_id;
        let verb = job.verb();
        let mut flags = 0;
        let (meta, payload, values): (Vec<u8>, u64, &[Value<'_>]) = match job {
            Job::Plain { meta, .. } => (std::mem::take(meta), 0, &[]),
            Job::Get { request, .. } => (request.encode(), 0, &[]),
            Job::Read { request, lends, .. } => {
                if *lends && path == Path::Ring && self.shm.as_ref().is_some_and(ShmLink::lends) {
                    flags = FLAG_LEND;
                }
                (request.encode(), 0, &[])
            }
            Job::Write { request, values, .. } => {
                if let (Path::Ring, Some(shm)) = (path, &mut self.shm) {
                    if !shm.place(id, values, request)? {
                        return Ok(None);
                    }
                    flags = FLAG_SHM;
                    (request.encode(), request.payload_bytes(), &[])
                } else {
                    for (value, part) in values.iter().zip(&mut request.parts) {
                        part.crc = checksum_of(value);
                    }
                    (request.encode(), request.payload_bytes(), values)
                }
            }
            Job::Put { request, values, .. } => {
                let payload = request.payload_bytes();
                if let (Path::Ring, Some(shm)) = (path, &mut self.shm) {
                    let Some(at) = shm.arena.take(id, payload) else { return Ok(None) };
                    request.arena_offset = at;
                    shm.copy_in(at, values, &mut request.items)?;
                    flags = FLAG_SHM;
                    (request.encode(), payload, &[])
                } else {
                    checksum(values, request);
                    (request.encode(), payload, values)
                }
            }
        };
        self.next_id += 1;
        let told = self.told.map(|wait| u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).max(1));
        let told = told.unwrap_or_else(|| deadline.for_server());
        let header = FrameHeader {
            flags,
            payload_len: u32::try_from(payload).unwrap_or(u32::MAX),
            deadline_or_status: told,
            proof: self.proofs.next_u32(),
            ..FrameHeader::request(verb, id, &meta)
        };
        let head = header.frame(&meta);
        if let (Path::Ring, Some(shm)) = (path, &mut self.shm) {
            if !shm.push(&head, deadline.at)? {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
        } else {
            self.stream.send(&head, values, deadline.at)?;
        }
        Ok(Some(header.asked()))
    }

    /// Receives the next reply's header, and its metadata into `self.meta`.
    fn recv(
        &mut self,
        path: Path,
        ahead: usize,
        deadline: Deadline,
    ) -> Result<FrameHeader, StreamError> {
        let (Path::Ring, Some(shm)) = (path, &mut self.shm) else {
            return self.stream.recv_head(&mut self.meta, ahead, deadline.at);
        };
        loop {
            if let Some((header, meta)) = shm.pop(deadline.at)? {
                self.meta.clear();
                self.meta.extend_from_slice(meta);
                return Ok(header);
            }
            if RealClock::tick() >= deadline.at {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            if !self.stream.is_quiet() {
                return Err(io::Error::from(io::ErrorKind::ConnectionReset).into());
            }
        }
    }

    /// Assigns a reply to its job; returns the refusal of this request, if it was refused.
    fn settle(
        &mut self,
        job: &mut Job<'_, '_>,
        header: &FrameHeader,
        reads: &mut Reads<'_, '_>,
        deadline: Deadline,
    ) -> Result<Option<ClientError>, StreamError> {
        if let (Job::Put { .. } | Job::Write { .. }, Some(shm)) = (&*job, &mut self.shm) {
            shm.arena.free(header.request_id);
        }
        if let Err(error) = accept(&self.address, header, &self.meta) {
            return match error {
                ClientError::Refused { .. } => Ok(Some(error)),
                _ => Err(StreamError::Unexpected("a reply with an unknown status")),
            };
        }
        match job {
            Job::Plain { reply, .. } => reply.clone_from(&self.meta),
            Job::Put { request, reply, .. } => {
                let StatusReply { items } = StatusReply::decode(&self.meta)?;
                if items.len() != request.keys.len() {
                    return Err(StreamError::Unexpected(
                        "a reply to a put with a wrong number of items",
                    ));
                }
                *reply = items;
            }
            Job::Write { request, reply, .. } => {
                let StatusReply { items } = StatusReply::decode(&self.meta)?;
                if items.len() != request.parts.len() {
                    return Err(StreamError::Unexpected(
                        "a reply to a write with a wrong number of items",
                    ));
                }
                *reply = items;
            }
            Job::Get { .. } | Job::Read { .. } => {
                let (asked, items) = match job {
                    Job::Get { request, items } => (request.keys.len(), items),
                    Job::Read { request, items, .. } => (request.parts.len(), items),
                    _ => unreachable!("matched above"),
                };
                let items = &*items;
                let reply = GetReply::decode(&self.meta)?;
                if reply.items.len() != asked {
                    return Err(StreamError::Unexpected(
                        "a reply to a get with a wrong number of items",
                    ));
                }
                if header.flags & FLAG_SHM == 0 {
                    self.stream.recv_values(header, &reply, (items, reads), deadline.at)?;
                } else if let Some(shm) = &mut self.shm {
                    shm.take_values(&reply, (items, reads))?;
                } else {
                    return Err(StreamError::Unexpected("shared memory that was not attached"));
                }
            }
        }
        Ok(None)
    }
}

fn ahead_of(job: &Job<'_, '_>) -> usize {
    match job {
        Job::Get { request, .. } => ahead_of_get(request.room.iter().copied()),
        Job::Read { request, .. } => ahead_of_get(request.parts.iter().map(|part| part.len)),
        _ => 64 << 10,
    }
}

fn checksum(values: &[Value<'_>], request: &mut millpond_types::wire::PutRequest) {
    for (value, item) in values.iter().zip(&mut request.items) {
        item.crc = checksum_of(value);
    }
}

fn checksum_of(value: &Value<'_>) -> Crc32c {
    value.pieces().iter().fold(Crc32c::EMPTY, |crc, piece| crc.append(piece))
}

/// Checks that a reply reports success.
fn accept(address: &str, header: &FrameHeader, meta: &[u8]) -> Result<(), ClientError> {
    let unexpected = |what| ClientError::Unexpected { address: address.to_owned(), what };
    let wire = |source| ClientError::Wire { address: address.to_owned(), source };
    let status = u16::try_from(header.deadline_or_status)
        .map_err(|_| unexpected("an unknown status"))
        .and_then(|status| Status::try_from(status).map_err(wire))?;
    if status == Status::Ok {
        return Ok(());
    }
    Err(ClientError::refused(status, ErrorReply::decode(meta).map_err(wire)?))
}

/// Converts an error of the stream into the caller's error.
fn failed(
    address: &str,
    error: StreamError,
    deadline: Deadline,
    doing: &'static str,
) -> ClientError {
    let address = address.to_owned();
    match error {
        StreamError::Io(error)
            if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) =>
        {
            ClientError::Deadline(deadline.given, doing)
        }
        StreamError::Io(source) => ClientError::Broken { address, source },
        StreamError::Wire(source) => ClientError::Wire { address, source },
        StreamError::Unexpected(what) => ClientError::Unexpected { address, what },
    }
}
