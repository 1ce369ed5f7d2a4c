//! Values used in place in the memory of the node on this host (RFC 0027).

use std::fmt;
use std::sync::Arc;

use millpond_env::{Mutex, OfProcess, ProcessFd, RingError, RingProducer, ShmView};
use millpond_types::Tick;
use millpond_types::wire::{FrameHeader, ShmRelease, Verb};

/// The ring of a connection's requests, which also gives values back.
#[derive(Debug)]
pub(crate) struct Requests {
    ring: RingProducer,
    /// Ended holds for which the ring had no room.
    over: Vec<u64>,
}

impl Requests {
    pub(crate) const fn new(ring: RingProducer) -> Self {
        Self { ring, over: Vec::new() }
    }

    pub(crate) const fn record_max(&self) -> usize {
        self.ring.record_max()
    }

    /// Puts a request in the ring and wakes the server if it sleeps; false at the deadline.
    pub(crate) fn push(&mut self, head: &[u8], deadline: Tick) -> Result<bool, RingError> {
        while let Some(hold) = self.over.pop() {
            if !self.ring.push(&[&release(hold)], deadline)? {
                self.over.push(hold);
                return Ok(false);
            }
        }
        self.ring.push(&[head], deadline)
    }

    /// Tells the server that a hold is over. If `silently`, the server is not woken, and notices it
    /// with the next request or its own next check.
    fn release(&mut self, hold: u64, silently: bool) {
        let record = release(hold);
        let pushed = if silently {
            self.ring.try_push_silently(&[&record])
        } else {
            self.ring.try_push(&[&record])
        };
        if !matches!(pushed, Ok(true)) {
            self.over.push(hold);
        }
    }
}

fn release(hold: u64) -> Vec<u8> {
    let meta = ShmRelease { hold }.encode();
    FrameHeader::request(Verb::ShmRelease, 0, &meta).frame(&meta)
}

/// Values of one reply, which the server keeps in its memory until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    hold: u64,
    silently: bool,
    requests: Arc<Mutex<Requests>>,
    /// While this is open, the server keeps the lent values, whatever happens to the connection.
    _alive: Option<Arc<ProcessFd>>,
}

impl Held {
    /// A reply without values has nothing to give back: its `hold` is 0.
    pub(crate) const fn new(
        (hold, silently): (u64, bool),
        requests: Arc<Mutex<Requests>>,
        alive: Option<Arc<ProcessFd>>,
    ) -> Self {
        Self { hold, silently, requests, _alive: alive }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.hold != 0 {
            self.requests.lock().release(self.hold, self.silently);
        }
    }
}

/// Bytes in the memory of the node on this host, which stay unchanged until this is dropped. The
/// node compared them with their checksum. Use and drop them soon, because they take memory from
/// all other work of the node. In a child of the process that borrowed them they are empty, and
/// dropping them there gives nothing back.
pub struct LentBytes {
    bytes: OfProcess<(ShmView, Arc<Held>)>,
}

impl LentBytes {
    pub(crate) fn new(bytes: ShmView, held: Arc<Held>) -> Self {
        Self { bytes: OfProcess::new((bytes, held)) }
    }
}

impl AsRef<[u8]> for LentBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get().map_or(&[], |(bytes, _)| bytes)
    }
}

impl fmt::Debug for LentBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentBytes").field("bytes", &self.as_ref().len()).finish_non_exhaustive()
    }
}
