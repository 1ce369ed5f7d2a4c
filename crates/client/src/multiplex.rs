//! Plain requests of any number of callers at once over one connection with shared memory, for callers that have no
//! thread to wait with. The pool lends a connection to one call at a time: a thread sleeps for each. Here one thread
//! takes all replies, and under load it finds several each time it wakes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use millpond_env::{RealClock, RingConsumer, RingProducer, thread};
use millpond_types::Tick;
use millpond_types::wire::{FLAG_REPLY, FrameHeader, HEADER_BYTES, Status, Verb};
use parking_lot::Mutex;

use crate::connection::{Parts, encode_head};
use crate::stream::FrameStream;

/// Longest sleep before a look whether the server still lives, and who has waited for too long.
const NAP: Duration = Duration::from_millis(50);
/// A request that is answered later than that has its caller ask in the other way. Longer than a commit takes, and
/// shorter than calls may.
const PATIENCE: Duration = Duration::from_secs(1);

/// Hears what came of a request: the reply, or nothing where it must be asked again, by [`crate::Client::meta`] or
/// another call that says why. The request may have been done.
pub type Told = Box<dyn FnOnce(Option<Vec<u8>>) + Send>;

/// A connection over which many ask at once.
pub(crate) struct Multiplex {
    sending: Mutex<Sending>,
    waiting: Mutex<HashMap<u64, Waiting>>,
    in_flight_max: usize,
    meta_max: usize,
    broken: AtomicBool,
}

struct Sending {
    ring: RingProducer,
    next_id: u64,
}

struct Waiting {
    told: Told,
    until: Tick,
}

impl std::fmt::Debug for Multiplex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Multiplex").field("broken", &self.broken).finish_non_exhaustive()
    }
}

impl Multiplex {
    /// Takes a connection over, and starts the thread that hears replies; none when the system gives no thread.
    pub(crate) fn start(parts: Parts) -> Option<Arc<Self>> {
        let Parts { stream, requests, replies, in_flight_max, next_id } = parts;
        let this = Arc::new(Self {
            meta_max: requests.record_max() - HEADER_BYTES,
            sending: Mutex::new(Sending { ring: requests, next_id }),
            waiting: Mutex::default(),
            in_flight_max,
            broken: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&this);
        thread("mp-replies", move || hear(&weak, &stream, replies)).ok()?;
        Some(this)
    }

    /// Whether the server still answered when it was looked at last.
    pub(crate) fn is_live(&self) -> bool {
        !self.broken.load(Ordering::Acquire)
    }

    /// Sends a request; gives `told` back when it cannot be sent without waiting.
    pub(crate) fn send(&self, verb: Verb, meta: &[u8], told: Told) -> Result<(), Told> {
        if meta.len() > self.meta_max || !self.is_live() {
            return Err(told);
        }
        let until = RealClock::tick().plus(PATIENCE);
        let mut sending = self.sending.lock();
        let id = sending.next_id;
        {
            let mut waiting = self.waiting.lock();
            if waiting.len() >= self.in_flight_max {
                return Err(told);
            }
            waiting.insert(id, Waiting { told, until });
        }
        sending.next_id += 1;
        let ms = u32::try_from(PATIENCE.as_millis()).unwrap_or(u32::MAX);
        let head = encode_head(verb, id, meta, 0, (0, ms));
        match sending.ring.try_push(&[&head]) {
            Ok(true) => {}
            // The ring is full, or the server writes where it must not.
            Ok(false) | Err(_) => return self.take_back(id),
        }
        drop(sending);
        // Who hears replies may have given up between the two: nobody else would tell.
        if self.is_live() { Ok(()) } else { self.take_back(id) }
    }

    /// The caller of a request hears of it by himself, unless he was told already.
    fn take_back(&self, id: u64) -> Result<(), Told> {
        let taken = self.waiting.lock().remove(&id);
        taken.map_or(Ok(()), |waiting| Err(waiting.told))
    }

    /// A reply; false when it breaks the protocol.
    fn settle(&self, record: &[u8]) -> bool {
        let Some((head, meta)) = record.split_first_chunk::<HEADER_BYTES>() else { return false };
        let Ok(header) = FrameHeader::decode(head) else { return false };
        let is_whole = meta.len() == header.meta_len as usize && header.check_meta(meta).is_ok();
        if !is_whole || header.flags & FLAG_REPLY == 0 {
            return false;
        }
        // None: it came too late.
        let Some(waiting) = self.waiting.lock().remove(&header.request_id) else { return true };
        let is_done = header.deadline_or_status == u32::from(Status::Ok as u16);
        (waiting.told)(is_done.then(|| meta.to_vec()));
        true
    }

    /// Those who have waited for too long ask in another way.
    fn expire(&self, now: Tick) {
        let mut waiting = self.waiting.lock();
        let late: Vec<Waiting> =
            waiting.extract_if(|_, one| one.until <= now).map(|(_, one)| one).collect();
        drop(waiting);
        for one in late {
            (one.told)(None);
        }
    }

    fn give_up(&self) {
        self.broken.store(true, Ordering::Release);
        let all: Vec<Waiting> = self.waiting.lock().drain().map(|(_, one)| one).collect();
        for one in all {
            (one.told)(None);
        }
    }
}

/// Hears replies until nobody asks any more, or the server is gone.
fn hear(multiplex: &Weak<Multiplex>, stream: &FrameStream, mut replies: RingConsumer) {
    let mut record = Vec::new();
    let mut looked = RealClock::tick();
    loop {
        let came = replies.pop(&mut record, Duration::ZERO, RealClock::tick().plus(NAP));
        let Some(multiplex) = multiplex.upgrade() else { return };
        let is_right = match came {
            Ok(true) => multiplex.settle(&record),
            Ok(false) => true,
            Err(_) => false,
        };
        let now = RealClock::tick();
        let is_time = now.since(looked) >= NAP;
        // A server that died wakes nobody.
        if !is_right || is_time && !stream.is_quiet() {
            return multiplex.give_up();
        }
        if is_time {
            looked = now;
            multiplex.expire(now);
        }
    }
}
