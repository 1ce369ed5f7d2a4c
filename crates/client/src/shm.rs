//! Frames through shared memory: rings for requests and replies; values are read from the server's
//! buffer pool and written to an arena (RFC 0002).

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use millpond_env::{
    EnvError, EventFd, Mutex, ProcessFd, RING_HEADER, RealClock, RingConsumer, RingError,
    RingProducer, RingWake, ShmAccess, ShmMemory, ShmRegion,
};
use millpond_types::wire::{ChunkWriteRequest, PutItem, WireError};
use millpond_types::wire::{FrameHeader, GetReply, HEADER_BYTES, ItemStatus, ShmAttachReply};
use millpond_types::{Crc32c, Tick};

use crate::arena::Arena;
use crate::call::{GetOutcome, Items, Reads, Value};
use crate::lent::{Held, LentBytes, Requests};
use crate::stream::{StreamError, check_get, note};

/// Bytes copied at once, so that the checksum finds them in the cache.
const COPY_BYTES: usize = 64 << 10;
/// The client wakes the server when at least this many bytes of its memory are free again. The
/// server notices smaller lent amounts by itself, after 250 ms at the latest.
const LOUD_BYTES: u64 = 4 << 20;
/// Longest sleep before checking that the server is still alive.
const NAP: Duration = Duration::from_millis(50);
/// Replies in a row that arrived after the spin before spinning is no longer tried each time.
const SPIN_FAILURES_MAX: u32 = 16;

/// The shared-memory side of a connection.
#[derive(Debug)]
pub(crate) struct ShmLink {
    pool: ShmRegion,
    region: ShmRegion,
    requests: Arc<Mutex<Requests>>,
    /// Descriptor that the server watches, if it lends values.
    alive: Option<Arc<ProcessFd>>,
    replies: RingConsumer,
    pub(crate) arena: Arena,
    record: Vec<u8>,
    /// The record was taken from the ring but not yet processed.
    taken: bool,
    spin: Duration,
    spin_failures: u32,
}

impl From<RingError> for StreamError {
    fn from(error: RingError) -> Self {
        match error {
            RingError::Corrupt(what) => Self::Unexpected(what),
            RingError::TooLong { .. } => Self::Unexpected("a record too long for its ring"),
        }
    }
}

impl From<EnvError> for StreamError {
    fn from(error: EnvError) -> Self {
        match error {
            EnvError::Hostile(what) => Self::Unexpected(what),
            other => Self::Io(std::io::Error::other(other)),
        }
    }
}

impl ShmLink {
    /// Maps the server's memory: its pool, the arena and its wake-up event. If the server lends
    /// values, takes the end of a pipe that it watches.
    pub(crate) fn new(
        reply: &ShmAttachReply,
        fds: Vec<OwnedFd>,
        spin: Duration,
    ) -> Result<Self, StreamError> {
        let mut fds = fds.into_iter();
        let (Some(pool), Some(arena), Some(event)) = (fds.next(), fds.next(), fds.next()) else {
            return Err(StreamError::Unexpected("shared memory without its three descriptors"));
        };
        let alive = fds.next().map(ProcessFd::new).map(Arc::new);
        let size = |bytes: u64| {
            usize::try_from(bytes).map_err(|_| StreamError::Wire(WireError::Field("bytes")))
        };
        let pool = ShmRegion::from_fd(pool, size(reply.pool_bytes)?, ShmAccess::ReadOnly)?;
        let region = ShmRegion::from_fd(arena, size(reply.arena_bytes)?, ShmAccess::ReadWrite)?;
        let capacity = reply
            .ring_bytes
            .checked_sub(RING_HEADER)
            .and_then(|bytes| u32::try_from(bytes).ok())
            .ok_or(StreamError::Unexpected("a ring of impossible size"))?;
        let wake = RingWake::Event(EventFd::from_owned(event));
        let requests = Requests::new(RingProducer::new(region.clone(), 0, capacity, wake)?);
        let requests = Arc::new(Mutex::new(requests));
        let replies =
            RingConsumer::new(region.clone(), reply.ring_bytes, capacity, RingWake::Futex)?;
        let arena = Arena::new(reply.payload_offset, reply.arena_bytes);
        let record = Vec::new();
        let (taken, spin_failures) = (false, 0);
        Ok(Self {
            pool,
            region,
            requests,
            alive,
            replies,
            arena,
            record,
            taken,
            spin,
            spin_failures,
        })
    }

    /// Lends the whole arena to the caller as memory: values in it stay in place, and no others go
    /// through it. None when it has fewer than `bytes`.
    pub(crate) fn lend(
        &mut self,
        bytes: usize,
    ) -> Result<Option<(ShmRegion, ShmMemory)>, StreamError> {
        let mut memory = self.region.lend(self.arena.start())?;
        self.arena = Arena::new(0, 0);
        Ok(memory.split_to(bytes).map(|memory| (self.region.clone(), memory)))
    }

    /// Offset of a value in the arena, if it is in lent memory.
    fn lent(&self, value: &Value<'_>) -> Option<u64> {
        match value {
            Value::One(piece) => self.region.offset_of(piece),
            Value::Many(_) => None,
        }
    }

    /// Bytes of the arena for values that are not in it yet.
    pub(crate) fn bytes_for(&self, values: &[Value<'_>]) -> u64 {
        let foreign = values.iter().filter(|value| self.lent(value).is_none());
        foreign.map(|value| value.len() as u64).sum()
    }

    /// Puts the values of the write `id` in the arena, except those that are in it, and records
    /// checksums and offsets; false when there is no room now.
    pub(crate) fn place(
        &mut self,
        id: u64,
        values: &[Value<'_>],
        request: &mut ChunkWriteRequest,
    ) -> Result<bool, StreamError> {
        let foreign = self.bytes_for(values);
        let mut next = match foreign {
            0 => 0,
            bytes => match self.arena.take(id, bytes) {
                Some(at) => at,
                None => return Ok(false),
            },
        };
        request.arena.clear();
        for (value, part) in values.iter().zip(&mut request.parts) {
            let at = if let Some(at) = self.lent(value) {
                part.crc =
                    value.pieces().iter().fold(Crc32c::EMPTY, |crc, piece| crc.append(piece));
                at
            } else {
                part.crc = self.copy_one(next, value)?;
                next += value.len() as u64;
                next - value.len() as u64
            };
            request.arena.push(at);
        }
        Ok(true)
    }

    /// Whether the server lends values to this client.
    pub(crate) const fn lends(&self) -> bool {
        self.alive.is_some()
    }

    /// Longest metadata of a request or reply that fits in a ring.
    pub(crate) fn meta_max(&self) -> usize {
        self.requests.lock().record_max() - HEADER_BYTES
    }

    /// Puts a request in the ring and wakes the server if it sleeps; false at the deadline.
    pub(crate) fn push(&mut self, head: &[u8], deadline: Tick) -> Result<bool, StreamError> {
        Ok(self.requests.lock().push(head, deadline)?)
    }

    /// Waits for the next reply; false when `wait` passed first.
    pub(crate) fn ready(&mut self, wait: Duration) -> Result<bool, StreamError> {
        if !self.taken {
            self.taken = self.replies.try_pop(&mut self.record)?
                || !wait.is_zero() && self.wait(RealClock::tick().plus(wait))?;
        }
        Ok(self.taken)
    }

    /// Takes the next reply; none at the deadline or after a sleep of 50 ms, when the caller checks
    /// that the server is still alive.
    pub(crate) fn pop(
        &mut self,
        deadline: Tick,
    ) -> Result<Option<(FrameHeader, &[u8])>, StreamError> {
        let taken = std::mem::take(&mut self.taken);
        if !taken && !self.replies.try_pop(&mut self.record)? && !self.wait(deadline)? {
            return Ok(None);
        }
        let (head, meta) =
            self.record.split_first_chunk::<HEADER_BYTES>().ok_or(WireError::Truncated)?;
        let header = FrameHeader::decode(head)?;
        if meta.len() != header.meta_len as usize {
            return Err(StreamError::Unexpected(
                "a record with a length that differs from its header",
            ));
        }
        header.check_meta(meta)?;
        Ok(Some((header, meta)))
    }

    /// Waits for a reply and spins only while that pays off: if replies keep arriving later, only
    /// every eighth wait spins.
    fn wait(&mut self, deadline: Tick) -> Result<bool, StreamError> {
        let now = RealClock::tick();
        let give_up =
            self.spin_failures >= SPIN_FAILURES_MAX && !self.spin_failures.is_multiple_of(8);
        let spin = if give_up { Duration::ZERO } else { self.spin };
        let got = self.replies.pop(&mut self.record, spin, deadline.min(now.plus(NAP)))?;
        if got && RealClock::tick().since(now) <= spin {
            self.spin_failures = 0;
        } else {
            self.spin_failures = self.spin_failures.wrapping_add(1).max(1);
        }
        Ok(got)
    }

    /// Delivers values from the pool: copies them to their rooms and gives them back, or lends
    /// them. A wrong checksum is a miss.
    pub(crate) fn take_values(
        &self,
        reply: &GetReply,
        (items, reads): (&Items, &mut Reads<'_, '_>),
    ) -> Result<(), StreamError> {
        let total = reply.items.iter().filter(|item| item.status == ItemStatus::Ok);
        let total: u64 = total.map(|item| u64::from(item.len)).sum();
        // A copy ends soon, and the woken server is then awake for the next request. After long use
        // it would fall asleep again before that.
        let silently = self.lends() && !reads.lent.is_empty() && total < LOUD_BYTES;
        let (requests, alive) = (Arc::clone(&self.requests), self.alive.clone());
        let held = Arc::new(Held::new((reply.hold, silently), requests, alive));
        check_get(reply, (items, reads), total)?;
        for (index, item) in reply.items.iter().enumerate() {
            let index = items.at(index);
            if !note(item, index, reads) {
                continue;
            }
            if self.lends()
                && item.len as usize == reads.rooms[index].len()
                && let Some(lent) = reads.lent.get_mut(index)
            {
                let bytes = self.pool.view(item.pool_offset, item.len as usize)?;
                if Crc32c::of(&bytes) == item.crc {
                    *lent = Some(LentBytes::new(bytes, Arc::clone(&held)));
                } else {
                    reads.out[index] = GetOutcome::Miss;
                }
                continue;
            }
            let mut at = item.pool_offset;
            let mut crc = Crc32c::EMPTY;
            reads.rooms[index].fill(item.len as usize, |piece| {
                let got = self.pool.copy_out_checksummed(at, piece)?;
                crc = if at == item.pool_offset { got } else { crc.combine(got, piece.len()) };
                at += piece.len() as u64;
                Ok::<(), EnvError>(())
            })?;
            if crc != item.crc {
                reads.out[index] = GetOutcome::Miss;
            }
        }
        Ok(())
    }

    /// Copies values to the arena at `at` and records their checksums.
    pub(crate) fn copy_in(
        &self,
        mut at: u64,
        values: &[Value<'_>],
        items: &mut [PutItem],
    ) -> Result<(), StreamError> {
        for (value, item) in values.iter().zip(items) {
            item.crc = self.copy_one(at, value)?;
            at += value.len() as u64;
        }
        Ok(())
    }

    /// Copies one value to the arena at `at` and returns its checksum.
    fn copy_one(&self, mut at: u64, value: &Value<'_>) -> Result<Crc32c, StreamError> {
        let mut crc = Crc32c::EMPTY;
        for piece in value.pieces().iter().flat_map(|piece| piece.chunks(COPY_BYTES)) {
            crc = crc.append(piece);
            self.region.copy_in(at, piece)?;
            at += piece.len() as u64;
        }
        Ok(crc)
    }
}
