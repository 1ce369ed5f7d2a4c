//! The roles of this process for its own gateway, which calls them without a connection.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millpond_client::{OwnBytes, OwnMeta, OwnNode};
use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::limits::PAGE_BYTES;
use millpond_types::meta::{Answered, MetaRequest};
use millpond_types::wire::{ChunkReadRequest, Failure, ItemStatus, ReadPart, Status, Verb};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::conn::Shared;
use millpond_control::member::Member;
use millpond_control::meta::MetaRole;
use millpond_replica::local::Metrics;
use millpond_replica::{GetOutcome, Host};

/// Time limit of an operation before it is sent over a connection. Longer than a call to etcd may
/// take, and shorter than calls of clients.
const OWN_PATIENCE: Duration = Duration::from_secs(2);
/// Minimum time for which a meta that could not answer is not asked; the time is twice that of its
/// failed answer. So a meta that has lost its store delays few requests, and one that has just
/// started is asked again at once.
const AWAY_MIN: Duration = Duration::from_millis(20);
/// Time limit of a read before it is sent over a connection, where other replicas are asked as
/// well.
const READ_PATIENCE: Duration = Duration::from_millis(100);
/// Time for which a late node is not asked; then one read tries it.
const LATE: Duration = Duration::from_secs(1);
/// Time limit of an abandoned read, during which its memory counts as used.
const READ_MAX: Duration = Duration::from_secs(30);
/// Share of the buffer pool that clients of the gateway may hold, as a divisor. Bytes beyond it are
/// copied, so that slow readers delay no one else.
const HELD_SHARE: usize = 8;

/// The meta role of this process.
pub(super) struct OwnRole {
    member: Arc<Member>,
    metrics: Arc<Metrics>,
    away: Away,
}

/// Time until which others are asked, because the meta of this process could not answer.
#[derive(Debug, Default)]
struct Away(Mutex<Option<Tick>>);

impl Away {
    fn may_ask(&self, now: Tick) -> bool {
        self.0.lock().is_none_or(|until| until <= now)
    }

    /// Notes that a request sent at `asked` has failed now.
    fn note(&self, asked: Tick, now: Tick) {
        *self.0.lock() = Some(now.plus(AWAY_MIN.max(2 * now.since(asked))));
    }
}

impl OwnRole {
    pub(super) fn of(shared: &Shared) -> Self {
        let member = Arc::clone(shared.cluster.member());
        let metrics = Arc::clone(&shared.service.metrics);
        Self { member, metrics, away: Away::default() }
    }

    /// The role, if it may be asked, and the present time.
    fn role(&self) -> Option<(&MetaRole, Tick)> {
        let now = RealClock::tick();
        self.member.meta().filter(|_| self.away.may_ask(now)).map(|role| (role, now))
    }

    /// Counts an answer as one that came over a connection.
    fn counted(&self, received: Tick, done: Result<Answered, Failure>) -> Option<Answered> {
        let now = RealClock::tick();
        let status = done.as_ref().map_or_else(|failure| failure.status, |_| Status::Ok);
        if done.is_err() {
            self.away.note(received, now);
        }
        self.metrics.answered(Verb::Meta, status, micros(received, now));
        done.ok()
    }
}

fn micros(from: Tick, to: Tick) -> u64 {
    u64::try_from(to.since(from).as_micros()).unwrap_or(u64::MAX)
}

impl fmt::Debug for OwnRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnRole").finish_non_exhaustive()
    }
}

impl OwnMeta for OwnRole {
    fn answer<'a>(
        &'a self,
        request: &'a MetaRequest,
    ) -> Pin<Box<dyn Future<Output = Option<Answered>> + Send + 'a>> {
        Box::pin(async move {
            let (role, received) = self.role()?;
            let (routing, deadline) = (self.member.routing(), received.plus(OWN_PATIENCE));
            self.counted(received, role.answer_here(request, &routing, deadline).await)
        })
    }

    fn ask(&self, request: &MetaRequest) -> Option<Answered> {
        let (role, received) = self.role()?;
        let (routing, deadline) = (self.member.routing(), received.plus(OWN_PATIENCE));
        self.counted(received, role.answer_blocking(request, &routing, deadline))
    }
}

/// Lateness of a node, which decides whether it may be asked.
#[derive(Debug, Default)]
struct Lateness(Mutex<Option<Tick>>);

impl Lateness {
    /// Whether it may be asked now. Once the time is over, one caller may ask, and others only
    /// after its answer.
    fn may_ask(&self, now: Tick) -> bool {
        let mut until = self.0.lock();
        let may = until.is_none_or(|until| until <= now);
        if may && until.is_some() {
            *until = Some(now.plus(LATE));
        }
        may
    }

    /// Notes whether a request sent at `asked` was late.
    fn note(&self, asked: Tick, now: Tick, is_late: bool) {
        let mut until = self.0.lock();
        if is_late {
            *until = Some(now.plus(LATE));
        } else if until.is_some_and(|until| until <= asked.plus(LATE)) {
            // This is the request that tried; others were sent before.
            *until = None;
        }
    }
}

/// The node role of this process.
pub(super) struct OwnDisks {
    host: Arc<Host>,
    metrics: Arc<Metrics>,
    /// Pages that may be held.
    room: Arc<Semaphore>,
    /// Number of reads so far: they take turns on the cores.
    reads: AtomicUsize,
    late: Lateness,
}

impl OwnDisks {
    pub(super) fn of(shared: &Shared) -> Option<Self> {
        let host = Arc::clone(shared.service.host()?);
        let pages = shared.service.pool.capacity() / PAGE_BYTES / HELD_SHARE;
        let room = Arc::new(Semaphore::new(pages));
        let (metrics, reads) = (Arc::clone(&shared.service.metrics), AtomicUsize::new(0));
        Some(Self { host, metrics, room, reads, late: Lateness::default() })
    }

    fn hold(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let pages = u32::try_from(bytes.div_ceil(PAGE_BYTES as u64)).ok()?;
        Arc::clone(&self.room).try_acquire_many_owned(pages).ok()
    }

    /// Reads from memory without a core, which saves waking two threads.
    fn cached(&self, request: &ChunkReadRequest) -> Option<GetOutcome> {
        let received = RealClock::tick();
        let found = self.host.cached_files(request)?;
        self.metrics.answered(Verb::ChunkRead, Status::Ok, micros(received, RealClock::tick()));
        Some(found)
    }

    /// Reads on a core. The memory counts as held until the read is over, even if its caller is
    /// gone.
    async fn read_on_a_core(
        &self,
        parts: Vec<ReadPart>,
        held: OwnedSemaphorePermit,
    ) -> Option<(GetOutcome, OwnedSemaphorePermit)> {
        let received = RealClock::tick();
        let is_here = parts.iter().all(|part| self.host.reads_here(part.at));
        if !(is_here && self.late.may_ask(received)) {
            return None;
        }
        let (sender, answer) = oneshot::channel();
        let host = Arc::clone(&self.host);
        let core = host.core(self.reads.fetch_add(1, Ordering::Relaxed)).clone();
        let read = move || async move {
            let request = ChunkReadRequest { parts };
            let outcome = host.read_files(&request, received.plus(READ_MAX)).await;
            // A caller that is gone needs no answer.
            let _ = sender.send((outcome, held));
        };
        core.spawn_on(read).ok()?;
        let answer = tokio::time::timeout(READ_PATIENCE, answer).await;
        let now = RealClock::tick();
        self.late.note(received, now, answer.is_err());
        let found = answer.ok()?.ok()?;
        self.metrics.answered(Verb::ChunkRead, Status::Ok, micros(received, now));
        Some(found)
    }
}

impl fmt::Debug for OwnDisks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnDisks").finish_non_exhaustive()
    }
}

impl OwnNode for OwnDisks {
    fn read(
        &self,
        request: ChunkReadRequest,
    ) -> Pin<Box<dyn Future<Output = Option<Vec<OwnBytes>>> + Send + '_>> {
        Box::pin(async move {
            let held = self.hold(request.payload_bytes())?;
            let lens: Vec<u32> = request.parts.iter().map(|part| part.len).collect();
            let (outcome, held) = match self.cached(&request) {
                Some(outcome) => (outcome, held),
                None => self.read_on_a_core(request.parts, held).await?,
            };
            let GetOutcome { items, values } = outcome;
            let is_whole = items.iter().all(|item| item.status == ItemStatus::Ok)
                && items.iter().map(|item| item.len).eq(lens);
            if !is_whole {
                return None;
            }
            let bytes: u64 = values.iter().map(|value| value.len() as u64).sum();
            // A part of a value keeps the whole value in memory.
            let allocated: u64 = values.iter().map(|value| value.allocated() as u64).sum();
            let rest = self.hold(allocated.saturating_sub(bytes))?;
            self.metrics.bytes_out.add(bytes);
            self.metrics.own_bytes_out.add(bytes);
            let held = Arc::new((held, rest));
            let found = values.into_iter().zip(&items);
            Some(found.map(|(value, item)| OwnBytes::new(value, item.crc, held.clone())).collect())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{AWAY_MIN, Away, LATE, Lateness, OWN_PATIENCE, READ_PATIENCE};
    use millpond_types::Tick;

    #[test]
    fn a_meta_that_fails_fast_is_asked_again_soon() {
        let (away, start) = (Away::default(), Tick(0).plus(LATE));
        assert!(away.may_ask(start), "nothing is known against it");
        away.note(start, start);
        assert!(!away.may_ask(start));
        assert!(away.may_ask(start.plus(AWAY_MIN)), "it had no chains yet");
        let late = start.plus(OWN_PATIENCE);
        away.note(start, late);
        assert!(!away.may_ask(late.plus(OWN_PATIENCE)), "its store is lost");
        assert!(away.may_ask(late.plus(2 * OWN_PATIENCE)));
    }

    #[test]
    fn a_node_that_was_late_is_tried_by_one_at_a_time() {
        let (late, start) = (Lateness::default(), Tick(0).plus(LATE));
        assert!(late.may_ask(start) && late.may_ask(start), "nothing is known against it");
        let told = start.plus(READ_PATIENCE);
        late.note(start, told, true);
        late.note(start, told, false);
        assert!(!late.may_ask(told), "what was asked before says nothing new");
        let after = told.plus(LATE);
        assert!(late.may_ask(after) && !late.may_ask(after), "one tries");
        late.note(after, after.plus(READ_PATIENCE), true);
        assert!(!late.may_ask(after.plus(LATE)), "and was late too");
        let again = after.plus(READ_PATIENCE).plus(LATE);
        assert!(late.may_ask(again));
        late.note(again, again, false);
        assert!(late.may_ask(again) && late.may_ask(again), "and was not");
    }
}
