//! Event loops, each on its own thread. In tokio's worker pool, each woken worker wakes another to
//! look for work as well. For a single request that was half of all wakes, and a wake costs more
//! here than most requests do.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millpond_env::{ThreadHandle, thread};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use crate::metrics::Metrics;

/// A new timer that ends before all others of its loop wakes the loop, to shorten its wait. Most
/// requests create one or two timers of two seconds or more. With this timer, which always ends
/// before them, they do not wake the loop.
const TICK: Duration = Duration::from_secs(1);
/// Threads of each loop that wait for the volume: more calls than connections to a node would only
/// queue there.
const WORKERS: usize = 32;
/// How long requests may take to end when the gateway stops.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
const STOP_LOOK: Duration = Duration::from_millis(5);

/// A running event loop. Dropping it ends the loop without waiting.
pub(crate) struct EventLoop {
    handle: Handle,
    connections: Arc<AtomicUsize>,
    stop: oneshot::Sender<()>,
    thread: ThreadHandle<()>,
}

impl EventLoop {
    /// Starts a loop; at its end it waits for requests in progress.
    pub(crate) fn start(name: &str, metrics: &Arc<Metrics>) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .max_blocking_threads(WORKERS)
            .thread_name(name)
            .enable_all()
            .build()?;
        let (handle, metrics) = (runtime.handle().clone(), Arc::clone(metrics));
        let (stop, stopped) = oneshot::channel::<()>();
        runtime.spawn(async {
            loop {
                tokio::time::sleep(TICK).await;
            }
        });
        let thread = thread(name, move || {
            let _ = runtime.block_on(stopped);
            end(runtime, &metrics);
        })?;
        Ok(Self { handle, connections: Arc::default(), stop, thread })
    }

    pub(crate) const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// A handle that assigns connections to this loop.
    pub(crate) fn seats(&self) -> Seats {
        Seats { handle: self.handle.clone(), taken: Arc::clone(&self.connections) }
    }

    /// Ends the loops in parallel, and waits for them.
    pub(crate) fn end_all(loops: Vec<Self>) {
        let threads: Vec<_> =
            loops.into_iter().map(|worker| (drop(worker.stop), worker.thread).1).collect();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

/// Waits for requests in progress; cuts off the stalled ones.
fn end(runtime: Runtime, metrics: &Metrics) {
    let idle = async {
        while metrics.in_flight.get() + metrics.back.under_way.get() > 0 {
            tokio::time::sleep(STOP_LOOK).await;
        }
    };
    let _ = runtime.block_on(async { tokio::time::timeout(STOP_PATIENCE, idle).await });
    runtime.shutdown_timeout(STOP_PATIENCE);
}

/// The connections of a loop.
pub(crate) struct Seats {
    handle: Handle,
    taken: Arc<AtomicUsize>,
}

/// Counts a connection while it exists.
struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Seats {
    /// The loop with the fewest connections.
    pub(crate) fn freest(all: &[Self]) -> Option<&Self> {
        all.iter().min_by_key(|worker| worker.taken.load(Ordering::Relaxed))
    }

    /// Makes the loop serve a connection that another loop accepted.
    pub(crate) fn serve<S: Future<Output = ()> + Send>(
        &self,
        stream: TcpStream,
        serve: impl FnOnce(TcpStream) -> S + Send + 'static,
    ) -> io::Result<()> {
        let stream = stream.into_std()?;
        self.taken.fetch_add(1, Ordering::Relaxed);
        let seat = Seat(Arc::clone(&self.taken));
        self.handle.spawn(async move {
            let _seat = seat;
            match TcpStream::from_std(stream) {
                Ok(stream) => serve(stream).await,
                Err(error) => tracing::warn!("S3: a connection was not served: {error}"),
            }
        });
        Ok(())
    }
}
