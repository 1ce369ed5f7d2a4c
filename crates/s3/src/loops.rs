//! Event loops, each on a thread of its own. Of tokio's pool of workers each one that is woken wakes another to look for
//! work as well: for a request alone that was half of all wakes, and a wake costs more here than most requests do.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millpond_env::{ThreadHandle, thread};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use crate::metrics::Metrics;

/// A timer that ends before all others of its loop wakes the loop when it is made, so that it waits no longer than that: most
/// requests make one or two, of two seconds and more. With one that always ends before them, they do not.
const TICK: Duration = Duration::from_secs(1);
/// Threads of each loop that wait for the volume: more calls than connections to a node would only wait there.
const WORKERS: usize = 32;
/// How long requests may take to end when the gateway stops.
const STOP_PATIENCE: Duration = Duration::from_secs(2);
const STOP_LOOK: Duration = Duration::from_millis(5);

/// A running event loop. Dropping it ends it without waiting for that.
pub(crate) struct EventLoop {
    handle: Handle,
    connections: Arc<AtomicUsize>,
    stop: oneshot::Sender<()>,
    thread: ThreadHandle<()>,
}

impl EventLoop {
    /// Starts a loop; at its end it waits for the requests that are under way.
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

    /// What takes connections to this loop.
    pub(crate) fn seats(&self) -> Seats {
        Seats { handle: self.handle.clone(), taken: Arc::clone(&self.connections) }
    }

    /// Ends the loops, all at the same time, and waits for them.
    pub(crate) fn end_all(loops: Vec<Self>) {
        let threads: Vec<_> = loops.into_iter().map(|it| (drop(it.stop), it.thread).1).collect();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

/// Requests under way end by themselves; what stands still is cut off.
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

/// Counts a connection while it is there.
struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Seats {
    /// Those of the loop with the fewest connections.
    pub(crate) fn freest(all: &[Self]) -> Option<&Self> {
        all.iter().min_by_key(|it| it.taken.load(Ordering::Relaxed))
    }

    /// Has the loop serve a connection that another one accepted.
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
