//! Read-ahead: fetches bytes before they are requested.
//!
//! `detect` predicts them; here threads fetch them, and they are held until they are read or become
//! invalid. Held bytes are never older than the kernel may keep them in a mount of the same mode
//! (docs/mount.md, "Read-ahead"):
//! - they belong to one version of one file, as counted by metas, and are dropped when a newer one
//!   is known;
//! - they are dropped when a change is reported, and before a write or cut through this mount is
//!   answered; fetches in flight at that moment are discarded;
//! - they are dropped when they are too old;
//! - a strict mount has none.
//!
//! Fetched bytes are used once, because the kernel has a cache. Reads past that cache (`O_DIRECT`)
//! would wait for the cluster each time they return to the same place (`again`). Such places are
//! held too, under the same rules, and serve any number of reads.

mod again;
mod detect;
mod store;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use millpond_client::FileBytes as Bytes;
use millpond_env::{RealClock, thread};
use millpond_types::Tick;
use millpond_types::meta::{Attr, Ino};
use millpond_types::metrics::Counter;
use parking_lot::{Condvar, Mutex};

use self::again::Places;
pub(crate) use self::detect::Span;
use self::detect::{Detector, Limits};
pub(crate) use self::store::Piece;
use self::store::{Found, Pieces};
use crate::backend::Backend;
use crate::budget::Memory;
use crate::options::Mode;

/// Number of threads that fetch.
pub(crate) const FETCHERS: usize = 4;
/// The largest window of a pattern in bytes; a fraction of the memory also limits it.
const WINDOW_MAX: u64 = 8 << 20;
const PART_OF_MEMORY: u64 = 4;
/// The largest piece in bytes of one call: several chunks, so that several chains work on it.
const PIECE_MAX: u64 = 1 << 20;
/// With a kernel read-ahead of this many bytes, sequential reads need no help.
const KERNEL_READS_ON: u32 = 1 << 20;
/// Bytes ordered this long ago make room for others.
const STALE: Duration = Duration::from_secs(1);
/// The largest number of inodes with a detector.
const INODES_MAX: usize = 1 << 14;
/// The largest number of pieces that wait for a thread.
const ORDERS_MAX: usize = 1024;

/// The version of a file that bytes belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    data: u64,
    attr: u64,
}

/// The state of one file.
#[derive(Debug)]
struct OfInode {
    version: Version,
    detector: Detector,
    pieces: Pieces,
}

impl OfInode {
    /// Drops all fetched and planned bytes.
    fn clear(&mut self) {
        self.pieces.clear();
        self.detector.begin_again();
    }
}

/// A piece to be fetched.
#[derive(Debug)]
struct Order {
    bytes: Bytes,
    piece: Arc<Piece>,
}

/// The metrics of read-ahead.
#[derive(Debug, Default)]
pub(crate) struct AheadNumbers {
    /// Bytes that were fetched, that were read, and that were dropped unread.
    pub(crate) fetched: Counter,
    pub(crate) used: Counter,
    pub(crate) wasted: Counter,
    /// Bytes of repeatedly read places: fetched, and read without a fetch.
    pub(crate) again_fetched: Counter,
    pub(crate) again_read: Counter,
}

/// The part of a read that was held.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Bytes filled from the beginning of the buffer.
    pub(crate) filled: usize,
    /// A piece to fetch in place of the missing bytes: it contains them, and its place is read
    /// often.
    pub(crate) often: Option<Arc<Piece>>,
}

/// State that the pieces of a mount share.
#[derive(Debug)]
struct Shared {
    memory: Arc<Memory>,
    numbers: AheadNumbers,
}

/// A read of the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The file's chunks and their base chunks.
    pub(crate) bytes: Bytes,
    pub(crate) span: Span,
    /// Whether the read bypasses the kernel's cache.
    pub(crate) direct: bool,
}

/// The read-ahead of a mount.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// How long bytes may be used; none in a mount without read-ahead.
    kept: Option<Duration>,
    shared: Arc<Shared>,
    inodes: Mutex<HashMap<Ino, Arc<Mutex<OfInode>>>>,
    /// Places of recent small direct reads.
    places: Mutex<Places>,
    /// All held pieces, the oldest first.
    held: Mutex<VecDeque<Arc<Piece>>>,
    orders: Mutex<VecDeque<Order>>,
    ordered: Condvar,
    ended: AtomicBool,
    /// The kernel's read-ahead in bytes.
    kernel: AtomicU32,
}

/// How long bytes may be used: no longer than the kernel may keep pages in a mount of this mode.
const fn kept(mode: Mode) -> Option<Duration> {
    match mode {
        Mode::Strict => None,
        // "Within a second", of which the fetch and the answer take a part.
        Mode::Relaxed => Some(Duration::from_millis(800)),
        Mode::CloseToOpen | Mode::OneWriter | Mode::ReadOnly => Some(Duration::from_secs(5)),
    }
}

impl Ahead {
    /// Makes an empty read-ahead. `wanted` is the mount's option.
    pub(crate) fn new(mode: Mode, wanted: bool, memory: Arc<Memory>) -> Self {
        let shared = Arc::new(Shared { memory, numbers: AheadNumbers::default() });
        Self {
            kept: kept(mode).filter(|_| wanted),
            shared,
            inodes: Mutex::default(),
            places: Mutex::default(),
            held: Mutex::default(),
            orders: Mutex::default(),
            ordered: Condvar::new(),
            ended: AtomicBool::new(false),
            kernel: AtomicU32::new(0),
        }
    }

    pub(crate) fn numbers(&self) -> &AheadNumbers {
        &self.shared.numbers
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.shared.memory
    }

    /// Sets the kernel's own read-ahead to `bytes`.
    pub(crate) fn kernel_reads(&self, bytes: u32) {
        self.kernel.store(bytes, Ordering::Relaxed);
    }

    /// Fills `buf` from its beginning with bytes fetched before.
    ///
    /// Records the read, and orders the bytes predicted to follow. `attr` must be as fresh as the
    /// mount's mode demands.
    pub(crate) fn read(&self, attr: &Attr, asked: Asked, buf: &mut [u8]) -> Held {
        let Some(kept) = self.kept else { return Held::default() };
        let Some(inode) = self.inode(attr) else { return Held::default() };
        let (now, mut filled) = (RealClock::tick(), 0);
        self.plan(&inode, (attr, asked), now);
        while filled < buf.len() {
            let at = asked.span.offset + filled as u64;
            let found = inode.lock().pieces.at(at, now, kept);
            let Found::Piece(piece) = found else { break };
            let copied = piece.copy(at, &mut buf[filled..]);
            if copied == 0 {
                inode.lock().pieces.drop_at(at);
                break;
            }
            filled += copied;
            let numbers = &self.shared.numbers;
            let counter = if piece.is_once() { &numbers.used } else { &numbers.again_read };
            counter.add(copied as u64);
            if piece.is_over() {
                inode.lock().pieces.drop_at(at);
            }
        }
        let is_nothing = filled == 0 && asked.direct;
        let often = if is_nothing { self.often(&inode, (attr, asked), now) } else { None };
        Held { filled, often }
    }

    /// Makes a reusable piece that contains this read, if its place is read often.
    fn often(
        &self,
        inode: &Mutex<OfInode>,
        (attr, asked): (&Attr, Asked),
        now: Tick,
    ) -> Option<Arc<Piece>> {
        let span = self.places.lock().read(attr.ino, asked.span, attr.size)?;
        let mut of = inode.lock();
        if of.pieces.overlaps(span) {
            return None;
        }
        let piece = self.room_for((span, false), now)?;
        of.pieces.add(Arc::clone(&piece));
        Some(piece)
    }

    /// Fetches a piece now, and reads from it; true when it filled `buf`.
    pub(crate) fn fetch_now(
        &self,
        backend: &Backend,
        (piece, asked): (&Piece, Asked),
        buf: &mut [u8],
    ) -> bool {
        if piece.begin() {
            self.fetch_piece(backend, asked.bytes, piece);
        }
        piece.copy(asked.span.offset, buf) == buf.len()
    }

    /// The state of a file; cleared first if it is of another version.
    fn inode(&self, attr: &Attr) -> Option<Arc<Mutex<OfInode>>> {
        let version = Version { data: attr.data, attr: attr.version };
        let mut inodes = self.inodes.lock();
        if let Some(inode) = inodes.get(&attr.ino) {
            let inode = Arc::clone(inode);
            drop(inodes);
            let mut of = inode.lock();
            if of.version != version {
                of.version = version;
                of.clear();
            }
            drop(of);
            return Some(inode);
        }
        if inodes.len() >= INODES_MAX {
            return None;
        }
        let (detector, pieces) = (Detector::default(), Pieces::default());
        let new = OfInode { version, detector, pieces };
        let new = Arc::new(Mutex::new(new));
        inodes.insert(attr.ino, Arc::clone(&new));
        Some(new)
    }

    fn plan(&self, inode: &Mutex<OfInode>, (attr, asked): (&Attr, Asked), now: Tick) {
        let window = WINDOW_MAX.min(self.shared.memory.limit() / PART_OF_MEMORY);
        let runs = asked.direct || self.kernel.load(Ordering::Relaxed) < KERNEL_READS_ON;
        let limits = Limits { size: attr.size, window, runs };
        let mut of = inode.lock();
        let plan = of.detector.read(asked.span, limits);
        if plan.is_empty() {
            return;
        }
        let bytes = asked.bytes;
        for span in plan {
            let mut at = span.offset;
            while at < span.end() {
                let span = Span { offset: at, len: PIECE_MAX.min(span.end() - at) };
                at = span.end();
                if of.pieces.overlaps(span) {
                    continue;
                }
                let Some(piece) = self.room_for((span, true), now) else { return };
                of.pieces.add(Arc::clone(&piece));
                if !self.order(Order { bytes, piece }) {
                    return;
                }
            }
        }
    }

    /// Makes a piece, for one read or for many, if the budget has room for it. Otherwise it first
    /// drops old pieces.
    fn room_for(&self, (span, once): (Span, bool), now: Tick) -> Option<Arc<Piece>> {
        let mut held = self.held.lock();
        let old = self.kept.unwrap_or_default();
        while let Some(oldest) = held.front() {
            if !oldest.is_over() && now.since(oldest.since()) < old {
                break;
            }
            oldest.end();
            held.pop_front();
        }
        loop {
            if let Some(piece) = Piece::new((span, once), now, &self.shared) {
                let piece = Arc::new(piece);
                held.push_back(Arc::clone(&piece));
                return Some(piece);
            }
            let oldest = held.front()?;
            if !oldest.is_over() && now.since(oldest.since()) < STALE {
                return None;
            }
            oldest.end();
            held.pop_front();
        }
    }

    fn order(&self, order: Order) -> bool {
        let mut orders = self.orders.lock();
        if orders.len() >= ORDERS_MAX {
            order.piece.end();
            return false;
        }
        orders.push_back(order);
        drop(orders);
        self.ordered.notify_one();
        true
    }

    /// Drops the fetched bytes of a file before this returns, because the file changes or has
    /// changed. Fetches in flight are not used.
    pub(crate) fn changed(&self, ino: Ino) {
        let inode = self.inodes.lock().get(&ino).map(Arc::clone);
        if let Some(inode) = inode {
            inode.lock().clear();
        }
    }

    /// Drops the state of a file that is no longer open.
    pub(crate) fn closed(&self, ino: Ino) {
        let inode = self.inodes.lock().remove(&ino);
        if let Some(inode) = inode {
            inode.lock().pieces.clear();
        }
        self.sweep();
    }

    /// Drops everything, because everything may have changed.
    pub(crate) fn all_changed(&self) {
        let all: Vec<_> = self.inodes.lock().values().map(Arc::clone).collect();
        for inode in all {
            inode.lock().clear();
        }
        self.sweep();
    }

    /// Removes finished pieces.
    fn sweep(&self) {
        self.held.lock().retain(|piece| !piece.is_over());
    }

    /// Fetches ordered pieces until the mount ends.
    fn fetch(&self, backend: &Backend) {
        while let Some(Order { bytes, piece }) = self.next_order() {
            if piece.begin() {
                self.fetch_piece(backend, bytes, &piece);
            }
        }
    }

    fn fetch_piece(&self, backend: &Backend, bytes: Bytes, piece: &Piece) {
        let (span, numbers) = (piece.span(), &self.shared.numbers);
        let mut room = vec![0; usize::try_from(span.len).unwrap_or(0)];
        match backend.read(bytes, span.offset, &mut room) {
            Ok(()) => {
                let counter =
                    if piece.is_once() { &numbers.fetched } else { &numbers.again_fetched };
                counter.add(span.len);
                piece.arrive(room);
            }
            // The reader fetches it again and gets the error.
            Err(_) => piece.end(),
        }
    }

    fn next_order(&self) -> Option<Order> {
        let mut orders = self.orders.lock();
        while !self.ended.load(Ordering::Acquire) {
            if let Some(order) = orders.pop_front() {
                return Some(order);
            }
            self.ordered.wait(&mut orders);
        }
        None
    }

    /// Ends the threads, each after its current fetch.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        let orders = std::mem::take(&mut *self.orders.lock());
        for order in orders {
            order.piece.end();
        }
        self.ordered.notify_all();
    }
}

/// Starts the threads of a mount with read-ahead.
///
/// # Errors
/// When the system has no thread left.
pub(crate) fn start(fs: &Arc<crate::fs::Fs>) -> std::io::Result<()> {
    if fs.ahead.kept.is_none() {
        return Ok(());
    }
    for _ in 0..FETCHERS {
        let fs = Arc::clone(fs);
        // Not joined: it may wait for the cluster for a minute.
        let _thread = thread("mp-ahead", move || fs.ahead.fetch(&fs.backend))?;
    }
    Ok(())
}
