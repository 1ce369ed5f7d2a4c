//! A disk in memory that fails and crashes on demand, the same way for the same seed.

mod crash;
mod image;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::{DISK_BLOCK, Disk, check_range, check_write, read_len};
use crate::pool::{Buf, SharedBuf};
use crate::rng::Rng;
pub use crash::CrashImages;
use image::{Image, Sectors};

/// The kind of operation that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A read.
    Read,
    /// A write or discard.
    Write,
    /// A sync.
    Sync,
}

/// An injected failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of operation it hits.
    pub kind: FaultKind,
    /// How many operations of that kind succeed first.
    pub after: u64,
    /// The error number of the operation, `libc::EIO` for instance.
    pub errno: i32,
    /// Bytes that are still transferred, for writes; rounded down to sectors.
    pub partial: usize,
}

impl Fault {
    /// `EIO` for the next operation of its kind after `after` successful ones.
    #[must_use]
    pub const fn eio(kind: FaultKind, after: u64) -> Self {
        Self { kind, after, errno: libc::EIO, partial: 0 }
    }
}

/// A disk in memory. Clones are the same disk.
///
/// It records every write and sync; [`FakeDisk::crash_images`] then replays every crash the record
/// allows. Operations complete at once. On a disk made with [`FakeDisk::with_yields`] they complete
/// after a seeded number of turns, so that concurrent ones interleave. It runs on any executor;
/// [`block_on`] is enough for one task.
#[derive(Clone, Debug)]
pub struct FakeDisk {
    state: Arc<Mutex<State>>,
    capacity: u64,
    /// Number of records of its parent's history in a crash image.
    crash_point: usize,
}

#[derive(Debug)]
struct State {
    image: Image,
    /// The content before the first record.
    origin: Image,
    history: Vec<Record>,
    /// Counts starts and returns of operations, to order them.
    events: u64,
    faults: Vec<Fault>,
    full: bool,
    /// Present when ranges must be reserved.
    room: Option<Room>,
    yields: Option<Rng>,
}

/// The reserved ranges, by their starts, and the bytes that can still be reserved.
#[derive(Debug, Default)]
struct Room {
    left: u64,
    ranges: BTreeSet<u64>,
}

#[derive(Clone, Debug)]
enum Record {
    Write {
        offset: u64,
        bytes: Arc<[u8]>,
        /// When the caller learned of its completion; absent for failed or dropped ones.
        returned: Option<u64>,
    },
    Sync {
        /// When it was requested: it covers the writes that had returned by then.
        started: u64,
    },
}

impl FakeDisk {
    /// A disk of `capacity` zero bytes. Only written blocks take memory.
    ///
    /// # Panics
    /// When `capacity` is not a multiple of 4 KiB.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        assert!(capacity.is_multiple_of(DISK_BLOCK), "a disk is made of 4 KiB blocks");
        Self::with_image(capacity, Image::default(), 0)
    }

    fn with_image(capacity: u64, image: Image, crash_point: usize) -> Self {
        let state = State {
            origin: image.clone(),
            image,
            history: Vec::new(),
            events: 0,
            faults: Vec::new(),
            full: false,
            room: None,
            yields: None,
        };
        Self { state: Arc::new(Mutex::new(state)), capacity, crash_point }
    }

    /// The same disk, with operations that yield a seeded number of times.
    #[must_use]
    pub fn with_yields(self, seed: u64) -> Self {
        self.state.lock().yields = Some(Rng::new(seed));
        self
    }

    /// Makes an operation fail, once.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Requires ranges to be reserved from now on, and limits further reservations to `bytes`.
    /// Ranges are identified by their starts. Whether a write hits a reserved range is not checked.
    pub fn set_room(&self, bytes: u64) {
        self.state.lock().room.get_or_insert_default().left = bytes;
    }

    /// Sets whether every write fails with `StorageFull` from now on.
    pub fn set_full(&self, full: bool) {
        self.state.lock().full = full;
    }

    /// Inverts one bit: `bit` 0 to 7 of the byte at `offset`. Not part of the history.
    pub fn flip_bit(&self, offset: u64, bit: u32) {
        let mut byte = [0];
        let mut state = self.state.lock();
        state.image.read(offset, &mut byte);
        byte[0] ^= 1u8 << (bit % 8);
        state.image.write(offset, &byte, &Sectors::All);
    }

    /// Reads any bytes, ignoring faults and alignment.
    pub fn peek(&self, offset: u64, into: &mut [u8]) {
        self.state.lock().image.read(offset, into);
    }

    /// Overwrites any bytes. Not part of the history.
    pub fn poke(&self, offset: u64, bytes: &[u8]) {
        self.state.lock().image.write(offset, bytes, &Sectors::All);
    }

    /// Starts of the 4 KiB blocks that were ever written, in order.
    #[must_use]
    pub fn written_blocks(&self) -> Vec<u64> {
        self.state.lock().image.blocks()
    }

    /// Writes and syncs recorded so far.
    ///
    /// Note it when an acknowledgement arrives: every crash image with a [`FakeDisk::crash_point`]
    /// of at least that must hold the acknowledged data.
    #[must_use]
    pub fn history_len(&self) -> usize {
        self.state.lock().history.len()
    }

    /// Number of records of the crashed disk's history before the crash, for a crash image.
    #[must_use]
    pub const fn crash_point(&self) -> usize {
        self.crash_point
    }

    /// Declares the current content durable and starts a new history.
    pub fn forget_history(&self) {
        let mut state = self.state.lock();
        state.origin = state.image.clone();
        state.history.clear();
    }

    /// Possible contents of this disk after a crash, at most `limit` images.
    ///
    /// For every prefix of the history, an image has all writes that a sync covers. Of the other
    /// writes it has all, none, and then (within `limit`, which is spread evenly over the prefixes)
    /// every subset, and seeded choices of whole, lost and torn writes, at 512-byte sectors. A
    /// prefix without uncovered writes has one image. When there are more prefixes than `limit`,
    /// evenly spaced ones are taken.
    #[must_use]
    pub fn crash_images(&self, limit: usize, seed: u64) -> CrashImages {
        let state = self.state.lock();
        CrashImages::new(
            self.capacity,
            state.origin.clone(),
            state.history.clone(),
            limit,
            Rng::new(seed),
        )
    }

    /// Lets other tasks run, on a disk that yields.
    async fn pause(&self) {
        let turns = self.state.lock().yields.as_mut().map_or(0, |rng| rng.below(4));
        for _ in 0..turns {
            crate::rt::yield_now().await;
        }
    }

    /// Performs and records one write; the error comes from faults.
    async fn write_bytes(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.pause().await;
        let place = {
            let mut state = self.state.lock();
            let fault = state.next_fault(FaultKind::Write);
            if state.full {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            let len = match fault {
                Some(fault) => fault.partial.min(bytes.len()) / SECTOR * SECTOR,
                None => bytes.len(),
            };
            if len > 0 {
                state.image.write(offset, &bytes[..len], &Sectors::All);
                let bytes = bytes[..len].into();
                state.history.push(Record::Write { offset, bytes, returned: None });
            }
            if let Some(fault) = fault {
                return Err(io::Error::from_raw_os_error(fault.errno));
            }
            state.history.len().checked_sub(1)
        };
        self.pause().await;
        let mut state = self.state.lock();
        state.events += 1;
        let now = state.events;
        // A new history may have begun in the meantime.
        let record = place.and_then(|place| state.history.get_mut(place));
        if let Some(Record::Write { returned, offset: at, .. }) = record
            && *at == offset
        {
            *returned = Some(now);
        }
        Ok(())
    }
}

/// Unit that a disk writes completely or not at all.
const SECTOR: usize = 512;

impl State {
    /// The fault that hits this operation of `kind`, if any.
    fn next_fault(&mut self, kind: FaultKind) -> Option<Fault> {
        let due = self.faults.iter().position(|fault| fault.kind == kind && fault.after == 0);
        for fault in self.faults.iter_mut().filter(|fault| fault.kind == kind) {
            fault.after = fault.after.saturating_sub(1);
        }
        due.map(|index| self.faults.swap_remove(index))
    }
}

impl Disk for FakeDisk {
    fn takes_room(&self) -> bool {
        self.state.lock().room.is_some()
    }

    async fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        check_range(self.capacity, offset, len)?;
        self.pause().await;
        let mut state = self.state.lock();
        let Some(room) = &mut state.room else { return Ok(()) };
        if room.ranges.contains(&offset) {
            return Ok(());
        }
        if room.left < len {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        room.left -= len;
        room.ranges.insert(offset);
        Ok(())
    }

    /// As for a file, so that tests run the code for such disks.
    fn first_write_is_dear(&self) -> bool {
        true
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    async fn read(&self, offset: u64, mut buf: Buf) -> (Buf, io::Result<()>) {
        let len = read_len(&buf);
        if let Err(error) = check_range(self.capacity, offset, len as u64) {
            return (buf, Err(error));
        }
        self.pause().await;
        let mut state = self.state.lock();
        if let Some(fault) = state.next_fault(FaultKind::Read) {
            return (buf, Err(io::Error::from_raw_os_error(fault.errno)));
        }
        state.image.read(offset, &mut buf.as_full_mut()[..len]);
        (buf, Ok(()))
    }

    async fn write(&self, offset: u64, buf: SharedBuf) -> io::Result<()> {
        let bytes = check_write(self.capacity, offset, &buf)?;
        self.write_bytes(offset, bytes).await
    }

    async fn sync(&self) -> io::Result<()> {
        let started = {
            let mut state = self.state.lock();
            state.events += 1;
            state.events
        };
        self.pause().await;
        {
            let mut state = self.state.lock();
            if let Some(fault) = state.next_fault(FaultKind::Sync) {
                return Err(io::Error::from_raw_os_error(fault.errno));
            }
            state.history.push(Record::Sync { started });
        }
        self.pause().await;
        Ok(())
    }

    async fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        check_range(self.capacity, offset, len)?;
        let step = 1u64 << 20;
        let zeros = vec![0; usize::try_from(step.min(len)).unwrap_or(0)];
        let mut done = 0;
        while done < len {
            let count = usize::try_from(step.min(len - done)).unwrap_or(0);
            self.write_bytes(offset + done, &zeros[..count]).await?;
            done += count as u64;
        }
        Ok(())
    }
}

/// Runs one future to its end on this thread, polling until it is ready. For tests on a
/// [`FakeDisk`], whose operations need no waker.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::yield_now();
    }
}

/// Runs futures together on this thread, each polled once a round in an order drawn from `seed`: a
/// small deterministic scheduler for concurrent operations on a [`FakeDisk`].
pub async fn race_all<T>(futures: Vec<impl Future<Output = T>>, seed: u64) -> Vec<T> {
    let mut rng = Rng::new(seed);
    let mut running: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    let mut outputs: Vec<Option<T>> = running.iter().map(|_| None).collect();
    let mut order: Vec<usize> = (0..running.len()).collect();
    poll_fn(|context| {
        rng.shuffle(&mut order);
        for &index in &order {
            let Some(future) = &mut running[index] else { continue };
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                outputs[index] = Some(output);
                running[index] = None;
            }
        }
        if running.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
