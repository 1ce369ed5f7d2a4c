//! Reading and writing bytes, and making them durable.

use std::sync::Arc;
use std::time::Duration;

use millpond_client::{Chunks, FileBytes as Bytes};
use millpond_env::RealClock;
use millpond_fuse_wire::abi::{
    FallocateIn, FallocateMode, FlushIn, OpenFlags, OpenIn, OpenOut, ReadFlags, ReadIn, ReleaseIn,
    WriteFlags, WriteIn,
};
use millpond_fuse_wire::{Pages, Reply};
use millpond_types::meta::{
    Attr, Extend, FILE_BYTES_MAX, FileKind, Filled, Hollow, Ino, MetaError, MetaOp, MetaReply,
    SetAttr, Timestamp,
};

use super::{Answer, Aside, Fs, Send, Stale};
use crate::backend::{Denied, Ticket, Told, Unread, unexpected};
use crate::budget::Way;
use crate::deadline;
use crate::errno::Errno;
use crate::files::{File, Telling, Written};
use crate::options::Mode;

/// The size in bytes of the pieces in which zeros are written.
const ZEROS: usize = 1 << 20;
/// Shorter ranges are copied: that costs less than returning lent memory after the answer.
const LENT_MIN: usize = 64 << 10;
/// How often a read of missing bytes is retried while other clients cut the file.
const READ_TRIES: usize = 16;
/// How long a thread that reports many files waits for one of them: most writes are over by then.
const GATE: Duration = Duration::from_millis(10);

impl Fs {
    /// The open flags for a file with these attributes, which a meta has just reported.
    pub(super) fn open_flags(&self, attr: Attr) -> OpenFlags {
        let parallel = OpenFlags::PARALLEL_DIRECT_WRITES;
        match self.mode {
            Mode::Strict => parallel.with(OpenFlags::DIRECT_IO),
            Mode::ReadOnly => OpenFlags::KEEP_CACHE,
            // An open sees all writes closed before it, even if the notification is still in
            // flight.
            Mode::CloseToOpen if self.backend.behind.has_file(attr.ino) => {
                // The kernel's cached bytes of it came through this mount.
                self.leases.tells(attr.ino, attr.version);
                parallel.with(OpenFlags::KEEP_CACHE)
            }
            Mode::CloseToOpen if self.leases.told(attr.ino) != Some(attr.version) => {
                if let Some(device) = self.device.get() {
                    // Does not block. An inode that the kernel does not know needs no drop.
                    let _ = device.inval_inode(attr.ino.0, Pages::None);
                }
                self.leases.tells(attr.ino, attr.version);
                parallel
            }
            // The kernel drops its pages when it sees another modification time.
            _ => parallel.with(OpenFlags::KEEP_CACHE),
        }
    }

    pub(super) fn open(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        args: OpenIn,
        send: Send<'_>,
    ) -> Result<(), Errno> {
        let flags = args.flags.cast_signed();
        // An open for reading is usually followed by a read: the bytes of a small file come with
        // the answer.
        let reads = flags & (libc::O_ACCMODE | libc::O_TRUNC) == libc::O_RDONLY;
        let mut told = if let Some(told) = self.known_file(ino) {
            told
        } else if reads {
            self.fetch(ticket, ino)?.0
        } else {
            self.backend.attr(ticket, MetaOp::GetAttr { ino })?
        };
        if told.attr.nlink == 0 && self.mode == Mode::CloseToOpen {
            // The name that led here is gone, with the notification in flight: the kernel then
            // looks the name up again. But an open file can be opened again (/proc/PID/fd): that
            // attempt comes here a second time.
            let again = self.leases.second_try(ticket.pid, ino);
            if !(again && self.files().is_open(ino)) {
                return Err(Errno::STALE);
            }
        }
        let cuts = flags & libc::O_TRUNC != 0;
        if cuts && told.attr.kind == FileKind::Regular {
            told = self.cut_at_open(ticket, &told.attr, args.open_flags)?;
        }
        self.note_read(ticket, (told, flags));
        let out = if reads {
            self.open_to_read(ticket.unique(), told)
        } else {
            let _file = self.files().open(ticket.unique(), told);
            OpenOut::new(ticket.unique(), self.open_flags(told.attr))
        };
        send(Reply::Open(out));
        Ok(())
    }

    /// An open file; one that this process did not see opened is looked up.
    pub(super) fn file(&self, ticket: &mut Ticket, ino: Ino) -> Result<Arc<File>, Errno> {
        if let Some(file) = self.files().get(ino) {
            return Ok(file);
        }
        let told = self.backend.attr(ticket, MetaOp::GetAttr { ino })?;
        Ok(self.files().known(told))
    }

    pub(super) fn read(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        (args, scratch): (&ReadIn, &mut Vec<u8>),
        send: Send<'_>,
    ) -> Result<(), Errno> {
        if self.read_cached(ino, (args, scratch), send) {
            return Ok(());
        }
        let file = self.file(ticket, ino)?;
        if !args.read_flags.contains(ReadFlags::LOCKOWNER) {
            file.note_pages();
        }
        self.pass_read(&file, args);
        for _ in 0..READ_TRIES {
            let was = file.told();
            match self.read_known(ticket, &file, (args, scratch), send) {
                Err(Unread::Missing) => {}
                done => return done.map_err(Errno::from),
            }
            // A client reports it before it removes bytes from chunks: then they are not lost.
            let now = file.learn(self.backend.attr(ticket, MetaOp::GetAttr { ino })?);
            if (now.chunks, now.cuts) == (was.chunks, was.cuts) {
                break;
            }
        }
        let end = args.offset.saturating_add(u64::from(args.size));
        tracing::error!(
            "inode {ino}: written bytes between {} and {end} are lost; `millpond fsck` shows more",
            args.offset,
        );
        Err(Errno::IO)
    }

    /// Reads a file by its cached attributes, or by those of a meta.
    fn read_known(
        &self,
        ticket: &mut Ticket,
        file: &File,
        (args, scratch): (&ReadIn, &mut Vec<u8>),
        send: Send<'_>,
    ) -> Result<(), Unread> {
        let ino = file.ino;
        if self.files().has_held(ino) {
            let _alone = deadline::write(&file.gate)?;
            self.unless_refused(ino, self.settle(file))?;
        }
        let shared = deadline::read(&file.gate)?;
        let end = args.offset.saturating_add(u64::from(args.size));
        let hears = self.mode == Mode::CloseToOpen;
        let mut is_believed = self.believes(file) && (end <= file.bytes().1 || hears);
        if !is_believed && !file.told().is_stored() {
            // Another client may have written more, have cut the file to nothing, or have written
            // to it after it was cloned: then its bytes have another name.
            let _ = file.learn(self.backend.attr(ticket, MetaOp::GetAttr { ino })?);
            is_believed = true;
        }
        let mut in_chunks = self.chunks_of(ticket, file)?;
        let mut stored = None;
        if in_chunks.is_none() {
            stored = self.stored(ticket, file, is_believed)?;
            if stored.is_none() {
                in_chunks = self.chunks_of(ticket, file)?;
            }
        }
        let size = in_chunks.as_ref().map_or(0, |(_, size)| *size);
        // Some may be held since: they are not among the bytes yet.
        let size = stored.as_ref().map_or(size, |content| content.attr.size);
        let len = size.min(end).saturating_sub(args.offset);
        let len = usize::try_from(len).unwrap_or(0);
        if scratch.len() < len {
            // It keeps its length: clearing memory before a read costs as much as the copy.
            scratch.resize(len, 0);
        }
        let buf = &mut scratch[..len];
        if let Some(content) = &stored {
            content.copy(args.offset, buf);
        } else if let Some((chunks, _)) = &in_chunks {
            let bytes = chunks.bytes();
            let there = self.read_ahead(file, (bytes, args), buf);
            if there == 0 && buf.len() >= LENT_MIN {
                let pieces = self.backend.lend(bytes, args.offset, buf)?;
                drop(shared);
                let pieces: Vec<&[u8]> = pieces.iter().map(AsRef::as_ref).collect();
                send(Reply::Pieces(&pieces));
                return Ok(());
            }
            if there < buf.len() {
                self.backend.read(bytes, args.offset + there as u64, &mut buf[there..])?;
            }
        }
        drop(shared);
        send(Reply::Data(buf));
        Ok(())
    }

    pub(super) fn write(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        (args, data): (&WriteIn, &[u8]),
        send: Send<'_>,
    ) -> Result<Option<Aside>, Errno> {
        let file = self.file(ticket, ino)?;
        if !args.write_flags.contains(WriteFlags::LOCKOWNER) {
            file.note_pages();
        }
        self.bandwidth.pass(Way::Write, data.len() as u64);
        // The error of an earlier rejected write.
        self.report(&file, Ok(()))?;
        if !self.believes(&file) {
            let _ = file.learn(self.backend.attr(ticket, MetaOp::GetAttr { ino })?);
        }
        let offset = if self.appends(args) {
            self.append_at(ticket, &file, args.offset)?
        } else {
            args.offset
        };
        if offset.saturating_add(data.len() as u64) > FILE_BYTES_MAX {
            return Err(Errno::FILE_TOO_BIG);
        }
        self.before_write(ticket, (&file, args.write_flags))?;
        let (full, before) = (self.full_quota_of(ticket, ino), file.bytes().1);
        let at_once = full.is_some() || self.writes_at_once(args);
        let mut done = self.write_to(&file, (offset, data), at_once);
        if let Some(root) = full {
            done = done.and_then(|()| self.tell_full(&file, root, before));
        }
        let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
        // The kernel writes past its pages and drops them before. New pages that it fills during an
        // asynchronous write have the old bytes, and it gets no other signal to drop them.
        if args.write_flags.contains(WriteFlags::LOCKOWNER) && file.has_pages() {
            let pages = Pages::Range { offset, len: data.len() as u64 };
            let answer = done.map_or_else(Answer::Failed, |()| Answer::Written(bytes));
            return Ok(Some(Aside::Drops(Stale { ino, pages, now: None }, answer)));
        }
        done?;
        send(Reply::Written(bytes));
        if offset != args.offset {
            self.wrote_elsewhere(ino);
        }
        Ok(None)
    }

    fn write_to(
        &self,
        file: &File,
        (offset, data): (u64, &[u8]),
        at_once: bool,
    ) -> Result<(), Errno> {
        let shared = deadline::read(&file.gate)?;
        if file.told().is_stored() || self.files().has_held(file.ino) {
            drop(shared);
            return self.write_small(file, (offset, data), at_once);
        }
        if offset > file.bytes().1 {
            drop(shared);
            return self.write_behind_gap(file, (offset, data), at_once);
        }
        let filled = filled(file, (offset, data));
        let written = self.change(file, |chunks, _| self.backend.write(chunks, offset, data))?;
        let Some(chunks) = written else {
            drop(shared);
            return self.write_small(file, (offset, data), at_once);
        };
        self.wrote(file, chunks.bytes(), filled)
    }

    /// Writes beyond the end. First zeros the gap, which may contain bytes of a write that was
    /// never finished.
    fn write_behind_gap(
        &self,
        file: &File,
        (offset, data): (u64, &[u8]),
        at_once: bool,
    ) -> Result<(), Errno> {
        let alone = deadline::write(&file.gate)?;
        if !self.write_in_chunks(file, (offset, data))? {
            drop(alone);
            return self.write_small(file, (offset, data), at_once);
        }
        Ok(())
    }

    /// Notes written bytes: a meta is informed soon, in a strict mount before the write is
    /// answered. The caller has the file's gate.
    pub(super) fn wrote(&self, file: &File, bytes: Bytes, filled: Filled) -> Result<(), Errno> {
        self.ahead.changed(file.ino);
        file.filled(filled);
        let at = Timestamp::from_unix_nanos(RealClock::wall_nanos());
        if self.files().wrote(file, Written { end: filled.to, at, data: bytes.data.0 }) {
            self.files().note_untold(file.ino);
            self.wake.wake();
        }
        if self.mode == Mode::Strict { self.report(file, self.tell_of(file)) } else { Ok(()) }
    }

    /// Whether a file's gate stays taken: its holder may wait for a chain, for up to a minute.
    pub(crate) fn is_in_use(&self, ino: Ino) -> bool {
        let Some(file) = self.files().get(ino) else { return false };
        if self.backend.behind.has_file(ino) || self.files().has_held(ino) {
            file.gate.try_write_for(GATE).is_none()
        } else {
            file.gate.try_read_for(GATE).is_none()
        }
    }

    /// Reports written bytes of a file to a meta, if it is open here.
    pub(crate) fn tell(&self, ino: Ino) -> Result<(), Errno> {
        if !self.files().is_untold(ino) {
            return Ok(());
        }
        let file = self.file(&mut self.backend.own_ticket(), ino)?;
        if self.files().has_held(ino) {
            let _alone = deadline::write(&file.gate)?;
            return self.settle(&file);
        }
        // A concurrent cut would be undone.
        let _shared = deadline::read(&file.gate)?;
        self.tell_of(&file)
    }

    /// Reports written bytes to a meta; the caller has the file's gate.
    pub(crate) fn tell_of(&self, file: &File) -> Result<(), Errno> {
        let _one = deadline::lock(&file.telling)?;
        // Repeats an earlier unanswered attempt, then reports the bytes written since.
        loop {
            let mut ticket = self.backend.own_ticket();
            let mut is_first = false;
            let name = || {
                is_first = true;
                ticket.name()
            };
            let Some(telling) = self.files().begin_telling(file, name) else { return Ok(()) };
            let named = ticket.named((telling.sequence, telling.hour));
            let told = self.tell_once(file, telling, named);
            // A rejection of an earlier number may be outdated.
            if is_first || told.is_err() && self.files().is_told_of(file.ino) {
                return told;
            }
        }
    }

    fn tell_once(&self, file: &File, telling: Telling, mut ticket: Ticket) -> Result<(), Errno> {
        let written = telling.written;
        let (Written { end, at, data }, filled) = (written, file.first_filled());
        let changes = self.backend.settled.changes(file.ino);
        let extend = Extend { ino: file.ino, data, size: end, mtime: at, filled };
        let answered = self.backend.ask(&mut ticket, MetaOp::Extend(extend))?;
        let version = answered.version;
        let attr = match answered.answer {
            Ok(MetaReply::Attr(attr)) => attr,
            Ok(_) => return Err(unexpected()),
            Err(error) => {
                self.files().refuse_length(file, written, error.into());
                self.full.refused(file.ino, error);
                if error != MetaError::Io {
                    // A repetition would get the same answer.
                    self.files().end_telling(file);
                }
                return Err(error.into());
            }
        };
        let told = Told { attr, version };
        self.files().told(file, written, told);
        self.backend.settled.note(told, changes);
        self.leases.wrote(file.ino, attr.version);
        Ok(())
    }

    /// Answers an fsync. Bytes are durable before a write is answered, so a file within the length
    /// that a meta knows needs no wait: its modification time follows as after every write.
    pub(super) fn sync(&self, ino: Ino, send: Send<'_>) -> Result<(), Errno> {
        self.keep_promises(ino)?;
        let told = self.files().get(ino).is_some_and(|file| file.is_length_told())
            && !self.files().has_held(ino)
            && !self.files().owes_refusal(ino);
        if !told {
            self.tell_application(ino)?;
        }
        send(Reply::Done);
        Ok(())
    }

    /// Answers a close after a meta has the length and time of the written bytes, or after they are
    /// promised.
    pub(super) fn flush(&self, ino: Ino, args: FlushIn, send: Send<'_>) -> Result<(), Errno> {
        self.files().note_closing(ino, args.fh);
        let told = self.backend.behind.failure(ino).and_then(|()| {
            if self.promises_bytes(ino) {
                self.keeps_at_close(ino)
            } else {
                self.tell_application(ino)
            }
        });
        // The next owner of the lock must see the written bytes; both steps run even if one fails.
        let unlocked = self.unlock_at_flush(ino, args);
        told.and(unlocked)?;
        send(Reply::Done);
        Ok(())
    }

    /// Keeps the promises of a larger file before its close is answered, except in one-writer mode:
    /// the wait is short compared to the time for its bytes, and those are durable already.
    fn keeps_at_close(&self, ino: Ino) -> Result<(), Errno> {
        let is_small = || self.files().get(ino).is_some_and(|file| file.told().is_stored());
        if self.mode == Mode::OneWriter || is_small() { Ok(()) } else { self.keep_promises(ino) }
    }

    /// Reports written bytes to a meta; the application gets a rejection once.
    fn tell_application(&self, ino: Ino) -> Result<(), Errno> {
        let told = self.tell(ino);
        match self.files().get(ino) {
            Some(file) => self.report(&file, told),
            None => told,
        }
    }

    /// Counts a close, whether or not the written bytes can be reported, and releases locks.
    pub(super) fn release(
        &self,
        ticket: &Ticket,
        ino: Ino,
        args: &ReleaseIn,
        send: Send<'_>,
    ) -> Result<(), Errno> {
        let told = if self.promises_bytes(ino) { Ok(()) } else { self.tell(ino) };
        let backed = self.files().close(ticket.unique(), ino);
        self.close_cached(ino, backed);
        if !self.files().is_open(ino) {
            self.ahead.closed(ino);
        }
        let unlocked = self.unlock_at_release(ino, args);
        told.and(unlocked)?;
        send(Reply::Done);
        Ok(())
    }

    pub(super) fn fallocate(
        &self,
        ticket: &mut Ticket,
        ino: Ino,
        args: &FallocateIn,
        send: Send<'_>,
    ) -> Result<(), Errno> {
        let known =
            FallocateMode::KEEP_SIZE | FallocateMode::PUNCH_HOLE | FallocateMode::ZERO_RANGE;
        if !args.mode.without(known).is_empty() {
            return Err(Errno::NOTSUP);
        }
        let end = args.offset.checked_add(args.length).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(Errno::FILE_TOO_BIG)?;
        let file = self.file(ticket, ino)?;
        self.before_allocate(ticket, &file)?;
        let _alone = deadline::write(&file.gate)?;
        self.report(&file, self.settle(&file))?;
        let attr = file.learn(self.backend.attr(ticket, MetaOp::GetAttr { ino })?);
        if !args.mode.contains(FallocateMode::PUNCH_HOLE) {
            // No room is reserved. A program that asks for more than is free gets the error now.
            self.check_room(ticket, ino, end.saturating_sub(attr.size.max(args.offset)))?;
        }
        let zeros = FallocateMode::PUNCH_HOLE | FallocateMode::ZERO_RANGE;
        let keeps = args.mode.contains(FallocateMode::KEEP_SIZE);
        if attr.is_stored() {
            let zeros = (!args.mode.and(zeros).is_empty()).then_some((args.offset, end));
            let longer = (end > attr.size && !keeps).then_some(end);
            if self.allocate_stored(&file, zeros, longer)? {
                send(Reply::Done);
                return Ok(());
            }
        }
        let is_zeroed = !args.mode.and(zeros).is_empty();
        let allocate = |chunks: &Chunks, size| {
            if is_zeroed {
                self.write_zeros(&file, chunks, (args.offset, end.min(size)))?;
            }
            if end > size && !keeps { self.cut(&file, chunks, (size, size)) } else { Ok(()) }
        };
        // A concurrent cut to nothing is ordered after this.
        if let Some(chunks) = self.change(&file, allocate)? {
            if end > file.attr().size && !keeps {
                let set = SetAttr { size: Some(end), ..SetAttr::default() };
                let _ = file.learn(self.backend.attr(ticket, MetaOp::SetAttr { ino, set })?);
            } else {
                // Even without an effect it counts as a change.
                self.wrote(&file, chunks.bytes(), Filled::default())?;
            }
        }
        send(Reply::Done);
        Ok(())
    }

    /// Cuts bytes beyond `size` off a file that has at most `old` bytes in its chunks. Metas know
    /// before and after the cut that bytes are removed. The caller has exclusive access to the
    /// file.
    pub(super) fn cut(
        &self,
        file: &File,
        chunks: &Chunks,
        (size, old): (u64, u64),
    ) -> Result<(), Denied> {
        let mut cuts = chunks.bytes().cuts(size, old)?.peekable();
        if cuts.peek().is_none() {
            return Ok(());
        }
        self.hollow(file, size, false)?;
        let cut = self.backend.cut(chunks, cuts);
        // Also after a failure: a part of it may be done.
        cut.and(self.hollow(file, size, true))
    }

    /// Reports to a meta that bytes from `from` on are about to be removed from chunks, or have
    /// been.
    fn hollow(&self, file: &File, from: u64, ended: bool) -> Result<(), Denied> {
        let (changes, before) = (self.backend.settled.changes(file.ino), file.filled_before(from));
        let op = MetaOp::Hollow(Hollow { ino: file.ino, from, ended });
        let told = self.backend.attr(&mut self.backend.own_ticket(), op).map_err(Denied::Failed)?;
        self.heard(file, told, changes);
        file.keep_filled(&before, ended);
        Ok(())
    }

    /// Fills a range with zeros: whole chunks are removed, parts are overwritten.
    fn write_zeros(
        &self,
        file: &File,
        chunks: &Chunks,
        (from, to): (u64, u64),
    ) -> Result<(), Denied> {
        let chunk = chunks.bytes().layout.chunk_bytes();
        let mut at = from;
        while at < to {
            let next = (at / chunk + 1) * chunk;
            if at.is_multiple_of(chunk) && next <= to {
                let last = to / chunk * chunk;
                self.hollow(file, at, false)?;
                let removed = self.backend.remove(chunks, at / chunk..last / chunk);
                removed.and(self.hollow(file, at, true))?;
                at = last;
                continue;
            }
            let len = (next.min(to) - at).min(ZEROS as u64);
            let zeros = vec![0; usize::try_from(len).unwrap_or(0)];
            self.backend.write(chunks, at, &zeros)?;
            at += len;
        }
        Ok(())
    }
}

/// The range of a write to the chunks of a file.
pub(super) fn filled(file: &File, (offset, data): (u64, &[u8])) -> Filled {
    Filled { from: offset, to: offset + data.len() as u64, cuts: file.told().cuts }
}
