//! Bytes that will be asked for, fetched before they are.
//!
//! `detect` says which; here they are fetched by threads of their own, and held until they are read or
//! may not be used any more. What is held is never older than what the kernel may keep in a mount of the
//! same mode (docs/mount.md, "Read-ahead"):
//! - it belongs to one version of one file, as metas count them: when a newer one is known it goes;
//! - it goes when word of a change comes, and before a write or cut through this mount is answered; what
//!   is being fetched then is thrown away when it comes;
//! - it goes when it is old;
//! - a strict mount has none.
//!
//! Bytes that are fetched ahead are used once: the kernel has a cache. But reads past that (`O_DIRECT`) have none, and those who
//! come back to the same places (`again`) wait for the cluster each time. Such places are held too, under the same
//! rules, and read as often as they are asked for.

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

/// Threads that fetch.
pub(crate) const FETCHERS: usize = 4;
/// A pattern is ahead of its reader by so much at most, and by a part of the memory.
const WINDOW_MAX: u64 = 8 << 20;
const PART_OF_MEMORY: u64 = 4;
/// The largest piece that is fetched by one call: some chunks, so that several chains work at it.
const PIECE_MAX: u64 = 1 << 20;
/// A kernel that reads so far ahead needs no help with what is read in order.
const KERNEL_READS_ON: u32 = 1 << 20;
/// Bytes that nobody has read for so long make room for others.
const STALE: Duration = Duration::from_secs(1);
/// Inodes whose reads are looked at.
const INODES_MAX: usize = 1 << 14;
/// Pieces that wait for a thread.
const ORDERS_MAX: usize = 1024;

/// Of which state of a file bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    data: u64,
    attr: u64,
}

/// One file.
#[derive(Debug)]
struct OfInode {
    version: Version,
    detector: Detector,
    pieces: Pieces,
}

impl OfInode {
    /// Lets go of everything that was fetched or will be.
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

/// What is counted.
#[derive(Debug, Default)]
pub(crate) struct AheadNumbers {
    /// Bytes that were fetched, those of them that were read, and those that went unread.
    pub(crate) fetched: Counter,
    pub(crate) used: Counter,
    pub(crate) wasted: Counter,
    /// Bytes of places that are read again and again: fetched, and read without a fetch.
    pub(crate) again_fetched: Counter,
    pub(crate) again_read: Counter,
}

/// What was held of a read.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// Bytes from its beginning on.
    pub(crate) filled: usize,
    /// To be fetched instead of what is missing: it has that, and its place is read often.
    pub(crate) often: Option<Arc<Piece>>,
}

/// What the pieces of a mount share.
#[derive(Debug)]
struct Shared {
    memory: Arc<Memory>,
    numbers: AheadNumbers,
}

/// A read of the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The file's chunks, and what lies behind them.
    pub(crate) bytes: Bytes,
    pub(crate) span: Span,
    /// Past the kernel's cache.
    pub(crate) direct: bool,
}

/// The read-ahead of a mount.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// How long bytes may be used; none in a mount that reads nothing ahead.
    kept: Option<Duration>,
    shared: Arc<Shared>,
    inodes: Mutex<HashMap<Ino, Arc<Mutex<OfInode>>>>,
    /// Where small direct reads came of late.
    places: Mutex<Places>,
    /// Everything that is held, the oldest first.
    held: Mutex<VecDeque<Arc<Piece>>>,
    orders: Mutex<VecDeque<Order>>,
    ordered: Condvar,
    ended: AtomicBool,
    /// How far the kernel reads ahead.
    kernel: AtomicU32,
}

/// How long bytes may be used: no longer than the kernel may keep pages in a mount of this mode.
const fn kept(mode: Mode) -> Option<Duration> {
    match mode {
        Mode::Strict => None,
        // "Within a second", and the fetch and the answer take some of it.
        Mode::Relaxed => Some(Duration::from_millis(800)),
        Mode::CloseToOpen | Mode::OneWriter | Mode::ReadOnly => Some(Duration::from_secs(5)),
    }
}

impl Ahead {
    /// Nothing was read. `wanted` is what the mount's options say.
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

    /// The kernel reads so many bytes ahead by itself.
    pub(crate) fn kernel_reads(&self, bytes: u32) {
        self.kernel.store(bytes, Ordering::Relaxed);
    }

    /// Bytes from the beginning of `buf` on that were fetched before; takes note of the read, and has
    /// fetched what will follow. What is known of the file must be true as far as the mount's mode cares.
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

    /// A piece that has what this read asks for, and lasts, if its place is read often.
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

    /// Fetches a piece now, and reads from it; true when `buf` has all of it.
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

    /// What is known of the reads of a file, if it is still of this version.
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

    /// A piece that is read once or lasts, if the budget has room for it, or for want of it what nobody reads goes.
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

    /// A file changes, or has changed: what was fetched of it goes before this returns, and what is being
    /// fetched is not used.
    pub(crate) fn changed(&self, ino: Ino) {
        let inode = self.inodes.lock().get(&ino).map(Arc::clone);
        if let Some(inode) = inode {
            inode.lock().clear();
        }
    }

    /// Nobody has the file open any more.
    pub(crate) fn closed(&self, ino: Ino) {
        let inode = self.inodes.lock().remove(&ino);
        if let Some(inode) = inode {
            inode.lock().pieces.clear();
        }
        self.sweep();
    }

    /// Everything may have changed.
    pub(crate) fn all_changed(&self) {
        let all: Vec<_> = self.inodes.lock().values().map(Arc::clone).collect();
        for inode in all {
            inode.lock().clear();
        }
        self.sweep();
    }

    /// Lets go of what is over.
    fn sweep(&self) {
        self.held.lock().retain(|piece| !piece.is_over());
    }

    /// Fetches what is ordered until the mount ends.
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
            // Whoever reads it hears why.
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

    /// The threads end, each when it has what it fetches.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        let orders = std::mem::take(&mut *self.orders.lock());
        for order in orders {
            order.piece.end();
        }
        self.ordered.notify_all();
    }
}

/// Starts the threads of a mount that reads ahead.
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
