//! The threads of a mount: a request in, a reply out.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use millpond_env::{EventFd, RealClock, ThreadHandle, thread};
use millpond_fuse_wire::abi::InitFlags;
use millpond_fuse_wire::{Device, Operation, Received, Reply, ReplyTo, Request, RequestBuffer};
use parking_lot::{Condvar, Mutex};

use crate::backend::Told;
use crate::deadline::Serving;
use crate::fs::{Answer, Aside, Fs, Stale};
use crate::waiters::Waiters;
use crate::watch::Started;
use crate::{ahead, cached};

mod look;
mod ring;

use look::Look;

/// The agreement with the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) max_write: u32,
    pub(crate) granted: InitFlags,
}

/// State that the threads of a mount share.
#[derive(Debug)]
struct Shared {
    fs: Arc<Fs>,
    terms: Terms,
    /// The request to stop between two requests, and the event that wakes waiting threads.
    stopping: AtomicBool,
    stop: EventFd,
    /// Number of running threads.
    running: AtomicUsize,
    /// Number of threads started so far: each has its own counters.
    started: AtomicUsize,
    ended: (Mutex<()>, Condvar),
    waiters: Waiters,
    look: Look,
    over: Arc<AtomicBool>,
}

/// The threads of a mount. Dropping it stops them between two requests, and waits for that.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    devices: Vec<Arc<Device>>,
    threads: Vec<ThreadHandle<()>>,
    /// Retries waiting locks.
    waiting: Option<ThreadHandle<()>>,
    /// Set once the mount no longer exists in the kernel.
    pub(crate) over: Arc<AtomicBool>,
}

impl Workers {
    /// Starts a thread for every device.
    ///
    /// # Errors
    /// When the system has no thread or descriptor left.
    pub(crate) fn start(fs: &Arc<Fs>, devices: Vec<Device>, terms: Terms) -> io::Result<Self> {
        // Each thread has room for a request, and for an answer.
        fs.ahead.memory().take(2 * devices.len() as u64 * u64::from(terms.max_write));
        let over = Arc::<AtomicBool>::default();
        let shared = Arc::new(Shared {
            fs: Arc::clone(fs),
            terms,
            stopping: AtomicBool::new(false),
            stop: EventFd::new()?,
            running: AtomicUsize::new(0),
            started: AtomicUsize::new(0),
            ended: (Mutex::new(()), Condvar::new()),
            waiters: Waiters::default(),
            look: Look::new(),
            over: Arc::clone(&over),
        });
        let devices: Vec<Arc<Device>> = devices.into_iter().map(Arc::new).collect();
        let _ = devices.first().map(|device| fs.device.set(Arc::clone(device)));
        let mut this =
            Self { shared, devices: devices.clone(), threads: Vec::new(), waiting: None, over };
        ahead::start(fs)?;
        cached::start(fs, &this.devices[0], terms.granted)?;
        let waiting = Arc::clone(&this.shared);
        this.waiting = Some(thread("mp-locks", move || waiting.waiters.run(&waiting.fs))?);
        for device in devices {
            this.start_thread(device)?;
        }
        Ok(this)
    }

    fn start_thread(&mut self, device: Arc<Device>) -> io::Result<()> {
        self.start_serving(move |shared, number| serve(shared, &device, number))
    }

    fn start_serving(
        &mut self,
        serve: impl FnOnce(&Shared, usize) + Send + 'static,
    ) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        shared.running.fetch_add(1, Ordering::AcqRel);
        let number = shared.started.fetch_add(1, Ordering::Relaxed);
        let started = thread("mp-fuse", move || {
            serve(&shared, number);
            let _guard = shared.ended.0.lock();
            shared.running.fetch_sub(1, Ordering::AcqRel);
            shared.ended.1.notify_all();
        });
        match started {
            Ok(thread) => self.threads.push(thread),
            Err(error) => {
                self.shared.running.fetch_sub(1, Ordering::AcqRel);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Stops every thread between two requests. Returns false, and all continue, when one of them
    /// takes longer than `patience`.
    pub(crate) fn stop(&mut self, patience: Duration) -> bool {
        let shared = &self.shared;
        let until = RealClock::tick().plus(patience);
        shared.stopping.store(true, Ordering::Release);
        shared.fs.bandwidth.set_open(true);
        shared.stop.notify();
        let mut guard = shared.ended.0.lock();
        while shared.running.load(Ordering::Acquire) > 0 {
            let left = until.since(RealClock::tick());
            if left.is_zero() {
                break;
            }
            shared.ended.1.wait_for(&mut guard, left);
        }
        let stopped = shared.running.load(Ordering::Acquire) == 0;
        drop(guard);
        if !stopped {
            self.go_on();
        }
        stopped
    }

    /// Undoes a stop: threads that ended are started again.
    fn go_on(&mut self) {
        let shared = &self.shared;
        shared.stopping.store(false, Ordering::Release);
        shared.fs.bandwidth.set_open(false);
        let _ = shared.stop.take();
        let missing = self.devices.len() - shared.running.load(Ordering::Acquire);
        // All descriptors share the kernel's queue, so any device will do.
        for device in self.devices.iter().take(missing).cloned().collect::<Vec<_>>() {
            if let Err(error) = self.start_thread(device) {
                tracing::error!("cannot start a thread of a mount: {error}");
            }
        }
    }

    /// The device for notifications to the kernel.
    pub(crate) fn device(&self) -> Arc<Device> {
        Arc::clone(&self.devices[0])
    }

    pub(crate) fn fs(&self) -> &Arc<Fs> {
        &self.shared.fs
    }

    /// Waits until all threads have ended.
    pub(crate) fn join(mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.fs.bandwidth.set_open(true);
        self.shared.fs.ahead.end();
        if let Some(cache) = &self.shared.fs.cached {
            cache.end();
        }
        self.shared.stop.notify();
        self.shared.waiters.end();
        for thread in self.threads.drain(..).chain(self.waiting.take()) {
            let _ = thread.join();
        }
    }
}

/// Serves requests until the mount is gone, or threads are to stop.
fn serve(shared: &Shared, device: &Arc<Device>, number: usize) {
    let Terms { max_write, granted } = shared.terms;
    let mut buffer = RequestBuffer::new(max_write);
    let mut scratch = Vec::new();
    let waiter = match device.waiter(shared.stop.as_fd()) {
        Ok(waiter) => waiter,
        Err(error) => {
            tracing::error!("a thread of a mount cannot run: {error}");
            return;
        }
    };
    while !shared.stopping.load(Ordering::Acquire) {
        let received = device.read_or_stop(&mut buffer, &waiter);
        let Some(bytes) = request_in(shared, received) else { return };
        let begun = RealClock::tick();
        shared.look.came(begun);
        let was_asked = serve_bytes(shared, device, (bytes, granted), (number, &mut scratch));
        if was_asked && shared.fs.backend.behind.is_idle() {
            shared.look.look(device, begun);
        }
    }
}

/// The bytes of a request; `None` when no more requests will come, or none is to be served.
fn request_in<'b>(shared: &Shared, received: io::Result<Received<'b>>) -> Option<&'b [u8]> {
    match received {
        Ok(Received::Request(bytes)) => return Some(bytes),
        Ok(Received::Stopped) => {}
        Ok(Received::Unmounted | Received::Aborted) => shared.over.store(true, Ordering::Release),
        Err(error) => tracing::error!("cannot read requests of the kernel: {error}"),
    }
    None
}

/// Answers the request in these bytes, or puts it aside; returns whether a caller waits for the
/// answer.
fn serve_bytes(
    shared: &Shared,
    device: &Arc<Device>,
    (bytes, granted): (&[u8], InitFlags),
    thread: (usize, &mut Vec<u8>),
) -> bool {
    match Request::decode(bytes, granted) {
        Ok(request) => {
            serve_one(shared, device, &request, thread);
            return !is_told(&request.operation);
        }
        Err(error) => {
            tracing::error!("{error}");
            if let Some((to, errno)) = error.answer() {
                send(device, to, &Reply::Error(errno));
            }
        }
    }
    false
}

/// Whether the kernel sends this operation without waiting for an answer.
fn is_told(operation: &Operation<'_>) -> bool {
    matches!(
        operation,
        Operation::Forget { .. } | Operation::BatchForget { .. } | Operation::Interrupt { .. }
    )
}

/// Answers one request, or puts it aside.
fn serve_one(
    shared: &Shared,
    device: &Arc<Device>,
    request: &Request<'_>,
    (number, scratch): (usize, &mut Vec<u8>),
) {
    let (fs, to) = (&shared.fs, request.reply_to());
    if fs.serve_virtual(request, device) {
        return;
    }
    if request.resent() {
        fs.watch.note_resent(fs.files().knows(request.unique()));
    }
    if let Operation::Interrupt { unique } = request.operation {
        if fs.watch.interrupt(unique) {
            return;
        }
        shared.waiters.interrupt(fs, unique);
    } else if !is_told(&request.operation) {
        fs.files().came(request.unique(), request.resent(), RealClock::tick());
    }
    let mut started = Some(fs.watch.begin(request, number));
    let mut answer = |reply: Reply<'_>| {
        if let Some(started) = started.take() {
            fs.watch.end(started, Some(&reply));
        }
        send(device, to, &reply);
    };
    let serving = Serving::within(fs.timeout);
    let aside = fs.dispatch(request, scratch, &mut answer);
    drop(serving);
    let Some(started) = started else { return };
    let unique = request.unique();
    let unanswered = Unanswered { unique, started, to, device: Arc::clone(device) };
    match aside {
        Some(Aside::Waits(waiting)) => shared.waiters.add(fs, waiting, unanswered),
        Some(Aside::Drops(stale, answer)) => unanswered.after_drop(fs, stale, answer),
        None => fs.watch.end(unanswered.started, None),
    }
}

/// A request that another thread answers.
#[derive(Debug)]
pub(crate) struct Unanswered {
    /// The kernel's number of it.
    pub(crate) unique: u64,
    pub(crate) started: Started,
    pub(crate) to: ReplyTo,
    pub(crate) device: Arc<Device>,
}

impl Unanswered {
    pub(crate) fn answer(self, fs: &Fs, reply: &Reply<'_>) {
        fs.watch.end(self.started, Some(reply));
        send(&self.device, self.to, reply);
        fs.files().answered(self.unique);
    }

    /// Answers once the kernel has dropped its cached state of a file.
    pub(crate) fn after_drop(self, fs: &Arc<Fs>, stale: Stale, answer: Answer) {
        let of_job = Arc::clone(fs);
        fs.notices.run(move || {
            let (ino, leases) = (stale.ino, &of_job.leases);
            let dropping = leases.dropping(ino);
            // Errors only concern inodes that the kernel does not know.
            let _ = self.device.inval_inode(ino.0, stale.pages);
            if let Some(Told { attr, version }) = stale.now {
                leases.tells(ino, attr.version);
                leases.note_dropped(ino, version);
            }
            drop(dropping);
            self.answer(&of_job, &answer.reply());
        });
    }
}

pub(crate) fn send(device: &Device, to: ReplyTo, reply: &Reply<'_>) {
    if let Err(error) = device.reply(to, reply) {
        tracing::error!("cannot answer the kernel: {error}");
    }
}
