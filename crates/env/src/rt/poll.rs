//! The fallback backend: epoll for sockets, worker threads for disks.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use millpond_types::Tick;

use super::driver::{Finished, Ops, Wait};
use super::op::Action;
use super::remote::Remote;
use super::workers::Workers;
use crate::clock::RealClock;
use crate::sys::{check, check_len, own};

/// Events collected by one `epoll_wait`.
const EVENTS_MAX: usize = 256;
/// Operations of one turn that may complete immediately. Later ones complete in the next turn, so
/// that a connection that always has data cannot monopolize the core.
const INSTANT_MAX: u32 = 64;
/// Event data of the mailbox's eventfd.
const WAKE: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Reader,
    Writer,
}

/// Operations that wait for a descriptor. It is in the epoll set as long as it is in the table.
#[derive(Debug, Default)]
struct Waiters {
    reader: Option<usize>,
    writer: Option<usize>,
    /// Whether it is a socket of this crate, which announces its close; others leave the set after
    /// each wait.
    owned: bool,
}

impl Waiters {
    fn side(&mut self, side: Side) -> &mut Option<usize> {
        match side {
            Side::Reader => &mut self.reader,
            Side::Writer => &mut self.writer,
        }
    }
}

pub(super) struct Poller {
    epoll: OwnedFd,
    remote: Arc<Remote>,
    waiters: HashMap<RawFd, Waiters>,
    workers: Workers,
    instant: u32,
    /// Results for delivery in the next turn.
    deferred: Vec<(usize, i32)>,
    events: Vec<libc::epoll_event>,
    precise_sleep: bool,
}

impl Poller {
    pub(super) fn new(remote: Arc<Remote>) -> io::Result<Self> {
        // SAFETY: plain numbers.
        let epoll = own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let poller = Self {
            epoll,
            workers: Workers::new(Arc::clone(&remote)),
            remote,
            waiters: HashMap::new(),
            instant: 0,
            deferred: Vec::new(),
            events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX],
            precise_sleep: true,
        };
        poller.control(libc::EPOLL_CTL_ADD, poller.remote.event_fd(), libc::EPOLLIN, WAKE)?;
        Ok(poller)
    }

    fn control(&self, what: i32, fd: RawFd, events: i32, data: u64) -> io::Result<()> {
        #[expect(clippy::cast_sign_loss, reason = "a bit set")]
        let mut event = libc::epoll_event { events: events as u32, u64: data };
        // SAFETY: `event` is readable for the length of the call.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), what, fd, &raw mut event) })
            .map(drop)
    }

    pub(super) fn start(&mut self, key: usize, action: Action, ops: &mut Ops) {
        let Some((fd, side)) = socket_side(action) else {
            self.workers.push(key, action);
            return;
        };
        match attempt(action) {
            Some(result) => self.finish_early(key, result, ops),
            None => {
                if let Err(error) = self.park(key, fd, side, !matches!(action, Action::Poll { .. }))
                {
                    self.finish_early(key, errno(&error), ops);
                }
            }
        }
    }

    fn finish_early(&mut self, key: usize, result: i32, ops: &mut Ops) {
        self.instant += 1;
        if self.instant > INSTANT_MAX {
            self.deferred.push((key, result));
        } else {
            // No future waits for it yet, so nothing is woken or dropped.
            ops.complete(key, result, &mut Finished::default());
        }
    }

    /// Makes `key` wait for `fd`. The set is edge-triggered: the attempt just made came first, so
    /// no edge is missed.
    fn park(&mut self, key: usize, fd: RawFd, side: Side, owned: bool) -> io::Result<()> {
        if !self.waiters.contains_key(&fd) {
            let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET;
            let data = u64::try_from(fd).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
            self.control(libc::EPOLL_CTL_ADD, fd, events, data)?;
        }
        let waiters = self.waiters.entry(fd).or_default();
        waiters.owned |= owned;
        let place = waiters.side(side);
        if place.is_some() {
            return Err(io::Error::from_raw_os_error(libc::EALREADY));
        }
        *place = Some(key);
        Ok(())
    }

    /// Takes a descriptor that is not a socket of this crate out of the set once nothing waits for
    /// it: its owner may close it without notice.
    fn leave(&mut self, fd: RawFd) {
        let Some(waiters) = self.waiters.get(&fd) else { return };
        if !waiters.owned && waiters.reader.is_none() && waiters.writer.is_none() {
            self.forget(fd);
        }
    }

    pub(super) fn forget(&mut self, fd: RawFd) {
        if self.waiters.remove(&fd).is_some() {
            let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
    }

    pub(super) fn cancel(&mut self, key: usize, ops: &mut Ops, finished: &mut Finished) {
        let Some((fd, side)) = socket_side(ops.action(key)) else { return };
        let Some(waiters) = self.waiters.get_mut(&fd) else { return };
        let place = waiters.side(side);
        if *place == Some(key) {
            *place = None;
            ops.complete(key, -libc::ECANCELED, finished);
            self.leave(fd);
        }
    }

    pub(super) fn turn(&mut self, wait: Wait, ops: &mut Ops, finished: &mut Finished) {
        self.instant = 0;
        let wait = if self.deferred.is_empty() { wait } else { Wait::No };
        for (key, result) in self.deferred.drain(..) {
            ops.complete(key, result, finished);
        }
        if wait == Wait::No && self.waiters.is_empty() {
            return;
        }
        let mut events = std::mem::take(&mut self.events);
        let count = self.wait(&mut events, wait);
        for event in &events[..count] {
            let (flags, data) = (event.events, event.u64);
            if data == WAKE {
                self.remote.reset_event();
            } else if let Ok(fd) = RawFd::try_from(data) {
                self.ready(fd, flags, ops, finished);
            }
        }
        self.events = events;
    }

    fn wait(&mut self, events: &mut [libc::epoll_event], wait: Wait) -> usize {
        let left = match wait {
            Wait::No => Some(std::time::Duration::ZERO),
            Wait::Until(Tick::MAX) => None,
            Wait::Until(until) => Some(until.since(RealClock::tick())),
        };
        let (fd, room) = (self.epoll.as_raw_fd(), i32::try_from(events.len()).unwrap_or(i32::MAX));
        if self.precise_sleep {
            let time = left.map(|left| libc::timespec {
                tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
                tv_nsec: left.subsec_nanos().into(),
            });
            let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: `events` is writable for `room` events and `time` is null or a timespec.
            let result = unsafe {
                libc::epoll_pwait2(fd, events.as_mut_ptr(), room, time, std::ptr::null())
            };
            match check(result) {
                Ok(count) => return usize::try_from(count).unwrap_or(0),
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => return 0,
                // An older kernel, or a filter that does not know the call.
                Err(_) => self.precise_sleep = false,
            }
        }
        let millis = left
            .map_or(-1, |left| i32::try_from(left.as_micros().div_ceil(1_000)).unwrap_or(i32::MAX));
        // SAFETY: `events` is writable for `room` events.
        let result = unsafe { libc::epoll_wait(fd, events.as_mut_ptr(), room, millis) };
        usize::try_from(result).unwrap_or(0)
    }

    fn ready(&mut self, fd: RawFd, flags: u32, ops: &mut Ops, finished: &mut Finished) {
        let is_set = |bits: i32| flags & bits.cast_unsigned() != 0;
        let broken = is_set(libc::EPOLLERR | libc::EPOLLHUP);
        if broken || is_set(libc::EPOLLIN | libc::EPOLLRDHUP) {
            self.retry(fd, Side::Reader, ops, finished);
        }
        if broken || is_set(libc::EPOLLOUT) {
            self.retry(fd, Side::Writer, ops, finished);
        }
        self.leave(fd);
    }

    fn retry(&mut self, fd: RawFd, side: Side, ops: &mut Ops, finished: &mut Finished) {
        let Some(waiters) = self.waiters.get_mut(&fd) else { return };
        let place = waiters.side(side);
        let Some(key) = *place else { return };
        if let Some(result) = attempt(ops.action(key)) {
            *place = None;
            ops.complete(key, result, finished);
        }
    }
}

/// The descriptor that a socket action waits for; `None` for disk actions.
fn socket_side(action: Action) -> Option<(RawFd, Side)> {
    match action {
        Action::Recv { fd, .. } | Action::Accept { fd } => Some((fd, Side::Reader)),
        Action::Send { fd, .. } | Action::SendMsg { fd, .. } | Action::Connect { fd, .. } => {
            Some((fd, Side::Writer))
        }
        Action::Poll { fd, events } => {
            let side = if events & libc::POLLIN != 0 { Side::Reader } else { Side::Writer };
            Some((fd, side))
        }
        Action::Read { .. }
        | Action::Write { .. }
        | Action::Sync { .. }
        | Action::Punch { .. }
        | Action::Reserve { .. } => None,
    }
}

fn errno(error: &io::Error) -> i32 {
    -error.raw_os_error().unwrap_or(libc::EIO)
}

/// Tries a socket action without blocking; `None` when it would block.
fn attempt(action: Action) -> Option<i32> {
    loop {
        let result = match try_once(action) {
            Ok(result) => i32::try_from(result).unwrap_or(i32::MAX),
            Err(error) => errno(&error),
        };
        match -result {
            libc::EINTR => {}
            libc::EAGAIN | libc::EINPROGRESS | libc::EALREADY => return None,
            libc::EISCONN if matches!(action, Action::Connect { .. }) => return Some(0),
            _ => return Some(result),
        }
    }
}

fn try_once(action: Action) -> io::Result<usize> {
    let send_flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY (each call below): `Op` keeps the memory an action points to alive and unshared until
    // the action has completed.
    match action {
        Action::Recv { fd, into, len, .. } => {
            // SAFETY: see above.
            check_len(unsafe { libc::recv(fd, into.cast(), len as usize, libc::MSG_DONTWAIT) })
        }
        Action::Send { fd, from, len } => {
            // SAFETY: see above.
            check_len(unsafe { libc::send(fd, from.cast(), len as usize, send_flags) })
        }
        Action::SendMsg { fd, message } => {
            // SAFETY: see above.
            check_len(unsafe { libc::sendmsg(fd, message, send_flags) })
        }
        Action::Accept { fd } => {
            let null = std::ptr::null_mut();
            // SAFETY: the call requests no address.
            let result =
                check(unsafe { libc::accept4(fd, null, null.cast(), libc::SOCK_CLOEXEC) })?;
            Ok(usize::try_from(result).unwrap_or(0))
        }
        Action::Connect { fd, address, len } => {
            // SAFETY: see above.
            check(unsafe { libc::connect(fd, address, len) }).map(|_| 0)
        }
        Action::Poll { fd, events } => {
            let mut poll = libc::pollfd { fd, events, revents: 0 };
            // SAFETY: one writable pollfd.
            let count = check(unsafe { libc::poll(&raw mut poll, 1, 0) })?;
            if count == 0 {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
            Ok(usize::try_from(poll.revents).unwrap_or(0))
        }
        Action::Read { .. }
        | Action::Write { .. }
        | Action::Sync { .. }
        | Action::Punch { .. }
        | Action::Reserve { .. } => {
            unreachable!("disk actions go to the worker threads")
        }
    }
}
