//! Changes of names that a mount has answered and not yet sent to a meta: *promises*.
//!
//! No other client changes the files of a one-writer mount, nor a directory that is
//! [delegated](delegations) to a close-to-open mount. So the mount knows the result of an exclusive
//! create or an unlink before a meta does. It writes the request to its journal, answers the
//! kernel, and background threads have a meta execute it: many at a time, those that touch one name
//! or inode in order ([`order`]). A request has its sequence from the beginning, so it is executed
//! once, even if both this process and the next one send it. An operation that depends on a promise
//! waits for it, and so does fsync.
//!
//! Local file systems do the same with their journal in memory, and NFS' write delegations with
//! bytes (RFC 8881, section 10.4). RFC 0017 has the reasons.

mod delegations;
mod dirs;
mod names;
mod order;
mod recalls;
mod single;
mod threads;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millpond_env::RealClock;
use millpond_types::Tick;
use millpond_types::meta::object::ObjectOp;
use millpond_types::meta::{Attr, Create, FileKind, Ino, Layout, MetaOp, MetaRequest, Name};
use parking_lot::{Condvar, Mutex, MutexGuard};

pub(crate) use self::delegations::Delegations;
use self::delegations::Still;
use self::dirs::Dirs;
pub(crate) use self::names::{Known, Names};
use self::order::{Key, Order};
use self::single::Single;
pub(crate) use self::threads::{PROMISES_AT_ONCE, Threads};
use crate::backend::Told;
use crate::deadline;
use crate::errno::Errno;
use crate::files::Files;

/// The largest number of pending promises, and of file bytes in them: the journal has room for them
/// beside everything else.
const PENDING_MAX: usize = 1024;
const PENDING_BYTES_MAX: usize = 1 << 20;
/// How long a promise waits for more changes of its file, unless a request waits for it: other
/// mounts see the older state.
const LINGER: Duration = Duration::from_millis(10);
/// How long a thread polls for work after the last promise.
const BUSY: Duration = Duration::from_secs(1);
/// The largest number of remembered files and directories with failed promises.
const FAILED_MAX: usize = 1 << 10;

/// A change that was answered.
#[derive(Debug)]
pub(crate) struct Promise {
    /// Numbers grow in order of creation.
    pub(crate) number: u64,
    pub(crate) request: MetaRequest,
    /// The file that it creates, changes or unlinks.
    pub(crate) ino: Ino,
}

/// The outcome of a promise.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// A meta has executed it, and may report the file's new state.
    Kept(Option<Told>),
    /// No meta will ever execute it.
    Failed(Errno),
}

#[derive(Debug, Default)]
struct State {
    order: Order,
    promises: HashMap<u64, Arc<Promise>>,
    /// Promises that no thread works on and that can be kept now, each with the time from which on
    /// it may.
    ready: VecDeque<(u64, Tick)>,
    /// Promises of this process that no thread has ever taken.
    fresh: HashSet<u64>,
    /// A thread polls for work with a timeout, for lingering promises.
    is_watched: bool,
    /// When a thread last took one.
    taken: Tick,
    /// Number of requests that wait for promises.
    waiting: usize,
    next: u64,
    /// Bytes of files in all of them.
    bytes: usize,
    /// No more promises are made (`draining`), or kept by this process (`ended`).
    draining: bool,
    ended: bool,
    /// Errors of failed promises, by file and by directory of the name.
    failed: HashMap<Ino, Errno>,
    /// Promised files that could not be made, while other promises for them are pending.
    unmade: HashSet<Ino>,
    /// Failed promises that the kernel still believes.
    believed: VecDeque<Arc<Promise>>,
}

/// The promises of a mount.
#[derive(Debug)]
pub(crate) struct Behind {
    /// Whether the mount makes promises.
    promises: bool,
    /// The directories where it makes them; none where the mount is the only client.
    pub(crate) delegations: Option<Delegations>,
    state: Mutex<State>,
    /// Number of pending promises, to skip waiting without a lock.
    pending: AtomicUsize,
    /// Signals work to do, a kept promise, and a failed promise.
    work: Condvar,
    done: Condvar,
    broken: Condvar,
    /// Signals the end of the pause before a retry.
    again: Condvar,
    /// Promises of an earlier process, by sequence: the kernel may not have received their answers.
    left: HashMap<u64, Option<Attr>>,
    pub(crate) names: Names,
    pub(crate) dirs: Dirs,
    pub(crate) single: Single,
}

/// The promises that a request waits for.
#[derive(Debug)]
enum Waits<'o> {
    Nothing,
    /// Those of a file; for a directory, those of names in it.
    Inode(Ino),
    /// Those of a file alone.
    File(Ino),
    Name(Ino, &'o Name),
    /// Those of two names and of their files: a file that replaces another must have its bytes
    /// first.
    Names([(Ino, &'o Name); 2]),
    All,
}

/// The promises that an operation must see or follow.
fn waits<'o>(op: &'o MetaOp, behind: &Behind) -> Waits<'o> {
    match op {
        MetaOp::SessionOpen { .. }
        | MetaOp::SessionRenew { .. }
        | MetaOp::SessionClose
        | MetaOp::Recalled
        | MetaOp::Return { .. }
        | MetaOp::TakeNumbers { .. } => Waits::Nothing,
        MetaOp::SetAttr { ino, .. }
        | MetaOp::RemoveXattr { ino, .. }
        | MetaOp::GetLock { ino, .. }
        | MetaOp::SetLock { ino, .. }
        | MetaOp::GetAttr { ino }
        | MetaOp::Content { ino } => Waits::Inode(*ino),
        // Names in a directory do not change the results of these.
        MetaOp::GetQuota { ino } | MetaOp::GetXattr { ino, .. } | MetaOp::ListXattr { ino } => {
            Waits::File(*ino)
        }
        // With attributes, the lengths of all files in it count.
        MetaOp::ReadDir(page) if !page.attrs => Waits::Inode(page.dir),
        MetaOp::Extend(extend) => Waits::Inode(extend.ino),
        MetaOp::Hollow(hollow) => Waits::Inode(hollow.ino),
        MetaOp::WriteInline(write) => Waits::Inode(write.ino),
        MetaOp::Reserve(reserve) => Waits::Inode(reserve.ino),
        MetaOp::Spill(spill) => Waits::Inode(spill.ino),
        MetaOp::SetXattr(set) => Waits::Inode(set.ino),
        MetaOp::Lookup { parent, name } | MetaOp::Unlink { parent, name, .. } => {
            Waits::Name(*parent, name)
        }
        MetaOp::Create(create) => Waits::Name(create.parent, &create.name),
        MetaOp::Object(ObjectOp::Nameless { parent, .. }) => Waits::Inode(*parent),
        // It does not replace a directory, whose names may have to be removed first.
        MetaOp::Rename(rename)
            if rename.parent == rename.new_parent
                && [&rename.name, &rename.new_name]
                    .into_iter()
                    .all(|name| behind.known(rename.parent, name).is_some()) =>
        {
            Waits::Names([(rename.parent, &rename.name), (rename.new_parent, &rename.new_name)])
        }
        _ => Waits::All,
    }
}

impl Behind {
    /// Takes over the promises that an earlier process left, oldest first. A mount makes promises
    /// in delegated directories, or everywhere.
    pub(crate) fn new(
        promises: bool,
        delegations: Option<Delegations>,
        left: Vec<(u64, Ino, MetaRequest)>,
    ) -> Self {
        let of_left =
            |(_, _, request): &(u64, Ino, MetaRequest)| (request.sequence, promised_attr(request));
        let this = Self {
            promises,
            delegations,
            state: Mutex::default(),
            pending: AtomicUsize::new(0),
            work: Condvar::new(),
            done: Condvar::new(),
            broken: Condvar::new(),
            again: Condvar::new(),
            left: left.iter().map(of_left).collect(),
            names: Names::default(),
            dirs: Dirs::default(),
            single: Single::default(),
        };
        let mut state = this.state.lock();
        for (number, ino, request) in left {
            this.take_on(&mut state, Promise { number, request, ino });
            state.fresh.remove(&number);
        }
        drop(state);
        this
    }

    /// Whether the mount makes promises.
    pub(crate) const fn is_on(&self) -> bool {
        self.promises
    }

    /// Whether it makes them everywhere: it assumes that it is the only client.
    pub(crate) const fn is_sole(&self) -> bool {
        self.promises && self.delegations.is_none()
    }

    /// Whether no other client sees or changes a directory.
    pub(crate) fn has_dir(&self, dir: Ino) -> bool {
        self.promises && self.delegations.as_ref().is_none_or(|all| all.has(dir))
    }

    /// Whether no other client sees or changes a file.
    pub(crate) fn has_file(&self, ino: Ino) -> bool {
        self.promises && self.delegations.as_ref().is_none_or(|all| all.covers(ino))
    }

    /// The cached state of a name that no other client changes.
    pub(crate) fn known(&self, dir: Ino, name: &Name) -> Option<Known> {
        if self.has_dir(dir) { self.names.get(dir, name) } else { None }
    }

    /// Guards the delegations while a promise is made.
    pub(crate) fn still(&self) -> Option<Still<'_>> {
        self.delegations.as_ref().map(Delegations::still)
    }

    /// Makes a promise for a file; the caller then answers the kernel.
    ///
    /// Waits for room if there are too many. Returns false when there is none for long, or this
    /// process makes no more promises: then the caller asks a meta.
    pub(crate) fn promise(&self, files: &Files, ino: Ino, request: &MetaRequest) -> bool {
        let mut state = self.state.lock();
        // The caller then asks a meta, which takes time too.
        let until = RealClock::tick().plus(deadline::patience() / 2);
        self.wait_while(&mut state, until, |state| !state.has_room(request));
        if state.ended || state.draining || !state.has_room(request) {
            return false;
        }
        if let Some((number, whole)) = state.with_bytes(ino, &request.op) {
            let noted = files.promised(number, ino, &whole);
            if noted {
                state.bytes += bytes_of(&whole);
                state.promises.insert(number, Arc::new(Promise { number, request: whole, ino }));
            }
            return noted;
        }
        let number = state.next;
        // Written to the journal before it becomes visible.
        let noted = files.promised(number, ino, request);
        if noted {
            self.take_on(&mut state, Promise { number, request: request.clone(), ino });
        }
        noted
    }

    fn take_on(&self, state: &mut State, promise: Promise) {
        let promise = Arc::new(promise);
        let number = promise.number;
        state.next = number + 1;
        state.bytes += bytes_of(&promise.request);
        state.fresh.insert(number);
        if state.order.add(number, touches(&promise)) {
            let lingers = matches!(promise.request.op, MetaOp::Create(_));
            let since = if lingers { RealClock::tick().plus(LINGER) } else { Tick(0) };
            state.ready.push_back((number, since));
            if !(lingers && state.is_watched) {
                self.work.notify_one();
            }
        }
        state.promises.insert(number, promise);
        self.pending.store(state.order.len(), Ordering::Release);
    }

    /// Waits for the promises that an operation must follow.
    ///
    /// # Errors
    /// `EIO` when this process keeps no more promises (the next process keeps them, and executes
    /// the operation after them), and when the request's deadline has passed.
    pub(crate) fn wait_before(&self, op: &MetaOp) -> Result<(), Errno> {
        if self.pending.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let state = self.state.lock();
        match waits(op, self) {
            Waits::Nothing => Ok(()),
            Waits::Inode(ino) => self.wait_inode_with(state, ino),
            Waits::File(ino) => {
                let key = Key::Inode(ino);
                let last = state.order.last_of(&key);
                self.wait(state, last, |other| *other == key)
            }
            Waits::Names(names) => {
                let files = names.iter().filter_map(|(dir, name)| match self.known(*dir, name) {
                    Some(Known::Is(ino)) => Some(Key::Inode(ino)),
                    _ => None,
                });
                let of_names = names.iter().map(|(dir, name)| Key::Name(*dir, (*name).clone()));
                let keys: Vec<Key> = of_names.chain(files).collect();
                let last = keys.iter().filter_map(|key| state.order.last_of(key)).max();
                self.wait(state, last, |other| keys.contains(other))
            }
            Waits::Name(dir, name) => {
                let key = Key::Name(dir, name.clone());
                let last = state.order.last_of(&key);
                self.wait(state, last, |other| *other == key)
            }
            Waits::All => {
                let last = state.order.last();
                self.wait(state, last, |_| true)
            }
        }
    }

    /// Waits for all promises that touch a file; for a directory, names in it.
    ///
    /// # Errors
    /// As of [`Self::wait_before`].
    pub(crate) fn wait_inode(&self, ino: Ino) -> Result<(), Errno> {
        if self.pending.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        self.wait_inode_with(self.state.lock(), ino)
    }

    /// Waits for all promises so far.
    ///
    /// # Errors
    /// As of [`Self::wait_before`].
    pub(crate) fn wait_all(&self) -> Result<(), Errno> {
        let state = self.state.lock();
        let last = state.order.last();
        self.wait(state, last, |_| true)
    }

    /// Waits for all promises of names in some directories, and of files made in them.
    ///
    /// # Errors
    /// As of [`Self::wait_before`].
    fn wait_dirs(&self, dirs: &[Ino]) -> Result<(), Errno> {
        let state = self.state.lock();
        let last = state.order.last();
        let may_be_of = |ino| self.delegations.as_ref().is_none_or(|all| all.may_be_of(ino, dirs));
        self.wait(state, last, |key| match key {
            Key::Name(dir, _) => dirs.contains(dir),
            Key::Inode(ino) => may_be_of(*ino),
        })
    }

    /// Forgets cached state that was valid only while the directories were delegated.
    fn forget_dirs(&self, dirs: &[Ino]) {
        for dir in dirs {
            self.names.forget_dir(*dir);
            self.dirs.forget(*dir);
        }
    }

    fn wait_inode_with(&self, state: MutexGuard<'_, State>, ino: Ino) -> Result<(), Errno> {
        let last = state.order.last_of(&Key::Inode(ino)).max(state.order.last_in(ino));
        self.wait(state, last, |key| match key {
            Key::Inode(other) | Key::Name(other, _) => *other == ino,
        })
    }

    /// Whether metas have executed all promises.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    /// Whether a promise touches a file.
    pub(crate) fn is_pending(&self, ino: Ino) -> bool {
        self.pending.load(Ordering::Acquire) > 0
            && self.state.lock().order.last_of(&Key::Inode(ino)).is_some()
    }

    fn wait(
        &self,
        mut state: MutexGuard<'_, State>,
        last: Option<u64>,
        touches: impl Fn(&Key) -> bool + Copy,
    ) -> Result<(), Errno> {
        let Some(last) = last else { return Ok(()) };
        let until = deadline::until();
        self.wait_while(&mut state, until, |state| state.order.is_pending(last, touches));
        if state.order.is_pending(last, touches) { Err(Errno::IO) } else { Ok(()) }
    }

    /// Waits while `is_so`, until the deadline or until this process keeps no more promises. No
    /// promise lingers during the wait.
    fn wait_while(
        &self,
        state: &mut MutexGuard<'_, State>,
        until: Tick,
        is_so: impl Fn(&State) -> bool,
    ) {
        state.waiting += 1;
        while !state.ended && is_so(state) {
            let left = until.since(RealClock::tick());
            if left.is_zero() {
                break;
            }
            self.work.notify_all();
            self.done.wait_for(state, left);
        }
        state.waiting -= 1;
    }

    /// Stops making promises and waits until all are kept; returns how many are left when
    /// `patience` is over.
    pub(crate) fn drain(&self, patience: Duration) -> usize {
        let until = RealClock::tick().plus(patience);
        let mut state = self.state.lock();
        state.draining = true;
        self.wait_while(&mut state, until, |state| state.order.len() > 0);
        state.order.len()
    }

    /// Ends the keeping of promises by this process; none is marked as kept any more.
    fn end(&self) {
        self.state.lock().ended = true;
        self.delegations.iter().for_each(Delegations::end);
        self.work.notify_all();
        self.done.notify_all();
        self.broken.notify_all();
        self.again.notify_all();
    }

    /// The next promise to keep; `None` when this process keeps no more.
    fn take(&self) -> Option<Arc<Promise>> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            let now = RealClock::tick();
            let Some((number, since)) = state.ready.front().copied() else {
                let is_busy = now.since(state.taken) < BUSY && !state.is_watched;
                self.sleep(&mut state, is_busy.then_some(LINGER));
                continue;
            };
            let left = since.since(now);
            if !left.is_zero() && state.may_linger() {
                let watches = !state.is_watched;
                self.sleep(&mut state, watches.then_some(left));
                continue;
            }
            state.ready.pop_front();
            (state.taken, _) = (now, state.fresh.remove(&number));
            // The others sleep until they are notified.
            if !state.ready.is_empty() {
                self.work.notify_one();
            }
            if let Some(promise) = state.promises.get(&number) {
                return Some(Arc::clone(promise));
            }
        }
    }

    /// Sleeps until there is work. A thread with a timeout polls afterwards: nothing wakes it for
    /// lingering promises.
    fn sleep(&self, state: &mut MutexGuard<'_, State>, time: Option<Duration>) {
        let Some(time) = time else { return self.work.wait(state) };
        state.is_watched = true;
        self.work.wait_for(state, time);
        state.is_watched = false;
    }

    /// The last promise of a file, for a request that waits for it, if it can be kept now and no
    /// thread works on it.
    fn take_of(&self, ino: Ino) -> Option<Arc<Promise>> {
        let mut state = self.state.lock();
        let number = state.order.last_of(&Key::Inode(ino)).filter(|_| !state.ended)?;
        let place = state.ready.iter().rposition(|(ready, _)| *ready == number)?;
        state.ready.remove(place);
        (state.taken, _) = (RealClock::tick(), state.fresh.remove(&number));
        state.promises.get(&number).map(Arc::clone)
    }

    /// Returns a promise that was taken, for another thread.
    fn put_back(&self, promise: &Promise) {
        let mut state = self.state.lock();
        if !state.ended && state.promises.contains_key(&promise.number) {
            state.ready.push_front((promise.number, Tick(0)));
            self.work.notify_one();
        }
    }

    /// The next failed promise that the kernel must be notified of.
    fn take_broken(&self) -> Option<Arc<Promise>> {
        let mut state = self.state.lock();
        loop {
            if state.ended {
                return None;
            }
            if let Some(promise) = state.believed.pop_front() {
                return Some(promise);
            }
            self.broken.wait(&mut state);
        }
    }

    /// Pauses before a promise is retried; false when this process keeps no more.
    fn pause(&self, pause: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.ended {
            self.again.wait_for(&mut state, pause);
        }
        !state.ended
    }

    /// Replaces the request of a promise, also for the next process; false when this process keeps
    /// no more.
    fn ask_as(&self, files: &Files, promise: &Promise, request: &MetaRequest) -> bool {
        let state = self.state.lock();
        if !state.ended {
            files.promised_as(promise.number, promise.ino, request);
        }
        !state.ended
    }

    /// Whether the file of a promise could not be made: then its name leads to another file.
    fn is_unmade(&self, promise: &Promise) -> bool {
        self.state.lock().unmade.contains(&promise.ino)
    }

    /// Settles a promise that was kept, or never will be. Calls `settled` with the file's state if
    /// no other promise for it is pending.
    fn settle(
        &self,
        files: &Files,
        (promise, outcome): (&Arc<Promise>, Outcome),
        settled: impl FnOnce(Told),
    ) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.ended {
            return;
        }
        state.promises.remove(&promise.number);
        state.bytes -= bytes_of(&promise.request);
        for number in state.order.done(promise.number) {
            // It has waited already.
            state.ready.push_front((number, Tick(0)));
            self.work.notify_one();
        }
        let more = state.order.last_of(&Key::Inode(promise.ino)).is_some();
        match outcome {
            Outcome::Kept(told) => {
                files.kept(promise.number, told);
                if let Some(told) = told.filter(|_| !more) {
                    settled(told);
                }
            }
            Outcome::Failed(errno) => {
                files.broken(promise.number);
                state.fail(promise, errno);
                self.broken.notify_one();
            }
        }
        if !more {
            state.unmade.remove(&promise.ino);
        }
        self.pending.store(state.order.len(), Ordering::Release);
        self.done.notify_all();
    }

    /// The error of a failed promise for this file, or for a name in this directory; reported once.
    pub(crate) fn failure(&self, ino: Ino) -> Result<(), Errno> {
        self.state.lock().failed.remove(&ino).map_or(Ok(()), Err)
    }

    /// Whether an earlier process promised this request.
    pub(crate) fn was_promised(&self, sequence: u64) -> bool {
        self.left.contains_key(&sequence)
    }

    /// The file that it created with this request.
    pub(crate) fn made_before(&self, sequence: u64) -> Option<Attr> {
        self.left.get(&sequence).copied().flatten()
    }

    /// Notes that an operation is about to be sent to a meta, or was answered.
    pub(crate) fn passes(&self, op: &MetaOp) {
        if self.promises {
            self.delegations.iter().for_each(|all| all.passes(op, &self.names));
            self.names.passes(op);
            self.dirs.passes(op);
            self.single.passes(op);
        }
    }
}

impl State {
    /// Whether promises may wait for more changes of their files: no request waits for them, and
    /// there is room for others.
    fn may_linger(&self) -> bool {
        self.waiting == 0
            && self.order.len() < PENDING_MAX / 2
            && self.bytes < PENDING_BYTES_MAX / 2
    }

    fn has_room(&self, request: &MetaRequest) -> bool {
        self.order.len() < PENDING_MAX && self.bytes + bytes_of(request) <= PENDING_BYTES_MAX
    }

    /// The create of a file with the first bytes written to it, if it is promised, no thread has
    /// taken it, and nothing came between: one change in place of two.
    fn with_bytes(&self, ino: Ino, op: &MetaOp) -> Option<(u64, MetaRequest)> {
        let MetaOp::WriteInline(write) = op else { return None };
        let number = self.order.last_of(&Key::Inode(ino))?;
        let mut request = self.promises.get(&number)?.request.clone();
        let MetaOp::Create(Create { promised: Some(promised), .. }) = &mut request.op else {
            return None;
        };
        let is_first = write.offset == 0 && write.data == ino.0 && promised.bytes.is_empty();
        if !is_first || !self.fresh.contains(&number) {
            return None;
        }
        (promised.bytes, promised.written) = (write.bytes.clone(), write.mtime);
        Some((number, request))
    }

    fn fail(&mut self, promise: &Arc<Promise>, errno: Errno) {
        let dir = match &promise.request.op {
            MetaOp::Create(create) => {
                self.unmade.insert(promise.ino);
                Some(create.parent)
            }
            MetaOp::Unlink { parent, .. } => Some(*parent),
            _ => None,
        };
        for ino in dir.into_iter().chain([promise.ino]) {
            if self.failed.len() >= FAILED_MAX {
                // Evicts any entry: its reader has not asked for long, and the log has its line.
                let some = self.failed.keys().next().copied();
                some.map(|ino| self.failed.remove(&ino));
            }
            self.failed.insert(ino, errno);
        }
        if self.believed.len() < FAILED_MAX {
            self.believed.push_back(Arc::clone(promise));
        }
    }
}

/// The names and inodes that a promise touches.
fn touches(promise: &Promise) -> Vec<Key> {
    let inode = Key::Inode(promise.ino);
    match &promise.request.op {
        MetaOp::Create(create) => vec![Key::Name(create.parent, create.name.clone()), inode],
        MetaOp::Unlink { parent, name, .. } => vec![Key::Name(*parent, name.clone()), inode],
        _ => vec![inode],
    }
}

/// Bytes of a file in a request.
const fn bytes_of(request: &MetaRequest) -> usize {
    match &request.op {
        MetaOp::WriteInline(write) => write.bytes.len(),
        MetaOp::Create(Create { promised: Some(promised), .. }) => promised.bytes.len(),
        _ => 0,
    }
}

/// The attributes of a promised file; a meta chooses the place of its bytes.
pub(crate) fn promised_attr(request: &MetaRequest) -> Option<Attr> {
    let MetaOp::Create(create) = &request.op else { return None };
    let promised = create.promised.as_ref()?;
    Some(Attr {
        is_shared: false,
        solid: 0,
        cuts: 0,
        ino: promised.ino,
        kind: FileKind::Regular,
        mode: create.mode,
        uid: request.caller.uid,
        gid: request.caller.gid,
        nlink: 1,
        rdev: 0,
        size: 0,
        atime: promised.at,
        mtime: promised.at,
        ctime: promised.at,
        btime: promised.at,
        data: promised.ino.0,
        chunks: None,
        layout: Layout::NONE,
        parent: create.parent,
        version: 0,
    })
}

#[cfg(test)]
mod tests;
