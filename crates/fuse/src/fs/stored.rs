//! Bytes of small files, which lie in the store: read with their inodes, held until they must be in
//! the store, and moved to chunks when they become too many.

use std::cell::Cell;
use std::sync::Arc;

use millpond_client::{Chunks, Door, FileBytes as Bytes, spill};
use millpond_env::RealClock;
use millpond_fuse_wire::Pages;
use millpond_fuse_wire::abi::WriteIn;
use millpond_types::meta::{
    Answered, Attr, Content, Filled, INLINE_MAX, Ino, MetaError, MetaOp, MetaReply, STORED_MAX,
    SetAttr, SetTime, Timestamp, WriteInline,
};

use super::Fs;
use super::data::filled;
use crate::backend::{Denied, Ticket, Told, unexpected};
use crate::deadline;
use crate::errno::Errno;
use crate::files::{File, Held, Hold};
use crate::options::Mode;

/// Flags of an open file that require each write to be durable, or to bypass all caches.
const AT_ONCE: i32 = libc::O_SYNC | libc::O_DSYNC | libc::O_DIRECT;

fn now() -> Timestamp {
    Timestamp::from_unix_nanos(RealClock::wall_nanos())
}

impl Fs {
    /// Asks a meta for an inode and for its bytes, if they lie in the store.
    pub(super) fn fetch(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
    ) -> Result<(Told, Arc<Content>), Errno> {
        let Answered { answer, version, .. } = self.backend.ask(ticket, MetaOp::Content { ino })?;
        let MetaReply::Content(content) = answer? else { return Err(unexpected()) };
        let told = Told { attr: content.attr, version };
        let content = Arc::new(content);
        if content.attr.is_stored() {
            self.backend.contents.insert(ino.0, Arc::clone(&content));
        }
        Ok((told, content))
    }

    /// The bytes of a file in the store, by the meta's last answer; fetched again when that is not
    /// believed. `None` when they turn out to lie in chunks. The caller has the file's gate.
    pub(super) fn stored(
        &self,
        ticket: &mut Ticket,
        file: &File,
        is_believed: bool,
    ) -> Result<Option<Arc<Content>>, Errno> {
        let known = file.told();
        // The cached bytes lack promised ones.
        let is_believed = is_believed && !self.backend.behind.is_pending(file.ino);
        let kept = self.backend.contents.get(&file.ino.0);
        if let Some(kept) =
            kept.filter(|content| is_believed && content.attr.version == known.version)
        {
            return Ok(Some(kept));
        }
        let (told, content) = self.fetch(ticket, file.ino)?;
        let _ = file.learn(told);
        Ok(Some(content).filter(|content| content.attr.is_stored()))
    }

    /// Whether a write must be durable before it is answered.
    pub(super) fn writes_at_once(&self, args: &WriteIn) -> bool {
        self.mode == Mode::Strict || args.flags.cast_signed() & AT_ONCE != 0
    }

    /// Writes to a file with bytes in the store, or with held bytes.
    pub(super) fn write_small(
        &self,
        file: &File,
        (offset, data): (u64, &[u8]),
        at_once: bool,
    ) -> Result<(), Errno> {
        let _alone = deadline::write(&file.gate)?;
        let done = self.write_alone(file, (offset, data), at_once);
        self.report(file, done)
    }

    fn write_alone(
        &self,
        file: &File,
        (offset, data): (u64, &[u8]),
        at_once: bool,
    ) -> Result<(), Errno> {
        let end = offset + data.len() as u64;
        while file.told().is_stored() && end <= INLINE_MAX as u64 {
            let offset = u32::try_from(offset).map_err(|_| Errno::FILE_TOO_BIG)?;
            let held = Held { data: file.told().data, at: now(), offset, bytes: data.to_vec() };
            match self.files().hold(file, held.clone()) {
                Hold::Held if at_once => return self.settle(file),
                Hold::Held => {
                    self.files().note_untold(file.ino);
                    self.wake.wake();
                    return Ok(());
                }
                // Held bytes of this file go first; or other files hold too many.
                Hold::Full if self.files().has_held(file.ino) => self.settle(file)?,
                Hold::Full | Hold::Closed => {
                    return self.send(file, held, self.backend.own_ticket());
                }
            }
        }
        self.write_to_chunks(file, (offset, data))
    }

    /// Writes to chunks; moves the file there first if necessary.
    fn write_to_chunks(&self, file: &File, (offset, data): (u64, &[u8])) -> Result<(), Errno> {
        self.settle_place(file)?;
        let known = file.told();
        // Unsent held bytes are written there together with the new ones.
        let unsent = self.files().unsent(file.ino);
        let unsent = unsent.filter(|held| held.data == known.data && known.size == 0);
        if unsent.is_none() {
            self.settle(file)?;
        }
        let known = file.told();
        if known.is_stored() {
            let mut parts = Vec::with_capacity(2);
            parts.extend(unsent.as_ref().map(|held| (u64::from(held.offset), &held.bytes[..])));
            parts.push((offset, data));
            if self.spill(file, known, &parts)? {
                self.files().sent(file);
                return Ok(());
            }
            self.settle(file)?;
        }
        // A concurrent cut to nothing is ordered after this.
        self.write_in_chunks(file, (offset, data)).map(drop)
    }

    /// Moves a file to chunks; returns whether these parts are in it.
    fn spill(&self, file: &File, known: Attr, parts: &[(u64, &[u8])]) -> Result<bool, Errno> {
        let changes = self.backend.settled.changes(file.ino);
        let mut door = Mount { fs: self, version: 0 };
        let spilled = spill(&mut door, known, parts, Some(now()));
        self.ahead.changed(file.ino);
        let spilled = spilled?;
        self.heard(file, Told { attr: spilled.attr, version: door.version }, changes);
        for (offset, bytes) in parts.iter().filter(|_| spilled.written) {
            let (from, to, cuts) = (*offset, offset + bytes.len() as u64, spilled.cuts);
            file.filled(Filled { from, to, cuts });
        }
        Ok(spilled.written)
    }

    /// Writes to the file's chunks; false when it no longer has any. The caller has exclusive
    /// access to the file.
    pub(super) fn write_in_chunks(
        &self,
        file: &File,
        (offset, data): (u64, &[u8]),
    ) -> Result<bool, Errno> {
        let before = Cell::new(filled(file, (offset, data)));
        let write = |chunks: &Chunks, size| {
            if offset > size {
                self.cut(file, chunks, (size, size))?;
                before.set(filled(file, (offset, data)));
            }
            self.backend.write(chunks, offset, data)
        };
        let Some(chunks) = self.change(file, write)? else { return Ok(false) };
        self.wrote(file, chunks.bytes(), before.get())?;
        Ok(true)
    }

    /// Sends the held bytes of a file, and reports bytes written to its chunks. The caller has
    /// exclusive access to the file.
    pub(super) fn settle(&self, file: &File) -> Result<(), Errno> {
        let mut fresh = None;
        let name = || {
            let ticket = fresh.insert(self.backend.own_ticket());
            ticket.name()
        };
        if let Some((held, name)) = self.files().sending(file.ino, name) {
            let ticket = fresh.unwrap_or_else(|| self.backend.own_ticket().named(name));
            self.send(file, held, ticket)?;
            self.files().sent(file);
        }
        self.tell_of(file)
    }

    /// Sends bytes to a meta, or writes them to the chunks that the file has got in the meantime.
    /// If the file was cut to nothing since, its bytes are gone with that.
    fn send(&self, file: &File, held: Held, mut ticket: Ticket) -> Result<(), Errno> {
        let Held { data, at, offset, bytes } = held;
        let (ino, changes) = (file.ino, self.backend.settled.changes(file.ino));
        let write = WriteInline { ino, data, offset, bytes, mtime: at };
        let op = MetaOp::WriteInline(write.clone());
        let Answered { answer, version, .. } = self.backend.ask(&mut ticket, op)?;
        let attr = match answer {
            Ok(MetaReply::Attr(attr)) => attr,
            Ok(_) => return Err(unexpected()),
            Err(error) => {
                if !matches!(error, MetaError::Io | MetaError::Again) {
                    self.files().refused(ino);
                }
                self.full.refused(ino, error);
                return Err(error.into());
            }
        };
        self.heard(file, Told { attr, version }, changes);
        if attr.data != data || attr.is_stored() {
            return Ok(());
        }
        self.write_in_chunks(file, (u64::from(offset), &write.bytes)).map(drop)
    }

    /// Notes that a meta has taken written bytes; `changes` is the number of attribute changes by
    /// this mount before.
    pub(super) fn heard(&self, file: &File, told: Told, changes: u64) {
        let version = told.attr.version;
        let _ = file.learn(told);
        self.backend.settled.note(told, changes);
        self.leases.wrote(file.ino, version);
    }

    /// The outcome for an application; it gets a rejection of held bytes, or of a length, once.
    pub(super) fn report(&self, file: &File, done: Result<(), Errno>) -> Result<(), Errno> {
        if done.is_err() && self.files().is_held_refused(file.ino) {
            self.files().sent(file);
        }
        let Some(errno) = self.files().take_refusal(file) else { return done };
        // The kernel believes the length of the rejected write.
        if let Some(device) = self.device.get() {
            let _ = device.inval_inode(file.ino.0, Pages::None);
        }
        done.and(Err(errno))
    }

    /// Ignores a rejection of written bytes, for an operation that needs them at a meta: those
    /// bytes never existed, and their writer gets the error at the next write, flush or fsync.
    pub(super) fn unless_refused(&self, ino: Ino, done: Result<(), Errno>) -> Result<(), Errno> {
        done.or_else(|error| if self.files().is_refused(ino) { Ok(()) } else { Err(error) })
    }

    /// Fills a range of a file in the store with zeros, and extends the file; false when its bytes
    /// lie in chunks. The caller has exclusive access to the file, which has no held bytes.
    pub(super) fn allocate_stored(
        &self,
        file: &File,
        zeros: Option<(u64, u64)>,
        longer: Option<u64>,
    ) -> Result<bool, Errno> {
        let known = file.told();
        if let Some((from, to)) = zeros {
            // Beyond them there are only zeros.
            let to = to.min(known.size).min(STORED_MAX as u64);
            let len = usize::try_from(to.saturating_sub(from)).unwrap_or(0);
            let offset = u32::try_from(from.min(to)).unwrap_or(0);
            let held = Held { data: known.data, at: now(), offset, bytes: vec![0; len] };
            self.send(file, held, self.backend.own_ticket())?;
        }
        if (zeros.is_none() || longer.is_some()) && file.told().is_stored() {
            // Even without an effect it counts as a change.
            let mtime = longer.is_none().then_some(SetTime::Now);
            let set = SetAttr { size: longer, mtime, stored: true, ..SetAttr::default() };
            let op = MetaOp::SetAttr { ino: file.ino, set };
            let _ = file.learn(self.backend.attr(&mut self.backend.own_ticket(), op)?);
        }
        Ok(file.told().is_stored())
    }
}

/// The cluster as a mount sees it, and the version of the last answer.
struct Mount<'f> {
    fs: &'f Fs,
    version: u64,
}

impl Door for Mount<'_> {
    type Error = Errno;

    fn ask(&mut self, op: MetaOp) -> Result<MetaReply, Errno> {
        let backend = &self.fs.backend;
        let Answered { answer, version, .. } = backend.ask(&mut backend.own_ticket(), op)?;
        self.version = version;
        Ok(answer?)
    }

    fn write(&mut self, to: Bytes, parts: &[(u64, &[u8])]) -> Result<bool, Errno> {
        match self.fs.backend.write_parts(&Chunks::of(to), parts) {
            Ok(()) => Ok(true),
            Err(Denied::Sealed) => Ok(false),
            Err(Denied::Failed(errno)) => Err(errno),
        }
    }

    fn remove(&mut self, bytes: Bytes, parts: &[(u64, &[u8])]) {
        if let Err(error) = self.fs.backend.client.cut_chunks(&bytes.touched(parts), None) {
            tracing::warn!("unused chunks of data {} could not be removed: {error}", bytes.data);
        }
    }

    fn unexpected(&mut self) -> Errno {
        unexpected()
    }
}
