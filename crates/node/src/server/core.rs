//! One core: its connections, and the task that looks after them.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millpond_env::{Handle, JoinHandle, RealClock, Stream, sleep, spawn};
use millpond_types::Tick;

use super::conn::{Conn, Shared};
use super::frames::{Frames, Shelf};
use super::outbox::send_replies;
use super::session::serve;
use super::shm::Overdue;
use super::tls::{self, Sink, Source};

/// Interval of looks after connections.
const SWEEP: Duration = Duration::from_millis(250);

/// Access to a core from other threads.
#[derive(Clone)]
pub(super) struct CoreHandle {
    /// Runs work on it.
    pub handle: Handle,
    /// Number of its connections.
    pub connections: Arc<AtomicUsize>,
}

/// The connections of this core. Everything here stays on its thread.
pub(super) struct Core {
    shared: Arc<Shared>,
    shelf: Rc<Shelf>,
    connections: RefCell<Vec<Rc<Conn>>>,
    count: Arc<AtomicUsize>,
    /// Tasks to end when the core stops.
    accepting: RefCell<Vec<JoinHandle<()>>>,
}

thread_local! {
    static CORE: RefCell<Option<Rc<Core>>> = const { RefCell::new(None) };
}

impl Core {
    /// Makes this thread a core and starts to look after its connections.
    pub(super) fn install(shared: Arc<Shared>, count: Arc<AtomicUsize>) -> Rc<Self> {
        let core = Rc::new(Self {
            shared,
            shelf: Rc::default(),
            connections: RefCell::default(),
            count,
            accepting: RefCell::default(),
        });
        CORE.with_borrow_mut(|slot| *slot = Some(Rc::clone(&core)));
        spawn(sweep(Rc::clone(&core))).detach();
        core
    }

    /// The core of this thread; `None` once it is stopping.
    pub(super) fn current() -> Option<Rc<Self>> {
        CORE.with_borrow(Clone::clone)
    }

    /// Keeps a task until the core stops.
    pub(super) fn keep(&self, task: JoinHandle<()>) {
        self.accepting.borrow_mut().push(task);
    }

    /// Ends every connection; those with replies on their way have time until `deadline`.
    pub(super) async fn stop(&self, deadline: Tick) {
        CORE.with_borrow_mut(Option::take);
        for task in self.accepting.take() {
            task.abort();
        }
        loop {
            let busy = self.connections.borrow().iter().any(|conn| conn.in_flight() > 0);
            if !busy || RealClock::tick() >= deadline {
                break;
            }
            for conn in &*self.connections.borrow() {
                if let Some(shm) = &*conn.shm.borrow() {
                    shm.look();
                }
            }
            sleep(Duration::from_millis(5)).await;
        }
        let all = self.connections.take();
        for conn in all {
            conn.abort();
        }
    }
}

/// Starts to serve a connection that another core accepted.
pub(super) async fn adopt(fd: OwnedFd, is_unix: bool, peer: String) {
    let Some(core) = Core::current() else { return };
    core.count.fetch_add(1, Ordering::Relaxed);
    let shared = Arc::clone(&core.shared);
    shared.service.metrics.connections.add(1);
    let conn = Conn::new(Arc::clone(&shared), peer, is_unix);
    core.connections.borrow_mut().push(Rc::clone(&conn));
    // Waits for the tasks below to end, in any way.
    let receiving = spawn(run(Rc::clone(&conn), Rc::clone(&core), fd));
    *conn.receiving.borrow_mut() = Some(receiving);
}

async fn run(conn: Rc<Conn>, core: Rc<Core>, fd: OwnedFd) {
    // Cleans up when this task ends or is aborted.
    let _leaving = Leaving { conn: Rc::clone(&conn), core: Rc::clone(&core) };
    let halves = match open(&conn, fd).await {
        Ok(halves) => halves,
        Err(error) => {
            conn.shared.service.metrics.protocol_errors.inc();
            tracing::debug!(peer = %conn.peer, "connection not opened: {error}");
            return;
        }
    };
    let (source, sink) = halves;
    *conn.sending.borrow_mut() = Some(spawn(send_replies(Rc::clone(&conn), sink)));
    serve(Rc::clone(&conn), Frames::new(source, Rc::clone(&core.shelf))).await;
}

async fn open(conn: &Conn, fd: OwnedFd) -> io::Result<(Source, Sink)> {
    let stream = Stream::from_owned_fd(fd)?;
    match &conn.shared.tls {
        Some(config) if !conn.is_unix => Box::pin(tls::accept(stream, Arc::clone(config))).await,
        _ => {
            let (reader, writer) = stream.split();
            Ok((Source::Plain(reader), Sink::Plain(writer)))
        }
    }
}

struct Leaving {
    conn: Rc<Conn>,
    core: Rc<Core>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        let conn = &self.conn;
        conn.outbox.close();
        let shm = conn.shm.borrow_mut().take();
        drop(shm);
        let mut all = self.core.connections.borrow_mut();
        if let Some(at) = all.iter().position(|other| Rc::ptr_eq(other, conn)) {
            all.swap_remove(at);
        }
        self.core.count.fetch_sub(1, Ordering::Relaxed);
        conn.shared.connections.fetch_sub(1, Ordering::Relaxed);
        conn.shared.service.metrics.connections.sub(1);
    }
}

/// Ends connections that make others wait, and takes back resources that clients keep too long.
async fn sweep(core: Rc<Core>) {
    let limits = core.shared.limits.clone();
    let metrics = Arc::clone(&core.shared.service.metrics);
    let tokens = &core.shared.tokens;
    let mut generation = tokens.generation();
    loop {
        sleep(SWEEP).await;
        let before = std::mem::replace(&mut generation, tokens.generation());
        let now = RealClock::tick();
        let over =
            |since: Option<Tick>, limit: Duration| since.is_some_and(|t| now.since(t) > limit);
        let all: Vec<Rc<Conn>> = core.connections.borrow().clone();
        for conn in all {
            let shm = conn.shm.borrow().clone();
            let stuck_since = shm.as_ref().and_then(|shm| shm.stuck_since());
            let since = [conn.outbox.sending_since.get(), conn.receiving_since.get(), stuck_since];
            let stalled = since.into_iter().any(|since| over(since, limits.stalled_client.0));
            let silent = conn.scope().is_none() && over(Some(conn.since), limits.hello.0);
            if stalled || silent {
                metrics.stalled.inc();
                let why = if stalled { "takes or sends no byte" } else { "sends no hello" };
                tracing::info!(peer = %conn.peer, "client {why}: disconnected");
                conn.abort();
                continue;
            }
            let scope = conn.scope().filter(|_| before != generation);
            if scope.is_some_and(|scope| !tokens.still_allows(scope)) {
                tracing::info!(peer = %conn.peer, "client's token was withdrawn or changed: disconnected");
                conn.abort();
                continue;
            }
            if let Some(shm) = shm {
                shm.look();
                let Overdue { ended, kept } = shm.expire(limits.hold.0);
                metrics.holds_expired.add(ended as u64);
                metrics.holds_overdue.add(kept as u64);
                if kept > 0 {
                    let limit = limits.hold.0;
                    tracing::warn!(peer = %conn.peer,
                        "a client has used {kept} lent values for longer than limits.hold \
                         ({limit:?}): they occupy memory until the client returns them or ends; is \
                         it stopped?");
                }
            }
        }
    }
}
