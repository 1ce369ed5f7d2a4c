//! FUSE over `io_uring` (ABI 7.42, Linux 6.14): one system call submits answers and fetches
//! requests.
//!
//! The kernel has a queue for every processor and puts a request into the queue of the processor on
//! which it is made. A [`Ring`] belongs to one thread: its entries are registered with one queue.
//! An entry is memory for one request and its answer; the command that commits an answer waits for
//! the next request. The kernel uses this path only once all queues have an entry. Forgets,
//! interrupts and notifications go through `/dev/fuse` as before.
//!
//! When the server dies, the kernel does not resend requests in flight in an entry.

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::abi::{InHeader, PAGE_BYTES};
use crate::device::{Delivered, Device, Received};
use crate::reply::Reply;
use crate::request::ReplyTo;

/// The kernel's switch for this feature.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
const PROCESSORS: &str = "/sys/devices/system/cpu/possible";

/// `enum fuse_uring_cmd`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Parts of an entry: headers and payload, `FUSE_URING_IOV_SEGS`.
const PARTS: u32 = 2;
/// Offset of `len` in `struct io_uring_sqe`.
const SQE_LEN_AT: usize = 24;
/// Requests that one thread may put aside; more wait in the kernel.
const ENTRIES_MAX: usize = 64;
/// Room for a command of each entry, and for two waits.
const SUBMISSIONS: u32 = 128;
/// The largest number of bytes before the data of a request.
const BEFORE_PAYLOAD: usize = 256;
const PAGE: usize = PAGE_BYTES as usize;
/// `user_data` of completions that belong to no entry.
const WOKEN: u64 = u64::MAX;
const STOPPED: u64 = u64::MAX - 1;

/// `struct fuse_uring_ent_in_out`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct EntryInOut {
    flags: u64,
    commit_id: u64,
    payload_size: u32,
    padding: u32,
    reserved: u64,
}

/// `struct fuse_uring_req_header`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Headers {
    in_out: [u8; 128],
    operation: [u8; 128],
    entry: EntryInOut,
}

/// `struct fuse_uring_cmd_req`, in the 80 bytes that a command reserves for it.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
struct Command {
    flags: u64,
    commit_id: u64,
    queue: u16,
    padding: [u8; 6],
}

const _: () = assert!(size_of::<EntryInOut>() == 32);
const _: () = assert!(size_of::<Headers>() == 288);
const _: () = assert!(size_of::<Command>() == 24);
const _: () = assert!(size_of::<squeue::Entry128>() == 128);

/// The kernel's switch for FUSE over `io_uring`, or `None` on a kernel without it.
#[must_use]
pub fn uring_switch() -> Option<bool> {
    let text = std::fs::read_to_string(SWITCH).ok()?;
    Some(matches!(text.trim(), "Y" | "1"))
}

/// The number of the kernel's queues: one for every possible processor.
///
/// # Errors
/// `InvalidData` when the kernel's list cannot be parsed.
pub fn uring_queues() -> io::Result<u16> {
    let text = std::fs::read_to_string(PROCESSORS)?;
    let last = text.trim().rsplit(['-', ',']).next().and_then(|last| last.parse::<u16>().ok());
    last.and_then(|last| last.checked_add(1)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Makes a request of a mount on the processor of a queue: when it is answered, the kernel hands
/// out the requests waiting in that queue.
///
/// An entry registered while requests wait gets none of them (Linux 6.18,
/// `fuse_uring_do_register`). Moves the calling thread to that processor, and waits for the answer.
///
/// # Errors
/// When the thread may not run there, or the path is not on a served mount.
pub fn prod_queue(target: &Path, queue: u16) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt as _;
    let target = CString::new(target.as_os_str().as_bytes())?;
    if usize::from(queue) >= 8 * size_of::<libc::cpu_set_t>() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: a set of processors is plain data, and all zeros is the empty one; the calls read and
    // write it and `found` on this stack frame, and read a string that ends with a zero.
    let rc = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(usize::from(queue), &mut set);
        let mut found: libc::statfs = std::mem::zeroed();
        match libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) {
            0 => libc::statfs(target.as_ptr(), &raw mut found),
            failed => failed,
        }
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Memory for one request and its answer. The kernel writes to it while it fetches.
struct Entry {
    headers: Box<Headers>,
    memory: Vec<u8>,
    /// Offset of the payload, page-aligned.
    payload_at: usize,
    /// The vectors that the kernel reads when the entry is registered.
    parts: Box<[libc::iovec; 2]>,
    /// The request in it that has no answer yet.
    serving: Option<(ReplyTo, u64)>,
}

impl Entry {
    fn new(payload: usize) -> Self {
        let mut memory = vec![0; BEFORE_PAYLOAD + payload + PAGE];
        let away = memory[BEFORE_PAYLOAD..].as_ptr().align_offset(PAGE);
        let payload_at = BEFORE_PAYLOAD + away;
        let in_out = [0; 128];
        let mut headers =
            Box::new(Headers { in_out, operation: in_out, entry: EntryInOut::default() });
        let part = |at: *mut u8, len| libc::iovec { iov_base: at.cast(), iov_len: len };
        let parts = Box::new([
            part((&raw mut *headers).cast(), size_of::<Headers>()),
            part(memory[payload_at..].as_mut_ptr(), payload),
        ]);
        Self { headers, memory, payload_at, parts, serving: None }
    }

    /// Records the request that arrived; returns its bytes in the layout of a read of `/dev/fuse`.
    fn request(&mut self) -> io::Result<Range<usize>> {
        // SAFETY: the box is valid; volatile, because the kernel wrote to it since this thread did.
        let headers = unsafe { std::ptr::read_volatile(&raw const *self.headers) };
        let bad = || io::Error::from(io::ErrorKind::InvalidData);
        let (header, _) = InHeader::read_from_prefix(&headers.in_out[..]).map_err(|_| bad())?;
        let fixed = size_of::<InHeader>();
        let payload = headers.entry.payload_size as usize;
        let operation = (header.len as usize).checked_sub(fixed + payload);
        let operation = operation.filter(|len| *len <= headers.operation.len()).ok_or_else(bad)?;
        if payload > self.memory.len() - self.payload_at {
            return Err(bad());
        }
        // Copied before the payload, so that the data of a write is not copied.
        let start = self.payload_at - operation - fixed;
        let (before, behind) = self.memory[start..self.payload_at].split_at_mut(fixed);
        before.copy_from_slice(&headers.in_out[..fixed]);
        behind.copy_from_slice(&headers.operation[..operation]);
        self.serving = Some((ReplyTo::from_raw(header.unique), headers.entry.commit_id));
        Ok(start..self.payload_at + payload)
    }

    /// Puts an answer where the kernel expects it.
    fn answer(&mut self, answer: &Answer) {
        self.headers.in_out[..answer.header.len()].copy_from_slice(&answer.header);
        let len = answer.body.len();
        self.memory[self.payload_at..self.payload_at + len].copy_from_slice(&answer.body);
        self.headers.entry.payload_size = u32::try_from(len).unwrap_or(0);
    }
}

/// An answer to be committed.
#[derive(Debug)]
struct Answer {
    header: [u8; 16],
    body: Vec<u8>,
}

/// Answers to the requests of one ring, from any thread.
#[derive(Debug)]
pub(crate) struct Answers {
    ready: Mutex<HashMap<u64, Answer>>,
    /// Memory of committed answers, for reuse.
    spare: Mutex<Vec<Vec<u8>>>,
    wake: OwnedFd,
    /// The ring's thread, which checks for answers before it waits.
    owner: ThreadId,
    room: usize,
}

impl Answers {
    fn new(room: usize) -> io::Result<Self> {
        // SAFETY: the call takes no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, and nobody else has it.
        let wake = unsafe { OwnedFd::from_raw_fd(fd) };
        let owner = std::thread::current().id();
        Ok(Self { ready: Mutex::default(), spare: Mutex::default(), wake, owner, room })
    }

    /// Takes an answer for the ring's thread to commit.
    pub(crate) fn put(&self, to: ReplyTo, reply: &Reply<'_>) -> io::Result<Delivered> {
        let mut body = locked(&self.spare).pop().unwrap_or_default();
        body.clear();
        let mut header = [0; 16];
        reply.with_pieces(to, |pieces| {
            header.copy_from_slice(pieces[0]);
            pieces[1..].iter().for_each(|piece| body.extend_from_slice(piece));
        });
        if body.len() > self.room {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        locked(&self.ready).insert(to.raw(), Answer { header, body });
        if std::thread::current().id() == self.owner {
            return Ok(Delivered::Sent);
        }
        let one = 1_u64;
        // SAFETY: eight bytes of this stack frame are read. It fails only when the counter is full:
        // then the thread is woken anyway.
        let _ = unsafe { libc::write(self.wake.as_raw_fd(), (&raw const one).cast(), 8) };
        Ok(Delivered::Sent)
    }

    fn take(&self, to: ReplyTo) -> Option<Answer> {
        locked(&self.ready).remove(&to.raw())
    }

    fn has(&self) -> bool {
        !locked(&self.ready).is_empty()
    }

    fn give_back(&self, body: Vec<u8>) {
        locked(&self.spare).push(body);
    }

    fn drain(&self) {
        let mut count = 0_u64;
        // SAFETY: eight bytes of this stack frame are written; without any to read the call fails,
        // which is harmless.
        let _ = unsafe { libc::read(self.wake.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One thread's access to a queue of the kernel.
pub struct Ring {
    /// Dropped first: closing it makes the kernel release the entries' memory.
    uring: IoUring<squeue::Entry128, cqueue::Entry>,
    entries: Vec<Entry>,
    device: Arc<Device>,
    queue: u16,
    payload: usize,
    /// Entries that wait for a request in the kernel.
    fetching: usize,
    answers: Arc<Answers>,
    /// Whether waits for wake-ups and for a stop are pending.
    waits: [bool; 2],
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Ring {
    /// Opens a ring for the requests of one queue, with one entry.
    ///
    /// `device` belongs to a connection whose INIT was answered with
    /// [`OVER_IO_URING`](crate::abi::InitFlags::OVER_IO_URING).
    ///
    /// # Errors
    /// `PermissionDenied` where `io_uring` is forbidden, `Unsupported` where the kernel's switch is
    /// off.
    pub fn open(device: &Arc<Device>, queue: u16, max_write: u32) -> io::Result<Self> {
        let payload = (max_write as usize).max(crate::abi::MIN_READ_BUFFER).max(65_536 + PAGE);
        let uring = IoUring::<squeue::Entry128, cqueue::Entry>::builder().build(SUBMISSIONS)?;
        let answers = Arc::new(Answers::new(payload)?);
        let device = Arc::new(device.answering(Arc::clone(&answers))?);
        let (entries, waits) = (Vec::new(), [false; 2]);
        let mut this = Self { uring, entries, device, queue, payload, fetching: 0, answers, waits };
        this.register()?;
        // An error comes with the first wait; here the caller can still handle it.
        this.uring.submit()?;
        if let Some(done) = this.uring.completion().next()
            && done.result() < 0
        {
            return Err(io::Error::from_raw_os_error(-done.result()));
        }
        Ok(this)
    }

    /// The device that answers requests of this ring.
    #[must_use]
    pub fn device(&self) -> Arc<Device> {
        Arc::clone(&self.device)
    }

    fn push(&mut self, entry: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: an entry points at memory of `self.entries`, which outlives the ring.
        let pushed = unsafe { self.uring.submission().push(entry) };
        pushed.map_err(|_| io::ErrorKind::OutOfMemory.into())
    }

    fn command(&self, operation: u32, index: usize, commit_id: u64) -> squeue::Entry128 {
        let command = Command { commit_id, queue: self.queue, ..Command::default() };
        let mut bytes = [0; 80];
        bytes[..size_of::<Command>()].copy_from_slice(command.as_bytes());
        let fd = types::Fd(self.device.raw());
        let build = opcode::UringCmd80::new(fd, operation).cmd(bytes);
        let parts = self.entries[index].parts.as_ptr() as u64;
        let mut entry = build.addr(Some(parts)).build().user_data(index as u64);
        // SAFETY: `Entry128` is the kernel's structure of 128 bytes, in which the crate leaves the
        // field `len` at 0; four bytes are written within the value.
        unsafe {
            let len = (&raw mut entry).cast::<u8>().add(SQE_LEN_AT);
            len.copy_from_nonoverlapping(PARTS.to_ne_bytes().as_ptr(), size_of::<u32>());
        }
        entry
    }

    fn register(&mut self) -> io::Result<()> {
        let index = self.entries.len();
        self.entries.push(Entry::new(self.payload));
        let command = self.command(REGISTER, index, 0);
        self.push(&command)?;
        self.fetching += 1;
        Ok(())
    }

    /// Commits the answers that are ready.
    fn commit(&mut self) -> io::Result<()> {
        if !self.answers.has() {
            return Ok(());
        }
        for index in 0..self.entries.len() {
            let Some((to, commit_id)) = self.entries[index].serving else { continue };
            let Some(answer) = self.answers.take(to) else { continue };
            self.entries[index].answer(&answer);
            self.entries[index].serving = None;
            self.answers.give_back(answer.body);
            let command = self.command(COMMIT_AND_FETCH, index, commit_id);
            self.push(&command)?;
            self.fetching += 1;
        }
        Ok(())
    }

    /// Registers another entry when all of them hold requests that were put aside.
    ///
    /// Returns true if it did: then requests may wait in the queue that the kernel checks only with
    /// the next commit, and another thread must call [`prod_queue`].
    ///
    /// # Errors
    /// Those of the kernel; the ring is then unusable.
    pub fn make_room(&mut self) -> io::Result<bool> {
        self.commit()?;
        if self.fetching > 0 || self.entries.len() >= ENTRIES_MAX {
            return Ok(false);
        }
        self.register()?;
        self.uring.submit()?;
        Ok(true)
    }

    /// Waits for a request, or until `stop` is readable. Commits the answers given before.
    ///
    /// # Errors
    /// Those of the kernel; the ring is then unusable.
    pub fn next(&mut self, stop: BorrowedFd<'_>) -> io::Result<Received<'_>> {
        let range = loop {
            self.commit()?;
            for (index, (fd, data)) in
                [(self.answers.wake.as_raw_fd(), WOKEN), (stop.as_raw_fd(), STOPPED)]
                    .into_iter()
                    .enumerate()
            {
                if !self.waits[index] {
                    let poll = opcode::PollAdd::new(types::Fd(fd), poll_in()).build();
                    self.push(&poll.user_data(data).into())?;
                    self.waits[index] = true;
                }
            }
            let waited = self.uring.submit_and_wait(1);
            if let Err(error) = waited
                && error.kind() != io::ErrorKind::Interrupted
            {
                return Err(error);
            }
            let Some(done) = self.uring.completion().next() else { continue };
            match (done.user_data(), done.result()) {
                (WOKEN, _) => {
                    self.waits[0] = false;
                    self.answers.drain();
                }
                (STOPPED, _) => return Ok(Received::Stopped),
                (index, result) => {
                    let index = usize::try_from(index).unwrap_or(usize::MAX);
                    self.fetching -= 1;
                    match -result {
                        0 => break (index, self.entries[index].request()?),
                        libc::ENOTCONN | libc::ENODEV | libc::ECANCELED => {
                            return Ok(Received::Unmounted);
                        }
                        libc::ECONNABORTED => return Ok(Received::Aborted),
                        error => return Err(io::Error::from_raw_os_error(error)),
                    }
                }
            }
        };
        let (index, range) = range;
        Ok(Received::Request(&self.entries[index].memory[range]))
    }
}

fn poll_in() -> u32 {
    u32::try_from(libc::POLLIN).expect("a small number")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::*;
    use crate::abi::{InitFlags, Opcode, WriteIn};
    use crate::request::{Operation, Request};

    /// An entry as the kernel leaves it for a write.
    fn entry(len: usize, payload: usize) -> Entry {
        let mut entry = Entry::new(8192);
        let opcode = Opcode::Write as u32;
        let len = u32::try_from(len).unwrap();
        let header = InHeader { len, opcode, unique: 6, nodeid: 5, ..InHeader::default() };
        entry.headers.in_out[..size_of::<InHeader>()].copy_from_slice(header.as_bytes());
        let args = WriteIn { offset: 7, size: 100, ..WriteIn::default() };
        entry.headers.operation[..size_of::<WriteIn>()].copy_from_slice(args.as_bytes());
        entry.headers.entry.payload_size = u32::try_from(payload).unwrap();
        entry.headers.entry.commit_id = 9;
        let at = entry.payload_at;
        entry.memory[at..at + 100].fill(3);
        entry
    }

    #[test]
    fn a_request_is_as_from_the_device_and_its_data_begins_a_page() {
        let fixed = size_of::<InHeader>() + size_of::<WriteIn>();
        let mut entry = entry(fixed + 100, 100);
        let range = entry.request().unwrap();
        let request = Request::decode(&entry.memory[range], InitFlags::NONE).unwrap();
        let Operation::Write { args, data } = &request.operation else { panic!("{request:?}") };
        assert_eq!((args.offset, *data), (7, &[3; 100][..]));
        assert_eq!(data.as_ptr().align_offset(PAGE), 0);
        assert_eq!(request.unique(), 6);
        assert_eq!(entry.serving, Some((ReplyTo::from_raw(6), 9)));
    }

    #[test]
    fn an_answer_lies_where_the_kernel_looks() {
        let answers = Answers::new(8192).unwrap();
        let to = ReplyTo::from_raw(6);
        assert!(answers.take(to).is_none() && !answers.has());
        answers.put(to, &Reply::Data(b"content")).unwrap();
        assert!(answers.put(to, &Reply::Data(&[0; 8193])).is_err(), "it does not fit");
        let mut entry = entry(200, 100);
        entry.answer(&answers.take(to).unwrap());
        assert_eq!(entry.headers.entry.payload_size, 7);
        assert_eq!(&entry.memory[entry.payload_at..][..7], b"content");
        assert_eq!(entry.headers.in_out[8..16], 6_u64.to_ne_bytes());
    }

    proptest! {
        #[test]
        fn lengths_that_cannot_be_are_errors(
            len in any::<u32>(),
            payload in any::<u32>(),
            bytes in prop::collection::vec(any::<u8>(), 128),
        ) {
            let mut entry = entry(0, 0);
            entry.headers.in_out.copy_from_slice(&bytes);
            entry.headers.in_out[..4].copy_from_slice(&len.to_ne_bytes());
            entry.headers.entry.payload_size = payload;
            if let Ok(range) = entry.request() {
                assert_eq!(range.len(), len as usize);
                let _ = Request::decode(&entry.memory[range], InitFlags::NONE);
            }
        }
    }
}
