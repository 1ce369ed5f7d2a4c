//! Changes of names that a mount has answered and not told a meta yet: *promises*.
//!
//! Nobody else changes the files of a one-writer mount, nor a directory that is [delegated](delegations) to one in
//! close-to-open, so it knows how an exclusive create or an unlink ends before a meta does. It writes the request to its journal, answers the kernel, and threads of its own
//! have a meta do it: many at a time, those that touch one name or inode in their order ([`order`]). A
//! request has its sequence from the beginning, so it is done once whoever asks for it, this process or
//! the next one. Whoever asks for something that a promise touches waits for it, and so does fsync.
//!
//! That is what local file systems do with their journal in memory, and NFS' write delegations with
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

/// Promises that are not kept yet, at most, and bytes of files in them: the journal has room for them beside all
/// else.
const PENDING_MAX: usize = 1024;
const PENDING_BYTES_MAX: usize = 1 << 20;
/// How long a promise waits for more of its file, unless somebody waits for it: other mounts see what is older.
const LINGER: Duration = Duration::from_millis(10);
/// How long a thread looks for more by itself after the last one.
const BUSY: Duration = Duration::from_secs(1);
/// Files and directories whose promises could not be kept, at most.
const FAILED_MAX: usize = 1 << 10;

/// A change that was answered.
#[derive(Debug)]
pub(crate) struct Promise {
    /// In the order in which they were made.
    pub(crate) number: u64,
    pub(crate) request: MetaRequest,
    /// The file that it makes, changes or takes a name from.
    pub(crate) ino: Ino,
}

/// What became of a promise.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// A meta has done it, and perhaps says how the file is now.
    Kept(Option<Told>),
    /// No meta ever will.
    Failed(Errno),
}

#[derive(Debug, Default)]
struct State {
    order: Order,
    promises: HashMap<u64, Arc<Promise>>,
    /// Can be kept now, and nobody is at it; and since when they may.
    ready: VecDeque<(u64, Tick)>,
    /// Were made by this process, and nobody was ever at them.
    fresh: HashSet<u64>,
    /// Somebody looks for work within the time for which creates linger.
    is_watched: bool,
    /// When somebody took one last.
    taken: Tick,
    /// How many wait for some to be kept.
    waiting: usize,
    next: u64,
    /// Bytes of files in all of them.
    bytes: usize,
    /// No more of them are made; this process keeps no more of them.
    draining: bool,
    ended: bool,
    /// Why promises could not be kept, by file, and by the directory of the name.
    failed: HashMap<Ino, Errno>,
    /// Files that were promised and could not be made, while promises of them are left.
    unmade: HashSet<Ino>,
    /// Promises that could not be kept, which the kernel still believes.
    believed: VecDeque<Arc<Promise>>,
}

/// The promises of a mount.
#[derive(Debug)]
pub(crate) struct Behind {
    /// Whether the mount makes any.
    promises: bool,
    /// Where it makes some; none where nobody else is there.
    pub(crate) delegations: Option<Delegations>,
    state: Mutex<State>,
    /// How many there are, for who need not wait then.
    pending: AtomicUsize,
    /// There is something to do; something was done; something could not be done.
    work: Condvar,
    done: Condvar,
    broken: Condvar,
    /// What failed for now is tried again.
    again: Condvar,
    /// What an earlier process promised, by its sequence: the kernel may not have got its answer.
    left: HashMap<u64, Option<Attr>>,
    pub(crate) names: Names,
    pub(crate) dirs: Dirs,
    pub(crate) single: Single,
}

/// What a request waits for.
#[derive(Debug)]
enum Waits<'o> {
    Nothing,
    /// For a file; or, of a directory, for names in it.
    Inode(Ino),
    /// For a file alone.
    File(Ino),
    Name(Ino, &'o Name),
    /// For two names, and for the files that they lead to: what takes the place of a file has its bytes before.
    Names([(Ino, &'o Name); 2]),
    All,
}

/// What an operation must see, or comes after.
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
        // Names in a directory change nothing of these.
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
        // What it replaces is no directory, out of which names may have to go.
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
    /// The promises that an earlier process left, oldest first. A mount makes them where something is delegated to it,
    /// or everywhere.
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

    /// Whether it makes them everywhere: it takes itself for the only one there is.
    pub(crate) const fn is_sole(&self) -> bool {
        self.promises && self.delegations.is_none()
    }

    /// Whether nobody else sees or changes a directory.
    pub(crate) fn has_dir(&self, dir: Ino) -> bool {
        self.promises && self.delegations.as_ref().is_none_or(|all| all.has(dir))
    }

    /// The same of a file.
    pub(crate) fn has_file(&self, ino: Ino) -> bool {
        self.promises && self.delegations.as_ref().is_none_or(|all| all.covers(ino))
    }

    /// What is known of a name that nobody else changes.
    pub(crate) fn known(&self, dir: Ino, name: &Name) -> Option<Known> {
        if self.has_dir(dir) { self.names.get(dir, name) } else { None }
    }

    /// While this lives a directory or file that the mount has stays its: for the making of a promise.
    pub(crate) fn still(&self) -> Option<Still<'_>> {
        self.delegations.as_ref().map(Delegations::still)
    }

    /// Makes a promise of a file; the caller answers the kernel then. Where there are too many it waits until some
    /// are kept. False when none is for long, or this process makes no more: then the caller has a meta do it.
    pub(crate) fn promise(&self, files: &Files, ino: Ino, request: &MetaRequest) -> bool {
        let mut state = self.state.lock();
        // Then a meta is asked, which takes its time too.
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
        // In the journal before anybody hears of it.
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

    /// Waits for what an operation comes after.
    ///
    /// # Errors
    /// `EIO` when this process keeps no more promises: the next one does, and the operation comes after that; and when it
    /// is too late for the request that waits.
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

    /// Waits for all promises that touch a file; or, of a directory, names in it.
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

    /// Waits for all promises of names in some directories, and of files that were made in them.
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

    /// Forgets what was known of directories since they were delegated.
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

    /// Whether metas have all that was promised.
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

    /// Waits while something is so, until it is late or this process keeps no more promises. Nothing lingers
    /// meanwhile.
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

    /// Waits until all promises are kept, and makes no more; how many are left when `patience` is over.
    pub(crate) fn drain(&self, patience: Duration) -> usize {
        let until = RealClock::tick().plus(patience);
        let mut state = self.state.lock();
        state.draining = true;
        self.wait_while(&mut state, until, |state| state.order.len() > 0);
        state.order.len()
    }

    /// This process keeps no promise from now on, and notes none as kept.
    fn end(&self) {
        self.state.lock().ended = true;
        self.delegations.iter().for_each(Delegations::end);
        self.work.notify_all();
        self.done.notify_all();
        self.broken.notify_all();
        self.again.notify_all();
    }

    /// The next promise to keep; nothing when this process keeps no more.
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
            // The others sleep until somebody says so.
            if !state.ready.is_empty() {
                self.work.notify_one();
            }
            if let Some(promise) = state.promises.get(&number) {
                return Some(Arc::clone(promise));
            }
        }
    }

    /// Sleeps until there is work. The one who sleeps for a time looks by itself then: nobody wakes it for what lingers.
    fn sleep(&self, state: &mut MutexGuard<'_, State>, time: Option<Duration>) {
        let Some(time) = time else { return self.work.wait(state) };
        state.is_watched = true;
        self.work.wait_for(state, time);
        state.is_watched = false;
    }

    /// The last promise of a file, for who waits for it, if it can be kept now and nobody is at it.
    fn take_of(&self, ino: Ino) -> Option<Arc<Promise>> {
        let mut state = self.state.lock();
        let number = state.order.last_of(&Key::Inode(ino)).filter(|_| !state.ended)?;
        let place = state.ready.iter().rposition(|(ready, _)| *ready == number)?;
        state.ready.remove(place);
        (state.taken, _) = (RealClock::tick(), state.fresh.remove(&number));
        state.promises.get(&number).map(Arc::clone)
    }

    /// A promise that was taken is to be kept by somebody else.
    fn put_back(&self, promise: &Promise) {
        let mut state = self.state.lock();
        if !state.ended && state.promises.contains_key(&promise.number) {
            state.ready.push_front((promise.number, Tick(0)));
            self.work.notify_one();
        }
    }

    /// The next promise that could not be kept, and that the kernel must be told of.
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

    /// Waits a moment before a promise is tried again; false when this process keeps no more.
    fn pause(&self, pause: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.ended {
            self.again.wait_for(&mut state, pause);
        }
        !state.ended
    }

    /// A promise is asked for by another request from now on, which outlives this process too; false when this
    /// process keeps no more.
    fn ask_as(&self, files: &Files, promise: &Promise, request: &MetaRequest) -> bool {
        let state = self.state.lock();
        if !state.ended {
            files.promised_as(promise.number, promise.ino, request);
        }
        !state.ended
    }

    /// Whether the file of a promise could not be made: then whatever has its name is not its.
    fn is_unmade(&self, promise: &Promise) -> bool {
        self.state.lock().unmade.contains(&promise.ino)
    }

    /// A promise was kept, or never will be. `settled` hears of the file if nothing more of it is promised.
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

    /// Why a promise of this file, or of a name in this directory, was not kept; told once.
    pub(crate) fn failure(&self, ino: Ino) -> Result<(), Errno> {
        self.state.lock().failed.remove(&ino).map_or(Ok(()), Err)
    }

    /// Whether an earlier process promised what this request asks for.
    pub(crate) fn was_promised(&self, sequence: u64) -> bool {
        self.left.contains_key(&sequence)
    }

    /// The file that it made with that.
    pub(crate) fn made_before(&self, sequence: u64) -> Option<Attr> {
        self.left.get(&sequence).copied().flatten()
    }

    /// A meta is about to be asked for an operation, or has answered.
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
    /// Whether promises wait for more of their files: nobody waits for them, and there is room for others.
    fn may_linger(&self) -> bool {
        self.waiting == 0
            && self.order.len() < PENDING_MAX / 2
            && self.bytes < PENDING_BYTES_MAX / 2
    }

    fn has_room(&self, request: &MetaRequest) -> bool {
        self.order.len() < PENDING_MAX && self.bytes + bytes_of(request) <= PENDING_BYTES_MAX
    }

    /// The create of a file with the first bytes that are written to it, if it is promised, nobody was at it, and
    /// nothing came between: one change in place of two.
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
                // Any of them: whoever it is has not asked for long, and the log has its line.
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

/// What a promise touches.
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

/// The attributes of a file that was promised; the place of its bytes is a meta's to choose.
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
