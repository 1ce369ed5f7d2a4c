//! Millpond's environment: everything that touches the operating system.
//!
//! - [`pool`]: memory for payloads, shared with the kernel and with clients on the same host.
//! - [`rt`]: the loop of one core, over `io_uring` or over epoll and threads; tasks and timers.
//! - [`net`]: sockets, asynchronous for servers and blocking for clients.
//! - [`disk`]: the [`Disk`] trait, files and block devices, and a fake that crashes on demand.
//! - [`files`]: files on a mounted file system, small ones and those that are read at offsets.
//! - [`fork`]: values that belong to one process and that no child has; [`sync`]: locks that work
//!   there.
//! - [`shm`]: memory and rings shared with another process on this host.
//! - [`clock`], [`rng`], [`sys`]: time, random numbers, and facts about the machine.
//!
//! Invariants: memory given to the kernel belongs to the operation until the kernel is done with
//! it, also when the future is dropped; nothing read from shared memory is used before it has been
//! copied out and checked; futures stay on the core that made them, wakers go anywhere.
//!
//! Absent on purpose: a multi-threaded executor, work stealing, and asynchronous buffered files.
//! Channels and locks between tasks come from `tokio::sync`, which runs on any executor.

#![allow(unsafe_code, reason = "this crate is the seam to the operating system (STYLE rule 18)")]
#![allow(clippy::disallowed_methods, reason = "the banned methods live behind this crate")]

pub mod clock;
pub mod disk;
mod error;
pub mod files;
pub mod fork;
pub mod net;
pub mod pool;
pub mod rng;
pub mod rt;
pub mod shm;
pub mod sync;
pub mod sys;

pub use clock::{Clock, FakeClock, RealClock};
pub use disk::{DISK_BLOCK, Disk, FakeDisk, FileDisk};
pub use error::{EnvError, EnvErrorKind};
pub use fork::{OfProcess, PerProcess, ProcessFd, generation};
pub use net::{
    BlockingStream, LocalListener, PeerAddr, PeerCredentials, Piece, RawSegment, ReadHalf, Stream,
    TcpListener, UnixListener, WriteHalf, lookup, lookup_async, lookup_host, lookup_unbounded,
};
pub use pool::{Buf, BufferPool, PAGE_SIZE, PoolOptions, SharedBuf};
pub use rng::Rng;
pub use rt::{
    Elapsed, Handle, IoBackend, JoinError, JoinHandle, Runtime, RuntimeOptions, ThreadHandle,
    readable, sleep, sleep_until, spawn, thread, timeout, writable, yield_now,
};
pub use shm::{
    RING_HEADER, RingConsumer, RingError, RingProducer, RingWake, ShmAccess, ShmMemory, ShmRegion,
    ShmView, copy_checksummed,
};
pub use sync::{Condvar, Mutex, MutexGuard, RwLock};
pub use sys::{
    EventFd, FdLimit, ProcessId, ProcessSignal, begin_session, boot_id, cpu_count, effective_gid,
    effective_uid, free_bytes, is_stuck_dying, memory_limits, memory_total, pin_thread,
    raise_fd_limit, require_fd_limit, supplementary_groups, wait_readable,
};
