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

/// Which operation a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A read.
    Read,
    /// A write or discard.
    Write,
    /// A sync.
    Sync,
}

/// A failure to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which operation it hits.
    pub kind: FaultKind,
    /// How many operations of that kind succeed first.
    pub after: u64,
    /// The error number of the operation, `libc::EIO` for instance.
    pub errno: i32,
    /// Bytes that are still transferred, for writes; rounded down to sectors.
    pub partial: usize,
}

impl Fault {
    /// `EIO` for the operation after the next `after` ones of its kind.
    #[must_use]
    pub const fn eio(kind: FaultKind, after: u64) -> Self {
        Self { kind, after, errno: libc::EIO, partial: 0 }
    }
}

/// A disk in memory. Clones are the same disk.
///
/// It records every write and sync; [`FakeDisk::crash_images`] then plays every crash the record
/// allows. Operations complete at once, or, made with [`FakeDisk::with_yields`], after a seeded
/// number of turns, so that concurrent ones interleave. It runs on any executor; [`block_on`] is
/// enough for one task.
#[derive(Clone, Debug)]
pub struct FakeDisk {
    state: Arc<Mutex<State>>,
    capacity: u64,
    /// How many records of its parent's history a crash image includes.
    crash_point: usize,
}

#[derive(Debug)]
struct State {
    image: Image,
    /// The content before the first record.
    origin: Image,
    history: Vec<Record>,
    /// Counts starts and returns of operations, to tell which came before which.
    events: u64,
    faults: Vec<Fault>,
    full: bool,
    /// Where ranges must be reserved.
    room: Option<Room>,
    yields: Option<Rng>,
}

/// Which ranges are reserved, by their starts, and how many bytes more can be.
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
        /// When the caller learned of its completion; never for failed or dropped ones.
        returned: Option<u64>,
    },
    Sync {
        /// When it was asked for: it covers the writes that had returned by then.
        started: u64,
    },
}

impl FakeDisk {
    /// A disk of `capacity` zero bytes. Only what is written takes memory.
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

    /// The same disk, whose operations yield a seeded number of times.
    #[must_use]
    pub fn with_yields(self, seed: u64) -> Self {
        self.state.lock().yields = Some(Rng::new(seed));
        self
    }

    /// Makes an operation fail, once.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// From now on ranges must be reserved, and so many bytes of those that are not can be; ranges are known by their
    /// starts. Whether a write goes to a reserved one is not checked.
    pub fn set_room(&self, bytes: u64) {
        self.state.lock().room.get_or_insert_default().left = bytes;
    }

    /// From now on every write fails with `StorageFull`, or no longer does.
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

    /// Reads any bytes, past faults and alignment.
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

    /// Writes and syncs recorded so far. Remember it when an acknowledgement arrives: every crash
    /// image whose [`FakeDisk::crash_point`] is at least that must hold what was acknowledged.
    #[must_use]
    pub fn history_len(&self) -> usize {
        self.state.lock().history.len()
    }

    /// Of a crash image: how many records of the crashed disk's history happened before the crash.
    #[must_use]
    pub const fn crash_point(&self) -> usize {
        self.crash_point
    }

    /// Declares the present content durable and starts a new history.
    pub fn forget_history(&self) {
        let mut state = self.state.lock();
        state.origin = state.image.clone();
        state.history.clear();
    }

    /// What this disk may hold after a crash, at most `limit` images of it.
    ///
    /// For every prefix of the history: the writes that a sync covers are there; of the others, all,
    /// none, and then (while `limit` lasts, which is spread evenly over the prefixes) every subset,
    /// and seeded choices of whole, lost and torn writes, at 512-byte sectors. A prefix without
    /// uncovered writes has one image. When there are more prefixes than `limit`, evenly spaced ones
    /// are taken.
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

    /// Lets other tasks run, when the disk was made so.
    async fn pause(&self) {
        let turns = self.state.lock().yields.as_mut().map_or(0, |rng| rng.below(4));
        for _ in 0..turns {
            crate::rt::yield_now().await;
        }
    }

    /// Starts and takes part in one write; the error comes from faults.
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
        // A new history may have begun meanwhile.
        let record = place.and_then(|place| state.history.get_mut(place));
        if let Some(Record::Write { returned, offset: at, .. }) = record
            && *at == offset
        {
            *returned = Some(now);
        }
        Ok(())
    }
}

/// Bytes that a disk writes wholly or not at all.
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

    /// What is done for such disks is done here too.
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
/// [`FakeDisk`], whose operations need nobody to wake them.
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

/// Runs futures together on this thread, each polled in an order drawn from `seed` every round: a
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
