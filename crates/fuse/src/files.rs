//! The state of open files, and the part of it that must outlive this process.

mod appends;
mod begun;
mod held;
mod locks;
mod making;
mod promised;
mod refused;
mod telling;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millpond_client::{FileBytes as Bytes, Fills};
use millpond_env::{EnvError, RealClock, ShmRegion};
use millpond_types::Tick;
use millpond_types::limits::BASES_MAX;
use millpond_types::meta::{Attr, Filled, Ino, MetaRequest, Timestamp};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::backend::Told;
use crate::cached::Key;
use crate::journal::{Entry, Journal};

use self::begun::Begun;
use self::held::Waiting;
pub(crate) use self::held::{Held, Hold};
pub(crate) use self::locks::{Bytes as LockBytes, Owner};
use self::locks::{Lanes, Locker};
use self::refused::Refused;
pub(crate) use self::telling::Telling;

/// An open file, regardless of the number of opens.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) ino: Ino,
    /// Shared by reads and writes; exclusive for other changes of the length.
    pub(crate) gate: RwLock<()>,
    /// Held by the thread that reports bytes in chunks to a meta, until the meta answers: then no
    /// such report is in flight any more. Take it after the gate.
    pub(crate) telling: Mutex<()>,
    state: Mutex<State>,
    /// Writes of this process to chunks that no meta knows of.
    fills: Mutex<Fills>,
    /// Whether the kernel may have put bytes into pages since the file was opened.
    has_pages: AtomicBool,
    /// Whether it may have been opened for writing.
    may_be_written: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// The attributes as last reported by a meta.
    attr: Attr,
    /// The end of the written bytes that no meta knows of, and the time of the write.
    written: Option<Written>,
    /// The same for held bytes, by data id.
    held: Option<Written>,
    /// The same for promised bytes, and the last promise of them.
    promised: Option<(Written, u64)>,
    /// Times promised after that, and their promise.
    promised_times: Option<(Times, u64)>,
    /// Names of the base chunks of the file since it was cloned, the newest first: bytes may have
    /// been written to them without a note yet. 0 is no name.
    behind: [u64; BASES_MAX],
    /// The newest version of the store in which a meta reported the file, and when.
    version: u64,
    heard: Tick,
    /// Set when a meta reported that the file has no capabilities.
    bare: Option<Bare>,
    /// Counts the begins and ends of this mount's changes of the file's extended attributes.
    xattr_changes: u64,
}

/// The moment at which a file was known to have no capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bare {
    pub(crate) asked: Tick,
    /// The version of the store.
    pub(crate) version: u64,
}

/// Times that an application set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
}

/// Bytes that no meta knows of yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) end: u64,
    pub(crate) at: Timestamp,
    /// The name of the chunks that contain them.
    pub(crate) data: u64,
}

impl State {
    /// Takes attributes from a meta, unless newer ones are known.
    fn take(&mut self, attr: Attr) {
        let before = self.attr;
        if attr.version < before.version {
            return;
        }
        self.attr = attr;
        if attr.data != before.data || !attr.is_shared {
            self.behind = [0; BASES_MAX];
        } else if let Some(own) = before.chunks.filter(|own| attr.chunks != Some(*own)) {
            self.behind.rotate_right(1);
            self.behind[0] = own;
            self.written = self.written.map(|written| self.named(written));
        }
    }

    /// Assigns bytes written to base chunks of the file to its own chunks.
    fn named(&self, written: Written) -> Written {
        let is_behind = written.data != 0 && self.behind.contains(&written.data);
        let data = if is_behind { self.attr.chunk_data() } else { written.data };
        Written { data, ..written }
    }
}

impl File {
    fn new(
        Told { attr, version }: Told,
        (written, held): (Option<Written>, Option<Written>),
    ) -> Self {
        let heard = RealClock::tick();
        let (bare, xattr_changes) = (None, 0);
        let (behind, promised, promised_times) = ([0; BASES_MAX], None, None);
        let state = State {
            attr,
            written,
            held,
            promised,
            promised_times,
            behind,
            version,
            heard,
            bare,
            xattr_changes,
        };
        let mut fills = Fills::default();
        fills.learn(&attr);
        let (state, fills) = (Mutex::new(state), Mutex::new(fills));
        // An earlier process may have made the kernel fill pages.
        let has_pages = AtomicBool::new(true);
        let (gate, telling) = (RwLock::default(), Mutex::default());
        let may_be_written = AtomicBool::new(true);
        Self { ino: attr.ino, gate, telling, state, fills, has_pages, may_be_written }
    }

    /// Notes that the kernel is about to put bytes of the file into pages.
    pub(crate) fn note_pages(&self) {
        self.has_pages.store(true, Ordering::SeqCst);
    }

    /// Whether it may have been opened for writing since its first open.
    pub(crate) fn may_be_written(&self) -> bool {
        self.may_be_written.load(Ordering::SeqCst)
    }

    /// Whether the kernel may have put bytes into pages since the file was opened.
    pub(crate) fn has_pages(&self) -> bool {
        self.has_pages.load(Ordering::SeqCst)
    }

    /// Notes bytes written to chunks.
    pub(crate) fn filled(&self, filled: Filled) {
        self.fills.lock().note(filled);
    }

    /// The noted writes before `from`, for [`Self::keep_filled`].
    pub(crate) fn filled_before(&self, from: u64) -> Fills {
        self.fills.lock().before(from)
    }

    /// Restores these notes after a cut by this mount.
    pub(crate) fn keep_filled(&self, before: &Fills, ended: bool) {
        self.fills.lock().keep(before, ended);
    }

    /// The noted writes, for a report to a meta.
    pub(crate) fn first_filled(&self) -> Filled {
        self.fills.lock().first()
    }

    /// The file's attributes, including writes through this mount.
    pub(crate) fn attr(&self) -> Attr {
        overlaid(&self.state.lock())
    }

    /// The file's attributes as last reported by a meta.
    pub(crate) fn told(&self) -> Attr {
        self.state.lock().attr
    }

    /// The place of the file's bytes, and their number.
    pub(crate) fn bytes(&self) -> (Bytes, u64) {
        let attr = self.attr();
        (Bytes::of(&attr), attr.size)
    }

    /// Takes attributes from a meta, unless newer ones are known; returns the current ones.
    pub(crate) fn learn(&self, Told { attr, version }: Told) -> Attr {
        let mut state = self.state.lock();
        state.take(attr);
        state.version = state.version.max(version);
        state.heard = RealClock::tick();
        self.fills.lock().learn(&state.attr);
        overlaid(&state)
    }

    /// The version of the store in which a meta last reported the file.
    pub(crate) fn version(&self) -> u64 {
        self.state.lock().version
    }

    /// Whether a meta has reported the file within this time.
    pub(crate) fn is_fresh(&self, time: Duration) -> bool {
        RealClock::tick().since(self.state.lock().heard) < time
    }

    /// The written bytes to report to a meta; the caller reports them, and then calls
    /// [`Files::told`].
    pub(crate) fn untold(&self) -> Option<Written> {
        self.state.lock().written
    }

    /// Whether written bytes in other chunks than the file's must be reported to a meta.
    pub(crate) fn has_untold_elsewhere(&self) -> bool {
        let state = self.state.lock();
        state.written.is_some_and(|written| written.data != state.attr.chunk_data())
    }

    /// Whether a meta knows the file's length: unreported writes are within it.
    pub(crate) fn is_length_told(&self) -> bool {
        let state = self.state.lock();
        let covers = |w: Written| w.data == state.attr.chunk_data() && w.end <= state.attr.size;
        state.written.is_none_or(covers)
    }

    /// When a meta last reported that the file has no capabilities, if it did.
    pub(crate) fn bare(&self) -> Option<Bare> {
        self.state.lock().bare
    }

    /// Number of changes of extended attributes so far, for [`File::note_bare`].
    pub(crate) fn xattr_changes(&self) -> u64 {
        self.state.lock().xattr_changes
    }

    /// Notes the absence of capabilities, from a meta that was asked after `changes` changes.
    pub(crate) fn note_bare(&self, bare: Bare, changes: u64) {
        let mut state = self.state.lock();
        if state.xattr_changes == changes {
            state.bare = Some(bare);
        }
    }

    /// Notes that extended attributes are about to change, or have changed.
    pub(crate) fn xattrs_change(&self) {
        let mut state = self.state.lock();
        state.xattr_changes += 1;
        state.bare = None;
    }
}

fn overlaid(state: &State) -> Attr {
    let mut attr = state.attr;
    let written = state.written.filter(|written| written.data == attr.chunk_data());
    let held = state.held.filter(|held| held.data == attr.data);
    let promised = state.promised.map(|(promised, _)| promised);
    let promised = promised
        .filter(|promised| promised.data == attr.data || promised.data == attr.chunk_data());
    if let Some(promised) = promised {
        show(&mut attr, promised);
    }
    if let Some((times, _)) = state.promised_times {
        (attr.mtime, attr.ctime) = (times.mtime, attr.ctime.max(times.ctime));
    }
    for bytes in [written, held].into_iter().flatten() {
        show(&mut attr, bytes);
    }
    attr
}

/// Adds bytes that no meta knows of to attributes.
fn show(attr: &mut Attr, Written { end, at, .. }: Written) {
    attr.size = attr.size.max(end);
    (attr.mtime, attr.ctime) = (at, attr.ctime.max(at));
}

/// The backing file from which the kernel reads an open inode by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backed {
    /// The kernel's id of it.
    pub(crate) id: i32,
    pub(crate) key: Key,
}

/// An inode that is open.
#[derive(Debug, Default)]
struct Open {
    times: u32,
    /// Its file, once this process knows its attributes.
    file: Option<Arc<File>>,
    /// As in [`State`].
    written: Option<Written>,
    /// The report of these bytes in progress, with its sequence and hour.
    telling: Option<Telling>,
    /// A meta's rejection of them.
    refused: Option<Refused>,
    /// Held bytes of a small file, which no meta has yet.
    held: Option<Waiting>,
    /// Set when the kernel reads it by itself: all opens agree about that.
    backed: Option<Backed>,
}

impl Open {
    const fn is_untold(&self) -> bool {
        self.written.is_some() || self.held.is_some()
    }
}

/// The longest time from the handout of a request to a thread until the thread reports it.
const HANDED: Duration = Duration::from_secs(1);

/// Numbers of requests that an earlier process may or may not have answered: its journal does not
/// tell.
#[derive(Debug, Default)]
struct Inherited {
    uniques: HashSet<u64>,
    /// When the first request arrived that was not a resend. By then threads had been handed all
    /// resends, because the kernel queues those before all other requests (`fuse_resend`) except
    /// interrupts and forgets.
    fresh: Option<Tick>,
}

/// The state that the journal has too.
#[derive(Debug)]
struct Table {
    open: HashMap<Ino, Open>,
    /// Requests that opened or closed something, and may be resent.
    done: HashSet<u64>,
    /// Requests that are about to change the namespace.
    began: HashMap<u64, Begun>,
    /// The offsets at which requests append their bytes.
    appends: HashMap<u64, u64>,
    /// The session of the mount; 0 while it is unknown.
    session: u64,
    /// Whether it replaced the session that the mount began with.
    is_replaced: bool,
    /// The version of the store up to which the kernel was notified of changes made elsewhere.
    heard: u64,
    inherited: Inherited,
    /// How often another process took the mount over.
    taken_over: u32,
    /// Owners that may have locks, of open files and of others.
    lockers: HashMap<Ino, Vec<Locker>>,
    /// Held bytes of all files.
    held_bytes: usize,
    /// Changes that were answered and not yet sent to a meta, in order.
    promised: BTreeMap<u64, (Ino, MetaRequest)>,
    /// The number of them that failed in this process.
    broken: u64,
    /// None on a mount that does not outlive its process.
    journal: Option<Journal>,
}

impl Table {
    fn note(&mut self, entry: &Entry) {
        if self.journal.as_mut().is_none_or(|journal| journal.append(entry)) {
            return;
        }
        // The state after all entries so far; this one is included already.
        let mut state = self.begun_entries();
        state.push(Entry::Heard { version: self.heard });
        state.extend(self.append_entries());
        // A close of an inode that is not open only marks its request as done.
        let nothing = Ino(0);
        state
            .extend(self.done.iter().map(|unique| Entry::Closed { unique: *unique, ino: nothing }));
        for (ino, open) in &self.open {
            state.push(Entry::IsOpen { ino: *ino, times: open.times });
            state.extend(open.telling.map(|telling| Entry::Telling { ino: *ino, telling }));
            state.extend(open.written.map(|written| Entry::Wrote { ino: *ino, written }));
            state.extend(open.held.iter().flat_map(|held| held.entries(*ino)));
            state.extend(open.backed.map(|backed| Entry::Backed { ino: *ino, backed }));
        }
        state.extend(self.lock_entries());
        let promised = self.promised.iter();
        state.extend(promised.map(|(number, (ino, request))| promise(*number, *ino, request)));
        state.push(Entry::TakenOver { times: self.taken_over });
        let turned = self.journal.as_mut().map(|journal| journal.turn(&state));
        if let Some(Err(error)) = turned {
            tracing::error!("{error}: the next daemon cannot take this mount over");
            if let Some(journal) = self.journal.take() {
                journal.void();
            }
        }
    }

    fn replay(&mut self, entry: Entry) {
        match entry {
            Entry::Generation(_) | Entry::Whole | Entry::Locked { .. } => {}
            Entry::Began { unique, hour } => {
                self.began.insert(unique, Begun { hour, session: self.session });
            }
            Entry::Session { session } => self.replace_session(session),
            Entry::Appends { unique, offset } => drop(self.appends.insert(unique, offset)),
            Entry::Opened { unique, ino } => {
                self.done.insert(unique);
                self.open.entry(ino).or_default().times += 1;
            }
            Entry::Closed { unique, ino } => {
                self.done.insert(unique);
                let _ = self.close(ino);
            }
            Entry::Backed { ino, backed } => {
                self.open.entry(ino).or_default().backed = Some(backed);
            }
            Entry::IsOpen { ino, times } => self.open.entry(ino).or_default().times = times,
            Entry::Wrote { ino, written } => {
                self.open.entry(ino).or_default().written = Some(written);
            }
            Entry::Telling { ino, telling } => {
                let open = self.open.entry(ino).or_default();
                // The journal does not repeat it for each write after that.
                (open.telling, open.written) = (Some(telling), Some(telling.written));
            }
            Entry::Answered { ino } => {
                if let Some(open) = self.open.get_mut(&ino) {
                    open.telling = None;
                }
            }
            Entry::Held { ino, held } => self.join(ino, held),
            Entry::Sending { ino, sequence, hour } => self.begin_sending(ino, (sequence, hour)),
            Entry::Sent { ino } => self.release(ino),
            Entry::Heard { version } => self.heard = version,
            Entry::Locker { ino, owner, is_left, ranges } => {
                self.set_locker(ino, owner, (is_left, ranges));
            }
            Entry::UnlockedBytes { ino, owner, bytes } => self.unlocked(ino, &owner, bytes),
            Entry::Unlocked { ino, owner } => self.locker_gone(ino, &owner),
            Entry::TakenOver { times } => self.taken_over = times,
            Entry::Promised { number, ino, request } => {
                // A process of the same build wrote it, so it can be decoded.
                match MetaRequest::decode(&request) {
                    Ok(request) => drop(self.promised.insert(number, (ino, request))),
                    Err(error) => {
                        tracing::error!("a promise in the journal cannot be decoded: {error}");
                    }
                }
            }
            Entry::Kept { number } => drop(self.promised.remove(&number)),
            Entry::Told { ino } => {
                if let Some(open) = self.open.get_mut(&ino) {
                    (open.written, open.telling) = (None, None);
                }
            }
        }
    }

    /// The kernel will not resend this request.
    fn forget(&mut self, unique: u64) {
        self.began.remove(&unique);
        self.done.remove(&unique);
        self.appends.remove(&unique);
    }

    /// Counts a close; with the last one, returns the backing file of the kernel.
    fn close(&mut self, ino: Ino) -> Option<Backed> {
        let open = self.open.get_mut(&ino)?;
        open.times = open.times.saturating_sub(1);
        if open.times > 0 {
            return None;
        }
        self.release(ino);
        self.open.remove(&ino)?.backed
    }
}

/// The metrics of open files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FilesNumbers {
    /// Number of open inodes, and of their open files.
    pub(crate) inodes: u64,
    pub(crate) handles: u64,
    /// Inodes with a new length that no meta knows of.
    pub(crate) untold: u64,
    /// Changes that were answered and not yet sent to a meta.
    pub(crate) promised: u64,
    /// The number of them that failed.
    pub(crate) broken: u64,
    pub(crate) journal_bytes: u64,
    pub(crate) taken_over: u32,
}

fn promise(number: u64, ino: Ino, request: &MetaRequest) -> Entry {
    Entry::Promised { number, ino, request: request.encode() }
}

/// The open files of a mount.
#[derive(Debug)]
pub(crate) struct Files {
    table: Mutex<Table>,
    untold: Mutex<HashSet<Ino>>,
    /// Files that are being made without a name.
    making: Mutex<HashSet<Ino>>,
    lanes: Lanes,
    /// Signals that locks were released.
    unlocked: Condvar,
    /// Whether there are numbers that an earlier process left.
    inherits: AtomicBool,
}

impl Files {
    /// Starts without open files.
    pub(crate) fn new(journal: Option<Journal>) -> Self {
        let (open, done, began) = (HashMap::new(), HashSet::new(), HashMap::new());
        let (promised, broken, inherited) = (BTreeMap::new(), 0, Inherited::default());
        let (heard, taken_over, held_bytes) = (0, 0, 0);
        let table = Table {
            open,
            done,
            began,
            appends: HashMap::new(),
            session: 0,
            is_replaced: false,
            heard,
            inherited,
            taken_over,
            lockers: HashMap::new(),
            held_bytes,
            promised,
            broken,
            journal,
        };
        let (table, untold, making) = (Mutex::new(table), Mutex::default(), Mutex::default());
        let (lanes, unlocked) = (Lanes::default(), Condvar::new());
        Self { table, untold, making, lanes, unlocked, inherits: AtomicBool::new(false) }
    }

    /// Stops writing to the journal, because another process continues it.
    pub(crate) fn leave(&self) {
        self.table.lock().journal = None;
    }

    /// Restores the state that an earlier process left.
    ///
    /// # Errors
    /// [`EnvError`] when its journal is damaged.
    pub(crate) fn resume(region: &ShmRegion) -> Result<Self, EnvError> {
        let (journal, entries) = Journal::resume(region)?;
        let this = Self::new(None);
        let mut table = this.table.lock();
        for entry in entries {
            table.replay(entry);
        }
        table.leave_locks();
        let uniques = table.done.iter().chain(table.began.keys()).chain(table.appends.keys());
        table.inherited.uniques = uniques.copied().collect();
        this.inherits.store(!table.inherited.uniques.is_empty(), Ordering::Release);
        table.journal = Some(journal);
        table.taken_over = table.taken_over.saturating_add(1);
        let times = table.taken_over;
        table.note(&Entry::TakenOver { times });
        let untold = table.open.iter().filter(|(_, open)| open.is_untold());
        this.untold.lock().extend(untold.map(|(ino, _)| *ino));
        drop(table);
        Ok(this)
    }

    /// Counts an open by the request of a file with these attributes.
    pub(crate) fn open(&self, unique: u64, told: Told) -> Arc<File> {
        let ino = told.attr.ino;
        let mut table = self.table.lock();
        let mut is_first = false;
        if table.done.insert(unique) {
            let open = table.open.entry(ino).or_default();
            is_first = open.times == 0;
            open.times += 1;
            table.note(&Entry::Opened { unique, ino });
        }
        drop(table);
        // For a write past its pages, the kernel drops older pages before it sends the write.
        let file = self.known_with(told, !is_first);
        file.may_be_written.store(true, Ordering::SeqCst);
        file
    }

    /// A file with these attributes, open or not.
    pub(crate) fn known(&self, told: Told) -> Arc<File> {
        self.known_with(told, true)
    }

    fn known_with(&self, told: Told, has_pages: bool) -> Arc<File> {
        let mut table = self.table.lock();
        let Some(open) = table.open.get_mut(&told.attr.ino) else {
            return Arc::new(File::new(told, (None, None)));
        };
        let unknown = (open.written, open.held.as_ref().map(Waiting::shown));
        let file = if let Some(file) = &open.file {
            Arc::clone(file)
        } else {
            let file = Arc::new(File::new(told, unknown));
            file.has_pages.store(has_pages, Ordering::SeqCst);
            file.may_be_written.store(has_pages, Ordering::SeqCst);
            open.file = Some(Arc::clone(&file));
            table.overlay_promised(&file);
            file
        };
        drop(table);
        let _ = file.learn(told);
        file
    }

    /// An open file, if its attributes are known.
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<File>> {
        self.table.lock().open.get(&ino)?.file.clone()
    }

    /// Whether an inode is open.
    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.table.lock().open.contains_key(&ino)
    }

    /// Whether written bytes of a file must be reported to a meta.
    pub(crate) fn is_untold(&self, ino: Ino) -> bool {
        self.table.lock().open.get(&ino).is_some_and(Open::is_untold)
    }

    /// Counts an open for reading only. Returns the backing file of the inode for as long as it is
    /// open: the offer of the first open, so that all opens agree.
    pub(crate) fn open_backed(
        &self,
        unique: u64,
        told: Told,
        offer: Option<Backed>,
    ) -> Option<Backed> {
        let (ino, mut is_first) = (told.attr.ino, false);
        let mut table = self.table.lock();
        if table.done.insert(unique) {
            let open = table.open.entry(ino).or_default();
            is_first = open.times == 0;
            open.times += 1;
            table.note(&Entry::Opened { unique, ino });
            if let Some(backed) = offer.filter(|_| is_first) {
                table.open.entry(ino).or_default().backed = Some(backed);
                // The open has no answer before this, so the kernel resends the request after a
                // crash.
                table.note(&Entry::Backed { ino, backed });
            }
        }
        let backed = table.open.get(&ino).and_then(|open| open.backed);
        drop(table);
        let _file = self.known_with(told, !is_first);
        backed
    }

    /// The backing file of an open inode.
    pub(crate) fn backed(&self, ino: Ino) -> Option<Backed> {
        self.table.lock().open.get(&ino)?.backed
    }

    /// All inodes that the kernel reads by itself.
    pub(crate) fn all_backed(&self) -> Vec<(Ino, Backed)> {
        let table = self.table.lock();
        table.open.iter().filter_map(|(ino, open)| Some((*ino, open.backed?))).collect()
    }

    /// Counts a close by the request. Returns the backing file of the inode after its last close.
    pub(crate) fn close(&self, unique: u64, ino: Ino) -> Option<Backed> {
        let mut table = self.table.lock();
        if !table.done.insert(unique) {
            return None;
        }
        let backed = table.close(ino);
        table.note(&Entry::Closed { unique, ino });
        backed
    }

    /// Notes that the kernel has the answer to a request, and will not resend it.
    pub(crate) fn answered(&self, unique: u64) {
        let mut table = self.table.lock();
        table.forget(unique);
    }

    /// Notes that a request arrived, for the first time or again. Forgets the numbers that an
    /// earlier process left once the kernel will not resend them: most of them were answered, and
    /// they would fill the journal.
    pub(crate) fn came(&self, unique: u64, again: bool, now: Tick) {
        if !self.inherits.load(Ordering::Acquire) {
            return;
        }
        let mut table = self.table.lock();
        if again {
            // It stays known until it is answered.
            table.inherited.uniques.remove(&unique);
        } else if now.since(*table.inherited.fresh.get_or_insert(now)) >= HANDED {
            for unique in std::mem::take(&mut table.inherited.uniques) {
                table.forget(unique);
            }
            self.inherits.store(false, Ordering::Release);
        }
    }

    /// Notes that the kernel was notified of all changes up to this version.
    pub(crate) fn heard(&self, version: u64) {
        let mut table = self.table.lock();
        if table.heard != version {
            table.heard = version;
            table.note(&Entry::Heard { version });
        }
    }

    /// The version up to which the kernel was notified of changes; 0 if it never was.
    pub(crate) fn position(&self) -> u64 {
        self.table.lock().heard
    }

    /// Whether this or an earlier process has begun this request.
    pub(crate) fn knows(&self, unique: u64) -> bool {
        let table = self.table.lock();
        table.began.contains_key(&unique) || table.done.contains(&unique)
    }

    /// The current metrics.
    pub(crate) fn numbers(&self) -> FilesNumbers {
        let table = self.table.lock();
        let open = || table.open.values();
        FilesNumbers {
            inodes: table.open.len() as u64,
            handles: open().map(|open| u64::from(open.times)).sum(),
            untold: open().filter(|open| open.is_untold()).count() as u64,
            promised: table.promised.len() as u64,
            broken: table.broken,
            journal_bytes: table.journal.as_ref().map_or(0, Journal::used),
            taken_over: table.taken_over,
        }
    }
    /// Notes a file with bytes to report to a meta soon.
    pub(crate) fn note_untold(&self, ino: Ino) {
        self.untold.lock().insert(ino);
    }

    /// Takes the files with bytes to report to a meta.
    pub(crate) fn take_untold(&self) -> Vec<Ino> {
        self.untold.lock().drain().collect()
    }
}

#[cfg(test)]
pub(crate) mod tests;
