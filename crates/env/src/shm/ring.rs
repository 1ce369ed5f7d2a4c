//! A queue of byte records from one process to another, in shared memory.
//!
//! Layout at its offset, little endian, one counter per cache line:
//!
//! | at | content |
//! |---|---|
//! | 0 | `tail`, u32: bytes ever put in, modulo 2³²; written by the producer |
//! | 64 | `head`, u32: bytes ever taken out, modulo 2³²; written by the consumer |
//! | 128 | 1 while the consumer sleeps |
//! | 192 | 1 while the producer sleeps |
//! | 256 | the bytes, a power of two: records of a u32 length, the bytes, and padding to 8 |
//!
//! Each side keeps its own counter in private memory and only publishes it. It checks the other
//! side's counter for plausibility, so a hostile peer can lose its own messages and nothing else.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use millpond_types::Tick;

use super::futex;
use super::region::ShmRegion;
use crate::clock::RealClock;
use crate::error::EnvError;
use crate::rt;
use crate::sys::EventFd;
use std::os::fd::AsFd;

/// Bytes of a ring before its records.
pub const RING_HEADER: u64 = 256;

const TAIL: u64 = 0;
const HEAD: u64 = 64;
const CONSUMER_ASLEEP: u64 = 128;
const PRODUCER_ASLEEP: u64 = 192;
const CAPACITY_MIN: u32 = 64;
const CAPACITY_MAX: u32 = 1 << 30;
/// Longest sleep before checking again; only bounds the harm of a peer that does not wake.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Fatal error of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The other side's counters or lengths are inconsistent: close the connection.
    #[error("the peer's shared-memory ring is corrupt: {0}")]
    Corrupt(&'static str),
    /// The record can never fit.
    #[error("a record of {len} bytes does not fit a ring that takes {max}: send it as payload")]
    TooLong {
        /// Bytes of the record.
        len: usize,
        /// Bytes of the longest record.
        max: usize,
    },
}

/// Means of waking the other side when it sleeps.
#[derive(Debug)]
pub enum RingWake {
    /// It sleeps on the ring's counter: a blocking client.
    Futex,
    /// It polls this event: a core's loop.
    Event(EventFd),
}

/// Bytes of a record in the ring: length word, bytes, padding.
const fn footprint(len: u32) -> u32 {
    (4 + len).next_multiple_of(8)
}

#[derive(Debug)]
struct Ring {
    region: ShmRegion,
    offset: u64,
    capacity: u32,
    wake: RingWake,
}

impl Ring {
    fn new(
        region: ShmRegion,
        offset: u64,
        capacity: u32,
        wake: RingWake,
    ) -> Result<Self, EnvError> {
        let fits = offset
            .checked_add(RING_HEADER + u64::from(capacity))
            .is_some_and(|end| end <= region.len() as u64);
        let sensible = capacity.is_power_of_two()
            && (CAPACITY_MIN..=CAPACITY_MAX).contains(&capacity)
            && offset.is_multiple_of(64);
        if !fits || !sensible {
            return Err(EnvError::Hostile("a ring has an invalid place or capacity"));
        }
        let ring = Self { region, offset, capacity, wake };
        ring.region.word(offset)?;
        Ok(ring)
    }

    fn word(&self, at: u64) -> &AtomicU32 {
        self.region.word(self.offset + at).expect("the place was checked when the ring was made")
    }

    /// The bytes of the record area that start at `position`, as up to two ranges.
    fn ranges(&self, position: u32, len: usize) -> [(u64, usize); 2] {
        let start = (position & (self.capacity - 1)) as usize;
        let first = len.min(self.capacity as usize - start);
        let base = self.offset + RING_HEADER;
        [(base + start as u64, first), (base, len - first)]
    }

    fn put(&self, position: u32, bytes: &[u8]) {
        let [(first, count), (second, _)] = self.ranges(position, bytes.len());
        let (left, right) = bytes.split_at(count);
        let done = self.region.copy_in(first, left).and(self.region.copy_in(second, right));
        done.expect("the place was checked when the ring was made");
    }

    fn take(&self, position: u32, into: &mut [u8]) {
        let [(first, count), (second, _)] = self.ranges(position, into.len());
        let (left, right) = into.split_at_mut(count);
        let done = self.region.copy_out(first, left).and(self.region.copy_out(second, right));
        done.expect("the place was checked when the ring was made");
    }

    /// Wakes the other side if it sleeps, according to `flag`; a futex sleeps on `word`.
    fn wake_if_asleep(&self, flag: u64, word: u64) {
        // Orders the counter just published before the read of the flag; the sleeper does the
        // reverse, so one of both sees the other.
        fence(Ordering::SeqCst);
        let flag = self.word(flag);
        if flag.load(Ordering::Relaxed) == 0 {
            return;
        }
        flag.store(0, Ordering::Relaxed);
        match &self.wake {
            RingWake::Futex => futex::wake(self.word(word)),
            RingWake::Event(event) => event.notify(),
        }
    }

    /// Announces that this side is about to sleep until `word` differs from `seen`; false when it
    /// already does.
    fn fall_asleep(&self, flag: u64, word: u64, seen: u32) -> bool {
        self.word(flag).store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.word(word).load(Ordering::Relaxed) == seen {
            return true;
        }
        self.word(flag).store(0, Ordering::Relaxed);
        false
    }

    /// Blocks until `word` differs from `seen`, or `deadline`; spins for `spin` first.
    fn block(&self, (flag, word): (u64, u64), seen: u32, spin: Duration, deadline: Tick) {
        let moved = || self.word(word).load(Ordering::Relaxed) != seen;
        let spin_end = RealClock::tick().plus(spin).min(deadline);
        loop {
            for _ in 0..64 {
                if moved() {
                    return;
                }
                std::hint::spin_loop();
            }
            if RealClock::tick() >= spin_end {
                break;
            }
        }
        if self.fall_asleep(flag, word, seen) {
            let left = deadline.since(RealClock::tick()).min(SLEEP_MAX);
            futex::wait(self.word(word), seen, left);
            self.word(flag).store(0, Ordering::Relaxed);
        }
    }

    /// Waits on `event` until `word` differs from `seen`, or another notification arrives.
    async fn wait(
        &self,
        (flag, word): (u64, u64),
        seen: u32,
        event: &EventFd,
    ) -> std::io::Result<()> {
        if self.fall_asleep(flag, word, seen) {
            let result = rt::readable(event.as_fd()).await;
            let _ = event.take();
            self.word(flag).store(0, Ordering::Relaxed);
            return result;
        }
        Ok(())
    }
}

/// The sending side of a ring. Exactly one may exist.
#[derive(Debug)]
pub struct RingProducer {
    ring: Ring,
    tail: u32,
}

impl RingProducer {
    /// The producer of the empty ring at `offset` of `region`, with `capacity` bytes of records;
    /// `wake` wakes the consumer.
    ///
    /// # Errors
    /// [`EnvError::Hostile`] when the ring does not lie within the region, or its capacity is not a
    /// power of two from 64 B to 1 GiB.
    pub fn new(
        region: ShmRegion,
        offset: u64,
        capacity: u32,
        wake: RingWake,
    ) -> Result<Self, EnvError> {
        Ok(Self { ring: Ring::new(region, offset, capacity, wake)?, tail: 0 })
    }

    /// Bytes of the longest record: half the ring, so that it fits at every position.
    #[must_use]
    pub const fn record_max(&self) -> usize {
        self.ring.capacity as usize / 2 - 8
    }

    /// Adds one record made of `parts` and wakes the consumer if it sleeps; false when there is no
    /// room now.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn try_push(&mut self, parts: &[&[u8]]) -> Result<bool, RingError> {
        let pushed = self.try_push_silently(parts)?;
        if pushed {
            self.ring.wake_if_asleep(CONSUMER_ASLEEP, TAIL);
        }
        Ok(pushed)
    }

    /// Adds one record without waking the consumer, for records that may wait until another one
    /// wakes it or it polls; false when there is no room now.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn try_push_silently(&mut self, parts: &[&[u8]]) -> Result<bool, RingError> {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        let Some(word) = u32::try_from(len).ok().filter(|_| len <= self.record_max()) else {
            return Err(RingError::TooLong { len, max: self.record_max() });
        };
        let room = self.ring.capacity - self.used(self.head())?;
        if footprint(word) > room {
            return Ok(false);
        }
        self.ring.put(self.tail, &word.to_le_bytes());
        let mut at = self.tail.wrapping_add(4);
        for part in parts {
            self.ring.put(at, part);
            #[expect(clippy::cast_possible_truncation, reason = "a part of a record is shorter")]
            let step = part.len() as u32;
            at = at.wrapping_add(step);
        }
        self.tail = self.tail.wrapping_add(footprint(word));
        self.ring.word(TAIL).store(self.tail, Ordering::Release);
        Ok(true)
    }

    /// Like [`RingProducer::try_push`], blocking while there is no room; false at `deadline`.
    ///
    /// # Errors
    /// [`RingError`].
    pub fn push(&mut self, parts: &[&[u8]], deadline: Tick) -> Result<bool, RingError> {
        loop {
            let head = self.head();
            if self.try_push(parts)? {
                return Ok(true);
            }
            if RealClock::tick() >= deadline {
                return Ok(false);
            }
            self.ring.block((PRODUCER_ASLEEP, HEAD), head, Duration::ZERO, deadline);
        }
    }

    /// Waits on this core until the consumer has taken a record since the last refused
    /// [`RingProducer::try_push`]; `event` is the one the consumer notifies. May return early.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub async fn wait_room(&mut self, event: &EventFd) -> std::io::Result<()> {
        let head = self.head();
        if self.used(head).is_ok_and(|used| used <= self.ring.capacity / 2) {
            return Ok(());
        }
        self.ring.wait((PRODUCER_ASLEEP, HEAD), head, event).await
    }

    fn head(&self) -> u32 {
        self.ring.word(HEAD).load(Ordering::Acquire)
    }

    fn used(&self, head: u32) -> Result<u32, RingError> {
        let used = self.tail.wrapping_sub(head);
        if used > self.ring.capacity || !used.is_multiple_of(8) {
            return Err(RingError::Corrupt("its head is not between the records"));
        }
        Ok(used)
    }
}

/// The receiving side of a ring. Exactly one may exist.
#[derive(Debug)]
pub struct RingConsumer {
    ring: Ring,
    head: u32,
}

impl RingConsumer {
    /// The consumer of the empty ring at `offset` of `region`, with `capacity` bytes of records;
    /// `wake` wakes the producer.
    ///
    /// # Errors
    /// As for [`RingProducer::new`].
    pub fn new(
        region: ShmRegion,
        offset: u64,
        capacity: u32,
        wake: RingWake,
    ) -> Result<Self, EnvError> {
        Ok(Self { ring: Ring::new(region, offset, capacity, wake)?, head: 0 })
    }

    /// Copies the next record into `into`, replacing its content; false when there is none.
    ///
    /// # Errors
    /// [`RingError::Corrupt`].
    pub fn try_pop(&mut self, into: &mut Vec<u8>) -> Result<bool, RingError> {
        let used = self.tail().wrapping_sub(self.head);
        if used == 0 {
            return Ok(false);
        }
        if used > self.ring.capacity || !used.is_multiple_of(8) {
            return Err(RingError::Corrupt("its tail is not between the records"));
        }
        let mut word = [0; 4];
        self.ring.take(self.head, &mut word);
        let len = u32::from_le_bytes(word);
        if len > used || footprint(len) > used {
            return Err(RingError::Corrupt("a record is longer than what was put in"));
        }
        into.clear();
        into.resize(len as usize, 0);
        self.ring.take(self.head.wrapping_add(4), into);
        self.head = self.head.wrapping_add(footprint(len));
        self.ring.word(HEAD).store(self.head, Ordering::Release);
        self.ring.wake_if_asleep(PRODUCER_ASLEEP, HEAD);
        Ok(true)
    }

    /// Like [`RingConsumer::try_pop`], blocking while there is none; false at `deadline`. Spins for
    /// `spin` before it sleeps.
    ///
    /// # Errors
    /// [`RingError::Corrupt`].
    pub fn pop(
        &mut self,
        into: &mut Vec<u8>,
        spin: Duration,
        deadline: Tick,
    ) -> Result<bool, RingError> {
        loop {
            if self.try_pop(into)? {
                return Ok(true);
            }
            if RealClock::tick() >= deadline {
                return Ok(false);
            }
            self.ring.block((CONSUMER_ASLEEP, TAIL), self.head, spin, deadline);
        }
    }

    /// True when a record waits. Costs one load: for loops that check before they sleep.
    #[must_use]
    pub fn has_record(&self) -> bool {
        self.tail() != self.head
    }

    /// Waits on this core until there is a record; `event` is the one the producer notifies. May
    /// return early.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub async fn wait_record(&mut self, event: &EventFd) -> std::io::Result<()> {
        self.ring.wait((CONSUMER_ASLEEP, TAIL), self.head, event).await
    }

    fn tail(&self) -> u32 {
        self.ring.word(TAIL).load(Ordering::Acquire)
    }
}
