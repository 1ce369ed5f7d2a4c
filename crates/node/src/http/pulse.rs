//! Liveness of a core: a probe that goes through its loop and the buffer pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::{Handle, RealClock, sleep};
use millpond_types::Tick;
use millpond_types::limits::PAGE_BYTES;

use millpond_replica::local::Service;

/// Time without progress after which a loop is stuck.
const STUCK: Duration = Duration::from_mins(1);
/// Interval of further looks for memory and for an answer.
const AGAIN: Duration = Duration::from_millis(10);
/// No probe is open.
const NONE: u64 = 0;

/// The pulse of one core. One probe is open at a time, so that a stuck core gathers none.
pub(super) struct Pulse {
    core: usize,
    handle: Handle,
    service: Arc<Service>,
    /// Time of the open probe: `looped` until the loop has run it, `had_memory` until it got
    /// memory.
    looped: AtomicU64,
    had_memory: AtomicU64,
}

impl Pulse {
    pub(super) fn new(core: usize, handle: Handle, service: &Arc<Service>) -> Arc<Self> {
        let service = Arc::clone(service);
        Arc::new(Self { core, handle, service, looped: NONE.into(), had_memory: NONE.into() })
    }

    /// Sends a probe, unless the last one is still open.
    pub(super) fn ask(self: &Arc<Self>) {
        let now = RealClock::tick().0.max(1);
        let free = self.had_memory.compare_exchange(NONE, now, Ordering::AcqRel, Ordering::Acquire);
        if free.is_err() {
            return;
        }
        self.looped.store(now, Ordering::Release);
        let pulse = Arc::clone(self);
        let answer = move || async move {
            pulse.looped.store(NONE, Ordering::Release);
            while pulse.service.alloc(PAGE_BYTES).is_err() {
                sleep(AGAIN).await;
            }
            pulse.had_memory.store(NONE, Ordering::Release);
        };
        // A loop that has ended belongs to a stopping server, which is reported otherwise.
        let _ended = self.handle.spawn_on(answer);
    }

    /// Waits for the answer until `end`; returns the part that is missing then.
    pub(super) async fn missing(&self, end: Tick) -> Option<String> {
        loop {
            let (looped, had_memory) =
                (self.looped.load(Ordering::Acquire), self.had_memory.load(Ordering::Acquire));
            if looped == NONE && had_memory == NONE {
                return None;
            }
            if RealClock::tick() >= end {
                let core = self.core;
                let waited = |since: u64| RealClock::tick().since(Tick(since)).as_secs();
                return Some(if looped == NONE {
                    let secs = waited(had_memory);
                    format!(
                        "core {core} has had no free memory for {secs} s: the disks are slower \
                         than the writers"
                    )
                } else {
                    format!(
                        "core {core} has not answered for {} s: it is overloaded or stuck",
                        waited(looped)
                    )
                });
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// The reason if the loop has made no progress for long.
    pub(super) fn stuck(&self) -> Option<String> {
        let since = self.looped.load(Ordering::Acquire);
        let waited = RealClock::tick().since(Tick(since));
        let is_stuck = since != NONE && waited >= STUCK;
        is_stuck
            .then(|| format!("core {} has made no progress for {} s", self.core, waited.as_secs()))
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a test asks as a probe does")]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::sync::mpsc;

    use millpond_env::{Buf, BufferPool, PoolOptions, Runtime, RuntimeOptions, thread};

    use super::super::{HttpServer, HttpState, PULSE_PATIENCE};
    use super::*;
    use crate::server::Summary;

    const PAGES: usize = 64;

    /// A server with one core and no disks, and its pages.
    struct Fixture {
        core: Handle,
        pool: BufferPool,
        state: Arc<HttpState>,
        http: HttpServer,
        _end: mpsc::Sender<()>,
    }

    impl Fixture {
        fn new() -> Self {
            let pool = BufferPool::new(PoolOptions::new(PAGES * PAGE_BYTES)).unwrap();
            let (sender, receiver) = mpsc::channel();
            let (end, ended) = mpsc::channel();
            let _detached = thread("core", move || {
                let runtime = Runtime::new(RuntimeOptions::default()).unwrap();
                sender.send(runtime.handle()).unwrap();
                runtime.block_on(async {
                    while ended.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
                        sleep(AGAIN).await;
                    }
                });
            });
            let core: Handle = receiver.recv().unwrap();
            let service = Arc::new(Service::new(Vec::new(), pool.clone(), Arc::default()));
            let state = Arc::new(HttpState::default());
            state.watch(&service, std::iter::once(core.clone()));
            state.open(service, Summary::default());
            let any = "127.0.0.1:0".parse().unwrap();
            let http = HttpServer::start(Some(any), Arc::clone(&state)).unwrap().unwrap();
            Self { core, pool, state, http, _end: end }
        }

        fn page(&self, path: &str) -> String {
            let mut stream = TcpStream::connect(self.http.address()).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
            let mut said = String::new();
            stream.read_to_string(&mut said).unwrap();
            said
        }

        fn until_ready(&self) {
            let end = RealClock::tick().plus(5 * PULSE_PATIENCE);
            while !self.page("/readyz").starts_with("HTTP/1.1 200") {
                assert!(RealClock::tick() < end, "{}", self.page("/readyz"));
            }
        }
    }

    #[test]
    fn a_core_that_does_not_answer_is_not_ready_and_is_again() {
        let server = Fixture::new();
        server.until_ready();
        let (held, release) = mpsc::channel::<()>();
        // Blocks the loop, which no task may do.
        server.core.spawn_on(move || async move { assert!(release.recv().is_err()) }).unwrap();
        let said = server.page("/readyz");
        assert!(said.starts_with("HTTP/1.1 503"), "{said}");
        assert!(said.contains("core 0 has not answered for"), "{said}");
        assert!(server.page("/healthz").starts_with("HTTP/1.1 200"), "it may go on yet");
        // As if the probe had been sent when the machine started.
        server.state.pulses.get().unwrap()[0].looped.store(1, Ordering::Release);
        let said = server.page("/healthz");
        assert!(
            said.starts_with("HTTP/1.1 503") && said.contains("has made no progress for"),
            "{said}"
        );
        drop(held);
        server.until_ready();
        assert!(server.page("/healthz").starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn a_server_without_memory_is_not_ready_and_is_again() {
        let server = Fixture::new();
        let all: Vec<Buf> = (0..PAGES).map_while(|_| server.pool.try_alloc(PAGE_BYTES)).collect();
        assert_eq!(all.len(), PAGES);
        let said = server.page("/readyz");
        assert!(said.starts_with("HTTP/1.1 503"), "{said}");
        assert!(said.contains("core 0 has had no free memory for"), "{said}");
        assert!(server.page("/healthz").starts_with("HTTP/1.1 200"), "its loop runs");
        drop(all);
        server.until_ready();
    }
}
