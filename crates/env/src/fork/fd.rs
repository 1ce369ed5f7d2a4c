//! Descriptors and shared memory that no child gets.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use super::generation;

/// A place that nobody uses.
const FREE: RawFd = -1;
/// A place that is being filled.
const TAKEN: RawFd = -2;

/// What the handler of a child is to close, in a list that only grows; places are used again. There are as many as were in
/// use at once: some for each connection, which is made less often than the list is long.
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

    /// A place for a descriptor.
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

    /// One more place, taken.
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

/// In the child: closes what the parent has open, and makes the memory that it shares the child's own.
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
            // SAFETY: the descriptor is `ProcessFd`'s, which does not close it in this process.
            let _ = unsafe { libc::close(fd) };
        }
        place.free();
    }
}

/// What is written there from now on, nobody else sees. What the parent only read, a peer's memory, is not kept for the child,
/// which has nothing that was lent: its place stays taken, so that a later unmapping hits no other memory.
fn make_private(fd: RawFd, mapped: Mapped) {
    let map = |protection, flags| {
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the range is a mapping of ours: the caller of `Place::of` said so. A writable one gets the same bytes; one that was
        // only read is behind `OfProcess`, so that nobody reads it here.
        let at = unsafe { libc::mmap(mapped.base.cast(), mapped.len, protection, flags, fd, 0) };
        at != libc::MAP_FAILED
    };
    if mapped.writes && map(libc::PROT_READ | libc::PROT_WRITE, 0) {
        return;
    }
    // Rather a child that ends than one that writes into its parent's memory.
    let _ = map(libc::PROT_NONE, libc::MAP_ANONYMOUS);
}

/// A descriptor of this process. In a child it is closed before `fork` returns there, and is none: calls fail with
/// `EBADF`, and its number may be another file's.
#[derive(Debug)]
pub struct ProcessFd {
    fd: ManuallyDrop<OwnedFd>,
    generation: u64,
    /// None for one that children keep.
    place: Option<&'static Place>,
}

impl ProcessFd {
    /// Closed in children.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        Self::with_memory(fd, Mapped::NONE)
    }

    /// Closed in children, to which memory that is written to becomes their own. Drop this before it is unmapped.
    pub(crate) fn with_memory(fd: OwnedFd, memory: Mapped) -> Self {
        // First: it sees to it that there is a handler.
        let generation = generation();
        let place = Some(Place::of(fd.as_raw_fd(), memory));
        Self { fd: ManuallyDrop::new(fd), generation, place }
    }

    /// One that children keep, as any descriptor.
    pub(crate) const fn kept(fd: OwnedFd) -> Self {
        Self { fd: ManuallyDrop::new(fd), generation: 0, place: None }
    }

    fn is_open(&self) -> bool {
        self.place.is_none() || self.generation == generation()
    }

    /// It, if it is open in this process.
    pub(crate) fn get(&self) -> Option<BorrowedFd<'_>> {
        self.is_open().then(|| self.fd.as_fd())
    }
}

/// For callers that know the descriptor is of this process.
impl AsFd for ProcessFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.get().expect("a descriptor of this process, and of none that it was forked from")
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
            // Before the number is another file's, so that no child closes that.
            place.free();
        }
        // SAFETY: it is dropped once, here.
        unsafe { ManuallyDrop::drop(&mut self.fd) };
    }
}
