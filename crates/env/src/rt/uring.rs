//! The `io_uring` backend: one ring for disk and network, entered once per turn of the loop.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use io_uring::types::{Fd, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, Probe, opcode, squeue};
use millpond_types::Tick;

use super::driver::{Finished, Ops, Wait};
use super::op::{Action, FileRef, write_flags};
use super::remote::Remote;
use crate::clock::RealClock;
use crate::pool::{Buf, BufferPool};

/// Piece size of a pool's registered memory. A piece is registered when a transfer first uses it:
/// the kernel then takes the whole piece from the system, so a server that holds little data takes
/// little memory. A buffer across two pieces is not registered.
const FIXED_BYTES: usize = 16 << 20;
/// Most pieces of a pool; larger pools have larger pieces. The kernel refuses more than 16,384, and
/// pieces of more than 1 GiB.
const FIXED_PIECES_MAX: usize = 1024;
/// Disks a ring can register; more disks work through plain descriptors.
const FILE_SLOTS: u32 = 64;
/// User data of the poll on the mailbox's eventfd, and of cancellations, whose results are ignored.
const WAKE: u64 = u64::MAX;
const CANCEL: u64 = u64::MAX - 1;

pub(super) struct Uring {
    /// First field, so that it is closed before its registered pools are unmapped.
    ring: IoUring,
    remote: Arc<Remote>,
    wake_armed: bool,
    pools: Vec<FixedPool>,
    free_slots: Vec<u32>,
}

struct FixedPool {
    /// Keeps the pages mapped while the ring has them registered.
    pool: BufferPool,
    first: u16,
    piece_bytes: usize,
    pieces: Vec<Piece>,
}

/// A part of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Unused,
    Registered,
    /// The system does not let this process lock that much memory.
    Refused,
}

/// Required opcodes; without one of them the fallback is used.
const NEEDED: &[u8] = &[
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::ReadFixed::CODE,
    opcode::WriteFixed::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::Recv::CODE,
    opcode::Send::CODE,
    opcode::SendMsg::CODE,
    opcode::Accept::CODE,
    opcode::Connect::CODE,
    opcode::PollAdd::CODE,
    opcode::AsyncCancel::CODE,
];

/// A ring with the newest options this kernel knows.
fn build(entries: u32) -> io::Result<IoUring> {
    let completions = entries.saturating_mul(4);
    // Linux 6.1: completions are delivered only when this thread asks, never by interrupting it.
    let newest = IoUring::builder()
        .dontfork()
        .setup_submit_all()
        .setup_cqsize(completions)
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .build(entries);
    match newest {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
        other => return other,
    }
    // Linux 5.19.
    let middle = IoUring::builder()
        .dontfork()
        .setup_cqsize(completions)
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .build(entries);
    match middle {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
        other => return other,
    }
    IoUring::builder().dontfork().setup_cqsize(completions).build(entries)
}

/// Number of queued entries from which disk transfers do not wait for the end of the turn. A turn
/// with many finished reads takes 100 µs, in which the disk would run dry.
/// `engine_bench --only randread` against fio: 0.90 with 1 or 2, 0.87 with 4, 0.80 with 8 and 16.
const SUBMIT_MAX: usize = 2;
/// Length from which a disk transfer does not wait for the end of the turn: the processor prepares
/// the next one (a copy, a checksum) while the disk works. Chosen with
/// `engine_bench --only put-1048576-8`.
const SUBMIT_BYTES: u32 = 128 << 10;

impl Uring {
    /// A ring with `remote` as its mailbox.
    ///
    /// # Errors
    /// Errors of the kernel: `EPERM` and `ENOSYS` where `io_uring` is forbidden or absent,
    /// `Unsupported` where it is too old.
    pub(super) fn new(entries: u32, pools: &[BufferPool], remote: Arc<Remote>) -> io::Result<Self> {
        let ring = build(entries)?;
        let params = ring.params();
        let features = params.is_feature_ext_arg()
            && params.is_feature_nodrop()
            && params.is_feature_fast_poll()
            && params.is_feature_submit_stable()
            // It came together with multishot polls, in Linux 5.13.
            && params.is_feature_resource_tagging();
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !features || NEEDED.iter().any(|code| !probe.is_supported(*code)) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel's io_uring is too old",
            ));
        }
        let files = ring.submitter().register_files_sparse(FILE_SLOTS).is_ok();
        let free_slots = if files { (0..FILE_SLOTS).rev().collect() } else { Vec::new() };
        let pools = register_pools(&ring, pools).unwrap_or_default();
        Ok(Self { ring, remote, wake_armed: false, pools, free_slots })
    }

    pub(super) fn buffers_registered(&self) -> bool {
        !self.pools.is_empty()
    }

    pub(super) fn fixed_index(&mut self, buf: &Buf) -> Option<u16> {
        let known = self.pools.iter_mut().find(|known| known.pool == *buf.pool())?;
        let start = usize::try_from(buf.pool_offset()).ok()?;
        let (at, last) =
            (start / known.piece_bytes, (start + buf.capacity() - 1) / known.piece_bytes);
        if at != last {
            return None;
        }
        let index = known.first + u16::try_from(at).ok()?;
        if known.pieces[at] == Piece::Unused {
            known.pieces[at] = known.register(&self.ring, at, index);
        }
        (known.pieces[at] == Piece::Registered).then_some(index)
    }

    pub(super) fn register_file(&mut self, fd: RawFd) -> Option<u32> {
        let slot = self.free_slots.pop()?;
        if self.ring.submitter().register_files_update(slot, &[fd]).is_ok() {
            return Some(slot);
        }
        self.free_slots.push(slot);
        None
    }

    pub(super) fn unregister_file(&mut self, slot: u32) {
        if self.ring.submitter().register_files_update(slot, &[-1]).is_ok() {
            self.free_slots.push(slot);
        }
    }

    pub(super) fn push(&mut self, key: usize, action: Action) {
        let bytes = action.disk_bytes();
        let entry = entry(action).user_data(key as u64);
        self.push_entries(&[entry]);
        let batch_full = bytes > 0 && self.ring.submission().len() >= SUBMIT_MAX;
        if batch_full || bytes >= SUBMIT_BYTES {
            self.enter(Wait::No);
        }
    }

    /// Queues a chain. Both entries go into one submission, as a chain ends with its submission.
    pub(super) fn push_linked(&mut self, first: (usize, Action), then: (usize, Action)) {
        let first = entry(first.1).user_data(first.0 as u64).flags(squeue::Flags::IO_LINK);
        let then = entry(then.1).user_data(then.0 as u64);
        self.push_entries(&[first, then]);
    }

    /// Asks the kernel to end an operation, at once. A cancelled accept that is still queued would
    /// take the wake-up for the next connection (accepts wait exclusively), and its successor would
    /// sleep on.
    pub(super) fn cancel(&mut self, key: usize) {
        let entry = opcode::AsyncCancel::new(key as u64).build().user_data(CANCEL);
        self.push_entries(&[entry]);
        self.enter(Wait::No);
    }

    fn push_entries(&mut self, entries: &[squeue::Entry]) {
        loop {
            // SAFETY: `Op` keeps everything an entry points to alive until its completion has been
            // collected; cancellations and polls point to nothing.
            if unsafe { self.ring.submission().push_multiple(entries) }.is_ok() {
                break;
            }
            self.enter(Wait::No);
        }
    }

    pub(super) fn turn(&mut self, wait: Wait, ops: &mut Ops, finished: &mut Finished) {
        if !self.wake_armed {
            self.wake_armed = true;
            let fd = Fd(self.remote.event_fd());
            let poll = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true);
            self.push_entries(&[poll.build().user_data(WAKE)]);
        }
        let waiting = wait != Wait::No && self.ring.completion().is_empty();
        let queue = self.ring.submission();
        let work = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
        drop(queue);
        if waiting {
            self.enter(wait);
        } else if work {
            self.enter(Wait::No);
        }
        self.collect(ops, finished);
    }

    fn collect(&mut self, ops: &mut Ops, finished: &mut Finished) {
        for done in self.ring.completion() {
            match done.user_data() {
                WAKE => self.wake_armed = io_uring::cqueue::more(done.flags()),
                CANCEL => {}
                key => {
                    let key = usize::try_from(key).expect("keys come from a usize");
                    ops.complete(key, done.result(), finished);
                }
            }
        }
    }

    /// Submits all queued entries and lets the kernel run the work that it deferred to this thread.
    fn enter(&mut self, wait: Wait) {
        let queued = self.ring.submission().len();
        let queued = u32::try_from(queued).expect("a queue's length fits 32 bits");
        let submitter = self.ring.submitter();
        let flags = EnterFlags::GETEVENTS;
        let result = match wait {
            // SAFETY: the entries queued are valid (see `push_entries`); there is no argument.
            Wait::No => unsafe { submitter.enter::<libc::sigset_t>(queued, 0, flags.bits(), None) },
            Wait::Until(until) => {
                let left = until.since(RealClock::tick());
                let time = Timespec::from(left);
                let arguments = SubmitArgs::new().timespec(&time);
                let arguments = if until == Tick::MAX { SubmitArgs::new() } else { arguments };
                let flags = (flags | EnterFlags::EXT_ARG).bits();
                // SAFETY: as above, and `arguments` is the structure that EXT_ARG announces.
                unsafe { submitter.enter(queued, 1, flags, Some(&arguments)) }
            }
        };
        if let Err(error) = result {
            // Time is up, a signal came, or the kernel wants completions collected first.
            let expected = [libc::ETIME, libc::EINTR, libc::EBUSY, libc::EAGAIN];
            assert!(
                error.raw_os_error().is_some_and(|number| expected.contains(&number)),
                "io_uring_enter refused a well-formed call: {error}"
            );
        }
    }
}

/// Reserves slots in the ring for the pools' memory, which is registered as it is used. Needs Linux
/// 5.19.
fn register_pools(ring: &IoUring, pools: &[BufferPool]) -> io::Result<Vec<FixedPool>> {
    let mut count = 0;
    let mut known = Vec::new();
    for pool in pools {
        let first = u16::try_from(count)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let mut piece_bytes = FIXED_BYTES;
        while pool.capacity().div_ceil(piece_bytes) > FIXED_PIECES_MAX {
            piece_bytes *= 2;
        }
        let pieces = vec![Piece::Unused; pool.capacity().div_ceil(piece_bytes)];
        count += pieces.len();
        known.push(FixedPool { pool: pool.clone(), first, piece_bytes, pieces });
    }
    if count > 0 {
        let count = u32::try_from(count)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        ring.submitter().register_buffers_sparse(count)?;
    }
    Ok(known)
}

impl FixedPool {
    /// Registers the piece `at`, under `index`.
    fn register(&self, ring: &IoUring, at: usize, index: u16) -> Piece {
        let start = at * self.piece_bytes;
        let len = self.piece_bytes.min(self.pool.capacity() - start);
        let base = self.pool.base().wrapping_add(start);
        let piece = [libc::iovec { iov_base: base.cast(), iov_len: len }];
        let submitter = ring.submitter();
        // SAFETY: the piece is mapped for as long as the pool lives, and `self` keeps it alive next
        // to the ring.
        match unsafe { submitter.register_buffers_update(u32::from(index), &piece, None) } {
            Ok(()) => Piece::Registered,
            Err(_) => Piece::Refused,
        }
    }
}

macro_rules! on_file {
    ($file:expr, $build:expr) => {
        match $file {
            FileRef { slot: Some(slot), .. } => $build(Fixed(slot)),
            FileRef { fd, slot: None } => $build(Fd(fd)),
        }
    };
}

/// The submission entry of an action.
fn entry(action: Action) -> squeue::Entry {
    match action {
        Action::Read { file, into, len, offset, fixed: Some(index) } => {
            on_file!(file, |fd| opcode::ReadFixed::new(fd, into, len, index).offset(offset).build())
        }
        Action::Read { file, into, len, offset, fixed: None } => {
            on_file!(file, |fd| opcode::Read::new(fd, into, len).offset(offset).build())
        }
        Action::Write { file, from, len, offset, fixed: Some(index), durable } => {
            on_file!(file, |fd| opcode::WriteFixed::new(fd, from, len, index)
                .offset(offset)
                .rw_flags(write_flags(durable))
                .build())
        }
        Action::Write { file, from, len, offset, fixed: None, durable } => {
            on_file!(file, |fd| opcode::Write::new(fd, from, len)
                .offset(offset)
                .rw_flags(write_flags(durable))
                .build())
        }
        Action::Sync { file } => {
            on_file!(file, |fd| opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build())
        }
        Action::Punch { file, offset, len } => {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            on_file!(file, |fd| opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build())
        }
        Action::Reserve { file, offset, len } => {
            on_file!(file, |fd| opcode::Fallocate::new(fd, len).offset(offset).build())
        }
        action => socket_entry(action),
    }
}

fn socket_entry(action: Action) -> squeue::Entry {
    match action {
        Action::Recv { fd, into, len, all } => {
            let flags = if all { libc::MSG_WAITALL } else { 0 };
            opcode::Recv::new(Fd(fd), into, len).flags(flags).build()
        }
        Action::Send { fd, from, len } => opcode::Send::new(Fd(fd), from, len)
            .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL)
            .build(),
        Action::SendMsg { fd, message } => opcode::SendMsg::new(Fd(fd), message)
            .flags((libc::MSG_NOSIGNAL | libc::MSG_WAITALL) as u32)
            .build(),
        Action::Accept { fd } => {
            opcode::Accept::new(Fd(fd), std::ptr::null_mut(), std::ptr::null_mut())
                .flags(libc::SOCK_CLOEXEC)
                .build()
        }
        Action::Connect { fd, address, len } => opcode::Connect::new(Fd(fd), address, len).build(),
        Action::Poll { fd, events } => {
            opcode::PollAdd::new(Fd(fd), events.cast_unsigned().into()).build()
        }
        Action::Read { .. }
        | Action::Write { .. }
        | Action::Sync { .. }
        | Action::Punch { .. }
        | Action::Reserve { .. } => {
            unreachable!("disk actions are built by `entry`")
        }
    }
}
