//! The session of a volume, by which metas know the files that are open here.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::{Condvar, Mutex, OfProcess, PerProcess, RealClock, Rng, ThreadHandle, thread};
use millpond_types::meta::{
    Attr, Caller, Ino, MetaAnswer, MetaError, MetaOp, MetaReply, MetaRequest, Session,
    SessionRecord, keys,
};
use millpond_types::wire::Record as _;

use super::note::Note;
use crate::client::Client;
use crate::error::ClientError;

/// If one answer names this many orphans that are not open here, more are waiting.
const MANY: usize = 100;

/// Number of early renewals after a removal.
const SOON_ROUNDS: u32 = 4;
/// Longest time for which the report that an inode is not open waits for earlier lookups, and the
/// interval of checking them.
const LOOK_UPS_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_UPS_LOOK: Duration = Duration::from_millis(5);

/// Sends requests to metas, in a session of this process.
#[derive(Debug)]
pub(super) struct Metas {
    pub(super) client: Client,
    pub(super) caller: Caller,
    name: String,
    /// A child has its own state, which begins with its first request.
    ours: PerProcess<Arc<Ours>>,
}

/// A session, and the inodes that are open in it.
#[derive(Debug)]
struct Ours {
    client: Client,
    name: String,
    /// None in a child, which is not the process that is restarted.
    note: Option<Note>,
    /// The session's number; 0 before it has begun.
    session: AtomicU64,
    /// Number of the last change in the session; a retry has the same number, so that it is
    /// executed once.
    sequence: AtomicU64,
    /// Number of times that each inode is open.
    open: Mutex<HashMap<Ino, usize>>,
    holds: Mutex<Holds>,
    /// An inode was replaced or removed here: metas will soon ask whether it is open.
    removed: AtomicBool,
    ended: Mutex<bool>,
    woken: Condvar,
    /// The thread that renews the session.
    thread: Mutex<Option<ThreadHandle<()>>>,
}

/// Active holds by number.
#[derive(Debug, Default)]
struct Holds {
    next: u64,
    held: BTreeSet<u64>,
}

/// While it exists, metas get no report that an inode is closed if it was removed after the hold
/// was taken. So an inode looked up in this time can be opened without asking whether it still
/// exists ([`super::Volume::object_file_held`]). Keep it for one lookup only, because the bytes of
/// removed inodes stay until it is dropped.
#[derive(Debug)]
pub struct Hold {
    ours: OfProcess<Arc<Ours>>,
    number: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(ours) = self.ours.get() {
            ours.holds.lock().held.remove(&self.number);
        }
    }
}

impl Metas {
    /// Begins a session and the thread that renews it.
    pub(super) fn begin(
        client: Client,
        (name, note): (String, Option<&Path>),
        caller: Caller,
    ) -> Result<Arc<Self>, ClientError> {
        let note = note.and_then(Note::take);
        let name = if note.is_some() { with_nonce(&name)? } else { name };
        let ours = Arc::new(Ours::new(client.clone(), name.clone(), note));
        ours.end_noted()?;
        let metas = Arc::new(Self { client, caller, name, ours: PerProcess::new(ours) });
        metas.ours().begin()?;
        Ok(metas)
    }

    /// State of this process.
    fn ours(&self) -> &Arc<Ours> {
        self.ours.get_or(|| {
            // The name lets operators distinguish the sessions of a parent and its children.
            let name = format!("{} child {}", self.name, std::process::id());
            let fits = u8::try_from(name.len()).is_ok();
            let name = if fits { name } else { self.name.clone() };
            Arc::new(Ours::new(self.client.clone(), name, None))
        })
    }

    /// Has a meta execute an operation; a POSIX error is an answer.
    pub(super) fn ask(&self, caller: Caller, op: MetaOp) -> Result<MetaAnswer, ClientError> {
        let ours = self.ours();
        ours.begin()?;
        ours.ask(caller, op)
    }

    /// Makes a request that may be repeated: a change is executed once.
    pub(super) fn request(&self, caller: Caller, op: MetaOp) -> MetaRequest {
        let ours = self.ours();
        // If no session can begin, the meta answers with the error for a missing one.
        let _ = ours.begin();
        ours.request(caller, op)
    }

    /// As [`Self::ask`], for the volume's caller; the error names the path.
    pub(super) fn at(&self, path: &str, op: MetaOp) -> Result<MetaReply, ClientError> {
        self.ask(self.caller.clone(), op)?.map_err(|source| refused(path, source))
    }

    /// As [`Self::at`], for an operation that answers with an inode.
    pub(super) fn attr_at(&self, path: &str, op: MetaOp) -> Result<Attr, ClientError> {
        match self.at(path, op)? {
            MetaReply::Attr(attr) => Ok(attr),
            MetaReply::Entry(entry) => Ok(entry.attr),
            _ => Err(self.unexpected()),
        }
    }

    pub(super) fn unexpected(&self) -> ClientError {
        unexpected(&self.client)
    }

    /// Records an inode as open for reports to metas.
    pub(super) fn note_open(&self, ino: Ino) {
        *self.ours().open.lock().entry(ino).or_default() += 1;
    }

    pub(super) fn note_closed(&self, ino: Ino) {
        let mut open = self.ours().open.lock();
        if let Some(count) = open.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                open.remove(&ino);
            }
        }
    }

    /// Records that an inode was replaced or removed: the session is renewed soon, so that its
    /// bytes are freed.
    pub(super) fn note_removed(&self) {
        let ours = self.ours();
        if !ours.removed.swap(true, Ordering::AcqRel) {
            // The lock prevents a wake-up between the thread's check of the flag and its sleep.
            let _awake = ours.ended.lock();
            ours.woken.notify_all();
        }
    }

    pub(super) fn hold(&self) -> Hold {
        let ours = self.ours();
        let mut holds = ours.holds.lock();
        let number = holds.next;
        holds.next += 1;
        holds.held.insert(number);
        Hold { ours: OfProcess::new(Arc::clone(ours)), number }
    }
}

impl Drop for Metas {
    fn drop(&mut self) {
        if let Some(ours) = self.ours.get() {
            ours.end();
        }
    }
}

fn unexpected(client: &Client) -> ClientError {
    let what = "unexpected answer from a meta: is it of another version?";
    ClientError::Unexpected { address: client.name(), what }
}

impl Ours {
    fn new(client: Client, name: String, note: Option<Note>) -> Self {
        Self {
            client,
            name,
            note,
            session: AtomicU64::new(0),
            sequence: AtomicU64::new(1),
            open: Mutex::default(),
            holds: Mutex::default(),
            removed: AtomicBool::new(false),
            ended: Mutex::new(false),
            woken: Condvar::new(),
            thread: Mutex::default(),
        }
    }

    /// Ends the recorded session of the previous process, if it has the recorded name: in another
    /// or a newly founded cluster the number may belong to another session.
    fn end_noted(&self) -> Result<(), ClientError> {
        let Some((session, name)) = self.note.as_ref().and_then(Note::read) else { return Ok(()) };
        let root = || Caller::checked(0, 0);
        let op = MetaOp::RecordsAt { keys: vec![keys::session(session)] };
        let Ok(MetaReply::Values(found)) = self.ask(root(), op)? else { return Ok(()) };
        let record = found.into_iter().next().flatten();
        let record = record.and_then(|bytes| SessionRecord::open(&bytes).ok());
        if record.is_none_or(|record| record.name != name) {
            return Ok(());
        }
        let op = MetaOp::SessionClose;
        let request = MetaRequest { session, sequence: 0, hour: 0, caller: root(), op };
        self.client.meta(&request, None).map(drop)
    }

    /// Begins the session and the thread that renews it, unless this is done.
    fn begin(self: &Arc<Self>) -> Result<(), ClientError> {
        if self.session.load(Ordering::Acquire) != 0 {
            return Ok(());
        }
        let mut kept = self.thread.lock();
        if kept.is_none() {
            let session = self.open_session()?;
            let every = Duration::from_millis(u64::from(session.lease_ms)) / 4;
            let of_thread = Arc::clone(self);
            let started = thread("mp-volume", move || of_thread.keep(every));
            let failed = |error| {
                self.close();
                ClientError::argument(
                    "volume",
                    format!("cannot start a thread for the session: {error}"),
                )
            };
            *kept = Some(started.map_err(failed)?);
        }
        Ok(())
    }

    fn ask(&self, caller: Caller, op: MetaOp) -> Result<MetaAnswer, ClientError> {
        Ok(self.client.meta(&self.request(caller, op), None)?.answer)
    }

    fn request(&self, caller: Caller, op: MetaOp) -> MetaRequest {
        let (mut sequence, mut hour) = (0, 0);
        if op.changes() {
            sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
            hour = u32::try_from(RealClock::wall_ms() / 3_600_000).unwrap_or(u32::MAX);
        }
        let session = self.session.load(Ordering::Acquire);
        MetaRequest { session, sequence, hour, caller, op }
    }

    /// Whether a hold with a lower number still exists.
    fn is_held(&self, before: u64) -> bool {
        self.holds.lock().held.first().is_some_and(|number| *number < before)
    }

    fn open_session(&self) -> Result<Session, ClientError> {
        let op = MetaOp::SessionOpen { name: self.name.clone() };
        let answer = self.ask(Caller::checked(0, 0), op)?;
        match answer.map_err(|source| refused(&self.name, source))? {
            MetaReply::Session(session) => {
                self.session.store(session.id, Ordering::Release);
                if let Some(note) = &self.note {
                    note.write(session.id, &self.name);
                }
                Ok(session)
            }
            _ => Err(unexpected(&self.client)),
        }
    }

    /// Ends the thread, and then the session.
    fn end(&self) {
        *self.ended.lock() = true;
        self.woken.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        self.close();
    }

    fn close(&self) {
        if self.session.load(Ordering::Acquire) != 0 {
            // If no meta receives it, the session ends with its lease.
            let _ = self.ask(Caller::checked(0, 0), MetaOp::SessionClose);
        }
    }

    /// Renews the session until it ends.
    fn keep(&self, every: Duration) {
        // The inodes in the last answer; a lookup that begins with this hold number or a later one
        // finds none of them.
        let (mut asked, mut since) = (Vec::new(), 0);
        // Number of rounds with early renewals: metas ask about removed inodes one collection round
        // later.
        let mut soon = 0_u32;
        let mut ended = self.ended.lock();
        loop {
            let (open, closed) = self.parted(&asked);
            // Metas asked about orphans: the next renewal comes soon, so that their bytes are
            // freed.
            let pause = match (open.is_empty(), closed.len()) {
                (true, 0) if soon == 0 => every,
                // More are waiting: a client that replaces files all day makes more than renewals
                // once a second can free.
                (_, MANY..) => every / 400,
                _ => every / 16,
            };
            let (mut due, mut is_soon) = (RealClock::tick().plus(pause), false);
            while !*ended {
                let now = RealClock::tick();
                if !is_soon && self.removed.load(Ordering::Acquire) {
                    is_soon = true;
                    due = due.min(now.plus(every / 16));
                }
                let patience = due.plus(LOOK_UPS_PATIENCE.min(every));
                let left = match due.since(now) {
                    Duration::ZERO
                        if patience > now && !asked.is_empty() && self.is_held(since) =>
                    {
                        LOOK_UPS_LOOK
                    }
                    left => left,
                };
                if left.is_zero() {
                    break;
                }
                self.woken.wait_for(&mut ended, left);
            }
            if *ended {
                return;
            }
            drop(ended);
            // Inodes removed from here on are in the answer to the next renewal.
            let is_removed = self.removed.swap(false, Ordering::AcqRel);
            soon = if is_removed { SOON_ROUNDS } else { soon.saturating_sub(1) };
            // Inodes under a hold are not reported, and metas ask about them again.
            let (open, closed) =
                if self.is_held(since) { Default::default() } else { self.parted(&asked) };
            asked = self.renew(open, closed);
            if !asked.is_empty() {
                soon = SOON_ROUNDS;
            }
            since = self.holds.lock().next;
            ended = self.ended.lock();
        }
    }

    /// Splits inodes into those that are open and those that are not.
    fn parted(&self, inos: &[Ino]) -> (Vec<Ino>, Vec<Ino>) {
        let open = self.open.lock();
        inos.iter().partition(|ino| open.contains_key(ino))
    }

    /// Renews the session; returns the inodes in question.
    fn renew(&self, open: Vec<Ino>, closed: Vec<Ino>) -> Vec<Ino> {
        match self.ask(Caller::checked(0, 0), MetaOp::SessionRenew { open, closed }) {
            Ok(Ok(MetaReply::Renewed { asked })) => asked,
            // The session ended while no meta could reach this process.
            Ok(Err(MetaError::Stale)) => {
                let _ = self.open_session();
                Vec::new()
            }
            _ => Vec::new(),
        }
    }
}

/// A name with a random suffix, which no other session has.
fn with_nonce(name: &str) -> Result<String, ClientError> {
    let mut nonce = [0; 8];
    let failed =
        |error| ClientError::argument("note", format!("cannot get random numbers: {error}"));
    Rng::fill_from_os(&mut nonce).map_err(failed)?;
    Ok(format!("{name} {:016x}", u64::from_le_bytes(nonce)))
}

/// The error of a path with its POSIX name.
pub(super) fn refused(path: &str, source: MetaError) -> ClientError {
    ClientError::File { path: path.to_owned(), source }
}
