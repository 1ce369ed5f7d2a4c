//! State shared by the tasks of one connection, and the bounds on its resources.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::task::{Poll, Waker};
use std::time::Duration;

use millpond_env::{JoinHandle, RealClock, SharedBuf, timeout};
use millpond_types::limits::PAGE_BYTES;
use millpond_types::wire::{Asked, FLAG_REPLY, Failure, FrameHeader, Status, Verb};
use millpond_types::{GroupId, Tick, Uuid128};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::cluster::Cluster;
use super::outbox::{Outbox, Outgoing};
use super::shm::ShmSide;
use super::tokens::{Scope, Tokens};
use crate::config::LimitsConfig;
use millpond_replica::local::{NO_DISKS, Namespace, Service};
use millpond_replica::time_left;

/// Bytes of the pool that values of these lengths take: even a single byte takes a page.
pub(super) fn pages_of(lens: impl Iterator<Item = u32>) -> u64 {
    lens.map(|len| u64::from(len.max(1)).next_multiple_of(PAGE_BYTES as u64)).sum()
}

/// State that all connections of the server share.
pub(super) struct Shared {
    /// The KV service.
    pub service: Arc<Service>,
    /// Bounds.
    pub limits: LimitsConfig,
    /// Credentials.
    pub tokens: Tokens,
    /// TLS on TCP connections.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Boot id of this host.
    pub boot_id: Uuid128,
    /// Path of the Unix socket; empty when there is none.
    pub socket_path: String,
    /// Pages of the pool that requests may hold at once: half of it.
    pub budget: Arc<Semaphore>,
    /// Pages that one connection may hold before it waits until its own replies have left.
    pub connection_bytes: u64,
    /// Open connections.
    pub connections: AtomicUsize,
    /// Shared-memory clients.
    pub shm_clients: AtomicU32,
    /// The cluster that this server is part of.
    pub cluster: Cluster,
}

impl Shared {
    /// Identity of this server's node.
    pub(super) fn node_id(&self) -> Uuid128 {
        self.cluster.identity().node.0
    }
}

/// One connection.
pub(super) struct Conn {
    /// State that all connections share.
    pub shared: Arc<Shared>,
    /// Its name, for logs.
    pub peer: String,
    /// Whether it came over the Unix socket.
    pub is_unix: bool,
    /// Replies on their way out.
    pub outbox: Outbox,
    /// Time of its acceptance.
    pub since: Tick,
    /// Start of the payload that is being received.
    pub receiving_since: Cell<Option<Tick>>,
    /// Shared memory, once attached.
    pub shm: RefCell<Option<Rc<ShmSide>>>,
    /// The receiving task, so that others can end it.
    pub receiving: RefCell<Option<JoinHandle<()>>>,
    /// The sending task.
    pub sending: RefCell<Option<JoinHandle<()>>>,
    scope: OnceCell<Rc<Scope>>,
    names: RefCell<Names>,
    in_flight: Cell<u32>,
    bytes: Cell<u64>,
    room: RefCell<Vec<Waker>>,
}

#[derive(Default)]
struct Names {
    generation: u64,
    known: HashMap<GroupId, Arc<Namespace>>,
}

impl Conn {
    /// Makes a connection.
    pub(super) fn new(shared: Arc<Shared>, peer: String, is_unix: bool) -> Rc<Self> {
        Rc::new(Self {
            shared,
            peer,
            is_unix,
            outbox: Outbox::default(),
            since: RealClock::tick(),
            receiving_since: Cell::new(None),
            shm: RefCell::new(None),
            receiving: RefCell::default(),
            sending: RefCell::default(),
            scope: OnceCell::new(),
            names: RefCell::default(),
            in_flight: Cell::new(0),
            bytes: Cell::new(0),
            room: RefCell::default(),
        })
    }

    /// Admits the client with the scope of its credential.
    pub(super) fn admit(&self, scope: Rc<Scope>) {
        let _ = self.scope.set(scope);
    }

    /// Scope of the credential; `None` before hello.
    pub(super) fn scope(&self) -> Option<&Rc<Scope>> {
        self.scope.get()
    }

    /// The namespace `id`, for a request about its keys. A process without disks holds none of
    /// them.
    ///
    /// # Errors
    /// Those of [`Self::namespace`]; `Unsupported` without disks.
    pub(super) fn namespace_of_keys(&self, id: GroupId) -> Result<Arc<Namespace>, Failure> {
        let namespace = self.namespace(id)?;
        if self.shared.service.disks.is_empty() {
            return Err(Failure::new(Status::Unsupported, NO_DISKS.to_owned()));
        }
        Ok(namespace)
    }

    /// The namespace `id`, if it exists and the credential allows it.
    ///
    /// # Errors
    /// [`Failure`] that is the same for an absent namespace and a forbidden one.
    pub(super) fn namespace(&self, id: GroupId) -> Result<Arc<Namespace>, Failure> {
        let namespaces = &self.shared.service.namespaces;
        let mut names = self.names.borrow_mut();
        let generation = namespaces.generation();
        if names.generation != generation {
            names.known.clear();
            names.generation = generation;
        }
        if let Some(known) = names.known.get(&id) {
            return Ok(Arc::clone(known));
        }
        let allowed = |ns: &Arc<Namespace>| self.scope().is_some_and(|s| s.allows(&ns.info.name));
        let Some(namespace) = namespaces.by_id(id).filter(allowed) else {
            return Err(Failure::new(
                Status::NoNamespace,
                format!(
                    "namespace {} does not exist, or no longer exists: open it by name again",
                    id.0
                ),
            ));
        };
        names.known.insert(id, Arc::clone(&namespace));
        Ok(namespace)
    }

    fn has_room(&self) -> bool {
        self.in_flight.get() < self.shared.limits.in_flight
            && self.bytes.get() < self.shared.connection_bytes
    }

    /// Waits until this connection may start another request, since enough of its own replies have
    /// left.
    pub(super) async fn wait_for_room(&self) {
        poll_fn(|context| {
            if self.has_room() {
                return Poll::Ready(());
            }
            self.room.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Requests under way.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }

    /// Ends the receiving task, and so the connection.
    pub(super) fn hang_up(&self) {
        if let Some(receiving) = self.receiving.borrow_mut().take() {
            receiving.abort();
        }
    }

    /// Starts a request.
    pub(super) fn begin(self: &Rc<Self>, header: &FrameHeader, verb: Verb) -> InFlight {
        let received = RealClock::tick();
        self.in_flight.set(self.in_flight.get() + 1);
        self.shared.service.metrics.in_flight.add(1);
        let ms = match header.deadline_or_status {
            0 => self.shared.limits.deadline.0,
            ms => Duration::from_millis(u64::from(ms)),
        };
        InFlight {
            conn: Rc::clone(self),
            verb,
            asked: header.asked(),
            received,
            deadline: received.plus(ms),
            bytes: 0,
            permit: None,
        }
    }

    /// Ends the connection at once.
    pub(super) fn abort(&self) {
        self.hang_up();
        if let Some(sending) = self.sending.borrow_mut().take() {
            sending.abort();
        }
        self.outbox.abandon();
        let shm = self.shm.borrow_mut().take();
        drop(shm);
    }
}

/// A request until its reply is sent, and its share of the bounds.
pub(super) struct InFlight {
    conn: Rc<Conn>,
    /// Verb of the request.
    pub verb: Verb,
    /// Facts that the reply must prove.
    asked: Asked,
    /// Time of arrival of its header.
    pub received: Tick,
    /// Time after which the reply is too late.
    pub deadline: Tick,
    bytes: u64,
    permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl std::fmt::Debug for InFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InFlight").field("verb", &self.verb).finish_non_exhaustive()
    }
}

impl InFlight {
    /// The connection.
    pub(super) fn conn(&self) -> &Rc<Conn> {
        &self.conn
    }

    /// The request's share of the pool: work that outlives the reply and still has its values keeps
    /// it.
    pub(super) fn held(&self) -> Option<Arc<OwnedSemaphorePermit>> {
        self.permit.clone()
    }

    /// Takes a share of the pool for `bytes` of values, waiting until the deadline. A value takes
    /// whole pages: see [`pages_of`].
    ///
    /// # Errors
    /// `Busy` with a retry hint if there is none by then.
    pub(super) async fn reserve(&mut self, bytes: u64) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        // A larger request could never be admitted: it takes all pages, and its values wait for
        // memory.
        let all = self.conn.shared.service.pool.capacity() / 2 / PAGE_BYTES;
        let pages = bytes.div_ceil(PAGE_BYTES as u64).min(all as u64);
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let budget = &self.conn.shared.budget;
        let permit = match Arc::clone(budget).try_acquire_many_owned(pages) {
            Ok(permit) => Some(permit),
            Err(_) => match time_left(self.deadline) {
                Some(left) => {
                    let wait = Arc::clone(budget).acquire_many_owned(pages);
                    timeout(left, wait).await.ok().and_then(Result::ok)
                }
                None => None,
            },
        };
        let Some(permit) = permit else {
            return Err(Failure::new(
                Status::Busy,
                "other requests use the memory of the server: retry, or raise server.memory"
                    .to_owned(),
            ));
        };
        self.permit = Some(Arc::new(permit));
        self.bytes = bytes;
        self.conn.bytes.set(self.conn.bytes.get() + bytes);
        self.conn.shared.service.metrics.in_flight_bytes.add(bytes);
        Ok(())
    }

    /// Notes the start of the work.
    pub(super) fn work_starts(&self) {
        let waited = RealClock::tick().since(self.received);
        self.conn.shared.service.metrics.stages.queue.observe(waited);
    }

    /// Whether the deadline has passed.
    pub(super) fn is_late(&self) -> bool {
        RealClock::tick() >= self.deadline
    }

    /// The frame of a reply with `payload_len` bytes of payload, without the payload.
    pub(super) fn head(
        &self,
        flags: u8,
        status: Status,
        meta: &[u8],
        payload_len: usize,
    ) -> Vec<u8> {
        let header = FrameHeader {
            flags: FLAG_REPLY | flags,
            payload_len: u32::try_from(payload_len).unwrap_or(u32::MAX),
            ..FrameHeader::reply(self.asked, self.verb, status, meta)
        };
        header.frame(meta)
    }

    /// Counts the answer.
    pub(super) fn answered(&self, status: Status) {
        let us = RealClock::tick().since(self.received).as_micros();
        let metrics = &self.conn.shared.service.metrics;
        metrics.answered(self.verb, status, u64::try_from(us).unwrap_or(u64::MAX));
    }

    /// Queues the reply on the socket.
    pub(super) fn reply(self, status: Status, meta: &[u8], values: Vec<SharedBuf>) {
        self.answered(status);
        let bytes = values.iter().map(|value| value.len()).sum();
        self.conn.shared.service.metrics.bytes_out.add(bytes as u64);
        let head = self.head(0, status, meta, bytes);
        let conn = Rc::clone(&self.conn);
        let queued = RealClock::tick();
        conn.outbox.push(Outgoing { head, values, fds: Vec::new(), guard: Some(self), queued });
    }

    /// Queues the reply of a failed request on the socket.
    pub(super) fn fail(self, failure: &Failure) {
        self.reply(failure.status, &failure.encode(), Vec::new());
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let conn = &self.conn;
        conn.in_flight.set(conn.in_flight.get() - 1);
        conn.bytes.set(conn.bytes.get() - self.bytes);
        let metrics = &conn.shared.service.metrics;
        metrics.in_flight.sub(1);
        metrics.in_flight_bytes.sub(self.bytes);
        if conn.has_room() {
            for waker in conn.room.take() {
                waker.wake();
            }
        }
    }
}
