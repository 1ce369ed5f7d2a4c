//! Descriptors and shared memory that no child inherits.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use super::generation;

/// An unused place.
const FREE: RawFd = -1;
/// A place that is being filled.
const TAKEN: RawFd = -2;

/// Descriptors that the fork handler closes in a child, in a list that only grows; places are
/// reused. The list is as long as the most descriptors in use at once: some for each connection, so
/// scanning it costs less than making the connection.
static PLACES: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

#[derive(Debug)]
struct Place {
    next: *const Place,
    fd: AtomicI32,
    /// A mapping of the file, if there is one, and whether this process writes to it.
    base: AtomicPtr<u8>,
    len: AtomicUsize,
    writes: AtomicBool,
}

/// A mapping of a whole file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped {
    pub(crate) base: *mut u8,
    pub(crate) len: usize,
    pub(crate) writes: bool,
}

impl Mapped {
    const NONE: Self = Self { base: ptr::null_mut(), len: 0, writes: false };
}

// SAFETY: `next` is written before a place is shared, and places are never freed.
unsafe impl Sync for Place {}

impl Place {
    /// All places.
    fn all() -> impl Iterator<Item = &'static Self> {
        let next = |at: *const Self| {
            // SAFETY: null, or a place of the list, which is never freed.
            unsafe { at.as_ref() }
        };
        let first = next(PLACES.load(Ordering::Acquire));
        std::iter::successors(first, move |place| next(place.next))
    }

    /// Takes a place for a descriptor.
    fn of(fd: RawFd, mapped: Mapped) -> &'static Self {
        let take = |place: &&Self| {
            let taken =
                place.fd.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed);
            taken.is_ok()
        };
        let place = Self::all().find(take).unwrap_or_else(Self::more);
        place.base.store(mapped.base, Ordering::Relaxed);
        place.len.store(mapped.len, Ordering::Relaxed);
        place.writes.store(mapped.writes, Ordering::Relaxed);
        place.fd.store(fd, Ordering::Release);
        place
    }

    /// Adds a place to the list, taken.
    fn more() -> &'static Self {
        let place = Box::into_raw(Box::new(Self {
            next: ptr::null(),
            fd: AtomicI32::new(TAKEN),
            base: AtomicPtr::new(ptr::null_mut()),
            len: AtomicUsize::new(0),
            writes: AtomicBool::new(false),
        }));
        let mut first = PLACES.load(Ordering::Acquire);
        loop {
            // SAFETY: made above and not shared yet.
            unsafe { (*place).next = first };
            let put = PLACES.compare_exchange(first, place, Ordering::AcqRel, Ordering::Acquire);
            match put {
                // SAFETY: it is never freed.
                Ok(_) => return unsafe { &*place },
                Err(now) => first = now,
            }
        }
    }

    fn free(&self) {
        self.fd.store(FREE, Ordering::Release);
    }
}

/// In the child: closes the parent's descriptors, and makes the memory that the parent shares
/// private to the child.
pub(super) fn leave_to_parent() {
    for place in Place::all() {
        let fd = place.fd.load(Ordering::Acquire);
        if fd >= 0 {
            let mapped = Mapped {
                base: place.base.load(Ordering::Relaxed),
                len: place.len.load(Ordering::Relaxed),
                writes: place.writes.load(Ordering::Relaxed),
            };
            if !mapped.base.is_null() {
                make_private(fd, mapped);
            }
            // SAFETY: the descriptor belongs to `ProcessFd`, which does not close it in this
            // process.
            let _ = unsafe { libc::close(fd) };
        }
        place.free();
    }
}

/// Makes a mapping private: no other process sees later writes to it. Memory that the parent only
/// read, a peer's memory, is not kept for the child, as nothing was lent to it. Its address range
/// stays reserved, so that a later unmapping hits no other memory.
fn make_private(fd: RawFd, mapped: Mapped) {
    let map = |protection, flags| {
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the range is a mapping of ours: the caller of `Place::of` said so. A writable one
        // gets the same bytes; one that was only read is behind `OfProcess`, so nothing reads it
        // here.
        let at = unsafe { libc::mmap(mapped.base.cast(), mapped.len, protection, flags, fd, 0) };
        at != libc::MAP_FAILED
    };
    if mapped.writes && map(libc::PROT_READ | libc::PROT_WRITE, 0) {
        return;
    }
    // A child that crashes is better than one that writes into its parent's memory.
    let _ = map(libc::PROT_NONE, libc::MAP_ANONYMOUS);
}

/// A descriptor of this process. In a child it is closed before `fork` returns, and is invalid:
/// calls fail with `EBADF`, and its number may be another file's.
#[derive(Debug)]
pub struct ProcessFd {
    fd: ManuallyDrop<OwnedFd>,
    generation: u64,
    /// `None` for a descriptor that children keep.
    place: Option<&'static Place>,
}

impl ProcessFd {
    /// A descriptor that is closed in children.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        Self::with_memory(fd, Mapped::NONE)
    }

    /// A descriptor that is closed in children, which also get a private copy of its written
    /// memory. Drop this before the memory is unmapped.
    pub(crate) fn with_memory(fd: OwnedFd, memory: Mapped) -> Self {
        // First, as it ensures that the fork handler is installed.
        let generation = generation();
        let place = Some(Place::of(fd.as_raw_fd(), memory));
        Self { fd: ManuallyDrop::new(fd), generation, place }
    }

    /// An ordinary descriptor, which children keep.
    pub(crate) const fn kept(fd: OwnedFd) -> Self {
        Self { fd: ManuallyDrop::new(fd), generation: 0, place: None }
    }

    fn is_open(&self) -> bool {
        self.place.is_none() || self.generation == generation()
    }

    /// The descriptor, if it is open in this process.
    pub(crate) fn get(&self) -> Option<BorrowedFd<'_>> {
        self.is_open().then(|| self.fd.as_fd())
    }
}

/// For callers that know the descriptor is of this process.
impl AsFd for ProcessFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.get()
            .expect("a descriptor of this process, not of the process that it was forked from")
    }
}

impl AsRawFd for ProcessFd {
    fn as_raw_fd(&self) -> RawFd {
        self.get().map_or(-1, |fd| fd.as_raw_fd())
    }
}

impl Drop for ProcessFd {
    fn drop(&mut self) {
        if !self.is_open() {
            return;
        }
        if let Some(place) = self.place {
            // Before the number can become another file's, so that no child closes that.
            place.free();
        }
        // SAFETY: it is dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}
