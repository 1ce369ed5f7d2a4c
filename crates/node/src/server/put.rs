//! Receiving the values of a put straight into the buffers that keep them.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millpond_env::{Buf, JoinHandle, RealClock, sleep, spawn, timeout};
use millpond_types::wire::{
    Failure, FrameHeader, ItemStatus, PutRequest, Status, StatusReply, Verb,
};

use super::conn::{Conn, InFlight, pages_of};
use super::frames::{Ended, Frames};
use super::session::run_now_or_spawn;
use millpond_replica::local::{Namespace, PutItemPlan, PutWrite, Service};
use millpond_replica::time_left;

/// Interval of retries while the pool is full.
const POOL_RETRY: Duration = Duration::from_micros(500);

/// Outcomes of the values of a put, as far as known.
pub(super) struct PutProgress {
    /// Outcomes; those of writes under way are `Late` until they end.
    items: Vec<ItemStatus>,
    writes: VecDeque<(usize, Write)>,
}

type Write = std::pin::Pin<Box<dyn Future<Output = ItemStatus>>>;

impl PutProgress {
    /// Room for `count` values.
    pub(super) fn new(count: usize) -> Self {
        Self { items: Vec::with_capacity(count), writes: VecDeque::new() }
    }

    /// Notes a value that will not be stored.
    pub(super) fn skip(&mut self, status: ItemStatus) {
        self.items.push(status);
    }

    /// Starts to store a value.
    pub(super) fn write(
        &mut self,
        service: &Arc<Service>,
        namespace: &Arc<Namespace>,
        write: PutWrite,
    ) {
        self.start(Arc::clone(service).put_one(Arc::clone(namespace), write));
    }

    /// Notes work that stores something; it begins when `finish` waits for the outcomes.
    pub(super) fn start(&mut self, work: impl Future<Output = ItemStatus> + 'static) {
        self.writes.push_back((self.items.len(), Box::pin(work)));
        self.items.push(ItemStatus::Late);
    }

    /// Waits for all writes until the deadline and returns the outcomes.
    pub(super) async fn finish(mut self, guard: &InFlight) -> Vec<ItemStatus> {
        let mut tasks: VecDeque<(usize, JoinHandle<ItemStatus>)> = VecDeque::new();
        for (index, mut write) in std::mem::take(&mut self.writes) {
            let ready = std::future::poll_fn(|context| {
                std::task::Poll::Ready(match write.as_mut().poll(context) {
                    std::task::Poll::Ready(status) => Some(status),
                    std::task::Poll::Pending => None,
                })
            });
            if let Some(status) = ready.await {
                self.items[index] = status;
                continue;
            }
            // A task of its own: a write not done by the deadline still comes to its end.
            let held = guard.held();
            let write = async move {
                let status = write.await;
                // Its bytes are in memory until here, even if the reply has left.
                drop(held);
                status
            };
            tasks.push_back((index, spawn(write)));
        }
        if tasks.is_empty() {
            return self.items;
        }
        let Some(left) = time_left(guard.deadline) else { return self.items };
        let all = async {
            for (index, task) in tasks {
                self.items[index] = task.await.unwrap_or(ItemStatus::Late);
            }
        };
        let _ = timeout(left, all).await;
        self.items
    }
}

/// Receives a put and stores its values; the reply follows once they are acknowledged.
///
/// # Errors
/// [`Ended`] if the connection ends first.
pub(super) async fn receive_put(
    conn: &Rc<Conn>,
    frames: &mut Frames,
    header: &FrameHeader,
) -> Result<(), Ended> {
    let decoded = PutRequest::decode(frames.meta(header).await?);
    let mut guard = conn.begin(header, Verb::Put);
    let payload_len = header.payload_len as usize;
    let checked = match decoded {
        Ok(request) => check(conn, request, payload_len as u64),
        Err(error) => Err(error.into()),
    };
    let reserved = match checked {
        Ok(ok) => {
            let bytes = pages_of(ok.1.items.iter().map(|item| item.len));
            guard.reserve(bytes).await.map(|()| ok)
        }
        Err(failure) => Err(failure),
    };
    conn.receiving_since.set(Some(guard.received));
    let received = match reserved {
        Ok((namespace, request)) => {
            guard.work_starts();
            receive_values(conn, frames, &guard, &namespace, &request).await.map(Ok)
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

pub(super) async fn acknowledge(guard: InFlight, progress: PutProgress) {
    let items = progress.finish(&guard).await;
    if items.contains(&ItemStatus::Late) {
        guard.conn().shared.service.metrics.late.inc();
    }
    guard.reply(Status::Ok, &StatusReply { items }.encode(), Vec::new());
}

/// Checks that a put may be received at all.
pub(super) fn check(
    conn: &Conn,
    request: PutRequest,
    payload_len: u64,
) -> Result<(Arc<Namespace>, PutRequest), Failure> {
    check_payload(conn, request.payload_bytes(), payload_len)?;
    let namespace = conn.namespace_of_keys(request.namespace)?;
    Ok((namespace, request))
}

/// Checks that a payload may be received; `told` is its length according to the request.
pub(super) fn check_payload(conn: &Conn, told: u64, payload_len: u64) -> Result<(), Failure> {
    let service = &conn.shared.service;
    if service.is_stopping() {
        let text = "the server is stopping: retry in a moment, or use another server";
        return Err(Failure::new(Status::ShuttingDown, text.to_owned()));
    }
    if told != payload_len {
        return Err(Failure::bad(format!(
            "payload length: the values have {told} bytes together, but the frame has {payload_len}"
        )));
    }
    let most = service.pool.capacity() as u64 / 4;
    if payload_len > most {
        return Err(Failure::bad(format!(
            "payload length: {payload_len} bytes are more than a quarter of this server's memory: \
             send at most {most} bytes at once, or raise server.memory"
        )));
    }
    Ok(())
}

async fn receive_values(
    conn: &Conn,
    frames: &mut Frames,
    guard: &InFlight,
    namespace: &Arc<Namespace>,
    request: &PutRequest,
) -> Result<PutProgress, Ended> {
    let service = &conn.shared.service;
    let mut progress = PutProgress::new(request.items.len());
    let mut follows = usize::try_from(request.payload_bytes()).unwrap_or(usize::MAX);
    for (index, item) in request.items.iter().enumerate() {
        let len = item.len as usize;
        follows -= len;
        let (place, buf) = match service.plan_put(namespace, request, index) {
            PutItemPlan::Skip(status) => {
                frames.skip(len).await?;
                progress.skip(status);
                continue;
            }
            PutItemPlan::Store(place) => (place, buffer(service, guard, len).await),
        };
        let Some(buf) = buf else {
            frames.skip(len).await?;
            service.metrics.busy.inc();
            progress.skip(ItemStatus::Busy);
            continue;
        };
        let buf = frames.payload(buf, follows).await?;
        let write = service.put_write(request, index, place, buf.freeze());
        progress.write(service, namespace, write);
    }
    Ok(progress)
}

/// A buffer for a value that goes to a disk, taken from memory that is only a cache if need be.
/// Waits until the deadline while all memory is in use.
pub(super) async fn buffer(service: &Service, guard: &InFlight, len: usize) -> Option<Buf> {
    loop {
        if let Ok(buf) = service.alloc(len) {
            return Some(buf);
        }
        time_left(guard.deadline)?;
        sleep(POOL_RETRY).await;
    }
}
