//! The cluster as a mount uses it: metas and chunks.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millpond_client::{
    BehindLastChunk, ChunkCut, Chunks, Client, ClientError, FileBytes as Bytes, LentBytes, Room,
    SharedName,
};
use millpond_env::RealClock;
use millpond_fuse_wire::abi::InHeader;
use millpond_types::meta::{
    Answered, Attr, Caller, MetaError, MetaOp, MetaReply, MetaRequest, Removed,
};
use parking_lot::Mutex;
use quick_cache::sync::Cache;

use crate::behind::Behind;
use crate::born::Born;
use crate::deadline::patience;
use crate::errno::Errno;
use crate::files::Files;
use crate::recent;
use crate::settled::{BytesOf, Contents, Settled, told_of};
use crate::watch::Calls;

/// Set in the sequences of the mount's own operations; the kernel's numbers stay below.
const OWN: u64 = 1 << 63;
/// Bits of a sequence for the steps of one kernel request.
const STEP_BITS: u32 = 4;
/// The number of small files with cached bytes for a following read, about, and the limit of their
/// bytes.
const CONTENTS: usize = 2048;
const CONTENTS_BYTES: u64 = 16 << 20;
/// The user of a request when the kernel does not report one.
const UNTOLD: u32 = u32::MAX;
/// The number of cached records of chunk names.
const NAMES_MAX: usize = 256;

/// Why chunks were not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The file was cloned: it needs chunks of its own first.
    Sealed,
    Failed(Errno),
}

impl From<ClientError> for Denied {
    fn from(error: ClientError) -> Self {
        if error.is_sealed() { Self::Sealed } else { Self::Failed(error.into()) }
    }
}

impl From<BehindLastChunk> for Denied {
    fn from(error: BehindLastChunk) -> Self {
        Self::Failed(error.into())
    }
}

/// Why chunks were not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// Written bytes are lost, unless the file was cut since its attributes were read.
    Missing,
    Failed(Errno),
}

impl From<ClientError> for Unread {
    fn from(error: ClientError) -> Self {
        if !error.is_missing() {
            return Self::Failed(error.into());
        }
        tracing::debug!("{error}");
        Self::Missing
    }
}

impl From<BehindLastChunk> for Unread {
    fn from(error: BehindLastChunk) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Errno> for Unread {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

impl From<Unread> for Errno {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Missing => Self::IO,
            Unread::Failed(errno) => errno,
        }
    }
}

/// The identity of an operation: its user and its number.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    caller: Caller,
    /// The requesting thread; 0 for the mount's own operations.
    pub(crate) pid: u32,
    /// The kernel's number of the request; none for the mount's own operations.
    unique: Option<u64>,
    sequence: u64,
    hour: Option<u32>,
    /// The session of the first attempt; none for the mount's own operations.
    session: Option<u64>,
    steps: u64,
}

impl Ticket {
    /// The ticket of a kernel request; the kernel has checked the caller's permissions.
    pub(crate) fn of_request(unique: u64, header: &InHeader) -> Self {
        let (caller, sequence) = (Caller::checked(header.uid, header.gid), unique << STEP_BITS);
        let (unique, pid) = (Some(unique), header.pid);
        Self { caller, pid, unique, sequence, hour: None, session: None, steps: 0 }
    }

    /// The same under a number that only this attempt has: a repetition is executed again.
    pub(crate) fn forgetful(self, own: &Self) -> Self {
        Self { sequence: own.sequence, ..self }
    }

    /// Whether it is on behalf of this user or of root.
    pub(crate) const fn is_of(&self, uid: u32) -> bool {
        self.is_of_root() || self.caller.uid == uid
    }

    /// The kernel's number of the request; 0 for the mount's own operations.
    pub(crate) fn unique(&self) -> u64 {
        self.unique.unwrap_or(0)
    }

    /// Whether it is on behalf of root.
    pub(crate) const fn is_of_root(&self) -> bool {
        self.caller.uid == 0
    }

    /// Whether it is on behalf of root or of an unknown user: with `-o idmap` the kernel reports
    /// users only when they create something.
    pub(crate) const fn may_be_of_root(&self) -> bool {
        self.is_of_root() || self.caller.uid == UNTOLD
    }

    /// The number and hour of the one change of this ticket, for later use with [`Self::named`].
    pub(crate) fn name(&mut self) -> (u64, u32) {
        (self.sequence, *self.hour.get_or_insert_with(this_hour))
    }

    /// The ticket of a change that was begun under this number in this hour.
    pub(crate) fn named(self, (sequence, hour): (u64, u32)) -> Self {
        Self { sequence, hour: Some(hour), ..self }
    }

    /// The sequence of the request's first change.
    pub(crate) const fn first_sequence(&self) -> u64 {
        self.sequence
    }

    /// The sequence of the request's next change.
    fn next(&mut self) -> u64 {
        let sequence = self.sequence + self.steps;
        self.steps += 1;
        assert!(self.steps <= 1 << STEP_BITS, "a request of the kernel takes few steps");
        sequence
    }
}

pub(crate) fn this_hour() -> u32 {
    u32::try_from(RealClock::wall_ms() / 3_600_000).unwrap_or(u32::MAX)
}

/// An inode as a meta reported it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) attr: Attr,
    /// The version of the store at that moment, as in `Answered`.
    pub(crate) version: u64,
}

/// Bytes that were read.
#[derive(Debug)]
pub(crate) enum ReadBytes<'b> {
    /// In the caller's buffer.
    Here(&'b [u8]),
    /// In memory of the node on this host, until this is dropped.
    Lent(LentBytes),
}

impl AsRef<[u8]> for ReadBytes<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Here(bytes) => bytes,
            Self::Lent(bytes) => bytes.as_ref(),
        }
    }
}

/// Connections to the cluster, in a session.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) client: Client,
    pub(crate) files: Files,
    pub(crate) settled: Settled,
    pub(crate) born: Born,
    /// Bytes of small files, as last reported by metas.
    pub(crate) contents: Contents,
    /// Cached records of chunk names: only their seal ever changes.
    names: Cache<u64, Arc<SharedName>>,
    /// Changes that were answered and not yet sent to a meta.
    pub(crate) behind: Behind,
    /// Latencies of the cluster.
    pub(crate) calls: Calls,
    /// Reserved inode numbers for files that the mount creates by itself.
    pub(crate) numbers: Mutex<Range<u64>>,
    session: AtomicU64,
    own: AtomicU64,
    /// Whether this mount has removed something since its session was renewed.
    pub(crate) removed: AtomicBool,
}

impl Backend {
    /// Makes a backend without a session. No earlier process of the session has used `first` or a
    /// later number for the mount's own operations.
    pub(crate) fn new(client: Client, files: Files, behind: Behind, first: u64) -> Self {
        let (session, own) = (AtomicU64::new(0), AtomicU64::new(first & !OWN));
        let (settled, calls, numbers) = (Settled::default(), Calls::default(), Mutex::default());
        let (contents, names) =
            (recent::weighted(CONTENTS, CONTENTS_BYTES, BytesOf), recent::shared(NAMES_MAX));
        let born = Born::default();
        let removed = AtomicBool::new(false);
        Self {
            client,
            files,
            settled,
            born,
            contents,
            names,
            behind,
            calls,
            numbers,
            session,
            own,
            removed,
        }
    }

    /// Enters a session: new requests belong to it, or to the one that an earlier process entered
    /// in its place.
    pub(crate) fn enter(&self, session: u64) {
        self.session.store(self.files.enter(session), Ordering::Release);
    }

    /// Replaces an ended session for new requests. Operations begun before stay with the old
    /// session, in which they may have been executed.
    pub(crate) fn replace_session(&self, session: u64) {
        self.files.replace_session(session);
        self.session.store(session, Ordering::Release);
    }

    pub(crate) fn session(&self) -> u64 {
        self.session.load(Ordering::Acquire)
    }

    /// A ticket for an operation of the mount itself.
    pub(crate) fn own_ticket(&self) -> Ticket {
        let (sequence, caller) = (self.own_sequence(), Caller::checked(0, 0));
        Ticket { caller, pid: 0, unique: None, sequence, hour: None, session: None, steps: 0 }
    }

    /// A sequence for an operation of the mount itself, and for its steps.
    pub(crate) fn own_sequence(&self) -> u64 {
        OWN | self.own.fetch_add(1 << STEP_BITS, Ordering::Relaxed)
    }

    /// Whether a meta knows the session. True as well when no meta can be reached.
    pub(crate) fn session_lives(&self) -> bool {
        let renew = MetaOp::SessionRenew { open: Vec::new(), closed: Vec::new() };
        !matches!(self.meta(&mut self.own_ticket(), renew), Err(Errno::STALE))
    }

    /// Builds the request of an operation that changes something.
    pub(crate) fn request(&self, ticket: &mut Ticket, op: MetaOp) -> MetaRequest {
        let (mut sequence, mut hour, mut session) = (0, 0, self.session());
        if op.changes() {
            sequence = ticket.next();
            if let Some(unique) = ticket.unique.filter(|_| ticket.hour.is_none()) {
                let begun = self.files.begin(unique, this_hour());
                (ticket.hour, ticket.session) = (Some(begun.hour), Some(begun.session));
            }
            hour = *ticket.hour.get_or_insert_with(this_hour);
            // Locks end with their session: a lock taken in another session no longer exists.
            let is_lock = matches!(op, MetaOp::SetLock { .. });
            session = ticket.session.filter(|_| !is_lock).unwrap_or(session);
        }
        MetaRequest { session, sequence, hour, caller: ticket.caller.clone(), op }
    }

    /// Sends an operation to a meta.
    pub(crate) fn ask(&self, ticket: &mut Ticket, op: MetaOp) -> Result<Answered, Errno> {
        self.behind.wait_before(&op)?;
        let call = if op.changes() { &self.calls.change } else { &self.calls.look };
        let request = self.request(ticket, op);
        self.passes(&request.op);
        let changes = self.changes_of_dir(&request.op);
        let answered = call.timed(|| self.client.meta(&request, Some(patience())));
        self.passes(&request.op);
        self.hear(&request.op, answered.as_ref().ok(), changes);
        Ok(answered?)
    }

    /// Updates the caches from a meta's answer; `changes` is the number of changes of the
    /// operation's directory when it was sent.
    pub(crate) fn hear(&self, op: &MetaOp, answered: Option<&Answered>, changes: u64) {
        if let Some(Ok(MetaReply::Removed(Removed { ino, nlink: 0 }))) =
            answered.map(|reply| &reply.answer)
        {
            self.contents.remove(&ino.0);
            self.removed.store(true, Ordering::Release);
        }
        if matches!(op, MetaOp::Rename(_)) {
            // It may have replaced something.
            self.removed.store(true, Ordering::Release);
        }
        // A mount that makes promises everywhere changes directories and files before metas do.
        if !self.behind.is_sole() {
            self.settled.hear(op, answered, changes);
            self.born.hear(op, answered);
        }
    }

    /// The number of changes of an operation's directory so far, for [`Self::hear`].
    pub(crate) fn changes_of_dir(&self, op: &MetaOp) -> u64 {
        told_of(op).map_or(0, |dir| self.settled.changes(dir))
    }

    /// Notes that an operation is about to be sent, or was answered.
    fn passes(&self, op: &MetaOp) {
        if self.behind.is_sole() || told_of(op).is_none() {
            self.settled.passes(op);
        }
        self.behind.passes(op);
    }

    /// Sends an operation to a meta and returns the plain reply.
    pub(crate) fn meta(&self, ticket: &mut Ticket, op: MetaOp) -> Result<MetaReply, Errno> {
        Ok(self.ask(ticket, op)?.answer?)
    }

    /// Sends an operation to a meta that answers with an inode.
    pub(crate) fn attr(&self, ticket: &mut Ticket, op: MetaOp) -> Result<Told, Errno> {
        let Answered { answer, version, .. } = self.ask(ticket, op)?;
        match answer? {
            MetaReply::Attr(attr) | MetaReply::Delegated(attr) => Ok(Told { attr, version }),
            MetaReply::Entry(entry) => Ok(Told { attr: entry.attr, version }),
            _ => Err(unexpected()),
        }
    }

    /// Reads `buf.len()` bytes at `offset`; holes are zeros.
    pub(crate) fn read(&self, bytes: Bytes, offset: u64, buf: &mut [u8]) -> Result<(), Unread> {
        let (mut parts, mut rooms) = (Vec::new(), Vec::new());
        bytes.rooms(offset, buf, (&mut parts, &mut rooms))?;
        self.calls.read.timed(|| self.client.read_chunks(&parts, &mut rooms, Some(patience())))?;
        Ok(())
    }

    /// Reads a long range like [`Self::read`]; bytes may stay in memory of the node on this host.
    /// Returns the pieces in order.
    pub(crate) fn lend<'b>(
        &self,
        bytes: Bytes,
        offset: u64,
        buf: &'b mut [u8],
    ) -> Result<Vec<ReadBytes<'b>>, Unread> {
        let (mut parts, mut rooms) = (Vec::new(), Vec::new());
        bytes.rooms(offset, buf, (&mut parts, &mut rooms))?;
        let read = || self.client.lend_chunks(&parts, &mut rooms, Some(patience()));
        let lent = self.calls.read.timed(read)?;
        let sizes: Vec<usize> = rooms.iter().map(Room::len).collect();
        let mut rest: &'b [u8] = buf;
        let piece = |(len, lent): (usize, Option<LentBytes>)| {
            let (here, behind) = rest.split_at(len);
            rest = behind;
            lent.map_or(ReadBytes::Here(here), ReadBytes::Lent)
        };
        Ok(sizes.into_iter().zip(lent).map(piece).collect())
    }

    /// The chunks of a file stored in chunks; `None` when its chunk name no longer has a record:
    /// then the attributes are outdated.
    pub(crate) fn chunks(&self, attr: &Attr) -> Result<Option<Chunks>, Errno> {
        if !attr.is_shared {
            return Ok(Some(Chunks::own(attr)));
        }
        let chunks = attr.chunk_data();
        if let Some(name) = self.names.get(&chunks) {
            return Ok(Some(Chunks::shared(attr, name)));
        }
        match self.ask(&mut self.own_ticket(), MetaOp::Shared { chunks })?.answer {
            Ok(MetaReply::Shared(record)) => {
                let name = Arc::new(SharedName::of(&record));
                self.names.insert(chunks, Arc::clone(&name));
                Ok(Some(Chunks::shared(attr, name)))
            }
            Ok(_) => Err(unexpected()),
            Err(MetaError::Stale) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes bytes at `offset`, durably on all replicas.
    pub(crate) fn write(&self, to: &Chunks, offset: u64, data: &[u8]) -> Result<(), Denied> {
        self.write_parts(to, &[(offset, data)])
    }

    /// Writes several ranges, in order where they overlap.
    pub(crate) fn write_parts(&self, to: &Chunks, all: &[(u64, &[u8])]) -> Result<(), Denied> {
        let (mut parts, mut values) = (Vec::new(), Vec::new());
        for (offset, data) in all {
            to.bytes().values(*offset, data, (&mut parts, &mut values))?;
        }
        let write = || to.write(&self.client, (&parts, &values), Some(patience()));
        Ok(self.calls.write.timed(write)?)
    }

    /// Removes whole chunks.
    pub(crate) fn remove(&self, of: &Chunks, indexes: Range<u64>) -> Result<(), Denied> {
        self.cut(of, of.bytes().removals(indexes))
    }

    /// Cuts chunks; cuts of one chunk are done in this order.
    pub(crate) fn cut(
        &self,
        of: &Chunks,
        cuts: impl Iterator<Item = ChunkCut>,
    ) -> Result<(), Denied> {
        Ok(self.calls.cut.timed(|| of.cut(&self.client, cuts, Some(patience())))?)
    }

    /// Seals chunks on all chains.
    pub(crate) fn seal(&self, chunks: &Chunks) -> Result<(), Errno> {
        Ok(self.calls.cut.timed(|| chunks.seal(&self.client, Some(patience())))?)
    }
}

/// The error for a meta's reply of the wrong kind.
pub(crate) fn unexpected() -> Errno {
    tracing::error!("unexpected answer from a meta: is it of another version? See its log");
    Errno::IO
}
