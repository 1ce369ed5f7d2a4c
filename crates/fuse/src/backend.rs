//! The cluster behind a mount: metas and chunks.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_client::{ChunkCut, Client, FileBytes as Bytes};
use millpond_env::RealClock;
use millpond_fuse_wire::abi::InHeader;
use millpond_types::meta::{Answered, Attr, Caller, MetaOp, MetaReply, MetaRequest};

use crate::errno::Errno;
use crate::files::Files;
use crate::settled::{Contents, Settled};
use crate::watch::Calls;

/// How long an operation is tried before the application is told that it failed: a node that is gone
/// costs seconds, a cluster that is gone for longer should be noticed.
const PATIENCE: Duration = Duration::from_mins(1);
/// Set in the sequences of what the mount does by itself; the kernel's numbers stay below.
const OWN: u64 = 1 << 63;
/// Steps that one request of the kernel may take.
const STEP_BITS: u32 = 4;
/// Small files whose bytes are kept for a read that follows: 16 MiB at most.
const CONTENTS_MAX: usize = 1024;
/// Chunks cut by one call.
const CUTS_MAX: usize = 1024;

/// On whose behalf, and under which number, an operation is done.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    caller: Caller,
    /// The thread that asks; 0 of what the mount does by itself.
    pub(crate) pid: u32,
    /// The kernel's number of the request; none of what the mount does by itself.
    unique: Option<u64>,
    sequence: u64,
    hour: Option<u32>,
    steps: u64,
}

impl Ticket {
    /// Of a request of the kernel, which has checked the caller's permissions.
    pub(crate) fn of_request(unique: u64, header: &InHeader) -> Self {
        let (caller, sequence) = (Caller::checked(header.uid, header.gid), unique << STEP_BITS);
        Self { caller, pid: header.pid, unique: Some(unique), sequence, hour: None, steps: 0 }
    }

    /// The same under a number that only this attempt has: a repetition is done again.
    pub(crate) fn forgetful(self, own: &Self) -> Self {
        Self { sequence: own.sequence, ..self }
    }

    /// The kernel's number of the request; 0 of what the mount does by itself.
    pub(crate) fn unique(&self) -> u64 {
        self.unique.unwrap_or(0)
    }

    /// The number and the hour of the one change that it is for, to be used again with [`Self::named`].
    pub(crate) fn name(&mut self) -> (u64, u32) {
        (self.sequence, *self.hour.get_or_insert_with(this_hour))
    }

    /// The same for a change that was begun under this number in this hour.
    pub(crate) fn named(self, (sequence, hour): (u64, u32)) -> Self {
        Self { sequence, hour: Some(hour), ..self }
    }

    /// A name for the next change that the request makes.
    fn next(&mut self) -> u64 {
        let sequence = self.sequence + self.steps;
        self.steps += 1;
        assert!(self.steps <= 1 << STEP_BITS, "a request of the kernel takes few steps");
        sequence
    }
}

fn this_hour() -> u32 {
    u32::try_from(RealClock::wall_ms() / 3_600_000).unwrap_or(u32::MAX)
}

/// An inode as a meta told of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) attr: Attr,
    /// The state of the store that is told of, as in `Answered`.
    pub(crate) version: u64,
}

/// Connections to the cluster, in a session.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) client: Client,
    pub(crate) files: Files,
    pub(crate) settled: Settled,
    /// Bytes of small files, as metas told them last.
    pub(crate) contents: Contents,
    /// How long the cluster takes.
    pub(crate) calls: Calls,
    session: AtomicU64,
    own: AtomicU64,
}

impl Backend {
    /// A backend that has no session yet. `first` is a number that no earlier process of the session
    /// has used for what it did by itself.
    pub(crate) fn new(client: Client, files: Files, first: u64) -> Self {
        let (session, own) = (AtomicU64::new(0), AtomicU64::new(first & !OWN));
        let (settled, calls) = (Settled::default(), Calls::default());
        let contents = Contents::new(CONTENTS_MAX);
        Self { client, files, settled, contents, calls, session, own }
    }

    /// From now on requests are of this session.
    pub(crate) fn enter(&self, session: u64) {
        self.session.store(session, Ordering::Release);
    }

    pub(crate) fn session(&self) -> u64 {
        self.session.load(Ordering::Acquire)
    }

    /// A ticket for what the mount does by itself.
    pub(crate) fn own_ticket(&self) -> Ticket {
        let sequence = self.own.fetch_add(1 << STEP_BITS, Ordering::Relaxed);
        let caller = Caller::checked(0, 0);
        Ticket { caller, pid: 0, unique: None, sequence: OWN | sequence, hour: None, steps: 0 }
    }

    /// Has a meta do something.
    pub(crate) fn ask(&self, ticket: &mut Ticket, op: MetaOp) -> Result<Answered, Errno> {
        let (mut sequence, mut hour) = (0, 0);
        let mut call = &self.calls.look;
        if op.changes() {
            call = &self.calls.change;
            sequence = ticket.next();
            hour = *ticket.hour.get_or_insert_with(|| match ticket.unique {
                Some(unique) => self.files.begin(unique, this_hour()),
                None => this_hour(),
            });
        }
        let session = self.session();
        let request = MetaRequest { session, sequence, hour, caller: ticket.caller.clone(), op };
        self.settled.passes(&request.op);
        let answered = call.timed(|| self.client.meta(&request, Some(PATIENCE)));
        self.settled.passes(&request.op);
        Ok(answered?)
    }

    /// Has a meta do something whose answer nobody keeps.
    pub(crate) fn meta(&self, ticket: &mut Ticket, op: MetaOp) -> Result<MetaReply, Errno> {
        Ok(self.ask(ticket, op)?.answer?)
    }

    /// Has a meta do something whose answer is an inode.
    pub(crate) fn attr(&self, ticket: &mut Ticket, op: MetaOp) -> Result<Told, Errno> {
        let Answered { answer, version } = self.ask(ticket, op)?;
        match answer? {
            MetaReply::Attr(attr) => Ok(Told { attr, version }),
            MetaReply::Entry(entry) => Ok(Told { attr: entry.attr, version }),
            _ => Err(unexpected()),
        }
    }

    /// Reads `buf.len()` bytes at `offset`; holes are zeros.
    pub(crate) fn read(&self, bytes: Bytes, offset: u64, buf: &mut [u8]) -> Result<(), Errno> {
        let (mut parts, mut rooms) = (Vec::new(), Vec::new());
        bytes.rooms(offset, buf, (&mut parts, &mut rooms))?;
        self.calls.read.timed(|| self.client.read_chunks(&parts, &mut rooms, Some(PATIENCE)))?;
        Ok(())
    }

    /// Writes bytes at `offset`, durably on all replicas.
    pub(crate) fn write(&self, bytes: Bytes, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.write_parts(bytes, &[(offset, data)])
    }

    /// The same of several ranges, in their order where they overlap.
    pub(crate) fn write_parts(&self, bytes: Bytes, all: &[(u64, &[u8])]) -> Result<(), Errno> {
        let (mut parts, mut values) = (Vec::new(), Vec::new());
        for (offset, data) in all {
            bytes.values(*offset, data, (&mut parts, &mut values))?;
        }
        self.calls.write.timed(|| self.client.write_chunks(&parts, &values, Some(PATIENCE)))?;
        Ok(())
    }

    /// Cuts what lies behind `size` off a file that has at most `old` bytes in its chunks.
    pub(crate) fn cut(&self, bytes: Bytes, size: u64, old: u64) -> Result<(), Errno> {
        if let Some(last) = bytes.tail(size)? {
            self.calls.cut.timed(|| self.client.cut_chunks(&[last], Some(PATIENCE)))?;
        }
        let layout = bytes.layout;
        self.remove(bytes, layout.chunks(size)..layout.chunks(old))
    }
}

impl Backend {
    /// Removes whole chunks.
    pub(crate) fn remove(&self, bytes: Bytes, indexes: Range<u64>) -> Result<(), Errno> {
        let mut removals = bytes.removals(indexes).peekable();
        while removals.peek().is_some() {
            let cuts: Vec<ChunkCut> = removals.by_ref().take(CUTS_MAX).collect();
            self.calls.cut.timed(|| self.client.cut_chunks(&cuts, Some(PATIENCE)))?;
        }
        Ok(())
    }
}

/// A meta's answer is not of the kind that was asked for.
pub(crate) fn unexpected() -> Errno {
    tracing::error!("a meta answered something else than it was asked for: its log may say more");
    Errno::IO
}
