//! The session of a volume: metas know by it which files are open here.

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

/// So many orphans of one question that are not open here mean that more are to be asked about.
const MANY: usize = 100;

/// Renewals that come soon behind a removal.
const SOON_ROUNDS: u32 = 4;
/// How long the word that an inode is not open waits for look-ups that began before it was asked for, and how often they
/// are looked at.
const LOOK_UPS_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_UPS_LOOK: Duration = Duration::from_millis(5);

/// Asks metas, in a session of this process.
#[derive(Debug)]
pub(super) struct Metas {
    pub(super) client: Client,
    pub(super) caller: Caller,
    name: String,
    /// A child has its own, which begins with the first question.
    ours: PerProcess<Arc<Ours>>,
}

/// A session with a meta, and what is open in it.
#[derive(Debug)]
struct Ours {
    client: Client,
    name: String,
    /// Not a child's: that is not the process which is started again and again.
    note: Option<Note>,
    /// 0 before it has begun.
    session: AtomicU64,
    /// Names every change within the session, so that one that is sent again is done once.
    sequence: AtomicU64,
    /// How often each inode is open.
    open: Mutex<HashMap<Ino, usize>>,
    holds: Mutex<Holds>,
    /// Something was replaced or removed here: metas soon ask whether it is open.
    removed: AtomicBool,
    ended: Mutex<bool>,
    woken: Condvar,
    /// Keeps the session.
    thread: Mutex<Option<ThreadHandle<()>>>,
}

/// Holds, by their numbers.
#[derive(Debug, Default)]
struct Holds {
    next: u64,
    held: BTreeSet<u64>,
}

/// While it is there, metas are not told that anything is closed that was removed after it was taken: what was looked up
/// meanwhile can be opened without asking whether it is still there ([`super::Volume::object_file_held`]). Hold it for one
/// look-up only, since the bytes of nothing that is removed go before it is dropped.
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
    /// Begins a session and the thread that keeps it.
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

    /// What this process has.
    fn ours(&self) -> &Arc<Ours> {
        self.ours.get_or(|| {
            // Operators tell the sessions of a parent and of its children apart.
            let name = format!("{} child {}", self.name, std::process::id());
            let fits = u8::try_from(name.len()).is_ok();
            let name = if fits { name } else { self.name.clone() };
            Arc::new(Ours::new(self.client.clone(), name, None))
        })
    }

    /// Has a meta do something; what POSIX refuses is an answer.
    pub(super) fn ask(&self, caller: Caller, op: MetaOp) -> Result<MetaAnswer, ClientError> {
        let ours = self.ours();
        ours.begin()?;
        ours.ask(caller, op)
    }

    /// A request that may be repeated: what changes something is done once.
    pub(super) fn request(&self, caller: Caller, op: MetaOp) -> MetaRequest {
        let ours = self.ours();
        // Where no session is to be had, the meta says what it thinks of none.
        let _ = ours.begin();
        ours.request(caller, op)
    }

    /// The same on behalf of the volume's caller; the error names the path.
    pub(super) fn at(&self, path: &str, op: MetaOp) -> Result<MetaReply, ClientError> {
        self.ask(self.caller.clone(), op)?.map_err(|source| refused(path, source))
    }

    /// The same of what answers with an inode.
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

    /// From now on metas are told that the inode is open.
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

    /// Something was replaced or removed: the session is renewed soon, so that its bytes go.
    pub(super) fn note_removed(&self) {
        let ours = self.ours();
        if !ours.removed.swap(true, Ordering::AcqRel) {
            // Not between the look at it and the sleep.
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
    let what = "a meta answered something else than it was asked for";
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

    /// Ends the session of the process before this one, if it is that one's: in another cluster, or in one that was made
    /// anew, the number is somebody else's.
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

    /// Begins the session and the thread that keeps it, if that is not done.
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
                ClientError::argument("volume", format!("no thread for it: {error}"))
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

    /// Whether a hold from before this number is still there.
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

    /// Has the thread end, and then the session.
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
            // Where no meta hears of it, the session ends with its lease.
            let _ = self.ask(Caller::checked(0, 0), MetaOp::SessionClose);
        }
    }

    /// Renews the session until it ends.
    fn keep(&self, every: Duration) {
        // The inodes of the last question; who looks something up from this hold on finds none of them.
        let (mut asked, mut since) = (Vec::new(), 0);
        // Rounds in which it is asked soon: what was removed is asked about a round of collection later.
        let mut soon = 0_u32;
        let mut ended = self.ended.lock();
        loop {
            let (open, closed) = self.parted(&asked);
            // Orphans are asked about: the next renewal comes soon, so that their bytes go.
            let pause = match (open.is_empty(), closed.len()) {
                (true, 0) if soon == 0 => every,
                // More of them wait: who replaces files all day makes more than a pause of a second lets go.
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
            // What is removed from here on is asked about after this renewal.
            let is_removed = self.removed.swap(false, Ordering::AcqRel);
            soon = if is_removed { SOON_ROUNDS } else { soon.saturating_sub(1) };
            // What is held is not answered, and asked about again.
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

    /// What of these is open and what is not.
    fn parted(&self, inos: &[Ino]) -> (Vec<Ino>, Vec<Ino>) {
        let open = self.open.lock();
        inos.iter().partition(|ino| open.contains_key(ino))
    }

    /// Renews the session; returns the inodes that it is asked about.
    fn renew(&self, open: Vec<Ino>, closed: Vec<Ino>) -> Vec<Ino> {
        match self.ask(Caller::checked(0, 0), MetaOp::SessionRenew { open, closed }) {
            Ok(Ok(MetaReply::Renewed { asked })) => asked,
            // It ended while no meta heard of this process.
            Ok(Err(MetaError::Stale)) => {
                let _ = self.open_session();
                Vec::new()
            }
            _ => Vec::new(),
        }
    }
}

/// A name that no other session has.
fn with_nonce(name: &str) -> Result<String, ClientError> {
    let mut nonce = [0; 8];
    let failed = |error| ClientError::argument("note", format!("no random number: {error}"));
    Rng::fill_from_os(&mut nonce).map_err(failed)?;
    Ok(format!("{name} {:016x}", u64::from_le_bytes(nonce)))
}

/// What POSIX says about a path.
pub(super) fn refused(path: &str, source: MetaError) -> ClientError {
    ClientError::File { path: path.to_owned(), source }
}
