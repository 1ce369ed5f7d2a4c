//! Whether a core still does anything: a question that goes through its loop and the buffer pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::{Handle, RealClock, sleep};
use millpond_types::Tick;
use millpond_types::limits::PAGE_BYTES;

use crate::service::Service;

/// A loop that did nothing for so long is stuck.
const STUCK: Duration = Duration::from_mins(1);
/// How often memory, and an answer, is looked for again.
const AGAIN: Duration = Duration::from_millis(10);
/// No question is open.
const NONE: u64 = 0;

/// The pulse of one core. One question is open at a time, so that a stuck core gathers none.
pub(super) struct Pulse {
    core: usize,
    handle: Handle,
    service: Arc<Service>,
    /// When the open question was asked: until the loop has run it, and until it has had memory.
    looped: AtomicU64,
    had_memory: AtomicU64,
}

impl Pulse {
    pub(super) fn new(core: usize, handle: Handle, service: &Arc<Service>) -> Arc<Self> {
        let service = Arc::clone(service);
        Arc::new(Self { core, handle, service, looped: NONE.into(), had_memory: NONE.into() })
    }

    /// Asks, unless the last question is still open.
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
        // A loop that has ended is a server that stops, which is said otherwise.
        let _ended = self.handle.spawn_on(answer);
    }

    /// Waits for the answer until `end`; what is missing then.
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
                        "core {core} has had no memory for {secs} s: the disks are slower than the writers"
                    )
                } else {
                    format!(
                        "core {core} has not answered for {} s: overloaded, or stuck",
                        waited(looped)
                    )
                });
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Why it is stuck, if its loop has done nothing for long.
    pub(super) fn stuck(&self) -> Option<String> {
        let since = self.looped.load(Ordering::Acquire);
        let waited = RealClock::tick().since(Tick(since));
        let is_stuck = since != NONE && waited >= STUCK;
        is_stuck.then(|| format!("core {} has done nothing for {} s", self.core, waited.as_secs()))
    }
}
